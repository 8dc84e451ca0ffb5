/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving in all its forms: truncation, probing, claiming, discarding, cancel, multi-receive. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

static void truncated(size_t len, size_t room)
{
	struct mesh *mesh = mesh_create(NULL);
	char *out = malloc(len), *in = malloc(room ? room : 1);
	struct nm_completion c;

	fill(out, len, 1);
	for (int unexpected = 0; unexpected < 2; unexpected++) {
		if (!unexpected)
			recv_from(mesh, 1, NULL, in, room, 3, 0, TAGGED, in);
		send_to(mesh, 0, 1, out, len, 3, TAGGED, out);
		if (unexpected) {
			mesh_settle(mesh);
			recv_from(mesh, 1, NULL, in, room, 3, 0, TAGGED, in);
		}
		c = mesh_wait(mesh, 1);
		NM_CHECK_EQ(c.err, NM_ETRUNC);
		NM_CHECK_EQ(c.len, room);
		NM_CHECK_EQ(c.olen, len - room);
		NM_CHECK_EQ(c.tag, 3);
		check_filled(in, room, 1);
		/* The sender did nothing wrong. */
		c = mesh_wait(mesh, 0);
		NM_CHECK_EQ(c.err, 0);
	}
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	free(out);
	free(in);
	mesh_destroy(mesh);
}

NM_TEST(truncation_says_how_much_is_lost)
{
	truncated(10, 3);
	truncated(10, 0);
	truncated(100000, 99999);
	truncated(100000, 5);
	truncated(100000, 0);
}

NM_TEST(peek_hit_and_miss)
{
	struct mesh *mesh = mesh_create(NULL);
	char *out = malloc(100000), in[16];
	struct nm_completion c;

	recv_from(mesh, 1, NULL, NULL, 0, 4, 0, TAGGED | NM_PEEK, in);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, ENOMSG);
	NM_CHECK(c.context == in);
	for (size_t len = 0; len <= 100000; len += 50000) {
		send_to(mesh, 0, 1, out, len, 4, NM_TAGGED | NM_REMOTE_CQ_DATA, NULL);
		/* Peeking itself takes in what is at the door. */
		for (int tries = 0;; tries++) {
			recv_from(mesh, 1, mesh_peer(mesh, 1, 0), NULL, 0, 4, 0,
				  NM_TAGGED | NM_PEEK, in);
			c = mesh_wait(mesh, 1);
			if (c.err != ENOMSG)
				break;
			NM_CHECK(tries < 1000);
		}
		NM_CHECK_EQ(c.err, 0);
		NM_CHECK_EQ(c.len, len);
		NM_CHECK_EQ(c.tag, 4);
		NM_CHECK_EQ(c.data, 12);
		NM_CHECK_EQ(c.flags, NM_RECV | NM_TAGGED | NM_REMOTE_CQ_DATA);
		NM_CHECK(c.source == mesh_peer(mesh, 1, 0));
		/* It is still there. */
		recv_from(mesh, 1, NULL, in, sizeof(in), 4, 0, TAGGED, NULL);
		c = mesh_wait(mesh, 1);
		NM_CHECK_EQ(c.len + c.olen, len);
	}
	NM_CHECK_EQ(mesh_node(mesh, 1)->recv.value, 1);
	free(out);
	mesh_destroy(mesh);
}

NM_TEST(claimed_messages_are_set_aside)
{
	struct mesh *mesh = mesh_create(NULL);
	char *out = malloc(50000), *in = calloc(1, 50000);

	for (size_t len = 5; len <= 50000; len *= 100) {
		struct nm_completion c;

		fill(out, len, 2);
		send_to(mesh, 0, 1, out, len, 4, NM_TAGGED, NULL);
		mesh_settle(mesh);
		recv_from(mesh, 1, NULL, NULL, 0, 0, UINT64_MAX, TAGGED | NM_PEEK | NM_CLAIM, in);
		c = mesh_wait(mesh, 1);
		NM_CHECK_EQ(c.len, len);
		/* Nobody else gets it. */
		recv_from(mesh, 1, NULL, NULL, 0, 4, 0, TAGGED | NM_PEEK, NULL);
		NM_CHECK_EQ(mesh_wait(mesh, 1).err, ENOMSG);
		NM_CHECK_EQ(recv_from(mesh, 1, NULL, in, len, 0, 0, TAGGED | NM_CLAIM, in), 0);
		c = mesh_wait(mesh, 1);
		NM_CHECK_EQ(c.err, 0);
		NM_CHECK_EQ(c.len, len);
		NM_CHECK_EQ(c.tag, 4);
		NM_CHECK(c.context == in);
		check_filled(in, len, 2);
		NM_CHECK_EQ(recv_from(mesh, 1, NULL, in, len, 0, 0, TAGGED | NM_CLAIM, in),
			    -EINVAL);
	}
	free(out);
	free(in);
	mesh_destroy(mesh);
}

static void discard(size_t len, uint64_t level)
{
	struct mesh *mesh = mesh_create(NULL);
	char *out = calloc(1, len + 1);

	for (int claimed = 0; claimed < 2; claimed++) {
		struct nm_completion c;

		send_to(mesh, 0, 1, out, len, 4, TAGGED | level, out);
		mesh_settle(mesh);
		if (claimed) {
			recv_from(mesh, 1, NULL, NULL, 0, 4, 0, TAGGED | NM_PEEK | NM_CLAIM, mesh);
			NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
			recv_from(mesh, 1, NULL, NULL, 0, 4, 0, TAGGED | NM_CLAIM | NM_DISCARD,
				  mesh);
		} else {
			recv_from(mesh, 1, NULL, NULL, 0, 4, 0, TAGGED | NM_PEEK | NM_DISCARD,
				  mesh);
		}
		c = mesh_wait(mesh, 1);
		NM_CHECK_EQ(c.err, 0);
		NM_CHECK(c.context == mesh);
		NM_CHECK_EQ(c.tag, 4);
		/* The sender is not left waiting. */
		NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
		recv_from(mesh, 1, NULL, NULL, 0, 4, 0, TAGGED | NM_PEEK, NULL);
		NM_CHECK_EQ(mesh_wait(mesh, 1).err, ENOMSG);
		NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	}
	free(out);
	mesh_destroy(mesh);
}

NM_TEST(discarded_messages_do_not_block_their_senders)
{
	discard(0, 0);
	discard(10, NM_DELIVERY_COMPLETE);
	discard(100000, 0);
	discard(100000, NM_DELIVERY_COMPLETE);
}

NM_TEST(cancel_ends_exactly_one_receive)
{
	struct mesh *mesh = mesh_create(NULL);
	struct nm_engine *engine = mesh_node(mesh, 1)->engine;
	char in[4];
	struct nm_completion c;

	NM_CHECK_EQ(nm_engine_cancel(engine, in), -ENOENT);
	recv_from(mesh, 1, NULL, in, 4, 1, 0, TAGGED, in);
	recv_from(mesh, 1, NULL, in, 4, 2, 0, TAGGED, in);
	NM_CHECK_EQ(nm_engine_cancel(engine, in), 0);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, ECANCELED);
	NM_CHECK_EQ(c.tag, 1); /* the oldest */
	NM_CHECK(c.context == in);
	NM_CHECK(mesh_quiet(mesh, 1));
	send_to(mesh, 0, 1, "two", 3, 2, NM_TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, 3);
	NM_CHECK_EQ(nm_engine_cancel(engine, in), -ENOENT);
	/* A message for the cancelled one stays for the next. */
	send_to(mesh, 0, 1, "one", 3, 1, NM_TAGGED, NULL);
	mesh_settle(mesh);
	recv_from(mesh, 1, NULL, in, 4, 1, 0, TAGGED, in);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, 3);
	recv_from(mesh, 1, NULL, in, 4, 1, 0, UNTAGGED, engine);
	NM_CHECK_EQ(nm_engine_cancel(engine, engine), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).flags, NM_RECV | NM_MSG);
	mesh_destroy(mesh);
}

#define MULTI (UNTAGGED | NM_MULTI_RECV)

NM_TEST(multi_recv_takes_several_and_is_given_back)
{
	struct mesh *mesh = mesh_create(NULL);
	char *buf = calloc(1, 1000), out[100];
	size_t at = 0;

	nm_engine_set_min_multi_recv(mesh_node(mesh, 1)->engine, 100);
	recv_from(mesh, 1, NULL, buf, 1000, 0, 0, MULTI, buf);
	for (unsigned int i = 0; at + 100 <= 1000; i++) {
		struct nm_completion c;
		size_t len = 90 + i;

		fill(out, len, i);
		send_to(mesh, 0, 1, out, len, 0, NM_MSG, NULL);
		c = mesh_wait(mesh, 1);
		NM_CHECK_EQ(c.err, 0);
		NM_CHECK_EQ(c.len, len);
		NM_CHECK(c.buf == buf + at);
		NM_CHECK(c.context == buf);
		check_filled(buf + at, len, i);
		at += len;
		NM_CHECK_EQ(c.flags, NM_RECV | NM_MSG | (1000 - at < 100 ? NM_MULTI_RECV : 0));
	}
	NM_CHECK_EQ(nm_engine_cancel(mesh_node(mesh, 1)->engine, buf), -ENOENT);
	free(buf);
	mesh_destroy(mesh);
}

NM_TEST(multi_recv_takes_what_waits_already)
{
	struct mesh *mesh = mesh_create(NULL);
	char buf[100];

	for (int i = 0; i < 3; i++)
		send_to(mesh, 0, 1, "0123456789", 10, 0, NM_MSG, NULL);
	mesh_settle(mesh);
	recv_from(mesh, 1, NULL, buf, 30, 0, 0, MULTI, buf);
	NM_CHECK_EQ(mesh_wait(mesh, 1).flags, NM_RECV | NM_MSG);
	NM_CHECK_EQ(mesh_wait(mesh, 1).flags, NM_RECV | NM_MSG);
	NM_CHECK_EQ(mesh_wait(mesh, 1).flags, NM_RECV | NM_MSG | NM_MULTI_RECV);
	mesh_destroy(mesh);
}

NM_TEST(multi_recv_misfit_goes_to_the_next_buffer)
{
	struct mesh *mesh = mesh_create(NULL);
	char first[100], second[100], out[200];
	struct nm_completion c;

	recv_from(mesh, 1, NULL, first, 100, 0, 0, MULTI, first);
	recv_from(mesh, 1, NULL, second, 100, 0, 0, MULTI, second);
	fill(out, sizeof(out), 0);
	send_to(mesh, 0, 1, out, 60, 0, NM_MSG, NULL);
	send_to(mesh, 0, 1, out, 61, 0, NM_MSG, NULL);
	send_to(mesh, 0, 1, out, 5, 0, NM_MSG, NULL); /* would fit the first one */
	c = mesh_wait(mesh, 1);
	NM_CHECK(c.buf == first && c.len == 60);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.flags, NM_MULTI_RECV);
	NM_CHECK(c.context == first);
	NM_CHECK_EQ(c.err, 0);
	c = mesh_wait(mesh, 1);
	NM_CHECK(c.buf == second && c.len == 61);
	c = mesh_wait(mesh, 1);
	NM_CHECK(c.buf == second + 61 && c.len == 5);
	NM_CHECK_EQ(mesh_node(mesh, 1)->recv.value, 3);
	/* Larger than any buffer: the next fresh one gets what fits. */
	send_to(mesh, 0, 1, out, 200, 0, NM_MSG, NULL);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.flags, NM_MULTI_RECV);
	NM_CHECK(mesh_quiet(mesh, 1));
	recv_from(mesh, 1, NULL, first, 100, 0, 0, MULTI, first);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, NM_ETRUNC);
	NM_CHECK_EQ(c.len, 100);
	NM_CHECK_EQ(c.olen, 100);
	NM_CHECK(c.flags & NM_MULTI_RECV);
	mesh_destroy(mesh);
}

NM_TEST(multi_recv_with_rendezvous_is_held_until_all_are_in)
{
	struct mesh *mesh = mesh_create(NULL);
	enum { LEN = 30000, ROOM = 70000 };
	char *buf = malloc(ROOM), *out = malloc(LEN);
	struct nm_completion c;
	bool released = false;

	fill(out, LEN, 5);
	nm_engine_set_min_multi_recv(mesh_node(mesh, 1)->engine, 10000);
	recv_from(mesh, 1, NULL, buf, ROOM, 0, 0, MULTI, buf);
	send_to(mesh, 0, 1, out, LEN, 0, NM_MSG, NULL);
	send_to(mesh, 0, 1, out, LEN, 0, NM_MSG, NULL);
	mesh_block(mesh, 0, 1, true); /* the envelopes are through, the bytes are not */
	mesh_settle(mesh);
	mesh_block(mesh, 0, 1, false);
	send_to(mesh, 0, 1, out, 1000, 0, NM_MSG, NULL); /* takes the rest; ends first or not */
	for (int i = 0; i < 3; i++) {
		c = mesh_wait(mesh, 1);
		NM_CHECK_EQ(c.err, 0);
		check_filled(c.buf, c.len, 5);
		NM_CHECK(!released);
		released = c.flags & NM_MULTI_RECV;
	}
	NM_CHECK(released);
	NM_CHECK(mesh_quiet(mesh, 1));
	free(buf);
	free(out);
	mesh_destroy(mesh);
}

NM_TEST(multi_recv_cancel_gives_the_buffer_back_once)
{
	struct mesh *mesh = mesh_create(NULL);
	enum { LEN = 30000 };
	char *buf = malloc(100000), *out = malloc(LEN);
	struct nm_completion c;

	recv_from(mesh, 1, NULL, buf, 100000, 0, 0, MULTI, buf);
	NM_CHECK_EQ(nm_engine_cancel(mesh_node(mesh, 1)->engine, buf), 0);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, ECANCELED);
	NM_CHECK(c.flags & NM_MULTI_RECV);
	NM_CHECK(c.context == buf);
	/* In the middle of a message: that one ends first. */
	recv_from(mesh, 1, NULL, buf, 100000, 0, 0, MULTI, buf);
	send_to(mesh, 0, 1, out, LEN, 0, NM_MSG, NULL);
	mesh_block(mesh, 0, 1, true);
	mesh_settle(mesh);
	NM_CHECK_EQ(nm_engine_cancel(mesh_node(mesh, 1)->engine, buf), 0);
	NM_CHECK(mesh_quiet(mesh, 1));
	mesh_block(mesh, 0, 1, false);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK_EQ(c.len, LEN);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, ECANCELED);
	NM_CHECK(c.flags & NM_MULTI_RECV);
	NM_CHECK(mesh_quiet(mesh, 1));
	free(buf);
	free(out);
	mesh_destroy(mesh);
}

NM_TEST(multi_recv_and_plain_receives_share_the_queue)
{
	struct mesh *mesh = mesh_create(NULL);
	char buf[100], in[10];

	recv_from(mesh, 1, mesh_peer(mesh, 1, 0), in, 10, 0, 0, UNTAGGED, in);
	recv_from(mesh, 1, NULL, buf, 100, 0, 0, MULTI, buf);
	send_to(mesh, 0, 1, "a", 1, 0, NM_MSG, NULL);
	send_to(mesh, 0, 1, "b", 1, 0, NM_MSG, NULL);
	NM_CHECK(mesh_wait(mesh, 1).context == in);
	NM_CHECK(mesh_wait(mesh, 1).context == buf);
	NM_CHECK(in[0] == 'a' && buf[0] == 'b');
	mesh_destroy(mesh);
}

NM_TEST(empty_messages_fill_no_buffer)
{
	struct mesh *mesh = mesh_create(NULL);
	char buf[10];

	recv_from(mesh, 1, NULL, buf, 10, 0, 0, MULTI, buf);
	for (int i = 0; i < 100; i++) {
		send_to(mesh, 0, 1, NULL, 0, 0, NM_MSG, NULL);
		NM_CHECK_EQ(mesh_wait(mesh, 1).flags, NM_RECV | NM_MSG);
	}
	mesh_destroy(mesh);
}
