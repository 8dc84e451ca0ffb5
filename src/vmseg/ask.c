/* SPDX-License-Identifier: Apache-2.0 */
/* The states QUIESCE and FROZEN of the own part and of the own slots (docs/design/migration.md). */
#include <errno.h>

#include "base/fault.h"
#include "vmseg/private.h"

#define LOCK_WAIT_MS 5000

/* Without the lock file the answer may be out of date at once. */
static uint32_t own_part_state(const struct nm_vmseg *segment)
{
	return atomic_load_explicit(&nm_vmseg_own_part(segment)->state, memory_order_acquire);
}

static bool stays(const struct nm_vmseg *segment)
{
	uint32_t state = own_part_state(segment);

	return state != NM_VMSEG_QUIESCE && state != NM_VMSEG_FROZEN;
}

int nm_vmseg_check_stays(const struct nm_vmseg *segment, struct nm_reason *ret_reason)
{
	if (stays(segment))
		return 0;
	nm_reason_set(ret_reason,
		      "this machine is asked to leave the segment (its part is in state %s); "
		      "`nearmetal-segment run` takes that back",
		      nm_vmseg_state_name(own_part_state(segment)));
	return -EBUSY;
}

static int check_follows(const struct nm_vmseg *segment, enum nm_vmseg_state state,
			 struct nm_reason *ret_reason)
{
	uint32_t now = own_part_state(segment);

	if (state != NM_VMSEG_RUN && state != NM_VMSEG_QUIESCE && state != NM_VMSEG_FROZEN) {
		nm_reason_set(ret_reason, "a machine cannot be asked for state %s",
			      nm_vmseg_state_name(state));
		return -EINVAL;
	}
	if (nm_vmseg_state_may_follow(now, state))
		return 0;
	nm_reason_set(ret_reason, "part %u is in state %s, and %s may not follow: %s",
		      segment->config.part, nm_vmseg_state_name(now), nm_vmseg_state_name(state),
		      state == NM_VMSEG_FROZEN && now == NM_VMSEG_RUN ? "ask with quiesce first" :
									"begin again with run");
	return -EINVAL;
}

/* Check that every endpoint has left. Dead ones count as gone. */
static int check_left(struct nm_vmseg *segment, const struct nm_vmseg_shape *shape,
		      struct nm_reason *ret_reason)
{
	uint32_t nr = 0, first = 0, state_of_first = 0;

	for (uint32_t i = 0; i < shape->nr_slots; i++) {
		struct nm_vmseg_slot *slot = nm_vmseg_own_slot(segment, shape, i);
		uint32_t state = nm_vmseg_state_of(nm_vmseg_control_of(slot));

		if (state == NM_VMSEG_FREE || state == NM_VMSEG_GONE)
			continue;
		if (!nm_vmseg_lock_is_held(&segment->lock, i)) {
			nm_vmseg_set_gone(slot);
		} else if (state != NM_VMSEG_FROZEN && !nr++) {
			first = i;
			state_of_first = state;
		}
	}
	if (!nr)
		return 0;
	nm_reason_set(
		ret_reason,
		"%u endpoints of this machine still use the segment; the first is in slot %u, "
		"in state %s",
		nr, first, nm_vmseg_state_name(state_of_first));
	return -EBUSY;
}

static void set_part_state(struct nm_vmseg *segment, enum nm_vmseg_state state)
{
	struct nm_vmseg_part *part = nm_vmseg_own_part(segment);

	if (own_part_state(segment) == (uint32_t)state)
		return;
	atomic_fetch_add_explicit(&part->epoch, 1, memory_order_relaxed);
	NM_FAULT("part-ask-before");
	/* Partner: nm_vmseg_part_state(). */
	atomic_store_explicit(&part->state, state, memory_order_release);
	NM_FAULT("part-ask-after");
	/* Nothing is written after FROZEN, and neighbours look without a knock soon enough. */
	if (state != NM_VMSEG_FROZEN)
		nm_vmseg_knock(segment);
}

int nm_vmseg_ask(struct nm_vmseg *segment, enum nm_vmseg_state state, struct nm_reason *ret_reason)
{
	struct nm_vmseg_shape shape;
	uint64_t generation;
	int err;

	err = nm_vmseg_lock_take(&segment->lock, LOCK_WAIT_MS, ret_reason);
	if (err)
		return err == -EBUSY ? -EAGAIN : err;
	err = nm_vmseg_enter_part(segment, &shape, &generation, ret_reason);
	if (err == -EBUSY)
		err = -EAGAIN;
	if (!err)
		err = check_follows(segment, state, ret_reason);
	if (!err && state == NM_VMSEG_FROZEN)
		err = check_left(segment, &shape, ret_reason);
	if (!err)
		set_part_state(segment, state);
	nm_vmseg_lock_give(&segment->lock);
	return err;
}

uint32_t nm_vmseg_own_state(const struct nm_vmseg_claim *claim)
{
	uint64_t control = nm_vmseg_control_of(claim->slot);

	return nm_vmseg_generation_of(control) == claim->address.generation ?
		       nm_vmseg_state_of(control) :
		       NM_VMSEG_GONE;
}

void nm_vmseg_leave(struct nm_vmseg_claim *claim)
{
	if (nm_vmseg_own_state(claim) == NM_VMSEG_GONE)
		return;
	NM_FAULT("slot-leave-before");
	nm_vmseg_set_state(claim, NM_VMSEG_FROZEN);
	NM_FAULT("slot-leave-after");
}

int nm_vmseg_return(struct nm_vmseg_claim *claim)
{
	struct nm_vmseg *segment = claim->segment;
	int err;

	/* The lock: between a look at the part and this store the part could become FROZEN. */
	err = nm_vmseg_lock_take(&segment->lock, 0, NULL);
	if (err)
		return -EBUSY;
	err = stays(segment) ? 0 : -EBUSY;
	if (nm_vmseg_own_state(claim) == NM_VMSEG_GONE)
		err = -ESTALE;
	if (!err) {
		NM_FAULT("slot-return-before");
		/* A neighbour that sees the state sees a heartbeat that went on. */
		atomic_fetch_add_explicit(&claim->slot->heartbeat, 1, memory_order_relaxed);
		nm_vmseg_set_state(claim, NM_VMSEG_RUN);
		NM_FAULT("slot-return-after");
	}
	nm_vmseg_lock_give(&segment->lock);
	return err;
}
