/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects behind the libfabric face and what they know of each other.
 *
 *   fabric <-- domain <-- address vector <-- endpoint --> engine
 *                    <-- queue, counter <---'
 *                    <-- memory region
 *
 * An arrow is a counted reference: an object with references cannot be closed (-FI_EBUSY). Every
 * function that touches an engine, queue, vector or region runs under the domain's lock. Entry
 * points keep the name of their object: nm_ep_open, nm_av_insert, nm_cq_read.
 */
#ifndef NM_PROVIDER_PROVIDER_H
#define NM_PROVIDER_PROVIDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "base/compiler.h"
#include "base/fork.h"
#include "engine/engine.h"
#include "net/host.h"
#include "provider/address_table.h"
#include "provider/lock.h"
#include "provider/mover.h"

/* What an endpoint offers. Written here once: attributes, checks and manual agree on it. */
#define NM_INJECT_SIZE 1024 /* fits one packet of every channel; taken at once */
#define NM_QUEUE_SIZE 1024
#define NM_MAX_MSG_SIZE ((size_t)1 << 46) /* any buffer a program can have */
#define NM_MR_KEY_SIZE sizeof(uint64_t)
#define NM_CQ_DATA_SIZE sizeof(uint64_t)
#define NM_MEM_TAG_FORMAT UINT64_C(0xaaaaaaaaaaaaaaaa) /* every tag bit is the program's */
#define NM_NR_OBJECTS 65536 /* queues, endpoints and counters per domain: no limit of ours */

/* A reference count that only says "busy". */
typedef _Atomic int nm_refs;

static inline void nm_refs_get(nm_refs *refs)
{
	atomic_fetch_add(refs, 1);
}

static inline void nm_refs_put(nm_refs *refs)
{
	atomic_fetch_sub(refs, 1);
}

/* An open object among all of its process (opened.c). */
struct nm_opened {
	struct nm_opened *next;
	const struct fid *fid;
};

void nm_opened_add(struct nm_opened *opened, const struct fid *fid);
void nm_opened_remove(struct nm_opened *opened);
/* Is FID one of those that are open? It may be any address, and is not looked at. */
bool nm_opened_has(const struct fid *fid);

struct nm_fabric {
	struct fid_fabric fabric;
	struct nm_opened opened;
	nm_refs refs;
};

/* The endpoints whose progress a queue or counter drives. */
struct nm_ep_list {
	struct nm_ep **eps;
	size_t nr;
};

int nm_ep_list_add(struct nm_ep_list *list, struct nm_ep *ep);
void nm_ep_list_remove(struct nm_ep_list *list, struct nm_ep *ep);
void nm_ep_list_fini(struct nm_ep_list *list);

struct nm_domain {
	struct fid_domain domain;
	struct nm_opened opened;
	struct nm_fabric *fabric;
	nm_refs refs;
	struct nm_lock lock;
	struct nm_fork_watch fork_watch; /* sleepers exist in the parent only */
	struct nm_memory_table *memory;
	struct nm_ep_list eps; /* all that are enabled */
	uint32_t nr_helps;     /* calls of nm_domain_help() */
	bool has_devices;      /* FI_HMEM */
	struct nm_mover mover;
};

struct nm_cq {
	struct fid_cq cq;
	struct nm_domain *domain;
	nm_refs refs;
	struct nm_cqueue *queue;
	size_t entry_size;
	bool locked; /* the domain's lock is to be taken */
	struct nm_ep_list eps;
	_Atomic uint32_t
		signalled; /* fi_cq_signal() was called; blocked threads sleep on it, too */
	int fd;		   /* what the program waits on, -1: nothing */
	enum fi_wait_obj wait_obj;
};

struct nm_cntr {
	struct fid_cntr cntr;
	struct nm_domain *domain;
	nm_refs refs;
	struct nm_counter counter;
	struct nm_ep_list eps;
	/* Whose progress reading drives: eps, or all of the domain once a region counts here. */
	const struct nm_ep_list *driven;
	int fd; /* what the program waits on, -1: nothing */
	enum fi_wait_obj wait_obj;
};

struct nm_av {
	struct fid_av av;
	struct nm_domain *domain;
	nm_refs refs;
	struct nm_address_table table;
	struct nm_ep_list eps;
};

/* Index of WHO in AV (a struct nm_av *), UINT64_MAX when it is not in it. */
uint64_t nm_av_resolve(void *av, const struct nm_identity *who, struct nm_address *ret_address);

enum nm_cntr_use {
	NM_CNTR_SEND,
	NM_CNTR_RECV,
	NM_CNTR_READ,
	NM_CNTR_WRITE,
	NM_CNTR_REMOTE_READ,
	NM_CNTR_REMOTE_WRITE,
	NM_NR_CNTR_USES,
};

struct nm_ep {
	struct fid_ep ep;
	struct nm_domain *domain;
	struct nm_engine *engine; /* NULL until enabled */
	/* peers[fi_addr], filled on first use */
	struct nm_peer **peers;
	uint64_t nr_peers;
	bool locked;	  /* the domain's lock is to be taken */
	bool is_directed; /* FI_DIRECTED_RECV */
	/* Flags of calls without a flags argument, and those added to calls that have one. */
	uint64_t tx_op_flags, rx_op_flags;
	uint64_t tx_msg_flags, rx_msg_flags;
	uint64_t caps;
	struct nm_av *av;
	struct nm_cq *tx_cq, *rx_cq;
	struct nm_cntr *cntrs[NM_NR_CNTR_USES];
	size_t min_multi_recv;
	struct nm_address address;
	pid_t owner;
	struct nm_ep *next;	/* all open endpoints of the process, for stats at exit */
	struct nm_stats *stats; /* NULL: none */
	bool loss_written;	/* stats of a lost peer are on disk */
};

static inline struct nm_ep *nm_ep_of(struct fid_ep *ep)
{
	return nm_container_of(ep, struct nm_ep, ep);
}

/* One progress() of each. Returns the work done. */
static inline unsigned int nm_ep_list_progress(const struct nm_ep_list *list)
{
	unsigned int work = 0;

	for (size_t i = 0; i < list->nr; i++)
		work += nm_engine_progress(list->eps[i]->engine);
	return work;
}

/*
 * Progress of the domain's endpoints that are not in LIST, in some of the calls. A program may wait
 * at one queue while a peer waits for what only another endpoint here can answer: without it both
 * would wait for ever.
 */
void nm_domain_help(struct nm_domain *domain, const struct nm_ep_list *list);

/* What reading a queue or counter does: progress of the endpoints in LIST, and help for others. */
static inline void nm_domain_progress(struct nm_domain *domain, const struct nm_ep_list *list)
{
	nm_ep_list_progress(list);
	if (nm_unlikely(domain->eps.nr != list->nr))
		nm_domain_help(domain, list);
}

/* The slow half of nm_ep_peer(): first use, or a bad address. Returns 0 or -errno. */
int nm_ep_find_peer(struct nm_ep *ep, fi_addr_t addr, struct nm_peer **ret_peer) NM_COLD;

static inline int nm_ep_peer(struct nm_ep *ep, fi_addr_t addr, struct nm_peer **ret_peer)
{
	if (nm_likely(addr < ep->nr_peers && ep->peers[addr])) {
		*ret_peer = ep->peers[addr];
		return 0;
	}
	return nm_ep_find_peer(ep, addr, ret_peer);
}

/*
 * The source of a receive: the peer of ADDR when the endpoint has FI_DIRECTED_RECV, else anyone.
 */
static inline int nm_ep_source(struct nm_ep *ep, fi_addr_t addr, struct nm_peer **ret_peer)
{
	if (addr == FI_ADDR_UNSPEC || !(ep->caps & FI_DIRECTED_RECV)) {
		*ret_peer = NULL;
		return ep->engine ? 0 : -FI_EOPBADSTATE;
	}
	return nm_ep_peer(ep, addr, ret_peer);
}

/* Send a message to the peer at TO, under the domain's lock. */
static inline ssize_t nm_ep_post_send(struct nm_ep *ep, fi_addr_t to, struct nm_message *message)
{
	int err;

	nm_lock_take(&ep->domain->lock);
	err = nm_ep_peer(ep, to, &message->peer);
	if (nm_likely(!err))
		err = nm_engine_send(ep->engine, message);
	nm_lock_give(&ep->domain->lock);
	return err;
}

/* Post a receive from the peer at FROM, or from anyone, under the domain's lock. */
static inline ssize_t nm_ep_post_recv(struct nm_ep *ep, fi_addr_t from, struct nm_message *message)
{
	int err;

	nm_lock_take(&ep->domain->lock);
	err = nm_ep_source(ep, from, &message->peer);
	if (nm_likely(!err))
		err = nm_engine_recv(ep->engine, message);
	nm_lock_give(&ep->domain->lock);
	return err;
}

/* The same with a lock, or for a peer that is not known yet (ep_buffer.c). */
ssize_t nm_ep_inject_slowly(struct nm_ep *ep, fi_addr_t to, const void *buf, size_t len,
			    uint64_t tag, uint64_t data, uint64_t flags);
ssize_t nm_ep_recv_buffer_slowly(struct nm_ep *ep, fi_addr_t from, void *buf, size_t len,
				 uint64_t tag, uint64_t ignore, uint64_t flags, void *context);

/*
 * One buffer, nothing to take and a known peer: the path of nearly every message, which is a tail
 * call into the engine.
 */
static inline ssize_t nm_ep_inject(struct nm_ep *ep, fi_addr_t to, const void *buf, size_t len,
				   uint64_t tag, uint64_t data, uint64_t flags)
{
	if (nm_unlikely(len > NM_INJECT_SIZE))
		return -FI_EMSGSIZE;
	if (nm_likely(!ep->locked && to < ep->nr_peers && ep->peers[to]))
		return nm_engine_inject(ep->peers[to], buf, len, tag, data, flags);
	return nm_ep_inject_slowly(ep, to, buf, len, tag, data, flags);
}

static inline ssize_t nm_ep_recv_buffer(struct nm_ep *ep, fi_addr_t from, void *buf, size_t len,
					uint64_t tag, uint64_t ignore, uint64_t flags,
					void *context)
{
	if (nm_likely(!ep->locked && ep->engine)) {
		if (from == FI_ADDR_UNSPEC)
			return nm_engine_recv_buffer(ep->engine, NULL, buf, len, tag, ignore, flags,
						     context);
		if (nm_likely(ep->is_directed && from < ep->nr_peers && ep->peers[from]))
			return nm_engine_recv_buffer(ep->engine, ep->peers[from], buf, len, tag,
						     ignore, flags, context);
	}
	return nm_ep_recv_buffer_slowly(ep, from, buf, len, tag, ignore, flags, context);
}

/* The address vector forgot WHO at INDEX: another peer may get the index. */
void nm_ep_forget_peer(struct nm_ep *ep, uint64_t index, const struct nm_identity *who);
/* A completion said that a peer is lost: the stats file is written while there is time. */
void nm_ep_peer_lost(struct nm_ep *ep) NM_COLD;
/* At unload: endpoints that were never closed. */
void nm_ep_write_all_stats(void);

/* Attributes and hints (info.c, hints.c, getinfo.c). */
int nm_hints_check(const struct fi_info *hints, struct nm_reason *ret_why);
uint64_t nm_hints_caps(const struct fi_info *hints);
/* NAMES_DESTINATION: the program named a host, so there has to be a destination address. */
struct fi_info *nm_info_create(uint32_t version, const struct fi_info *hints,
			       bool names_destination);
int nm_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **info);

#define NM_TX_CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE)
#define NM_RX_CAPS                                                                                 \
	(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE |    \
	 FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT)
#define NM_DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define NM_CAPS (NM_TX_CAPS | NM_RX_CAPS | NM_DOMAIN_CAPS)
#define NM_TX_OP_FLAGS                                                                             \
	(FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |                   \
	 FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE)
#define NM_RX_OP_FLAGS (FI_COMPLETION | FI_MULTI_RECV)
#define NM_MSG_ORDER                                                                               \
	(FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR |          \
	 FI_ORDER_ATOMIC_WAW)

/* Constructors that libfabric reaches through our ops tables. */
int nm_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int nm_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
		   void *context);
int nm_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq,
	       void *context);
int nm_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av,
	       void *context);
int nm_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
	       void *context);
int nm_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr,
		 void *context);
int nm_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
int nm_query_atomic(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op,
		    struct fi_atomic_attr *attr, uint64_t flags);

extern struct fi_ops_mr nm_mr_ops;
extern struct fi_ops_msg nm_msg_ops;
extern struct fi_ops_tagged nm_tagged_ops;
extern struct fi_ops_rma nm_rma_ops;
extern struct fi_ops_atomic nm_atomic_ops;

/* Slots of ops tables for what is not offered: -FI_ENOSYS (unsupported.c). */
int nm_no_bind(struct fid *fid, struct fid *bfid, uint64_t flags);
int nm_no_control(struct fid *fid, int command, void *arg);
int nm_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

#endif
