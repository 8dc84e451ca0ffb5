/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's inside, shared by its own files only. */
#ifndef NM_ENGINE_INTERNAL_H
#define NM_ENGINE_INTERNAL_H

#include "base/params.h"
#include "engine/buffer.h"
#include "engine/engine.h"
#include "engine/match.h"
#include "engine/move.h"
#include "engine/peer.h"
#include "engine/protocol.h"
#include "engine/request.h"
#include "engine/rma.h"
#include "engine/stage.h"

/* Polling without result: when to yield the processor and when to ask whether peers live. */
struct nm_idle {
	uint32_t calls;	     /* idle progress calls in a row, and NM_IDLE_YIELDING */
	uint32_t busy_calls; /* of progress that moved something, ever */
	uint64_t since_ns;   /* when idling was first seen by the clock */
	uint64_t checked_ns; /* last look at the peers that are waited for */
};
#define NM_IDLE_YIELDING 0x80000000u /* idle for longer than spin_us */

struct nm_engine {
	/* hot */
	struct nm_transport *polled[NM_NR_CHANNELS]; /* best rank first */
	unsigned int nr_polled;
	bool closing; /* being destroyed: packets are dropped */
	struct nm_engine_queues queues;
	struct nm_match matches[2]; /* untagged, tagged */
	struct nm_request_pool requests;
	struct nm_buffer_pool buffers;
	struct nm_list active; /* peers with something in their private queue */
	struct nm_idle idle;
	uint64_t min_multi_recv;
	unsigned int nr_exposed; /* receives whose senders may write into our memory */
	/* cold */
	struct nm_engine_config config;
	const struct nm_params *params;
	struct nm_sink sink;
	struct nm_transport *transports[NM_NR_CHANNELS];
	struct nm_peer_table peers;
	size_t nr_unresolved;		/* sources without index in the address vector, at most */
	uint64_t unexpected_max;	/* see unexpected.h */
	uint64_t unlisted_bytes;	/* unexpected messages of peers without such an index */
	struct nm_list claimed;		/* messages set aside by PEEK|CLAIM, through all_node */
	uint64_t published_ns;		/* when config.publish was called last */
	struct nm_memory_watch regions; /* shows the domain's regions on `publisher` */
	struct nm_transport *publisher; /* that can show them; NULL: none */
	bool publishing;
	struct nm_stages *stages;     /* NULL until bytes of a device move */
	struct nm_failed failed;      /* ever */
	struct nm_peer *crash_untold; /* it crashed, and no completion has said so yet */
	uint64_t asked_ns;	      /* the last report of a transport by asked(); 0: none */
	uint32_t opening;	      /* number of the own moves to another segment or part */
	uint8_t home[NM_HOME_LEN];    /* the part since the last one */
	struct nm_transport *moved;   /* the channel there */
};

static inline struct nm_match *nm_match_of(struct nm_engine *engine, bool tagged)
{
	return &engine->matches[tagged];
}

/* PEER has something to send: it gets its turns. */
static inline void nm_peer_activate(struct nm_engine *engine, struct nm_peer *peer)
{
	if (nm_list_empty(&peer->active_node))
		nm_list_append(&engine->active, &peer->active_node);
}

/*
 * An envelope found no room. The peer may be waiting for this endpoint to take something in, too.
 */
static inline void nm_send_stalled(struct nm_engine *engine, struct nm_peer *peer)
{
	peer->send_refused = true;
	peer->nr_stalls++;
	nm_engine_progress(engine);
}

/* The end of a receive, or of a look for a message. */
struct nm_recv_done {
	void *context;
	void *buf;
	uint64_t posted_flags; /* of the receive call */
	uint64_t extra_flags;  /* NM_MULTI_RECV, NM_REMOTE_CQ_DATA */
	uint64_t len, olen;
	uint64_t data, tag;
	struct nm_peer *source;
	int err;
	bool release; /* only gives a multi-receive buffer back */
};

/* complete.c: write completions and count. KIND: NM_SEND|NM_TAGGED, NM_RMA|NM_WRITE, ... */
void nm_complete_transmit(struct nm_engine *engine, uint64_t kind, uint64_t flags, void *context,
			  int err);
void nm_complete_recv(struct nm_engine *engine, const struct nm_recv_done *done);
/* A put or atomic of PEER with completion data was executed here. */
void nm_complete_remote(struct nm_engine *engine, struct nm_peer *peer, uint64_t kind, uint64_t len,
			uint64_t data);
/* An operation that this endpoint started ends; the request is freed. */
void nm_request_complete(struct nm_engine *engine, struct nm_request *request, int err);

/* send.c: hand one envelope to the peer's link. 0, -EAGAIN, -EHOSTUNREACH, -ECONNRESET. */
int nm_send_envelope(struct nm_engine *engine, struct nm_peer *peer, const struct nm_packet *packet,
		     const struct iovec *iov, unsigned int nr_iov);
/* Make sure that the peer is connected and nothing of ours waits in front. Same errors. */
int nm_send_ready(struct nm_engine *engine, struct nm_peer *peer);

/* A packet that is being delivered: by which transport, and from which peer. */
struct nm_incoming {
	struct nm_transport *from;
	struct nm_engine *engine;
	struct nm_peer *peer;
	const struct nm_packet *pkt;
	const void *payload; /* hostile */
};

/*
 * down.c: report PEER to config.lost. BEFORE: the operations that had failed before its loss was
 * noticed. Returns false if none has failed since.
 */
bool nm_report_lost(struct nm_engine *engine, const struct nm_peer *peer,
		    const struct nm_failed *before) NM_COLD;
/* The packet is one that no correct peer sends. */
void nm_violation(const struct nm_incoming *in, const char *fmt, ...) NM_PRINTF(2, 3) NM_COLD;

/* A message as it came, or as it waited. */
struct nm_arrival {
	struct nm_peer *source;
	uint64_t tag, data, size, sender_id;
	const void *payload; /* `size` bytes, maybe in the peer's memory; NULL: rendezvous */
	uint8_t flags;	     /* NM_PKT_ */
	bool rendezvous;
	unsigned int nr_spans; /* rendezvous: struct nm_span in `payload`, private and checked */
};

/* recv.c */
/* A whole message without an answer: the short path of nearly all messages. */
void nm_recv_eager(struct nm_engine *engine, struct nm_peer *source, const struct nm_packet *pkt,
		   const void *payload);
void nm_recv_arrive(struct nm_engine *engine, const struct nm_arrival *arrival);
/* All bytes of a rendezvous have come. */
void nm_recv_finish(struct nm_engine *engine, struct nm_request *request, int err);
/* End a posted receive with an error. */
void nm_recv_fail_posted(struct nm_engine *engine, struct nm_request *request, int err);
/* Forget messages of PEER whose payload will never come. */
void nm_recv_forget(struct nm_engine *engine, struct nm_peer *peer);
/* PEER no longer waits for answers to its messages that are here. */
void nm_recv_forget_answers(struct nm_engine *engine, struct nm_peer *peer);

/* rndv.c: payload in pieces, after an envelope was answered. */
void nm_rndv_cts(const struct nm_incoming *in);
void nm_rndv_data(const struct nm_incoming *in);
void nm_rndv_ack(const struct nm_incoming *in);
/* Send the next piece. > 0: units of work; 0: it was the last; -EAGAIN, -EPIPE. */
int nm_rndv_step(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *request);
/* Answer the sender: transfer REQUEST->accepted bytes to this request. */
void nm_rndv_accept(struct nm_engine *engine, struct nm_request *request);
/* Report to the initiator how its operation ended (positive errno or 0). */
void nm_rndv_send_ack(struct nm_engine *engine, struct nm_peer *peer, uint64_t id, int err);

/* Send me LEN bytes from OFFSET on in packets; nothing more is wanted then. */
void nm_rndv_ask(struct nm_engine *engine, struct nm_request *request);
/* Every byte that was accepted is here. */
void nm_rndv_finish_incoming(struct nm_engine *engine, struct nm_request *request);

/*
 * rndv_cma.c: large messages without packets, between processes that can copy from and to each
 * other's memory. The receiver reads all of it, or one half while the sender writes the other; what
 * fails on the way goes on in packets from there.
 */
/* Units of work that one remote copy counts for, beside one for a packet. */
#define NM_RNDV_CMA_UNITS 8
/*
 * Where the message of REQUEST lies, for its RTS: NM_SHARE_SPANS if it is on a device. 0: its
 * receiver cannot reach us.
 */
unsigned int nm_rndv_cma_offer(const struct nm_peer *peer, struct nm_request *request,
			       struct nm_wire_span ret_spans[NM_SHARE_SPANS]);
/* Check and copy NR spans that hold LEN bytes in all. 0 or -EBADMSG. */
int nm_rndv_cma_spans(const void *wire, unsigned int nr, uint64_t len,
		      struct nm_span ret_spans[NM_SPANS_MAX]);
/* Check and copy a struct nm_device_share. 0 or -EBADMSG. */
int nm_rndv_cma_share(const void *wire, struct nm_span ret_spans[NM_SHARE_SPANS]) NM_COLD;
/* Take a message that its sender shares on a device. False: request it in packets. */
bool nm_rndv_cma_take_share(struct nm_engine *engine, struct nm_request *request) NM_COLD;
/* The receiver's part, once nm_rndv_choice_begin() has said PULL or BOTH. */
void nm_rndv_cma_pull(struct nm_engine *engine, struct nm_request *request);
/* The next piece of PULLING or PLACING. Returns units of work; 0: it was the last. */
int nm_rndv_cma_step(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *request);
/* The sender's part: a CTS asked it to write. False: that makes no sense. */
bool nm_rndv_cma_place(struct nm_engine *engine, struct nm_request *request,
		       const struct nm_packet *pkt, const void *payload);
void nm_rndv_cma_placed(const struct nm_incoming *in);

/* rma_cma.c: puts and gets without the target's help. */
/* Show my regions to peers, or no more: after the queues or the transports have changed. */
void nm_rma_cma_publish(struct nm_engine *engine);
void nm_rma_cma_withdraw(struct nm_engine *engine);
/* Peers may ask me: I am polling. */
void nm_rma_cma_polled(struct nm_engine *engine, uint64_t now_ns);
/*
 * Do the whole access at once, completion included. False: nothing is complete, and the target has
 * to be asked; it may find part of a put done, which does no harm.
 */
bool nm_rma_cma_copy(struct nm_engine *engine, const struct nm_rma *rma, uint64_t size,
		     bool is_read);

/* atomic.c: the target's side and the answer. */
void nm_atomic_on_request(const struct nm_incoming *in);
void nm_atomic_on_result(const struct nm_incoming *in);

/* failover.c: from a channel that was given up to the network. */
void nm_sink_quarantined(struct nm_transport *from, struct nm_peer *source,
			 const struct nm_stream_ends *ends, const struct nm_reason *why);
void nm_failover_on_switch(const struct nm_incoming *in);
/* The move's turn to send or to give up. Returns the number of packets sent. */
unsigned int nm_failover_push(struct nm_engine *engine, struct nm_peer *peer);
/* No move is under way any more. */
void nm_failover_end(struct nm_peer *peer);
/* The best network; NULL: there is none. */
struct nm_transport *nm_network(const struct nm_engine *engine);
/* True if NET, which may be NULL, has a way to PEER. */
bool nm_network_reaches(const struct nm_transport *net, const struct nm_peer *peer);

/* sink.c, let_go of stage.c, and gpudirect_done of rndv_gpudirect.c: the sink's functions. */
void nm_sink_gpudirect_done(struct nm_transport *from, struct nm_peer *peer, uint64_t request,
			    int err);
bool nm_sink_known(struct nm_transport *from, const struct nm_identity *who,
		   struct nm_address *ret_address);
struct nm_peer *nm_sink_source_up(struct nm_transport *from, const struct nm_identity *who,
				  const struct nm_peer_label *label);
void nm_sink_deliver(struct nm_transport *from, struct nm_peer *source, const struct nm_packet *pkt,
		     const void *payload);
void nm_sink_let_go(struct nm_transport *from, struct nm_peer *peer, bool waits);
void nm_sink_source_down(struct nm_transport *from, struct nm_peer *source, int err,
			 const struct nm_reason *why);

#endif
