/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by attach.c (attach), claim.c, ask.c, peers.c and mail.c. */
#ifndef NM_VMSEG_PRIVATE_H
#define NM_VMSEG_PRIVATE_H

#include <pthread.h>
#include <sys/types.h>

#include "base/clock.h"
#include "shm/sigbus.h"
#include "vmseg/attach.h"
#include "vmseg/check.h"
#include "vmseg/lock.h"
#include "vmseg/map.h"

/* The checked header of a part, for one generation. */
struct nm_vmseg_part_copy {
	uint64_t generation; /* 0: no valid header */
	uint64_t refused;    /* generation with a header that is not valid */
	struct nm_vmseg_shape shape;
	int32_t vcpu_numa; /* reported by the neighbour: any number */
};

struct nm_vmseg {
	struct nm_vmseg_config config;
	struct nm_vmseg_facts facts;
	struct nm_vmseg_host host; /* the copy that was checked */
	struct nm_vmseg_map all, own;
	struct nm_sigbus_guard all_guard, own_guard;
	bool all_guarded, own_guarded;
	bool lock_open;
	struct nm_vmseg_lock lock;
	pid_t creator;
	pthread_mutex_t mutex;		  /* guards the copies */
	struct nm_vmseg_part_copy *parts; /* host.nr_parts */
	uint32_t next_buried;		  /* slot to check next, under the lock file */
};

struct nm_vmseg_claim {
	struct nm_vmseg *segment;
	struct nm_vmseg_address address;
	struct nm_vmseg_shape shape;
	struct nm_vmseg_slot *slot;  /* in the own part */
	struct nm_vmseg_cell *cells; /* nr_cells of them */
	uint8_t id[6];
	uint64_t window_off, window_size;
	pthread_mutex_t mutex; /* guards the mailbox */
	uint64_t sequence;
	bool *cell_used;
};

/* How long attach and claim may wait for what takes WAIT_MS at most. */
static inline unsigned int nm_vmseg_patience(const struct nm_vmseg *segment, unsigned int wait_ms)
{
	return segment->config.tries ? 0 : wait_ms;
}

static inline struct nm_vmseg_part *nm_vmseg_own_part(const struct nm_vmseg *segment)
{
	return segment->own.base;
}

static inline const uint8_t *nm_vmseg_seen_part(const struct nm_vmseg *segment, uint32_t part)
{
	return (const uint8_t *)segment->all.base + segment->host.part_off +
	       part * segment->host.part_size;
}

static inline struct nm_vmseg_slot *nm_vmseg_own_slot(const struct nm_vmseg *segment,
						      const struct nm_vmseg_shape *shape,
						      uint32_t index)
{
	return (struct nm_vmseg_slot *)((uint8_t *)segment->own.base + shape->slots_off) + index;
}

static inline uint64_t nm_vmseg_control_of(const struct nm_vmseg_slot *slot)
{
	return atomic_load_explicit(&slot->control, memory_order_acquire);
}

static inline void nm_vmseg_set_control(struct nm_vmseg_slot *slot, uint64_t generation,
					enum nm_vmseg_state state)
{
	/* Partner: nm_vmseg_read_slot(). A reader that sees it sees everything written before. */
	atomic_store_explicit(&slot->control, nm_vmseg_control(generation, state),
			      memory_order_release);
}

static inline void nm_vmseg_set_gone(struct nm_vmseg_slot *slot)
{
	atomic_store_explicit(&slot->gone_ns, nm_clock_ns(), memory_order_relaxed);
	nm_vmseg_set_control(slot, nm_vmseg_generation_of(nm_vmseg_control_of(slot)),
			     NM_VMSEG_GONE);
}

/* Neighbours look at this part, and take the messages in it. */
static inline void nm_vmseg_knock(struct nm_vmseg *segment)
{
	atomic_fetch_add_explicit(&nm_vmseg_own_part(segment)->knock, 1, memory_order_release);
}

/* The owner of a slot in STATE advances its heartbeat. */
static inline bool nm_vmseg_beats(uint32_t state)
{
	return state == NM_VMSEG_RUN || state == NM_VMSEG_QUIESCE;
}

/*
 * Under the lock file: the own part from the lock file's record, recreated after a boot. 0; -EBUSY:
 * processes without this lock file use it; -EBADMSG: it is damaged; -errno; with a reason.
 */
int nm_vmseg_enter_part(struct nm_vmseg *segment, struct nm_vmseg_shape *ret_shape,
			uint64_t *ret_generation, struct nm_reason *ret_reason);
/* Under the lock file: 0, or -EBUSY with a reason if this machine is asked to leave the segment. */
int nm_vmseg_check_stays(const struct nm_vmseg *segment, struct nm_reason *ret_reason);

/* Get a random word that is not 0. 0 or -errno with a reason. */
int nm_vmseg_random(uint64_t *ret_word, struct nm_reason *ret_reason);
/* True in a child of fork(), which must not act for its parent. */
bool nm_vmseg_is_inherited(const struct nm_vmseg *segment);

/* The present header of PART. False: never used, or not valid. */
bool nm_vmseg_know_part(struct nm_vmseg *segment, uint32_t part,
			struct nm_vmseg_part_copy *ret_copy);

#endif
