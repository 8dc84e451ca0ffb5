/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots of the own part and room for windows. The slot table itself is the allocator: a slot's
 * bytes belong to the slot while it is held, and for the grace after its end. Always under the lock
 * file, and with the same checks as for foreign parts: a broken process of this VM is as hostile as
 * a neighbour.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "shm/foreign.h"
#include "vmseg/private.h"

#define LOCK_WAIT_MS 5000
/* Windows of dead processes stay for the grace. A little later there really is no room. */
#define ROOM_WAIT_MS (2 * NM_VMSEG_GRACE_MS)
#define ROOM_PAUSE_NS (20 * NM_NS_PER_MS)
/* In this time heartbeats must have advanced, on any machine that is not stopped. */
#define STRANGER_WAIT_MS 1500
/* Slots to check in one call, so that many processes share the work. */
#define BURY_STEP 8

static bool any_held(struct nm_vmseg *segment)
{
	for (uint32_t i = 0; i < NM_VMSEG_MAX_SLOTS; i++)
		if (nm_vmseg_lock_is_held(&segment->lock, i))
			return true;
	return false;
}

/* The sum of the heartbeats that slots advance; 0: no slot does. */
static uint64_t sum_heartbeats(struct nm_vmseg *segment, const struct nm_vmseg_shape *shape)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < shape->nr_slots; i++) {
		struct nm_vmseg_slot *slot = nm_vmseg_own_slot(segment, shape, i);

		if (nm_vmseg_beats(nm_vmseg_state_of(nm_vmseg_control_of(slot))))
			sum += 1 + atomic_load_explicit(&slot->heartbeat, memory_order_relaxed);
	}
	return sum;
}

/*
 * The lock file has no record of this part. After a boot the part is unused. But another container
 * of the VM may have its own lock file, and its processes must not lose their windows.
 */
static int check_strangers(struct nm_vmseg *segment, const struct nm_vmseg_shape *shape,
			   struct nm_reason *ret_reason)
{
	const struct timespec pause = {.tv_nsec = ROOM_PAUSE_NS};
	struct nm_vmseg_tries own, *tries = segment->config.tries ? segment->config.tries : &own;
	uint64_t sum = sum_heartbeats(segment, shape);

	if (tries == &own || !tries->since_ns)
		*tries = (struct nm_vmseg_tries){.heartbeats = sum, .since_ns = nm_clock_ns()};
	while (sum && nm_clock_ns() - tries->since_ns < STRANGER_WAIT_MS * NM_NS_PER_MS &&
	       sum == tries->heartbeats) {
		if (tries != &own) {
			nm_reason_set(ret_reason, "the part may have other users: looked at again");
			return -EBUSY;
		}
		nanosleep(&pause, NULL);
		sum = sum_heartbeats(segment, shape);
	}
	tries->since_ns = 0;
	if (!sum || sum == tries->heartbeats)
		return 0;
	nm_reason_set(ret_reason,
		      "other processes use this part but do not lock %s: bind the directory of the "
		      "lock file into every container of this machine",
		      segment->config.lock);
	return -EBUSY;
}

static void prepare_part(struct nm_vmseg *segment, struct nm_vmseg_shape *ret_shape,
			 uint64_t generation, uint64_t first)
{
	struct nm_vmseg_part *part = nm_vmseg_own_part(segment);
	struct nm_vmseg_shape shape;

	nm_vmseg_shape_init(segment->host.part_size, &shape);
	/* Neighbours that look meanwhile see no part. */
	atomic_store_explicit(&part->generation, 0, memory_order_release);
	atomic_store_explicit(&part->state, NM_VMSEG_INIT, memory_order_release);
	NM_FAULT("part-hidden");
	for (uint32_t i = 0; i < shape.nr_slots; i++) {
		struct nm_vmseg_slot *slot = nm_vmseg_own_slot(segment, &shape, i);

		memset((void *)slot, 0, sizeof(*slot));
		nm_vmseg_set_control(slot, first, NM_VMSEG_FREE);
	}
	part->magic = NM_VMSEG_PART_MAGIC;
	part->version = NM_VMSEG_VERSION;
	part->features = NM_VMSEG_FEATURES;
	part->index = segment->config.part;
	part->nr_slots = shape.nr_slots;
	part->nr_cells = shape.nr_cells;
	part->slots_off = shape.slots_off;
	part->cells_off = shape.cells_off;
	part->space_off = shape.space_off;
	part->numa = segment->config.numa;
	part->vcpu_numa = segment->config.vcpu_numa;
	atomic_store_explicit(&part->state, NM_VMSEG_RUN, memory_order_relaxed);
	NM_FAULT("part-made");
	/* Partner: nm_vmseg_know_part(). */
	atomic_store_explicit(&part->generation, generation, memory_order_release);
	NM_FAULT("part-shown");
	*ret_shape = shape;
}

int nm_vmseg_enter_part(struct nm_vmseg *segment, struct nm_vmseg_shape *ret_shape,
			uint64_t *ret_generation, struct nm_reason *ret_reason)
{
	struct nm_vmseg_record record;
	struct nm_vmseg_part copy;
	uint64_t first;
	bool sound;
	int err;

	err = nm_vmseg_record_read(&segment->lock, &record, ret_reason);
	if (err)
		return err;
	nm_copy_words(&copy, segment->own.base, sizeof(copy));
	err = nm_vmseg_part_check(&copy, segment->config.part, segment->host.part_size, ret_shape,
				  ret_reason);
	sound = !err;
	if (sound && record.part_generation &&
	    record.part_generation == atomic_load(&copy.generation)) {
		*ret_generation = record.part_generation;
		return 0;
	}
	if (record.part_generation && any_held(segment)) {
		/* Processes of another release run in this machine. */
		if (err == -EPROTONOSUPPORT)
			return err;
		nm_reason_set(
			ret_reason,
			"this machine's part of the segment was overwritten while in use: end "
			"all its processes and start again");
		return -EBADMSG;
	}
	err = sound && !record.part_generation ? check_strangers(segment, ret_shape, ret_reason) :
						 0;
	if (err)
		return err;
	/* Both are random, so numbers from before the boot do not return. */
	err = nm_vmseg_random(&record.part_generation, ret_reason);
	if (!err)
		err = nm_vmseg_random(&first, ret_reason);
	if (err)
		return err;
	*ret_generation = record.part_generation;
	prepare_part(segment, ret_shape, record.part_generation, first >> 16);
	return nm_vmseg_record_write(&segment->lock, &record, ret_reason);
}

/* A slot, as the allocator sees it. */
struct extent {
	uint64_t off, end; /* end 0: it takes no room */
	bool free;	   /* the slot may be taken */
	bool resting;	   /* the slot will be free after the grace */
	uint64_t gone_ns;  /* of a slot that was used */
};

static bool rests(struct nm_vmseg_slot *slot, uint64_t now)
{
	uint64_t gone = atomic_load_explicit(&slot->gone_ns, memory_order_relaxed);

	/* A later time comes from another clock: restart the grace. */
	if (gone > now)
		atomic_store_explicit(&slot->gone_ns, now, memory_order_relaxed);
	return gone > now || now - gone < NM_VMSEG_GRACE_MS * NM_NS_PER_MS;
}

/* Survey slot INDEX. Sets GONE if its owner has died. */
static int survey_slot(struct nm_vmseg *segment, const struct nm_vmseg_shape *shape, uint32_t index,
		       struct extent *ret_extent)
{
	struct nm_vmseg_slot *slot = nm_vmseg_own_slot(segment, shape, index);
	uint64_t control = nm_vmseg_control_of(slot), size = slot->window_size,
		 off = slot->window_off;
	uint32_t state = nm_vmseg_state_of(control);
	bool held = nm_vmseg_lock_is_held(&segment->lock, index);
	uint64_t end;

	*ret_extent = (struct extent){0};
	if (state == NM_VMSEG_FREE) {
		/* Still held: its owner uses an earlier segment. */
		ret_extent->free = !held;
		return 0;
	}
	if (off < shape->space_off || off % NM_VMSEG_GRANULE || !nm_add_u64(off, size, &end) ||
	    end > shape->part_size || state > NM_VMSEG_GONE) {
		if (held)
			return -EBADMSG;
		nm_vmseg_set_control(slot, nm_vmseg_generation_of(control) + 1, NM_VMSEG_FREE);
		ret_extent->free = true;
		return 0;
	}
	if (!held && state != NM_VMSEG_GONE)
		nm_vmseg_set_gone(slot);
	ret_extent->resting = !held && rests(slot, nm_clock_ns());
	ret_extent->free = !held && !ret_extent->resting;
	ret_extent->gone_ns = atomic_load_explicit(&slot->gone_ns, memory_order_relaxed);
	if (!ret_extent->free) {
		ret_extent->off = off;
		ret_extent->end = nm_align_up(end, NM_VMSEG_GRANULE);
	}
	return 0;
}

/* First fit after the space's start or after any extent. 0: no room. */
static uint64_t find_room(const struct extent *extents, const struct nm_vmseg_shape *shape,
			  uint64_t size)
{
	uint64_t best = 0;

	for (uint32_t i = 0; i <= shape->nr_slots; i++) {
		uint64_t at = i < shape->nr_slots ? extents[i].end : shape->space_off;
		bool fits = at && at <= shape->part_size && shape->part_size - at >= size;

		for (uint32_t j = 0; fits && j < shape->nr_slots; j++)
			fits = at >= extents[j].end || at + size <= extents[j].off;
		if (fits && (!best || at < best))
			best = at;
	}
	return best;
}

/* The slot that has been free longest; nr_slots: none. */
static uint32_t find_slot(const struct extent *extents, uint32_t nr_slots)
{
	uint32_t best = nr_slots;

	for (uint32_t i = 0; i < nr_slots; i++)
		if (extents[i].free &&
		    (best == nr_slots || extents[i].gone_ns < extents[best].gone_ns))
			best = i;
	return best;
}

static void write_slot(struct nm_vmseg_claim *claim, const struct nm_vmseg_shape *shape,
		       uint32_t index, uint64_t generation)
{
	struct nm_vmseg_slot *slot = nm_vmseg_own_slot(claim->segment, shape, index);

	nm_vmseg_set_control(slot, generation, NM_VMSEG_INIT);
	atomic_thread_fence(memory_order_seq_cst);
	NM_FAULT("slot-taken");
	slot->window_off = claim->window_off;
	slot->window_size = claim->window_size;
	memcpy(slot->id, claim->id, sizeof(slot->id));
	atomic_store_explicit(&slot->heartbeat, 0, memory_order_relaxed);
	atomic_store_explicit(&slot->posted, 0, memory_order_relaxed);
	atomic_store_explicit(&slot->gone_ns, 0, memory_order_relaxed);
	claim->slot = slot;
	claim->shape = *shape;
	claim->address.slot = index;
	claim->address.generation = generation;
	claim->cells =
		(struct nm_vmseg_cell *)((uint8_t *)claim->segment->own.base + shape->cells_off) +
		(size_t)index * shape->nr_cells;
}

/* Under the lock file. -EAGAIN: there will be room after the grace. */
static int allocate(struct nm_vmseg_claim *claim, struct nm_reason *ret_reason)
{
	struct nm_vmseg *segment = claim->segment;
	struct extent extents[NM_VMSEG_MAX_SLOTS];
	uint64_t size = nm_align_up(claim->window_size, NM_VMSEG_GRANULE);
	struct nm_vmseg_shape shape;
	uint32_t index, nr_resting = 0, nr_used = 0;
	int err;

	err = nm_vmseg_enter_part(segment, &shape, &claim->address.part_generation, ret_reason);
	if (!err)
		err = nm_vmseg_check_stays(segment, ret_reason);
	for (uint32_t i = 0; !err && i < shape.nr_slots; i++) {
		err = survey_slot(segment, &shape, i, &extents[i]);
		if (err)
			nm_reason_set(
				ret_reason,
				"slot %u of this machine's part was overwritten while in use: "
				"end all its processes and start again",
				i);
		nr_resting += extents[i].resting;
		nr_used += !extents[i].free;
	}
	if (err)
		return err;
	index = find_slot(extents, shape.nr_slots);
	claim->window_off = find_room(extents, &shape, size);
	if (index == shape.nr_slots || !claim->window_off) {
		nm_reason_set(
			ret_reason,
			"%s for a window of %llu KiB in this part of the segment (%u endpoints): "
			"use larger parts or set NEARMETAL_SEGMENT_ENDPOINTS",
			index == shape.nr_slots ? "no slot is left" : "there is no room",
			(unsigned long long)(size >> 10), nr_used);
		return nr_resting ? -EAGAIN : -ENOSPC;
	}
	err = nm_vmseg_lock_hold(&segment->lock, index);
	if (err) {
		nm_reason_set(ret_reason, "cannot lock slot %u of the segment: %s", index,
			      strerror(-err));
		return err;
	}
	NM_FAULT("slot-held");
	write_slot(claim, &shape, index,
		   nm_vmseg_generation_of(
			   nm_vmseg_control_of(nm_vmseg_own_slot(segment, &shape, index))) +
			   1);
	return 0;
}

static int allocate_in_time(struct nm_vmseg_claim *claim, struct nm_reason *ret_reason)
{
	const struct timespec pause = {.tv_nsec = ROOM_PAUSE_NS};
	uint64_t start = nm_clock_ns();
	int err;

	for (;;) {
		err = nm_vmseg_lock_take(&claim->segment->lock,
					 nm_vmseg_patience(claim->segment, LOCK_WAIT_MS),
					 ret_reason);
		if (err)
			return err;
		err = allocate(claim, ret_reason);
		nm_vmseg_lock_give(&claim->segment->lock);
		if (err == -EAGAIN && claim->segment->config.tries)
			return -EBUSY;
		if (err != -EAGAIN)
			return err;
		if (nm_clock_ns() - start > ROOM_WAIT_MS * NM_NS_PER_MS)
			return -ENOSPC;
		nanosleep(&pause, NULL);
	}
}

static void clear_memory(struct nm_vmseg_claim *claim)
{
	/* Neither neighbours nor this process may read data of an earlier owner. */
	for (uint32_t i = 0; i < claim->shape.nr_cells; i++)
		atomic_store_explicit(&claim->cells[i].sequence, 0, memory_order_relaxed);
	memset((void *)claim->cells, 0, claim->shape.nr_cells * sizeof(*claim->cells));
	memset((uint8_t *)claim->segment->own.base + claim->window_off, 0, claim->window_size);
}

int nm_vmseg_claim(struct nm_vmseg *segment, const uint8_t id[6], uint64_t window_size,
		   struct nm_vmseg_claim **ret_claim, struct nm_reason *ret_reason)
{
	struct nm_vmseg_claim *claim;
	int err;

	if (window_size < sizeof(struct nm_window_header) || window_size > segment->facts.space) {
		nm_reason_set(ret_reason, "a window of %llu bytes never fits into a part of %llu",
			      (unsigned long long)window_size,
			      (unsigned long long)segment->facts.space);
		return -ENOSPC;
	}
	claim = calloc(1, sizeof(*claim));
	if (claim)
		claim->cell_used = calloc(NM_VMSEG_MAX_CELLS, sizeof(*claim->cell_used));
	if (!claim || !claim->cell_used) {
		free(claim);
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	claim->segment = segment;
	claim->window_size = window_size;
	claim->address.part = segment->config.part;
	memcpy(claim->id, id, sizeof(claim->id));
	err = allocate_in_time(claim, ret_reason);
	if (err) {
		free(claim->cell_used);
		free(claim);
		return err;
	}
	pthread_mutex_init(&claim->mutex, NULL);
	NM_FAULT("slot-filled");
	clear_memory(claim);
	*ret_claim = claim;
	return 0;
}

int nm_vmseg_open(struct nm_vmseg_claim *claim, const struct nm_geometry *geometry,
		  struct nm_window *ret_window, struct nm_reason *ret_reason)
{
	uint8_t *memory = (uint8_t *)claim->segment->own.base + claim->window_off;
	int err;

	if (geometry->size != claim->window_size) {
		nm_reason_set(ret_reason, "the window does not have the claimed size");
		return -EINVAL;
	}
	err = nm_window_place(geometry, claim->id, memory, claim->window_size, ret_window,
			      ret_reason);
	if (err)
		return err;
	nm_window_set_state(ret_window, NM_WINDOW_RUN);
	NM_FAULT("slot-window-made");
	nm_vmseg_set_state(claim, NM_VMSEG_RUN);
	NM_FAULT("slot-shown");
	return 0;
}

const struct nm_vmseg_address *nm_vmseg_own_address(const struct nm_vmseg_claim *claim)
{
	return &claim->address;
}

void nm_vmseg_beat(struct nm_vmseg_claim *claim)
{
	uint32_t state = nm_vmseg_own_state(claim);

	if (state == NM_VMSEG_FROZEN || state == NM_VMSEG_GONE)
		return;
	NM_FAULT("slot-beat");
	atomic_fetch_add_explicit(&claim->slot->heartbeat, 1, memory_order_relaxed);
}

void nm_vmseg_set_state(struct nm_vmseg_claim *claim, enum nm_vmseg_state state)
{
	nm_vmseg_set_control(claim->slot, claim->address.generation, state);
}

void nm_vmseg_release(struct nm_vmseg_claim *claim)
{
	if (!claim)
		return;
	if (!nm_vmseg_is_inherited(claim->segment)) {
		uint64_t own = claim->address.generation;

		/* Not if a process overwrote the table: the slot may have another owner now. */
		if (nm_vmseg_generation_of(nm_vmseg_control_of(claim->slot)) == own) {
			atomic_store_explicit(&claim->slot->gone_ns, nm_clock_ns(),
					      memory_order_relaxed);
			NM_FAULT("slot-gone-before");
			nm_vmseg_set_control(claim->slot, own, NM_VMSEG_GONE);
			NM_FAULT("slot-gone-after");
			nm_vmseg_knock(claim->segment);
		}
		pthread_mutex_lock(&claim->segment->lock.mutex);
		nm_vmseg_lock_drop(&claim->segment->lock, claim->address.slot);
		pthread_mutex_unlock(&claim->segment->lock.mutex);
	}
	pthread_mutex_destroy(&claim->mutex);
	free(claim->cell_used);
	free(claim);
}

unsigned int nm_vmseg_bury(struct nm_vmseg *segment)
{
	struct nm_vmseg_part_copy copy;
	unsigned int nr_buried = 0;

	if (!nm_vmseg_know_part(segment, segment->config.part, &copy) ||
	    nm_vmseg_lock_take(&segment->lock, 0, NULL))
		return 0;
	for (uint32_t i = 0, nr_seen = 0; i < copy.shape.nr_slots && nr_seen < BURY_STEP; i++) {
		uint32_t index = segment->next_buried++ % copy.shape.nr_slots;
		struct nm_vmseg_slot *slot = nm_vmseg_own_slot(segment, &copy.shape, index);
		uint32_t state = nm_vmseg_state_of(nm_vmseg_control_of(slot));

		if (state == NM_VMSEG_FREE || state == NM_VMSEG_GONE || segment->lock.held[index])
			continue;
		nr_seen++;
		if (nm_vmseg_lock_is_held(&segment->lock, index))
			continue;
		nm_vmseg_set_gone(slot);
		nr_buried++;
	}
	nm_vmseg_lock_give(&segment->lock);
	if (nr_buried)
		nm_vmseg_knock(segment);
	return nr_buried;
}
