/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a peer: whoever waits for it learns so, once, and nothing hangs or leaks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

enum { BIG = 100000 };

static const struct mesh_options three = {.nr_nodes = 3};

static void meet(struct mesh *mesh, unsigned int a, unsigned int b)
{
	char in[1];

	send_to(mesh, a, b, "x", 1, 999, NM_TAGGED, NULL);
	recv_from(mesh, b, NULL, in, 1, 999, 0, TAGGED, NULL);
	mesh_wait(mesh, b);
	send_to(mesh, b, a, "x", 1, 999, NM_TAGGED, NULL);
	recv_from(mesh, a, NULL, in, 1, 999, 0, TAGGED, NULL);
	mesh_wait(mesh, a);
}

static void expect_error(struct mesh *mesh, unsigned int node, int err, void *context)
{
	struct nm_completion c = mesh_wait(mesh, node);

	NM_CHECK_EQ(c.err, err);
	NM_CHECK(c.context == context);
}

NM_TEST(crash_ends_directed_and_wildcard_receives)
{
	struct mesh *mesh = mesh_create(&three);
	char in[8];
	struct nm_completion c;

	meet(mesh, 0, 1);
	meet(mesh, 0, 2);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 8, 1, 0, NM_TAGGED, "directed");
	recv_from(mesh, 0, mesh_peer(mesh, 0, 2), in, 8, 1, 0, NM_TAGGED, "other");
	recv_from(mesh, 0, NULL, in, 8, 2, 0, NM_TAGGED, "any tagged");
	recv_from(mesh, 0, NULL, in, 8, 2, 0, NM_MSG, "any");
	recv_from(mesh, 0, NULL, in, 8, 2, 0, UNTAGGED | NM_MULTI_RECV, "multi");
	mesh_kill(mesh, 1, -ECONNRESET);
	c = mesh_wait(mesh, 0);
	NM_CHECK_EQ(c.err, ECONNRESET);
	NM_CHECK_STR(c.context, "directed");
	NM_CHECK(c.source == mesh_peer(mesh, 0, 1));
	expect_error(mesh, 0, ECONNRESET, "any");
	expect_error(mesh, 0, ECONNRESET, "any tagged");
	/* The others live on. */
	NM_CHECK(mesh_quiet(mesh, 0));
	send_to(mesh, 2, 0, "abc", 3, 1, NM_TAGGED, NULL);
	mesh_settle(mesh);
	NM_CHECK_EQ(mesh_node(mesh, 0)->recv.value, 3);
	send_to(mesh, 2, 0, "abc", 3, 1, NM_MSG, NULL);
	NM_CHECK_STR(mesh_wait(mesh, 0).context, "multi");
	mesh_destroy(mesh);
}

NM_TEST(orderly_close_leaves_wildcards_alone)
{
	struct mesh *mesh = mesh_create(&three);
	char in[8];

	meet(mesh, 0, 1);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 8, 1, 0, TAGGED, "directed");
	recv_from(mesh, 0, NULL, in, 8, 2, 0, TAGGED, "any");
	/* What it said before it went is received. */
	send_to(mesh, 1, 0, "bye", 3, 3, NM_TAGGED, NULL);
	mesh_kill(mesh, 1, 0);
	expect_error(mesh, 0, ECONNRESET, "directed");
	NM_CHECK(mesh_quiet(mesh, 0));
	recv_from(mesh, 0, NULL, in, 8, 3, 0, TAGGED, "bye");
	NM_CHECK_EQ(mesh_wait(mesh, 0).len, 3);
	send_to(mesh, 2, 0, "x", 1, 2, NM_TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	/* After the end: refused, and no receive waits for it. */
	NM_CHECK_EQ(send_to(mesh, 0, 1, "x", 1, 1, NM_TAGGED, NULL), -ECONNRESET);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 8, 1, 0, TAGGED, in);
	expect_error(mesh, 0, ECONNRESET, in);
	mesh_destroy(mesh);
}

NM_TEST(crash_before_any_receive_is_told_once)
{
	struct mesh *mesh = mesh_create(&three);
	char in[8];

	meet(mesh, 0, 1);
	mesh_kill(mesh, 1, -ECONNRESET);
	NM_CHECK(mesh_quiet(mesh, 0));
	/* It might have been the one we are about to wait for. */
	recv_from(mesh, 0, NULL, in, 8, 2, 0, TAGGED, in);
	expect_error(mesh, 0, ECONNRESET, in);
	recv_from(mesh, 0, NULL, in, 8, 2, 0, TAGGED, in);
	NM_CHECK(mesh_quiet(mesh, 0));
	mesh_destroy(mesh);
}

/* Operations of every kind, at every stage, when the peer crashes. */
NM_TEST(crash_ends_everything_under_way)
{
	struct mesh *mesh = mesh_create(NULL);
	char *buf = calloc(1, BIG), small[8];
	struct iovec big = {buf, BIG}, tiny = {small, 8};
	struct nm_rma rma = {
		.nr_iov = 1,
		.nr_remote = 1,
		.flags = NM_COMPLETION,
		.peer = mesh_peer(mesh, 0, 1),
	};
	struct nm_atomic atomic = {
		.operand = &tiny,
		.nr_operand = 1,
		.nr_remote = 1,
		.remote = {{.len = 8}},
		.datatype = 7,
		.op = 2,
		.flags = NM_COMPLETION,
		.peer = mesh_peer(mesh, 0, 1),
		.context = "atomic",
	};
	struct nm_engine *engine = mesh_node(mesh, 0)->engine;
	unsigned int errors = 0;

	meet(mesh, 0, 1);
	send_to(mesh, 0, 1, buf, BIG, 1, TAGGED, "rendezvous");
	send_to(mesh, 0, 1, buf, 8, 1, TAGGED | NM_DELIVERY_COMPLETE, "acked");
	rma.iov = &tiny;
	rma.remote[0].len = 8;
	NM_CHECK_EQ(nm_engine_write(engine, &rma), 0);
	NM_CHECK_EQ(nm_engine_read(engine, &rma), 0);
	NM_CHECK_EQ(nm_engine_atomic(engine, &atomic), 0);
	rma.iov = &big;
	rma.remote[0].len = BIG;
	NM_CHECK_EQ(nm_engine_write(engine, &rma), 0);
	mesh_kill(mesh, 1, -ECONNRESET);
	for (int i = 0; i < 6; i++)
		errors += mesh_wait(mesh, 0).err == ECONNRESET;
	NM_CHECK_EQ(errors, 6);
	NM_CHECK(mesh_quiet(mesh, 0));
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.errors, 2);
	NM_CHECK_EQ(mesh_node(mesh, 0)->write.errors, 3);
	NM_CHECK_EQ(mesh_node(mesh, 0)->read.errors, 1);
	free(buf);
	mesh_destroy(mesh);
}

/* STEPS rounds into a large message, one side dies: the other ends with an error. */
static void crash_mid_message(int steps, bool receiver_dies)
{
	struct mesh_options options = {.capacity = 3, .seed = 8};
	struct mesh *mesh = mesh_create(&options);
	char *out = calloc(1, BIG), *in = calloc(1, BIG);
	unsigned int left = receiver_dies ? 0 : 1;
	struct nm_completion c;

	meet(mesh, 0, 1);
	recv_from(mesh, 1, mesh_peer(mesh, 1, 0), in, BIG, 1, 0, TAGGED, in);
	send_to(mesh, 0, 1, out, BIG, 1, TAGGED | NM_DELIVERY_COMPLETE, out);
	for (int i = 0; i < steps; i++)
		mesh_step(mesh);
	if (!nm_cqueue_empty(mesh_node(mesh, left)->cq))
		nm_test_fail(__FILE__, __LINE__, "%d steps are too many", steps);
	mesh_kill(mesh, 1 - left, -ECONNRESET);
	c = mesh_wait(mesh, left);
	NM_CHECK_EQ(c.err, ECONNRESET);
	NM_CHECK(c.context == (receiver_dies ? out : in));
	NM_CHECK(mesh_quiet(mesh, left));
	free(out);
	free(in);
	mesh_destroy(mesh);
}

NM_TEST(crash_in_the_middle_of_a_message)
{
	for (int steps = 0; steps < 12; steps++) {
		crash_mid_message(steps, true);
		crash_mid_message(steps, false);
	}
}

NM_TEST(crash_in_the_middle_of_a_multi_recv)
{
	struct mesh_options options = {.nr_nodes = 3, .capacity = 3};
	struct mesh *mesh = mesh_create(&options);
	char *out = calloc(1, BIG), *in = calloc(1, 2 * BIG);
	struct nm_completion c;

	meet(mesh, 0, 1);
	recv_from(mesh, 1, NULL, in, 2 * BIG, 0, 0, UNTAGGED | NM_MULTI_RECV, in);
	send_to(mesh, 0, 1, out, BIG, 0, NM_MSG, NULL);
	for (int i = 0; i < 8; i++)
		mesh_step(mesh);
	mesh_kill(mesh, 0, -ECONNRESET);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, ECONNRESET);
	NM_CHECK(!(c.flags & NM_MULTI_RECV));
	NM_CHECK(c.source == mesh_peer(mesh, 1, 0));
	/* The buffer still takes messages of others. */
	send_to(mesh, 2, 1, "abc", 3, 0, NM_MSG, NULL);
	c = mesh_wait(mesh, 1);
	NM_CHECK(c.err == 0 && c.len == 3);
	free(out);
	free(in);
	mesh_destroy(mesh);
}

NM_TEST(unreceived_envelopes_die_with_their_sender)
{
	struct mesh *mesh = mesh_create(NULL);
	char *out = calloc(1, BIG), *in = calloc(1, BIG);
	struct nm_completion c;

	send_to(mesh, 0, 1, out, BIG, 1, NM_TAGGED, NULL);
	send_to(mesh, 0, 1, out, BIG, 2, NM_TAGGED, NULL);
	send_to(mesh, 0, 1, out, 10, 3, NM_TAGGED, NULL);
	mesh_settle(mesh);
	recv_from(mesh, 1, NULL, NULL, 0, 2, 0, TAGGED | NM_PEEK | NM_CLAIM, in);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, BIG);
	mesh_kill(mesh, 0, 0);
	mesh_settle(mesh);
	recv_from(mesh, 1, NULL, NULL, 0, 1, 0, TAGGED | NM_PEEK, in);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, ENOMSG);
	recv_from(mesh, 1, NULL, in, BIG, 0, 0, TAGGED | NM_CLAIM, in);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, ECONNRESET);
	/* What came whole is whole. */
	recv_from(mesh, 1, mesh_peer(mesh, 1, 0), in, BIG, 3, 0, TAGGED, in);
	c = mesh_wait(mesh, 1);
	NM_CHECK(c.err == 0 && c.len == 10);
	free(out);
	free(in);
	mesh_destroy(mesh);
}

struct seen {
	struct nm_peer_facts facts;
};

static void see(void *arg, const struct nm_peer_facts *facts)
{
	((struct seen *)arg)->facts = *facts;
}

NM_TEST(the_reason_can_be_read)
{
	struct mesh *mesh = mesh_create(NULL);
	struct seen seen;

	meet(mesh, 0, 1);
	mesh_kill(mesh, 1, -ECONNRESET);
	mesh_settle(mesh);
	nm_engine_visit_peers(mesh_node(mesh, 0)->engine, see, &seen);
	NM_CHECK(seen.facts.down);
	NM_CHECK_STR(seen.facts.down_reason.text, "node 1 ended");
	mesh_destroy(mesh);
}

/* A peer that cannot be answered is as good as dead. */
NM_TEST(no_way_back)
{
	struct mesh *mesh = mesh_create(NULL);
	char *buf = calloc(1, BIG);

	mesh_hide(mesh, 0);
	recv_from(mesh, 1, NULL, buf, BIG, 1, 0, TAGGED, buf);
	send_to(mesh, 0, 1, buf, BIG, 1, NM_TAGGED, NULL);
	expect_error(mesh, 1, ECONNRESET, buf);
	free(buf);
	mesh_destroy(mesh);
}

/* Completions outlive the engine that wrote them, its peers do not. */
NM_TEST(completions_outlive_their_engine)
{
	struct mesh *mesh = mesh_create(NULL);
	struct nm_cqueue *cq;
	char in[3];
	struct nm_engine_queues queues = {0};

	NM_CHECK_EQ(nm_cqueue_create(0, &cq), 0);
	queues.receive = cq;
	nm_engine_bind(mesh_node(mesh, 0)->engine, &queues);
	nm_engine_bind(mesh_node(mesh, 1)->engine, &queues);
	for (unsigned int i = 0; i < 2; i++) {
		recv_from(mesh, i, NULL, in, 3, 1, 0, TAGGED, (void *)(uintptr_t)i);
		send_to(mesh, 1 - i, i, "abc", 3, 1, NM_TAGGED, NULL);
	}
	mesh_settle(mesh);
	mesh_kill(mesh, 0, 0);
	for (int i = 0; i < 2; i++) {
		const struct nm_completion *c = nm_cqueue_front(cq);

		NM_CHECK_EQ(c->len, 3);
		NM_CHECK(c->context ? c->source == mesh_peer(mesh, 1, 0) : !c->source);
		nm_cqueue_pop(cq);
	}
	mesh_destroy(mesh);
	nm_cqueue_destroy(cq);
}

static unsigned int checks_while_idle(struct mesh *mesh)
{
	for (int i = 0; i < 2000; i++) {
		nm_engine_progress(mesh_node(mesh, 0)->engine);
		nm_test_sleep_ms(i % 64 == 0);
	}
	return mesh_alive_checks(mesh, 0, 1);
}

NM_TEST(those_waited_for_are_asked_whether_they_live)
{
	struct mesh *mesh;
	char in[1];

	setenv("NEARMETAL_KEEPALIVE_MS", "50", 1);
	mesh = mesh_create(NULL);
	meet(mesh, 0, 1);
	NM_CHECK_EQ(checks_while_idle(mesh), 0); /* nobody waits */
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 1, 1, 0, TAGGED, NULL);
	while (mesh_alive_checks(mesh, 0, 1) == 0)
		checks_while_idle(mesh);
	mesh_destroy(mesh);
}

NM_TEST(messages_of_an_impostor_go_and_end_no_receive)
{
	struct mesh *mesh = mesh_create(&three);
	static char big[BIG], in[BIG];
	struct nm_peer *impostor;

	mesh_take_out(mesh, 1);
	recv_from(mesh, 0, NULL, in, 8, 5, 0, TAGGED, "any");
	send_to(mesh, 1, 0, "forged", 6, 1, NM_TAGGED, NULL);
	send_to(mesh, 1, 0, big, BIG, 2, NM_TAGGED, NULL);
	mesh_settle(mesh);
	impostor = mesh_peer(mesh, 0, 1);
	mesh_insert(mesh, 1, true);
	NM_CHECK(mesh_peer(mesh, 0, 1) != impostor);
	recv_from(mesh, 0, NULL, in, 8, 1, 0, TAGGED, "any");
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, BIG, 2, 0, TAGGED, "directed");
	NM_CHECK(mesh_quiet(mesh, 0));
	send_to(mesh, 2, 0, "abc", 3, 5, NM_TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	NM_CHECK(mesh_quiet(mesh, 0));
	mesh_destroy(mesh);
}

NM_TEST(messages_of_a_source_stay_when_its_address_is_learned)
{
	struct mesh *mesh = mesh_create(&three);
	struct nm_completion c;
	char in[8];

	mesh_take_out(mesh, 1);
	send_to(mesh, 1, 0, "abc", 3, 1, NM_TAGGED, NULL);
	mesh_settle(mesh);
	mesh_insert(mesh, 1, false);
	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 8, 1, 0, TAGGED, "directed");
	c = mesh_wait(mesh, 0);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK_EQ(c.len, 3);
	mesh_destroy(mesh);
}

/* Any process of the user can call, send and die. */
NM_TEST(the_crash_of_a_stranger_ends_no_receive)
{
	struct mesh *mesh = mesh_create(&three);
	char in[8];

	mesh_take_out(mesh, 2);
	meet(mesh, 0, 1);
	recv_from(mesh, 0, NULL, in, 8, 2, 0, TAGGED, "before");
	send_to(mesh, 2, 0, "forged", 6, 3, NM_TAGGED, NULL);
	mesh_settle(mesh);
	mesh_kill(mesh, 2, -ECONNRESET);
	recv_from(mesh, 0, NULL, in, 8, 2, 0, TAGGED, "after");
	NM_CHECK(mesh_quiet(mesh, 0));
	/* The crash of a peer in the address vector does. */
	mesh_kill(mesh, 1, -ECONNRESET);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	mesh_destroy(mesh);
}
