/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the virtual machines of one host share (layout.h), as one of them sees it:
 * the whole, read-only, and its own part, which it alone writes.
 *
 *   nm_vmseg_config_load()  what the guest unit wrote: where the mappings are, which part is mine
 *   nm_vmseg_attach()       map, check, measure: is it memory that processors keep in their caches?
 *   nm_vmseg_claim()        a slot of my part, and room for a window; then nm_vmseg_open()
 *   nm_vmseg_next()         the slots of all endpoints
 *   nm_vmseg_post(), nm_vmseg_take()   messages, before there is anything else to talk through
 *
 * Every word of a neighbour's part is hostile and changes under every read. What these functions
 * return are private copies whose numbers have been checked: a window lies inside its part, a
 * message comes from the slot it was found in. The processes of one VM are one domain of trust; they
 * agree by locks on a file of the VM (lock.h), which the kernel releases when they die.
 *
 * Threads: all functions may be called by any thread, but those on one inbox, and detach and release
 * last. In a forked child everything is forgotten: release and detach only unmap.
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
/* NUMA nodes of a host whose distances are looked at. */
#define NM_VMSEG_MAX_NUMA 64

enum nm_vmseg_device {
	NM_VMSEG_IVSHMEM, /* two BARs, or two files */
	NM_VMSEG_DAX,	  /* one region for all, in `all` */
};

/* Who keeps a neighbour from writing into my part, as the guest unit was told. */
enum nm_vmseg_promise {
	NM_VMSEG_UNTOLD,
	NM_VMSEG_ENFORCED,
	NM_VMSEG_CONVENTION,
};

struct nm_vmseg_config {
	enum nm_vmseg_device device;
	enum nm_vmseg_promise integrity;
	char own[NM_VMSEG_PATH_MAX]; /* "": my part of `all` */
	char all[NM_VMSEG_PATH_MAX];
	char lock[NM_VMSEG_PATH_MAX];
	uint32_t part;
	uint8_t token[NM_VMSEG_TOKEN_LEN];
	int32_t numa, vcpu_numa; /* -1: unknown */
	/* from vcpu_numa to each NUMA node of the host, as its firmware says; 0: unknown */
	uint8_t distances[NM_VMSEG_MAX_NUMA];
};

/*
 * Parse LEN foreign bytes of "key = value" lines. Pure. Returns 0, or -EINVAL with a reason that
 * begins with the number of the line.
 */
int nm_vmseg_config_parse(const char *text, size_t len, struct nm_vmseg_config *ret_config,
			  struct nm_reason *ret_reason);
/*
 * Read PATH. Returns 0; -ENOENT: there is none, which is the usual case; -EPERM: somebody else could
 * have written it; -errno; always with a reason.
 */
int nm_vmseg_config_load(const char *path, struct nm_vmseg_config *ret_config,
			 struct nm_reason *ret_reason);

/* 32 hexadecimal digits, not all 0. False: it is something else. Pure. */
bool nm_vmseg_token_parse(const char *hex, size_t len, uint8_t ret_token[NM_VMSEG_TOKEN_LEN]);

struct nm_vmseg;

/* Constant after attach. */
struct nm_vmseg_facts {
	uint8_t token[NM_VMSEG_TOKEN_LEN]; /* equal in all VMs that share the segment */
	uint32_t nr_parts;
	uint32_t part; /* mine */
	uint64_t part_size;
	uint64_t space; /* bytes of a part for windows */
	uint32_t nr_slots;
	bool enforced; /* the hypervisor drops what a neighbour writes into my part */
	struct nm_reason integrity_why;
	struct nm_reason mapping; /* what was measured, in words */
};

/*
 * Map and check everything, and measure the mapping (milliseconds; once per boot of the VM where it
 * was found good). Returns 0, or -errno with a reason and what to do: -EBADMSG: not a segment, or
 * damaged; -EPROTONOSUPPORT: another version; -EPERM: another segment's token, or not allowed;
 * -ENOTSUP: the mapping bypasses the caches.
 */
int nm_vmseg_attach(const struct nm_vmseg_config *config, struct nm_vmseg **ret_segment,
		    struct nm_reason *ret_reason);
/* After all claims were released. NULL is fine. */
void nm_vmseg_detach(struct nm_vmseg *segment);
const struct nm_vmseg_facts *nm_vmseg_facts(const struct nm_vmseg *segment);
/* The file behind it has shrunk: what is read is zeros, and nothing of it is to be believed. */
bool nm_vmseg_is_lost(const struct nm_vmseg *segment);

/*
 * Lay out a window for this segment: as nm_geometry_init(), with LANES lanes, and the pool (then the
 * number of lanes) made as small as it takes for NR_ENDPOINTS of them to fit into my part. -ENOSPC:
 * so many never fit, with a reason.
 */
int nm_vmseg_geometry(const struct nm_vmseg *segment, uint32_t nr_endpoints, uint32_t nr_lanes,
		      uint32_t ring_slots, uint32_t chunk_size, uint64_t pool_size,
		      struct nm_geometry *ret_geometry, struct nm_reason *ret_reason);

/* Which endpoint, of all there will ever be in this segment. */
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

/* ---- my own slot ---- */

struct nm_vmseg_claim;

/*
 * Take a slot of my part and WINDOW_SIZE bytes of it, all zero. Slots and bytes of processes that
 * died are taken back on the way. Neighbours see nothing before nm_vmseg_open(). Returns 0;
 * -ENOSPC: no slot or no room; -EBUSY: the lock file is held, or somebody lives in my part who does
 * not use this lock file; -EBADMSG: my part is damaged; -errno; always with a reason.
 */
int nm_vmseg_claim(struct nm_vmseg *segment, const uint8_t id[6], const uint8_t token[8],
		   uint64_t window_size, struct nm_vmseg_claim **ret_claim,
		   struct nm_reason *ret_reason);
/*
 * Show a window in the claimed memory (nm_window_place()): from now on neighbours find the slot.
 * RET_WINDOW is destroyed (a formality) before the claim is released.
 */
int nm_vmseg_open(struct nm_vmseg_claim *claim, const struct nm_geometry *geometry,
		  struct nm_window *ret_window, struct nm_reason *ret_reason);
const struct nm_vmseg_address *nm_vmseg_own_address(const struct nm_vmseg_claim *claim);
/* I am alive: about every NM_VMSEG_BEAT_MS. */
void nm_vmseg_beat(struct nm_vmseg_claim *claim);
void nm_vmseg_set_state(struct nm_vmseg_claim *claim, enum nm_vmseg_state state);
/*
 * State GONE. The window stays readable for NM_VMSEG_GRACE_MS at least, then others may have its
 * bytes. NULL is fine.
 */
void nm_vmseg_release(struct nm_vmseg_claim *claim);
/*
 * Say GONE for processes of this VM that died without doing so. Cheap; never blocks. Returns how
 * many there were.
 */
unsigned int nm_vmseg_bury(struct nm_vmseg *segment);

#define NM_VMSEG_BEAT_MS 100
/* From GONE until a window's bytes are used again: readers look at the state more often. */
#define NM_VMSEG_GRACE_MS 1000

/* ---- neighbours ---- */

/* What a slot says, checked: its window lies in the space of its part. */
struct nm_vmseg_peer {
	struct nm_vmseg_address address;
	enum nm_vmseg_state state;
	uint64_t heartbeat;
	uint8_t id[6];
	uint8_t token[8];
	uint64_t window_off; /* from the start of the part */
	uint64_t window_size;
};

/*
 * The slots in use in any part, my own slots included, in the order of parts. *CURSOR is 0 at first.
 * Returns false when there are no more.
 */
bool nm_vmseg_next(struct nm_vmseg *segment, uint64_t *cursor, struct nm_vmseg_peer *ret_peer);
/*
 * State and heartbeat of the endpoint ADDRESS, from two lines; anything foreign may stand in
 * ADDRESS. 0; -ESTALE: it is not there any more (reused, or its VM has booted); -EINVAL: there
 * cannot be such an endpoint.
 */
int nm_vmseg_look(struct nm_vmseg *segment, const struct nm_vmseg_address *address,
		  enum nm_vmseg_state *ret_state, uint64_t *ret_heartbeat);
/*
 * Shows to who reads the window of an endpoint, with two loads, whether it still is that endpoint's:
 * after the grace others may have its bytes. All zero: of no segment, never broken.
 */
struct nm_vmseg_tie {
	const _Atomic uint64_t *part_generation, *control;
	uint64_t expected_part, expected_slot;
};
/* 0; -ESTALE and -EINVAL as nm_vmseg_look(). */
int nm_vmseg_tie(struct nm_vmseg *segment, const struct nm_vmseg_address *address,
		 struct nm_vmseg_tie *ret_tie);
static inline bool nm_vmseg_is_tied(const struct nm_vmseg_tie *tie)
{
	/* Partners: prepare_part() and set_control(). */
	return !tie->control ||
	       (atomic_load_explicit(tie->part_generation, memory_order_acquire) ==
			tie->expected_part &&
		atomic_load_explicit(tie->control, memory_order_acquire) >> NM_VMSEG_STATE_BITS ==
			tie->expected_slot);
}
/* A view of PEER's window; nm_window_detach() before the segment is detached. As nm_window_attach(). */
int nm_vmseg_view(struct nm_vmseg *segment, const struct nm_vmseg_peer *peer,
		  struct nm_foreign_window *ret_window, struct nm_reason *ret_reason);

/*
 * Are the processors of PART's machine on another NUMA node of the host than mine, farther than my
 * own? Then no cache is shared. False also where it is not known: the host did not pin both. The
 * number of its node is the neighbour's word, so it decides about speed alone. RET_WORDS says what
 * is known, "" for nothing.
 */
bool nm_vmseg_is_far(struct nm_vmseg *segment, uint32_t part, struct nm_reason *ret_words);

/* Whether a heartbeat goes on. All zero at first. */
struct nm_vmseg_lease {
	uint64_t heartbeat;
	uint64_t since_ns; /* when it was last seen to change */
};
/* HEARTBEAT was read at NOW_NS. False: it has stood still for LEASE_NS. Pure. */
bool nm_vmseg_lease_holds(struct nm_vmseg_lease *lease, uint64_t heartbeat, uint64_t now_ns,
			  uint64_t lease_ns);

/* ---- mailboxes ---- */

/*
 * Put a message for TO into one of my cells, and knock. It stays until it is taken back: the
 * receiver never says that it has read it. Returns 0; -EAGAIN: all my cells are in use; -EMSGSIZE.
 */
int nm_vmseg_post(struct nm_vmseg_claim *claim, const struct nm_vmseg_address *to,
		  const void *bytes, size_t len, uint32_t *ret_cell);
/* Take a message back: it has been answered, or nobody waits for it any more. */
void nm_vmseg_retract(struct nm_vmseg_claim *claim, uint32_t cell);

/* What I have taken so far. One thread's. */
struct nm_vmseg_inbox;
/* For messages to CLAIM, from its opening on. NULL: out of memory. */
struct nm_vmseg_inbox *nm_vmseg_inbox_create(struct nm_vmseg_claim *claim);
/* Before the claim is released. NULL is fine. */
void nm_vmseg_inbox_destroy(struct nm_vmseg_inbox *inbox);
/* Has anybody knocked since nm_vmseg_take() said that there is nothing? One line per part. */
bool nm_vmseg_knocked(const struct nm_vmseg_inbox *inbox);

struct nm_vmseg_letter {
	struct nm_vmseg_address from; /* where it was found, not what it says */
	uint32_t len;
	uint8_t bytes[NM_VMSEG_MESSAGE_MAX]; /* unchecked */
};
/*
 * Take the next message to me, each once, oldest first of each sender. False: there is none. A
 * message that was taken back before is lost, as is whatever a neighbour garbles.
 */
bool nm_vmseg_take(struct nm_vmseg_inbox *inbox, struct nm_vmseg_letter *ret_letter);

#endif
