/* SPDX-License-Identifier: Apache-2.0 */
/* Reading neighbours: their parts, their slots, their windows. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "vmseg/private.h"

bool nm_vmseg_know_part(struct nm_vmseg *segment, uint32_t part,
			struct nm_vmseg_part_copy *ret_copy)
{
	const struct nm_vmseg_part *seen = (const void *)nm_vmseg_seen_part(segment, part);
	struct nm_vmseg_part_copy *known = &segment->parts[part];
	struct nm_vmseg_part header;
	uint64_t generation;

	pthread_mutex_lock(&segment->mutex);
	/* Partner: prepare_part(). */
	generation = atomic_load_explicit(&seen->generation, memory_order_acquire);
	if (generation != known->generation && generation != known->refused) {
		struct nm_vmseg_part_copy now = {.generation = generation};

		/* The checked header must be the stored header. */
		if (nm_vmseg_read_part(nm_vmseg_seen_part(segment, part), part,
				       segment->host.part_size, &header, &now.shape, NULL) ||
		    atomic_load_explicit(&header.generation, memory_order_relaxed) != generation)
			now = (struct nm_vmseg_part_copy){.refused = generation};
		else
			now.vcpu_numa = header.vcpu_numa;
		*known = now;
	}
	*ret_copy = *known;
	pthread_mutex_unlock(&segment->mutex);
	return generation && ret_copy->generation == generation;
}

static void complete(struct nm_vmseg_peer *peer, uint32_t part, uint32_t slot,
		     const struct nm_vmseg_part_copy *copy)
{
	peer->address.part = part;
	peer->address.slot = slot;
	peer->address.part_generation = copy->generation;
}

bool nm_vmseg_next(struct nm_vmseg *segment, uint64_t *cursor, struct nm_vmseg_peer *ret_peer)
{
	uint64_t part = *cursor / NM_VMSEG_MAX_SLOTS, slot = *cursor % NM_VMSEG_MAX_SLOTS;
	struct nm_vmseg_part_copy copy;

	for (; part < segment->host.nr_parts; part++, slot = 0) {
		if (!nm_vmseg_know_part(segment, (uint32_t)part, &copy))
			continue;
		for (; slot < copy.shape.nr_slots; slot++) {
			if (nm_vmseg_read_slot(nm_vmseg_seen_part(segment, (uint32_t)part),
					       &copy.shape, (uint32_t)slot, ret_peer))
				continue;
			complete(ret_peer, (uint32_t)part, (uint32_t)slot, &copy);
			*cursor = part * NM_VMSEG_MAX_SLOTS + slot + 1;
			return true;
		}
	}
	*cursor = part * NM_VMSEG_MAX_SLOTS;
	return false;
}

static int find_slot(struct nm_vmseg *segment, const struct nm_vmseg_address *address,
		     const struct nm_vmseg_slot **ret_slot)
{
	struct nm_vmseg_part_copy copy;

	if (address->part >= segment->host.nr_parts)
		return -EINVAL;
	if (!nm_vmseg_know_part(segment, address->part, &copy) ||
	    copy.generation != address->part_generation)
		return -ESTALE;
	if (address->slot >= copy.shape.nr_slots)
		return -EINVAL;
	*ret_slot = (const struct nm_vmseg_slot *)(nm_vmseg_seen_part(segment, address->part) +
						   copy.shape.slots_off) +
		    address->slot;
	return 0;
}

int nm_vmseg_tie(struct nm_vmseg *segment, const struct nm_vmseg_address *address,
		 struct nm_vmseg_tie *ret_tie)
{
	const struct nm_vmseg_slot *slot;
	int err = find_slot(segment, address, &slot);

	if (err)
		return err;
	ret_tie->part_generation = &((const struct nm_vmseg_part *)(const void *)nm_vmseg_seen_part(
					     segment, address->part))
					    ->generation;
	ret_tie->control = &slot->control;
	ret_tie->heartbeat = &slot->heartbeat;
	ret_tie->expected_part = address->part_generation;
	ret_tie->expected_slot = address->generation;
	return nm_vmseg_is_tied(ret_tie) ? 0 : -ESTALE;
}

bool nm_vmseg_is_gone(const struct nm_vmseg_tie *tie)
{
	return nm_vmseg_state_of(atomic_load_explicit(tie->control, memory_order_acquire)) ==
	       NM_VMSEG_GONE;
}

int nm_vmseg_look(struct nm_vmseg *segment, const struct nm_vmseg_address *address,
		  enum nm_vmseg_state *ret_state, uint64_t *ret_heartbeat)
{
	const struct nm_vmseg_slot *slot;
	uint64_t control;
	int err = find_slot(segment, address, &slot);

	if (err)
		return err;
	control = atomic_load_explicit(&slot->control, memory_order_acquire);
	if (nm_vmseg_generation_of(control) != address->generation ||
	    nm_vmseg_state_of(control) > NM_VMSEG_GONE)
		return -ESTALE;
	*ret_state = (enum nm_vmseg_state)nm_vmseg_state_of(control);
	*ret_heartbeat = atomic_load_explicit(&slot->heartbeat, memory_order_relaxed);
	return 0;
}

enum nm_vmseg_state nm_vmseg_part_state(const struct nm_vmseg *segment, uint32_t part)
{
	const struct nm_vmseg_part *seen = (const void *)nm_vmseg_seen_part(segment, part);
	/* Partner: set_part_state(). */
	uint32_t state = atomic_load_explicit(&seen->state, memory_order_acquire);

	return state == NM_VMSEG_QUIESCE || state == NM_VMSEG_FROZEN ? (enum nm_vmseg_state)state :
								       NM_VMSEG_RUN;
}

int nm_vmseg_view(struct nm_vmseg *segment, const struct nm_vmseg_peer *peer,
		  struct nm_foreign_window *ret_window, struct nm_reason *ret_reason)
{
	/* The numbers were checked when the slot was read. */
	return nm_window_view(nm_vmseg_seen_part(segment, peer->address.part) + peer->window_off,
			      peer->window_size, ret_window, ret_reason);
}

bool nm_vmseg_is_far(struct nm_vmseg *segment, uint32_t part, struct nm_reason *ret_words)
{
	const struct nm_vmseg_config *mine = &segment->config;
	struct nm_vmseg_part_copy its;
	uint8_t near, far;

	nm_reason_set(ret_words, "%s", "");
	if (mine->vcpu_numa < 0 || mine->vcpu_numa >= NM_VMSEG_MAX_NUMA ||
	    part >= segment->host.nr_parts || !nm_vmseg_know_part(segment, part, &its) ||
	    its.vcpu_numa < 0 || its.vcpu_numa >= NM_VMSEG_MAX_NUMA)
		return false;
	near = mine->distances[mine->vcpu_numa];
	far = mine->distances[its.vcpu_numa];
	if (!near || !far)
		return false;
	nm_reason_set(ret_words, "NUMA node %d, own node %d: distance %u, own %u", its.vcpu_numa,
		      mine->vcpu_numa, far, near);
	return far > near;
}

bool nm_vmseg_lease_holds(struct nm_vmseg_lease *lease, uint64_t heartbeat, uint64_t now_ns,
			  uint64_t lease_ns)
{
	if (!lease->since_ns || heartbeat != lease->heartbeat) {
		lease->heartbeat = heartbeat;
		lease->since_ns = now_ns ? now_ns : 1;
		return true;
	}
	return now_ns - lease->since_ns < lease_ns;
}
