/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines leave their segment and come back, over and over, while their endpoints talk: nothing is
 * lost, doubled, changed or reordered.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/exchange.h"
#include "engine/internal.h"
#include "moving.h"
#include "transport/shm/shm_private.h"

static enum { STAYS, ASKED, FROZEN } places[MOVING_MAX];
static unsigned int nr_rounds; /* moves there and back of each machine */

static void ask(unsigned int part)
{
	NM_CHECK_EQ(machine_ask(part, NM_VMSEG_QUIESCE), 0);
	places[part] = ASKED;
}

static bool freezes(unsigned int part)
{
	int err = machine_ask(part, NM_VMSEG_FROZEN);

	NM_CHECK(!err || err == -EBUSY);
	if (!err)
		places[part] = FROZEN;
	return !err;
}

static void stay(unsigned int part)
{
	NM_CHECK_EQ(machine_ask(part, NM_VMSEG_RUN), 0);
	places[part] = STAYS;
}

static void check_both_used(unsigned int a, unsigned int b)
{
	struct nm_peer_facts facts = near_facts(moving_node(a), moving_node(b));

	NM_CHECK(moving_sent(a, b, NM_CHANNEL_VMSEG) > 0);
	NM_CHECK(moving_sent(a, b, NM_CHANNEL_NET) > 0);
	NM_CHECK(facts.received[NM_CHANNEL_VMSEG].messages > 0);
	NM_CHECK(facts.received[NM_CHANNEL_NET].messages > 0);
	NM_CHECK_EQ(facts.nr_quarantines, 0);
	NM_CHECK(!facts.down);
}

/* The next step of PART that is possible; it is back with AGAIN. */
static void go_on(unsigned int part, unsigned int again)
{
	if (places[part] == ASKED) {
		freezes(part);
	} else if (places[part] == FROZEN) {
		NM_CHECK_EQ(moving_channel(part, again), NM_CHANNEL_NET);
		stay(part);
	} else if (moving_is_on(part, again, NM_CHANNEL_VMSEG)) {
		ask(part);
		nr_rounds++;
	}
}

static void move_1(unsigned int round)
{
	if (round % 20 == 0)
		go_on(1, 0);
}

static void talk_until(unsigned int rounds, void (*meanwhile)(unsigned int round))
{
	nr_rounds = 0;
	while (nr_rounds < rounds)
		moving_talk(20, meanwhile);
}

static void talk_until_on(unsigned int a, unsigned int b, enum nm_channel channel)
{
	for (unsigned int part = 0; part < MOVING_MAX; part++)
		if (places[part] != STAYS)
			stay(part);
	while (!moving_is_on(a, b, channel))
		moving_talk(1, NULL);
}

static unsigned int nr_lines;

static void count_changes(enum nm_log_level level, const char *line)
{
	nr_lines += level == NM_LOG_INFO &&
		    (strstr(line, "the memory channel") || strstr(line, ": channel "));
}

NM_TEST_WITHIN(there_and_back_amid_all_traffic, 240)
{
	moving_create(2);
	moving_talk(20, NULL);
	nr_lines = 0;
	nm_log_set_sink(count_changes);
	nm_log_set_level(NM_LOG_INFO);
	talk_until(25, move_1);
	talk_until_on(0, 1, NM_CHANNEL_VMSEG);
	check_both_used(0, 1);
	check_both_used(1, 0);
	/* A machine that comes and goes at any rate fills no log: 32 lines of each endpoint. */
	NM_CHECK_EQ(nr_lines, 64);
	nm_log_set_sink(NULL);
	/* Two per round in each direction; the last may have been taken back. */
	NM_CHECK(near_facts(moving_node(0), moving_node(1)).nr_moves >= 48);
	NM_CHECK(near_facts(moving_node(1), moving_node(0)).nr_moves >= 48);
	moving_destroy();
}

/* Both machines, each in its own time, and together. */
static void move_both(unsigned int round)
{
	if (round % 20 == 0)
		go_on(0, 1);
	if (round % 30 == 0)
		go_on(1, 0);
}

NM_TEST_WITHIN(both_machines_there_and_back, 240)
{
	moving_create(2);
	moving_talk(20, NULL);
	talk_until(24, move_both);
	talk_until_on(0, 1, NM_CHANNEL_VMSEG);
	check_both_used(0, 1);
	check_both_used(1, 0);
	moving_destroy();
}

NM_TEST_WITHIN(neighbours_of_one_that_comes_back, 240)
{
	moving_create(3);
	moving_talk(20, NULL);
	talk_until(8, move_1);
	talk_until_on(0, 1, NM_CHANNEL_VMSEG);
	talk_until_on(1, 2, NM_CHANNEL_VMSEG);
	check_both_used(0, 1);
	check_both_used(2, 1);
	NM_CHECK(moving_is_on(0, 2, NM_CHANNEL_VMSEG));
	NM_CHECK_EQ(near_facts(moving_node(0), moving_node(2)).nr_moves, 0);
	moving_destroy();
}

/* The request is taken back at any time: also when one direction has left, and the other has not. */
static void flap(unsigned int round)
{
	if (round % 7)
		return;
	if (places[1] == STAYS)
		ask(1);
	else
		stay(1);
	nr_rounds++;
}

NM_TEST_WITHIN(a_machine_that_does_not_know_what_it_wants, 240)
{
	moving_create(2);
	moving_talk(20, NULL);
	talk_until(300, flap);
	talk_until_on(0, 1, NM_CHANNEL_VMSEG);
	NM_CHECK_EQ(near_facts(moving_node(0), moving_node(1)).nr_quarantines, 0);
	moving_destroy();
}

/* The job begins on the network: the first session in memory is not the first way. */
NM_TEST_WITHIN(a_job_that_begins_while_its_machine_is_away, 120)
{
	struct nm_peer_facts facts;

	moving_create(2);
	ask(1);
	moving_talk(20, NULL);
	NM_CHECK(moving_is_on(0, 1, NM_CHANNEL_NET));
	while (!freezes(1))
		moving_talk(1, NULL);
	talk_until_on(0, 1, NM_CHANNEL_VMSEG);
	talk_until(2, move_1);
	facts = near_facts(moving_node(0), moving_node(1));
	NM_CHECK(facts.nr_moves >= 3);
	check_both_used(0, 1);
	moving_destroy();
}

static void step(void)
{
	near_step(moving_node(0), moving_node(1), NULL);
	nm_test_sleep_ms(1);
}

static struct nm_peer *peer_of(unsigned int at, unsigned int other)
{
	return near_peer(moving_node(at), moving_node(other));
}

static void away(unsigned int part)
{
	ask(part);
	while (!freezes(part))
		step();
}

/* Endpoints on machine PART that AT has met. */
static uint32_t nr_met(unsigned int at, unsigned int part)
{
	struct nm_transport *segment = moving_node(at)->engine->transports[NM_CHANNEL_VMSEG];

	return nm_vmseg_wire_of(nm_shm_of(segment)->sessions)->nr_met[part];
}

/* A direction without another one moves; its reader has no way of its own. */
NM_TEST_WITHIN(one_direction_comes_back, 120)
{
	for (unsigned int part = 0; part < 2; part++) {
		moving_create(2);
		moving_message(0, 1, "by memory");
		for (int i = 0; i < 5; i++) {
			away(part);
			moving_message(0, 1, "by network");
			NM_CHECK_EQ(moving_channel(0, 1), NM_CHANNEL_NET);
			stay(part);
			while (moving_channel(0, 1) != NM_CHANNEL_VMSEG)
				step();
			moving_message(0, 1, "and back");
		}
		NM_CHECK_EQ(peer_of(0, 1)->nr_moves, 10);
		NM_CHECK(!near_facts(moving_node(1), moving_node(0)).connected);
		NM_CHECK_EQ(near_facts(moving_node(1), moving_node(0))
				    .received[NM_CHANNEL_VMSEG]
				    .messages,
			    6);
		/* It met one endpoint, however often that came. */
		NM_CHECK_EQ(nr_met(1, 0), 1);
		/* The first word of the other one is in memory at once. */
		moving_message(1, 0, "answer");
		NM_CHECK_EQ(moving_channel(1, 0), NM_CHANNEL_VMSEG);
		moving_destroy();
	}
}

/* What is in memory already waits for what is still on the network. */
NM_TEST_WITHIN(what_is_on_the_network_comes_before_what_is_in_memory, 60)
{
	char in[8];

	moving_create(2);
	moving_message(0, 1, "first");
	away(1);
	near_hold_net(moving_node(1), true);
	for (char c = 'a'; c < 'f'; c++)
		NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), &c, 1, 4, 0, NULL), 0);
	stay(1);
	while (moving_channel(0, 1) != NM_CHANNEL_VMSEG)
		step();
	for (char c = 'f'; c < 'k'; c++)
		NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), &c, 1, 4, 0, NULL), 0);
	NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, 1, 4, "in"), 0);
	for (int i = 0; i < 200; i++)
		step();
	NM_CHECK(nm_cqueue_empty(moving_node(1)->cq));
	near_hold_net(moving_node(1), false);
	for (char c = 'a'; c < 'k'; c++) {
		if (c > 'a')
			NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, 1, 4, "in"), 0);
		NM_CHECK_EQ(near_wait(moving_node(1), moving_node(0), NULL).err, 0);
		NM_CHECK_EQ(in[0], c);
	}
	moving_destroy();
}

/* It closes while its reader still waits for the network: all that it sent arrives. */
NM_TEST_WITHIN(an_endpoint_that_comes_back_and_closes, 60)
{
	struct near_node *last;
	char in[8];

	moving_create(2);
	moving_message(0, 1, "first");
	away(1);
	near_hold_net(moving_node(1), true);
	NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), "x", 1, 4, 0, NULL), 0);
	stay(1);
	while (moving_channel(0, 1) != NM_CHANNEL_VMSEG)
		step();
	NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), "y", 1, 4, 0, NULL), 0);
	/* Its ring is suspended. */
	for (int i = 0; i < 100; i++)
		step();
	nm_engine_retire(moving_node(0)->engine);
	near_hold_net(moving_node(1), false);
	last = moving_node(1);
	for (char c = 'x'; c <= 'y'; c++) {
		NM_CHECK_EQ(near_recv(last, NULL, in, 1, 4, "in"), 0);
		NM_CHECK_EQ(near_wait(last, NULL, NULL).err, 0);
		NM_CHECK_EQ(in[0], c);
	}
	moving_destroy();
}

/* The peer computes: the network is used until it answers, and no message waits. */
NM_TEST_WITHIN(who_computes_comes_back_later, 60)
{
	moving_create(2);
	moving_message(0, 1, "first");
	away(1);
	stay(1);
	for (int i = 0; i < 300; i++) {
		nm_engine_progress(moving_node(0)->engine);
		nm_test_sleep_ms(1);
	}
	/* Its service thread agrees for it. */
	NM_CHECK_EQ(moving_channel(0, 1), NM_CHANNEL_VMSEG);
	moving_message(0, 1, "second");
	moving_destroy();
}

/* Until it uses memory: PART does nothing, only its service thread. */
static void return_alone(unsigned int from, unsigned int part)
{
	stay(part);
	while (moving_channel(from, part) != NM_CHANNEL_VMSEG) {
		nm_engine_progress(moving_node(from)->engine);
		nm_test_sleep_ms(1);
	}
}

/* The second session has as many packets as the first one, and none of them is read. */
NM_TEST_WITHIN(a_loss_in_a_later_session_is_found, 60)
{
	struct nm_transport *segment;
	char in[16];

	moving_create(2);
	for (int i = 0; i < 3; i++)
		moving_message(0, 1, "first");
	away(1);
	return_alone(0, 1);
	/* Beside the mark. */
	for (int i = 0; i < 2; i++)
		NM_CHECK_EQ(near_send(moving_node(0), moving_node(1), "x", 1, 4, 0, NULL), 0);
	NM_CHECK_EQ(near_recv(moving_node(1), moving_node(0), in, 1, 4, "in"), 0);
	segment = moving_node(1)->engine->transports[NM_CHANNEL_VMSEG];
	segment->quarantine->cast_out(segment, &moving_node(0)->address.who, "a test");
	for (int i = 0; i < 200; i++)
		step();
	NM_CHECK_EQ(near_facts(moving_node(1), moving_node(0)).nr_quarantines, 1);
	NM_CHECK_EQ(moving_node(1)->nr_lost, 1);
	NM_CHECK(near_wait(moving_node(1), moving_node(0), NULL).err != 0);
	moving_destroy();
}

/* The network ends when both have come back: memory is all that counts. */
NM_TEST_WITHIN(a_network_that_ends_after_the_return, 60)
{
	moving_create(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	away(1);
	moving_message(0, 1, "by network");
	moving_message(1, 0, "by network");
	stay(1);
	while (!moving_is_on(0, 1, NM_CHANNEL_VMSEG))
		step();
	moving_message(0, 1, "and back");
	moving_message(1, 0, "and back");
	for (unsigned int at = 0; at < 2; at++) {
		near_set_net(moving_node(at), NEAR_NET_BROKEN);
		moving_end_net(at, !at, -ECONNRESET);
	}
	moving_message(0, 1, "by memory");
	moving_message(1, 0, "by memory");
	/* A source that only memory ends. */
	NM_CHECK_EQ(peer_of(1, 0)->source_channels, 1U << NM_CHANNEL_VMSEG);
	moving_destroy();
}

static void overwrite(uint8_t byte)
{
	static uint8_t bytes[SEGMENT_MIB];

	memset(bytes, byte, sizeof(bytes));
	for (uint64_t at = 0; at < MACHINES * MACHINE_SIZE; at += sizeof(bytes))
		segment_poke(at, bytes, sizeof(bytes));
}

/* As if its devices were taken away: what was left is not looked at. */
NM_TEST_WITHIN(memory_that_is_gone_after_it_was_left, 60)
{
	static const uint8_t bytes[] = {0xff, 0};

	for (size_t i = 0; i < NM_ARRAY_SIZE(bytes); i++) {
		uint64_t start_ns;

		moving_create(2);
		moving_message(0, 1, "first");
		moving_message(1, 0, "first");
		away(0);
		away(1);
		overwrite(bytes[i]);
		for (int n = 0; n < 200; n++)
			step();
		moving_message(0, 1, "by network");
		moving_message(1, 0, "by network");
		start_ns = nm_clock_ns();
		moving_destroy();
		NM_CHECK(nm_clock_ns() - start_ns < 10 * NM_NS_PER_S);
		unlink(segment_config(0).all);
	}
}
