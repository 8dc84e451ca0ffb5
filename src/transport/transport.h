/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between the protocol engine (above) and the channels that move bytes (below).
 *
 * A transport moves *packets*: a small fixed header and up to max_payload bytes, reliably and in
 * order from one endpoint to another. It knows nothing of tags, matching or message protocols;
 * the engine knows nothing of windows, sockets or libfabric. One matching engine sits over all
 * transports, so wildcard receives and message order are right whatever path a message took.
 *
 *   engine --connect()--> link        one direction: me -> peer. The way back is the peer's link.
 *   engine --send(link)--> packet     0, or -EAGAIN: nothing was taken, call again after progress
 *   transport --sink--> engine        source_up, deliver, source_down, from within progress()
 *
 * Threads: every call of one transport instance is made under the engine's lock, or by its only
 * thread. A transport may own a service thread; that thread never calls the sink.
 * Cost: send() of a packet <= 2 KiB and progress() without work make no system call (net excepted),
 * no allocation and no log, and the engine pays one indirect call for each.
 */
#ifndef NM_TRANSPORT_TRANSPORT_H
#define NM_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/bell.h"
#include "base/packet.h"
#include "locality/address.h"
#include "locality/locality.h"
#include "shm/regions.h"

/* Opaque to transports: the engine's peer, handed back with every packet from it. */
struct nm_peer;

/*
 * What a transport tells the engine. Called only from within progress() (or send()/connect() of the
 * same transport where noted), never re-entrantly from within deliver().
 */
/*
 * Where the two streams of a channel between me and a peer ended, in units of the channel, counted
 * from the start of each. What the writer says it sent and the reader took need not agree: then
 * something in between was spoiled.
 */
struct nm_stream_ends {
	uint64_t sent;	/* me -> peer, everything I published */
	uint64_t taken; /* peer -> me, everything I have delivered */
};

struct nm_sink {
	void *engine;
	/*
	 * A peer, proven to be WHO, can now send to us. Returns the cookie for deliver().
	 * Called once per transport and source before its first packet. NULL: refuse the source.
	 */
	struct nm_peer *(*source_up)(void *engine, const struct nm_identity *who,
				     const struct nm_peer_label *label);
	/*
	 * One packet. `payload` is pkt->len bytes that stay mapped and allocated until return but
	 * may be in a hostile peer's memory and CHANGE while you read: copy once, check, then use.
	 * `pkt` is a private copy. Bytes that cannot be a packet are dropped by the transport
	 * (quarantine with a reason); op, flags, tag, data are unchecked.
	 */
	void (*deliver)(void *engine, struct nm_peer *source, const struct nm_packet *pkt,
			const void *payload);
	/*
	 * The peer is gone. err 0: it closed in order; everything it had sent was delivered.
	 * Else -errno (-ECONNRESET: died; -EBADMSG: sent what no sound peer sends): no further
	 * packet comes from it and links to it fail with -EPIPE. Called once.
	 */
	void (*source_down)(void *engine, struct nm_peer *source, int err,
			    const struct nm_reason *why);
	/*
	 * This channel to and from the peer is given up because somebody broke the rules of its
	 * bytes: me or the peer, who says so in WHY. The peer itself may be reached in another way.
	 * Takes the place of source_down(); NULL: source_down() with -EBADMSG is called instead.
	 */
	void (*quarantined)(void *engine, struct nm_peer *source, const struct nm_stream_ends *ends,
			    const struct nm_reason *why);
};

struct nm_transport;

/* One direction of a connection: from this endpoint to one peer. Owned by the transport. */
struct nm_link {
	struct nm_transport *transport;
	struct nm_peer *peer; /* the engine's, given to connect() */
	/*
	 * read_remote() and write_remote() work on this link: the transport has proven that the
	 * process they would reach is the peer. May turn true or false within progress(), connect()
	 * and those two; they refuse (-EOPNOTSUPP) while it is false.
	 */
	bool remote_copy;
	/*
	 * The engine's advice for large payloads: the peer shares no cache with us, so copy past
	 * ours. It changes whenever the achieved rate says otherwise.
	 */
	bool past_cache;
	/* The peer is known to share no cache with us: where the choice for large messages begins. */
	bool far;
};

/* Bytes in a peer's memory, as the peer told: hostile. */
struct nm_span {
	uint64_t address;
	uint64_t len;
};

/* Spans of one remote copy, at most; and bytes that a caller asks for at once, so that a call stays
 * short (tens of microseconds) and others get their turn. */
#define NM_SPANS_MAX 4
#define NM_REMOTE_COPY_STEP (256 * 1024)

struct nm_link_facts {
	enum nm_relation relation;
	enum nm_channel channel;
	enum nm_integrity integrity;
	struct nm_reason reason;      /* why this channel */
	struct nm_peer_label label;   /* who the peer says it is */
	bool remote_copy;	      /* as in nm_link */
	struct nm_reason copy_reason; /* why it is, or why not, in words; "" where it never is */
};

struct nm_transport_ops {
	const char *name; /* "self", "shm", "segment", "net" */
	enum nm_channel channel;

	/*
	 * Try to reach ADDRESS. May block up to the connect time-out (params: connect_ms), may
	 * allocate and make system calls; leaves no trace on failure.
	 * Returns 0 and a link; -EHOSTUNREACH: not by this transport (*ret_reason says why, in
	 * words); -ENOMEM, -ENOSPC...: no resources (likewise with a reason).
	 */
	int (*connect)(struct nm_transport *transport, const struct nm_address *address,
		       struct nm_peer *peer, struct nm_link **ret_link,
		       struct nm_reason *ret_reason);
	/*
	 * Send one packet; payload gathered from iov, pkt->len bytes in all; the bytes may be
	 * reused on return. In order per link. Returns 0; -EAGAIN: no room now, nothing taken,
	 * nothing logged; -EPIPE: the peer is down (source_down says why, now or at the next
	 * progress()). Never blocks, never delivers.
	 */
	int (*send)(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		    unsigned int nr_iov);
	/*
	 * True when everything sent on this link has been taken over by the peer or by something
	 * that will deliver it after we are gone: a network, or a window (what was published in
	 * a box outlives its owner as long as the reader maps it). Used to close in order. O(1).
	 */
	bool (*drained)(struct nm_link *link);
	/* For logs, stats and nearmetal-info. */
	void (*describe)(const struct nm_link *link, struct nm_link_facts *ret_facts);
	/*
	 * Ask whether the peer is still there, cheaply and without blocking; a dead peer is
	 * reported by source_down() or -EPIPE soon after. The engine calls it about once a second
	 * for peers it waits for. NULL where death is noticed without asking.
	 */
	void (*check_alive)(struct nm_link *link);
	/*
	 * Copy from (to) the peer's memory without its help. Both NULL where a channel cannot. LOCAL
	 * and REMOTE (at most NM_SPANS_MAX each) hold the same number of bytes, at least one.
	 * Returns how many bytes were copied, from the front, at least one; less than asked where
	 * the peer's memory ends. -EFAULT: the peer has no such memory, the link is as good as
	 * before. -EPERM, -ESRCH, -ENOSYS: not any more (link->remote_copy is false from now on).
	 * -EOPNOTSUPP: remote_copy is false. Never another process's memory: the one that was
	 * proven, or an error. One or a few system calls; never blocks, delivers or logs.
	 */
	ssize_t (*read_remote)(struct nm_link *link, const struct iovec *local,
			       unsigned int nr_local, const struct nm_span *remote,
			       unsigned int nr_remote);
	ssize_t (*write_remote)(struct nm_link *link, const struct iovec *local,
				unsigned int nr_local, const struct nm_span *remote,
				unsigned int nr_remote);

	/*
	 * WHO sent something on this channel that no sound peer sends (WHAT, in words): what is
	 * being delivered does not count as taken, nothing more is, and quarantined() follows at
	 * the end of this or the next progress(). May be called from within deliver(). NULL where a
	 * violation is the end of the peer.
	 */
	void (*cast_out)(struct nm_transport *transport, const struct nm_identity *who,
			 const char *what);
	/*
	 * WHO has said in another way that it left this channel: deliver what it had published
	 * before, a bounded amount, then call quarantined(), all before returning. Never from
	 * within this transport's own progress(). NULL with cast_out.
	 */
	void (*finish)(struct nm_transport *transport, const struct nm_identity *who);

	/*
	 * Regions of mine that peers may access by themselves, and peers' regions; all of these NULL where
	 * a channel cannot (then the target serves every access).
	 *  publish: show a region until revoke(). 0, or -ENOSPC: peers will have to ask.
	 *  revoke:  after it no peer's copy through the region is under way or begins. Unknown keys
	 *           are fine. Waits for copies that are under way, about a second at most; who is
	 *           slower than that loses its way to copy.
	 *  reach:   what the peer shows for each of KEYS (at most NM_SPANS_MAX), hostile. From
	 *           success until leave() its revoke() waits for us, so no detours in between.
	 *           -ENOKEY: not all of them are shown; -EOPNOTSUPP: remote_copy is false.
	 */
	int (*publish)(struct nm_transport *transport, const struct nm_region *region);
	void (*revoke)(struct nm_transport *transport, uint64_t key);
	int (*reach)(struct nm_link *link, const uint64_t *keys, unsigned int nr_keys,
		     struct nm_region *ret_regions);
	void (*leave)(struct nm_link *link);
	/*
	 * Who polls answers sooner than a system call of ours would end, who computes does not answer.
	 *  polled: I am polling, now.
	 *  polls:  has the peer said so a moment ago? A guess.
	 */
	void (*polled)(struct nm_transport *transport, uint64_t now_ns);
	bool (*polls)(struct nm_link *link, uint64_t now_ns);

	/*
	 * A thread is about to sleep in the kernel. Until wake() peers ring for what they send: their
	 * bells are added to BELLS, or `rung` set when something is there already. Several threads
	 * may sleep at once; each calls this, and the last one awake calls wake(). progress() may be
	 * called meanwhile.
	 * Returns whether everything that may come here is heard; false: sleep for a moment only.
	 * True is no promise: a peer may look whether we sleep just before we do, and publish just
	 * after our last look, because no fence in its send() orders the two; and a peer may be
	 * hostile. So no sleep is without an end. NULL: is not heard. No system call.
	 */
	bool (*sleep)(struct nm_transport *transport, struct nm_bells *bells);
	/* Nobody sleeps any more. NULL: nothing to be done. No system call. */
	void (*wake)(struct nm_transport *transport);
	/* Take in what has come, at most a bounded number of packets. Returns how much work was
	 * done (packets delivered plus sends finished), 0 when idle. */
	unsigned int (*progress)(struct nm_transport *transport);
	/*
	 * Close every link in order (peers see source_down with err 0) and free the transport.
	 * Waits for undelivered packets until close_by_ns. NULL-safe.
	 */
	void (*destroy)(struct nm_transport *transport);
};

/* First member of every transport's own struct. Filled by its create function. */
struct nm_transport {
	const struct nm_transport_ops *ops;
	struct nm_sink sink;
	uint32_t max_payload; /* largest pkt->len that send() takes; >= NM_MIN_MAX_PAYLOAD */
	uint32_t eager_max;   /* messages up to this size are best sent at once, payload inline */
	uint64_t close_by_ns; /* when destroy() has to be done, by nm_clock_ns(); 0: at once */
	/*
	 * Calls of progress() that the engine may leave out from now on: it counts them down. What
	 * the transport waits for can wait that long; a call to it that cannot sets this to 0.
	 */
	uint32_t pause;
};

#define NM_MIN_MAX_PAYLOAD 4096

/*
 * Transports without a foreign header are created here; the network transport is created by the
 * provider (provider/net.h). All return 0 or -errno, with a reason for a person.
 *  self: loops packets back; nothing to configure.
 *  shm:  owns the endpoint's window and meeting place; `who` is the endpoint's identity. Where the
 *        segment directory or the window cannot be had it says so in the log, once per process.
 *  segment: likewise in a segment that virtual machines of one host share (shm/segment.h), as
 *        NEARMETAL_SEGMENT describes it. -ENOENT: there is none here, which is the usual thing and
 *        not logged.
 */
int nm_self_create(const struct nm_sink *sink, const struct nm_identity *who,
		   struct nm_transport **ret_transport);
int nm_shm_create(const struct nm_sink *sink, const struct nm_identity *who,
		  struct nm_transport **ret_transport, struct nm_reason *ret_reason);
int nm_segment_channel_create(const struct nm_sink *sink, const struct nm_identity *who,
			      struct nm_transport **ret_transport, struct nm_reason *ret_reason);

#endif
