/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device (device_fixture.h) in every operation, and devices that fail. */
#include "device_fixture.h"

NM_TEST(marks_hold_number_and_address)
{
	char here;

	NM_CHECK(!nm_is_device(&here) && !nm_is_device(NULL));
	NM_CHECK(nm_is_device(at(0)) && nm_is_device((char *)at(0) + 12345));
	NM_CHECK(nm_device_is_one_range(at(7), 1 << 20));
	NM_CHECK(!nm_device_is_one_range(at((UINT64_C(1) << NM_DEVICE_SHIFT) - 4), 5));
	NM_CHECK(nm_device_is_one_range(at((UINT64_C(1) << NM_DEVICE_SHIFT) - 4), 4));
	NM_CHECK(!nm_device_is_one_range(&here, SIZE_MAX));
	NM_CHECK(!nm_device_is_one_range((void *)(uintptr_t)(NM_DEVICE_MARK - 1), 2));
	NM_CHECK_EQ(nm_device_plug(0, &file_ops), -EINVAL);
	NM_CHECK_EQ(nm_device_plug(NM_DEVICE_MAX + 1, &file_ops), -EINVAL);
	NM_CHECK(!nm_device_plugged(NUMBER) && !nm_device_plugged(99));
	/* No interface is there: nothing is copied, and nothing crashes. */
	NM_CHECK_EQ(nm_user_put(at(0), "x", 1), -EFAULT);
	here = 1;
	NM_CHECK_EQ(nm_device_get(&here, at(0), 1), -EFAULT);
	NM_CHECK_EQ(here, 0);
}

/* One message in pieces of which each may lie on either side, and the empty one comes last or first. */
static void exchange(struct mesh *mesh, unsigned int from, unsigned int to, size_t len,
		     bool device_out, bool device_in, uint64_t flags)
{
	char *out = malloc(len + 1), *in = malloc(len + 1);
	struct iovec source[2] = {{device_out ? at(0) : out, len}, {NULL, 0}};
	struct iovec target[2] = {{NULL, 0}, {device_in ? at(4 * LEN) : in, len}};
	struct nm_message m = {
		.iov = target,
		.nr_iov = 2,
		.tag = len,
		.context = in,
		.flags = TAGGED,
	};
	struct nm_completion c;
	unsigned int nr = from == to ? 2 : 1;

	fill(out, len, len);
	write_pattern(0, len, len);
	if (len % 2)
		NM_CHECK_EQ(nm_engine_recv(mesh_node(mesh, to)->engine, &m), 0);
	m = (struct nm_message){
		.iov = source,
		.nr_iov = 2,
		.peer = mesh_peer(mesh, from, to),
		.tag = len,
		.context = out,
		.flags = TAGGED | flags,
	};
	while (nm_engine_send_device(mesh_node(mesh, from)->engine, &m) == -EAGAIN)
		mesh_step(mesh);
	if (len % 2 == 0) {
		mesh_settle(mesh);
		m = (struct nm_message){.iov = target, .nr_iov = 2, .tag = len, .flags = TAGGED};
		NM_CHECK_EQ(nm_engine_recv(mesh_node(mesh, to)->engine, &m), 0);
	}
	do {
		c = mesh_wait(mesh, to);
		NM_CHECK_EQ(c.err, 0);
	} while (--nr);
	if (from != to)
		NM_CHECK_EQ(mesh_wait(mesh, from).err, 0);
	if (device_in)
		check_pattern(4 * LEN, len, len);
	else
		check_filled(in, len, len);
	free(out);
	free(in);
}

static const size_t lens[] = {1, 8, 40, 41, 200, 1000, 1025, 20000, 300000, LEN};

/* Over links that could copy from memory to memory, which would be wrong here, and to oneself. */
NM_TEST(messages_of_every_size)
{
	struct mesh_options options = {.remote_copy = true};
	struct mesh *mesh;

	plug();
	mesh = mesh_create(&options);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
		for (unsigned int sides = 1; sides < 4; sides++) {
			exchange(mesh, 1, 1, lens[i], sides & 1, sides & 2, 0);
			exchange(mesh, 1, 1, lens[i], sides & 1, sides & 2, NM_DELIVERY_COMPLETE);
		}
	NM_CHECK(nr_gets > 0 && nr_puts > 0 && nr_pinned > 0);
	mesh_destroy(mesh);
	unplug();
}

/* Through rings and the pool. Both are of one process, so the kernel could copy, and must not. */
static void through_windows(void)
{
	open_both();
	for (unsigned int round = 0; round < 3; round++)
		for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
			write_pattern(0, lens[i], i + round);
			post(b, a, false, at(4 * LEN), lens[i]);
			post(a, b, true, at(0), lens[i]);
			NM_CHECK_EQ(near_wait(b, a, NULL).err, 0);
			NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
			check_pattern(4 * LEN, lens[i], i + round);
			/* And the way back, so that both links stand. */
			post(a, b, false, at(2 * LEN), lens[i]);
			post(b, a, true, at(4 * LEN), lens[i]);
			NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
			NM_CHECK_EQ(near_wait(b, a, NULL).err, 0);
			check_pattern(2 * LEN, lens[i], i + round);
		}
	NM_CHECK_EQ(near_facts(b, a).bulk.bytes[NM_PROTOCOL_PULL], 0);
	NM_CHECK_EQ(near_facts(b, a).bulk.bytes[NM_PROTOCOL_BOTH], 0);
	NM_CHECK_EQ(near_facts(b, a).bulk.fallbacks, 0);
	close_both();
}

NM_TEST_WITHIN(messages_through_windows, 60)
{
	through_windows();
}

NM_TEST_WITHIN(messages_through_windows_with_checksums, 60)
{
	setenv("NEARMETAL_CHECKSUM", "on", 1);
	through_windows();
}

/* Each copy fails once: no error is silent, and the connection stays. */
NM_TEST_WITHIN(messages_of_a_device_that_fails, 60)
{
	static const size_t some[] = {8, 1000, 20000, LEN};
	struct nm_completion at_b, at_a;
	bool reached = true;

	open_both();
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		reached = true;
		for (unsigned int copy = 1; reached; copy++) {
			struct iovec iov[2] = {{at(0), some[i]}, {NULL, 0}};
			const struct nm_message m = {
				.iov = iov,
				.nr_iov = 2,
				.peer = near_peer(a, b),
				.tag = 3,
				.flags = NM_TAGGED | NM_COMPLETION,
			};
			int err;

			write_pattern(0, some[i], copy);
			post(b, a, false, at(4 * LEN), some[i]);
			fail_at(copy);
			while ((err = nm_engine_send_device(a->engine, &m)) == -EAGAIN)
				near_step(a, b, NULL);
			if (err == -EIO) { /* nothing has left */
				fail_at(0);
				NM_CHECK_EQ(nm_engine_send_device(a->engine, &m), 0);
			}
			at_b = near_wait(b, a, NULL);
			at_a = near_wait(a, b, NULL);
			reached = nr_gets + nr_puts >= copy || err == -EIO;
			NM_CHECK(at_b.err == 0 || at_b.err == EIO);
			NM_CHECK(at_a.err == 0 || (at_a.err == EIO && at_b.err == EIO));
			NM_CHECK(!reached || err == -EIO || at_b.err == EIO);
			fail_at(0);
			if (at_b.err == 0)
				check_pattern(4 * LEN, some[i], copy);
		}
	}
	close_both();
}

static void access_memory(size_t len, bool is_read, void *local)
{
	struct iovec iov = {local, len};
	const struct nm_rma rma = {
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.address = 16, .len = len, .key = KEY}},
		.nr_remote = 1,
		.peer = near_peer(a, b),
		.flags = NM_COMPLETION,
	};
	int err;

	do {
		err = is_read ? nm_engine_read(a->engine, &rma) :
				nm_engine_write_device(a->engine, &rma);
		near_step(a, b, NULL);
	} while (err == -EAGAIN);
	NM_CHECK_EQ(err, 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
}

static struct nm_memory_region *expose(void *base, size_t len)
{
	struct iovec iov = {base, len};
	const struct nm_memory_attr attr = {.iov = &iov, .nr_iov = 1, .access = BOTH, .key = KEY};
	struct nm_memory_region *region;

	NM_CHECK_EQ(nm_memory_register(b->memory, &attr, &region), 0);
	return region;
}

/* The target has to serve: its kernel reaches nothing there. */
NM_TEST_WITHIN(puts_and_gets_of_a_device, 60)
{
	char *host = malloc(LEN), *window = calloc(1, LEN + 16);
	struct nm_peer_facts facts;
	struct nm_memory_region *region;

	open_both();
	region = expose(at(4 * LEN), LEN + 16);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		write_pattern(0, lens[i], i);
		access_memory(lens[i], false, at(0));
		check_pattern(4 * LEN + 16, lens[i], i);
		access_memory(lens[i], true, host);
		check_filled(host, lens[i], i);
		access_memory(lens[i], true, at(2 * LEN));
		check_pattern(2 * LEN, lens[i], i);
	}
	nm_memory_deregister(b->memory, region);
	/* From a device into memory of the host that is shown to all. */
	expose(window, LEN + 16);
	write_pattern(0, 50000, 77);
	access_memory(50000, false, at(0));
	check_filled(window + 16, 50000, 77);
	facts = near_facts(a, b);
	for (int kind = 0; kind < NM_NR_ACCESS_KINDS; kind++)
		NM_CHECK_EQ(facts.accesses[NM_ACCESS_CMA][kind].messages, 0);
	close_both();
	free(host);
	free(window);
}

/* A put into a region with parts on a device and parts on the host, in either order. */
static void put_into_both(bool starts_on_device)
{
	enum { PART = 100000, NR = 4 };
	char *host = calloc(NR, PART);
	struct iovec iov[NR];
	const struct nm_memory_attr attr = {.iov = iov, .nr_iov = NR, .access = BOTH, .key = KEY};
	struct nm_memory_region *region;
	char *seen = malloc((size_t)NR * PART);

	open_both();
	for (size_t i = 0; i < NR; i++) {
		bool on_device = (i % 2 == 0) == starts_on_device;

		iov[i] = (struct iovec){on_device ? at(4 * LEN + i * PART) : host + i * PART, PART};
	}
	NM_CHECK_EQ(nm_memory_register(b->memory, &attr, &region), 0);
	write_pattern(0, (size_t)NR * PART - 16, 5);
	access_memory((size_t)NR * PART - 16, false, at(0));
	access_memory((size_t)NR * PART - 16, true, seen);
	check_filled(seen, (size_t)NR * PART - 16, 5);
	nm_memory_deregister(b->memory, region);
	close_both();
	free(host);
	free(seen);
}

NM_TEST(puts_into_a_device_and_the_host)
{
	put_into_both(true);
	put_into_both(false);
}

NM_TEST(atomics_on_a_device)
{
	uint64_t one = 1, seven = 7, before = 0;
	struct iovec operand = {&one, 8}, result = {&before, 8};
	struct nm_atomic atomic;

	open_both();
	expose(at(4 * LEN), 4096);
	NM_CHECK_EQ(pwrite(file, &seven, 8, 4 * LEN + 64), 8);
	atomic = (struct nm_atomic){
		.operand = &operand,
		.nr_operand = 1,
		.result = &result,
		.nr_result = 1,
		.remote = {{.address = 64, .len = 8, .key = KEY}},
		.nr_remote = 1,
		.datatype = NM_UINT64,
		.op = NM_SUM,
		.peer = near_peer(a, b),
		.flags = NM_COMPLETION,
	};
	NM_CHECK_EQ(nm_engine_atomic(a->engine, &atomic), 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK_EQ(before, 7);
	NM_CHECK_EQ(pread(file, &before, 8, 4 * LEN + 64), 8);
	NM_CHECK_EQ(before, 8);
	close_both();
}

NM_TEST(multi_receive_buffers_of_a_device)
{
	struct iovec iov;
	struct nm_message m;
	struct nm_completion c;

	open_both();
	iov = (struct iovec){at(4 * LEN), LEN};
	m = (struct nm_message){
		.iov = &iov,
		.nr_iov = 1,
		.flags = NM_MSG | NM_COMPLETION | NM_MULTI_RECV,
	};
	NM_CHECK_EQ(nm_engine_recv(b->engine, &m), 0);
	for (unsigned int i = 0; i < 2; i++) {
		char bytes[100];

		fill(bytes, sizeof(bytes), i);
		iov = (struct iovec){bytes, sizeof(bytes)};
		m = (struct nm_message){
			.iov = &iov, .nr_iov = 1, .peer = near_peer(a, b), .flags = NM_MSG};
		NM_CHECK_EQ(nm_engine_send(a->engine, &m), 0);
		c = near_wait(b, a, NULL);
		NM_CHECK(c.buf == at(4 * LEN + i * 100));
		check_pattern(4 * LEN + i * 100, 100, i);
	}
	close_both();
}

/* A region of all memory is one of the host's; and a device's must not reach into another's. */
NM_TEST(no_peer_can_name_a_device)
{
	struct nm_memory_table *table;
	struct nm_memory_region *region, *found;
	struct iovec all = {NULL, SIZE_MAX}, piece[NM_IOV_MAX];
	struct iovec beyond = {at((UINT64_C(1) << NM_DEVICE_SHIFT) - 8), 16};
	struct nm_memory_attr attr = {.iov = &all, .nr_iov = 1, .access = BOTH, .key = 1};

	NM_CHECK_EQ(nm_memory_table_create(&table), 0);
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), 0);
	NM_CHECK_EQ(nm_memory_resolve(table, 1, (uintptr_t)&all, 16, BOTH, piece, &found), 1);
	NM_CHECK_EQ(nm_memory_resolve(table, 1, (uintptr_t)at(0), 16, BOTH, piece, &found),
		    -ERANGE);
	NM_CHECK_EQ(nm_memory_resolve(table, 1, NM_DEVICE_MARK - 8, 16, BOTH, piece, &found),
		    -ERANGE);
	attr = (struct nm_memory_attr){.iov = &beyond, .nr_iov = 1, .access = BOTH, .key = 2};
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), -EINVAL);
	nm_memory_table_destroy(table);
}
