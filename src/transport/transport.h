/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between the protocol engine (above) and the transports that move bytes (below).
 * nearmetal carries the messages of MPI programs. An endpoint, mostly one per process, sends its
 * packets to each peer over one of four channels: self (to itself), shm (memory of one kernel),
 * segment (memory that virtual machines of one host share) or net (a network, by libfabric). The
 * peer chooses the channel of the other direction, so the two directions can differ.
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
 *   channel, kind,         a channel is a way for packets, for example shm; a kind is its
 *   transport              implementation; a transport is one instance of a kind, in one endpoint
 *   link, source           the two directions between this endpoint and a peer: the link leads to
 *                          the peer, the source comes from it, and neither needs the other. The
 *                          packets of one direction are a stream
 *   identity               names one endpoint (connect/address.h) and is used once: a peer that is
 *                          gone does not come back
 *   proven                 shown by means that only the owner of an identity has
 *   quarantine             end of one channel to a peer, in both directions, after invalid bytes;
 *                          the peer itself is kept
 *   window, region, key    a window is memory that one endpoint writes and its neighbours map
 *                          read-only; a region is registered memory of a program, named by a key
 *   doorbell               a word in memory that a sender changes to wake a thread
 *   large messages         the sender announces them in a packet; the receiver then asks for their
 *                          bytes in packets, or copies them itself if remote_copy of its own link
 *                          to the sender is true; it can also ask the sender to copy a part
 *   life of a transport    kind->create, then connect, send and progress as needed, then destroy
 *   life of a link         connect returns it; it is valid until destroy frees it, even if down
 *   life of a source       source_up, then deliver for each packet. It ends with exactly one of:
 *                          source_down, quarantined, a false learn(), take_rest() with result 0
 *                          (the peer may become a source again), or destroy of the transport
 *
 * Errors: 0 or -errno. -EAGAIN: not now, call again after progress(). -EPIPE: the link is down.
 * Logs: the transport logs a failed create() and invalid bytes, also those of cast_out(). The
 * engine logs a failed connect() and the end of a peer.
 * Threads: the engine makes all calls to the transports of one endpoint under one lock. A transport
 * may own a service thread; that thread never calls the sink.
 * Blocking: only create(), connect(), destroy(), copy->revoke() and functions of nm_gpudirect_ops
 * may block, for a bounded time.
 * Cost: send() of at most 2 KiB of payload and an idle progress() make no allocation, no log entry
 * and, except on the network or to wake a peer that sleeps, no system call.
 * Trust: bytes from a peer are hostile. The transport copies and checks the header as far as it
 * uses it. The engine checks the rest, and copies the payload before it uses it.
 * Invalid bytes:
 *   found by the transport   it drops them and ends the source: by quarantined() if it has
 *                            nm_quarantine_ops and the sink has quarantined(), else by
 *                            source_down() with -EBADMSG
 *   found by the engine      it calls quarantine->cast_out() if the transport has that
 *                            capability. Else the peer counts as down, on every channel, and the
 *                            engine ignores its packets; link and source stay until destroy()
 *
 * Every transport has all nine slots of nm_transport_ops. nm_copy_ops, nm_place_ops,
 * nm_gpudirect_ops, nm_quarantine_ops and nm_move_ops are optional capabilities: a transport has
 * all functions of one, or none. These may be NULL, too: learn() of a transport, and known(),
 * let_go(), quarantined(), asked(), gpudirect_done() and homed() of a sink. A new transport adds a
 * line to base/channel.h and defines nm_CODE_kind, whose create() fills a struct nm_transport.
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
 * How far the two streams of a channel between this endpoint and a peer got, in a unit of the
 * channel, over all streams of a direction. After a quarantine the engine compares `sent` of each
 * side with `taken` of the other: if they differ, packets of that direction were lost.
 */
struct nm_stream_ends {
	uint64_t sent;	/* this endpoint -> peer: everything that send() took */
	uint64_t taken; /* peer -> this endpoint: all delivered, but for the packet of cast_out() */
};

enum nm_asked { NM_STAYS, NM_LEAVES, NM_ABSENT };

/*
 * The engine's functions. FROM is always the transport that calls. A transport calls them only from
 * within its progress(), quarantine->finish() and move->take_rest(), and never while one of its own
 * deliver() calls is running. PEER is the engine's record of the peer: the same pointer from
 * source_up() and in link->peer, unless learn() was false, and valid until all transports are
 * destroyed.
 * Only these call functions of this contract in turn: deliver() calls send() on any link,
 * cast_out() and move->suspend() of FROM, functions of nm_place_ops, and finish() and the functions
 * of nm_move_ops of other transports; source_up() calls learn() of other transports; let_go() calls
 * place->release(); reports of an end call functions of nm_place_ops, and move->leave() and
 * move->forget(). If deliver() or asked() ends the peer, it calls what reports of an end call.
 */
struct nm_sink {
	void *engine; /* for the functions below; they read it from FROM->sink */
	/*
	 * A peer, proven to be WHO (but see learn), can now send to this endpoint. Called once per
	 * source, before its first packet. LABEL may be NULL. Returns the record of the peer. NULL:
	 * the engine refuses the source, because the peer is down already or memory is missing. The
	 * transport then drops the packets of the source, does not report its end, and lets the
	 * peer's link to this endpoint fail. The engine uses no link to such a peer: the transport
	 * may keep the link or end it, with or without a report.
	 */
	struct nm_peer *(*source_up)(struct nm_transport *from, const struct nm_identity *who,
				     const struct nm_peer_label *label);
	/*
	 * One packet of a source. PKT is a private copy. The transport has checked that pkt->len
	 * bytes are at PAYLOAD until the return; there may be more than the own max_payload, if the
	 * peer's is larger. op, flags, tag and data are unchecked. A hostile peer may change the
	 * payload during the call. The engine cannot refuse a packet: it uses, keeps or ignores it.
	 */
	void (*deliver)(struct nm_transport *from, struct nm_peer *peer,
			const struct nm_packet *pkt, const void *payload);
	/*
	 * The peer is gone from this transport: its source, if it had one, has ended, and a link to
	 * it fails with -EPIPE. Called at most once per peer. ERR 0: it closed normally, and
	 * everything it had sent was delivered. -ECONNRESET: it died, or closed before this
	 * endpoint had taken everything. -EBADMSG: it broke the rules. WHY may be NULL.
	 */
	void (*source_down)(struct nm_transport *from, struct nm_peer *peer, int err,
			    const struct nm_reason *why);
	/*
	 * The channel to and from the peer was given up because bytes on it broke its rules. Called
	 * instead of source_down(), at most once per peer: the source has ended, and a link fails
	 * with -EPIPE. The peer may still be reached on another channel. If this pointer is NULL,
	 * the transport calls source_down() with -EBADMSG.
	 */
	void (*quarantined)(struct nm_transport *from, struct nm_peer *peer,
			    const struct nm_stream_ends *ends, const struct nm_reason *why);
	/*
	 * Get the address that the program gave for WHO, which may be any identity. Also true, with
	 * an address without a network part, if it has given none but WHO is met on another channel
	 * that proved its identity and watches it: a claim with a network address is then false.
	 * False: it has not given one yet. If this pointer is NULL, none is ever known.
	 */
	bool (*known)(struct nm_transport *from, const struct nm_identity *who,
		      struct nm_address *ret_address);
	/*
	 * Release every payload of the peer that place->hold() keeps: the transport has kept as
	 * many as it can, or its memory goes. WAITS false: only those that need no wait, and have
	 * the device read the others; the next packet of the peer may wait for their room. May be
	 * NULL if the engine never calls hold().
	 */
	void (*let_go)(struct nm_transport *from, struct nm_peer *peer, bool waits);
	/*
	 * The machine of this endpoint or that of PEER is asked to leave the memory of FROM
	 * (LEAVES), or no more (STAYS). A transport with nm_move_ops reports each change, LEAVES
	 * again for a link that was made later and about once a second, and STAYS also for a peer
	 * without a link that a connect() may reach now. ABSENT: one of the two stood still for
	 * longer than its lease, and may live; link and source work as before. Returns false if the
	 * engine has no use for PEER, or no other way to it: the transport then ends both.
	 */
	bool (*asked)(struct nm_transport *from, struct nm_peer *peer, enum nm_asked what);
	/*
	 * What expect() or send() of nm_gpudirect_ops began for REQUEST of this peer is over:
	 * nothing touches its memory any more. ERR 0: all bytes came or were sent. NULL: not used.
	 */
	void (*gpudirect_done)(struct nm_transport *from, struct nm_peer *peer, uint64_t request,
			       int err);
	/*
	 * This endpoint, which had left its memory, has such memory again, maybe another one: HOME
	 * names the place. The transport knows none of the homes of peers. Called from within
	 * progress(). NULL: no peer has to know.
	 */
	void (*homed)(struct nm_transport *from, const uint8_t home[NM_HOME_LEN]);
	bool has_devices; /* the engine's user may pass memory of devices */
};

/* ---- Links ---- */

/* The direction from this endpoint to one peer. */
struct nm_link {
	struct nm_transport *transport;
	struct nm_peer *peer; /* the engine's record, as given to connect() */
	/*
	 * Set by the transport. True if copy->read_remote() and copy->write_remote() work on this
	 * link: the process that they reach is proven to be the peer. Any call of the transport may
	 * make it false. Always false without nm_copy_ops.
	 */
	bool remote_copy;
	/* Set by the engine. True: send() should copy large payloads past this processor's cache. */
	bool past_cache;
	/* Set by the transport. True if the peer is known to share no cache with this endpoint. */
	bool far;
	/*
	 * Set by the transport, like remote_copy. True if copy->show_heap() may find memory that
	 * the peer reads, or copy->read_heap() works on this link.
	 */
	bool shows_heap, reads_heap;
};

/* What logs, statistics and nearmetal-info report about a link. */
struct nm_link_facts {
	enum nm_relation relation;
	enum nm_channel channel;
	enum nm_integrity integrity;  /* what keeps others from writing the own window */
	struct nm_reason reason;      /* why this channel */
	struct nm_peer_label label;   /* the name that the peer gives itself */
	bool remote_copy;	      /* as in nm_link */
	struct nm_reason copy_reason; /* why it is true or false; may be "" without nm_copy_ops */
	struct nm_reason device;      /* network: whether adapters reach devices, and why */
	bool finds_death; /* network: check_alive() finds a process that ended, a host that is gone */
};

/* ---- From the engine to the transport: what every transport has ---- */

struct nm_transport_ops {
	/*
	 * Make the link to the peer at ADDRESS, which is valid during the call only. PEER is stored
	 * in the link. May allocate, make system calls, and wait up to 200 ms for the answer.
	 * -EAGAIN: no answer yet. Further calls look for it without waiting, and the engine tries
	 * no other transport meanwhile. NEARMETAL_CONNECT_MS after the first call, at the latest,
	 * there is another result. 0: RET_LINK is set; no call for this peer follows while the link
	 * is up. -EHOSTUNREACH: the peer is not reachable here, or gone. -ENOMEM, -ENOSPC and
	 * others: out of resources. After these errors there is no link, and the engine tries the
	 * transport of the next rank. It may call this one again later. RET_REASON is always set.
	 */
	int (*connect)(struct nm_transport *transport, const struct nm_address *address,
		       struct nm_peer *peer, struct nm_link **ret_link,
		       struct nm_reason *ret_reason);
	/*
	 * Send one packet of at most max_payload bytes, its payload gathered from IOV (pkt->len
	 * bytes in all; NR_IOV is 0 to 64, and pieces may be empty). The caller may reuse the bytes
	 * after the return. Packets of one link arrive in order. Returns 0: the transport has the
	 * packet, the peer may not have it yet. -EAGAIN: no room, nothing was taken, nothing is
	 * logged. -EPIPE: the link is down, nothing was taken. Unless the sink knows that already,
	 * a later progress() calls source_down() or quarantined(). Never blocks or calls the sink.
	 */
	int (*send)(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		    unsigned int nr_iov);
	/*
	 * True if nothing that was sent on this link depends on this process any more: the peer or
	 * a network took it, it is in memory that outlives this process, or the link is down. O(1).
	 */
	bool (*drained)(struct nm_link *link);
	void (*describe)(const struct nm_link *link, struct nm_link_facts *ret_facts);
	/*
	 * Check without blocking whether the peer lives. Returns no result and calls no sink: if
	 * the peer is found dead, a later progress() calls source_down(), and send() returns -EPIPE
	 * from now on. It may take several calls to find out. The engine calls this about once per
	 * NEARMETAL_KEEPALIVE_MS for each peer from which it expects something. If such a peer has
	 * only a source, the engine first makes a link to it, unless the source is on a kind with
	 * NM_TRANSPORT_WATCHES. These kinds put nm_transport_unchecked() here.
	 */
	void (*check_alive)(struct nm_link *link);
	/*
	 * Get ready for the sleep of a thread; this call itself does not sleep. Add to DOORBELLS
	 * the words that peers change when they send, and set doorbells->rung if something has
	 * arrived already. False: packets can arrive without a ring, so the thread sleeps only for
	 * a moment. After true, a ring can be missing as well: sleep() sets a flag that senders
	 * read without a memory fence. So every sleep has a time limit. A word may be unmapped
	 * during the sleep, which then ends. No system call. Each thread calls sleep() of all
	 * transports before it sleeps. When the last thread has woken up, wake() of all follows,
	 * after false too. Other threads may call progress() in between. On NM_TRANSPORT_SILENT
	 * kinds the engine also calls sleep() without a wake(), to look at `rung` and the result.
	 */
	bool (*sleep)(struct nm_transport *transport, struct nm_doorbells *doorbells);
	/* No thread sleeps any more. No system call. nm_transport_unwoken(): nothing to do. */
	void (*wake)(struct nm_transport *transport);
	/*
	 * Take in what has arrived, at most a bounded number of packets, and call the sink for it.
	 * Returns the number of packets delivered and of sends that a network completed; 0: idle.
	 */
	unsigned int (*progress)(struct nm_transport *transport);
	/*
	 * Close every link normally, and free the transport, which may be NULL, with its links.
	 * Blocks at most until transport->close_by_ns while peers take what was sent. Peers then
	 * see source_down() with err 0, or -ECONNRESET if the time was too short. Calls no sink.
	 */
	void (*destroy)(struct nm_transport *transport);
};

/* ---- Capability: direct access to a peer's memory ---- */

/* A range of a peer's memory. Address and length come from the peer and are hostile. */
struct nm_span {
	uint64_t address;
	uint64_t len;
};

/* In `address`: a place in the heap of the span's owner, not an address in its process. */
#define NM_SPAN_HEAP (UINT64_C(1) << 63)

/* Limits of one remote copy, which the caller keeps: spans on each side, and bytes. */
#define NM_SPANS_MAX 4
/* What an RTS may also hold: struct nm_device_share, as long as this many spans. */
#define NM_SHARE_SPANS 6
#define NM_REMOTE_COPY_STEP (256 * 1024)

struct nm_copy_ops {
	/*
	 * Copy from or to the peer's memory without its help. LOCAL and REMOTE (at most
	 * NM_SPANS_MAX each) hold the same number of bytes, at least one. Only ever reaches the
	 * proven process. Returns the length of the copied front part, at least one byte; it is
	 * shorter than asked if the peer's memory ends. -EFAULT: the peer has no such memory, the
	 * link stays good. -EOPNOTSUPP: link->remote_copy is false. -EPERM, -ESRCH, -ENOSYS: no
	 * longer possible, and link->remote_copy is false from now on. Never blocks or logs.
	 */
	ssize_t (*read_remote)(struct nm_link *link, const struct iovec *local,
			       unsigned int nr_local, const struct nm_span *remote,
			       unsigned int nr_remote);
	ssize_t (*write_remote)(struct nm_link *link, const struct iovec *local,
				unsigned int nr_local, const struct nm_span *remote,
				unsigned int nr_remote);
	/*
	 * Where PIECE lies in the heap that the peer can read (shm/heap.h), as a span whose address
	 * has NM_SPAN_HEAP. False: it does not lie there, or shows_heap is false.
	 */
	bool (*show_heap)(const struct nm_link *link, const struct iovec *piece,
			  struct nm_span *ret_span);
	/*
	 * read_remote() for spans of the peer's heap, which have NM_SPAN_HEAP, if reads_heap is
	 * true. -EFAULT: the first one is outside. -ENODATA: its owner never touched it, or it was
	 * swapped out.
	 */
	ssize_t (*read_heap)(struct nm_link *link, const struct iovec *local, unsigned int nr_local,
			     const struct nm_span *remote, unsigned int nr_remote);
	/*
	 * Copy the bytes of WANTED, maybe none, out of the peer's heap, without reach(). Its base is
	 * not used. -errno: not all of them are shown there; LOCAL is undefined, ask the peer.
	 */
	int (*get_heap)(struct nm_link *link, const struct nm_region *wanted,
			const struct iovec *local, unsigned int nr_local);
	/* Show a copy of REGION to all peers until revoke(). 0, or -ENOSPC: no room. */
	int (*publish)(struct nm_transport *transport, const struct nm_region *region);
	/*
	 * After the return no peer copies through the region; get_heap() fails then. Waits about a
	 * second at most for copies. If one takes longer, all memory of this endpoint is closed to
	 * all peers for good: their copies return -ESRCH. An unknown key is ignored.
	 */
	void (*revoke)(struct nm_transport *transport, uint64_t key);
	/*
	 * Look up the regions that the peer shows for KEYS (at most NM_SPANS_MAX), for one-sided
	 * operations. A large message needs no reach(): its packet has the spans. The result is
	 * hostile. After success the peer's revoke() waits for this endpoint until leave(), so copy
	 * one operation and leave. -ENOKEY: not all keys are shown; -EOPNOTSUPP: link->remote_copy
	 * is false. After an error there is no leave().
	 */
	int (*reach)(struct nm_link *link, const uint64_t *keys, unsigned int nr_keys,
		     struct nm_region *ret_regions);
	void (*leave)(struct nm_link *link);
	/*
	 * These two let the engine choose: a peer that polls answers a packet sooner than a remote
	 * copy ends, and a peer that computes does not. polled() announces that this endpoint
	 * polls. polls() is true if the peer announced it within the last 2 ms. NOW_NS is
	 * nm_clock_ns().
	 */
	void (*polled)(struct nm_transport *transport, uint64_t now_ns);
	bool (*polls)(struct nm_link *link, uint64_t now_ns);
};

/* ---- Capability: payloads where the transport keeps them ---- */

/* Places for the payloads of packets, side by side: each is max_payload bytes long. */
struct nm_place {
	uint8_t *bytes; /* of the first that is not sent */
	uint32_t index; /* the transport's */
	uint32_t nr;	/* that are not sent; 0: none is reserved */
};

struct nm_place_ops {
	/* The memory in which all places of this endpoint lie, until destroy(). */
	void (*memory)(struct nm_transport *transport, struct iovec *ret_memory);
	/*
	 * Reserve up to NR places, at least one, which the caller fills. 0, or -EAGAIN or -EPIPE as
	 * send(). While places are reserved, other packets can be sent on the link.
	 */
	int (*reserve)(struct nm_link *link, unsigned int nr, struct nm_place *ret_place);
	/* send(), with the first of PLACE as payload. After 0, PLACE begins with the next one. */
	int (*send_place)(struct nm_link *link, const struct nm_packet *pkt,
			  struct nm_place *place);
	/* send() of what FILL writes, at most ROOM bytes; sets pkt->len. Error: not called. */
	int (*send_filled)(struct nm_link *link, struct nm_packet *pkt, uint32_t room,
			   size_t (*fill)(void *to, void *arg), void *arg);
	/* Give back what is left of PLACE; the link may be down. PLACE has none then. */
	void (*unreserve)(struct nm_link *link, struct nm_place *place);
	/* The memory in which payloads of a source lie. False: there is no such source. */
	bool (*peer_memory)(struct nm_transport *transport, const struct nm_peer *peer,
			    struct iovec *ret_memory);
	/*
	 * Within deliver() of a packet of PEER: its payload stays in place until release() of
	 * *RET_HOLD or the end of the source, before which let_go() of the sink is called. Holds of
	 * a source are numbered in the order of its packets. False: the payload cannot stay.
	 */
	bool (*hold)(struct nm_transport *transport, const struct nm_peer *peer,
		     uint64_t *ret_hold);
	void (*release)(struct nm_transport *transport, const struct nm_peer *peer, uint64_t hold);
};

/* ---- Capability: the memory of devices, without the host ---- */

/*
 * MEMORY is one piece of a device, with its mark (base/device.h). What cannot be done is logged
 * once for each buffer, with the reason.
 */
struct nm_gpudirect_ops {
	/* May expect() and send() succeed there? The first call for a buffer may take long. */
	bool (*reaches)(struct nm_link *link, const struct iovec *memory);
	/*
	 * Receive a message of that length from the peer, beside its packets. The peer sends it
	 * with *RET_TAG, which others cannot guess. gpudirect_done() of the sink follows. 0 or
	 * -errno.
	 */
	int (*expect)(struct nm_link *link, const struct iovec *memory, uint64_t request,
		      uint64_t *ret_tag);
	/* Send such a message, with the tag that the peer gave. The same results. */
	int (*send)(struct nm_link *link, const struct iovec *memory, uint64_t tag,
		    uint64_t request);
	/*
	 * End what was begun for REQUEST: nothing touches its memory after the return, and
	 * gpudirect_done() does not follow. Waits about a second at most, once for each peer; then
	 * the adapter's registration of the buffer ends. IS_DUE: the peer may still send it, and is
	 * not held up.
	 */
	void (*cancel)(struct nm_transport *transport, uint64_t request, bool is_due);
	/* MEMORY is in one region less: adapters keep no registration that nothing uses. */
	void (*forget)(struct nm_transport *transport, const struct iovec *memory);
};

/* ---- Capability: give up a channel, keep the peer ---- */

/* Not for kinds with NM_TRANSPORT_NETWORK: a quarantined peer continues on one of those. */
struct nm_quarantine_ops {
	/*
	 * Begin a quarantine of WHO, whose packets have the fault WHAT. From now on none is
	 * delivered, and one whose deliver() is running does not count as taken. quarantined()
	 * follows at the end of the progress() or finish() under way, else of the next progress().
	 * No effect if WHO is unknown or gone.
	 */
	void (*cast_out)(struct nm_transport *transport, const struct nm_identity *who,
			 const char *what);
	/*
	 * Complete a quarantine that WHO began and reported on another channel. Delivers the
	 * packets that WHO had sent before, at most one ring of them, and calls quarantined(), even
	 * if only a link exists. If WHO is unknown or has ended here already, it calls nothing. In
	 * every case WHO cannot connect here again. Until this call, send() to WHO may return 0 for
	 * packets that WHO does not take; `sent` counts them. The transport may also notice the end
	 * first, and calls quarantined() then. Never called within its own progress() or finish().
	 */
	void (*finish)(struct nm_transport *transport, const struct nm_identity *who);
};

/* ---- Capability: leave a channel in order, keep the peer ---- */

/*
 * The packets of a peer change from this channel to the network without a loss, one direction at a
 * time (engine/move.h), and back. Positions are those of nm_stream_ends. A direction that was left
 * ends without a report.
 */
struct nm_move_ops {
	/*
	 * connect() to a peer that the engine reaches on the network: without waiting and without a
	 * warning. After other errors than -EAGAIN, asked() may follow, for another try.
	 */
	int (*enter)(struct nm_transport *transport, const struct nm_address *address,
		     struct nm_peer *peer, struct nm_link **ret_link, struct nm_reason *ret_reason);
	/*
	 * IS_SUSPENDED: within deliver() of a packet of PEER: no packet follows until resumed, and
	 * no normal end is reported. False: packets and end follow.
	 */
	void (*suspend)(struct nm_transport *transport, const struct nm_identity *who,
			bool is_suspended);
	/* No send() on LINK follows. Returns the position after its last packet. */
	uint64_t (*hold)(struct nm_link *link);
	/*
	 * WHO said that its last packet here ends at POSITION. Delivers what is left up to there,
	 * at most one ring, and ends the source. -ENOENT: there is no source of WHO. -EBADMSG: the
	 * ring does not end at POSITION, and the source is as it was. -EPIPE: the source ends in
	 * another way, which progress() reports. Never called within its own progress().
	 */
	int (*take_rest)(struct nm_transport *transport, const struct nm_identity *who,
			 uint64_t position);
	/*
	 * Send the packets of the held LINK from *POSITION on again, over TO, and advance
	 * *POSITION. 0: all are sent. -EAGAIN: call again. -EBADMSG: no packet begins at *POSITION,
	 * or its bytes may be overwritten. Other errors are those of send() on TO; -EMSGSIZE: a
	 * packet is too large for TO.
	 */
	int (*replay)(struct nm_link *link, uint64_t *position, struct nm_link *to);
	/* The peer has, or will not get, what went over the held LINK. The link is then down. */
	void (*leave)(struct nm_link *link);
	/*
	 * The engine has no use for WHO any more. While a machine is asked to leave, asked()
	 * follows for it once more, from within progress().
	 */
	void (*forget)(struct nm_transport *transport, const struct nm_identity *who);
	/*
	 * Add to DOORBELLS the word that is rung for reports by asked(), and when is_away() becomes
	 * true; set doorbells->rung if a report is due. False: no room. No system call.
	 */
	bool (*listen)(struct nm_transport *transport, struct nm_doorbells *doorbells);
	/* True: it has left its memory. Now and then, progress() gives it up or finds another. */
	bool (*is_away)(const struct nm_transport *transport);
	/*
	 * WHO has said on the network that its memory is at HOME now, and no more where its
	 * identity names it. False: this transport has no such memory.
	 */
	bool (*home)(struct nm_transport *transport, const struct nm_identity *who,
		     const uint8_t home[NM_HOME_LEN]);
	/* The heartbeat of WHO in this memory, which changes while WHO lives. 0: it has none. */
	uint64_t (*heartbeat)(struct nm_transport *transport, const struct nm_identity *who);
};

/* ---- Kinds and instances ---- */

/* Properties of a kind. With none set, it reaches endpoints that share memory with this one, and
 * their packets ring a doorbell. */
#define NM_TRANSPORT_LOOPBACK 0x01u /* reaches this endpoint itself and no other */
#define NM_TRANSPORT_NETWORK 0x02u  /* reaches any endpoint whose address has a network part */
#define NM_TRANSPORT_OPTIONAL 0x04u /* most machines do not have it: its absence is not reported */
#define NM_TRANSPORT_WATCHES 0x08u  /* notices the end of sources and links without check_alive() */
#define NM_TRANSPORT_SILENT 0x10u   /* packets ring no doorbell; sleep() adds none */

/* One per line of base/channel.h: const struct nm_transport_kind nm_CODE_kind, CODE as there. */
struct nm_transport_kind {
	enum nm_channel channel;
	unsigned int rank; /* the lowest is tried first, the next after an error of connect() */
	unsigned int flags;
	/*
	 * Create the transport of one endpoint. *SINK is copied. ADDRESS is the endpoint's own and
	 * outlives the transport. Kinds are created in the order of their ranks, and each adds its
	 * part to ADDRESS: shared memory the place of that memory, a network its network address.
	 * A copy that is made here lacks the parts of later kinds. Settings come from the
	 * environment (base/params.h). Returns 0, and in RET_REASON what it opened; or -errno, and
	 * the reason, logged once per process. -ENOENT: this machine has no such channel (optional
	 * kinds, not logged).
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

/* The kinds in this program, lowest rank first. After NULL: the first. At the end: NULL. */
const struct nm_transport_kind *nm_transport_next(const struct nm_transport_kind *previous);

/* The first member of every transport's own struct. Its create function fills it. */
struct nm_transport {
	const struct nm_transport_kind *kind;
	const struct nm_transport_ops *ops;
	const struct nm_copy_ops *copy;		    /* NULL: cannot reach a peer's memory */
	const struct nm_place_ops *place;	    /* NULL: payloads are given to send() */
	const struct nm_gpudirect_ops *gpudirect;   /* NULL: the host copies bytes of devices */
	const struct nm_quarantine_ops *quarantine; /* NULL: see "Invalid bytes" above */
	const struct nm_move_ops *move;		    /* NULL: is never left in order */
	/*
	 * The program has given the ADDRESS of a peer that is a source, or the peer has proved its
	 * identity on another channel: ADDRESS then has no network part. True: the source has this
	 * address, or this transport has no such source. False: the source has the identity but
	 * another network address, so it is not the owner. The transport then ends it without a
	 * report, the engine discards its messages that no receive has taken, and a later
	 * source_up() is from the owner. NULL: sources prove their whole address.
	 */
	bool (*learn)(struct nm_transport *transport, const struct nm_address *address);
	struct nm_sink sink;
	uint32_t max_payload; /* largest pkt->len that send() takes; >= NM_MIN_MAX_PAYLOAD */
	uint32_t eager_max;   /* up to this size a message is best one packet; <= max_payload */
	uint64_t close_by_ns; /* deadline of destroy() by nm_clock_ns(); the engine's; 0: at once */
	/*
	 * The engine may skip this many calls of progress(), and counts them down; "the next" is
	 * the next that it makes. 0 when, for example, a send() makes progress urgent.
	 */
	uint32_t pause;
	uint8_t haste; /* while the program computes: 0: none; 1: ten looks a second; 2: poll soon */
};

#define NM_MIN_MAX_PAYLOAD 4096

/* Slots for transports that have nothing to do there. */
void nm_transport_unchecked(struct nm_link *link);	   /* check_alive */
void nm_transport_unwoken(struct nm_transport *transport); /* wake */

#endif
