/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: keys, rights, bounds. */
#include "engine/memory.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/engine.h"
#include "harness.h"

static struct nm_memory_region *add(struct nm_memory_table *table, uint64_t key, void *base,
				    size_t len, uint64_t offset, uint64_t access)
{
	struct iovec iov = {base, len};
	struct nm_memory_attr attr = {
		.iov = &iov,
		.nr_iov = 1,
		.access = access,
		.offset = offset,
		.key = key,
	};
	struct nm_memory_region *region = NULL;

	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), 0);
	return region;
}

static int resolve(struct nm_memory_table *table, uint64_t key, uint64_t address, uint64_t len,
		   uint64_t access, struct iovec ret_iov[NM_IOV_MAX])
{
	struct nm_memory_region *region;

	return nm_memory_resolve(table, key, address, len, access, ret_iov, &region);
}

NM_TEST(bounds_and_rights)
{
	struct nm_memory_table *table;
	struct iovec out[NM_IOV_MAX];
	char bytes[100];

	NM_CHECK_EQ(nm_memory_table_create(&table), 0);
	add(table, 7, bytes, 100, 1000, NM_REMOTE_READ);
	NM_CHECK_EQ(resolve(table, 7, 1000, 100, NM_REMOTE_READ, out), 1);
	NM_CHECK(out[0].iov_base == bytes && out[0].iov_len == 100);
	NM_CHECK_EQ(resolve(table, 7, 1099, 1, NM_REMOTE_READ, out), 1);
	NM_CHECK(out[0].iov_base == bytes + 99 && out[0].iov_len == 1);
	NM_CHECK_EQ(resolve(table, 7, 1100, 0, NM_REMOTE_READ, out), 1);
	NM_CHECK_EQ(out[0].iov_len, 0);
	NM_CHECK_EQ(resolve(table, 7, 1100, 1, NM_REMOTE_READ, out), -ERANGE);
	NM_CHECK_EQ(resolve(table, 7, 999, 1, NM_REMOTE_READ, out), -ERANGE);
	NM_CHECK_EQ(resolve(table, 7, 1001, 100, NM_REMOTE_READ, out), -ERANGE);
	NM_CHECK_EQ(resolve(table, 7, 1001, UINT64_MAX, NM_REMOTE_READ, out), -ERANGE);
	NM_CHECK_EQ(resolve(table, 7, UINT64_MAX, 2, NM_REMOTE_READ, out), -ERANGE);
	NM_CHECK_EQ(resolve(table, 8, 1000, 1, NM_REMOTE_READ, out), -ENOKEY);
	NM_CHECK_EQ(resolve(table, 7, 1000, 1, NM_REMOTE_WRITE, out), -EACCES);
	NM_CHECK_EQ(resolve(table, 7, 1000, 1, NM_REMOTE_READ | NM_REMOTE_WRITE, out), -EACCES);
	nm_memory_table_destroy(table);
}

NM_TEST(pieces_are_walked)
{
	struct nm_memory_table *table;
	struct nm_memory_region *region;
	char bytes[60];
	struct iovec iov[3] = {{bytes, 10}, {bytes + 20, 10}, {bytes + 40, 20}};
	struct nm_memory_attr attr = {.iov = iov, .nr_iov = 3, .access = NM_REMOTE_READ};
	struct iovec out[NM_IOV_MAX];

	NM_CHECK_EQ(nm_memory_table_create(&table), 0);
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), 0);
	NM_CHECK_EQ(resolve(table, 0, 5, 30, NM_REMOTE_READ, out), 3);
	NM_CHECK(out[0].iov_base == bytes + 5 && out[0].iov_len == 5);
	NM_CHECK(out[1].iov_base == bytes + 20 && out[1].iov_len == 10);
	NM_CHECK(out[2].iov_base == bytes + 40 && out[2].iov_len == 15);
	NM_CHECK_EQ(resolve(table, 0, 10, 10, NM_REMOTE_READ, out), 1);
	NM_CHECK(out[0].iov_base == bytes + 20 && out[0].iov_len == 10);
	NM_CHECK_EQ(resolve(table, 0, 0, 41, NM_REMOTE_READ, out), -ERANGE);
	nm_memory_table_destroy(table);
}

NM_TEST(all_of_memory_can_be_registered)
{
	struct nm_memory_table *table;
	struct iovec out[NM_IOV_MAX];
	char byte;

	NM_CHECK_EQ(nm_memory_table_create(&table), 0);
	add(table, 1, NULL, SIZE_MAX, 0, NM_REMOTE_WRITE);
	NM_CHECK_EQ(resolve(table, 1, (uintptr_t)&byte, 1, NM_REMOTE_WRITE, out), 1);
	NM_CHECK(out[0].iov_base == &byte);
	NM_CHECK_EQ(resolve(table, 1, UINT64_MAX, 1, NM_REMOTE_WRITE, out), -ERANGE);
	nm_memory_table_destroy(table);
}

NM_TEST(bad_registrations_are_refused)
{
	struct nm_memory_table *table;
	struct nm_memory_region *region;
	struct iovec iov[2] = {{(void *)16, SIZE_MAX}, {NULL, SIZE_MAX}};
	struct nm_memory_attr attr = {.iov = iov, .nr_iov = 1};

	NM_CHECK_EQ(nm_memory_table_create(&table), 0);
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), -EINVAL);
	iov[0].iov_base = NULL;
	attr.nr_iov = 2;
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), -EINVAL);
	attr.nr_iov = 0;
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), -EINVAL);
	attr.nr_iov = 1;
	attr.offset = 1;
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), -EINVAL);
	attr.offset = 0;
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), 0);
	NM_CHECK_EQ(nm_memory_register(table, &attr, &region), -ENOKEY);
	nm_memory_table_destroy(table);
}

NM_TEST(many_regions_come_and_go)
{
	enum { COUNT = 5000 };
	struct nm_memory_table *table;
	struct nm_memory_region *regions[COUNT];
	struct iovec out[NM_IOV_MAX];
	char bytes[COUNT];

	NM_CHECK_EQ(nm_memory_table_create(&table), 0);
	for (uint64_t i = 0; i < COUNT; i++)
		regions[i] = add(table, i << 20, bytes + i, 1, 0, NM_REMOTE_READ);
	for (uint64_t i = 0; i < COUNT; i += 2)
		nm_memory_deregister(table, regions[i]);
	for (uint64_t i = 0; i < COUNT; i++) {
		int nr = resolve(table, i << 20, 0, 1, NM_REMOTE_READ, out);

		NM_CHECK_EQ(nr, i % 2 ? 1 : -ENOKEY);
		if (nr == 1)
			NM_CHECK(out[0].iov_base == bytes + i);
	}
	nm_memory_deregister(table, NULL);
	nm_memory_table_destroy(table);
}
