/* SPDX-License-Identifier: Apache-2.0 */
/* Many addresses: found again, removed, filled in and packed. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "provider/address_table.h"

/* Hundreds of blocks. */
#define MANY 150000u

/* The N-th address of a job, as an inner endpoint over TCP is named. */
static struct nm_address make_address(uint64_t n, int family)
{
	uint64_t state = n * 2 + (family == AF_INET6), words[4];
	struct nm_address address = {.version = NM_ADDRESS_VERSION};
	struct sockaddr_in in = {.sin_family = AF_INET};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
	size_t i;

	for (i = 0; i < 4; i++)
		words[i] = nm_test_random(&state) | 1;
	memcpy(address.who.id, &words[0], sizeof(address.who.id));
	memcpy(address.who.place, &words[1], sizeof(address.who.place));
	in.sin_port = in6.sin6_port = (in_port_t)words[2];
	in.sin_addr.s_addr = (in_addr_t)(words[2] >> 32);
	memcpy(&in6.sin6_addr, &words[2], sizeof(in6.sin6_addr));
	if (family == AF_INET)
		memcpy(address.inner, &in, sizeof(in));
	else
		memcpy(address.inner, &in6, sizeof(in6));
	address.inner_len = family == AF_INET ? sizeof(in) : sizeof(in6);
	return address;
}

static uint64_t insert(struct nm_address_table *table, uint64_t n, int family)
{
	struct nm_address address = make_address(n, family);
	uint64_t index;

	NM_CHECK_EQ(nm_address_table_insert(table, &address, true, &index), 0);
	return index;
}

static void expect_at(const struct nm_address_table *table, uint64_t index, uint64_t n, int family)
{
	struct nm_address expected = make_address(n, family), address;

	NM_CHECK(nm_address_table_get(table, index, &address));
	NM_CHECK(!memcmp(&address, &expected, sizeof(address)));
	NM_CHECK_EQ(nm_address_table_find(table, &expected.who), index);
}

static struct nm_address_table table;

static void fill(uint64_t first, uint64_t nr, int family)
{
	uint64_t i;

	nm_address_table_init(&table);
	for (i = 0; i < nr; i++)
		NM_CHECK_EQ(insert(&table, first + i, family), i);
}

NM_TEST(pack_gives_back_what_went_in)
{
	struct nm_address addresses[300], address;
	struct nm_address_pack *pack;
	uint32_t i;

	for (i = 0; i < 300; i++)
		addresses[i] = make_address(i, AF_INET6);
	pack = nm_address_pack_create(addresses, 300);
	NM_CHECK(pack);
	NM_CHECK_EQ(pack->stride, 32);
	for (i = 0; i < 300; i++) {
		nm_address_pack_get(pack, i, &address);
		NM_CHECK(!memcmp(&address, &addresses[i], sizeof(address)));
	}
	free(pack);
	/* One address has nothing of its own; bytes that differ everywhere are all kept. */
	pack = nm_address_pack_create(addresses, 1);
	NM_CHECK_EQ(pack->stride, 0);
	nm_address_pack_get(pack, 0, &address);
	NM_CHECK(!memcmp(&address, &addresses[0], sizeof(address)));
	free(pack);
	memset(&addresses[0], 0x00, sizeof(addresses[0]));
	memset(&addresses[1], 0xff, sizeof(addresses[1]));
	pack = nm_address_pack_create(addresses, 2);
	NM_CHECK_EQ(pack->stride, NM_ADDRESS_LEN);
	nm_address_pack_get(pack, 1, &address);
	NM_CHECK(!memcmp(&address, &addresses[1], sizeof(address)));
	free(pack);
}

/* The longest inner address there is, as InfiniBand has it: 48 bytes, and 64 in all. */
NM_TEST(addresses_over_infiniband_fit)
{
	struct nm_address in[3000], out;
	uint64_t state = 48, word, index;

	nm_address_table_init(&table);
	for (uint32_t i = 0; i < 3000; i++) {
		in[i] = make_address(i, AF_INET);
		in[i].inner_len = NM_INNER_MAX;
		for (size_t at = 0; at < NM_INNER_MAX; at += sizeof(word)) {
			word = nm_test_random(&state);
			memcpy(in[i].inner + at, &word, sizeof(word));
		}
		NM_CHECK_EQ(nm_address_parse(&in[i], 64, &out), 0);
		NM_CHECK_EQ(nm_address_table_insert(&table, &in[i], true, &index), 0);
		NM_CHECK_EQ(index, i);
	}
	for (uint32_t i = 0; i < 3000; i++) {
		NM_CHECK(nm_address_table_get(&table, i, &out));
		NM_CHECK(!memcmp(&out, &in[i], sizeof(out)));
	}
	nm_address_table_fini(&table);
}

NM_TEST(empty_table_knows_nobody)
{
	struct nm_address address = make_address(1, AF_INET);

	nm_address_table_init(&table);
	NM_CHECK_EQ(nm_address_table_find(&table, &address.who), NM_ADDRESS_NONE);
	NM_CHECK(!nm_address_table_get(&table, 0, &address));
	NM_CHECK(!nm_address_table_get(&table, UINT64_MAX, &address));
	NM_CHECK_EQ(nm_address_table_remove(&table, 0), -EINVAL);
	nm_address_table_fini(&table);
}

NM_TEST(duplicates_have_one_index)
{
	uint64_t i;

	fill(0, 100, AF_INET);
	for (i = 0; i < 100; i++)
		NM_CHECK_EQ(insert(&table, i, AF_INET), i);
	NM_CHECK_EQ(table.nr, 100);
	NM_CHECK_EQ(nm_address_table_remove(&table, 7), 1);
	expect_at(&table, 7, 7, AF_INET);
	NM_CHECK_EQ(nm_address_table_remove(&table, 7), 0);
	NM_CHECK_EQ(nm_address_table_remove(&table, 7), -EINVAL);
	nm_address_table_fini(&table);
}

/* Removed: not found. Another one comes into its place, and the first one does not come back. */
NM_TEST_WITHIN(removed_addresses_make_room_in_blocks_too, 60)
{
	struct nm_address address;
	uint64_t i, index;

	fill(0, MANY, AF_INET);
	NM_CHECK(table.nr_blocks >= 2);
	for (i = 3; i < MANY; i += 1000)
		NM_CHECK_EQ(nm_address_table_remove(&table, i), 0);
	for (i = 3; i < MANY; i += 1000) {
		address = make_address(i, AF_INET);
		NM_CHECK_EQ(nm_address_table_find(&table, &address.who), NM_ADDRESS_NONE);
		NM_CHECK(!nm_address_table_get(&table, i, &address));
	}
	/* The last hole is the first that is filled. */
	for (i = MANY - MANY % 1000 - 1000 + 3; i < MANY; i -= 1000) {
		index = insert(&table, MANY + i, AF_INET6);
		NM_CHECK_EQ(index, i);
	}
	NM_CHECK_EQ(insert(&table, 2 * MANY, AF_INET), MANY);
	for (i = 0; i < MANY; i++)
		expect_at(&table, i, i % 1000 == 3 ? MANY + i : i,
			  i % 1000 == 3 ? AF_INET6 : AF_INET);
	/* Out again and in again: a hole that was filled before. */
	NM_CHECK_EQ(nm_address_table_remove(&table, 1003), 0);
	NM_CHECK_EQ(insert(&table, 1003, AF_INET), 1003);
	expect_at(&table, 1003, 1003, AF_INET);
	nm_address_table_fini(&table);
}

NM_TEST(holes_are_left_alone_when_indices_must_run_on)
{
	struct nm_address address = make_address(1000, AF_INET);
	uint64_t index;

	fill(0, 10, AF_INET);
	NM_CHECK_EQ(nm_address_table_remove(&table, 4), 0);
	NM_CHECK_EQ(nm_address_table_insert(&table, &address, false, &index), 0);
	NM_CHECK_EQ(index, 10);
	NM_CHECK_EQ(insert(&table, 1001, AF_INET), 4);
	nm_address_table_fini(&table);
}

NM_TEST_WITHIN(a_table_that_was_emptied_costs_nothing_more, 60)
{
	uint64_t i;

	fill(0, MANY, AF_INET6);
	for (i = 0; i < MANY; i++)
		NM_CHECK_EQ(nm_address_table_remove(&table, i), 0);
	for (i = 0; i < 5; i++)
		NM_CHECK_EQ(insert(&table, i + 77, AF_INET), i);
	NM_CHECK_EQ(table.nr_blocks, 0);
	NM_CHECK(nm_address_table_usage(&table) < 65536);
	nm_address_table_fini(&table);
}

/* What the table costs however few addresses it has: the first tables and those that wait. */
#define FIXED_BYTES 65536

/* The bound that the manual names, at every size, the worst moments of growth included. */
static void expect_bounds(int family)
{
	uint64_t i;

	nm_address_table_init(&table);
	for (i = 0; i < MANY; i++) {
		NM_CHECK_EQ(insert(&table, i, family), i);
		if (i % 1021 == 0 || table.nr == table.nr_room)
			NM_CHECK(nm_address_table_usage(&table) <=
				 (i + 1) * NM_ADDRESS_COST + FIXED_BYTES);
	}
	for (i = 0; i < MANY; i += 97)
		expect_at(&table, i, i, family);
	nm_address_table_fini(&table);
}

NM_TEST_WITHIN(an_address_costs_what_the_manual_says, 60)
{
	expect_bounds(AF_INET);
	expect_bounds(AF_INET6);
}
