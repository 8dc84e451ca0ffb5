/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/ring.h"

#include <errno.h>
#include <string.h>

#include "base/arith.h"
#include "shm/window.h"

static uint32_t slots_for(uint32_t len)
{
	return len <= NM_SLOT_INLINE ? 1 :
				       1 + (len - NM_SLOT_INLINE + NM_SLOT_BODY - 1) / NM_SLOT_BODY;
}

void nm_ring_writer_init(struct nm_ring_writer *writer, struct nm_slot *slots, uint32_t nr_slots,
			 const struct nm_lane *feedback, uint64_t start, uint32_t inline_max)
{
	uint32_t quarter = NM_SLOT_INLINE + (nr_slots / 4 - 1) * NM_SLOT_BODY;

	writer->slots = slots;
	writer->feedback = feedback;
	writer->position = start;
	writer->limit = start + nr_slots;
	writer->mask = nr_slots - 1;
	writer->inline_max = inline_max < quarter ? inline_max : quarter;
	if (writer->inline_max > NM_RING_INLINE_LIMIT)
		writer->inline_max = NM_RING_INLINE_LIMIT;
}

/* Read the reader's position. Out of line: once per lap if the reader keeps up. */
static __attribute__((noinline)) int refresh(struct nm_ring_writer *writer, uint32_t nr)
{
	/* Partner: nm_ring_return_credits(). The reader does not use these slots any more. */
	uint64_t consumed = atomic_load_explicit(&writer->feedback->consumed, memory_order_acquire);
	uint64_t seen = writer->limit - writer->mask - 1;

	/* Not backwards and not past what was written: one comparison in modular arithmetic. */
	if (nm_unlikely(consumed - seen > writer->position - seen))
		return -EBADMSG;
	writer->limit = consumed + writer->mask + 1;
	return writer->position + nr <= writer->limit ? 0 : -EAGAIN;
}

static inline int reserve(struct nm_ring_writer *writer, uint32_t nr)
{
	if (nm_likely(writer->position + nr <= writer->limit))
		return 0;
	return refresh(writer, nr);
}

int nm_ring_check_room(struct nm_ring_writer *writer)
{
	return reserve(writer, 1);
}

static inline uint64_t control_word(uint64_t position, enum nm_slot_kind kind,
				    const struct nm_packet *pkt, uint32_t len)
{
	return nm_ring_control(position, kind, pkt->op, pkt->flags, len);
}

/* A position in the payload to gather. */
struct gather {
	const struct iovec *iov;
	size_t offset; /* in *iov */
};

static void gather_bytes(struct gather *from, void *to, size_t len)
{
	size_t part;

	while (len) {
		part = nm_min_u64(len, from->iov->iov_len - from->offset);
		if (part)
			memcpy(to, (const char *)from->iov->iov_base + from->offset, part);
		to = (char *)to + part;
		len -= part;
		from->offset += part;
		if (from->offset == from->iov->iov_len) {
			from->iov++;
			from->offset = 0;
		}
	}
}

/* Payload past the head slot. */
static void write_bodies(struct nm_ring_writer *writer, const struct nm_packet *pkt,
			 struct gather *from)
{
	static const struct nm_packet no_packet;
	uint64_t position = writer->position + 1;
	uint32_t left = pkt->len - NM_SLOT_INLINE, part;
	struct nm_slot *slot;

	for (; left; left -= part, position++) {
		part = left < NM_SLOT_BODY ? left : NM_SLOT_BODY;
		slot = &writer->slots[position & writer->mask];
		gather_bytes(from, slot->body, part);
		/* Ordered by the head's release store. */
		atomic_store_explicit(&slot->control,
				      control_word(position, NM_SLOT_BODY_KIND, &no_packet, 0),
				      memory_order_relaxed);
	}
}

int nm_ring_write_inline(struct nm_ring_writer *writer, const struct nm_packet *pkt,
			 const struct iovec *iov, unsigned int nr_iov)
{
	uint32_t nr = slots_for(pkt->len);
	struct gather from = {iov, 0};
	uint8_t first[NM_SLOT_INLINE];
	struct nm_slot *slot;
	int err;

	err = reserve(writer, nr);
	if (nm_unlikely(err))
		return err;
	slot = &writer->slots[writer->position & writer->mask];
	if (nr_iov && nr > 1) {
		/* The reader polls the line of the head, and would take it back meanwhile. */
		gather_bytes(&from, first, sizeof(first));
		write_bodies(writer, pkt, &from);
		memcpy(slot->head.payload, first, sizeof(first));
	} else if (nr_iov && pkt->len) {
		gather_bytes(&from, slot->head.payload, pkt->len);
	}
	slot->head.tag = pkt->tag;
	slot->head.data = pkt->data;
	nm_slot_publish(slot, control_word(writer->position, NM_SLOT_HEAD_INLINE, pkt, pkt->len));
	writer->position += nr;
	return 0;
}

void nm_ring_write_chunk(struct nm_ring_writer *writer, const struct nm_packet *pkt, uint32_t index,
			 uint32_t offset)
{
	struct nm_slot *slot = &writer->slots[writer->position & writer->mask];

	slot->head.tag = pkt->tag;
	slot->head.data = pkt->data;
	slot->head.chunk.index = index;
	slot->head.chunk.offset = offset;
	slot->head.chunk.len = pkt->len;
	nm_slot_publish(slot, control_word(writer->position, NM_SLOT_HEAD_CHUNK, pkt, 0));
	writer->position++;
}

void nm_ring_reset_feedback(struct nm_lane *feedback, uint64_t start)
{
	atomic_store_explicit(&feedback->chunks_freed, 0, memory_order_relaxed);
	atomic_store_explicit(&feedback->consumed, start, memory_order_release);
}

void nm_ring_reader_init(struct nm_ring_reader *reader, const struct nm_slot *slots,
			 uint32_t nr_slots, const uint8_t *pool, uint32_t chunk_size,
			 uint32_t nr_chunks, struct nm_lane *feedback, uint64_t start)
{
	*reader = (struct nm_ring_reader){
		.slots = slots,
		.pool = pool,
		.feedback = feedback,
		.position = start,
		.published = start,
		.mask = nr_slots - 1,
		.chunk_size = chunk_size,
		.nr_chunks = nr_chunks,
	};
}

/* One read, because the writer may be changing the word. */
static inline uint32_t read_once_u32(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* Collect a payload from several slots. */
static int collect(struct nm_ring_reader *reader, const struct nm_slot *head, uint32_t len,
		   uint8_t *bounce)
{
	uint64_t position = reader->position + 1;
	uint32_t left = len - NM_SLOT_INLINE, part;
	const struct nm_slot *slot;
	uint64_t control;

	memcpy(bounce, head->head.payload, NM_SLOT_INLINE);
	bounce += NM_SLOT_INLINE;
	for (; left; left -= part, position++) {
		part = left < NM_SLOT_BODY ? left : NM_SLOT_BODY;
		slot = &reader->slots[position & reader->mask];
		/* Ordered by the acquire load of the head's control word. */
		control = atomic_load_explicit(&slot->control, memory_order_relaxed);
		if (nm_unlikely((uint32_t)control != (uint32_t)(position + 1) ||
				((control >> NM_CONTROL_KIND_SHIFT) & 3) != NM_SLOT_BODY_KIND))
			return -EBADMSG;
		memcpy(bounce, slot->body, part);
		bounce += part;
	}
	return 0;
}

static int find_in_pool(struct nm_ring_reader *reader, const struct nm_slot *head,
			struct nm_packet *pkt, const void **ret_payload)
{
	uint32_t index = read_once_u32(&head->head.chunk.index);
	uint32_t offset = read_once_u32(&head->head.chunk.offset);
	uint32_t len = read_once_u32(&head->head.chunk.len);

	if (nm_unlikely(index >= reader->nr_chunks || len > reader->chunk_size ||
			offset > reader->chunk_size - len))
		return -EBADMSG;
	index = nm_clamp_index(index, reader->nr_chunks);
	offset = nm_clamp_index(offset, reader->chunk_size - len + 1);
	pkt->len = len;
	*ret_payload = reader->pool + (size_t)index * reader->chunk_size + offset;
	if (nm_unlikely(reader->is_cold)) {
		nm_pool_warm(reader->pool, (size_t)reader->nr_chunks * reader->chunk_size);
		reader->is_cold = false;
	}
	return 0;
}

bool nm_ring_is_sound(const struct nm_ring_reader *reader)
{
	uint64_t control = atomic_load_explicit(
		&reader->slots[reader->position & reader->mask].control, memory_order_relaxed);
	uint32_t behind = (uint32_t)(reader->position + 1) - (uint32_t)control;

	return !control || (!(behind & reader->mask) && behind <= INT32_MAX &&
			    (control >> NM_CONTROL_KIND_SHIFT & 3));
}

int nm_ring_peek_spread(struct nm_ring_reader *reader, const struct nm_slot *head,
			unsigned int kind, uint8_t *bounce, struct nm_packet *pkt,
			const void **ret_payload)
{
	uint32_t nr;
	int err;

	if (kind == NM_SLOT_HEAD_CHUNK) {
		reader->in_chunk = true;
		err = find_in_pool(reader, head, pkt, ret_payload);
		return nm_unlikely(err) ? err : 1;
	}
	nr = slots_for(pkt->len);
	if (nm_unlikely(kind != NM_SLOT_HEAD_INLINE || nr > reader->mask + 1))
		return -EBADMSG;
	err = collect(reader, head, pkt->len, bounce);
	if (nm_unlikely(err))
		return err;
	*ret_payload = bounce;
	reader->nr_taken = (uint16_t)nr;
	return 1;
}
