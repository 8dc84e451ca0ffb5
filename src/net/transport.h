/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network channel: a transport (transport/transport.h) over an endpoint of another libfabric
 * provider, the inner one. Inner providers are tried in the order of NEARMETAL_NET: tcp if there is
 * nothing better, verbs on an RDMA adapter by the same code. Only files of this directory include
 * this header.
 */
#ifndef NM_NET_TRANSPORT_H
#define NM_NET_TRANSPORT_H

#include <pthread.h>

#include "base/clock.h"
#include "base/fork.h"
#include "net/buffer.h"
#include "net/inner.h"
#include "net/peer.h"
#include "net/proof.h"
#include "net/wire.h"
#include "transport/transport.h"

#define NM_NET_MAX_PAYLOAD 65536

struct net;

/* Shows peers if this process lives (alive.c). */
struct nm_net_lifeline {
	struct nm_fork_watch fork_watch;
	pthread_mutex_t lock;	    /* of the descriptors, against fork() */
	struct nm_net_peers *peers; /* NULL: never opened */
	bool is_believed; /* if connections there are refused or unanswered, the peer is gone */
	int listener;	  /* -1: none */
	int *held;	  /* connections taken out of the listener's queue */
	unsigned int nr_held;
	uint32_t nr_polls;
};

enum nm_net_place {
	NM_NET_STAYS,
	NM_NET_PAUSING, /* the peers have to answer PAUSE */
	NM_NET_AWAY,	/* the inner endpoint is closed */
	NM_NET_RETURNING,
};

/* The device of the network goes for a while (resume.c). */
struct nm_net_pause {
	enum nm_net_place place;
	int notice;	  /* what the guest unit says, locked while the network is used; -1: none */
	uint64_t look_ns; /* when to look at it next */
	uint64_t ask_ns;  /* when to ask next for peers that are away */
	bool has_away;	  /* there may be some */
	uint64_t limit_ns; /* RETURNING: until then the peers have to answer */
	uint32_t opening;  /* number of the last return */
	unsigned int nr_lines;
	unsigned int (*take)(struct net *net); /* what `take` of the transport was */
};

/* Names that nothing vouches for and that are answered at a time. */
#define NM_NET_STRANGERS 16

struct nm_net_gpudirect;

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
	uint32_t nr_unreported; /* losses that the engine was not informed of */
	uint32_t nr_owed;	/* BYEs to send or to answer, of all peers */
	bool closing;		/* no more reports to the engine */
	uint64_t nr_dropped;	/* messages that were not valid */
	/* proof.c */
	uint8_t key[NM_SIPHASH_KEY_LEN];
	uint32_t nr_unknown;	  /* peers with is_unknown, those in NM_NET_UP */
	uint32_t nr_unknown_ever; /* and all */
	struct nm_net_peer
		strangers[NM_NET_STRANGERS]; /* in no table; they knocked or were refused */
	uint64_t ping_ns, stuck_ns, watch_ns, timeout_ns, move_ns;
	uint64_t exhausted_ns; /* when the buffers ran out; 0: some are free */
	struct nm_net_lifeline lifeline;
	struct nm_net_pause pause;
	struct nm_net_gpudirect *gpudirect;    /* NULL: the inner endpoint reaches no devices */
	struct nm_reason no_gpudirect;	       /* why, if devices are used */
	unsigned int (*take)(struct net *net); /* one of the two below */
	struct nm_identity who;
	struct nm_address address;
	struct nm_peer_label label;
};

/* Take finished work of the inner endpoint: messages, sends, errors. Returns the amount. */
unsigned int nm_net_take_completions(struct net *net);
/* The same if operations on devices are among them. */
unsigned int nm_net_take_with_devices(struct net *net) NM_COLD;
/* Post a receive buffer to the inner endpoint; without room there it stays unused. */
void nm_net_post_receive(struct net *net, struct nm_net_buffer *buffer);
/* One poll of the inner endpoint with everything that follows. Returns the work done. */
unsigned int nm_net_poll(struct net *net);
/* Have the inner endpoint know PEER's address. 0 or -EHOSTUNREACH. */
int nm_net_reach(struct net *net, struct nm_net_peer *peer);
/* Send one message of any kind to a peer that is reached. 0, -EAGAIN, -EPIPE. */
int nm_net_send_one(struct net *net, struct nm_net_peer *peer, enum nm_net_kind kind,
		    const struct nm_packet *pkt, const struct iovec *iov, unsigned int nr_iov);
/* A foreign message was not valid. */
void nm_net_drop(struct net *net, const char *why) NM_COLD;
/* Ask PEER for a token, unless this was just done. -EAGAIN or -EPIPE. */
int nm_net_knock(struct net *net, struct nm_net_peer *peer);
/* What arrived before a link. */
void nm_net_take_knock(struct net *net, const struct nm_net_header *header, const uint8_t *bytes);
void nm_net_take_token(struct net *net, const struct nm_net_header *header);
/* The peer at ADDRESS, which proved that it receives there. NULL: it may not have this name. */
struct nm_net_peer *nm_net_admit(struct net *net, const struct nm_address *address,
				 struct nm_reason *ret_reason);
/*
 * A greeting with the right token was refused. Its sender is informed: it believes that its messages
 * arrive.
 */
void nm_net_refuse(struct net *net, const struct nm_net_hello *hello) NM_COLD;
/*
 * A message of a link came, and its greeting did not. If a pause of this endpoint can be the cause, its
 * sender is informed, too.
 */
void nm_net_miss_greeting(struct net *net, const struct nm_net_header *header) NM_COLD;
/* PEER leaves NM_NET_UP, if it has not. */
void nm_net_end(struct net *net, struct nm_net_peer *peer, enum nm_net_state state);
/* learn() of the transport contract. */
bool nm_net_learn(struct nm_transport *transport, const struct nm_address *address);
/* Send a message without payload, after a greeting if there was none. 0, -EAGAIN, -EPIPE. */
int nm_net_say(struct net *net, struct nm_net_peer *peer, enum nm_net_kind kind);
/* The peer is lost; the next poll reports it to the engine. No effect on a peer that is dead. */
void nm_net_lose(struct net *net, struct nm_net_peer *peer, int err, const char *words);
/* Open the lifeline. Returns its port in network byte order; 0: this endpoint has none. */
uint16_t nm_net_lifeline_open(struct net *net);
/* Half-open and closed lifelines are allowed. */
void nm_net_lifeline_close(struct net *net);
/* Called at times: keep the queue of the lifeline from filling up. */
void nm_net_lifeline_serve(struct net *net);
/* PEER was met: try its lifeline if TCP may not reach it. */
void nm_net_meet_line(struct net *net, struct nm_net_peer *peer);
/* PEER is waited for: check if it still lives, unless this was just done. May lose it. */
void nm_net_watch(struct net *net, struct nm_net_peer *peer);
/* Whether nm_net_watch() notices that PEER's process ended or that its host is gone. */
bool nm_net_finds_death(const struct net *net, const struct nm_net_peer *peer);
/* Nothing can be sent to PEER now: watch it if that lasts. */
void nm_net_stuck(struct net *net, struct nm_net_peer *peer);
/* No buffer is free: if that lasts, watch the peers that hold one. */
void nm_net_exhausted(struct net *net);
/* The lifeline goes with its address, and comes back there; open() was called. 0 or -errno. */
void nm_net_lifeline_shut(struct net *net);
int nm_net_lifeline_reopen(struct net *net);
/* Whether the kernel of a silent PEER has answered since the last call, which asks it again. */
bool nm_net_host_answers(struct net *net, struct nm_net_peer *peer);
/* Nothing is known of PEER's lifeline any more. */
void nm_net_forget_line(struct nm_net_peer *peer);

/* Heed the notice in the file PATH from now on; without that file nothing is heeded. 0 or -errno. */
int nm_net_heed(struct net *net, const char *path);
/* Look at the notice, unless this was just done. */
void nm_net_look(struct net *net, uint64_t now_ns) NM_COLD;
/* What a peer says of its own pause, or answers. */
void nm_net_take_pause(struct net *net, struct nm_net_peer *peer) NM_COLD;
void nm_net_take_paused(struct net *net, struct nm_net_peer *peer) NM_COLD;
void nm_net_take_resume(struct net *net, const struct nm_net_header *header) NM_COLD;
void nm_net_take_resumed(struct net *net, const struct nm_net_header *header) NM_COLD;
/* Send the answer to RESUME, which is owed to PEER, if it can be sent now. */
void nm_net_pay_resumed(struct net *net, struct nm_net_peer *peer);
/* Nothing may be sent to PEER while this endpoint pauses. */
void nm_net_hold_back(struct net *net, struct nm_net_peer *peer);
/* True: it is no news if a message to PEER, which is not UP, cannot be sent. */
bool nm_net_may_fail(const struct net *net, const struct nm_net_peer *peer);
/* PEER sent what no correct peer sends: none of its messages is accepted any more. */
void nm_net_quarantine(struct net *net, struct nm_net_peer *peer, const char *why) NM_COLD;
/* destroy() of the transport contract. */
void nm_net_destroy(struct nm_transport *transport);
/* Free everything at once; half-open transports are allowed. */
void nm_net_free(struct net *net);

#endif
