/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One box: the single-producer single-consumer ring of a link (layout.h). The writer's end works on
 * its own window and reads credits from the peer's; the reader's end works on the peer's window and
 * returns credits through its own.
 *
 *   writer: nm_box_write*()                      reader: nm_box_peek() -> use -> nm_box_release()
 *           `position` against `limit`,                  head slot valid? copy control once,
 *           re-reads `consumed` when full                check, hand out the payload in place
 *
 * Both ends keep their positions in private memory and take nothing from the peer unchecked.
 * Not thread-safe; no system call, allocation or log anywhere here.
 */
#ifndef NM_SHM_BOX_H
#define NM_SHM_BOX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/fault.h"
#include "base/packet.h"
#include "shm/layout.h"

#define NM_CONTROL_KIND_SHIFT 32
#define NM_CONTROL_OP_SHIFT 34
#define NM_CONTROL_FLAGS_SHIFT 40
#define NM_CONTROL_LEN_SHIFT 48

#define NM_BOX_INLINE_LIMIT 65535 /* sixteen bits of length */

struct nm_box_writer {
	struct nm_slot *slots;		/* in my window */
	const struct nm_lane *feedback; /* in the reader's window: hostile */
	uint64_t position;		/* next slot to write */
	uint64_t limit;			/* first position that may not be written yet */
	uint32_t mask;
	uint32_t inline_max; /* largest payload of nm_box_write_inline() */
};

/* START: position agreed in the handshake. INLINE_MAX is lowered to a quarter of the box. */
void nm_box_writer_init(struct nm_box_writer *writer, struct nm_slot *slots, uint32_t nr_slots,
			const struct nm_lane *feedback, uint64_t start, uint32_t inline_max);
/*
 * Publish a packet with its payload in the box. pkt->len <= inline_max, op < NM_PACKET_NR_OPS.
 * Returns 0; -EAGAIN: full, nothing taken; -EBADMSG: the reader's counter makes no sense.
 */
int nm_box_write_inline(struct nm_box_writer *writer, const struct nm_packet *pkt,
			const struct iovec *iov, unsigned int nr_iov);
/* Room for one slot? 0, -EAGAIN or -EBADMSG as above. */
int nm_box_check_room(struct nm_box_writer *writer);
/* Publish a packet whose payload lies in the pool. Only after nm_box_check_room() said 0. */
void nm_box_write_chunk(struct nm_box_writer *writer, const struct nm_packet *pkt, uint32_t index,
			uint32_t offset);

struct nm_box_reader {
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
_Static_assert(sizeof(struct nm_box_reader) == NM_CACHE_LINE,
	       "polling touches one line per source");

/* Reset FEEDBACK to the start of a stream; before the writer is told which lane that is. */
void nm_box_reset_feedback(struct nm_lane *feedback, uint64_t start);
void nm_box_reader_init(struct nm_box_reader *reader, const struct nm_slot *slots,
			uint32_t nr_slots, const uint8_t *pool, uint32_t chunk_size,
			uint32_t nr_chunks, struct nm_lane *feedback, uint64_t start);

/* Is there anything? The whole cost of polling an idle source. */
static inline bool nm_box_ready(const struct nm_box_reader *reader)
{
	/* Partner: the release store of the head's control word in publish(). */
	uint64_t control = atomic_load_explicit(
		&reader->slots[reader->position & reader->mask].control, memory_order_acquire);

	return (uint32_t)control == (uint32_t)(reader->position + 1);
}

/*
 * Look at the next packet. `bounce` has room for NM_BOX_INLINE_LIMIT bytes: payloads that are
 * spread over slots are put together there; others are handed out where they lie and may change
 * while they are read.
 * Returns 1 and the packet; 0: nothing there; -EBADMSG: no sound writer writes this.
 */
int nm_box_peek(struct nm_box_reader *reader, uint8_t *bounce, struct nm_packet *ret_pkt,
		const void **ret_payload);
/* Done with the packet that nm_box_peek() handed out. Returns credits every quarter of the box. */
void nm_box_release(struct nm_box_reader *reader);

/* Return what credits there are: when the source runs idle. */
static inline void nm_box_return_credits(struct nm_box_reader *reader)
{
	if (reader->published != reader->position) {
		NM_FAULT("box-credit-before");
		reader->published = reader->position;
		/* Partner: refresh() of the writer: the slots are free once it sees this. */
		atomic_store_explicit(&reader->feedback->consumed, reader->position,
				      memory_order_release);
		NM_FAULT("box-credit-after");
	}
}

#endif
