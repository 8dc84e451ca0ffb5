/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between machines: each once, in order, to whom they are addressed. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "harness.h"
#include "vmseg_fixture.h"

#define PART (4 * SEGMENT_MIB)

struct machine {
	struct nm_vmseg *segment;
	struct nm_vmseg_claim *claim;
	struct nm_vmseg_inbox *inbox;
};

static struct machine boot(uint32_t part, char name)
{
	struct machine m = {.segment = segment_attach(part)};

	m.claim = segment_open(m.segment, name, NULL);
	m.inbox = nm_vmseg_inbox_create(m.claim);
	NM_CHECK(m.inbox != NULL);
	return m;
}

static void halt(struct machine *m)
{
	nm_vmseg_inbox_destroy(m->inbox);
	nm_vmseg_release(m->claim);
	nm_vmseg_detach(m->segment);
}

static uint32_t post(struct machine *from, struct machine *to, const char *text)
{
	uint32_t cell;

	NM_CHECK_EQ(nm_vmseg_post(from->claim, nm_vmseg_own_address(to->claim), text,
				  strlen(text) + 1, &cell),
		    0);
	return cell;
}

static void expect(struct machine *to, struct machine *from, const char *text)
{
	struct nm_vmseg_letter letter;

	NM_CHECK(nm_vmseg_take(to->inbox, &letter));
	NM_CHECK_STR((const char *)letter.bytes, text);
	NM_CHECK_EQ(letter.len, strlen(text) + 1);
	NM_CHECK(nm_vmseg_address_equal(&letter.from, nm_vmseg_own_address(from->claim)));
}

static void expect_nothing(struct machine *to)
{
	struct nm_vmseg_letter letter;

	NM_CHECK(!nm_vmseg_take(to->inbox, &letter));
	NM_CHECK(!nm_vmseg_knocked(to->inbox));
}

NM_TEST(messages_arrive_once_and_in_order)
{
	struct machine a, b, c;

	segment_file(3, PART);
	a = boot(0, 'a');
	b = boot(1, 'b');
	c = boot(2, 'c');
	expect_nothing(&b);
	post(&a, &b, "one");
	NM_CHECK(nm_vmseg_knocked(b.inbox));
	post(&a, &b, "two");
	post(&a, &c, "three");
	expect(&b, &a, "one");
	expect(&b, &a, "two");
	post(&c, &b, "four");
	expect(&b, &c, "four");
	expect_nothing(&b);
	expect(&c, &a, "three");
	expect_nothing(&c);
	post(&b, &a, "back");
	expect(&a, &b, "back");
	expect_nothing(&a);
	expect_nothing(&b);
	halt(&a);
	halt(&b);
	halt(&c);
}

NM_TEST(cells_are_used_again_when_messages_were_taken_back)
{
	const struct nm_vmseg_address *to;
	struct nm_vmseg_letter letter;
	uint32_t cells[64], extra;
	struct machine a, b;
	unsigned int nr = 0;

	segment_file(2, PART);
	a = boot(0, 'a');
	b = boot(1, 'b');
	to = nm_vmseg_own_address(b.claim);
	while (nm_vmseg_post(a.claim, to, &nr, sizeof(nr), &cells[nr]) == 0)
		nr++;
	NM_CHECK_EQ(nr, NM_VMSEG_NR_CELLS);
	NM_CHECK_EQ(nm_vmseg_post(a.claim, to, "x", 1, &extra), -EAGAIN);
	NM_CHECK_EQ(nm_vmseg_post(a.claim, to, "x", NM_VMSEG_MESSAGE_MAX + 1, &extra), -EMSGSIZE);
	nm_vmseg_retract(a.claim, cells[3]);
	nm_vmseg_retract(a.claim, 9999);
	extra = post(&a, &b, "again");
	NM_CHECK_EQ(extra, cells[3]);
	for (unsigned int i = 0; i < nr; i++) {
		if (i == 3)
			continue;
		NM_CHECK(nm_vmseg_take(b.inbox, &letter));
		NM_CHECK_EQ(letter.bytes[0], i);
	}
	expect(&b, &a, "again");
	expect_nothing(&b);
	halt(&a);
	halt(&b);
}

NM_TEST(a_machine_with_many_messages_keeps_out_nobody)
{
	struct nm_vmseg_letter letter;
	struct machine a, b, c;
	unsigned int nr_before = 0;

	segment_file(3, PART);
	a = boot(0, 'a');
	b = boot(1, 'b');
	c = boot(2, 'c');
	for (int i = 0; i < NM_VMSEG_NR_CELLS; i++)
		post(&a, &b, "noise");
	/* Its walk has begun when the other one writes. */
	expect(&b, &a, "noise");
	post(&c, &b, "news");
	while (nm_vmseg_take(b.inbox, &letter) && strcmp((const char *)letter.bytes, "news") != 0)
		nr_before++;
	NM_CHECK(nr_before <= 1);
	for (unsigned int i = nr_before + 1; i < NM_VMSEG_NR_CELLS; i++)
		expect(&b, &a, "noise");
	expect_nothing(&b);
	halt(&a);
	halt(&b);
	halt(&c);
}

NM_TEST(two_containers_of_one_machine_write_to_each_other)
{
	struct machine a, also;

	segment_file(2, PART);
	a = boot(0, 'a');
	also = boot(0, 'z');
	post(&a, &also, "near");
	expect(&also, &a, "near");
	expect_nothing(&a);
	halt(&a);
	halt(&also);
}

NM_TEST(the_last_words_of_one_who_left_arrive)
{
	struct nm_vmseg_letter letter;
	struct machine a, b;

	segment_file(2, PART);
	a = boot(0, 'a');
	b = boot(1, 'b');
	post(&a, &b, "farewell");
	halt(&a);
	NM_CHECK(nm_vmseg_take(b.inbox, &letter));
	NM_CHECK_STR((const char *)letter.bytes, "farewell");
	expect_nothing(&b);
	halt(&b);
}

/* A machine that writes anything anywhere in its own part. */
NM_TEST(garbage_in_a_neighbours_part_ends_soon)
{
	uint64_t offset = segment_part_offset(0, PART), seed = 11, knock = 5;
	static uint8_t noise[256 * 1024];
	struct nm_vmseg_letter letter;
	struct nm_vmseg_peer peer;
	struct machine a, b, c;
	uint64_t cursor;

	segment_file(3, PART);
	a = boot(0, 'a');
	b = boot(1, 'b');
	c = boot(2, 'c');
	for (int round = 0; round < 200; round++) {
		unsigned int nr = 0;

		for (size_t i = 0; i < sizeof(noise) / 8; i++)
			((uint64_t *)(void *)noise)[i] =
				round % 2 ? nm_test_random(&seed) : nm_test_random(&seed) % 6;
		/* mostly behind a header that makes sense, and always with a knock */
		segment_poke(offset + 4096, noise, sizeof(noise));
		if (round % 10 == 0)
			segment_poke(offset + sizeof(uint64_t), noise, 128);
		knock += 1 + (uint64_t)round;
		segment_poke(offset + offsetof(struct nm_vmseg_part, knock), &knock, sizeof(knock));
		while (nm_vmseg_take(b.inbox, &letter)) {
			NM_CHECK_EQ(letter.from.part, 0);
			NM_CHECK(letter.len <= NM_VMSEG_MESSAGE_MAX);
			NM_CHECK(++nr <= NM_VMSEG_MAX_SLOTS * NM_VMSEG_MAX_CELLS);
		}
		cursor = 0;
		while (nm_vmseg_next(b.segment, &cursor, &peer))
			NM_CHECK(peer.window_off + peer.window_size <= PART);
		post(&c, &b, "still here");
		expect(&b, &c, "still here");
		for (uint32_t cell = 0; cell < NM_VMSEG_NR_CELLS; cell++)
			nm_vmseg_retract(c.claim, cell);
	}
	halt(&a);
	halt(&b);
	halt(&c);
}

struct flood {
	uint32_t sequence;
	uint32_t fill[60];
};

static void flood(void *arg)
{
	struct machine me = boot(1, 'f');
	struct nm_vmseg_peer peer;
	struct flood message;
	uint32_t cells[4], n;

	(void)arg;
	while (segment_find(me.segment, (const uint8_t *)"tid\0\0", &peer))
		nm_test_sleep_ms(1);
	/* each is taken back soon, whether it has been read or not; the last one stays */
	for (n = 1; n <= 20000; n++) {
		if (n > NM_ARRAY_SIZE(cells))
			nm_vmseg_retract(me.claim, cells[n % NM_ARRAY_SIZE(cells)]);
		message.sequence = n;
		for (size_t i = 0; i < NM_ARRAY_SIZE(message.fill); i++)
			message.fill[i] = n * 7;
		NM_CHECK_EQ(nm_vmseg_post(me.claim, &peer.address, &message, sizeof(message),
					  &cells[n % NM_ARRAY_SIZE(cells)]),
			    0);
		if (n % 64 == 0)
			nm_test_sleep_ms(0);
	}
	halt(&me);
}

NM_TEST_WITHIN(messages_that_are_taken_back_are_whole_or_lost, 60)
{
	uint32_t last = 0, nr = 0;
	struct machine me;
	pid_t child;

	segment_file(2, PART);
	child = nm_test_fork(flood, NULL);
	me = boot(0, 't');
	while (last < 20000) {
		struct nm_vmseg_letter letter;
		struct flood message;

		if (!nm_vmseg_take(me.inbox, &letter)) {
			nm_test_sleep_ms(0);
			continue;
		}
		NM_CHECK_EQ(letter.len, sizeof(message));
		memcpy(&message, letter.bytes, sizeof(message));
		NM_CHECK(message.sequence > last);
		for (size_t i = 0; i < NM_ARRAY_SIZE(message.fill); i++)
			NM_CHECK_EQ(message.fill[i], message.sequence * 7);
		last = message.sequence;
		nr++;
	}
	NM_CHECK(nr > 0);
	nm_test_join(child, 0);
	halt(&me);
}
