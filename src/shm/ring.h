/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One ring: the single-producer single-consumer ring of a link (layout.h). The writer's end works
 * on its own window and reads credits from the peer's; the reader's end works on the peer's window
 * and returns credits through its own.
 *
 *   writer: nm_ring_write*()                    reader: nm_ring_peek() -> use -> nm_ring_release()
 *           `position` against `limit`,                  head slot valid? copy control once,
 *           re-reads `consumed` when full                check, hand out the payload in place
 *
 * Both ends keep their positions in private memory and take nothing from the peer unchecked.
 * Not thread-safe; no system call, allocation or log anywhere here.
 */
#ifndef NM_SHM_RING_H
#define NM_SHM_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/copy_small.h"
#include "base/fault.h"
#include "base/packet.h"
#include "shm/layout.h"

#define NM_CONTROL_KIND_SHIFT 32
#define NM_CONTROL_OP_SHIFT 34
#define NM_CONTROL_FLAGS_SHIFT 40
#define NM_CONTROL_LEN_SHIFT 48

#define NM_RING_INLINE_LIMIT 65535 /* sixteen bits of length */
/* How many slots a stream runs ahead of itself: 4, 8 and 16 differ little, 2 is too late. */
#define NM_RING_AHEAD 4

struct nm_ring_writer {
	struct nm_slot *slots;		/* in my window */
	const struct nm_lane *feedback; /* in the reader's window: hostile */
	uint64_t position;		/* next slot to write */
	uint64_t limit;			/* first position that may not be written yet */
	uint32_t mask;
	uint32_t inline_max; /* largest payload of nm_ring_write_inline() */
};

/* START: position agreed in the handshake. INLINE_MAX is lowered to a quarter of the ring. */
void nm_ring_writer_init(struct nm_ring_writer *writer, struct nm_slot *slots, uint32_t nr_slots,
			 const struct nm_lane *feedback, uint64_t start, uint32_t inline_max);
/* From now on nm_ring_write_slot() finds no room; the others are not called any more. */
static inline void nm_ring_writer_close(struct nm_ring_writer *writer)
{
	writer->limit = writer->position;
}

static inline uint64_t nm_ring_control(uint64_t position, enum nm_slot_kind kind, unsigned int op,
				       unsigned int flags, uint32_t len)
{
	return (uint32_t)(position + 1) | (uint64_t)kind << NM_CONTROL_KIND_SHIFT |
	       (uint64_t)op << NM_CONTROL_OP_SHIFT | (uint64_t)flags << NM_CONTROL_FLAGS_SHIFT |
	       (uint64_t)len << NM_CONTROL_LEN_SHIFT;
}

/* Partner: nm_ring_ready(). A reader that sees the word sees everything written before. */
static inline void nm_slot_publish(struct nm_slot *slot, uint64_t control)
{
	NM_FAULT("ring-publish-before");
	atomic_store_explicit(&slot->control, control, memory_order_release);
	NM_FAULT("ring-publish-after");
}

/*
 * Publish a packet that fits one slot, when there is room without a look at the reader's counter.
 * False: nothing was done, and nm_ring_write_inline() is to be asked.
 */
static inline bool nm_ring_write_slot(struct nm_ring_writer *writer, const struct nm_packet *pkt,
				      const void *payload)
{
	uint64_t position = writer->position;
	struct nm_slot *slot = &writer->slots[position & writer->mask];

	if (nm_unlikely(pkt->len > NM_SLOT_INLINE || position == writer->limit))
		return false;
	slot->head.tag = pkt->tag;
	slot->head.data = pkt->data;
	nm_copy_small(slot->head.payload, payload, pkt->len);
	writer->position = position + 1;
	nm_slot_publish(slot, nm_ring_control(position, NM_SLOT_HEAD_INLINE, pkt->op, pkt->flags,
					      pkt->len));
	return true;
}

/*
 * In a stream: get hold of a slot that comes soon. The reader had it a lap ago, and the stores into
 * it would wait until its core gives it up; those of the program wait behind them.
 */
static inline void nm_ring_write_ahead(const struct nm_ring_writer *writer)
{
	nm_prefetch_write(&writer->slots[(writer->position + NM_RING_AHEAD) & writer->mask]);
}

/*
 * Publish a packet with its payload in the ring. pkt->len <= inline_max, op < NM_PACKET_NR_OPS.
 * Returns 0; -EAGAIN: full, nothing taken; -EBADMSG: the reader's counter makes no sense.
 */
int nm_ring_write_inline(struct nm_ring_writer *writer, const struct nm_packet *pkt,
			 const struct iovec *iov, unsigned int nr_iov);
/* Room for one slot? 0, -EAGAIN or -EBADMSG as above. */
int nm_ring_check_room(struct nm_ring_writer *writer);
/* Publish a packet whose payload lies in the pool. Only after nm_ring_check_room() said 0. */
void nm_ring_write_chunk(struct nm_ring_writer *writer, const struct nm_packet *pkt, uint32_t index,
			 uint32_t offset);

struct nm_ring_reader {
	const struct nm_slot *slots; /* in the writer's window: hostile */
	const uint8_t *pool;	     /* likewise */
	struct nm_lane *feedback;    /* in my window */
	uint64_t position;	     /* next slot to take */
	uint64_t published;	     /* position the writer has been told */
	uint64_t chunks_freed;
	uint32_t mask;
	uint32_t chunk_size;
	uint32_t nr_chunks;
	uint16_t nr_taken; /* slots of the packet that is handed out now */
	bool in_chunk;	   /* its payload is in the pool */
} NM_ALIGNED(NM_CACHE_LINE);
_Static_assert(sizeof(struct nm_ring_reader) == NM_CACHE_LINE,
	       "polling touches one line per source");

/* Reset FEEDBACK to the start of a stream; before the writer is told which lane that is. */
void nm_ring_reset_feedback(struct nm_lane *feedback, uint64_t start);
void nm_ring_reader_init(struct nm_ring_reader *reader, const struct nm_slot *slots,
			 uint32_t nr_slots, const uint8_t *pool, uint32_t chunk_size,
			 uint32_t nr_chunks, struct nm_lane *feedback, uint64_t start);

/* Is there anything? The whole cost of polling an idle source. */
static inline bool nm_ring_ready(const struct nm_ring_reader *reader)
{
	/* Partner: the release store of the head's control word in publish(). */
	uint64_t control = atomic_load_explicit(
		&reader->slots[reader->position & reader->mask].control, memory_order_acquire);

	return (uint32_t)control == (uint32_t)(reader->position + 1);
}

/*
 * May a sound writer have left what stands where its next head will be? Either nothing was ever
 * written there, or something of an earlier lap or stream was. A slot that was published and then
 * spoiled is never ready; this finds it, unless it shows a number that is sound by chance.
 */
bool nm_ring_is_sound(const struct nm_ring_reader *reader);

/* Return what credits there are: when the source runs idle. */
static inline void nm_ring_return_credits(struct nm_ring_reader *reader)
{
	if (reader->published != reader->position) {
		NM_FAULT("ring-credit-before");
		reader->published = reader->position;
		/* Partner: refresh() of the writer: the slots are free once it sees this. */
		atomic_store_explicit(&reader->feedback->consumed, reader->position,
				      memory_order_release);
		NM_FAULT("ring-credit-after");
	}
}

/* What nm_ring_peek() hands out is in the pool, or spread over slots. */
int nm_ring_peek_spread(struct nm_ring_reader *reader, const struct nm_slot *head,
			unsigned int kind, uint8_t *bounce, struct nm_packet *pkt,
			const void **ret_payload);

/* In a stream: fetch a slot that comes soon. */
static inline void nm_ring_read_ahead(const struct nm_ring_reader *reader)
{
	__builtin_prefetch(&reader->slots[(reader->position + NM_RING_AHEAD) & reader->mask]);
}

/*
 * Look at the next packet. `bounce` has room for NM_RING_INLINE_LIMIT bytes: payloads that are
 * spread over slots are put together there; others are handed out where they lie and may change
 * while they are read.
 * Returns 1 and the packet; 0: nothing there; -EBADMSG: no sound writer writes this.
 */
static inline int nm_ring_peek(struct nm_ring_reader *reader, uint8_t *bounce,
			       struct nm_packet *ret_pkt, const void **ret_payload)
{
	const struct nm_slot *head = &reader->slots[reader->position & reader->mask];
	/* Partner: the release store of the head's control word. The only read of it: what is
	 * checked is what is used. */
	uint64_t control = atomic_load_explicit(&head->control, memory_order_acquire);
	unsigned int kind = (control >> NM_CONTROL_KIND_SHIFT) & 3;

	if ((uint32_t)control != (uint32_t)(reader->position + 1))
		return 0;
	ret_pkt->op = (control >> NM_CONTROL_OP_SHIFT) & (NM_PACKET_NR_OPS - 1);
	ret_pkt->flags = (uint8_t)(control >> NM_CONTROL_FLAGS_SHIFT);
	ret_pkt->len = (uint16_t)(control >> NM_CONTROL_LEN_SHIFT);
	/* One read each of words that their writer may be changing. */
	ret_pkt->tag = __atomic_load_n(&head->head.tag, __ATOMIC_RELAXED);
	ret_pkt->data = __atomic_load_n(&head->head.data, __ATOMIC_RELAXED);
	reader->nr_taken = 1;
	reader->in_chunk = false;
	*ret_payload = head->head.payload;
	if (nm_likely(kind == NM_SLOT_HEAD_INLINE && ret_pkt->len <= NM_SLOT_INLINE))
		return 1;
	return nm_ring_peek_spread(reader, head, kind, bounce, ret_pkt, ret_payload);
}

/*
 * Done with the packet that nm_ring_peek() handed out. Returns credits every quarter of the ring.
 */
static inline void nm_ring_release(struct nm_ring_reader *reader)
{
	reader->position += reader->nr_taken;
	if (nm_unlikely(reader->in_chunk)) {
		NM_FAULT("ring-chunk-credit");
		/* Partner: nm_pool_reclaim() at the writer: the chunk's bytes have been copied. */
		atomic_store_explicit(&reader->feedback->chunks_freed, ++reader->chunks_freed,
				      memory_order_release);
	}
	if (nm_unlikely(reader->position - reader->published > reader->mask / 4))
		nm_ring_return_credits(reader);
}

#endif
