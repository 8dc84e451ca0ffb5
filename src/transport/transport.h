/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between the protocol engine (above) and the transports that move bytes (below).
 * nearmetal carries the messages of MPI programs; each pair of endpoints uses one of four channels:
 * self (the endpoint itself), shm (memory of one kernel), segment (memory that virtual machines of
 * one host share) or net (a network, by libfabric).
 *
 *       endpoint A                                                 endpoint B
 *   application: send                                          application: receive
 *        | message                                                  ^ completion
 *   engine: peers, protocols, choice of channel                engine: matching, protocols
 *        | ops->send(link, packet)                                  ^ sink.deliver(from, ...)
 *   transport: self | shm | segment | net                      transport: the same kind
 *        | 24-byte header and payload                               ^ ops->progress() finds it
 *        +----------> memory that both map, or the network ---------+
 *
 * A transport moves packets: a small fixed header and up to max_payload bytes, reliably and in
 * order from one endpoint to another. It does not know tags, matching or message protocols. The
 * engine does not know windows, sockets or libfabric. One engine sits over all transports of an
 * endpoint, so message order and wildcard receives are correct on every path.
 *
 *   words                  a channel is a way for packets, for example shm; a kind is its
 *                          implementation; a transport is one instance of a kind, in one endpoint.
 *                          Towards one peer a channel has two directions: the link to the peer and
 *                          the source from it. A stream is the packets of one direction. A doorbell
 *                          is a word in memory that a sender changes to wake a thread
 *   large messages         the sender announces them in a packet; the receiver then asks for their
 *                          bytes in packets, or copies them itself if remote_copy of its own link
 *                          to the sender is true. write_remote() is for one-sided operations
 *   life of a transport    kind->create, then connect, send and progress as needed, then destroy
 *   life of a link         connect returns it; it is one direction, from this endpoint to a peer;
 *                          the transport owns it and frees it in destroy
 *   life of a source       source_up, then deliver for each packet. It ends with exactly one of:
 *                          source_down, quarantined, a false learn(), or destroy of the transport.
 *                          A source is the other direction, from a peer to this endpoint, and
 *                          needs no link
 *
 * Errors: 0 or -errno. -EAGAIN: nothing was taken, call again after progress(). -EPIPE: the link is
 * down. connect() and create() also return the reason as text.
 * Threads: the engine makes all calls to the transports of one endpoint under one lock. A transport
 * may own a service thread; that thread never calls the sink.
 * Blocking: only create(), connect(), destroy() and copy->revoke() may block, for a bounded time.
 * Cost: send() of at most 2 KiB of payload and an idle progress() make no allocation, no log entry
 * and, except on the network or to wake a peer that sleeps, no system call. Each costs the engine
 * one indirect call.
 * Trust: bytes from a peer are hostile. The transport copies and checks the header as far as it
 * uses it. The engine checks the rest, and copies the payload before it uses it.
 * Invalid bytes:
 *   found by the transport   it drops them and ends the source: by quarantined() if it has
 *                            nm_quarantine_ops and the sink has quarantined(), else by
 *                            source_down() with -EBADMSG
 *   found by the engine      it calls quarantine->cast_out() if the transport has that
 *                            capability. Else it ignores all further packets of the source; the
 *                            transport keeps link and source until destroy()
 *
 * Every transport has all nine slots of nm_transport_ops. nm_copy_ops and nm_quarantine_ops are
 * optional capabilities: a transport has all functions of one, or none. A new transport adds a line
 * to base/channel.h and defines nm_CODE_kind, whose create() fills a struct nm_transport.
 */
#ifndef NM_TRANSPORT_TRANSPORT_H
#define NM_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/channel.h"
#include "base/packet.h"
#include "connect/address.h"
#include "connect/locality.h"
#include "shm/doorbell.h"
#include "shm/regions.h"

/* The engine's record of a peer. Opaque to transports. */
struct nm_peer;
struct nm_transport;

/* ---- From the transport to the engine ---- */

/*
 * Where the two streams of a channel between this endpoint and a peer ended. The channel chooses
 * the unit, the same on both sides, and counts from the start of each stream. The two sides compare
 * these counts after a quarantine: if they differ, packets were lost.
 */
struct nm_stream_ends {
	uint64_t sent;	/* this endpoint -> peer: everything that send() took */
	uint64_t taken; /* peer -> this endpoint: everything delivered, less a packet cast out */
};

/*
 * The engine's functions. FROM is always the transport that calls. A transport calls them only from
 * within its progress() and its quarantine->finish(), and never while a deliver() is running.
 */
struct nm_sink {
	void *engine; /* for the functions below; they read it from FROM->sink */
	/*
	 * A peer, proven to be WHO (but see learn), can now send to this endpoint. Returns the
	 * handle for deliver(). Called once per source, before its first packet. NULL: the source
	 * is refused. The transport then drops its packets and reports nothing more about it; the
	 * peer's next send() returns -EPIPE.
	 */
	struct nm_peer *(*source_up)(struct nm_transport *from, const struct nm_identity *who,
				     const struct nm_peer_label *label);
	/*
	 * One packet. PKT is a private copy. The transport has checked len; op, flags, tag and data
	 * are unchecked.
	 * PAYLOAD is pkt->len bytes that stay mapped until the return. A hostile peer may change
	 * them during the call. The transport drops bytes that cannot be a packet and ends their
	 * source.
	 */
	void (*deliver)(struct nm_transport *from, struct nm_peer *source,
			const struct nm_packet *pkt, const void *payload);
	/*
	 * A peer is gone from this transport: its source, if it had one, has ended, and a link to
	 * it fails with -EPIPE. Called once per peer. SOURCE is the handle of source_up(), or
	 * link->peer if the peer never had a source. ERR 0: it closed normally, and everything it
	 * had sent was delivered. -ECONNRESET: it died. -EBADMSG: it sent bytes that no correct
	 * peer sends.
	 */
	void (*source_down)(struct nm_transport *from, struct nm_peer *source, int err,
			    const struct nm_reason *why);
	/*
	 * This channel to and from the peer was given up because bytes on it broke its rules. The
	 * peer itself may still be reached on another channel. Replaces source_down(). If this
	 * pointer is NULL, the transport calls source_down() with -EBADMSG instead.
	 */
	void (*quarantined)(struct nm_transport *from, struct nm_peer *source,
			    const struct nm_stream_ends *ends, const struct nm_reason *why);
	/*
	 * The address of WHO, as the program gave it. False: the program has not given it yet. NULL
	 * pointer: it never does. Calls nothing of the transport.
	 */
	bool (*known)(struct nm_transport *from, const struct nm_identity *who,
		      struct nm_address *ret_address);
};

/* ---- Links ---- */

/* The direction from this endpoint to one peer. */
struct nm_link {
	struct nm_transport *transport;
	struct nm_peer *peer; /* the engine's record, as given to connect() */
	/*
	 * Set by the transport. True if copy->read_remote() and copy->write_remote() work on this
	 * link: the process that they reach is proven to be the peer. May change within progress(),
	 * connect() and those two. Always false without nm_copy_ops.
	 */
	bool remote_copy;
	/* Set by the engine. True: send() copies large payloads past this processor's cache. */
	bool past_cache;
	/* Set by the transport. True if the peer is known to share no cache with this endpoint. */
	bool far;
};

/* What logs, statistics and nearmetal-info report about a link. */
struct nm_link_facts {
	enum nm_relation relation;
	enum nm_channel channel;
	enum nm_integrity integrity;
	struct nm_reason reason;      /* why this channel */
	struct nm_peer_label label;   /* the name that the peer gives itself */
	bool remote_copy;	      /* as in nm_link */
	struct nm_reason copy_reason; /* why it is true or false; may be "" without nm_copy_ops */
};

/* ---- From the engine to the transport: what every transport has ---- */

struct nm_transport_ops {
	/*
	 * Try to reach ADDRESS. May allocate, make system calls and wait for at most 200 ms,
	 * but not longer: if the peer has not answered by then, it returns -EAGAIN, and the same
	 * call later returns the result, within the knob connect_ms. Leaves no trace on failure.
	 * PEER is stored in the link. Returns 0 and a link; -EHOSTUNREACH: this transport cannot
	 * reach the address; -EAGAIN: not now, nothing is logged; -ENOMEM, -ENOSPC and others: out
	 * of resources. RET_REASON is set in every case.
	 */
	int (*connect)(struct nm_transport *transport, const struct nm_address *address,
		       struct nm_peer *peer, struct nm_link **ret_link,
		       struct nm_reason *ret_reason);
	/*
	 * Send one packet, its payload gathered from IOV (pkt->len bytes in all). The caller may
	 * reuse the bytes after the return. Packets of one link arrive in order. Returns 0;
	 * -EAGAIN: no room, nothing was taken, nothing is logged; -EPIPE: the link is down, and the
	 * next progress() reports why, unless the sink knows already. Never blocks or delivers.
	 */
	int (*send)(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		    unsigned int nr_iov);
	/*
	 * True if nothing that was sent on this link depends on this process any more: the peer
	 * took it, or a network has it, or it is in memory that outlives this process. O(1).
	 */
	bool (*drained)(struct nm_link *link);
	void (*describe)(const struct nm_link *link, struct nm_link_facts *ret_facts);
	/*
	 * Check without blocking whether the peer lives. Calls no sink: if the peer is dead, the
	 * next progress() calls source_down(), or the next send() returns -EPIPE. The engine calls
	 * this about once a second for each peer from which it expects something. A kind with
	 * NM_TRANSPORT_WATCHES puts nm_transport_unchecked() here.
	 */
	void (*check_alive)(struct nm_link *link);
	/*
	 * Prepare the sleep of a thread in the kernel; it does not sleep itself. Add to DOORBELLS
	 * the words that peers change when they send, and set doorbells->rung if something has
	 * arrived already. Each thread calls this before it sleeps; the last thread that wakes up
	 * calls wake(); progress() may be called in between. Returns false if this transport cannot
	 * wake a sleeper: the thread then sleeps only for a moment. Even after true a ring can be
	 * missing: sleep() sets a flag, wake() clears it, and senders read it without a memory
	 * fence. So every sleep has a time limit. No system call.
	 */
	bool (*sleep)(struct nm_transport *transport, struct nm_doorbells *doorbells);
	/*
	 * No thread sleeps any more. No system call. nm_transport_unwoken() if there is nothing to
	 * do.
	 */
	void (*wake)(struct nm_transport *transport);
	/*
	 * Take in what has arrived, at most a bounded number of packets, and call the sink for it.
	 * Returns the amount of work: packets delivered, and sends that a network completed. 0:
	 * idle.
	 */
	unsigned int (*progress)(struct nm_transport *transport);
	/*
	 * Close every link normally (peers see source_down() with err 0) and free the transport.
	 * May block until transport->close_by_ns while peers take what was sent. Calls no sink.
	 * NULL-safe.
	 */
	void (*destroy)(struct nm_transport *transport);
};

/* ---- Capability: direct access to a peer's memory ---- */

/* A range of a peer's memory. Address and length come from the peer and are hostile. */
struct nm_span {
	uint64_t address;
	uint64_t len;
};

/* Limits of one remote copy: spans on each side, and bytes, so that the call stays short. */
#define NM_SPANS_MAX 4
#define NM_REMOTE_COPY_STEP (256 * 1024)

struct nm_copy_ops {
	/*
	 * Copy from or to the peer's memory without its help. LOCAL and REMOTE (at most
	 * NM_SPANS_MAX each) hold the same number of bytes, at least one. Only ever reaches the
	 * proven process. Returns the length of the copied front part, at least one byte; it is
	 * shorter than asked if the peer's memory ends. -EFAULT: the peer has no such memory, the
	 * link stays good. -EOPNOTSUPP: link->remote_copy is false. -EPERM, -ESRCH, -ENOSYS: no
	 * longer possible, and link->remote_copy is false from now on. A few system calls; never
	 * blocks, delivers or logs.
	 */
	ssize_t (*read_remote)(struct nm_link *link, const struct iovec *local,
			       unsigned int nr_local, const struct nm_span *remote,
			       unsigned int nr_remote);
	ssize_t (*write_remote)(struct nm_link *link, const struct iovec *local,
				unsigned int nr_local, const struct nm_span *remote,
				unsigned int nr_remote);
	/*
	 * Show a region of this endpoint to all peers until revoke(). Copies *REGION. Returns 0, or
	 * -ENOSPC: no room.
	 */
	int (*publish)(struct nm_transport *transport, const struct nm_region *region);
	/*
	 * After the return no peer copies through the region. Waits about a second at most for
	 * copies under way; a peer that is slower loses its access. An unknown key is ignored.
	 */
	void (*revoke)(struct nm_transport *transport, uint64_t key);
	/*
	 * Look up the regions that the peer shows for KEYS (at most NM_SPANS_MAX). The result is
	 * hostile. From success until leave() the peer's revoke() waits for this endpoint, so make
	 * at most one remote copy before leave(). -ENOKEY: not all keys are shown; -EOPNOTSUPP:
	 * link->remote_copy is false.
	 */
	int (*reach)(struct nm_link *link, const uint64_t *keys, unsigned int nr_keys,
		     struct nm_region *ret_regions);
	void (*leave)(struct nm_link *link);
	/*
	 * These two let the engine choose. A remote copy costs a system call: a peer that polls
	 * answers a packet sooner than that, and a peer that computes does not answer. polled()
	 * announces that this endpoint polls. polls() is true if the peer announced it a moment ago.
	 */
	void (*polled)(struct nm_transport *transport, uint64_t now_ns);
	bool (*polls)(struct nm_link *link, uint64_t now_ns);
};

/* ---- Capability: give up a channel, keep the peer ---- */

struct nm_quarantine_ops {
	/*
	 * Begin a quarantine, on the side that found the invalid bytes of WHO; WHAT describes them.
	 * The packet in delivery does not count as taken, no further packet is delivered, and
	 * quarantined() follows at the end of this or the next progress(). May be called from
	 * within deliver().
	 */
	void (*cast_out)(struct nm_transport *transport, const struct nm_identity *who,
			 const char *what);
	/*
	 * Complete a quarantine that WHO began on its side and reported on another channel. Delivers
	 * the packets that WHO had sent, up to a limit, calls quarantined() and returns. The
	 * engine never calls it from within this transport's progress().
	 */
	void (*finish)(struct nm_transport *transport, const struct nm_identity *who);
};

/* ---- Kinds and instances ---- */

/* Properties of a kind. With none set, it reaches endpoints that share memory with this one, and
 * messages of peers ring a doorbell. */
#define NM_TRANSPORT_LOOPBACK 0x01u /* reaches this endpoint itself and no other */
#define NM_TRANSPORT_NETWORK 0x02u  /* reaches any endpoint whose address has a network part */
#define NM_TRANSPORT_OPTIONAL 0x04u /* most machines do not have it: its absence is not reported */
#define NM_TRANSPORT_WATCHES 0x08u  /* notices the death of its sources without being asked */
#define NM_TRANSPORT_SILENT 0x10u   /* messages ring no doorbell; sleep() adds none */

/* One per line of base/channel.h: const struct nm_transport_kind nm_CODE_kind, CODE as there. */
struct nm_transport_kind {
	enum nm_channel channel;
	unsigned int
		rank; /* priority: the channel with the lowest number that reaches a peer is used */
	unsigned int flags;
	/*
	 * Create the transport of one endpoint. ADDRESS is the endpoint's and outlives the
	 * transport. The kinds are created by rank and each adds to it: one with shared memory the
	 * place of that memory, one with a network its network address. So do not copy it here.
	 * Knobs come from the environment (base/params.h). Returns 0, and in RET_REASON what
	 * it opened; or -errno, and the reason, which create() logs once per process. -ENOENT: this
	 * machine has no such channel (optional kinds, not logged).
	 */
	int (*create)(const struct nm_sink *sink, struct nm_address *address,
		      struct nm_transport **ret_transport, struct nm_reason *ret_reason);
};

/* A kind that needs libfabric is NULL in a program without it. */
#define NM_KIND_CORE
#define NM_KIND_FABRIC __attribute__((weak))
#define NM_KIND_DECLARE(id, name, code, where)                                                     \
	extern const struct nm_transport_kind nm_##code##_kind NM_KIND_##where;
NM_CHANNELS(NM_KIND_DECLARE)

/*
 * The kinds in this program, lowest rank first. NULL gives the first one; returns NULL at the end.
 */
const struct nm_transport_kind *nm_transport_next(const struct nm_transport_kind *previous);

/* The first member of every transport's own struct. Its create function fills it. */
struct nm_transport {
	const struct nm_transport_kind *kind;
	const struct nm_transport_ops *ops;
	const struct nm_copy_ops *copy;		    /* NULL: cannot reach a peer's memory */
	const struct nm_quarantine_ops *quarantine; /* NULL: see "Invalid bytes" above */
	/*
	 * The program gave the ADDRESS of a source. False: the source has the identity, but another
	 * network address, so it is not the owner. The transport ends it without a report to the
	 * sink, the engine forgets what it sent, and a later source_up() is from the owner. NULL:
	 * sources prove their whole address.
	 */
	bool (*learn)(struct nm_transport *transport, const struct nm_address *address);
	struct nm_sink sink;
	uint32_t max_payload; /* largest pkt->len that send() takes; >= NM_MIN_MAX_PAYLOAD */
	uint32_t eager_max;   /* messages up to this size are best sent in one packet */
	uint64_t close_by_ns; /* deadline of destroy() by nm_clock_ns(); the engine's; 0: at once */
	/*
	 * The engine may skip this many calls of progress(), and counts them down. The transport
	 * sets it when nothing urgent can arrive, and resets it to 0 when, for example, a send()
	 * makes progress urgent.
	 */
	uint32_t pause;
};

#define NM_MIN_MAX_PAYLOAD 4096

/* Slots for transports that have nothing to do there. */
void nm_transport_unchecked(struct nm_link *link);	   /* check_alive */
void nm_transport_unwoken(struct nm_transport *transport); /* wake */

#endif
