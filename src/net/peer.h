/* SPDX-License-Identifier: Apache-2.0 */
/* The network channel's record of one other endpoint, in both directions, by identity. */
#ifndef NM_NET_PEER_H
#define NM_NET_PEER_H

#include <rdma/fi_domain.h>

#include "base/arith.h"
#include "net/wire.h"
#include "transport/transport.h"

enum nm_net_state {
	NM_NET_UP,
	NM_NET_HELD,   /* as UP, but nothing is sent to it for now (resume.c) */
	NM_NET_CLOSED, /* it sent BYE: no more messages come from it */
	NM_NET_DEAD,   /* a send to it failed, or it broke the rules */
};

struct nm_net_peer {
	struct nm_link link;	/* valid when linked */
	struct nm_peer *source; /* the engine's cookie, valid when is_source */
	struct nm_identity who;
	enum nm_net_state state;
	fi_addr_t inner; /* FI_ADDR_UNSPEC: not in the inner address vector yet */
	uint32_t tx_sequence, rx_sequence;
	uint64_t token_in, token_out; /* of its messages; of those to it, valid when has_token */
	uint32_t in_flight;	      /* buffers that the inner endpoint has not given back */
	uint32_t large_in_flight, since_large; /* if the inner endpoint is layered (net.c) */
	bool linked;			       /* the engine has a link to it */
	bool heard;	 /* it has sent HELLO, with the right token: token_in is valid */
	bool is_source;	 /* and the engine was asked to take it */
	bool greeted;	 /* HELLO was sent to it */
	bool has_token;	 /* it may be greeted */
	bool is_unknown; /* a source whose address the program has not given: may be another */
	bool is_refused; /* its greeting was, or it never came */
	bool bye_sent, bye_seen;
	bool bye_heard;	  /* its BYE was taken */
	bool bye_owed;	  /* refused, and it was not informed yet */
	bool answer_owed; /* its BYE is not answered yet */
	/* a pause (resume.c) */
	bool pause_said;		     /* it has the own PAUSE, and is not resumed yet */
	bool is_quiet;			     /* and it answered */
	bool is_away;			     /* its PAUSE was taken, and no RESUME since */
	bool paused_owed;		     /* its PAUSE is not answered yet */
	bool resumed_owed;		     /* its RESUME is not answered yet */
	uint32_t opening;		     /* the number in its last RESUME */
	uint64_t away_ns;		     /* since when it is away */
	uint64_t resume_ns, first_resume_ns; /* RESUME was said, last and first; 0: never */
	bool is_deaf;	      /* an operation with it outlasted its cancellation (gpudirect.c) */
	bool loss_unreported; /* dead, and the engine was not informed yet */
	uint64_t pinged_ns;
	uint64_t stuck_ns; /* since when the inner endpoint refuses its data; 0: accepts */
	uint64_t knocked_ns,
		first_knock_ns; /* it was asked for a token, last and first; 0: never. Of a stranger: the
				 * last answer to it, and its first knock (proof.c) */
	/* its lifeline (alive.c) */
	int line;    /* the connection to it; -1: none */
	int witness; /* the connection that shows if its host answers; -1: none */
	bool line_is_up;
	bool line_stood;	    /* it was up once */
	uint64_t watched_ns;	    /* time of the last check */
	uint64_t silent_ns;	    /* silence of its host at the last check */
	uint64_t refused_at;	    /* rx_sequence + 1 when its port was closed; 0: it is open */
	struct nm_net_early *early; /* messages whose number is not due yet, in no order */
	uint32_t nr_early;
	int loss_err;
	struct nm_reason loss;
	struct nm_address address;
	struct nm_peer_label label;
	struct nm_net_peer *next; /* all peers, for close */
};

/* A message that completed before one that was sent before it (receive.c). */
struct nm_net_early {
	struct nm_net_early *next;
	struct nm_net_header header;
	uint8_t bytes[]; /* header.len */
};

struct nm_net_peers {
	struct nm_net_peer **slots; /* open addressing, power of two */
	uint64_t nr_slots, nr;
	struct nm_net_peer *all;
};

/* A peer without any message in either direction needs no goodbye, and no pause. */
static inline bool nm_net_has_met(const struct nm_net_peer *peer)
{
	return peer->greeted || peer->is_source;
}

/*
 * Between two questions, of which the first and the last have no answer: as long as from the one to
 * the other, within limits. So it doubles.
 */
static inline uint64_t nm_net_gap(uint64_t first_ns, uint64_t last_ns, uint64_t least_ns,
				  uint64_t most_ns)
{
	return nm_max_u64(least_ns, nm_min_u64(last_ns - first_ns, most_ns));
}

int nm_net_peers_init(struct nm_net_peers *peers);
void nm_net_peers_fini(struct nm_net_peers *peers);
/* NULL: unknown. */
struct nm_net_peer *nm_net_peers_find(const struct nm_net_peers *peers,
				      const struct nm_identity *who);
/* The peer WHO; created if it is new. NULL: out of memory. */
struct nm_net_peer *nm_net_peers_get(struct nm_net_peers *peers, const struct nm_identity *who);
/* Messages of PEER that were kept are of no use. */
void nm_net_peer_drop_early(struct nm_net_peer *peer);
/* PEER stays in memory, but it is not found under its identity any more. */
void nm_net_peers_hide(struct nm_net_peer *peer);

#endif
