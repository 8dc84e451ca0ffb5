/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums behind what goes through windows: bytes that are torn or spoiled are never delivered. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "harness.h"
#include "near_fixture.h"
#include "transport/transport.h"

NM_TEST(checksums_are_castagnolis)
{
	static const uint8_t zero[32];
	uint8_t bytes[300];
	uint64_t random = 3;
	size_t i, from;

	/* The check value of the algorithm, and the first example of RFC 3720, B.4. */
	NM_CHECK_EQ(nm_crc32c(0, "123456789", 9), 0xe3069283);
	NM_CHECK_EQ(nm_crc32c(0, zero, sizeof(zero)), 0x8a9136aa);
	for (i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)nm_test_random(&random);
	for (i = 0; i < sizeof(bytes); i++) {
		from = i % 9;
		NM_CHECK_EQ(nm_crc32c(7, bytes + from, i - from),
			    nm_crc32c_portable(7, bytes + from, i - from));
		/* In pieces as in one. */
		NM_CHECK_EQ(nm_crc32c(nm_crc32c(0, bytes, i), bytes + i, sizeof(bytes) - i),
			    nm_crc32c_portable(0, bytes, sizeof(bytes)));
	}
}

static struct near_node *a, *b;

static void start(void)
{
	char in[1];

	setenv("NEARMETAL_CHECKSUM", "on", 1);
	a = near_create(true);
	b = near_create(true);
	NM_CHECK_EQ(near_send(b, a, "x", 1, 1, 0, NULL), 0);
	NM_CHECK_EQ(near_recv(a, b, in, 1, 1, "first"), 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK(in[0] == 'x');
	NM_CHECK_EQ(near_facts(b, a).link.channel, NM_CHANNEL_SHM);
}

/* B sends LEN bytes, and one byte OFFSET behind the start of ring or pool changes on the way. */
static void expect_spoiled(size_t len, bool in_pool, size_t offset)
{
	static char out[20000], in[20000];
	struct nm_window_header *header;
	struct nm_completion got;
	char *bytes;

	start();
	memset(out, 'o', sizeof(out));
	NM_CHECK_EQ(near_recv(a, b, in, len, 2, "in"), 0);
	NM_CHECK_EQ(near_send(b, a, out, len, 2, 0, NULL), 0);
	header = near_window(b);
	bytes = (char *)header + (in_pool ? header->geometry.pool_off : header->geometry.rings_off);
	bytes[offset] ^= 4;
	got = near_wait(a, b, NULL);
	NM_CHECK_EQ(got.err, ECONNRESET);
	NM_CHECK_HAS(near_facts(a, b).quarantine_reason.text, "differ from their checksum");
	/* What comes after goes another way. */
	while (near_send(b, a, out, len, 3, 0, NULL) == -EAGAIN)
		near_step(a, b, NULL);
	NM_CHECK_EQ(near_recv(a, b, in, len, 3, "again"), 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK(!memcmp(in, out, len));
	NM_CHECK_EQ(near_facts(b, a).link.channel, NM_CHANNEL_NET);
	near_destroy(a);
	near_destroy(b);
}

NM_TEST(spoiled_bytes_are_not_delivered)
{
	/* The second slot of the ring: tag, data, payload, checksum; then a body; then the pool. */
	expect_spoiled(8, false, 64 + 8);
	expect_spoiled(8, false, 64 + 16);
	expect_spoiled(8, false, 64 + 24);
	expect_spoiled(8, false, 64 + 24 + 8);
	expect_spoiled(150, false, 2 * 64 + 20);
	expect_spoiled(10000, true, 0);
	expect_spoiled(10000, true, 9999);
	expect_spoiled(10000, true, 10000);
}

NM_TEST(checksums_need_room)
{
	struct nm_sink sink = {0};
	struct nm_address address = {.who = {.id = {1}, .place = {1}}};
	struct nm_transport *shm;
	struct nm_reason why = {""};

	setenv("NEARMETAL_RUNDIR", nm_test_dir(), 1);
	setenv("NEARMETAL_CHECKSUM", "on", 1);
	setenv("NEARMETAL_CHUNK_SIZE", "4096", 1);
	NM_CHECK_EQ(nm_shm_kind.create(&sink, &address, &shm, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "NEARMETAL_CHUNK_SIZE");
}
