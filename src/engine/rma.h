/* SPDX-License-Identifier: Apache-2.0 */
/* What puts, gets and atomics have in common, on both sides. */
#ifndef NM_ENGINE_RMA_H
#define NM_ENGINE_RMA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "engine/engine.h"
#include "engine/protocol.h"
#include "engine/request.h"

struct nm_incoming;

/* Operations that may be under way to one peer: bounds what a target has to keep for answers. */
#define NM_RMA_WINDOW 4096
/* Local pieces of one access, at most: pieces of the access times pieces of a region. */
#define NM_RMA_SPAN_MAX (NM_IOV_MAX * NM_IOV_MAX)

struct nm_iov_sizes {
	size_t nr_iov;
	uint64_t total;
};

/* Initiator: local and remote side fit each other? 0 or -EINVAL. */
int nm_rma_check(const struct nm_iov_sizes *sizes, const struct nm_remote *remote,
		 size_t nr_remote);
/* A request under way to PEER; NULL: try again after progress. */
struct nm_request *nm_rma_start(struct nm_engine *engine, struct nm_peer *peer,
				enum nm_request_kind kind, uint64_t flags, void *context);
/* Undo nm_rma_start, without a completion. */
void nm_rma_abandon(struct nm_engine *engine, struct nm_request *request);
void nm_rma_to_wire(struct nm_wire_remote *ret_wire, const struct nm_remote *remote, size_t nr);

/*
 * Target: copy the remote pieces that follow BEFORE bytes of payload. Returns how many, or -EBADMSG
 * when the packet is too short or their sizes overflow.
 */
int nm_rma_from_wire(const struct nm_packet *pkt, const void *payload, size_t before,
		     struct nm_remote ret_remote[NM_IOV_MAX], uint64_t *ret_total);
/* Are all pieces in registered memory with these rights? 0 or -EACCES. */
int nm_rma_allowed(const struct nm_engine *engine, const struct nm_remote *remote, size_t nr,
		   uint64_t access);
/* Local bytes OFFSET..OFFSET+LEN of the pieces taken together: number of iovecs, or -EACCES. */
int nm_rma_span(const struct nm_engine *engine, const struct nm_remote *remote, size_t nr,
		uint64_t offset, uint64_t len, uint64_t access, struct iovec *ret_iov);
/* Count an access in the endpoint's and the regions' counters. */
void nm_rma_count(struct nm_engine *engine, const struct nm_remote *remote, size_t nr,
		  uint64_t access);
/* A transfer from or to our memory is over. */
void nm_rma_serve_end(struct nm_engine *engine, struct nm_request *request);
/* All bytes of a large put have come. */
void nm_rma_write_finish(struct nm_engine *engine, struct nm_request *request);
/* The initiator of a large put gave it up. */
void nm_rma_write_broken(struct nm_engine *engine, struct nm_request *request);

/* Packets of an initiator. */
void nm_rma_on_write(const struct nm_incoming *in);
void nm_rma_on_write_rts(const struct nm_incoming *in);
void nm_rma_on_read(const struct nm_incoming *in);

#endif
