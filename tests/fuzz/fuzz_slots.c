/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring whose writer is hostile. The input is a script: a byte that says how many 8-byte words to
 * write where, the words, and so on, with reads in between. Ring and pool are exactly as large as
 * they are said to be, so the address sanitizer sees every step outside.
 */
#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"
#include "target.h"

#define NR_SLOTS 16
#define CHUNK 4096
#define NR_CHUNKS 2

static uint64_t sum_bytes(const uint8_t *bytes, uint32_t len)
{
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < len; i++)
		sum += bytes[i];
	return sum;
}

/* Returns 0 when the reader would cast the writer out. */
static int read_some(struct nm_ring_reader *reader, uint8_t *bounce, volatile uint64_t *sum)
{
	const void *payload;
	struct nm_packet pkt;
	int got, i;

	for (i = 0; i < NR_SLOTS; i++) {
		got = nm_ring_peek(reader, bounce, &pkt, &payload);
		if (got <= 0)
			return got == 0;
		if (pkt.len > NM_RING_INLINE_LIMIT || pkt.op >= NM_PACKET_NR_OPS)
			abort();
		*sum += sum_bytes(payload, pkt.len);
		nm_ring_release(reader);
	}
	nm_ring_return_credits(reader);
	return 1;
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct nm_slot *slots = aligned_alloc(64, NR_SLOTS * sizeof(*slots));
	struct nm_lane *lane = aligned_alloc(64, sizeof(*lane));
	uint8_t *pool = malloc(NR_CHUNKS * CHUNK), *bounce = malloc(NM_RING_INLINE_LIMIT);
	struct nm_ring_reader reader;
	volatile uint64_t sum = 0;
	uint64_t word, position = 0;
	uint8_t command;

	if (!slots || !lane || !pool || !bounce)
		abort();
	memset(slots, 0, NR_SLOTS * sizeof(*slots));
	memset(lane, 0, sizeof(*lane));
	memset(pool, 1, NR_CHUNKS * CHUNK);
	nm_ring_reset_feedback(lane, 0);
	nm_ring_reader_init(&reader, slots, NR_SLOTS, pool, CHUNK, NR_CHUNKS, lane, 0);
	while (len >= 9) {
		command = *bytes;
		memcpy(&word, bytes + 1, sizeof(word));
		bytes += 9;
		len -= 9;
		if (command & 0x80) /* a control word with the sequence that is due */
			word = (word & ~(uint64_t)UINT32_MAX) | (uint32_t)(++position);
		memcpy((char *)slots + (command & 0x7f) * 8 % (NR_SLOTS * sizeof(*slots)), &word,
		       sizeof(word));
		if (word % 3 == 0 && !read_some(&reader, bounce, &sum))
			break;
	}
	read_some(&reader, bounce, &sum);
	if (reader.published > reader.position)
		abort();
	free(slots);
	free(lane);
	free(pool);
	free(bounce);
}
