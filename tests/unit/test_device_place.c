/* SPDX-License-Identifier: Apache-2.0 */
/* Large messages that a device copies by itself, from and to the windows: in place, and in time. */
#include "device_fixture.h"

/*
 * A large message, of which the device copies OUT bytes straight into the sender's window, and at
 * least IN bytes out of it.
 */
static void expect_in_place(size_t out, size_t in)
{
	const struct nm_window_header *window;

	open_both();
	window = near_window(a);
	watched = (const char *)window;
	nr_watched = window->geometry.size;
	watched_bytes = read_only_bytes = 0;
	write_pattern(0, LEN, 2);
	post(b, a, false, at(4 * LEN), LEN);
	post(a, b, true, at(0), LEN);
	NM_CHECK_EQ(near_wait(b, a, NULL).err, 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	check_pattern(4 * LEN, LEN, 2);
	NM_CHECK_EQ(watched_bytes, out);
	NM_CHECK(read_only_bytes >= in && (in || !read_only_bytes));
	watched = read_only = NULL;
	close_both();
}

NM_TEST(a_device_copies_from_window_to_window)
{
	/* The chunks of a small pool do not all stay until they are copied. */
	expect_in_place(LEN, LEN / 4);
	/* Memory that cannot be pinned gets the bytes from blocks. */
	pins_nothing = true;
	expect_in_place(0, 0);
	pins_nothing = false;
}

/* Chunks of other messages come between those that the device has yet to read. */
NM_TEST(messages_between_the_chunks_of_a_device)
{
	enum { NR = 400, SMALL = 9000 };
	char *in = malloc((size_t)NR * SMALL), *out = malloc(SMALL);
	unsigned int nr_sent = 0, nr_left = NR + 2;

	setenv("NEARMETAL_CHUNK_SIZE", "65536", 1);
	open_both();
	write_pattern(0, LEN, 6);
	post(b, a, false, at(4 * LEN), LEN);
	for (size_t i = 0; i < NR; i++)
		NM_CHECK_EQ(near_recv(b, a, in + i * SMALL, SMALL, 100 + i, NULL), 0);
	post(a, b, true, at(0), LEN);
	while (nr_left) {
		/* As many as there is room for, so that a chunk is used again as soon as it is free. */
		do {
			fill(out, SMALL, nr_sent);
		} while (nr_sent < NR && near_send(a, b, out, SMALL, 100 + nr_sent, 0, NULL) == 0 &&
			 ++nr_sent);
		near_step(a, b, NULL);
		nr_left -= nr_completed(b) + nr_completed(a);
	}
	for (size_t i = 0; i < NR; i++)
		check_filled(in + i * SMALL, SMALL, i);
	check_pattern(4 * LEN, LEN, 6);
	close_both();
	free(in);
	free(out);
}

/*
 * Receivers whose devices read the pool of one sender. None of them may keep a chunk until a packet
 * comes for which the others left no chunk.
 */
NM_TEST(receivers_share_the_pool_of_a_sender)
{
	enum { NR = 3, TURNS = 4 };
	struct near_node *to[NR], *from;
	unsigned int nr_done = 0, idle = 0;

	plug();
	from = near_create(false);
	write_pattern(0, LEN, 9);
	for (uint64_t i = 0; i < NR; i++) {
		to[i] = near_create(false);
		near_link(from, to[i]);
		near_link(to[i], from);
		post(to[i], from, false, at((1 + i) * LEN), LEN);
		post(from, to[i], true, at(0), LEN);
	}
	while (nr_done < 2 * NR) {
		unsigned int moved = 0;

		for (unsigned int turn = 0; turn < TURNS; turn++)
			moved += nm_engine_progress(from->engine);
		nr_done += nr_completed(from);
		for (unsigned int i = 0; i < NR; i++) {
			moved += nm_engine_progress(to[i]->engine);
			nr_done += nr_completed(to[i]);
		}
		idle = moved ? 0 : idle + 1;
		if (idle > 100000)
			nm_test_fail(__FILE__, __LINE__, "nothing moves: %u of %u ended", nr_done,
				     2U * NR);
	}
	for (uint64_t i = 0; i < NR; i++) {
		check_pattern((1 + i) * LEN, LEN, 9);
		near_destroy(to[i]);
	}
	near_destroy(from);
	unplug();
}

/* A get that the target ends midway: at its completion the device writes no more into its buffer. */
NM_TEST(gets_that_the_target_ends)
{
	struct iovec iov = {at(2 * LEN), LEN}, exposed = {at(4 * LEN), LEN};
	const struct nm_memory_attr attr = {
		.iov = &exposed, .nr_iov = 1, .access = BOTH, .key = KEY};
	struct nm_memory_region *region;
	struct nm_rma rma = {
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.len = LEN, .key = KEY}},
		.nr_remote = 1,
		.flags = NM_COMPLETION,
	};

	setenv("NEARMETAL_DEVICE_BLOCK", "65536", 1);
	/* Smaller than the message, so that it cannot be sent whole before the end. */
	setenv("NEARMETAL_POOL_SIZE", "1M", 1);
	open_both();
	rma.peer = near_peer(a, b);
	NM_CHECK_EQ(nm_memory_register(b->memory, &attr, &region), 0);
	NM_CHECK_EQ(nm_engine_read(a->engine, &rma), 0);
	while (nr_puts == 0)
		near_step(a, b, NULL);
	nm_memory_deregister(b->memory, region);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, EACCES);
	NM_CHECK_EQ(nr_going, 0);
	close_both();
}

NM_TEST(a_device_copies_no_checksums)
{
	setenv("NEARMETAL_CHECKSUM", "on", 1);
	expect_in_place(0, 0);
}

/* A node goes in mid-transfer: by its completion the other one copies from or to its buffer no more. */
static void lose_in_flight(bool is_sender_lost)
{
	open_both();
	write_pattern(0, LEN, 1);
	post(b, a, false, at(4 * LEN), LEN);
	post(a, b, true, at(0), LEN);
	while (nr_going == 0 || nr_puts == 0)
		near_step(a, b, NULL);
	NM_CHECK(nr_going > 0);
	near_destroy(is_sender_lost ? a : b);
	NM_CHECK_EQ(near_wait(is_sender_lost ? b : a, NULL, NULL).err, ECONNRESET);
	NM_CHECK_EQ(nr_going, 0);
	near_destroy(is_sender_lost ? b : a);
	unplug();
}

NM_TEST(transfers_that_lose_a_side)
{
	setenv("NEARMETAL_CLOSE_MS", "0", 1);
	lose_in_flight(true);
	lose_in_flight(false);
}
