/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol engine of one endpoint: peers, matching, message protocols (eager, rendezvous),
 * remote memory access and atomics by messages. It runs over any set of transports
 * (transport/transport.h) and includes no foreign header, so it is unit-tested, fuzzed and
 * sanitized without libfabric.
 *
 *   provider --send/recv/rma--> engine --packets--> transport
 *   provider <--completions---- engine <--packets-- transport
 *
 * Errors: calls return 0 or -errno. -EAGAIN: nothing was taken; make progress and call again. An
 * error after a call returned 0 is reported as a completion with err. Threads: the caller
 * serialises all calls for one engine (provider/lock.h). Order: messages from one peer match in the
 * order they were sent, for all sizes.
 */
#ifndef NM_ENGINE_ENGINE_H
#define NM_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "connect/address.h"
#include "connect/locality.h"
#include "engine/completion.h"
#include "engine/memory.h"
#include "transport/select.h"
#include "transport/transport.h"

struct nm_engine;
struct nm_peer;

#define NM_IOV_MAX 4

/* Operations that ended with ECONNRESET. */
struct nm_failed {
	uint64_t receives, sends, accesses;
};

/* A peer that is lost, and the operations that failed with it. The texts last for the call. */
struct nm_lost {
	struct nm_identity who;
	const char *label; /* host name and pid that it sent */
	const char *reason;
	struct nm_failed failed;
};

struct nm_engine_config {
	struct nm_identity who;
	struct nm_memory_table *memory; /* registered regions of the domain; may be shared */
	/*
	 * Index of a peer in the address vector, and its address there; or UINT64_MAX if it is not
	 * in it (yet). Called when the engine first meets a peer, and again by nm_engine_resolve().
	 */
	uint64_t (*resolve)(void *resolve_arg, const struct nm_identity *who,
			    struct nm_address *ret_address);
	void *resolve_arg;
	bool has_devices;		       /* buffers may be memory of devices */
	const struct nm_select_params *select; /* NULL: the values in use */
	/*
	 * Called from within progress about every params stats_ms: facts about the peers may have
	 * changed, so readers should get them. NULL: no readers.
	 */
	void (*publish)(void *publish_arg);
	void *publish_arg;
	/*
	 * A peer died, broke the protocol or lost messages: called after operations have ended with
	 * ECONNRESET for that, and also without any if the peer is in the address vector, because
	 * the caller may wait for it in ways of its own. Not called after an orderly close, or by a
	 * retired engine. May be called from within every function of the engine, and need not
	 * return. `publish` was called just before. NULL: the completions are enough.
	 */
	void (*lost)(void *lost_arg, const struct nm_lost *lost);
	void *lost_arg;
};

int nm_engine_create(const struct nm_engine_config *config, struct nm_engine **ret_engine);
/*
 * Drops all pending operations without completions. The engine no longer touches their buffers,
 * queues, counters, registered memory or the address vector. Completions that are still in the
 * receive queue lose their source. Only nm_engine_destroy() may follow.
 */
void nm_engine_retire(struct nm_engine *engine);
/*
 * MEMORY, which carries the mark of a device, is in one region less: no adapter touches it after this.
 * Transfers there continue by copies, if another region has it.
 */
void nm_engine_leave_memory(struct nm_engine *engine, const struct iovec *memory);
/*
 * Retires the engine if needed, sends the answers that peers wait for and destroys the transports,
 * which close normally. All this takes at most params close_ms. The caller needs no lock for a
 * retired engine. NULL-safe.
 */
void nm_engine_destroy(struct nm_engine *engine);

/* Arguments for the create function of this engine's transports. */
const struct nm_sink *nm_engine_sink(struct nm_engine *engine);
/* Add a transport; the engine owns it from now on. At most one per channel. */
int nm_engine_add_transport(struct nm_engine *engine, struct nm_transport *transport);

/* Queues for completions. They may be the same queue. NULL: no completions of that kind. */
struct nm_engine_queues {
	struct nm_cqueue *transmit;
	struct nm_cqueue *receive;
	/* counters; each may be NULL */
	struct nm_counter *send, *recv, *read, *write, *remote_read, *remote_write;
};
void nm_engine_bind(struct nm_engine *engine, const struct nm_engine_queues *queues);
/* The own identity once all transports are there, which complete it. Before the first peer. */
void nm_engine_set_identity(struct nm_engine *engine, const struct nm_identity *who);

/*
 * The peer with this address; created if it is new. Makes no connection; the first send does. Peers
 * live as long as the engine. Returns NULL if out of memory.
 */
struct nm_peer *nm_engine_peer(struct nm_engine *engine, const struct nm_address *address);
/* The address vector changed: ask config.resolve again for peers without index (bounded work). */
void nm_engine_resolve(struct nm_engine *engine);
/* WHO was removed from the address vector; nm_engine_resolve() may find it there again. */
void nm_engine_forget(struct nm_engine *engine, const struct nm_identity *who);
/* Index in the address vector for FI_SOURCE completions; UINT64_MAX: not in it. */
uint64_t nm_peer_index(const struct nm_peer *peer);
void nm_peer_set_index(struct nm_peer *peer, uint64_t index);

struct nm_message {
	const struct iovec *iov; /* copied; the array itself may be reused on return */
	size_t nr_iov;		 /* 0..NM_IOV_MAX */
	struct nm_peer *peer;	 /* send: the target. receive: the source, NULL: any source */
	uint64_t tag;
	uint64_t ignore; /* receive: tag bits to ignore */
	uint64_t data;	 /* send with NM_REMOTE_CQ_DATA */
	void *context;
	/*
	 * NM_TAGGED or NM_MSG, and
	 *  send: NM_COMPLETION (write a completion; without it only errors), NM_INJECT (buffer is
	 *        free on return; never a completion unless NM_COMPLETION), NM_REMOTE_CQ_DATA,
	 *        NM_INJECT_COMPLETE, NM_TRANSMIT_COMPLETE, NM_DELIVERY_COMPLETE, NM_MATCH_COMPLETE
	 *  receive: NM_COMPLETION, NM_MULTI_RECV (NM_MSG only), NM_PEEK, NM_CLAIM, NM_DISCARD
	 */
	uint64_t flags;
};

int nm_engine_send(struct nm_engine *engine, const struct nm_message *message);
/*
 * The same for a message that lies on a device (base/device.h). A receive into a device is one of
 * nm_engine_recv() with nr_iov of at least 2. Also -EFAULT and -EIO: the device has failed, as an
 * error of the call or of its completion. Such an error has no other effect on the peer than the end
 * of this operation, there with EIO.
 */
int nm_engine_send_device(struct nm_engine *engine, const struct nm_message *message);
/*
 * nm_engine_send() and nm_engine_recv() in the form that MPIs use for every message: one buffer,
 * and all arguments in registers. FLAGS of a message: NM_TAGGED or NM_MSG, and NM_REMOTE_CQ_DATA;
 * NM_INJECT is implied, and no completion. FLAGS of a receive: NM_TAGGED or NM_MSG, and
 * NM_COMPLETION; with NM_MSG, TAG is 0 and IGNORE all ones.
 */
int nm_engine_inject(struct nm_peer *peer, const void *buffer, size_t len, uint64_t tag,
		     uint64_t data, uint64_t flags);
int nm_engine_recv_buffer(struct nm_engine *engine, struct nm_peer *source, void *buffer,
			  size_t len, uint64_t tag, uint64_t ignore, uint64_t flags, void *context);
/*
 * Post a receive, or look for a message:
 *  NM_PEEK           hit: completion with len, tag, data, source, no error; miss: completion with
 *                    err ENOMSG. With NM_CLAIM the message is set aside for `context`, with
 *                    NM_DISCARD it is dropped.
 *  NM_CLAIM alone    receive the message set aside for `context` (with NM_DISCARD: drop it)
 */
int nm_engine_recv(struct nm_engine *engine, const struct nm_message *message);
/* A multi-receive buffer with less room than this is returned (FI_OPT_MIN_MULTI_RECV). */
void nm_engine_set_min_multi_recv(struct nm_engine *engine, size_t bytes);
/* Cancel the oldest posted receive with this context. 0: a completion with err ECANCELED follows
 * (exactly one completion in all); -ENOENT: no such receive. */
int nm_engine_cancel(struct nm_engine *engine, void *context);

struct nm_remote {
	uint64_t address; /* offset in the region: mr_mode is 0, addressing starts at 0 */
	uint64_t len;
	uint64_t key;
};

struct nm_rma {
	const struct iovec *iov; /* local side */
	size_t nr_iov;
	struct nm_remote remote[NM_IOV_MAX];
	size_t nr_remote;
	struct nm_peer *peer;
	uint64_t data; /* write with NM_REMOTE_CQ_DATA */
	void *context;
	uint64_t flags; /* NM_COMPLETION, NM_INJECT, NM_REMOTE_CQ_DATA, NM_DELIVERY_COMPLETE... */
};
int nm_engine_write(struct nm_engine *engine, const struct nm_rma *rma);
/* The same from a device. Reading into one is nm_engine_read(). */
int nm_engine_write_device(struct nm_engine *engine, const struct nm_rma *rma);
int nm_engine_read(struct nm_engine *engine, const struct nm_rma *rma);

/* Atomics: datatype and op are engine/atomic.h's (same values as libfabric's enums). */
struct nm_atomic {
	const struct iovec *operand; /* bytes, count * datatype size in all */
	size_t nr_operand;
	const struct iovec *compare; /* compare-and-swap family, else none */
	size_t nr_compare;
	const struct iovec *result; /* fetching kinds, else none */
	size_t nr_result;
	struct nm_remote remote[NM_IOV_MAX]; /* len in bytes */
	size_t nr_remote;
	uint32_t datatype;
	uint32_t op;
	struct nm_peer *peer;
	uint64_t data;
	void *context;
	uint64_t flags;
};
/* Operands and comparands lie in host memory, results may lie on a device. */
int nm_engine_atomic(struct nm_engine *engine, const struct nm_atomic *atomic);

/*
 * Make progress on all work. Returns the amount of work done; 0: idle. Cheap when idle: one
 * indirect call per transport. Yields the processor after a run of idle calls longer than params
 * spin_us, because every node believes that it owns all cores.
 */
unsigned int nm_engine_progress(struct nm_engine *engine);
/*
 * The same, for a thread that waits for another engine: a call without work does not count as idle,
 * so it neither yields nor reads the clock.
 */
unsigned int nm_engine_help(struct nm_engine *engine);
/*
 * A thread found no work and is about to sleep until one of DOORBELLS rings; adds the doorbells of
 * the engine's channels. Returns true if every arrival rings; false: sleep only for a moment. Call
 * nm_engine_wake() when the last thread is awake. Both need the engine's lock, and neither makes a
 * system call. See transport.h.
 */
bool nm_engine_sleep(struct nm_engine *engine, struct nm_doorbells *doorbells);
void nm_engine_wake(struct nm_engine *engine);
/* In order: what needs the next round sooner comes later. The numbers are `haste` of transports. */
enum nm_drive {
	NM_DRIVE_QUIET,
	NM_DRIVE_AWAY, /* look about ten times a second, for example where memory is that was left */
	NM_DRIVE_MOVES, /* something moves, or has to be polled for */
};

/*
 * For a thread that moves channels while the program computes: one round of progress. Adds to
 * DOORBELLS what rings when there may be more to move, and to NR_DONE the amount of work done.
 */
enum nm_drive nm_engine_drive(struct nm_engine *engine, struct nm_doorbells *doorbells,
			      unsigned int *nr_done);
/* True if during the sleep another thread left work that needs polling. Same lock. */
bool nm_engine_has_work(const struct nm_engine *engine);
/* True if the engine has been idle long enough to yield. */
bool nm_engine_yields(const struct nm_engine *engine);

/* Protocols of a peer's received large messages. */
struct nm_rndv_choice_facts {
	uint64_t bytes[NM_NR_PROTOCOLS];
	uint64_t fallbacks; /* transfers that began without packets and continued in packets */
	struct nm_reason fallback; /* reason of the last one */
	struct nm_reason choice;   /* last change of the protocol, and its reason */
};

/* The side that moves the bytes of a put, get or atomic of this endpoint. */
enum nm_access_way {
	NM_ACCESS_DIRECT, /* this process, in memory that it has mapped: its own, a heap */
	NM_ACCESS_CMA,	  /* this kernel, from and to the target's memory */
	NM_ACCESS_SERVED, /* the target, asked in packets */
	NM_NR_ACCESS_WAYS,
};

enum nm_access_kind {
	NM_ACCESS_PUT,
	NM_ACCESS_GET,
	NM_ACCESS_ATOMIC,
	NM_NR_ACCESS_KINDS,
};

/*
 * Diagnosis: one call per known peer with the facts about the way to it. For the stats file, logs
 * and nearmetal-info. Counts are messages and payload bytes.
 */
struct nm_peer_facts {
	struct nm_identity who;
	bool connected; /* link facts are valid */
	struct nm_link_facts link;
	uint64_t sent_messages, sent_bytes, received_messages, received_bytes;
	struct nm_traffic sent[NM_NR_CHANNELS], received[NM_NR_CHANNELS]; /* the same, split */
	/* Operations of this endpoint on the peer's memory, by way. */
	struct nm_traffic accesses[NM_NR_ACCESS_WAYS][NM_NR_ACCESS_KINDS];
	uint64_t stalls; /* sends that found no room and returned -EAGAIN */
	bool down;
	struct nm_reason down_reason;
	uint32_t nr_quarantines; /* channels given up because of invalid bytes */
	uint32_t nr_moves;	 /* own changes between memory and the network, in order */
	struct nm_reason quarantine_reason; /* reason of the last one */
	struct nm_rndv_choice_facts bulk;
	struct nm_reason device; /* the way of large messages between devices, and why; or "" */
};
void nm_engine_visit_peers(struct nm_engine *engine,
			   void (*visit)(void *arg, const struct nm_peer_facts *facts), void *arg);

#endif
