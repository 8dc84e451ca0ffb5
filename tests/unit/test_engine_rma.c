/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and gets by messages: every size, rights, regions that go away, back-pressure. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

#define KEY 11
#define BOTH (NM_REMOTE_READ | NM_REMOTE_WRITE)

static struct nm_memory_region *expose(struct mesh *mesh, void *base, size_t len, uint64_t access)
{
	struct iovec iov = {base, len};
	struct nm_memory_attr attr = {.iov = &iov, .nr_iov = 1, .access = access, .key = KEY};
	struct nm_memory_region *region;

	NM_CHECK_EQ(nm_memory_register(mesh_node(mesh, 1)->memory, &attr, &region), 0);
	return region;
}

static struct nm_rma rma_of(struct mesh *mesh, struct iovec *iov, uint64_t address)
{
	return (struct nm_rma){
		.iov = iov,
		.nr_iov = 1,
		.remote = {{.address = address, .len = iov->iov_len, .key = KEY}},
		.nr_remote = 1,
		.peer = mesh_peer(mesh, 0, 1),
		.context = iov,
		.flags = NM_COMPLETION,
	};
}

static int put(struct mesh *mesh, const struct nm_rma *rma)
{
	int err;

	while ((err = nm_engine_write(mesh_node(mesh, 0)->engine, rma)) == -EAGAIN)
		mesh_step(mesh);
	return err;
}

static int get(struct mesh *mesh, const struct nm_rma *rma)
{
	int err;

	while ((err = nm_engine_read(mesh_node(mesh, 0)->engine, rma)) == -EAGAIN)
		mesh_step(mesh);
	return err;
}

static void every_size(unsigned int refuse_percent)
{
	static const size_t sizes[] = {0, 1, 1000, 1024, 1025, 4096, 4097, 300000};
	struct mesh_options options = {.refuse_percent = refuse_percent, .seed = 2};
	struct mesh *mesh = mesh_create(&options);
	char *window = calloc(1, 400000), *local = malloc(400000);
	unsigned int nr = sizeof(sizes) / sizeof(sizes[0]);

	expose(mesh, window, 400000, BOTH);
	for (unsigned int i = 0; i < nr; i++) {
		struct iovec iov = {local, sizes[i]};
		struct nm_rma rma = rma_of(mesh, &iov, 17);
		struct nm_completion c;

		fill(local, sizes[i], i);
		rma.flags |= NM_REMOTE_CQ_DATA | NM_DELIVERY_COMPLETE;
		rma.data = i;
		NM_CHECK_EQ(put(mesh, &rma), 0);
		c = mesh_wait(mesh, 0);
		NM_CHECK_EQ(c.err, 0);
		NM_CHECK_EQ(c.flags, NM_RMA | NM_WRITE);
		NM_CHECK(c.context == &iov);
		check_filled(window + 17, sizes[i], i);
		c = mesh_wait(mesh, 1);
		NM_CHECK_EQ(c.flags, NM_RMA | NM_REMOTE_WRITE | NM_REMOTE_CQ_DATA);
		NM_CHECK_EQ(c.len, sizes[i]);
		NM_CHECK_EQ(c.data, i);
		memset(local, 0, 400000);
		rma.flags = NM_COMPLETION;
		NM_CHECK_EQ(get(mesh, &rma), 0);
		c = mesh_wait(mesh, 0);
		NM_CHECK_EQ(c.err, 0);
		NM_CHECK_EQ(c.flags, NM_RMA | NM_READ);
		check_filled(local, sizes[i], i);
	}
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	NM_CHECK_EQ(mesh_node(mesh, 0)->write.value, nr);
	NM_CHECK_EQ(mesh_node(mesh, 0)->read.value, nr);
	NM_CHECK_EQ(mesh_node(mesh, 1)->remote_write.value, nr);
	NM_CHECK_EQ(mesh_node(mesh, 1)->remote_read.value, nr);
	free(window);
	free(local);
	mesh_destroy(mesh);
}

NM_TEST(every_size_both_ways)
{
	every_size(0);
}

NM_TEST(every_size_both_ways_with_refusals)
{
	every_size(70);
}

static void scattered(size_t len)
{
	struct mesh *mesh = mesh_create(NULL);
	char *window = calloc(1, len), *local = malloc(len);
	struct iovec iov[4] = {
		{local, 7}, {local + 7, 0}, {local + 7, 100}, {local + 107, len - 107}};
	struct nm_rma rma = rma_of(mesh, iov, 0);
	size_t third = len / 3;

	expose(mesh, window, len, BOTH);
	rma.nr_iov = 4;
	/* Thirds, swapped. */
	rma.remote[0] =
		(struct nm_remote){.address = 2 * third, .len = len - 2 * third, .key = KEY};
	rma.remote[1] = (struct nm_remote){.address = third, .len = third, .key = KEY};
	rma.remote[2] = (struct nm_remote){.address = 0, .len = third, .key = KEY};
	rma.nr_remote = 3;
	fill(local, len, 1);
	NM_CHECK_EQ(put(mesh, &rma), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	check_filled(window + 2 * third, len - 2 * third, 1);
	NM_CHECK_EQ(memcmp(window, local + len - third, third), 0);
	memset(local, 0, len);
	NM_CHECK_EQ(get(mesh, &rma), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	check_filled(local, len, 1);
	free(window);
	free(local);
	mesh_destroy(mesh);
}

NM_TEST(scattered_on_both_sides)
{
	scattered(400);
	scattered(100003);
}

NM_TEST(forbidden_accesses_end_with_an_error)
{
	struct mesh *mesh = mesh_create(NULL);
	char *window = calloc(1, 100000), *local = calloc(1, 100000);
	struct nm_memory_region *region = expose(mesh, window, 50000, NM_REMOTE_READ);
	struct iovec iov = {local, 10};
	struct nm_rma rma = rma_of(mesh, &iov, 0);

	memset(local, 1, 100000);
	for (iov.iov_len = 10; iov.iov_len <= 40000; iov.iov_len *= 4000) {
		rma.remote[0] = (struct nm_remote){.len = iov.iov_len, .key = KEY};
		NM_CHECK_EQ(put(mesh, &rma), 0);
		NM_CHECK_EQ(mesh_wait(mesh, 0).err, EACCES);
		rma.remote[0].key = KEY + 1;
		NM_CHECK_EQ(get(mesh, &rma), 0);
		NM_CHECK_EQ(mesh_wait(mesh, 0).err, EACCES);
		rma.remote[0].key = KEY;
		rma.remote[0].address = 50001 - iov.iov_len;
		NM_CHECK_EQ(get(mesh, &rma), 0);
		NM_CHECK_EQ(mesh_wait(mesh, 0).err, EACCES);
		rma.remote[0].address = UINT64_MAX - 2;
		NM_CHECK_EQ(get(mesh, &rma), 0);
		NM_CHECK_EQ(mesh_wait(mesh, 0).err, EACCES);
	}
	NM_CHECK_EQ(window[0], 0);
	NM_CHECK_EQ(mesh_node(mesh, 0)->write.errors, 2);
	NM_CHECK_EQ(mesh_node(mesh, 0)->read.errors, 6);
	NM_CHECK_EQ(mesh_node(mesh, 1)->remote_read.errors, 6);
	nm_memory_deregister(mesh_node(mesh, 1)->memory, region);
	free(window);
	free(local);
	mesh_destroy(mesh);
}

NM_TEST(sizes_that_differ_are_refused)
{
	struct mesh *mesh = mesh_create(NULL);
	struct nm_engine *engine = mesh_node(mesh, 0)->engine;
	char local[10];
	struct iovec iov = {local, 10};
	struct nm_rma rma = rma_of(mesh, &iov, 0);

	rma.remote[0].len = 9;
	NM_CHECK_EQ(nm_engine_write(engine, &rma), -EINVAL);
	NM_CHECK_EQ(nm_engine_read(engine, &rma), -EINVAL);
	rma.remote[0].len = 11;
	rma.remote[1].len = UINT64_MAX;
	rma.nr_remote = 2;
	NM_CHECK_EQ(nm_engine_write(engine, &rma), -EINVAL);
	rma.nr_remote = 0;
	NM_CHECK_EQ(nm_engine_write(engine, &rma), -EINVAL);
	rma.nr_remote = 5;
	NM_CHECK_EQ(nm_engine_write(engine, &rma), -EINVAL);
	mesh_destroy(mesh);
}

/* The region goes away between two pieces: an error, and not a byte written after it. */
static void region_vanishes(bool is_read)
{
	struct mesh_options options = {.capacity = 4};
	struct mesh *mesh = mesh_create(&options);
	enum { LEN = 200000 };
	char *window = calloc(1, LEN), *local = malloc(LEN);
	struct nm_memory_region *region = expose(mesh, window, LEN, BOTH);
	struct iovec iov = {local, LEN};
	struct nm_rma rma = rma_of(mesh, &iov, 0);

	memset(local, 1, LEN);
	NM_CHECK_EQ(is_read ? get(mesh, &rma) : put(mesh, &rma), 0);
	for (int i = 0; i < 8; i++)
		mesh_step(mesh);
	NM_CHECK(nm_cqueue_empty(mesh_node(mesh, 0)->cq));
	nm_memory_deregister(mesh_node(mesh, 1)->memory, region);
	free(window);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, EACCES);
	/* Both go on. */
	NM_CHECK_EQ(send_to(mesh, 0, 1, "x", 1, 0, NM_TAGGED, NULL), 0);
	recv_from(mesh, 1, NULL, local, 1, 0, 0, TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
	free(local);
	mesh_destroy(mesh);
}

NM_TEST(region_vanishes_during_a_put)
{
	region_vanishes(false);
}

NM_TEST(region_vanishes_during_a_get)
{
	region_vanishes(true);
}

NM_TEST(dynamic_windows_cover_all_memory)
{
	struct mesh *mesh = mesh_create(NULL);
	char *window = calloc(1, 50000), *local = malloc(50000);
	struct iovec iov = {local, 50000};
	struct nm_rma rma = rma_of(mesh, &iov, (uintptr_t)window);

	expose(mesh, NULL, SIZE_MAX, BOTH);
	fill(local, 50000, 3);
	NM_CHECK_EQ(put(mesh, &rma), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	check_filled(window, 50000, 3);
	free(window);
	free(local);
	mesh_destroy(mesh);
}

/* More accesses at once than may be under way: refused for now, all done in the end. */
NM_TEST(many_at_once)
{
	enum { COUNT = 10000 };
	struct mesh_options options = {.capacity = 8, .seed = 4, .refuse_percent = 20};
	struct mesh *mesh = mesh_create(&options);
	uint32_t *window = calloc(COUNT, 4), *local = calloc(COUNT, 4);

	expose(mesh, window, COUNT * 4, BOTH);
	for (uint32_t i = 0; i < COUNT; i++) {
		struct iovec iov = {&local[i], 4};
		struct nm_rma rma = rma_of(mesh, &iov, 4ull * i);

		local[i] = i;
		rma.flags = NM_INJECT;
		NM_CHECK_EQ(put(mesh, &rma), 0);
	}
	while (mesh_node(mesh, 0)->write.value < COUNT)
		mesh_step(mesh);
	NM_CHECK_EQ(memcmp(window, local, COUNT * 4), 0);
	memset(local, 0, COUNT * 4);
	for (uint32_t i = 0; i < COUNT; i++) {
		struct iovec iov = {&local[i], 4};
		struct nm_rma rma = rma_of(mesh, &iov, 4ull * i);

		rma.flags = 0;
		NM_CHECK_EQ(get(mesh, &rma), 0);
	}
	while (mesh_node(mesh, 0)->read.value < COUNT)
		mesh_step(mesh);
	NM_CHECK_EQ(memcmp(window, local, COUNT * 4), 0);
	NM_CHECK(mesh_quiet(mesh, 0));
	free(window);
	free(local);
	mesh_destroy(mesh);
}

/* A sender that takes no answers: the window closes before memory runs away. */
NM_TEST(answers_do_not_pile_up)
{
	struct mesh *mesh = mesh_create(NULL);
	char byte = 1, window = 0;
	struct iovec iov = {&byte, 1};
	struct nm_rma rma = rma_of(mesh, &iov, 0);
	unsigned int started = 0;

	expose(mesh, &window, 1, BOTH);
	mesh_block(mesh, 1, 0, true);
	for (int i = 0; i < 20000; i++) {
		started += nm_engine_write(mesh_node(mesh, 0)->engine, &rma) == 0;
		nm_engine_progress(mesh_node(mesh, 1)->engine);
	}
	NM_CHECK(started < 10000);
	mesh_block(mesh, 1, 0, false);
	for (unsigned int i = 0; i < started; i++)
		NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	mesh_destroy(mesh);
}

NM_TEST(injected_put_is_bounded)
{
	struct mesh *mesh = mesh_create(NULL);
	char *local = calloc(1, 5000), *window = calloc(1, 5000);
	struct iovec iov = {local, 4000};
	struct nm_rma rma = rma_of(mesh, &iov, 0);

	expose(mesh, window, 5000, BOTH);
	fill(local, 4000, 1);
	rma.flags = NM_INJECT;
	NM_CHECK_EQ(put(mesh, &rma), 0);
	memset(local, 0, 5000);
	mesh_settle(mesh);
	check_filled(window, 4000, 1);
	iov.iov_len = rma.remote[0].len = 4096;
	NM_CHECK_EQ(put(mesh, &rma), -EMSGSIZE);
	free(local);
	free(window);
	mesh_destroy(mesh);
}

/* To one's own memory, through the channel that loops packets back. */
static void see_own(void *arg, const struct nm_peer_facts *facts)
{
	if (facts->link.channel == NM_CHANNEL_SELF)
		*(struct nm_peer_facts *)arg = *facts;
}

/* Complete on return, with everything that a target does and counts. */
NM_TEST(access_to_oneself)
{
	struct mesh *mesh = mesh_create(NULL);
	char *local = malloc(200000), *window = calloc(1, 200000);
	struct mesh_node *node = mesh_node(mesh, 1);
	struct nm_peer_facts facts = {0};
	struct iovec iov = {local, 0};
	struct nm_rma rma;
	unsigned int nr = 0;

	expose(mesh, window, 200000, BOTH);
	for (iov.iov_len = 10; iov.iov_len <= 200000; iov.iov_len *= 10, nr++) {
		rma = rma_of(mesh, &iov, 0);
		rma.peer = mesh_peer(mesh, 1, 1);
		fill(local, iov.iov_len, iov.iov_len);
		NM_CHECK_EQ(nm_engine_write(node->engine, &rma), 0);
		check_filled(window, iov.iov_len, iov.iov_len);
		NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
		memset(local, 0, iov.iov_len);
		NM_CHECK_EQ(nm_engine_read(node->engine, &rma), 0);
		check_filled(local, iov.iov_len, iov.iov_len);
		NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
	}
	NM_CHECK_EQ(node->remote_write.value, nr);
	NM_CHECK_EQ(node->remote_read.value, nr);
	nm_engine_visit_peers(node->engine, see_own, &facts);
	NM_CHECK_EQ(facts.accesses[NM_ACCESS_DIRECT][NM_ACCESS_PUT].messages, nr);
	NM_CHECK_EQ(facts.accesses[NM_ACCESS_DIRECT][NM_ACCESS_GET].bytes, 111110);
	NM_CHECK_EQ(facts.sent_bytes, facts.received_bytes);
	NM_CHECK_EQ(facts.sent_bytes, 2 * 111110);
	free(local);
	free(window);
	mesh_destroy(mesh);
}

/* Pieces of other sizes on both sides, and a place that overlaps with where the bytes come from. */
NM_TEST(access_to_oneself_in_pieces)
{
	struct mesh *mesh = mesh_create(NULL);
	char *window = calloc(1, 4000), *copy = malloc(4000);
	struct iovec iov[3] = {{window + 100, 700}, {NULL, 0}, {window + 2000, 300}};
	struct nm_rma rma;

	expose(mesh, window, 4000, BOTH);
	fill(window, 4000, 5);
	memcpy(copy, window, 4000);
	rma = rma_of(mesh, iov, 0);
	rma.nr_iov = 3;
	rma.peer = mesh_peer(mesh, 1, 1);
	rma.nr_remote = 2;
	rma.remote[1] = rma.remote[0];
	rma.remote[0].address = 3000;
	rma.remote[0].len = 400;
	rma.remote[1].address = 1000;
	rma.remote[1].len = 600;
	NM_CHECK_EQ(nm_engine_write(mesh_node(mesh, 1)->engine, &rma), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
	NM_CHECK(!memcmp(window + 3000, copy + 100, 400));
	NM_CHECK(!memcmp(window + 1000, copy + 500, 300));
	NM_CHECK(!memcmp(window + 1300, copy + 2000, 300));
	/* One byte further: what lies there is what was there. */
	rma.nr_iov = rma.nr_remote = 1;
	memcpy(copy, window, 4000);
	rma.remote[0].address = 101;
	rma.remote[0].len = 700;
	NM_CHECK_EQ(nm_engine_write(mesh_node(mesh, 1)->engine, &rma), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
	NM_CHECK(!memcmp(window + 101, copy + 100, 700));
	rma.remote[0].address = 3999;
	NM_CHECK_EQ(nm_engine_write(mesh_node(mesh, 1)->engine, &rma), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, EACCES);
	free(window);
	free(copy);
	mesh_destroy(mesh);
}
