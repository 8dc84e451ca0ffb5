/* SPDX-License-Identifier: Apache-2.0 */
/* The network channel's record of one other endpoint, in both directions, by identity. */
#ifndef NM_NET_PEER_H
#define NM_NET_PEER_H

#include <rdma/fi_domain.h>

#include "transport/transport.h"

enum nm_net_state {
	NM_NET_UP,
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
	uint32_t in_flight; /* buffers that the inner endpoint has not given back */
	bool linked;	    /* the engine has a link to it */
	bool is_source;	    /* it has sent HELLO */
	bool greeted;	    /* HELLO was sent to it */
	bool bye_sent, bye_seen;
	bool bye_owed;	      /* refused, and it was not informed yet */
	bool answer_owed;     /* its BYE is not answered yet */
	bool loss_unreported; /* dead, and the engine was not informed yet */
	uint64_t pinged_ns;
	uint64_t stuck_ns; /* since when the inner endpoint refuses its data; 0: accepts */
	/* its lifeline (alive.c) */
	int line; /* the connection to it; -1: none */
	bool line_is_up;
	bool line_stood;     /* it was up once */
	uint64_t watched_ns; /* time of the last check */
	uint64_t silent_ns;  /* silence of its host at the last check */
	uint64_t refused_at; /* rx_sequence + 1 when its port was closed; 0: it is open */
	int loss_err;
	struct nm_reason loss;
	struct nm_address address;
	struct nm_peer_label label;
	struct nm_net_peer *next; /* all peers, for close */
};

struct nm_net_peers {
	struct nm_net_peer **slots; /* open addressing, power of two */
	uint64_t nr_slots, nr;
	struct nm_net_peer *all;
};

int nm_net_peers_init(struct nm_net_peers *peers);
void nm_net_peers_fini(struct nm_net_peers *peers);
/* NULL: unknown. */
struct nm_net_peer *nm_net_peers_find(const struct nm_net_peers *peers,
				      const struct nm_identity *who);
/* The peer WHO; created if it is new. NULL: out of memory. */
struct nm_net_peer *nm_net_peers_get(struct nm_net_peers *peers, const struct nm_identity *who);

#endif
