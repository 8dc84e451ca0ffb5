/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's record of one other endpoint: its identity, the link to it, the data that waits to
 * be sent to it and the operations that wait for it.
 */
#ifndef NM_ENGINE_PEER_H
#define NM_ENGINE_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/state.h"
#include "engine/device_way.h"
#include "engine/engine.h"
#include "engine/move.h"
#include "engine/protocol.h"
#include "engine/request.h"

enum nm_peer_state {
	NM_PEER_KNOWN,	    /* no link from this endpoint to it */
	NM_PEER_CONNECTING, /* likewise: a channel awaits its answer */
	NM_PEER_UNREACHED,  /* likewise: no channel reached it, which the next send reports */
	NM_PEER_MOVING,	   /* its channel broke: the end of the peer, or another channel, follows */
	NM_PEER_CONNECTED, /* link is valid */
	NM_PEER_LINK_LOST, /* it closed only the channel of this link to it */
	NM_PEER_DOWN,	   /* gone for good: an identity is never used twice */
	NM_NR_PEER_STATES,
};

/* The states that may follow a state. */
extern const uint32_t nm_peer_transitions[NM_NR_PEER_STATES];

/* Losses of messages from the peer, and reports to receives that may wait for them. */
enum nm_loss {
	NM_LOSS_NONE,
	NM_LOSS_UNREPORTED, /* the next receive that names the peer reports it */
	NM_LOSS_CRASHED,    /* the peer died, and receives from any source have ended */
};

/* Texts about a peer; only peers that were met have some. */
struct nm_peer_diag {
	struct nm_peer_label label;
	struct nm_reason channel; /* reason for the link, or for its absence */
	struct nm_reason down;
	struct nm_reason quarantine; /* reason why a channel to it was last given up */
	/* Traffic on each channel until its last change. The rest used the last channel. */
	struct nm_traffic sent[NM_NR_CHANNELS], received[NM_NR_CHANNELS];
};

struct nm_peer {
	/* sending: one cache line has all that a small message needs */
	enum nm_peer_state state;
	unsigned int nr_control; /* packets in control, which are sent first */
	uint32_t eager_max;
	uint32_t max_payload;
	struct nm_link *link;
	int (*send)(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		    unsigned int nr_iov);
	struct nm_engine *engine;
	uint64_t sent_messages, sent_bytes;
	bool send_refused; /* an envelope found no room: streams pause for one round */
	bool paused;	   /* they paused in the last round */
	uint32_t unheard;  /* sent since this endpoint last heard it, in its counts (send.c) */
	/* receiving */
	uint64_t received_messages, received_bytes;
	uint64_t index; /* in the address vector; UINT64_MAX: not in it */
	struct nm_list unexpected[2];
	/* private queue: control packets in order, then transfers in turn */
	struct nm_list control;	    /* struct nm_control */
	struct nm_list streams;	    /* requests */
	struct nm_list active_node; /* in engine->active while nm_peer_has_work() */
	struct nm_list requests;    /* requests that wait for this peer or serve it */
	unsigned int nr_started;    /* own memory accesses that it has not answered */
	unsigned int nr_served;	    /* transfers of its memory accesses under way here */
	unsigned int nr_leaving;    /* sends in NM_REQUEST_LEAVING */
	uint32_t link_eager_max;    /* eager_max while no message is kept back (unexpected.h) */
	uint64_t control_bytes;	    /* size of everything in control */
	/* cold */
	struct nm_identity who;
	struct nm_address address;
	/* The channels of messages to and from it; NONE: there was none, in this direction. */
	enum nm_channel sends_on, receives_on;
	enum nm_way way; /* of the packets to it */
	bool is_named;	 /* during the search for awaited peers: a posted receive names it */
	bool was_known;	 /* the program gave its address */
	uint32_t source_channels; /* bit per channel on which it may still send to this endpoint */
	enum nm_loss loss;
	uint32_t nr_quarantines; /* channels to it that were given up */
	uint32_t nr_moves;	 /* of the way to it, between memory and the network */
	uint64_t nr_stalls;	 /* sends that found no room */
	/*
	 * accesses of this endpoint to its memory, by the side that moved the bytes; `messages` are
	 * operations
	 */
	struct nm_traffic accesses[NM_NR_ACCESS_WAYS][NM_NR_ACCESS_KINDS];
	/* messages without a receive (unexpected.h) */
	uint64_t held_bytes;	      /* size of its messages here */
	enum nm_pace asked;	      /* what this endpoint asked it to do with its messages */
	bool keeps;		      /* it asked this endpoint to keep bytes back */
	struct nm_transport *tried;   /* the channel that awaits its answer; NULL: none does */
	struct nm_failover *failover; /* the change to another channel under way; NULL: none is */
	struct nm_move *move; /* what is known of leaving memory in order; NULL: nothing (move.c) */
	struct nm_peer_diag *diag;
	struct nm_rndv_choice *bulk; /* set after its first large message */
	/* Whether a device reads its payloads where they lie (stage.c). */
	enum nm_places places;
};

/* A packet that found no room. */
struct nm_control {
	struct nm_list node;
	struct nm_packet packet;
	uint8_t payload[];
};

/* Peers by identity: open addressing, grows; peers stay where they are. */
struct nm_peer_table {
	struct nm_peer **slots;
	size_t mask;
	size_t nr;
};

int nm_peer_table_init(struct nm_peer_table *table);
void nm_peer_table_fini(struct nm_peer_table *table);
struct nm_peer *nm_peer_table_find(const struct nm_peer_table *table,
				   const struct nm_identity *who);
/* The peer WHO; created if it is new (*ret_new). NULL: out of memory. */
struct nm_peer *nm_peer_table_get(struct nm_peer_table *table, const struct nm_identity *who,
				  bool *ret_new);

/* The address vector does not have it. */
static inline bool nm_peer_is_unlisted(const struct nm_peer *peer)
{
	return peer->index == UINT64_MAX;
}

static inline void nm_peer_set_state(struct nm_peer *peer, enum nm_peer_state state)
{
	nm_state_check(nm_peer_transitions, peer->state, state);
	peer->state = state;
}

/* True if it has ever sent to this endpoint. */
static inline bool nm_peer_is_source(const struct nm_peer *peer)
{
	return peer->receives_on != NM_CHANNEL_NONE;
}

/* The peer's diag, created at first use; a static spare if out of memory. Never NULL. */
struct nm_peer_diag *nm_peer_diag(struct nm_peer *peer);
/* From now on, messages to or from it use CHANNEL (diag.c). */
void nm_peer_sends_on(struct nm_peer *peer, enum nm_channel channel) NM_COLD;
void nm_peer_receives_on(struct nm_peer *peer, enum nm_channel channel) NM_COLD;

/*
 * Make a link to the peer on the best channel that reaches it. Returns 0; -EHOSTUNREACH (the diag
 * has the reason); -EAGAIN; -ECONNRESET: the peer is down. Must not be called from within a
 * transport's progress.
 */
int nm_peer_connect(struct nm_engine *engine, struct nm_peer *peer);
/* The same for a peer in any state; the state does not change. */
int nm_peer_find_link(struct nm_engine *engine, struct nm_peer *peer);
/* LINK is the link to it from now on. OTHERS: why no other channel is used, or "". */
void nm_peer_set_link(struct nm_peer *peer, struct nm_link *link,
		      const struct nm_reason *others) NM_COLD;

/*
 * Send a control packet, or queue it after those that wait already. Copies LEN bytes of payload.
 * Cannot fail for the caller: without memory or link the peer goes down.
 */
void nm_peer_post(struct nm_engine *engine, struct nm_peer *peer, const struct nm_packet *packet,
		  const void *payload);
/* Queue a request's bytes for sending, in turn with the peer's other transfers. */
void nm_peer_stream(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *request);
/* An eager send that completes when the link has been drained: now or later. */
void nm_peer_leave(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *request);
/* Send the waiting packets. Returns their number. */
unsigned int nm_peer_push(struct nm_engine *engine, struct nm_peer *peer);

static inline void nm_peer_count_access(struct nm_peer *peer, enum nm_access_way way,
					enum nm_access_kind kind, uint64_t bytes)
{
	peer->accesses[way][kind].messages++;
	peer->accesses[way][kind].bytes += bytes;
}

/* True if something waits for its link. */
static inline bool nm_peer_is_awaited(const struct nm_peer *peer)
{
	return !nm_list_empty(&peer->control) || !nm_list_empty(&peer->streams) || peer->failover ||
	       peer->nr_leaving > 0;
}

static inline bool nm_peer_has_work(const struct nm_peer *peer)
{
	return nm_peer_is_awaited(peer) || peer->state == NM_PEER_CONNECTING ||
	       nm_move_is_due(peer);
}

/*
 * The other side is gone or no longer trusted. ERR 0: it closed normally. Everything that waits for
 * it ends with an error completion; after a crash of a peer that the program knew, posted
 * wildcard receives do too.
 */
void nm_peer_down(struct nm_engine *engine, struct nm_peer *peer, int err, const char *why) NM_COLD;
/*
 * The source on the transport FROM was another process that had taken the peer's name. What it sent
 * goes; the peer itself can still come. No effect if a source on another channel is the peer.
 */
void nm_peer_disown(struct nm_engine *engine, struct nm_peer *peer,
		    const struct nm_transport *from) NM_COLD;
/* It closed the channel of this link, but still uses another: waiting packets never leave. */
void nm_peer_link_lost(struct nm_engine *engine, struct nm_peer *peer) NM_COLD;
/* A send returned -EPIPE: the transport reports the reason at its next progress(). */
void nm_peer_link_broken(struct nm_engine *engine, struct nm_peer *peer) NM_COLD;
/* Every operation under way with the peer ends with an error; messages that have arrived stay. */
void nm_peer_fail_requests(struct nm_engine *engine, struct nm_peer *peer) NM_COLD;
/* End receives that may wait for lost messages: those from this peer and those from any source. */
void nm_peer_fail_receives(struct nm_engine *engine, struct nm_peer *peer) NM_COLD;
/* Drop the private queue. */
void nm_peer_drop_queue(struct nm_engine *engine, struct nm_peer *peer) NM_COLD;

#endif
