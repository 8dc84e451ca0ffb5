/* SPDX-License-Identifier: Apache-2.0 */
#include "vmseg/check.h"

#include <errno.h>
#include <string.h>

#include "base/arith.h"
#include "base/state.h"
#include "shm/foreign.h"

#define PAGE UINT64_C(4096)
/* A slot that changes this often in a row is not valid. */
#define MAX_LOOKS 4

static int refuse(struct nm_reason *ret_reason, const char *what)
{
	nm_reason_set(ret_reason, "the segment is damaged: %s", what);
	return -EBADMSG;
}

static bool part_size_is_sound(uint64_t part_size)
{
	return nm_is_power_of_two(part_size) && part_size >= NM_VMSEG_MIN_PART_SIZE &&
	       part_size <= NM_VMSEG_MAX_PART_SIZE;
}

int nm_vmseg_host_init(uint32_t nr_parts, uint64_t part_size,
		       const uint8_t token[NM_VMSEG_TOKEN_LEN], struct nm_vmseg_host *ret_host,
		       struct nm_reason *ret_reason)
{
	struct nm_vmseg_host host = {
		.magic = NM_VMSEG_HOST_MAGIC,
		.version = NM_VMSEG_VERSION,
		.part_off = NM_VMSEG_ALIGN,
		.part_size = part_size,
		.nr_parts = nr_parts,
		.state = NM_VMSEG_RUN,
	};

	if (nr_parts < 1 || nr_parts > NM_VMSEG_MAX_PARTS) {
		nm_reason_set(ret_reason, "%u parts: a segment has 1 to %u", nr_parts,
			      NM_VMSEG_MAX_PARTS);
		return -EINVAL;
	}
	if (!part_size_is_sound(part_size)) {
		nm_reason_set(ret_reason, "parts of %llu bytes: use a power of two from 2M to 64G",
			      (unsigned long long)part_size);
		return -EINVAL;
	}
	/* At most 2^8 times 2^36. */
	host.size = host.part_off + nr_parts * part_size;
	if (host.size > NM_VMSEG_MAX_SIZE) {
		nm_reason_set(ret_reason, "%llu bytes in all: a segment has at most 1T",
			      (unsigned long long)host.size);
		return -EINVAL;
	}
	memcpy(host.token, token, sizeof(host.token));
	*ret_host = host;
	return 0;
}

int nm_vmseg_host_check(const struct nm_vmseg_host *host, uint64_t mapped,
			struct nm_reason *ret_reason)
{
	if (host->magic != NM_VMSEG_HOST_MAGIC) {
		nm_reason_set(
			ret_reason,
			"it does not begin with a host page (no magic number): create it with "
			"`nearmetal-segment create` before the virtual machines start");
		return -EBADMSG;
	}
	if (host->version != NM_VMSEG_VERSION) {
		nm_reason_set(ret_reason,
			      "the segment has layout version %u, not %u: create it with the "
			      "release of nearmetal that runs in the virtual machines",
			      host->version, NM_VMSEG_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (host->features) {
		nm_reason_set(ret_reason, "the segment needs unknown features 0x%x",
			      host->features);
		return -EPROTONOSUPPORT;
	}
	if (host->nr_parts < 1 || host->nr_parts > NM_VMSEG_MAX_PARTS)
		return refuse(ret_reason, "number of parts");
	if (!part_size_is_sound(host->part_size))
		return refuse(ret_reason, "size of the parts");
	/* No overflow: at most 2^40 plus 2^8 times 2^36. */
	if (host->part_off < NM_VMSEG_HOST_SIZE || host->part_off % NM_VMSEG_ALIGN ||
	    host->part_off > NM_VMSEG_MAX_SIZE || host->size > NM_VMSEG_MAX_SIZE ||
	    host->size != host->part_off + host->nr_parts * host->part_size)
		return refuse(ret_reason, "place of the parts");
	if (host->size > mapped) {
		nm_reason_set(ret_reason,
			      "the segment has %llu bytes but only %llu are mapped: the file was "
			      "truncated, or the device is smaller",
			      (unsigned long long)host->size, (unsigned long long)mapped);
		return -EBADMSG;
	}
	return 0;
}

void nm_vmseg_shape_init(uint64_t part_size, struct nm_vmseg_shape *ret_shape)
{
	uint64_t slots = part_size / NM_VMSEG_BYTES_PER_SLOT, end;

	if (slots < NM_VMSEG_MIN_SLOTS)
		slots = NM_VMSEG_MIN_SLOTS;
	if (slots > NM_VMSEG_NR_SLOTS_MAX)
		slots = NM_VMSEG_NR_SLOTS_MAX;
	ret_shape->part_size = part_size;
	ret_shape->nr_slots = (uint32_t)slots;
	ret_shape->nr_cells = NM_VMSEG_NR_CELLS;
	ret_shape->slots_off = NM_VMSEG_SCRATCH_OFF + NM_VMSEG_SCRATCH_SIZE;
	end = ret_shape->slots_off + slots * sizeof(struct nm_vmseg_slot);
	ret_shape->cells_off = (uint32_t)nm_align_up(end, PAGE);
	end = ret_shape->cells_off + slots * NM_VMSEG_NR_CELLS * sizeof(struct nm_vmseg_cell);
	ret_shape->space_off = (uint32_t)nm_align_up(end, NM_VMSEG_GRANULE);
}

int nm_vmseg_part_check(const struct nm_vmseg_part *part, uint32_t index, uint64_t part_size,
			struct nm_vmseg_shape *ret_shape, struct nm_reason *ret_reason)
{
	struct nm_vmseg_shape shape = {
		.part_size = part_size,
		.nr_slots = part->nr_slots,
		.nr_cells = part->nr_cells,
		.slots_off = part->slots_off,
		.cells_off = part->cells_off,
		.space_off = part->space_off,
	};
	uint64_t slots_end, cells_end;

	if (!atomic_load_explicit(&part->generation, memory_order_relaxed)) {
		nm_reason_set(ret_reason, "part %u was never used", index);
		return -ENOENT;
	}
	if (part->magic != NM_VMSEG_PART_MAGIC)
		return refuse(ret_reason, "no magic number in a part");
	if (part->version != NM_VMSEG_VERSION || part->features != NM_VMSEG_FEATURES) {
		nm_reason_set(ret_reason,
			      "part %u has layout version %u and features 0x%x, not version %u and "
			      "0x%x: use one release of nearmetal in all virtual machines",
			      index, part->version, part->features, NM_VMSEG_VERSION,
			      NM_VMSEG_FEATURES);
		return -EPROTONOSUPPORT;
	}
	if (part->index != index)
		return refuse(ret_reason, "a part has another part's number");
	if (shape.nr_slots < 1 || shape.nr_slots > NM_VMSEG_MAX_SLOTS || shape.nr_cells < 1 ||
	    shape.nr_cells > NM_VMSEG_MAX_CELLS)
		return refuse(ret_reason, "number of slots or cells");
	slots_end = shape.slots_off + (uint64_t)shape.nr_slots * sizeof(struct nm_vmseg_slot);
	cells_end = shape.cells_off +
		    (uint64_t)shape.nr_slots * shape.nr_cells * sizeof(struct nm_vmseg_cell);
	if (shape.slots_off < NM_VMSEG_SCRATCH_OFF + NM_VMSEG_SCRATCH_SIZE ||
	    shape.slots_off % NM_CACHE_LINE || shape.cells_off < slots_end ||
	    shape.cells_off % NM_CACHE_LINE || shape.space_off < cells_end ||
	    shape.space_off % NM_VMSEG_GRANULE || shape.space_off > part_size)
		return refuse(ret_reason, "places in a part overlap or are outside");
	*ret_shape = shape;
	return 0;
}

int nm_vmseg_slot_check(const struct nm_vmseg_slot *slot, uint64_t control,
			const struct nm_vmseg_shape *shape, struct nm_vmseg_peer *ret_peer)
{
	uint32_t state = nm_vmseg_state_of(control);
	uint64_t end;

	if (state <= NM_VMSEG_INIT)
		return -ENOENT;
	if (state > NM_VMSEG_GONE)
		return -EBADMSG;
	if (slot->window_off < shape->space_off || slot->window_off % NM_VMSEG_GRANULE ||
	    slot->window_size < sizeof(struct nm_window_header) ||
	    !nm_add_u64(slot->window_off, slot->window_size, &end) || end > shape->part_size)
		return -EBADMSG;
	ret_peer->address.generation = nm_vmseg_generation_of(control);
	ret_peer->state = (enum nm_vmseg_state)state;
	ret_peer->heartbeat = atomic_load_explicit(&slot->heartbeat, memory_order_relaxed);
	memcpy(ret_peer->id, slot->id, sizeof(ret_peer->id));
	ret_peer->window_off = slot->window_off;
	ret_peer->window_size = slot->window_size;
	return 0;
}

int nm_vmseg_read_part(const uint8_t *part, uint32_t index, uint64_t part_size,
		       struct nm_vmseg_part *ret_header, struct nm_vmseg_shape *ret_shape,
		       struct nm_reason *ret_reason)
{
	nm_copy_words(ret_header, part, sizeof(*ret_header));
	return nm_vmseg_part_check(ret_header, index, part_size, ret_shape, ret_reason);
}

int nm_vmseg_read_slot(const uint8_t *part, const struct nm_vmseg_shape *shape, uint32_t index,
		       struct nm_vmseg_peer *ret_peer)
{
	const struct nm_vmseg_slot *slot =
		(const struct nm_vmseg_slot *)(part + shape->slots_off) + index;
	struct nm_vmseg_slot copy;
	uint64_t before, after;

	for (int i = 0; i < MAX_LOOKS; i++) {
		/* Partner: nm_vmseg_set_control(). */
		before = atomic_load_explicit(&slot->control, memory_order_acquire);
		if (nm_vmseg_state_of(before) <= NM_VMSEG_INIT)
			return -ENOENT;
		nm_copy_words(&copy, slot, sizeof(copy));
		atomic_thread_fence(memory_order_acquire);
		after = atomic_load_explicit(&slot->control, memory_order_relaxed);
		if (before == after)
			return nm_vmseg_slot_check(&copy, before, shape, ret_peer);
	}
	return -ENOENT;
}

bool nm_vmseg_state_may_follow(uint32_t from, enum nm_vmseg_state to)
{
	static const uint32_t transitions[] = {
		[NM_VMSEG_RUN] = NM_STATE(NM_VMSEG_QUIESCE),
		[NM_VMSEG_QUIESCE] = NM_STATE(NM_VMSEG_QUIESCE) | NM_STATE(NM_VMSEG_FROZEN),
		[NM_VMSEG_FROZEN] = NM_STATE(NM_VMSEG_FROZEN),
	};

	/* So RUN also repairs a word that was overwritten. */
	return to == NM_VMSEG_RUN ||
	       (from < NM_ARRAY_SIZE(transitions) && nm_state_may_follow(transitions, from, to));
}

const char *nm_vmseg_state_name(uint32_t state)
{
	static const char *const names[] = {"free", "init", "run", "quiesce", "frozen", "gone"};

	return state < NM_ARRAY_SIZE(names) ? names[state] : "?";
}
