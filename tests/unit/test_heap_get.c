/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets from the target's heap, which the initiator maps: the target makes no progress here unless a
 * test says so. What cannot be read there is served or judged by the target.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/internal.h"
#include "heap_fixture.h"
#include "near_fixture.h"
#include "shm/regions.h"
#include "traffic.h"

enum { KEY = 7, SIZE = 4 << 20, PAGE = 4096 };
#define BOTH (NM_REMOTE_READ | NM_REMOTE_WRITE)

static struct near_node *a, *b;
static char *local;
static struct nm_memory_region *region;

static void start(void)
{
	heap_create(SIZE);
	setenv("NEARMETAL_CMA", "off", 1);
	a = near_create(false);
	b = near_create(false);
	near_link(a, b);
	near_link(b, a);
	local = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NM_CHECK(local != MAP_FAILED);
}

static void finish(void)
{
	near_destroy(a);
	near_destroy(b);
	munmap(local, SIZE);
	heap_destroy();
}

static void expose(char *base, size_t len, uint64_t access, uint64_t offset)
{
	struct iovec iov = {base, len};
	struct nm_memory_attr attr = {
		.iov = &iov, .nr_iov = 1, .access = access, .offset = offset, .key = KEY};

	NM_CHECK_EQ(nm_memory_register(b->memory, &attr, &region), 0);
}

static struct nm_rma rma_of(size_t len, uint64_t address)
{
	return near_rma(a, b, local, len, address, KEY);
}

static bool is_complete(const struct nm_rma *rma, bool is_read)
{
	int err = is_read ? nm_engine_read(a->engine, rma) : nm_engine_write(a->engine, rma);

	NM_CHECK_EQ(err, 0);
	if (nm_cqueue_empty(a->cq))
		return false;
	NM_CHECK_EQ(nm_cqueue_front(a->cq)->err, 0);
	nm_cqueue_pop(a->cq);
	return true;
}

static void get(size_t len, uint64_t address)
{
	const struct nm_rma rma = rma_of(len, address);

	NM_CHECK(is_complete(&rma, true));
}

/* It is not complete by itself; with the target's help it ends with ERR. */
static void ask(const struct nm_rma *rma, bool is_read, int err)
{
	NM_CHECK(!is_complete(rma, is_read));
	NM_CHECK_EQ(near_wait(a, b, NULL).err, err);
}

static void ask_get(size_t len, uint64_t address, int err)
{
	const struct nm_rma rma = rma_of(len, address);

	ask(&rma, true, err);
}

NM_TEST(every_size_while_the_target_sleeps)
{
	static const size_t sizes[] = {1, 8, 4096, 65536, 262145, 3000000};
	uint64_t bytes = 0;

	start();
	expose(heap.base + 100, SIZE - 100, BOTH, 5000);
	fill(heap.base, SIZE, 1);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		fill(heap.base + 117, sizes[i], i);
		memset(local, 0x5a, sizes[i] + 1);
		get(sizes[i], 5017);
		check_filled(local, sizes[i], i);
		NM_CHECK_EQ(local[sizes[i]], 0x5a);
		bytes += sizes[i];
	}
	NM_CHECK_EQ(near_facts(a, b).accesses[NM_ACCESS_DIRECT][NM_ACCESS_GET].messages,
		    sizeof(sizes) / sizeof(sizes[0]));
	NM_CHECK_EQ(near_facts(a, b).accesses[NM_ACCESS_DIRECT][NM_ACCESS_GET].bytes, bytes);
	NM_CHECK_EQ(near_facts(a, b).received[NM_CHANNEL_SHM].bytes, bytes);
	finish();
}

NM_TEST(pieces_on_both_sides)
{
	struct iovec iov[3];
	struct nm_rma rma;

	start();
	expose(heap.base, SIZE, BOTH, 0);
	fill(heap.base, 1000, 3);
	rma = rma_of(0, 0);
	iov[0] = (struct iovec){local, 10};
	iov[1] = (struct iovec){local + 10, 0};
	iov[2] = (struct iovec){local + 10, 990};
	rma.iov = iov;
	rma.nr_iov = 3;
	rma.remote[0] = (struct nm_remote){.address = 300, .len = 700, .key = KEY};
	rma.remote[1] = (struct nm_remote){.address = 50, .len = 0, .key = KEY};
	rma.remote[2] = (struct nm_remote){.address = 0, .len = 300, .key = KEY};
	rma.nr_remote = 3;
	NM_CHECK(is_complete(&rma, true));
	NM_CHECK(!memcmp(local, heap.base + 300, 700) && !memcmp(local + 700, heap.base, 300));
	/* The key of no bytes is judged, too. */
	rma.remote[1].key = KEY + 1;
	ask(&rma, true, EACCES);
	finish();
}

NM_TEST(the_target_judges_and_serves_all_else)
{
	struct nm_rma other;

	start();
	expose(heap.base + PAGE, SIZE / 2, NM_REMOTE_WRITE, 0);
	memset(heap.base, 'h', SIZE);
	ask_get(100, 0, EACCES);
	nm_memory_deregister(b->memory, region);
	ask_get(100, 0, EACCES);
	expose(heap.base + PAGE, SIZE / 2, BOTH, 0);
	get(100, SIZE / 2 - 100);
	ask_get(100, SIZE / 2 - 99, EACCES);
	ask_get(100, UINT64_MAX - 50, EACCES);
	other = rma_of(100, 0);
	other.remote[0].key = KEY + 1;
	ask(&other, true, EACCES);
	/* The target does a put, and a later get does not overtake it. */
	memset(local, 'p', 100);
	other = rma_of(100, 0);
	NM_CHECK(!is_complete(&other, false));
	NM_CHECK(!is_complete(&other, true));
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK(local[0] == 'p' && heap.base[PAGE + 99] == 'p');
	get(100, 0);
	finish();
}

/* Windows of all memory are shown as far as the heap goes; the rest of them is served. */
NM_TEST(memory_around_the_heap_is_served)
{
	static char outside[100] = "outside";

	start();
	memset(heap.base, 'h', SIZE);
	expose(NULL, SIZE_MAX, BOTH, 0);
	get(100, (uintptr_t)heap.base);
	get(100, (uintptr_t)heap.base + SIZE - 100);
	NM_CHECK_EQ(local[99], 'h');
	ask_get(100, (uintptr_t)outside, 0);
	NM_CHECK_HAS(local, "outside");
	finish();
}

NM_TEST(untouched_pages_are_served)
{
	start();
	expose(heap.base, SIZE, BOTH, 0);
	memset(heap.base, 'h', PAGE);
	get(PAGE, 0);
	ask_get(PAGE + 1, 0, 0);
	/* The target touched them. */
	get(PAGE + 1, 0);
	finish();
}

/* A target shows places where its heap has no byte. */
NM_TEST(hostile_entries_are_not_followed)
{
	struct nm_region_slot *slots;
	static const uint64_t bases[] = {SIZE, SIZE - 50, UINT64_MAX - 20, UINT64_C(1) << 63};

	start();
	memset(heap.base, 'h', SIZE);
	expose(heap.base, SIZE, BOTH, 0);
	slots = near_regions(b);
	for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
		for (int k = 0; k < NM_NR_REGIONS; k++)
			if (slots[k].key == KEY && slots[k].access >> 32) {
				slots[k].base = bases[i];
				slots[k].len = UINT64_MAX;
			}
		/* The last one is the place 0 of the heap, with a bit that is not looked at. */
		if (i == 3)
			get(100, 0);
		else
			ask_get(100, 0, 0);
		NM_CHECK_EQ(local[99], 'h');
	}
	finish();
}

static struct nm_region_slot *shown; /* by the target */

/* In the middle of a copy the target hides the region and writes something else there. */
static void hide_region(int signal)
{
	(void)signal;
	nm_regions_revoke(shown, NM_NR_REGIONS, KEY);
	memset(heap.base, 'x', SIZE);
	(void)mprotect(local, SIZE, PROT_READ | PROT_WRITE);
}

NM_TEST(what_was_closed_during_the_copy_is_not_got)
{
	const struct sigaction action = {.sa_handler = hide_region};
	struct sigaction before;
	struct nm_rma rma;

	start();
	memset(heap.base, 'h', SIZE);
	expose(heap.base, SIZE, BOTH, 0);
	get(100000, 0);
	shown = near_regions(b);
	NM_CHECK_EQ(sigaction(SIGSEGV, &action, &before), 0);
	NM_CHECK_EQ(mprotect(local + 10 * PAGE, PAGE, PROT_NONE), 0);
	rma = rma_of(100000, 0);
	NM_CHECK(!is_complete(&rma, true));
	NM_CHECK_EQ(sigaction(SIGSEGV, &before, NULL), 0);
	nm_memory_deregister(b->memory, region);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, EACCES);
	/* A new region with this key has an entry of its own. */
	expose(heap.base + PAGE, PAGE, BOTH, 0);
	get(PAGE, 0);
	NM_CHECK_EQ(local[0], 'x');
	ask_get(PAGE + 1, 0, EACCES);
	finish();
}
