/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host in which bytes of a device (base/device.h) wait for their packets, or packets
 * for their device. A copy from or to a device costs microseconds however short it is, so a transfer
 * is copied in blocks of NEARMETAL_DEVICE_BLOCK and not packet by packet. It has two of them: while
 * one is sent or filled, the device copies from or to the other. A channel may have places for the
 * blocks that go out (struct nm_place_ops): then no processor copies them.
 *
 * A transfer (a request in STREAMING or WAIT_DATA) owns a stage from its first block on until it
 * ends; the stages of an engine are few, and transfers that get none are copied by packets.
 */
#ifndef NM_ENGINE_STAGE_H
#define NM_ENGINE_STAGE_H

#include "engine/device_way.h"
#include "engine/engine.h"

struct nm_incoming;
struct nm_link;
struct nm_peer;
struct nm_request;

#define NM_NR_STAGES 4

struct nm_stages;

/* The interface that was used first; NULL: none. STAGES may be NULL. */
const struct nm_device_ops *nm_stages_device(const struct nm_stages *stages);
/* Whether a device writes into the places of CHANNEL. STAGES may be NULL. */
enum nm_places nm_stages_places(const struct nm_stages *stages, enum nm_channel channel);
/* The places of CHANNEL are other ones from now on. STAGES may be NULL. */
void nm_stages_forget_places(struct nm_stages *stages, enum nm_channel channel);

/* NULL-safe. */
void nm_stages_destroy(struct nm_stages *stages);

/*
 * All LEN bytes of IOV, at most 64 KiB, in *RET_PIECE until the next call. 0; -EFAULT, -EIO: the
 * device has failed; -EAGAIN: out of memory.
 */
int nm_stage_message(struct nm_engine *engine, const struct iovec *iov, size_t nr_iov, uint64_t len,
		     struct iovec *ret_piece) NM_COLD;

/*
 * Send PACKET with the next packet->len bytes of transfer R, from r->done on. -EFAULT, -EIO: the
 * device has failed; -EACCES: the region has gone; other errors as send(). -EAGAIN also: the device
 * still copies them, and R is now the last of its peer's streams.
 */
int nm_stage_send(struct nm_engine *engine, struct nm_request *r,
		  const struct nm_packet *packet) NM_COLD;

/* Bytes of transfer R are here, or were: all that follow go through nm_stage_in(), in order. */
bool nm_stage_is_open(const struct nm_engine *engine, const struct nm_request *r) NM_COLD;

/*
 * Take the next LEN bytes of transfer R. What the device has not yet got after the last ones is
 * given to it then. 0; -EFAULT, -EIO; -EACCES: the region has gone.
 */
int nm_stage_in(const struct nm_incoming *in, struct nm_request *r, const void *bytes,
		uint64_t len) NM_COLD;
/* Transfer R, to this endpoint, ends with the error of nm_stage_in(). */
void nm_stage_failed(struct nm_request *r, int err) NM_COLD;

/*
 * A transfer ends early: no copy from or to its buffers goes on after this, and what was reserved for
 * it is given back. Of request R; or of all with PEER, or of all if that is NULL.
 */
void nm_stage_end(struct nm_engine *engine, const struct nm_request *r) NM_COLD;
void nm_stages_end(struct nm_engine *engine, const struct nm_peer *peer) NM_COLD;
/*
 * LINK is to be left: no copy goes on into its places after this, and they are given back. Transfers
 * that had blocks there go on from blocks that are copied again.
 */
void nm_stages_leave(struct nm_engine *engine, const struct nm_link *link) NM_COLD;

#endif
