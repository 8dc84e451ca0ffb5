/* SPDX-License-Identifier: Apache-2.0 */
/* Large messages in the sender's heap, which the receiver maps: every byte arrives, once copied. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "heap_fixture.h"
#include "near_fixture.h"
#include "traffic.h"

enum { LEN = 300 * 1000, SIZE = 8 << 20, NR = 40 };

static struct near_node *a, *b;
static struct nm_select_params heap_first;

/* No rate that can be measured here takes away a message that could be read, and none is a try. */
static void prefer_heap(void)
{
	heap_first = nm_select_defaults;
	heap_first.probe_choices = UINT32_MAX;
	for (int class = 0; class < NM_SELECT_NR_CLASSES; class ++)
		for (int load = 0; load < NM_SELECT_NR_LOADS; load++)
			for (int p = NM_PROTOCOL_POOL; p < NM_NR_PROTOCOLS; p++)
				heap_first.prior[class][load][p] =
					heap_first.prior_far[class][load][p] =
						p == NM_PROTOCOL_HEAP ? UINT32_MAX / 8 : 1;
	near_select = &heap_first;
}

static void start(void)
{
	prefer_heap();
	setenv("NEARMETAL_CMA", "off", 1);
	a = near_create(false);
	b = near_create(false);
	/* The way back has to be open before a receiver reads at the sender. */
	near_link(a, b);
	near_link(b, a);
}

static void finish(void)
{
	near_destroy(a);
	near_destroy(b);
	heap_destroy();
}

static uint64_t by(enum nm_protocol protocol)
{
	return near_facts(b, a).bulk.bytes[protocol];
}

/* LEN bytes from OUT in A to B arrive. */
static void exchange(char *out, size_t len, unsigned int seed)
{
	char *in = malloc(len);

	if (seed)
		fill(out, len, seed);
	memset(in, 0x5a, len);
	NM_CHECK_EQ(near_recv(b, a, in, len, seed, in), 0);
	NM_CHECK_EQ(near_send(a, b, out, len, seed, NM_COMPLETION, out), 0);
	NM_CHECK_EQ(near_wait(b, a, NULL).err, 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK(!memcmp(in, out, len));
	if (seed)
		check_filled(in, len, seed);
	free(in);
}

static void exchange_many(char *out, size_t len)
{
	for (unsigned int i = 1; i <= NR; i++)
		exchange(out, len, i);
}

NM_TEST(heap_is_used_and_every_byte_arrives)
{
	static const size_t lens[] = {16385, 65536, 65537, LEN, 1 << 20, 4 << 20};
	uint64_t sent = 0;

	heap_create(SIZE);
	start();
	for (size_t i = 0; i < sizeof(lens) / sizeof(*lens); i++) {
		exchange_many(heap.base + 4096 * i + i, lens[i]);
		sent += NR * lens[i];
	}
	NM_CHECK_EQ(by(NM_PROTOCOL_HEAP), sent);
	NM_CHECK_EQ(by(NM_PROTOCOL_PULL), 0);
	NM_CHECK_EQ(by(NM_PROTOCOL_BOTH), 0);
	NM_CHECK_EQ(near_facts(b, a).bulk.fallbacks, 0);
	finish();
}

NM_TEST(other_memory_takes_another_way)
{
	char *out = malloc(LEN);

	heap_create(SIZE);
	start();
	exchange_many(out, LEN);
	NM_CHECK_EQ(by(NM_PROTOCOL_HEAP), 0);
	NM_CHECK(by(NM_PROTOCOL_POOL) > 0);
	finish();
	free(out);
}

/* The receiver must not make pages, so the sender sends what it never touched. */
NM_TEST(untouched_pages_come_in_packets)
{
	heap_create(SIZE);
	start();
	exchange(heap.base, 1 << 20, 0);
	NM_CHECK(near_facts(b, a).bulk.fallbacks > 0);
	NM_CHECK_HAS(near_facts(b, a).bulk.fallback.text, "not touched");
	/* The packets touched them. */
	exchange(heap.base, 1 << 20, 0);
	NM_CHECK_EQ(near_facts(b, a).bulk.fallbacks, 1);
	finish();
}

/* A peer says that its message lies where its heap has no byte. */
NM_TEST(place_outside_of_the_heap_is_not_read)
{
	char *out = malloc(LEN);

	heap_create(SIZE);
	heap.face.size = UINT64_C(1) << 40;
	heap.face.base = (uintptr_t)out - SIZE;
	start();
	exchange(out, LEN, 3);
	NM_CHECK_EQ(near_facts(b, a).bulk.fallbacks, 1);
	NM_CHECK_HAS(near_facts(b, a).bulk.fallback.text, "stopped at 0: Bad address");
	exchange(out, LEN, 4);
	NM_CHECK_EQ(near_facts(b, a).nr_quarantines, 0);
	finish();
	free(out);
}

NM_TEST(truncated_and_late_messages)
{
	char *in = malloc(LEN);
	struct nm_completion c;

	heap_create(SIZE);
	fill(heap.base, LEN, 9);
	start();
	/* The envelope waits for its receive. */
	NM_CHECK_EQ(near_send(a, b, heap.base, LEN, 1, NM_COMPLETION, NULL), 0);
	for (int i = 0; i < 100; i++)
		near_step(a, b, NULL);
	NM_CHECK_EQ(near_recv(b, a, in, 70000, 1, in), 0);
	c = near_wait(b, a, NULL);
	NM_CHECK_EQ(c.err, NM_ETRUNC);
	NM_CHECK_EQ(c.len, 70000);
	check_filled(in, 70000, 9);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	finish();
	free(in);
}
