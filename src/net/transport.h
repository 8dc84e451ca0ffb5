/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network channel: a transport (transport/transport.h) over an endpoint of another libfabric
 * provider, the inner one. Inner providers are tried in the order of NEARMETAL_NET: tcp if there is
 * nothing better, verbs on an RDMA adapter by the same code. This header is for its own files only.
 */
#ifndef NM_NET_TRANSPORT_H
#define NM_NET_TRANSPORT_H

#include <pthread.h>

#include "base/fork.h"
#include "net/buffer.h"
#include "net/inner.h"
#include "net/peer.h"
#include "net/wire.h"
#include "transport/transport.h"

#define NM_NET_MAX_PAYLOAD 65536

/* Where peers see whether this process lives (alive.c). */
struct nm_net_lifeline {
	struct nm_fork_watch fork_watch;
	pthread_mutex_t lock;	    /* of the descriptors, against fork() */
	struct nm_net_peers *peers; /* NULL: never opened */
	bool is_believed;	    /* a refusal or silence there means that the peer is gone */
	int listener;		    /* -1: none */
	int *held;		    /* connections taken out of the listener's queue */
	unsigned int nr_held;
	uint32_t nr_polls;
};

struct net {
	struct nm_transport base;
	struct nm_net_inner inner;
	struct nm_net_peers peers;
	struct nm_net_pool small, large; /* to send from */
	struct nm_net_pool receive;	 /* unused: not posted */
	/* when to poll */
	uint32_t quiet_polls; /* polls without result in a row */
	uint32_t skipped;     /* calls since the last poll */
	uint64_t polled_ns;
	/* rare work */
	uint32_t nr_unreported; /* losses the engine has not heard of */
	uint32_t nr_owed;	/* BYEs to send or to answer, of all peers */
	bool closing;		/* no more reports to the engine */
	uint64_t nr_dropped;	/* messages that could not be believed */
	uint64_t ping_ns, stuck_ns, watch_ns, timeout_ns;
	uint64_t exhausted_ns; /* since when there is no buffer to send from; 0: there is */
	struct nm_net_lifeline lifeline;
	struct nm_identity who;
	struct nm_address address;
	struct nm_peer_label label;
};

/* Take in what the inner endpoint has finished: messages, sends, errors. Returns how much. */
unsigned int nm_net_take_completions(struct net *net);
/* Give a buffer to the inner endpoint to receive into; it stays unused when that has no room. */
void nm_net_post_receive(struct net *net, struct nm_net_buffer *buffer);
/* One poll of the inner endpoint with everything that follows. Returns the work done. */
unsigned int nm_net_poll(struct net *net);
/* Send a message without payload, after a greeting if there was none. 0, -EAGAIN, -EPIPE. */
int nm_net_say(struct net *net, struct nm_net_peer *peer, enum nm_net_kind kind);
/* The peer is lost; the next poll reports it to the engine. No effect on a peer that is dead. */
void nm_net_lose(struct net *net, struct nm_net_peer *peer, int err, const char *words);
/* Open the lifeline. Returns its port in network byte order; 0: this endpoint has none. */
uint16_t nm_net_lifeline_open(struct net *net);
/* Half-open and closed ones too. */
void nm_net_lifeline_close(struct net *net);
/* Now and then: keep the queue of the lifeline from filling up. */
void nm_net_lifeline_serve(struct net *net);
/* PEER has been met: try its lifeline, where it is not certain that TCP reaches it. */
void nm_net_meet_line(struct net *net, struct nm_net_peer *peer);
/* PEER is waited for: look whether it still lives, unless that was just done. May lose it. */
void nm_net_watch(struct net *net, struct nm_net_peer *peer);
/* Nothing can be sent to PEER now: watch it when that lasts. */
void nm_net_stuck(struct net *net, struct nm_net_peer *peer);
/* No buffer is free: if that lasts, watch the peers that hold one. */
void nm_net_exhausted(struct net *net);
/* The destroy of the contract. */
void nm_net_destroy(struct nm_transport *transport);
/* Free everything at once; also what is half open. */
void nm_net_free(struct net *net);

#endif
