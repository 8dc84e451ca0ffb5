/* SPDX-License-Identifier: Apache-2.0 */
/* What attach.c (attach), claim.c, peers.c and mail.c share. */
#ifndef NM_VMSEG_PRIVATE_H
#define NM_VMSEG_PRIVATE_H

#include <pthread.h>
#include <sys/types.h>

#include "shm/sigbus.h"
#include "vmseg/attach.h"
#include "vmseg/check.h"
#include "vmseg/lock.h"
#include "vmseg/map.h"

/* The header of a part, checked, as of one generation. */
struct nm_vmseg_part_copy {
	uint64_t generation; /* 0: none that is sound */
	uint64_t refused;    /* generation whose header was not sound */
	struct nm_vmseg_shape shape;
	int32_t vcpu_numa; /* anything: its word */
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
	pthread_mutex_t mutex;		  /* of the copies */
	struct nm_vmseg_part_copy *parts; /* host.nr_parts */
	uint32_t next_buried;		  /* slot to look at next, under the lock file */
};

struct nm_vmseg_claim {
	struct nm_vmseg *segment;
	struct nm_vmseg_address address;
	struct nm_vmseg_shape shape;
	struct nm_vmseg_slot *slot;  /* in my part */
	struct nm_vmseg_cell *cells; /* nr_cells of them */
	uint8_t id[6], token[8];
	uint64_t window_off, window_size;
	pthread_mutex_t mutex; /* of the mailbox */
	uint64_t sequence;
	bool *cell_used;
};

static inline struct nm_vmseg_part *nm_vmseg_own_part(const struct nm_vmseg *segment)
{
	return segment->own.base;
}

static inline const uint8_t *nm_vmseg_seen_part(const struct nm_vmseg *segment, uint32_t part)
{
	return (const uint8_t *)segment->all.base + segment->host.part_off +
	       part * segment->host.part_size;
}

/* A word that is not 0. 0 or -errno with a reason. */
int nm_vmseg_random(uint64_t *ret_word, struct nm_reason *ret_reason);
/* In a child of fork(), which has nothing to say in its parent's name. */
bool nm_vmseg_is_inherited(const struct nm_vmseg *segment);

/* The header of PART as it is now. False: nobody is there, or it makes no sense. */
bool nm_vmseg_know_part(struct nm_vmseg *segment, uint32_t part,
			struct nm_vmseg_part_copy *ret_copy);

#endif
