/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of pool chunks, for pools of any size that a header may name. The pool is exactly as
 * large as it is said to be; every byte of what is handed out is read, while the descriptor behind
 * it changes.
 */
#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"
#include "target.h"

enum { NR_SLOTS = 16, MAX_CHUNKS = 8 };

static volatile uint8_t sink; /* reads stay reads */

static void expect(int condition)
{
	if (!condition)
		abort();
}

struct descriptor {
	uint32_t index, offset, len;
	uint16_t inline_len;
	uint8_t kind;
};

static void put(struct nm_slot *slot, uint64_t position, const struct descriptor *d)
{
	slot->head.tag = d->index;
	slot->head.chunk.index = d->index;
	slot->head.chunk.offset = d->offset;
	slot->head.chunk.len = d->len;
	atomic_store(&slot->control, (uint32_t)(position + 1) |
					     (uint64_t)(d->kind & 3) << NM_CONTROL_KIND_SHIFT |
					     (uint64_t)d->inline_len << NM_CONTROL_LEN_SHIFT);
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct nm_slot *slots = aligned_alloc(NM_CACHE_LINE, NR_SLOTS * sizeof(*slots));
	struct nm_lane *lane = aligned_alloc(NM_CACHE_LINE, sizeof(*lane));
	uint32_t chunk_size = NM_MIN_CHUNK_SIZE, nr_chunks = 1;
	struct nm_ring_reader reader;
	struct descriptor d;
	struct nm_packet pkt;
	const void *payload;
	uint8_t *pool, *bounce = malloc(NM_RING_INLINE_LIMIT);
	uint64_t start = 0;

	if (len) {
		chunk_size <<= bytes[0] & 3;
		nr_chunks = 1 + (bytes[0] >> 2) % MAX_CHUNKS;
		start = bytes[0] & 0x80 ? UINT32_MAX - 2 : 0;
		bytes++;
		len--;
	}
	pool = malloc((size_t)chunk_size * nr_chunks);
	expect(slots && lane && pool && bounce);
	memset(slots, 0, NR_SLOTS * sizeof(*slots));
	memset(lane, 0, sizeof(*lane));
	memset(pool, 1, (size_t)chunk_size * nr_chunks);
	nm_ring_reset_feedback(lane, start);
	nm_ring_reader_init(&reader, slots, NR_SLOTS, pool, chunk_size, nr_chunks, lane, start);
	for (; len >= sizeof(d); bytes += sizeof(d), len -= sizeof(d)) {
		memcpy(&d, bytes, sizeof(d));
		if (d.kind & 8) { /* often a sound one, so that the stream goes on */
			d.index %= nr_chunks;
			d.offset %= chunk_size;
			d.len %= chunk_size - d.offset + 1;
		}
		put(&slots[reader.position % NR_SLOTS], reader.position, &d);
		if (nm_ring_peek(&reader, bounce, &pkt, &payload) <= 0)
			break;
		for (uint32_t i = 0; i < pkt.len; i++)
			sink = ((const uint8_t *)payload)[i];
		nm_ring_release(&reader);
	}
	free(slots);
	free(lane);
	free(pool);
	free(bounce);
}
