/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The single-producer single-consumer ring of a link (layout.h). The writer's end works on its own
 * window and reads credits from the peer's. The reader's end works on the peer's window and returns
 * credits through its own.
 *
 *   writer: nm_ring_write*()                    reader: nm_ring_peek() -> use -> nm_ring_release()
 *           `position` against `limit`,                  head slot valid? copy control once,
 *           re-reads `consumed` when full                check, pass the payload in place
 *
 * Both ends keep their positions in private memory and check everything from the peer. Not
 * thread-safe. These functions make no system call, allocation or log entry.
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
/* Number of slots that a stream prefetches: 4, 8 and 16 differ little, 2 is too late. */
#define NM_RING_AHEAD 4

struct nm_ring_writer {
	struct nm_slot *slots;		/* in the own window */
	const struct nm_lane *feedback; /* in the reader's window: hostile */
	uint64_t position;		/* next slot to write */
	uint64_t limit;			/* first position that must not be written yet */
	uint32_t mask;
	uint32_t inline_max; /* largest payload of nm_ring_write_inline() */
};

/* START: position from the handshake. INLINE_MAX is lowered to a quarter of the ring. */
void nm_ring_writer_init(struct nm_ring_writer *writer, struct nm_slot *slots, uint32_t nr_slots,
			 const struct nm_lane *feedback, uint64_t start, uint32_t inline_max);
/* After this, nm_ring_write_slot() finds no room; the other functions must not be called. */
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

/* Partner: nm_ring_ready(). A reader that sees the word sees everything written before it. */
static inline void nm_slot_publish(struct nm_slot *slot, uint64_t control)
{
	NM_FAULT("ring-publish-before");
	atomic_store_explicit(&slot->control, control, memory_order_release);
	NM_FAULT("ring-publish-after");
}

/*
 * Publish a packet that fits one slot if there is room without reading the reader's counter. False:
 * nothing was done; call nm_ring_write_inline().
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
 * In a stream: prefetch a slot that is needed soon. The reader's core still owns its line from the
 * last lap. Without the prefetch, stores into it and all later stores would wait for that core.
 */
static inline void nm_ring_write_ahead(const struct nm_ring_writer *writer)
{
	nm_prefetch_write(&writer->slots[(writer->position + NM_RING_AHEAD) & writer->mask]);
}

/*
 * Publish a packet with its payload in the ring. pkt->len <= inline_max, op < NM_PACKET_NR_OPS.
 * Returns 0; -EAGAIN: full, nothing taken; -EBADMSG: the reader's counter is not valid.
 */
int nm_ring_write_inline(struct nm_ring_writer *writer, const struct nm_packet *pkt,
			 const struct iovec *iov, unsigned int nr_iov);
/* Check for room for one slot. 0, -EAGAIN or -EBADMSG as above. */
int nm_ring_check_room(struct nm_ring_writer *writer);
/* Publish a packet with its payload in the pool. Only after nm_ring_check_room() returned 0. */
void nm_ring_write_chunk(struct nm_ring_writer *writer, const struct nm_packet *pkt, uint32_t index,
			 uint32_t offset);

struct nm_ring_reader {
	const struct nm_slot *slots; /* in the writer's window: hostile */
	const uint8_t *pool;	     /* in the writer's window: hostile */
	struct nm_lane *feedback;    /* in the own window */
	uint64_t position;	     /* next slot to take */
	uint64_t published;	     /* last position that was returned to the writer */
	uint64_t chunks_freed;
	uint32_t mask;
	uint32_t chunk_size;
	uint32_t nr_chunks;
	uint16_t nr_taken; /* slots of the packet in use */
	bool in_chunk;	   /* its payload is in the pool */
	bool is_cold;	   /* no chunk was read yet, and the pool can be warmed */
} NM_ALIGNED(NM_CACHE_LINE);
_Static_assert(sizeof(struct nm_ring_reader) == NM_CACHE_LINE,
	       "polling touches one line per source");

/* Reset FEEDBACK to the start of a stream. Call it before the writer learns the lane. */
void nm_ring_reset_feedback(struct nm_lane *feedback, uint64_t start);
void nm_ring_reader_init(struct nm_ring_reader *reader, const struct nm_slot *slots,
			 uint32_t nr_slots, const uint8_t *pool, uint32_t chunk_size,
			 uint32_t nr_chunks, struct nm_lane *feedback, uint64_t start);

/* True if there may be a packet. This is the whole cost of polling an idle source. */
static inline bool nm_ring_ready(const struct nm_ring_reader *reader)
{
	/* Partner: the release store of the head's control word in publish(). */
	uint64_t control = atomic_load_explicit(
		&reader->slots[reader->position & reader->mask].control, memory_order_acquire);

	return (uint32_t)control == (uint32_t)(reader->position + 1);
}

/*
 * True if a correct writer may have left the present word at the next head: nothing, or a slot of
 * an earlier lap or stream. A slot that was damaged after its publication is never ready; this
 * check finds it, unless its number is valid by chance.
 */
bool nm_ring_is_sound(const struct nm_ring_reader *reader);

/* Return all credits. Called when the source becomes idle. */
static inline void nm_ring_return_credits(struct nm_ring_reader *reader)
{
	if (reader->published != reader->position) {
		NM_FAULT("ring-credit-before");
		reader->published = reader->position;
		/* Partner: the writer's refresh(). The slots are free once the writer sees this. */
		atomic_store_explicit(&reader->feedback->consumed, reader->position,
				      memory_order_release);
		NM_FAULT("ring-credit-after");
	}
}

/* The part of nm_ring_peek() for payloads in the pool or in several slots. */
int nm_ring_peek_spread(struct nm_ring_reader *reader, const struct nm_slot *head,
			unsigned int kind, uint8_t *bounce, struct nm_packet *pkt,
			const void **ret_payload);

/* In a stream: prefetch a slot that is needed soon. */
static inline void nm_ring_read_ahead(const struct nm_ring_reader *reader)
{
	__builtin_prefetch(&reader->slots[(reader->position + NM_RING_AHEAD) & reader->mask]);
}

/*
 * Look at the next packet. A payload in several slots is copied to `bounce`, which has room for
 * NM_RING_INLINE_LIMIT bytes. Other payloads stay in place and may change while they are read.
 * Returns 1 and the packet; 0: none; -EBADMSG: no correct writer writes this.
 */
static inline int nm_ring_peek(struct nm_ring_reader *reader, uint8_t *bounce,
			       struct nm_packet *ret_pkt, const void **ret_payload)
{
	const struct nm_slot *head = &reader->slots[reader->position & reader->mask];
	/* Partner: the release store of the head's control word. Read only once, so that the
	 * checked value is the used value. */
	uint64_t control = atomic_load_explicit(&head->control, memory_order_acquire);
	unsigned int kind = (control >> NM_CONTROL_KIND_SHIFT) & 3;

	if ((uint32_t)control != (uint32_t)(reader->position + 1))
		return 0;
	ret_pkt->op = (control >> NM_CONTROL_OP_SHIFT) & (NM_PACKET_NR_OPS - 1);
	ret_pkt->flags = (uint8_t)(control >> NM_CONTROL_FLAGS_SHIFT);
	ret_pkt->len = (uint16_t)(control >> NM_CONTROL_LEN_SHIFT);
	/* Each word is read once, because the writer may be changing it. */
	ret_pkt->tag = __atomic_load_n(&head->head.tag, __ATOMIC_RELAXED);
	ret_pkt->data = __atomic_load_n(&head->head.data, __ATOMIC_RELAXED);
	reader->nr_taken = 1;
	reader->in_chunk = false;
	*ret_payload = head->head.payload;
	if (nm_likely(kind == NM_SLOT_HEAD_INLINE && ret_pkt->len <= NM_SLOT_INLINE))
		return 1;
	return nm_ring_peek_spread(reader, head, kind, bounce, ret_pkt, ret_payload);
}

/* Return chunks that nm_ring_release() did not: `in_chunk` was false for their packets. */
static inline void nm_ring_return_chunks(struct nm_ring_reader *reader, uint32_t nr)
{
	reader->chunks_freed += nr;
	/* Partner: nm_pool_reclaim() at the writer. */
	atomic_store_explicit(&reader->feedback->chunks_freed, reader->chunks_freed,
			      memory_order_release);
}

/* Release the packet of nm_ring_peek(). Returns credits every quarter of the ring. */
static inline void nm_ring_release(struct nm_ring_reader *reader)
{
	reader->position += reader->nr_taken;
	if (nm_unlikely(reader->in_chunk)) {
		NM_FAULT("ring-chunk-credit");
		/* Partner: nm_pool_reclaim() at the writer, after the chunk's bytes were copied. */
		atomic_store_explicit(&reader->feedback->chunks_freed, ++reader->chunks_freed,
				      memory_order_release);
	}
	if (nm_unlikely(reader->position - reader->published > reader->mask / 4))
		nm_ring_return_credits(reader);
}

#endif
