/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the virtual machines of one host share (layout.h), seen from one of them: the
 * whole, read-only, and its own part, which only this machine writes.
 *
 *   nm_vmseg_config_load()  the file of the guest unit: where the mappings are, which part is ours
 *   nm_vmseg_attach()       map, check, measure: do processors keep this memory in their caches?
 *   nm_vmseg_claim()        a slot of the own part, and room for a window; then nm_vmseg_open()
 *   nm_vmseg_next()         the slots of all endpoints
 *   nm_vmseg_post(), nm_vmseg_take()   messages, before any other way to talk exists
 *
 * Every word of a neighbour's part is hostile and may change at any time. These functions return
 * private copies with checked numbers: a window is inside its part, a message comes from the slot
 * where it was found. The processes of one VM trust each other. They agree by locks on a file of
 * the VM (lock.h), which the kernel releases when they die.
 *
 * Threads: any thread may call any function, except that an inbox belongs to one thread, and that
 * detach and release come last. In a forked child, release and detach only unmap.
 */
#ifndef NM_VMSEG_ATTACH_H
#define NM_VMSEG_ATTACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/reason.h"
#include "shm/window.h"
#include "vmseg/layout.h"

#define NM_VMSEG_PATH_MAX 256
#define NM_VMSEG_CONFIG_MAX_BYTES 8192
/* Largest number of NUMA nodes of a host whose distances are used. */
#define NM_VMSEG_MAX_NUMA 64

enum nm_vmseg_device {
	NM_VMSEG_IVSHMEM, /* two BARs, or two files */
	NM_VMSEG_DAX,	  /* one region for all, in `all` */
};

/* What prevents a neighbour from writing into the own part, as reported to the guest unit. */
enum nm_vmseg_promise {
	NM_VMSEG_UNTOLD,
	NM_VMSEG_ENFORCED,
	NM_VMSEG_CONVENTION,
};

/* What a caller that never waits remembers from one try to the next. All zero at first. */
struct nm_vmseg_tries {
	uint64_t heartbeats; /* of slots that processes without this lock file may own */
	uint64_t since_ns;   /* when they were read first; 0: never */
};

struct nm_vmseg_config {
	enum nm_vmseg_device device;
	enum nm_vmseg_promise integrity;
	char own[NM_VMSEG_PATH_MAX]; /* "": the own part of `all` */
	char all[NM_VMSEG_PATH_MAX];
	char lock[NM_VMSEG_PATH_MAX];
	uint32_t part;
	uint8_t token[NM_VMSEG_TOKEN_LEN];
	int32_t numa, vcpu_numa; /* -1: unknown */
	uint32_t endpoints;	 /* that must fit into the part; 0: unknown */
	/* from vcpu_numa to each NUMA node of the host, from its firmware; 0: unknown */
	uint8_t distances[NM_VMSEG_MAX_NUMA];
	/* Not NULL: where attach and claim would wait, they fail with -EBUSY: try again. */
	struct nm_vmseg_tries *tries;
};

/*
 * Parse LEN foreign bytes of "key = value" lines. Pure. Returns 0, or -EINVAL with a reason that
 * begins with the number of the line.
 */
int nm_vmseg_config_parse(const char *text, size_t len, struct nm_vmseg_config *ret_config,
			  struct nm_reason *ret_reason);
/*
 * Read PATH. Returns 0; -ENOENT: no such file, the usual case; -EPERM: another user could have
 * written it; -errno; always with a reason.
 */
int nm_vmseg_config_load(const char *path, struct nm_vmseg_config *ret_config,
			 struct nm_reason *ret_reason);

/* Parse 32 hexadecimal digits, not all 0. False: HEX is not valid. Pure. */
bool nm_vmseg_token_parse(const char *hex, size_t len, uint8_t ret_token[NM_VMSEG_TOKEN_LEN]);

struct nm_vmseg;

/* Constant after attach. */
struct nm_vmseg_facts {
	uint8_t token[NM_VMSEG_TOKEN_LEN]; /* equal in all VMs that share the segment */
	uint32_t nr_parts;
	uint32_t part; /* the own part */
	uint64_t part_size;
	uint64_t space; /* bytes of a part for windows */
	uint32_t nr_slots;
	bool enforced; /* the hypervisor drops a neighbour's writes to the own part */
	struct nm_reason integrity_why;
	struct nm_reason mapping; /* the measured numbers as text */
};

/*
 * Map and check everything, and measure the mapping: milliseconds, and only once per boot of the VM
 * if it is good. Returns 0, or -errno with a reason and a remedy: -EBADMSG: not a segment, or
 * damaged; -EPROTONOSUPPORT: another version; -EPERM: another segment's token, or not allowed;
 * -ENOTSUP: the mapping bypasses the caches.
 */
int nm_vmseg_attach(const struct nm_vmseg_config *config, struct nm_vmseg **ret_segment,
		    struct nm_reason *ret_reason);
/* Call it after the release of all claims. NULL is allowed. */
void nm_vmseg_detach(struct nm_vmseg *segment);
const struct nm_vmseg_facts *nm_vmseg_facts(const struct nm_vmseg *segment);
/* True if the file has shrunk: reads return zeros, and nothing that was read is valid. */
bool nm_vmseg_is_lost(const struct nm_vmseg *segment);

/*
 * Lay out a window for this segment with LANES lanes, like nm_geometry_init(). The pool, and then
 * the number of lanes, shrink until NR_ENDPOINTS windows fit into the own part. -ENOSPC with a
 * reason: that many never fit.
 */
int nm_vmseg_geometry(const struct nm_vmseg *segment, uint32_t nr_endpoints, uint32_t nr_lanes,
		      uint32_t ring_slots, uint32_t chunk_size, uint64_t pool_size,
		      struct nm_geometry *ret_geometry, struct nm_reason *ret_reason);

/* The unique name of an endpoint: no later endpoint in this segment gets it again. */
struct nm_vmseg_address {
	uint32_t part, slot;
	uint64_t part_generation;
	uint64_t generation;
};

static inline bool nm_vmseg_address_equal(const struct nm_vmseg_address *a,
					  const struct nm_vmseg_address *b)
{
	return a->part == b->part && a->slot == b->slot &&
	       a->part_generation == b->part_generation && a->generation == b->generation;
}

/* ---- own slot ---- */

struct nm_vmseg_claim;

/*
 * Take a slot of the own part and WINDOW_SIZE bytes, all zero. This also takes back slots and bytes
 * of dead processes. Neighbours see nothing before nm_vmseg_open(). Returns 0; -ENOSPC: no slot or
 * no room; -EBUSY: the lock file is held, processes without this lock file use the part, or the
 * machine is asked to leave the segment; -EBADMSG: the part is damaged; -EPROTONOSUPPORT: another
 * release uses it; -errno; always with a reason.
 */
int nm_vmseg_claim(struct nm_vmseg *segment, const uint8_t id[6], uint64_t window_size,
		   struct nm_vmseg_claim **ret_claim, struct nm_reason *ret_reason);
/*
 * Show a window in the claimed memory (nm_window_place()); from now on neighbours find the slot.
 * Destroy RET_WINDOW before the claim is released.
 */
int nm_vmseg_open(struct nm_vmseg_claim *claim, const struct nm_geometry *geometry,
		  struct nm_window *ret_window, struct nm_reason *ret_reason);
const struct nm_vmseg_address *nm_vmseg_own_address(const struct nm_vmseg_claim *claim);
/* Advance the heartbeat, except in FROZEN and GONE. Call it about every NM_VMSEG_BEAT_MS. */
void nm_vmseg_beat(struct nm_vmseg_claim *claim);
void nm_vmseg_set_state(struct nm_vmseg_claim *claim, enum nm_vmseg_state state);
/*
 * The state of the own slot, as it is stored: any number, if a process overwrote the table. GONE if
 * the slot has another owner now.
 */
uint32_t nm_vmseg_own_state(const struct nm_vmseg_claim *claim);
/*
 * The endpoint writes no packet and no message from now on: set state FROZEN. Its window and its
 * slot stay. Not if the state is GONE.
 */
void nm_vmseg_leave(struct nm_vmseg_claim *claim);
/*
 * After nm_vmseg_leave(), if the machine stays after all: set state RUN. 0; -EBUSY: it is still, or
 * again, asked to leave, or the lock file is held: try later; -ESTALE: the slot is GONE. Never
 * blocks.
 */
int nm_vmseg_return(struct nm_vmseg_claim *claim);
/*
 * Set state GONE. The window stays readable for at least NM_VMSEG_GRACE_MS, then its bytes may be
 * reused. NULL is allowed.
 */
void nm_vmseg_release(struct nm_vmseg_claim *claim);
/* Set state GONE for dead processes of this VM. Cheap; never blocks. Returns their number. */
unsigned int nm_vmseg_bury(struct nm_vmseg *segment);

#define NM_VMSEG_BEAT_MS 100
/* Time from GONE until a window's bytes are reused; readers check the state more often. */
#define NM_VMSEG_GRACE_MS 1000

/* ---- a machine that leaves the segment ---- */

/*
 * Set the state of the own part, for all processes of this machine: QUIESCE, all endpoints are
 * asked to leave, and none is added; FROZEN, allowed after QUIESCE if every slot is FROZEN or GONE;
 * RUN, the machine stays, allowed at any time. The state that the part has already is allowed, too.
 * Slots of dead processes become GONE. Returns 0; -EBUSY: FROZEN, but endpoints have not left yet;
 * -EINVAL: this state may not follow, or is another one; -EAGAIN: the lock file is held, or
 * processes without this lock file use the part; -EBADMSG: the part is damaged; -errno; always with
 * a reason. A boot of the machine has the effect of RUN.
 */
int nm_vmseg_ask(struct nm_vmseg *segment, enum nm_vmseg_state state, struct nm_reason *ret_reason);
/*
 * What the machine of PART, which is below nr_parts, is asked: RUN, nothing; QUIESCE or FROZEN, to
 * leave. A machine can store any number at any time; those that are no state count as RUN.
 */
enum nm_vmseg_state nm_vmseg_part_state(const struct nm_vmseg *segment, uint32_t part);

/* ---- neighbours ---- */

/* A checked copy of a slot: its window is inside the space of its part. */
struct nm_vmseg_peer {
	struct nm_vmseg_address address;
	enum nm_vmseg_state state;
	uint64_t heartbeat;
	uint8_t id[6];
	uint64_t window_off; /* from the start of the part */
	uint64_t window_size;
};

/*
 * Iterate over the used slots of all parts, own slots included, in the order of parts. *CURSOR is 0
 * at first. Returns false at the end.
 */
bool nm_vmseg_next(struct nm_vmseg *segment, uint64_t *cursor, struct nm_vmseg_peer *ret_peer);
/*
 * Read state and heartbeat of the endpoint ADDRESS, from two lines. ADDRESS may hold any foreign
 * bytes. 0; -ESTALE: the endpoint is gone (its slot was reused, or its VM rebooted); -EINVAL: no
 * such endpoint can exist.
 */
int nm_vmseg_look(struct nm_vmseg *segment, const struct nm_vmseg_address *address,
		  enum nm_vmseg_state *ret_state, uint64_t *ret_heartbeat);
/*
 * Shows with two loads if a window still belongs to its endpoint: after the grace its bytes may be
 * reused. All zero: not in a segment, never broken.
 */
struct nm_vmseg_tie {
	const _Atomic uint64_t *part_generation, *control, *heartbeat;
	uint64_t expected_part, expected_slot;
};
/* Make a tie. 0; -ESTALE and -EINVAL as nm_vmseg_look(). */
int nm_vmseg_tie(struct nm_vmseg *segment, const struct nm_vmseg_address *address,
		 struct nm_vmseg_tie *ret_tie);
static inline bool nm_vmseg_is_tied(const struct nm_vmseg_tie *tie)
{
	/* Partners: prepare_part() and nm_vmseg_set_control(). */
	return !tie->control ||
	       (atomic_load_explicit(tie->part_generation, memory_order_acquire) ==
			tie->expected_part &&
		atomic_load_explicit(tie->control, memory_order_acquire) >> NM_VMSEG_STATE_BITS ==
			tie->expected_slot);
}
/* True if a tied endpoint has ended. Not for a tie that is all zero. */
bool nm_vmseg_is_gone(const struct nm_vmseg_tie *tie);
/* View PEER's window like nm_window_attach(). nm_window_detach() it before the segment. */
int nm_vmseg_view(struct nm_vmseg *segment, const struct nm_vmseg_peer *peer,
		  struct nm_foreign_window *ret_window, struct nm_reason *ret_reason);

/*
 * True if the processors of PART's machine are on another NUMA node of the host, farther than the
 * own node: then no cache is shared. False also if it is unknown, because the host did not pin
 * both. The neighbour itself reports its node, so only speed may depend on it. RET_WORDS: the
 * facts; "" if there are none.
 */
bool nm_vmseg_is_far(struct nm_vmseg *segment, uint32_t part, struct nm_reason *ret_words);

/* Shows if a heartbeat advances. All zero at first. */
struct nm_vmseg_lease {
	uint64_t heartbeat;
	uint64_t since_ns; /* time of its last change */
};
/* Note the HEARTBEAT that was read at NOW_NS. False: it did not change for LEASE_NS. Pure. */
bool nm_vmseg_lease_holds(struct nm_vmseg_lease *lease, uint64_t heartbeat, uint64_t now_ns,
			  uint64_t lease_ns);

/* ---- mailboxes ---- */

/*
 * Put a message for TO into an own cell, and knock. It stays until it is taken back: the receiver
 * never reports that it read it. Returns 0; -EAGAIN: all own cells are in use; -EMSGSIZE.
 */
int nm_vmseg_post(struct nm_vmseg_claim *claim, const struct nm_vmseg_address *to,
		  const void *bytes, size_t len, uint32_t *ret_cell);
/* Take a message back after its answer, or when it is no longer needed. */
void nm_vmseg_retract(struct nm_vmseg_claim *claim, uint32_t cell);

/* Record of the messages taken so far. Belongs to one thread. */
struct nm_vmseg_inbox;
/* For messages to CLAIM from its opening on. NULL: out of memory. */
struct nm_vmseg_inbox *nm_vmseg_inbox_create(struct nm_vmseg_claim *claim);
/* Call it before the claim is released. NULL is allowed. */
void nm_vmseg_inbox_destroy(struct nm_vmseg_inbox *inbox);
/* True if a neighbour knocked since nm_vmseg_take() returned false. Reads one line per part. */
bool nm_vmseg_knocked(const struct nm_vmseg_inbox *inbox);

struct nm_vmseg_letter {
	struct nm_vmseg_address from; /* slot where it was found */
	uint32_t len;
	uint8_t bytes[NM_VMSEG_MESSAGE_MAX]; /* unchecked */
};
/*
 * Take the next message to this endpoint: each once, oldest first for each sender. False: none. A
 * message that was taken back before is lost, and so is one that a neighbour damages.
 */
bool nm_vmseg_take(struct nm_vmseg_inbox *inbox, struct nm_vmseg_letter *ret_letter);

#endif
