/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between engines: every protocol, in order, whatever the room on the way. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "traffic.h"

static const size_t sizes[] = {0, 1, 40, 1000, 1024, 1025, 4095, 4096, 4097, 100000, 1 << 20};

/* One message of every size, posted first or unexpected. */
static void every_size(bool expected, unsigned int refuse_percent)
{
	struct mesh_options options = {.refuse_percent = refuse_percent, .seed = 5};
	struct mesh *mesh = mesh_create(&options);
	char *out = malloc(1 << 20), *in = malloc(1 << 20);

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct nm_completion c;

		fill(out, sizes[i], i);
		memset(in, 0, 1 << 20);
		if (expected)
			NM_CHECK_EQ(recv_from(mesh, 1, mesh_peer(mesh, 1, 0), in, 1 << 20, i, 0,
					      TAGGED, in),
				    0);
		NM_CHECK_EQ(send_to(mesh, 0, 1, out, sizes[i], i, TAGGED | NM_REMOTE_CQ_DATA, out),
			    0);
		if (!expected) {
			mesh_settle(mesh);
			NM_CHECK_EQ(recv_from(mesh, 1, mesh_peer(mesh, 1, 0), in, 1 << 20, i, 0,
					      TAGGED, in),
				    0);
		}
		c = mesh_wait(mesh, 1);
		NM_CHECK(c.context == in);
		NM_CHECK_EQ(c.err, 0);
		NM_CHECK_EQ(c.len, sizes[i]);
		NM_CHECK_EQ(c.tag, i);
		NM_CHECK_EQ(c.data, i * 3);
		NM_CHECK_EQ(c.flags, NM_RECV | NM_TAGGED | NM_REMOTE_CQ_DATA);
		NM_CHECK(c.source == mesh_peer(mesh, 1, 0));
		check_filled(in, sizes[i], i);
		c = mesh_wait(mesh, 0);
		NM_CHECK(c.context == out);
		NM_CHECK_EQ(c.flags, NM_SEND | NM_TAGGED);
		NM_CHECK_EQ(c.err, 0);
	}
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.value, sizeof(sizes) / sizeof(sizes[0]));
	NM_CHECK_EQ(mesh_node(mesh, 1)->recv.value, sizeof(sizes) / sizeof(sizes[0]));
	free(out);
	free(in);
	mesh_destroy(mesh);
}

NM_TEST(every_size_expected)
{
	every_size(true, 0);
}

NM_TEST(every_size_unexpected)
{
	every_size(false, 0);
}

NM_TEST(every_size_with_refusals)
{
	every_size(true, 70);
	every_size(false, 70);
}

/* Many messages of mixed sizes in flight, all to one tag: they match in the order of sending. */
static void in_order(unsigned int refuse_percent, bool wildcard)
{
	enum { COUNT = 60, LEN = 20000 };
	struct mesh_options options = {.refuse_percent = refuse_percent, .seed = 9, .capacity = 8};
	struct mesh *mesh = mesh_create(&options);
	char *in = calloc(COUNT, LEN), *out = malloc((size_t)COUNT * LEN);
	unsigned int received = 0;

	for (size_t i = 0; i < COUNT; i++)
		if (i % 2)
			recv_from(mesh, 1, wildcard ? NULL : mesh_peer(mesh, 1, 0), in + i * LEN,
				  LEN, 7, 0, TAGGED, (void *)(i + 1));
	for (size_t i = 0; i < COUNT; i++) {
		size_t len = i % 3 ? 3 * i : LEN - i;

		fill(out + i * LEN, len, i);
		NM_CHECK_EQ(send_to(mesh, 0, 1, out + i * LEN, len, 7, NM_TAGGED, NULL), 0);
	}
	for (size_t i = 0; i < COUNT; i++)
		if (!(i % 2))
			recv_from(mesh, 1, wildcard ? NULL : mesh_peer(mesh, 1, 0), in + i * LEN,
				  LEN, 7, 0, TAGGED, (void *)(i + 1));
	/* The k-th receive posted got the k-th message sent. */
	for (; received < COUNT; received++) {
		struct nm_completion c = mesh_wait(mesh, 1);
		size_t i = (size_t)c.context - 1;
		size_t order = i % 2 ? i / 2 : COUNT / 2 + i / 2;

		NM_CHECK_EQ(c.err, 0);
		NM_CHECK_EQ(c.len, order % 3 ? 3 * order : LEN - order);
		check_filled(in + i * LEN, c.len, order);
	}
	NM_CHECK(mesh_quiet(mesh, 0)); /* nobody asked for completions of the sends */
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.value, COUNT);
	free(in);
	free(out);
	mesh_destroy(mesh);
}

NM_TEST(order_is_kept)
{
	in_order(0, false);
}

NM_TEST(order_is_kept_by_wildcards)
{
	in_order(0, true);
}

NM_TEST(order_is_kept_with_refusals)
{
	in_order(60, true);
	in_order(60, false);
}

NM_TEST(scattered_buffers_on_both_sides)
{
	struct mesh *mesh = mesh_create(NULL);
	enum { TOTAL = 50000 };
	char *out = malloc(TOTAL), *in = calloc(1, TOTAL);
	struct iovec from[4] = {
		{out, 3}, {out + 3, 0}, {out + 3, 20000}, {out + 20003, TOTAL - 20003}};
	struct iovec to[4] = {
		{in, 10000}, {in + 10000, 1}, {in + 10001, 1999}, {in + 12000, TOTAL - 12000}};
	struct nm_message send = {.iov = from, .nr_iov = 4, .flags = TAGGED};
	struct nm_message recv = {.iov = to, .nr_iov = 4, .flags = TAGGED};

	fill(out, TOTAL, 1);
	send.peer = mesh_peer(mesh, 0, 1);
	recv.peer = mesh_peer(mesh, 1, 0);
	NM_CHECK_EQ(nm_engine_recv(mesh_node(mesh, 1)->engine, &recv), 0);
	NM_CHECK_EQ(nm_engine_send(mesh_node(mesh, 0)->engine, &send), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, TOTAL);
	check_filled(in, TOTAL, 1);
	/* The same in one packet. */
	from[2].iov_len = 100;
	from[3] = (struct iovec){out + 103, 400};
	to[0].iov_len = 50;
	to[1] = (struct iovec){in + 50, 0};
	to[2] = (struct iovec){in + 50, 450};
	to[3] = (struct iovec){in + 500, 3};
	memset(in, 0, TOTAL);
	NM_CHECK_EQ(nm_engine_recv(mesh_node(mesh, 1)->engine, &recv), 0);
	NM_CHECK_EQ(nm_engine_send(mesh_node(mesh, 0)->engine, &send), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, 503);
	check_filled(in, 503, 1);
	free(out);
	free(in);
	mesh_destroy(mesh);
}

NM_TEST(no_buffer_at_all)
{
	struct mesh *mesh = mesh_create(NULL);
	struct nm_message send = {.flags = TAGGED, .peer = mesh_peer(mesh, 0, 1)};
	struct nm_message recv = {.flags = TAGGED};
	struct nm_completion c;

	NM_CHECK_EQ(nm_engine_send(mesh_node(mesh, 0)->engine, &send), 0);
	NM_CHECK_EQ(nm_engine_recv(mesh_node(mesh, 1)->engine, &recv), 0);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.len, 0);
	NM_CHECK_EQ(c.err, 0);
	mesh_destroy(mesh);
}

NM_TEST(completions_only_when_asked)
{
	struct mesh *mesh = mesh_create(NULL);
	char out[2000] = "x", in[2000];

	recv_from(mesh, 1, NULL, in, sizeof(in), 1, 0, NM_TAGGED, NULL);
	send_to(mesh, 0, 1, out, 10, 1, NM_TAGGED | NM_INJECT, NULL);
	recv_from(mesh, 1, NULL, in, sizeof(in), 1, 0, NM_TAGGED, NULL);
	send_to(mesh, 0, 1, out, sizeof(out), 1, NM_TAGGED, NULL);
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.value, 2);
	NM_CHECK_EQ(mesh_node(mesh, 1)->recv.value, 2);
	/* Errors are told all the same. */
	recv_from(mesh, 1, NULL, in, 5, 1, 0, NM_TAGGED, NULL);
	send_to(mesh, 0, 1, out, 10, 1, NM_TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, NM_ETRUNC);
	NM_CHECK_EQ(mesh_node(mesh, 1)->recv.errors, 1);
	mesh_destroy(mesh);
}

NM_TEST(injected_bytes_are_free_on_return)
{
	struct mesh *mesh = mesh_create(NULL);
	char out[NM_MIN_MAX_PAYLOAD - 8], in[sizeof(out)];

	fill(out, sizeof(out), 3);
	/* Larger than eager_max: it still has to go at once. */
	NM_CHECK_EQ(send_to(mesh, 0, 1, out, sizeof(out), 1, NM_TAGGED | NM_INJECT, NULL), 0);
	memset(out, 0, sizeof(out));
	recv_from(mesh, 1, NULL, in, sizeof(in), 1, 0, TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, sizeof(in));
	check_filled(in, sizeof(in), 3);
	NM_CHECK_EQ(send_to(mesh, 0, 1, in, sizeof(in) + 1, 1, NM_TAGGED | NM_INJECT, NULL),
		    -EMSGSIZE);
	mesh_destroy(mesh);
}

/* A completion that promises delivery does not come before the receive. */
static void delivery(uint64_t level, size_t len)
{
	struct mesh *mesh = mesh_create(NULL);
	char *out = malloc(len), *in = malloc(len);

	fill(out, len, 4);
	NM_CHECK_EQ(send_to(mesh, 0, 1, out, len, 1, TAGGED | level, out), 0);
	NM_CHECK(mesh_quiet(mesh, 0));
	recv_from(mesh, 1, NULL, in, len, 1, 0, TAGGED, in);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, len);
	check_filled(in, len, 4);
	NM_CHECK(mesh_wait(mesh, 0).context == out);
	/* Posted first. */
	recv_from(mesh, 1, NULL, in, len, 1, 0, TAGGED, in);
	NM_CHECK_EQ(send_to(mesh, 0, 1, out, len, 1, TAGGED | level, out), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, len);
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	free(out);
	free(in);
	mesh_destroy(mesh);
}

/* Gone from the sender, received or not. */
NM_TEST(transmit_complete_waits_until_the_message_has_left)
{
	struct mesh *mesh = mesh_create(NULL);
	struct nm_cqueue *cq = mesh_node(mesh, 0)->cq;
	char out[100] = "left", in[100] = "";

	/* Connected by a first one. */
	NM_CHECK_EQ(send_to(mesh, 0, 1, out, 1, 9, TAGGED | NM_INJECT, NULL), 0);
	mesh_wait(mesh, 0);
	mesh_settle(mesh);
	NM_CHECK_EQ(send_to(mesh, 0, 1, out, 100, 1, TAGGED | NM_TRANSMIT_COMPLETE, out), 0);
	NM_CHECK(nm_cqueue_empty(cq));
	NM_CHECK(mesh_wait(mesh, 0).context == out);
	NM_CHECK(mesh_quiet(mesh, 1));
	recv_from(mesh, 1, NULL, in, 100, 1, 0, TAGGED, in);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, 100);
	NM_CHECK_STR(in, "left");
	/* A death before that is an error, not a success. */
	NM_CHECK_EQ(send_to(mesh, 0, 1, out, 100, 1, TAGGED | NM_TRANSMIT_COMPLETE, out), 0);
	mesh_kill(mesh, 1, -ECONNRESET);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	NM_CHECK(mesh_quiet(mesh, 0));
	mesh_destroy(mesh);
}

NM_TEST(delivery_complete_waits_for_the_receiver)
{
	delivery(NM_DELIVERY_COMPLETE, 1);
	delivery(NM_DELIVERY_COMPLETE, 1024);
	delivery(NM_DELIVERY_COMPLETE, 4092); /* does not fit a packet with its id */
	delivery(NM_DELIVERY_COMPLETE, 100000);
}

NM_TEST(match_complete_waits_for_the_match)
{
	delivery(NM_MATCH_COMPLETE, 1);
	delivery(NM_MATCH_COMPLETE, 100000);
}

NM_TEST(transmit_complete_does_not_wait)
{
	struct mesh *mesh = mesh_create(NULL);

	send_to(mesh, 0, 1, "abc", 3, 1, TAGGED | NM_TRANSMIT_COMPLETE, mesh);
	NM_CHECK(mesh_wait(mesh, 0).context == mesh);
	mesh_destroy(mesh);
}

NM_TEST(full_link_refuses_and_recovers)
{
	struct mesh_options options = {.capacity = 4};
	struct mesh *mesh = mesh_create(&options);
	struct iovec iov = {"0123", 4};
	struct nm_message m = {
		.iov = &iov,
		.nr_iov = 1,
		.peer = mesh_peer(mesh, 0, 1),
		.flags = NM_TAGGED,
	};
	char in[4];
	int sent = 0;

	while (nm_engine_send(mesh_node(mesh, 0)->engine, &m) == 0)
		NM_CHECK(++sent <= 4);
	NM_CHECK_EQ(sent, 4);
	NM_CHECK_EQ(nm_engine_send(mesh_node(mesh, 0)->engine, &m), -EAGAIN);
	mesh_settle(mesh);
	NM_CHECK_EQ(nm_engine_send(mesh_node(mesh, 0)->engine, &m), 0);
	for (int i = 0; i < 5; i++) {
		recv_from(mesh, 1, NULL, in, 4, 0, 0, TAGGED, NULL);
		NM_CHECK_EQ(mesh_wait(mesh, 1).len, 4);
	}
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.value, 5);
	mesh_destroy(mesh);
}

/* Both ends send large messages at once through links that hold two packets. */
NM_TEST(narrow_links_do_not_deadlock)
{
	struct mesh_options options = {.capacity = 2, .refuse_percent = 30, .seed = 3};
	struct mesh *mesh = mesh_create(&options);
	enum { COUNT = 20, LEN = 60000 };
	char *buf = calloc(2, LEN);

	for (size_t i = 0; i < COUNT; i++) {
		for (unsigned int n = 0; n < 2; n++) {
			recv_from(mesh, n, NULL, buf + LEN, LEN, 1, 0,
				  TAGGED | NM_DELIVERY_COMPLETE, NULL);
			NM_CHECK_EQ(send_to(mesh, n, 1 - n, buf, LEN, 1,
					    NM_TAGGED | NM_DELIVERY_COMPLETE, NULL),
				    0);
		}
	}
	for (size_t i = 0; i < COUNT; i++)
		for (unsigned int n = 0; n < 2; n++)
			NM_CHECK_EQ(mesh_wait(mesh, n).len, LEN);
	mesh_destroy(mesh);
	free(buf);
}

NM_TEST(messages_to_oneself)
{
	struct mesh *mesh = mesh_create(NULL);
	char *out = malloc(100000), *in = calloc(1, 100000);

	fill(out, 100000, 6);
	for (size_t len = 10; len <= 100000; len *= 100) {
		NM_CHECK_EQ(send_to(mesh, 0, 0, out, len, 1, NM_TAGGED, NULL), 0);
		recv_from(mesh, 0, mesh_peer(mesh, 0, 0), in, len, 1, 0, TAGGED, NULL);
		NM_CHECK_EQ(mesh_wait(mesh, 0).len, len);
		check_filled(in, len, 6);
	}
	free(out);
	free(in);
	mesh_destroy(mesh);
}

/* Tagged and untagged messages do not see each other. */
NM_TEST(tagged_and_untagged_are_apart)
{
	struct mesh *mesh = mesh_create(NULL);
	char in[8];
	struct nm_completion c;

	send_to(mesh, 0, 1, "untagged", 8, 0, NM_MSG, NULL);
	recv_from(mesh, 1, NULL, in, 8, 0, UINT64_MAX, TAGGED, "tagged");
	NM_CHECK(mesh_quiet(mesh, 1));
	send_to(mesh, 0, 1, "tag", 3, 5, NM_TAGGED, NULL);
	c = mesh_wait(mesh, 1);
	NM_CHECK_STR(c.context, "tagged");
	NM_CHECK_EQ(c.len, 3);
	recv_from(mesh, 1, NULL, in, 8, 0, 0, UNTAGGED, "untagged");
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.len, 8);
	NM_CHECK_EQ(c.flags, NM_RECV | NM_MSG);
	mesh_destroy(mesh);
}

struct seen {
	unsigned int nr;
	struct nm_peer_facts facts[4];
};

static void see(void *arg, const struct nm_peer_facts *facts)
{
	struct seen *seen = arg;

	seen->facts[seen->nr++] = *facts;
}

NM_TEST(peers_can_be_looked_at)
{
	struct mesh *mesh = mesh_create(NULL);
	struct seen seen = {0};
	char in[10];

	send_to(mesh, 0, 1, "0123456789", 10, 0, NM_MSG, NULL);
	recv_from(mesh, 1, NULL, in, 10, 0, 0, UNTAGGED, NULL);
	mesh_wait(mesh, 1);
	nm_engine_visit_peers(mesh_node(mesh, 0)->engine, see, &seen);
	NM_CHECK_EQ(seen.nr, 1);
	NM_CHECK(seen.facts[0].connected && !seen.facts[0].down);
	NM_CHECK_EQ(seen.facts[0].link.channel, NM_CHANNEL_SHM);
	NM_CHECK_EQ(seen.facts[0].sent_messages, 1);
	NM_CHECK_EQ(seen.facts[0].sent_bytes, 10);
	NM_CHECK_EQ(seen.facts[0].sent[NM_CHANNEL_SHM].messages, 1);
	NM_CHECK_EQ(seen.facts[0].sent[NM_CHANNEL_SHM].bytes, 10);
	seen.nr = 0;
	nm_engine_visit_peers(mesh_node(mesh, 1)->engine, see, &seen);
	NM_CHECK_EQ(seen.nr, 1);
	NM_CHECK(!seen.facts[0].connected);
	NM_CHECK_EQ(seen.facts[0].received_messages, 1);
	NM_CHECK_EQ(seen.facts[0].received_bytes, 10);
	/* It has no way back to the sender, and knows how the message came nevertheless. */
	NM_CHECK_EQ(seen.facts[0].received[NM_CHANNEL_SHM].messages, 1);
	NM_CHECK_STR(seen.facts[0].link.label.text, "node");
	mesh_destroy(mesh);
}

NM_TEST(unreachable_peer_is_refused_in_words)
{
	struct mesh *mesh = mesh_create(NULL);
	struct seen seen = {0};

	mesh_hide(mesh, 1);
	NM_CHECK_EQ(send_to(mesh, 0, 1, "x", 1, 0, NM_MSG, NULL), -EHOSTUNREACH);
	nm_engine_visit_peers(mesh_node(mesh, 0)->engine, see, &seen);
	NM_CHECK_HAS(seen.facts[0].link.reason.text, "nobody is there");
	mesh_destroy(mesh);
}

NM_TEST(wrong_arguments_are_refused)
{
	struct mesh *mesh = mesh_create(NULL);
	struct nm_engine *engine = mesh_node(mesh, 0)->engine;
	struct iovec iov[5] = {{0}};
	struct nm_message m = {.iov = iov, .nr_iov = 5, .peer = mesh_peer(mesh, 0, 1)};

	NM_CHECK_EQ(nm_engine_send(engine, &m), -EINVAL);
	NM_CHECK_EQ(nm_engine_recv(engine, &m), -EINVAL);
	m.nr_iov = 1;
	m.peer = NULL;
	NM_CHECK_EQ(nm_engine_send(engine, &m), -EINVAL);
	m.flags = NM_TAGGED | NM_MULTI_RECV;
	NM_CHECK_EQ(nm_engine_recv(engine, &m), -EINVAL);
	m.flags = NM_TAGGED | NM_CLAIM;
	NM_CHECK_EQ(nm_engine_recv(engine, &m), -EINVAL);
	mesh_destroy(mesh);
}

/* LEN bytes of address space in which every 4 MiB are the same. */
static char *map_repeated(size_t len)
{
	enum { PERIOD = 4 << 20 };
	int fd = memfd_create("repeated", 0);
	char *base = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	NM_CHECK(fd >= 0 && base != MAP_FAILED);
	NM_CHECK_EQ(ftruncate(fd, PERIOD), 0);
	for (size_t at = 0; at < len; at += PERIOD)
		NM_CHECK(mmap(base + at, PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			      0) != MAP_FAILED);
	close(fd);
	return base;
}

/* Bytes past 2 GiB, sizes past 4 GiB: no count, offset or length is kept in 32 bits. */
NM_TEST_WITHIN(gigabytes, 100)
{
	const size_t len = (UINT64_C(2) << 30) + (64 << 20);
	struct mesh_options options = {.max_payload = 1 << 20};
	struct mesh *mesh = mesh_create(&options);
	char *out = map_repeated(len), *in = map_repeated(len);
	struct iovec iov[4] = {{out, len}, {out, len}, {out, len}, {out, len}};
	struct nm_message four = {.iov = iov, .nr_iov = 4, .tag = 1, .flags = TAGGED};
	struct nm_completion c;

	fill(out, 4 << 20, 1);
	recv_from(mesh, 1, NULL, in, len, 1, 0, TAGGED, in);
	NM_CHECK_EQ(send_to(mesh, 0, 1, out, len, 1, TAGGED, out), 0);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK_EQ(c.len, len);
	check_filled(in, 4 << 20, 1);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	/* Cut short: only what fits is transferred. */
	four.peer = mesh_peer(mesh, 0, 1);
	recv_from(mesh, 1, NULL, in, 10, 1, 0, TAGGED, in);
	NM_CHECK_EQ(nm_engine_send(mesh_node(mesh, 0)->engine, &four), 0);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, NM_ETRUNC);
	NM_CHECK_EQ(c.olen, 4 * len - 10);
	munmap(out, len);
	munmap(in, len);
	mesh_destroy(mesh);
}
