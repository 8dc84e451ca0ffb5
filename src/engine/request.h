/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations in flight. Requests live in slabs and are found by id in O(1): an id is an index and
 * the generation of that slot, so an id that a peer made up, or kept too long, is seen at once.
 */
#ifndef NM_ENGINE_REQUEST_H
#define NM_ENGINE_REQUEST_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/list.h"
#include "base/state.h"
#include "engine/engine.h"
#include "engine/iov.h"
#include "engine/match.h"
#include "transport/select.h"
#include "transport/transport.h"

enum nm_request_state {
	NM_REQUEST_FREE,
	NM_REQUEST_NEW,	      /* allocated, nothing has been sent or posted */
	NM_REQUEST_POSTED,    /* receive in the posted queue */
	NM_REQUEST_DRAINING,  /* multi-receive: out of the queue, rendezvous into it unfinished */
	NM_REQUEST_WAIT_DATA, /* rendezvous receive, get, or put at the target: bytes are coming */
	NM_REQUEST_WAIT_CTS,  /* large send or put: envelope is out */
	NM_REQUEST_STREAMING, /* large send or put, or get at the target: bytes are going */
	NM_REQUEST_LEAVING,   /* eager send: with the transport, not yet gone from this process */
	NM_REQUEST_WAIT_ACK,  /* everything is out, the target has not answered */
	NM_REQUEST_PULLING,   /* large receive: we read the sender's memory */
	NM_REQUEST_PLACING,   /* large send: we write the receiver's memory */
	NM_REQUEST_WAIT_PLACED, /* large receive: the sender still writes its part */
	NM_REQUEST_DIRECT,	/* large message: a network adapter reaches its device */
	NM_NR_REQUEST_STATES,
};

/* Which states may follow a state. */
extern const uint32_t nm_request_transitions[NM_NR_REQUEST_STATES];

enum nm_request_kind {
	NM_REQUEST_RECV,
	NM_REQUEST_MULTI_RECV,
	NM_REQUEST_SEND,
	NM_REQUEST_WRITE,
	NM_REQUEST_READ,
	NM_REQUEST_ATOMIC,
	NM_REQUEST_SERVE_WRITE, /* at the target */
	NM_REQUEST_SERVE_READ,	/* at the target */
};

/*
 * The hot part, two and a half cache lines, is all that a receive of an eager message touches. The
 * cold part of a free request is zero, and its lists are empty. Code that writes to the cold part
 * gives the request back with nm_request_free(), which clears it again.
 */
struct nm_request {
	struct nm_posted posted; /* receives: place in the match queue */
	uint64_t flags;		 /* the caller's NM_ flags */
	void *context;
	uint64_t capacity; /* receives: room in iov */
	size_t nr_iov;
	struct iovec iov[NM_IOV_MAX]; /* as many as nr_iov are valid */
	/* not cleared: they outlive each use */
	struct nm_request *next_free;
	uint32_t index, generation;
	enum nm_request_state state;
	enum nm_request_kind kind;
	struct nm_list peer_node;   /* in peer->requests while the peer is waited for or served */
	struct nm_list stream_node; /* in peer->streams while STREAMING */
	/* cold */
	struct nm_peer *peer; /* the other side, once known */
	uint64_t size;	      /* of the whole message or access */
	uint64_t accepted;    /* how much of it is transferred */
	uint64_t done;	      /* how much has been */
	uint64_t remote_id;   /* the other side's id of this transfer */
	uint64_t data;	      /* completion data of an incoming message or put */
	uint64_t tag;	      /* of an incoming message */
	struct nm_cursor cursor;
	int error;	      /* positive errno found on the way, reported at the end */
	uint8_t packet_flags; /* NM_PKT_ of the envelope */
	/* large message */
	struct nm_select_verdict verdict; /* receive: how it comes */
	bool is_counted;		  /* receive: in its peer's sample (rndv_choice.h) */
	bool past_cache;		  /* send: the receiver shares no cache with us */
	bool offered;			  /* send: the receiver knows where it lies, once */
	bool tail_due;			  /* receive: the sender may write into our memory */
	uint64_t split;			  /* PULLING up to, PLACING from here */
	bool expects;			  /* receive, DIRECT: the transport has its buffer */
	uint64_t placed;		  /* receive: bytes from `split` on that the sender wrote */
	int copy_error;			  /* receive: -errno that ended PULLING or DIRECT early */
	unsigned int nr_spans;
	/* multi-receive */
	struct nm_request *parent; /* of a rendezvous into a multi-receive buffer */
	unsigned int nr_children;
	uint64_t used;
	/* memory access at the target */
	size_t nr_remote;
	struct nm_remote remote[NM_IOV_MAX]; /* as many as nr_remote are valid */
	/* The other side's memory, unchecked: nr_spans; or its struct nm_device_share. */
	struct nm_span spans[NM_SHARE_SPANS];
};
static_assert(offsetof(struct nm_request, iov[1]) <= 3 * NM_CACHE_LINE, "hot part");

#define NM_REQUEST_SLAB 64

struct nm_request_pool {
	struct nm_request **slabs;
	size_t nr_slabs;
	size_t max_slabs;
	struct nm_request *free;
	size_t nr_used;
};

void nm_request_pool_init(struct nm_request_pool *pool);
void nm_request_pool_fini(struct nm_request_pool *pool);
/* Make another slab of free requests. False: out of memory. */
bool nm_request_pool_grow(struct nm_request_pool *pool) NM_COLD;

static inline void nm_request_set_state(struct nm_request *request, enum nm_request_state state)
{
	nm_state_check(nm_request_transitions, request->state, state);
	request->state = state;
}

/* A request with empty lists, nr_iov 0 and a zero cold part; NULL: out of memory. */
static inline struct nm_request *nm_request_alloc(struct nm_request_pool *pool,
						  enum nm_request_kind kind)
{
	struct nm_request *r;

	if (nm_unlikely(!pool->free) && !nm_request_pool_grow(pool))
		return NULL;
	r = pool->free;
	pool->free = r->next_free;
	nm_request_set_state(r, NM_REQUEST_NEW);
	r->kind = kind;
	r->nr_iov = 0;
	pool->nr_used++;
	return r;
}

/* Give back a request of which only the hot part was used. Its id is never valid again. */
static inline void nm_request_put(struct nm_request_pool *pool, struct nm_request *request)
{
	nm_request_set_state(request, NM_REQUEST_FREE);
	request->generation++;
	pool->nr_used--;
	/* The next one is taken from here: it is still in the cache. */
	request->next_free = pool->free;
	pool->free = request;
}

/* Leaves every list of a peer, clears the cold part, gives the request back. */
void nm_request_free(struct nm_request_pool *pool, struct nm_request *request);

static inline uint64_t nm_request_id(const struct nm_request *request)
{
	return (uint64_t)request->generation << 32 | request->index;
}

/* The request with this id when it is in use and PEER is its other side; else NULL. */
struct nm_request *nm_request_find(const struct nm_request_pool *pool, uint64_t id,
				   const struct nm_peer *peer);

#endif
