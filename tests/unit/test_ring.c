/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of a link: laps, credits, and bytes that no sound peer writes. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"
#include "shm/ring.h"

#define NR_SLOTS 16
#define POOL_CHUNK 4096
#define POOL_CHUNKS 4

/* Both ends in one process; what is a peer's window elsewhere is plain memory here. */
struct pair {
	struct nm_slot slots[NR_SLOTS];
	struct nm_lane lane;
	uint8_t pool[POOL_CHUNK * POOL_CHUNKS];
	struct nm_ring_writer writer;
	struct nm_ring_reader reader;
	uint8_t bounce[NM_RING_INLINE_LIMIT];
};

static struct pair *pair_create(uint64_t start)
{
	struct pair *pair = aligned_alloc(64, (sizeof(*pair) + 63) & ~(size_t)63);

	NM_CHECK(pair != NULL);
	memset(pair, 0, sizeof(*pair));
	nm_ring_reset_feedback(&pair->lane, start);
	nm_ring_writer_init(&pair->writer, pair->slots, NR_SLOTS, &pair->lane, start, 65535);
	nm_ring_reader_init(&pair->reader, pair->slots, NR_SLOTS, pair->pool, POOL_CHUNK,
			    POOL_CHUNKS, &pair->lane, start);
	return pair;
}

static int write_text(struct pair *pair, uint64_t tag, const char *text)
{
	struct nm_packet pkt = {.op = 63, .flags = 255, .len = (uint32_t)strlen(text), .tag = tag};
	struct iovec iov = {(void *)(uintptr_t)text, pkt.len};

	return nm_ring_write_inline(&pair->writer, &pkt, &iov, 1);
}

static void expect_text(struct pair *pair, uint64_t tag, const char *text)
{
	struct nm_packet pkt;
	const void *payload;

	NM_CHECK(nm_ring_ready(&pair->reader));
	NM_CHECK_EQ(nm_ring_peek(&pair->reader, pair->bounce, &pkt, &payload), 1);
	NM_CHECK_EQ(pkt.tag, tag);
	NM_CHECK_EQ(pkt.op, 63);
	NM_CHECK_EQ(pkt.flags, 255);
	NM_CHECK_EQ(pkt.len, strlen(text));
	NM_CHECK(!memcmp(payload, text, pkt.len));
	nm_ring_release(&pair->reader);
}

static void expect_nothing(struct pair *pair)
{
	struct nm_packet pkt;
	const void *payload;

	NM_CHECK(!nm_ring_ready(&pair->reader));
	NM_CHECK_EQ(nm_ring_peek(&pair->reader, pair->bounce, &pkt, &payload), 0);
}

NM_TEST(empty_box_is_empty)
{
	struct pair *pair = pair_create(0);

	expect_nothing(pair);
	free(pair);
}

NM_TEST(packets_wrap_around_and_cross_32_bits)
{
	static const uint64_t starts[] = {0, 5, UINT32_MAX - 40, UINT64_C(1) << 40};
	char text[NM_SLOT_INLINE + 3 * NM_SLOT_BODY + 1];
	struct pair *pair;
	size_t s, i;

	memset(text, 'x', sizeof(text));
	for (s = 0; s < NM_ARRAY_SIZE(starts); s++) {
		pair = pair_create(starts[s]);
		for (i = 0; i < 1000; i++) {
			text[i % (sizeof(text) - 1)] = '\0';
			NM_CHECK_EQ(write_text(pair, i, text), 0);
			expect_text(pair, i, text);
			expect_nothing(pair);
			text[i % (sizeof(text) - 1)] = (char)('a' + i % 26);
			text[sizeof(text) - 1] = '\0';
		}
		free(pair);
	}
}

/* The payload past the head cannot be read until a fault has shown the head as it is then. */
static struct {
	const struct pair *pair;
	uint8_t *page;
	size_t len;
	volatile uint64_t tag;
	volatile sig_atomic_t nr;
} hidden;

static void look_at_head(int signal)
{
	(void)signal;
	hidden.tag = hidden.pair->slots[0].head.tag;
	/* A second fault is another one: it ends the test. */
	if (hidden.nr++ || mprotect(hidden.page, hidden.len, PROT_READ))
		_exit(1);
}

NM_TEST(head_is_written_after_its_bodies)
{
	struct nm_packet pkt = {.op = 63, .len = NM_SLOT_INLINE + NM_SLOT_BODY, .tag = 42};
	const struct sigaction look = {.sa_handler = look_at_head};
	struct pair *pair = pair_create(0);
	struct sigaction before;
	struct iovec iov;
	uint8_t *pages;

	hidden.len = (size_t)sysconf(_SC_PAGESIZE);
	pages = mmap(NULL, 2 * hidden.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		     0);
	NM_CHECK(pages != MAP_FAILED);
	hidden.page = pages + hidden.len;
	hidden.pair = pair;
	NM_CHECK_EQ(mprotect(hidden.page, hidden.len, PROT_NONE), 0);
	NM_CHECK_EQ(sigaction(SIGSEGV, &look, &before), 0);
	iov = (struct iovec){hidden.page - NM_SLOT_INLINE, pkt.len};
	NM_CHECK_EQ(nm_ring_write_inline(&pair->writer, &pkt, &iov, 1), 0);
	NM_CHECK_EQ(sigaction(SIGSEGV, &before, NULL), 0);
	NM_CHECK_EQ(hidden.nr, 1);
	NM_CHECK_EQ(hidden.tag, 0);
	NM_CHECK_EQ(pair->slots[0].head.tag, 42);
	munmap(pages, 2 * hidden.len);
	free(pair);
}

NM_TEST(full_box_refuses_until_credits_return)
{
	struct pair *pair = pair_create(7);
	int i;

	for (i = 0; i < NR_SLOTS; i++)
		NM_CHECK_EQ(write_text(pair, (uint64_t)i, "small"), 0);
	NM_CHECK_EQ(write_text(pair, 99, "small"), -EAGAIN);
	NM_CHECK_EQ(nm_ring_check_room(&pair->writer), -EAGAIN);
	/* The reader keeps credits until a quarter has come together or it runs idle. */
	expect_text(pair, 0, "small");
	NM_CHECK_EQ(write_text(pair, 99, "small"), -EAGAIN);
	nm_ring_return_credits(&pair->reader);
	NM_CHECK_EQ(write_text(pair, 16, "small"), 0);
	NM_CHECK_EQ(write_text(pair, 99, "small"), -EAGAIN);
	for (i = 1; i <= 4; i++)
		expect_text(pair, (uint64_t)i, "small");
	NM_CHECK_EQ(write_text(pair, 17, "small"), 0);
	for (i = 5; i <= 17; i++)
		expect_text(pair, (uint64_t)i, "small");
	expect_nothing(pair);
	free(pair);
}

NM_TEST(nothing_is_written_when_it_does_not_fit)
{
	char text[NM_SLOT_INLINE + 2 * NM_SLOT_BODY + 1];
	struct pair *pair = pair_create(0);
	struct nm_slot before[NR_SLOTS];
	int i;

	memset(text, 'y', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	for (i = 0; i < NR_SLOTS - 2; i++)
		NM_CHECK_EQ(write_text(pair, 1, "s"), 0);
	memcpy(before, pair->slots, sizeof(before));
	NM_CHECK_EQ(write_text(pair, 2, text), -EAGAIN); /* three slots, two are left */
	NM_CHECK(!memcmp(before, pair->slots, sizeof(before)));
	NM_CHECK_EQ(write_text(pair, 3, "s"), 0);
	free(pair);
}

NM_TEST(inline_limit_is_a_quarter_of_the_box)
{
	struct pair *pair = pair_create(0);

	NM_CHECK_EQ(pair->writer.inline_max, NM_SLOT_INLINE + 3 * NM_SLOT_BODY);
	free(pair);
}

NM_TEST(what_an_earlier_stream_left_is_not_taken)
{
	struct pair *pair = pair_create(0);
	uint64_t next;
	int i;

	for (i = 0; i < 11; i++)
		NM_CHECK_EQ(write_text(pair, 1, "old"), 0);
	next = pair->writer.position + NR_SLOTS;
	nm_ring_reset_feedback(&pair->lane, next);
	nm_ring_writer_init(&pair->writer, pair->slots, NR_SLOTS, &pair->lane, next, 64);
	nm_ring_reader_init(&pair->reader, pair->slots, NR_SLOTS, pair->pool, POOL_CHUNK,
			    POOL_CHUNKS, &pair->lane, next);
	expect_nothing(pair);
	NM_CHECK_EQ(write_text(pair, 2, "new"), 0);
	expect_text(pair, 2, "new");
	expect_nothing(pair);
	free(pair);
}

NM_TEST(chunks_are_found_in_the_pool)
{
	struct pair *pair = pair_create(3);
	struct nm_packet pkt = {.op = 1, .len = 100, .tag = 4, .data = 5};
	const void *payload;

	NM_CHECK_EQ(nm_ring_check_room(&pair->writer), 0);
	nm_ring_write_chunk(&pair->writer, &pkt, 3, POOL_CHUNK - 100);
	memset(&pkt, 0, sizeof(pkt));
	NM_CHECK_EQ(nm_ring_peek(&pair->reader, pair->bounce, &pkt, &payload), 1);
	NM_CHECK_EQ(pkt.len, 100);
	NM_CHECK_EQ(pkt.tag, 4);
	NM_CHECK_EQ(pkt.data, 5);
	NM_CHECK(payload == pair->pool + 4 * POOL_CHUNK - 100);
	NM_CHECK_EQ(atomic_load(&pair->lane.chunks_freed), 0);
	nm_ring_release(&pair->reader);
	NM_CHECK_EQ(atomic_load(&pair->lane.chunks_freed), 1);
	free(pair);
}

/* What a sound writer leaves is sound wherever the reader stands; random bytes mostly are not. */
NM_TEST(spoiled_slots_are_told_from_old_ones)
{
	struct pair *pair = pair_create(UINT32_MAX - 20);
	uint64_t random = 7, next;
	unsigned int found = 0, i;

	for (i = 0; i < 200; i++) {
		const char *text =
			i % 4 ? "short" : "one that is long enough for two slots of the box";

		NM_CHECK(nm_ring_is_sound(&pair->reader));
		NM_CHECK_EQ(write_text(pair, i, text), 0);
		NM_CHECK(nm_ring_is_sound(&pair->reader));
		expect_text(pair, i, text);
	}
	/* Another stream in the same ring, as when a lane is used again. */
	next = (uint32_t)(pair->writer.position + NR_SLOTS);
	nm_ring_reset_feedback(&pair->lane, next);
	nm_ring_writer_init(&pair->writer, pair->slots, NR_SLOTS, &pair->lane, next, 64);
	nm_ring_reader_init(&pair->reader, pair->slots, NR_SLOTS, pair->pool, POOL_CHUNK,
			    POOL_CHUNKS, &pair->lane, next);
	for (i = 0; i < 40; i++) {
		NM_CHECK(nm_ring_is_sound(&pair->reader));
		NM_CHECK_EQ(write_text(pair, i, "again"), 0);
		expect_text(pair, i, "again");
	}
	for (i = 0; i < 1000; i++) {
		atomic_store(&pair->slots[pair->reader.position % NR_SLOTS].control,
			     nm_test_random(&random));
		found += !nm_ring_is_sound(&pair->reader);
	}
	NM_CHECK(found > 900);
	free(pair);
}

NM_TEST(lying_reader_is_found_out)
{
	static const int64_t lies[] = {-1, 6, 7, 100, INT64_MAX, INT64_MIN};
	struct pair *pair;
	size_t i;
	int n;

	for (i = 0; i < NM_ARRAY_SIZE(lies); i++) {
		pair = pair_create(1000);
		for (n = 0; n < 5; n++)
			NM_CHECK_EQ(write_text(pair, 1, "x"), 0);
		atomic_store(&pair->lane.consumed, 1000 + (uint64_t)lies[i]);
		for (; n < NR_SLOTS; n++)
			NM_CHECK_EQ(write_text(pair, 1, "x"), 0);
		/* Sixteen are written now, so only 1000..1016 is possible. */
		if (lies[i] >= 0 && lies[i] <= NR_SLOTS)
			NM_CHECK_EQ(write_text(pair, 1, "x"), lies[i] ? 0 : -EAGAIN);
		else
			NM_CHECK_EQ(write_text(pair, 1, "x"), -EBADMSG);
		free(pair);
	}
}

NM_TEST(counter_that_goes_back_is_found_out)
{
	struct pair *pair = pair_create(0);
	int i;

	for (i = 0; i < NR_SLOTS; i++)
		NM_CHECK_EQ(write_text(pair, 1, "x"), 0);
	atomic_store(&pair->lane.consumed, 8);
	for (i = 0; i < 8; i++)
		NM_CHECK_EQ(write_text(pair, 1, "x"), 0);
	atomic_store(&pair->lane.consumed, 7);
	NM_CHECK_EQ(write_text(pair, 1, "x"), -EBADMSG);
	free(pair);
}

static uint64_t word(uint64_t sequence, uint64_t kind, uint64_t len)
{
	return sequence | kind << NM_CONTROL_KIND_SHIFT | len << NM_CONTROL_LEN_SHIFT;
}

/* Returns what the reader says to a head with this control word and chunk. */
static int take_forged(uint64_t control, uint32_t index, uint32_t offset, uint32_t len)
{
	struct pair *pair = pair_create(0);
	struct nm_packet pkt;
	const void *payload;
	int got;

	pair->slots[0].head.chunk.index = index;
	pair->slots[0].head.chunk.offset = offset;
	pair->slots[0].head.chunk.len = len;
	atomic_store(&pair->slots[0].control, control);
	got = nm_ring_peek(&pair->reader, pair->bounce, &pkt, &payload);
	free(pair);
	return got;
}

NM_TEST(forged_heads_are_refused)
{
	uint64_t chunk = word(1, NM_SLOT_HEAD_CHUNK, 0);

	NM_CHECK_EQ(take_forged(word(2, NM_SLOT_HEAD_INLINE, 0), 0, 0, 0), 0);
	NM_CHECK_EQ(take_forged(word(1, NM_SLOT_HEAD_INLINE, 40), 0, 0, 0), 1);
	NM_CHECK_EQ(take_forged(word(1, 0, 0), 0, 0, 0), -EBADMSG);
	NM_CHECK_EQ(take_forged(word(1, NM_SLOT_BODY_KIND, 0), 0, 0, 0), -EBADMSG);
	/* Longer than the ring; and within it, but the following slots are not bodies. */
	NM_CHECK_EQ(take_forged(word(1, NM_SLOT_HEAD_INLINE, 65535), 0, 0, 0), -EBADMSG);
	NM_CHECK_EQ(take_forged(word(1, NM_SLOT_HEAD_INLINE, 41), 0, 0, 0), -EBADMSG);
	NM_CHECK_EQ(take_forged(chunk, 3, 0, POOL_CHUNK), 1);
	NM_CHECK_EQ(take_forged(chunk, 4, 0, 1), -EBADMSG);
	NM_CHECK_EQ(take_forged(chunk, UINT32_MAX, 0, 1), -EBADMSG);
	NM_CHECK_EQ(take_forged(chunk, 0, 0, POOL_CHUNK + 1), -EBADMSG);
	NM_CHECK_EQ(take_forged(chunk, 0, 1, POOL_CHUNK), -EBADMSG);
	NM_CHECK_EQ(take_forged(chunk, 0, UINT32_MAX, 2), -EBADMSG);
	NM_CHECK_EQ(take_forged(chunk, 0, UINT32_MAX - 1, UINT32_MAX), -EBADMSG);
	NM_CHECK_EQ(take_forged(chunk, 3, POOL_CHUNK, 0), 1);
}

/* Two threads, for ThreadSanitizer: every byte that crosses is ordered by the control word. */
#define NR_CROSSING 50000

static void *write_all(void *arg)
{
	struct pair *pair = arg;
	uint64_t i, words[20];
	struct nm_packet pkt = {.op = 1};
	struct iovec iov = {words, 0};
	size_t n;

	for (i = 0; i < NR_CROSSING; i++) {
		pkt.tag = i;
		pkt.len = (uint32_t)(i % 20 * 8);
		iov.iov_len = pkt.len;
		for (n = 0; n < i % 20; n++)
			words[n] = i * 31 + n;
		while (nm_ring_write_inline(&pair->writer, &pkt, &iov, 1) == -EAGAIN)
			sched_yield();
	}
	return NULL;
}

NM_TEST_WITHIN(packets_cross_between_threads, 60)
{
	struct pair *pair = pair_create(UINT32_MAX - 1000);
	struct nm_packet pkt;
	const void *payload;
	uint64_t i, n, value;
	pthread_t thread;

	NM_CHECK_EQ(pthread_create(&thread, NULL, write_all, pair), 0);
	for (i = 0; i < NR_CROSSING; i++) {
		while (!nm_ring_ready(&pair->reader))
			nm_ring_return_credits(&pair->reader);
		NM_CHECK_EQ(nm_ring_peek(&pair->reader, pair->bounce, &pkt, &payload), 1);
		NM_CHECK_EQ(pkt.tag, i);
		NM_CHECK_EQ(pkt.len, i % 20 * 8);
		for (n = 0; n < i % 20; n++) {
			memcpy(&value, (const char *)payload + n * 8, 8);
			NM_CHECK_EQ(value, i * 31 + n);
		}
		nm_ring_release(&pair->reader);
	}
	pthread_join(thread, NULL);
	free(pair);
}
