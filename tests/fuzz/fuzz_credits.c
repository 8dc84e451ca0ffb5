/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link's writer whose reader is hostile: the two counters in the reader's window hold what the
 * input says, at any time. Whatever they say, a slot or chunk that a sound reader may still be
 * reading is not written again, and every chunk stays accounted for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/pool.h"
#include "shm/ring.h"
#include "target.h"

enum { NR_SLOTS = 16, CHUNK = 4096, NR_CHUNKS = 8, NR_USERS = 2 };

static void expect(int condition)
{
	if (!condition)
		abort();
}

struct link {
	struct nm_lane *lane; /* what its reader says */
	struct nm_slot *slots;
	struct nm_ring_writer writer;
	struct nm_pool_user chunks;
	uint64_t believed; /* highest count of slots that was taken for true */
	int cast_out;
};

struct world {
	struct nm_pool pool;
	uint8_t *bytes;
	struct link links[NR_USERS];
};

static void check_pool(const struct world *w)
{
	uint32_t held = 0;
	int i;

	for (i = 0; i < NR_USERS; i++)
		held += w->links[i].chunks.nr_held;
	expect(held + w->pool.nr_free == NR_CHUNKS);
}

static void cast_out(struct world *w, struct link *link)
{
	nm_pool_reclaim_all(&w->pool, &link->chunks);
	link->cast_out = 1;
}

static void send(struct world *w, struct link *link, uint32_t len)
{
	static uint8_t payload[CHUNK];
	struct nm_packet pkt = {.op = 1, .len = len};
	struct iovec iov = {payload, len};
	uint64_t before = link->writer.position;
	uint32_t index, offset;
	int err;

	if (len <= link->writer.inline_max) {
		err = nm_ring_write_inline(&link->writer, &pkt, &iov, 1);
	} else {
		err = nm_ring_check_room(&link->writer);
		if (!err)
			err = nm_pool_reclaim(&w->pool, &link->chunks,
					      atomic_load(&link->lane->chunks_freed));
		if (!err)
			err = nm_pool_take(&w->pool, &link->chunks, len, &index, &offset);
		if (!err) {
			expect(index < NR_CHUNKS && offset <= CHUNK - len);
			memset(nm_pool_bytes(&w->pool, index, offset), 7, len);
			nm_ring_write_chunk(&link->writer, &pkt, index, offset);
		}
	}
	expect(err == 0 || err == -EAGAIN || err == -EBADMSG);
	if (err == -EBADMSG)
		cast_out(w, link);
	if (err)
		expect(link->writer.position == before);
	/* Never more than a ring ahead of what was believed, which never exceeds what was sent. */
	expect(link->writer.limit - NR_SLOTS <= link->writer.position);
	expect(link->writer.limit - NR_SLOTS >= link->believed);
	expect(link->writer.position <= link->writer.limit);
	link->believed = link->writer.limit - NR_SLOTS;
}

static void act(struct world *w, const uint8_t **at, const uint8_t *end)
{
	struct link *link = &w->links[**at & 1];
	uint8_t what = *(*at)++ >> 1;
	uint64_t word = 0;
	size_t n = (size_t)(end - *at) < 8 ? (size_t)(end - *at) : 8;

	if (what % 4 == 0) {
		memcpy(&word, *at, n);
		*at += n;
		atomic_store(what & 4 ? &link->lane->consumed : &link->lane->chunks_freed, word);
	} else if (what % 4 == 1) { /* what a sound reader would say, or a little more or less */
		atomic_store(&link->lane->consumed, link->writer.position + what / 4 % 4 - 1);
		atomic_store(&link->lane->chunks_freed,
			     link->chunks.nr_freed + link->chunks.nr_held + what / 16 % 4 - 1);
	} else if (!link->cast_out) {
		send(w, link, what % 4 == 2 ? what : what * 32u);
	}
	check_pool(w);
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	const uint8_t *end = bytes + len;
	struct world w;
	int i;

	w.bytes = malloc(NR_CHUNKS * CHUNK);
	expect(w.bytes && !nm_pool_init(&w.pool, w.bytes, CHUNK, NR_CHUNKS));
	for (i = 0; i < NR_USERS; i++) {
		struct link *link = &w.links[i];

		memset(link, 0, sizeof(*link));
		link->slots = aligned_alloc(NM_CACHE_LINE, NR_SLOTS * sizeof(*link->slots));
		link->lane = aligned_alloc(NM_CACHE_LINE, sizeof(*link->lane));
		expect(link->slots && link->lane);
		memset(link->slots, 0, NR_SLOTS * sizeof(*link->slots));
		memset(link->lane, 0, sizeof(*link->lane));
		nm_ring_writer_init(&link->writer, link->slots, NR_SLOTS, link->lane, 0, 100);
	}
	while (bytes < end)
		act(&w, &bytes, end);
	for (i = 0; i < NR_USERS; i++) {
		free(w.links[i].slots);
		free(w.links[i].lane);
	}
	nm_pool_fini(&w.pool);
	free(w.bytes);
}
