/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines leave their segment in order while their endpoints talk: nothing is lost, doubled,
 * changed or reordered, and the machine becomes FROZEN.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"
#include "moving.h"
#include "transport/shm/shm_private.h"

static bool is_frozen[MOVING_MAX], is_asked[MOVING_MAX];

static void ask(unsigned int part)
{
	if (!is_asked[part])
		NM_CHECK_EQ(machine_ask(part, NM_VMSEG_QUIESCE), 0);
	is_asked[part] = true;
}

static void try_to_freeze(unsigned int part)
{
	int err = is_asked[part] && !is_frozen[part] ? machine_ask(part, NM_VMSEG_FROZEN) : -EBUSY;

	NM_CHECK(!err || err == -EBUSY);
	is_frozen[part] |= !err;
}

static void stay(unsigned int part)
{
	NM_CHECK_EQ(machine_ask(part, NM_VMSEG_RUN), 0);
	is_asked[part] = is_frozen[part] = false;
}

static void move_1(unsigned int round)
{
	if (round == 40)
		ask(1);
	if (round % 50 == 0)
		try_to_freeze(1);
}

static void check_on(unsigned int a, unsigned int b, enum nm_channel channel)
{
	NM_CHECK_EQ(moving_channel(a, b), channel);
	NM_CHECK_EQ(moving_channel(b, a), channel);
	NM_CHECK_EQ(near_facts(moving_node(a), moving_node(b)).nr_quarantines, 0);
	NM_CHECK(!near_facts(moving_node(a), moving_node(b)).down);
}

static void talk_until_frozen(unsigned int part)
{
	while (!is_frozen[part])
		moving_talk(20, move_1);
}

static void check_both_used(unsigned int a, unsigned int b)
{
	NM_CHECK(moving_sent(a, b, NM_CHANNEL_VMSEG) > 0);
	NM_CHECK(moving_sent(a, b, NM_CHANNEL_NET) > 0);
	NM_CHECK(moving_sent(b, a, NM_CHANNEL_VMSEG) > 0);
	NM_CHECK(moving_sent(b, a, NM_CHANNEL_NET) > 0);
}

NM_TEST_WITHIN(a_machine_leaves_amid_all_traffic, 120)
{
	moving_create(2);
	moving_talk(60, NULL);
	check_on(0, 1, NM_CHANNEL_VMSEG);
	moving_talk(200, move_1);
	talk_until_frozen(1);
	check_on(0, 1, NM_CHANNEL_NET);
	check_both_used(0, 1);
	moving_talk(100, NULL);
	check_on(0, 1, NM_CHANNEL_NET);
	moving_destroy();
}

static void move_0_and_1(unsigned int round)
{
	if (round == 40) {
		ask(0);
		ask(1);
	}
	if (round % 50 == 0) {
		try_to_freeze(0);
		try_to_freeze(1);
	}
}

NM_TEST_WITHIN(both_machines_leave_at_once, 120)
{
	moving_create(2);
	moving_talk(60, NULL);
	moving_talk(200, move_0_and_1);
	while (!is_frozen[0] || !is_frozen[1])
		moving_talk(20, move_0_and_1);
	check_on(0, 1, NM_CHANNEL_NET);
	check_both_used(0, 1);
	moving_destroy();
}

NM_TEST_WITHIN(neighbours_stay_with_each_other, 120)
{
	moving_create(3);
	moving_talk(60, NULL);
	moving_talk(120, move_1);
	talk_until_frozen(1);
	check_on(0, 1, NM_CHANNEL_NET);
	check_on(2, 1, NM_CHANNEL_NET);
	check_on(0, 2, NM_CHANNEL_VMSEG);
	check_both_used(0, 1);
	check_both_used(2, 1);
	moving_destroy();
}

static void move_early(unsigned int round)
{
	if (round == 3)
		ask(1);
	if (round % 50 == 0)
		try_to_freeze(1);
}

/* Handshakes are under way, in one direction or both. */
NM_TEST_WITHIN(a_machine_leaves_while_sessions_are_made, 120)
{
	moving_create(3);
	moving_talk(60, move_early);
	talk_until_frozen(1);
	check_on(0, 1, NM_CHANNEL_NET);
	check_on(0, 2, NM_CHANNEL_VMSEG);
	moving_destroy();
}

static void step_until_frozen(unsigned int part)
{
	while (!is_frozen[part]) {
		near_step(moving_node(0), moving_node(1), NULL);
		try_to_freeze(part);
		nm_test_sleep_ms(1);
	}
}

/* The reader has no way of its own; the writer is on the machine that stays, or on the other one. */
NM_TEST_WITHIN(one_direction_is_enough, 120)
{
	for (unsigned int part = 0; part < 2; part++) {
		moving_create(2);
		moving_message(0, 1, "by memory");
		ask(part);
		step_until_frozen(part);
		moving_message(0, 1, "by network");
		NM_CHECK_EQ(moving_channel(0, 1), NM_CHANNEL_NET);
		NM_CHECK(!near_facts(moving_node(1), moving_node(0)).connected);
		moving_message(1, 0, "and back");
		NM_CHECK_EQ(moving_channel(1, 0), NM_CHANNEL_NET);
		stay(part);
		moving_destroy();
	}
}

static struct nm_peer *peer_of(unsigned int at, unsigned int other)
{
	return near_peer(moving_node(at), moving_node(other));
}

static void step_until_way(unsigned int at, unsigned int other, enum nm_way way)
{
	while (peer_of(at, other)->way != way) {
		near_step(moving_node(0), moving_node(1), NULL);
		nm_test_sleep_ms(1);
	}
}

/* Between MOVE and MOVED nothing is sent, and what is wanted meanwhile follows in its order. */
NM_TEST_WITHIN(nothing_passes_a_way_that_is_counted, 60)
{
	char in[8] = "";

	moving_create(2);
	moving_message(0, 1, "first");
	near_hold_net(moving_node(1), true);
	ask(1);
	step_until_way(0, 1, NM_WAY_COUNTING);
	for (int i = 0; i < 100; i++) {
		near_step(moving_node(0), moving_node(1), NULL);
		NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), "x", 1, 4, 0, NULL), -EAGAIN);
	}
	NM_CHECK_EQ(peer_of(0, 1)->state, NM_PEER_MOVING);
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_FROZEN), -EBUSY);
	NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, sizeof(in), 4, "in"), 0);
	near_hold_net(moving_node(1), false);
	moving_message(0, 1, "second");
	step_until_frozen(1);
	NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), "y", 1, 4, 0, NULL), 0);
	NM_CHECK_EQ(near_wait(moving_node(1), moving_node(0), NULL).err, 0);
	NM_CHECK_STR(in, "y");
	moving_destroy();
}

/* A receive without a source takes what was sent first, from wherever. */
NM_TEST_WITHIN(what_is_in_memory_comes_before_what_is_on_the_network, 60)
{
	char in[8];

	moving_create(2);
	moving_message(0, 1, "first");
	for (char c = 'a'; c < 'f'; c++)
		NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), &c, 1, 4, 0, NULL), 0);
	ask(1);
	/* The reader computes. */
	while (peer_of(0, 1)->way != NM_WAY_COUNTING) {
		near_step(moving_node(0), NULL, NULL);
		nm_test_sleep_ms(1);
	}
	while (near_send(moving_node(0), moving_node(1), "f", 1, 4, 0, NULL) == -EAGAIN)
		near_step(moving_node(0), moving_node(1), NULL);
	for (char c = 'a'; c <= 'f'; c++) {
		NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, 1, 4, "in"), 0);
		NM_CHECK_EQ(near_wait(moving_node(1), moving_node(0), NULL).err, 0);
		NM_CHECK_EQ(in[0], c);
	}
	step_until_frozen(1);
	moving_destroy();
}

static unsigned int nr_warnings;

static void count_warning(enum nm_log_level level, const char *line)
{
	nr_warnings += level == NM_LOG_WARN && strstr(line, "its messages stay in memory");
}

NM_TEST_WITHIN(without_a_network_memory_stays, 60)
{
	struct near_node *a = near_create_on(0, false), *b = near_create_on(1, true);
	struct nm_transport *t = a->engine->transports[NM_CHANNEL_VMSEG];
	char in[8];

	nm_log_set_sink(count_warning);
	NM_CHECK_EQ(near_send(a, b, "x", 1, 1, 0, NULL), 0);
	NM_CHECK_EQ(near_recv(b, a, in, 1, 1, "in"), 0);
	NM_CHECK_EQ(near_wait(b, a, NULL).err, 0);
	ask(1);
	for (int i = 0; i < 500; i++) {
		near_step(a, b, NULL);
		nm_test_sleep_ms(1);
	}
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_FROZEN), -EBUSY);
	NM_CHECK_EQ(near_send(a, b, "y", 1, 1, 0, NULL), 0);
	NM_CHECK_EQ(near_recv(b, a, in, 1, 1, "in"), 0);
	NM_CHECK_EQ(near_wait(b, a, NULL).err, 0);
	NM_CHECK_EQ(in[0], 'y');
	NM_CHECK_EQ(near_facts(a, b).link.channel, NM_CHANNEL_VMSEG);
	/* A machine that asks over and over fills no log. */
	for (int i = 0; i < 10; i++) {
		NM_CHECK(t->sink.asked(t, near_peer(a, b), NM_LEAVES));
		near_step(a, b, NULL);
	}
	NM_CHECK_EQ(nr_warnings, 1);
	nm_log_set_sink(NULL);
	near_destroy(a);
	near_destroy(b);
}

static void ask_in_vain(enum near_net_state state)
{
	moving_create(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	near_set_net(moving_node(0), state);
	near_set_net(moving_node(1), state);
	ask(1);
	for (int i = 0; i < 300; i++) {
		near_step(moving_node(0), moving_node(1), NULL);
		nm_test_sleep_ms(1);
	}
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_FROZEN), -EBUSY);
	moving_message(0, 1, "still");
	moving_message(1, 0, "there");
	check_on(0, 1, NM_CHANNEL_VMSEG);
}

/* A network is configured, and the peer cannot be reached there. */
NM_TEST_WITHIN(with_a_broken_network_memory_stays, 60)
{
	nm_log_set_sink(count_warning);
	ask_in_vain(NEAR_NET_BROKEN);
	NM_CHECK_EQ(nr_warnings, 2);
	nm_log_set_sink(NULL);
	moving_destroy();
}

/* Nothing is held before the peer was met on the network. */
NM_TEST_WITHIN(memory_is_left_when_the_network_comes, 60)
{
	ask_in_vain(NEAR_NET_UNMET);
	NM_CHECK_EQ(peer_of(0, 1)->way, NM_WAY_MEMORY);
	near_set_net(moving_node(0), NEAR_NET_GOOD);
	near_set_net(moving_node(1), NEAR_NET_GOOD);
	step_until_frozen(1);
	moving_message(0, 1, "far");
	check_on(0, 1, NM_CHANNEL_NET);
	moving_destroy();
}

/* Memory is held, and then the network ends: so does the pair, at once and in words. */
NM_TEST_WITHIN(a_network_that_ends_amid_a_move, 60)
{
	struct nm_peer_facts facts;

	moving_create(2);
	moving_message(0, 1, "first");
	near_hold_net(moving_node(1), true);
	ask(1);
	step_until_way(0, 1, NM_WAY_COUNTING);
	moving_end_net(0, 1, -ECONNRESET);
	facts = near_facts(moving_node(0), moving_node(1));
	NM_CHECK(facts.down);
	NM_CHECK_HAS(facts.down_reason.text, "a test");
	moving_destroy();
}

/* A neighbour that answers, but sends in memory as before. */
NM_TEST_WITHIN(who_answers_and_stays_is_given_up, 60)
{
	struct nm_transport *segment;
	struct nm_peer_facts facts;

	setenv("NEARMETAL_MOVE_MS", "1000", 1);
	moving_create(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	/* It never hears the question. */
	segment = moving_node(1)->engine->transports[NM_CHANNEL_VMSEG];
	segment->sink.asked = NULL;
	ask(1);
	step_until_way(0, 1, NM_WAY_NETWORK);
	step_until_way(0, 1, NM_WAY_ENDED);
	facts = near_facts(moving_node(0), moving_node(1));
	NM_CHECK_HAS(facts.down_reason.text, "did not stop to send there within NEARMETAL_MOVE_MS");
	moving_destroy();
}

/* The request is taken back before anything was held. */
NM_TEST(a_request_that_is_taken_back_moves_nothing)
{
	struct nm_transport *t;

	moving_create(2);
	moving_message(0, 1, "first");
	t = moving_node(0)->engine->transports[NM_CHANNEL_VMSEG];
	NM_CHECK(t->sink.asked(t, peer_of(0, 1), NM_LEAVES));
	NM_CHECK(t->sink.asked(t, peer_of(0, 1), NM_STAYS));
	moving_message(0, 1, "second");
	NM_CHECK_EQ(moving_channel(0, 1), NM_CHANNEL_VMSEG);
	NM_CHECK_EQ(peer_of(0, 1)->way, NM_WAY_MEMORY);
	moving_destroy();
}

NM_TEST_WITHIN(who_does_not_count_is_given_up, 60)
{
	struct nm_peer_facts facts;

	setenv("NEARMETAL_MOVE_MS", "1000", 1);
	moving_create(2);
	moving_message(0, 1, "first");
	near_hold_net(moving_node(1), true);
	ask(1);
	step_until_way(0, 1, NM_WAY_ENDED);
	facts = near_facts(moving_node(0), moving_node(1));
	NM_CHECK(facts.down);
	NM_CHECK_HAS(facts.down_reason.text, "NEARMETAL_MOVE_MS");
	near_hold_net(moving_node(1), false);
	moving_destroy();
}

/* Who is given up keeps no machine from leaving, whether it ends its own way or not. */
NM_TEST_WITHIN(who_is_given_up_holds_up_no_machine, 60)
{
	setenv("NEARMETAL_MOVE_MS", "1000", 1);
	moving_create(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	ask(0);
	/* The other one computes. */
	while (!is_frozen[0]) {
		near_step(moving_node(0), NULL, NULL);
		try_to_freeze(0);
		nm_test_sleep_ms(1);
	}
	NM_CHECK(near_facts(moving_node(0), moving_node(1)).down);
	moving_destroy();
}

/* Answers that the other side awaits leave before the endpoint closes, by the network. */
NM_TEST_WITHIN(an_answer_outlives_a_close_amid_a_move, 60)
{
	char in[8] = "";
	struct nm_completion c;

	moving_create(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	near_hold_net(moving_node(0), true);
	near_hold_net(moving_node(1), true);
	NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), "x", 1, 5,
			      NM_COMPLETION | NM_DELIVERY_COMPLETE, "out"),
		    0);
	ask(1);
	step_until_way(1, 0, NM_WAY_COUNTING);
	NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, sizeof(in), 5, "in"), 0);
	NM_CHECK_EQ(near_wait(moving_node(1), NULL, NULL).err, 0);
	NM_CHECK(nm_cqueue_empty(moving_node(0)->cq));
	near_hold_net(moving_node(0), false);
	near_hold_net(moving_node(1), false);
	nm_engine_retire(moving_node(1)->engine);
	c = near_wait(moving_node(0), moving_node(1), NULL);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK_STR(c.context, "out");
	moving_destroy();
}
