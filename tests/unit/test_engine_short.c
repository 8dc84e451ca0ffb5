/* SPDX-License-Identifier: Apache-2.0 */
/* The short way of small messages gives what the general way gives, and steps aside for it. */
#include <string.h>

#include "base/copy_small.h"
#include "traffic.h"

static const size_t sizes[] = {0, 1, 3, 4, 8, 40, 41, 63, 64, 65, 1000};
#define NR_SIZES (sizeof(sizes) / sizeof(sizes[0]))

NM_TEST(small_copies_touch_nothing_else)
{
	unsigned char from[NM_COPY_SMALL_MAX], to[NM_COPY_SMALL_MAX + 2];

	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)(i + 1);
	for (size_t len = 0; len <= sizeof(from); len++) {
		memset(to, 0xa5, sizeof(to));
		nm_copy_small(to + 1, from, len);
		NM_CHECK(!memcmp(to + 1, from, len));
		NM_CHECK_EQ(to[0], 0xa5);
		NM_CHECK_EQ(to[1 + len], 0xa5);
	}
	nm_copy_small(NULL, NULL, 0);
}

static void receive(struct mesh *mesh, char *in, size_t len, uint64_t tag, bool tagged)
{
	NM_CHECK_EQ(nm_engine_recv_buffer(mesh_node(mesh, 1)->engine,
					  tag % 2 ? mesh_peer(mesh, 1, 0) : NULL, in, len,
					  tagged ? tag : 0, tagged ? 0 : UINT64_MAX,
					  tagged ? TAGGED : UNTAGGED, in),
		    0);
}

static void every_size(bool tagged, bool expected, unsigned int refuse_percent)
{
	struct mesh_options options = {.refuse_percent = refuse_percent, .seed = 3};
	struct mesh *mesh = mesh_create(&options);
	uint64_t flags = (tagged ? NM_TAGGED : NM_MSG) | NM_REMOTE_CQ_DATA;
	char out[1000], in[1001];
	int err;

	for (size_t i = 0; i < NR_SIZES; i++) {
		uint64_t tag = tagged ? i : 0;
		struct nm_completion c;

		fill(out, sizes[i], i);
		memset(in, 0x5a, sizeof(in));
		if (expected)
			receive(mesh, in, sizes[i], i, tagged);
		while ((err = nm_engine_inject(mesh_peer(mesh, 0, 1), out, sizes[i], tag, i * 3,
					       flags)) == -EAGAIN)
			mesh_step(mesh);
		NM_CHECK_EQ(err, 0);
		memset(out, 0, sizeof(out)); /* it is ours again */
		if (!expected) {
			mesh_settle(mesh);
			receive(mesh, in, sizes[i], i, tagged);
		}
		c = mesh_wait(mesh, 1);
		NM_CHECK(c.context == in);
		NM_CHECK_EQ(c.err, 0);
		NM_CHECK_EQ(c.len, sizes[i]);
		NM_CHECK_EQ(c.tag, tag);
		NM_CHECK_EQ(c.data, i * 3);
		NM_CHECK_EQ(c.flags, NM_RECV | flags);
		NM_CHECK(c.source == mesh_peer(mesh, 1, 0));
		check_filled(in, sizes[i], i);
		NM_CHECK_EQ(in[sizes[i]], 0x5a);
	}
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.value, NR_SIZES);
	NM_CHECK_EQ(mesh_node(mesh, 1)->recv.value, NR_SIZES);
	mesh_destroy(mesh);
}

NM_TEST(short_messages_arrive_whole)
{
	for (int i = 0; i < 8; i++)
		every_size(i & 1, i & 2, i & 4 ? 60 : 0);
}

NM_TEST(short_messages_too_long_for_the_buffer_are_cut)
{
	struct mesh *mesh = mesh_create(NULL);
	struct nm_completion c;
	char out[32], in[9];

	fill(out, sizeof(out), 1);
	memset(in, 0x5a, sizeof(in));
	receive(mesh, in, 8, 1, true);
	NM_CHECK_EQ(nm_engine_inject(mesh_peer(mesh, 0, 1), out, sizeof(out), 1, 0, NM_TAGGED), 0);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, NM_ETRUNC);
	NM_CHECK_EQ(c.len, 8);
	NM_CHECK_EQ(c.olen, 24);
	check_filled(in, 8, 1);
	NM_CHECK_EQ(in[8], 0x5a);
	mesh_destroy(mesh);
}

/* More receives than are looked at before hashing, taken from the youngest on, then in order. */
NM_TEST(short_messages_find_their_receive_in_any_order)
{
	enum { COUNT = 40 };
	struct mesh *mesh = mesh_create(NULL);
	char in[COUNT][8], out[8];

	for (int round = 0; round < 4; round++) {
		for (uint64_t i = 0; i < COUNT; i++)
			receive(mesh, in[i], sizeof(in[i]), i, true);
		for (uint64_t i = 0; i < COUNT; i++) {
			uint64_t tag = round % 2 ? i : COUNT - 1 - i;

			fill(out, sizeof(out), tag);
			NM_CHECK_EQ(nm_engine_inject(mesh_peer(mesh, 0, 1), out, sizeof(out), tag,
						     0, NM_TAGGED),
				    0);
			NM_CHECK(mesh_wait(mesh, 1).context == in[tag]);
			check_filled(in[tag], sizeof(in[tag]), tag);
		}
	}
	NM_CHECK(mesh_quiet(mesh, 1));
	mesh_destroy(mesh);
}
