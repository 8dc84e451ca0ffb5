/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets without the target's help: it makes no progress here unless a test says so. What
 * cannot be done so is done or judged by the target.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/atomic.h"
#include "harness.h"
#include "near_fixture.h"
#include "shm/regions.h"
#include "traffic.h"

#define KEY 7
#define BOTH (NM_REMOTE_READ | NM_REMOTE_WRITE)
#define LEN 1000000

static struct near_node *a, *b;
static char *window, *local;

static void setup(void)
{
	a = near_create(false);
	b = near_create(false);
	near_link(a, b);
	near_link(b, a);
	window = calloc(1, LEN);
	local = calloc(1, LEN);
}

static void teardown(void)
{
	near_destroy(a);
	near_destroy(b);
	free(window);
	free(local);
}

static struct nm_memory_region *expose(const struct nm_memory_attr *given)
{
	struct iovec iov = {window, LEN};
	struct nm_memory_attr attr = *given;
	struct nm_memory_region *region;

	if (!attr.iov) {
		attr.iov = &iov;
		attr.nr_iov = 1;
	}
	NM_CHECK_EQ(nm_memory_register(b->memory, &attr, &region), 0);
	return region;
}

static struct nm_memory_region *expose_all(void)
{
	return expose(&(struct nm_memory_attr){.access = BOTH, .key = KEY});
}

static struct nm_rma access_of(size_t len, uint64_t address)
{
	return near_rma(a, b, local, len, address, KEY);
}

/* Start an access while only A makes progress. Its error, or 1 when it is complete on return. */
static int start(const struct nm_rma *rma, bool is_read)
{
	struct nm_completion c;
	int err;

	/* Whatever B has polled in an earlier part of the case. */
	nm_test_sleep_ms(4);
	do {
		err = is_read ? nm_engine_read(a->engine, rma) : nm_engine_write(a->engine, rma);
	} while (err == -EAGAIN);
	if (err)
		return err;
	if (nm_cqueue_empty(a->cq))
		return 0;
	c = *nm_cqueue_front(a->cq);
	nm_cqueue_pop(a->cq);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK(c.context == rma->context);
	NM_CHECK_EQ(c.flags, NM_RMA | (is_read ? NM_READ : NM_WRITE));
	return 1;
}

/* It is not complete by itself; with B's help it ends with ERR. */
static void expect_asked(const struct nm_rma *rma, bool is_read, int err)
{
	struct nm_completion c;

	NM_CHECK_EQ(start(rma, is_read), 0);
	c = near_wait(a, b, NULL);
	NM_CHECK_EQ(c.err, err);
}

NM_TEST(every_size_while_the_target_sleeps)
{
	static const size_t sizes[] = {1, 8, 4096, 65536, 262144, 262145, 900000};
	struct nm_rma rma;

	setup();
	expose_all();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		fill(local, sizes[i], i);
		memset(window, 0, LEN);
		rma = access_of(sizes[i], 17);
		NM_CHECK_EQ(start(&rma, false), 1);
		check_filled(window + 17, sizes[i], i);
		NM_CHECK(window[16] == 0 && window[17 + sizes[i]] == 0);
		memset(local, 0, LEN);
		NM_CHECK_EQ(start(&rma, true), 1);
		check_filled(local, sizes[i], i);
		NM_CHECK_EQ(local[sizes[i]], 0);
	}
	teardown();
}

NM_TEST(pieces_on_both_sides_and_injects)
{
	struct iovec iov[3];
	struct nm_rma rma;

	setup();
	expose(&(struct nm_memory_attr){.access = BOTH, .key = KEY, .offset = 5000});
	fill(local, 1000, 3);
	rma = access_of(0, 0);
	iov[0] = (struct iovec){local, 10};
	iov[1] = (struct iovec){local + 10, 0};
	iov[2] = (struct iovec){local + 10, 990};
	rma.iov = iov;
	rma.nr_iov = 3;
	rma.nr_remote = 2;
	rma.remote[0] = (struct nm_remote){.address = 5100, .len = 700, .key = KEY};
	rma.remote[1] = (struct nm_remote){.address = 5000, .len = 100, .key = KEY};
	rma.remote[2] = (struct nm_remote){.address = 5800, .len = 200, .key = KEY};
	rma.nr_remote = 3;
	NM_CHECK_EQ(start(&rma, false), 1);
	NM_CHECK(!memcmp(window + 100, local, 700) && !memcmp(window, local + 700, 100) &&
		 !memcmp(window + 800, local + 800, 200));
	/* No completion was asked for. */
	rma.flags = NM_INJECT;
	memset(local, 'i', 1000);
	NM_CHECK_EQ(start(&rma, false), 0);
	NM_CHECK(window[0] == 'i' && window[999] == 'i' && window[1000] == 0);
	NM_CHECK_EQ(near_facts(a, b).sent_bytes, 2000);
	teardown();
}

NM_TEST(who_polls_is_asked_for_what_is_small)
{
	struct nm_completion c;
	struct nm_rma rma;

	setup();
	expose_all();
	rma = access_of(8, 0);
	NM_CHECK_EQ(start(&rma, false), 1);
	for (int i = 0; i < 300; i++)
		nm_engine_progress(b->engine);
	NM_CHECK(near_window(b)->polled_ns > 0);
	/* As if it had been this very moment, and went on. */
	near_window(b)->polled_ns = UINT64_MAX;
	NM_CHECK_EQ(start(&rma, false), 1);
	near_window(b)->polled_ns = nm_clock_ns() + 100000000;
	NM_CHECK_EQ(start(&rma, false), 1);
	near_window(b)->polled_ns = 0;
	do {
		near_window(b)->polled_ns = nm_clock_ns();
	} while (nm_engine_write(a->engine, &rma) == -EAGAIN);
	c = near_wait(a, b, NULL);
	NM_CHECK_EQ(c.err, 0);
	rma = access_of(8193, 0);
	near_window(b)->polled_ns = nm_clock_ns();
	NM_CHECK_EQ(start(&rma, false), 1);
	teardown();
}

NM_TEST(the_target_judges_what_is_not_allowed)
{
	struct nm_memory_region *region;
	struct nm_rma rma;

	setup();
	region = expose(&(struct nm_memory_attr){.access = NM_REMOTE_READ, .key = KEY});
	rma = access_of(100, 0);
	NM_CHECK_EQ(start(&rma, true), 1);
	expect_asked(&rma, false, EACCES);
	rma = access_of(100, LEN - 99);
	expect_asked(&rma, true, EACCES);
	rma = access_of(100, UINT64_MAX - 50);
	expect_asked(&rma, true, EACCES);
	rma = access_of(100, 0);
	rma.remote[0].key = KEY + 1;
	expect_asked(&rma, true, EACCES);
	rma.remote[0].key = KEY;
	nm_memory_deregister(b->memory, region);
	expect_asked(&rma, true, EACCES);
	/* The key may come back, for something else. */
	expose(&(struct nm_memory_attr){
		.iov = &(struct iovec){window + 10, 50}, .nr_iov = 1, .access = BOTH, .key = KEY});
	expect_asked(&rma, true, EACCES);
	rma = access_of(50, 0);
	memset(local, 'x', 50);
	NM_CHECK_EQ(start(&rma, false), 1);
	NM_CHECK(window[9] == 0 && window[10] == 'x' && window[59] == 'x' && window[60] == 0);
	teardown();
}

NM_TEST(the_target_serves_what_only_it_can)
{
	struct iovec halves[2] = {{NULL, 100}, {NULL, 100}};
	struct nm_counter counter = {0};
	struct nm_completion c;
	struct nm_rma rma;
	struct nm_memory_region *region;

	setup();
	region = expose_all();
	/* Completion data is for its queue. */
	rma = access_of(100, 0);
	rma.flags |= NM_REMOTE_CQ_DATA;
	rma.data = 9;
	expect_asked(&rma, false, 0);
	c = near_wait(b, a, NULL);
	NM_CHECK_EQ(c.data, 9);
	/* A counter counts what it sees. */
	rma.flags = NM_COMPLETION;
	NM_CHECK_EQ(start(&rma, false), 1);
	nm_memory_bind_counter(region, &counter);
	expect_asked(&rma, false, 0);
	NM_CHECK_EQ(counter.value, 1);
	nm_memory_deregister(b->memory, region);
	/* Several pieces are not shown. */
	halves[0].iov_base = window;
	halves[1].iov_base = window + 200;
	expose(&(struct nm_memory_attr){.iov = halves, .nr_iov = 2, .access = BOTH, .key = KEY});
	rma = access_of(200, 0);
	memset(local, 'h', 200);
	expect_asked(&rma, false, 0);
	NM_CHECK(window[99] == 'h' && window[150] == 0 && window[299] == 'h');
	teardown();
}

NM_TEST(endpoint_counters_turn_it_off_and_on)
{
	struct nm_counter counter = {0};
	struct nm_rma rma;

	setup();
	expose_all();
	rma = access_of(8, 0);
	NM_CHECK_EQ(start(&rma, false), 1);
	nm_engine_bind(b->engine,
		       &(struct nm_engine_queues){.receive = b->cq, .remote_write = &counter});
	expect_asked(&rma, false, 0);
	NM_CHECK_EQ(counter.value, 1);
	nm_engine_bind(b->engine, &(struct nm_engine_queues){.receive = b->cq});
	NM_CHECK_EQ(start(&rma, false), 1);
	teardown();
}

NM_TEST(nothing_overtakes_an_atomic)
{
	uint64_t one = 1, seen = 0;
	struct iovec operand = {&one, 8};
	struct nm_atomic atomic;
	struct nm_completion c;
	struct nm_rma rma;

	setup();
	expose(&(struct nm_memory_attr){.access = BOTH, .key = KEY});
	atomic = (struct nm_atomic){
		.operand = &operand,
		.nr_operand = 1,
		.remote = {{.address = 0, .len = 8, .key = KEY}},
		.nr_remote = 1,
		.datatype = NM_UINT64,
		.op = NM_SUM,
		.peer = near_peer(a, b),
		.context = &one,
		.flags = NM_COMPLETION,
	};
	NM_CHECK_EQ(nm_engine_atomic(a->engine, &atomic), 0);
	rma = access_of(8, 0);
	NM_CHECK_EQ(start(&rma, true), 0);
	c = near_wait(a, b, NULL);
	NM_CHECK(c.context == &one && c.err == 0);
	c = near_wait(a, b, NULL);
	NM_CHECK(c.context == local && c.err == 0);
	memcpy(&seen, local, 8);
	NM_CHECK_EQ(seen, 1);
	NM_CHECK_EQ(start(&rma, true), 1);
	teardown();
}

static void expect_accesses(enum nm_access_way way, enum nm_access_kind kind, uint64_t operations,
			    uint64_t bytes)
{
	struct nm_peer_facts facts = near_facts(a, b);

	NM_CHECK_EQ(facts.accesses[way][kind].messages, operations);
	NM_CHECK_EQ(facts.accesses[way][kind].bytes, bytes);
}

NM_TEST(accesses_are_counted_by_who_moved_the_bytes)
{
	uint64_t one = 1;
	struct iovec operand = {&one, 8};
	struct nm_atomic atomic;
	struct nm_rma rma;

	setup();
	expose_all();
	rma = access_of(70000, 0);
	NM_CHECK_EQ(start(&rma, true), 1);
	expect_accesses(NM_ACCESS_CMA, NM_ACCESS_GET, 1, 70000);
	/* The peer has not said a word, and yet its bytes came over a channel. */
	NM_CHECK_EQ(near_facts(a, b).received[NM_CHANNEL_SHM].bytes, 70000);
	NM_CHECK_EQ(near_facts(a, b).received[NM_CHANNEL_NONE].bytes, 0);
	rma = access_of(100, 0);
	NM_CHECK_EQ(start(&rma, false), 1);
	NM_CHECK_EQ(start(&rma, false), 1);
	expect_accesses(NM_ACCESS_CMA, NM_ACCESS_PUT, 2, 200);
	rma.flags |= NM_REMOTE_CQ_DATA;
	expect_asked(&rma, false, 0);
	expect_accesses(NM_ACCESS_SERVED, NM_ACCESS_PUT, 1, 100);
	atomic = (struct nm_atomic){
		.operand = &operand,
		.nr_operand = 1,
		.remote = {{.address = 0, .len = 8, .key = KEY}},
		.nr_remote = 1,
		.datatype = NM_UINT64,
		.op = NM_SUM,
		.peer = near_peer(a, b),
		.flags = NM_COMPLETION,
	};
	NM_CHECK_EQ(nm_engine_atomic(a->engine, &atomic), 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	expect_accesses(NM_ACCESS_SERVED, NM_ACCESS_ATOMIC, 1, 8);
	expect_accesses(NM_ACCESS_CMA, NM_ACCESS_PUT, 2, 200);
	expect_accesses(NM_ACCESS_DIRECT, NM_ACCESS_PUT, 0, 0);
	/* Who serves has started nothing. */
	NM_CHECK_EQ(near_facts(b, a).accesses[NM_ACCESS_SERVED][NM_ACCESS_PUT].messages, 0);
	teardown();
}

/* An entry that lies names places in the liar's memory only, and where there is none it serves. */
NM_TEST(entry_that_points_nowhere_costs_nothing_but_time)
{
	struct nm_region_slot *slots;
	struct nm_rma rma;

	setup();
	expose_all();
	slots = near_regions(b);
	for (int i = 0; i < NM_NR_REGIONS; i++)
		if (slots[i].key == KEY)
			slots[i].base = 4096;
	memset(local, 'z', 8);
	rma = access_of(8, 0);
	expect_asked(&rma, false, 0);
	NM_CHECK_EQ(window[7], 'z');
	/* Counted as what it became, and as what it was to be. */
	expect_accesses(NM_ACCESS_CMA, NM_ACCESS_PUT, 0, 0);
	expect_accesses(NM_ACCESS_SERVED, NM_ACCESS_PUT, 1, 8);
	NM_CHECK_EQ(near_facts(a, b).bulk.fallbacks, 1);
	NM_CHECK_HAS(near_facts(a, b).bulk.fallback.text, "a direct put failed");
	for (int i = 0; i < NM_NR_REGIONS; i++)
		slots[i].len = slots[i].base = UINT64_MAX;
	expect_asked(&rma, false, 0);
	/* Always being changed. */
	for (int i = 0; i < NM_NR_REGIONS; i++)
		slots[i].sequence = 1;
	expect_asked(&rma, true, 0);
	teardown();
}

NM_TEST(closing_waits_for_who_is_inside_and_not_for_ever)
{
	struct nm_memory_region *region, *other;
	struct nm_window_header *header;
	struct nm_lane *lanes;
	struct nm_rma rma;

	setup();
	region = expose_all();
	other = expose(&(struct nm_memory_attr){.access = BOTH, .key = KEY + 1});
	rma = access_of(8, 0);
	NM_CHECK_EQ(start(&rma, false), 1);
	NM_CHECK_EQ(start(&rma, false), 1);
	header = near_window(a);
	lanes = (void *)((char *)header + header->geometry.lanes_off);
	NM_CHECK_EQ(lanes[0].reaching, 4);
	/* As if A had been stopped in the middle. */
	lanes[0].reaching = 5;
	nm_memory_deregister(b->memory, other);
	/* Whatever it does when it goes on: there is no way in any more. */
	lanes[0].reaching = 6;
	expect_asked(&rma, false, 0);
	NM_CHECK(!near_facts(a, b).link.remote_copy);
	NM_CHECK_HAS(near_facts(a, b).link.copy_reason.text, "closed its endpoint");
	nm_memory_deregister(b->memory, region);
	teardown();
}

NM_TEST(more_regions_than_are_shown_are_served)
{
	struct nm_memory_region **regions = calloc(2000, sizeof(*regions));
	unsigned int direct = 0;
	struct nm_rma rma;

	setup();
	for (unsigned int i = 0; i < 2000; i++)
		regions[i] = expose(&(struct nm_memory_attr){.access = BOTH, .key = i});
	for (unsigned int i = 0; i < 2000; i++) {
		rma = access_of(1, i);
		rma.remote[0].key = i;
		local[0] = (char)(i % 100 + 1);
		if (start(&rma, false) == 1)
			direct++;
		else
			NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
		NM_CHECK_EQ(window[i], (char)(i % 100 + 1));
	}
	NM_CHECK(direct > NM_NR_REGIONS / 2 && direct <= NM_NR_REGIONS);
	for (unsigned int i = 0; i < 2000; i++)
		nm_memory_deregister(b->memory, regions[i]);
	free(regions);
	teardown();
}

NM_TEST(forbidden_copies_are_asked_for)
{
	struct nm_rma rma;

	setenv("NEARMETAL_CMA", "off", 1);
	setup();
	expose_all();
	rma = access_of(8, 0);
	expect_asked(&rma, false, 0);
	NM_CHECK_HAS(near_facts(a, b).link.copy_reason.text, "NEARMETAL_CMA=off");
	teardown();
}
