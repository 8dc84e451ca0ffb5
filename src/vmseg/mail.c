/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between endpoints that share only the segment so far. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "shm/foreign.h"
#include "vmseg/private.h"

static int find_cell(const struct nm_vmseg_claim *claim)
{
	for (uint32_t i = 0; i < claim->shape.nr_cells; i++)
		if (!claim->cell_used[i])
			return (int)i;
	return -1;
}

static void empty_cell(struct nm_vmseg_cell *cell)
{
	atomic_store_explicit(&cell->sequence, 0, memory_order_relaxed);
	/* A reader that copies the next bytes then finds the 0. */
	atomic_thread_fence(memory_order_seq_cst);
}

int nm_vmseg_post(struct nm_vmseg_claim *claim, const struct nm_vmseg_address *to,
		  const void *bytes, size_t len, uint32_t *ret_cell)
{
	struct nm_vmseg_cell *cell;
	int index;

	if (len > NM_VMSEG_MESSAGE_MAX)
		return -EMSGSIZE;
	pthread_mutex_lock(&claim->mutex);
	index = find_cell(claim);
	if (index >= 0) {
		cell = &claim->cells[index];
		claim->cell_used[index] = true;
		empty_cell(cell);
		NM_FAULT("mail-emptied");
		cell->to_part = to->part;
		cell->to_slot = to->slot;
		cell->to_part_generation = to->part_generation;
		cell->to_generation = to->generation;
		cell->len = (uint32_t)len;
		memset(cell->bytes, 0, sizeof(cell->bytes));
		memcpy(cell->bytes, bytes, len);
		NM_FAULT("mail-written");
		/* Partners: take_from_slot() and nm_vmseg_knocked(), in the opposite order. */
		atomic_store_explicit(&cell->sequence, ++claim->sequence, memory_order_release);
		NM_FAULT("mail-sealed");
		atomic_store_explicit(&claim->slot->posted, claim->sequence, memory_order_release);
		NM_FAULT("mail-posted");
		nm_vmseg_knock(claim->segment);
		NM_FAULT("mail-knocked");
	}
	pthread_mutex_unlock(&claim->mutex);
	if (index < 0)
		return -EAGAIN;
	*ret_cell = (uint32_t)index;
	return 0;
}

void nm_vmseg_retract(struct nm_vmseg_claim *claim, uint32_t cell)
{
	pthread_mutex_lock(&claim->mutex);
	if (cell < claim->shape.nr_cells && claim->cell_used[cell]) {
		NM_FAULT("mail-retract");
		empty_cell(&claim->cells[cell]);
		claim->cell_used[cell] = false;
	}
	pthread_mutex_unlock(&claim->mutex);
}

/* Messages taken from one slot. */
struct sender {
	uint64_t part_generation, generation;
	uint64_t taken; /* all messages up to this one were checked */
};

/* The mailboxes of a part. A walk through them belongs to one value of the knock. */
struct part_box {
	uint64_t knock; /* its value before the last walk */
	struct sender *senders;
	uint32_t nr_senders;
	/* position of the walk */
	bool walking;
	uint32_t slot;
	uint32_t nr_taken; /* from this slot, on this walk */
	uint64_t upto;	   /* `posted` of this slot when the walk reached it; 0: not yet */
};

struct nm_vmseg_inbox {
	struct nm_vmseg_claim *claim;
	struct part_box *boxes; /* of each part */
	uint32_t part;		/* of the last message */
};

struct nm_vmseg_inbox *nm_vmseg_inbox_create(struct nm_vmseg_claim *claim)
{
	struct nm_vmseg_inbox *inbox = calloc(1, sizeof(*inbox));

	if (inbox)
		inbox->boxes = calloc(claim->segment->host.nr_parts, sizeof(*inbox->boxes));
	if (!inbox || !inbox->boxes) {
		free(inbox);
		return NULL;
	}
	inbox->claim = claim;
	return inbox;
}

void nm_vmseg_inbox_destroy(struct nm_vmseg_inbox *inbox)
{
	if (!inbox)
		return;
	for (uint32_t i = 0; i < inbox->claim->segment->host.nr_parts; i++)
		free(inbox->boxes[i].senders);
	free(inbox->boxes);
	free(inbox);
}

static uint64_t read_knock(const struct nm_vmseg_inbox *inbox, uint32_t part)
{
	const struct nm_vmseg_part *seen =
		(const void *)nm_vmseg_seen_part(inbox->claim->segment, part);

	return atomic_load_explicit(&seen->knock, memory_order_acquire);
}

bool nm_vmseg_knocked(const struct nm_vmseg_inbox *inbox)
{
	for (uint32_t i = 0; i < inbox->claim->segment->host.nr_parts; i++)
		if (inbox->boxes[i].walking || read_knock(inbox, i) != inbox->boxes[i].knock)
			return true;
	return false;
}

static bool is_mine(const struct nm_vmseg_cell *cell, const struct nm_vmseg_address *me)
{
	return cell->to_part == me->part && cell->to_slot == me->slot &&
	       cell->to_part_generation == me->part_generation &&
	       cell->to_generation == me->generation;
}

/* The oldest message to ME in CELLS after TAKEN and up to UPTO. Its sequence; 0: none. */
static uint64_t find_letter(const struct nm_vmseg_cell *cells, uint32_t nr_cells, uint64_t taken,
			    uint64_t upto, const struct nm_vmseg_address *me,
			    struct nm_vmseg_letter *ret_letter)
{
	uint64_t best = 0;

	for (uint32_t i = 0; i < nr_cells; i++) {
		/* Partner: nm_vmseg_post(). */
		uint64_t sequence = atomic_load_explicit(&cells[i].sequence, memory_order_acquire);
		struct nm_vmseg_cell copy;

		if (sequence <= taken || sequence > upto || (best && sequence > best))
			continue;
		nm_copy_words(&copy, &cells[i], sizeof(copy));
		atomic_thread_fence(memory_order_acquire);
		/* Taken back meanwhile, or replaced by a later one, which has its own turn. */
		if (atomic_load_explicit(&cells[i].sequence, memory_order_relaxed) != sequence ||
		    !is_mine(&copy, me) || copy.len > NM_VMSEG_MESSAGE_MAX)
			continue;
		best = sequence;
		ret_letter->len = copy.len;
		memcpy(ret_letter->bytes, copy.bytes, sizeof(ret_letter->bytes));
	}
	return best;
}

/* The next message in the current slot of the walk. */
static bool take_from_slot(struct nm_vmseg_inbox *inbox, const struct nm_vmseg_part_copy *copy,
			   struct nm_vmseg_letter *ret_letter)
{
	const uint8_t *part = nm_vmseg_seen_part(inbox->claim->segment, inbox->part);
	struct part_box *box = &inbox->boxes[inbox->part];
	const struct nm_vmseg_slot *slot =
		(const struct nm_vmseg_slot *)(part + copy->shape.slots_off) + box->slot;
	const struct nm_vmseg_cell *cells =
		(const struct nm_vmseg_cell *)(part + copy->shape.cells_off) +
		(size_t)box->slot * copy->shape.nr_cells;
	struct sender *sender = &box->senders[box->slot];
	uint64_t control = atomic_load_explicit(&slot->control, memory_order_acquire);
	uint64_t generation = nm_vmseg_generation_of(control), sequence;

	if (nm_vmseg_state_of(control) <= NM_VMSEG_INIT)
		return false;
	if (sender->part_generation != copy->generation || sender->generation != generation) {
		*sender = (struct sender){copy->generation, generation, 0};
		box->upto = 0;
	}
	if (!box->upto) {
		/* All messages up to this one are in their cells, unless they were taken back. */
		box->upto = atomic_load_explicit(&slot->posted, memory_order_acquire);
		box->nr_taken = 0;
	}
	/* A correct sender has no more messages than cells; the rest waits for the next walk. */
	sequence = box->nr_taken >= copy->shape.nr_cells ?
			   0 :
			   find_letter(cells, copy->shape.nr_cells, sender->taken, box->upto,
				       &inbox->claim->address, ret_letter);
	if (!sequence) {
		if (box->upto > sender->taken)
			sender->taken = box->upto;
		return false;
	}
	NM_FAULT("mail-taken");
	sender->taken = sequence;
	box->nr_taken++;
	ret_letter->from = (struct nm_vmseg_address){.part = inbox->part,
						     .slot = box->slot,
						     .part_generation = copy->generation,
						     .generation = generation};
	return true;
}

/* Make room for the records of a part's slots. False: out of memory, try later. */
static bool know_senders(struct part_box *box, uint32_t nr_slots)
{
	struct sender *senders;

	if (nr_slots <= box->nr_senders)
		return true;
	senders = realloc(box->senders, nr_slots * sizeof(*senders));
	if (!senders)
		return false;
	memset(senders + box->nr_senders, 0, (nr_slots - box->nr_senders) * sizeof(*senders));
	box->senders = senders;
	box->nr_senders = nr_slots;
	return true;
}

static bool is_own_slot(const struct nm_vmseg_inbox *inbox, uint32_t slot)
{
	return inbox->part == inbox->claim->address.part && slot == inbox->claim->address.slot;
}

/* Go on with the walk through the current part, up to the next message. */
static bool walk(struct nm_vmseg_inbox *inbox, struct nm_vmseg_letter *ret_letter)
{
	struct part_box *box = &inbox->boxes[inbox->part];
	struct nm_vmseg_part_copy copy;

	if (nm_vmseg_know_part(inbox->claim->segment, inbox->part, &copy) &&
	    know_senders(box, copy.shape.nr_slots))
		for (; box->slot < copy.shape.nr_slots; box->slot++, box->upto = 0)
			if (!is_own_slot(inbox, box->slot) &&
			    take_from_slot(inbox, &copy, ret_letter))
				return true;
	box->walking = false;
	return false;
}

/* One message of each part in turn: a machine with many keeps out nobody. */
bool nm_vmseg_take(struct nm_vmseg_inbox *inbox, struct nm_vmseg_letter *ret_letter)
{
	uint32_t nr_parts = inbox->claim->segment->host.nr_parts;

	for (uint32_t i = 0; i < nr_parts; i++) {
		struct part_box *box;
		uint64_t now;

		inbox->part = (inbox->part + 1) % nr_parts;
		box = &inbox->boxes[inbox->part];
		now = read_knock(inbox, inbox->part);
		if (!box->walking && now == box->knock)
			continue;
		if (!box->walking) {
			box->knock = now;
			box->walking = true;
			box->slot = 0;
			box->upto = 0;
		}
		if (walk(inbox, ret_letter))
			return true;
	}
	return false;
}
