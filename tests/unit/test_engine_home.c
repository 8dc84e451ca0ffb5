/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines leave their segment, give it up, and come to another one or to another part, while their
 * endpoints talk: nothing is lost, doubled, changed or reordered, and near pairs use memory again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/exchange.h"
#include "engine/internal.h"
#include "engine/move_private.h"
#include "engine/protocol.h"
#include "homes.h"

static void talk_until_gone(unsigned int i)
{
	while (!is_gone(i))
		moving_talk(1, NULL);
}

/* Near, far, near: to another segment and back, into the same part and into another one. */
NM_TEST_WITHIN(to_another_segment_and_back, 240)
{
	start(2);
	moving_talk(20, NULL);
	NM_CHECK_EQ(count_mapped(0), 4);
	for (unsigned int round = 0; round < 20; round++) {
		bool is_far = round % 2 == 0;

		begin_to_leave(1);
		talk_until_gone(1);
		NM_CHECK(moving_is_on(0, 1, NM_CHANNEL_NET));
		/* Of the endpoint that stays: the whole and its part. */
		NM_CHECK_EQ(count_mapped(0), 2);
		NM_CHECK_EQ(count_mapped(1), 0);
		moving_talk(5, NULL);
		arrive(1, is_far, is_far ? round % MACHINES : 1 + round / 2 % 2);
		if (!is_far)
			moving_talk_until_on(0, 1, NM_CHANNEL_VMSEG);
		while (!shm_of(1)->segment)
			moving_talk(1, NULL);
		moving_talk(10, NULL);
		if (is_far)
			NM_CHECK(moving_is_on(0, 1, NM_CHANNEL_NET));
	}
	check_sound(0, 1);
	check_sound(1, 0);
	moving_destroy();
}

/* Far from its old neighbour, near to another one that moved before, and the reverse. */
NM_TEST_WITHIN(other_neighbours, 240)
{
	start(3);
	moving_talk(20, NULL);
	for (unsigned int round = 0; round < 3; round++) {
		begin_to_leave(2);
		talk_until_gone(2);
		moving_talk(5, NULL);
		NM_CHECK(moving_is_on(0, 1, NM_CHANNEL_VMSEG));
		arrive(2, 1, 0);
		begin_to_leave(1);
		talk_until_gone(1);
		arrive(1, 1, 2);
		moving_talk_until_on(1, 2, NM_CHANNEL_VMSEG);
		NM_CHECK(moving_is_on(0, 1, NM_CHANNEL_NET) && moving_is_on(0, 2, NM_CHANNEL_NET));
		/* Both at once, and into the parts of each other. */
		begin_to_leave(1);
		begin_to_leave(2);
		talk_until_gone(1);
		talk_until_gone(2);
		NM_CHECK_EQ(count_mapped(1), 0);
		arrive(1, 0, 2);
		arrive(2, 0, 1);
		moving_talk_until_on(0, 1, NM_CHANNEL_VMSEG);
		moving_talk_until_on(0, 2, NM_CHANNEL_VMSEG);
		moving_talk_until_on(1, 2, NM_CHANNEL_VMSEG);
		moving_talk(10, NULL);
	}
	for (unsigned int i = 0; i < 3; i++)
		check_sound(i, (i + 1) % 3);
	moving_destroy();
}

/* Endpoints that have met no other one: the first message after the move is the first of all. */
NM_TEST_WITHIN(who_meets_after_the_move, 120)
{
	for (unsigned int first = 0; first < 2; first++) {
		start(2);
		leave_at_once(1, 2);
		arrive(1, 0, 2);
		while (!shm_of(1)->segment)
			step(2);
		moving_message(first, !first, "by network");
		moving_message(!first, first, "answer");
		while (!moving_is_on(0, 1, NM_CHANNEL_VMSEG))
			step(2);
		moving_message(0, 1, "near");
		moving_destroy();
		NM_CHECK_EQ(count_mapped(0), 0);
		/* The machine of the next endpoint there. */
		NM_CHECK_EQ(machine_ask(1, NM_VMSEG_RUN), 0);
	}
}

/* It gives the segment up in its own calls; those of its peer do not help. */
NM_TEST_WITHIN(an_endpoint_that_computes_keeps_the_segment, 60)
{
	start(2);
	moving_message(0, 1, "first");
	begin_to_leave(1);
	while (ask(1, NM_VMSEG_FROZEN) == -EBUSY)
		step(2);
	near_hide_description(moving_node(1));
	machines[1].place = AWAY;
	for (int i = 0; i < 300; i++) {
		nm_engine_progress(moving_node(0)->engine);
		nm_test_sleep_ms(1);
	}
	NM_CHECK(shm_of(1)->segment != NULL);
	NM_CHECK_EQ(count_mapped(0), 4);
	while (!is_gone(1))
		step(2);
	NM_CHECK_EQ(count_mapped(0), 2);
	moving_message(0, 1, "far");
	/* It closes while it has no segment. */
	moving_destroy();
}

static unsigned int nr_failures;

static void count_failures(enum nm_log_level level, const char *line)
{
	nr_failures += level == NM_LOG_WARN && strstr(line, "cannot be used yet");
}

/* The description names a segment that is not there yet: the network is used meanwhile. */
NM_TEST_WITHIN(a_segment_that_is_not_there_yet, 60)
{
	struct nm_vmseg_config config;

	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	leave_at_once(1, 2);
	nr_failures = 0;
	nm_log_set_sink(count_failures);
	config = segment_config(1);
	config.token[3] ^= 1;
	segment_describe(&config, "node1.conf");
	for (int i = 0; i < 6500; i++)
		step(2);
	NM_CHECK_EQ(nr_failures, 4);
	NM_CHECK_EQ(count_mapped(0), 2);
	moving_message(0, 1, "by network");
	nm_log_set_sink(NULL);
	arrive(1, 0, 1);
	while (!moving_is_on(0, 1, NM_CHANNEL_VMSEG))
		step(2);
	moving_message(0, 1, "near");
	moving_destroy();
}

/* The counts of all sessions, also of those in a segment that was given up, are the same on both
 * sides: a channel that breaks later loses nothing. */
NM_TEST_WITHIN(counts_outlive_the_segment, 60)
{
	struct nm_transport *segment;

	start(2);
	for (int i = 0; i < 3; i++) {
		moving_message(0, 1, "first");
		moving_message(1, 0, "first");
	}
	leave_at_once(1, 2);
	arrive(1, 0, 2);
	while (!moving_is_on(0, 1, NM_CHANNEL_VMSEG))
		step(2);
	moving_message(0, 1, "near");
	moving_message(1, 0, "near");
	segment = moving_node(1)->engine->transports[NM_CHANNEL_VMSEG];
	segment->quarantine->cast_out(segment, &moving_node(0)->address.who, "a test");
	/* What is sent before it hears of that would be lost. */
	while (!near_facts(moving_node(0), moving_node(1)).nr_quarantines ||
	       !near_facts(moving_node(1), moving_node(0)).nr_quarantines)
		step(2);
	moving_message(0, 1, "after");
	moving_message(1, 0, "after");
	NM_CHECK_EQ(moving_node(0)->nr_lost + moving_node(1)->nr_lost, 0);
	/* And a peer that was cast out stays out, also in another segment. */
	leave_at_once(1, 2);
	arrive(1, 0, 1);
	while (!shm_of(1)->segment)
		step(2);
	for (int i = 0; i < 1500; i++)
		step(2);
	NM_CHECK(moving_is_on(0, 1, NM_CHANNEL_NET));
	moving_destroy();
}

static void refused(enum nm_channel channel, uint32_t len, uint64_t home, uint64_t opening)
{
	const struct nm_packet packet = {
		.op = NM_OP_HOME, .len = len, .tag = home, .data = opening};

	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	if (channel == NM_CHANNEL_NET)
		near_peer(moving_node(0), moving_node(1))->source_channels |= 1U << channel;
	moving_forge(0, 1, channel, &packet, "x");
	for (int i = 0; i < 100; i++)
		step(2);
	NM_CHECK(near_facts(moving_node(0), moving_node(1)).down ||
		 near_facts(moving_node(0), moving_node(1)).nr_quarantines);
	NM_CHECK(!near_peer(moving_node(0), moving_node(1))->move ||
		 !near_peer(moving_node(0), moving_node(1))->move->opening);
	moving_destroy();
}

NM_TEST_WITHIN(homes_that_no_correct_peer_says, 60)
{
	refused(NM_CHANNEL_VMSEG, 0, 1, 1);
	refused(NM_CHANNEL_NET, 1, 1, 1);
	refused(NM_CHANNEL_NET, 0, 1, 0);
	refused(NM_CHANNEL_NET, 0, 1, (uint64_t)UINT32_MAX + 1);
	refused(NM_CHANNEL_NET, 0, UINT64_C(1) << 24, 1);
}

/* A peer says homes without end, each another one: it is called once a second, and talks on. */
NM_TEST_WITHIN(a_flood_of_homes, 60)
{
	struct nm_peer *peer;
	uint64_t begin_ns;

	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	/* In memory a home changes nothing. */
	say_home(1, 1);
	say_home(1, 1);
	moving_message(0, 1, "near");
	NM_CHECK_EQ(moving_channel(0, 1), NM_CHANNEL_VMSEG);
	leave_at_once(1, 2);
	peer = near_peer(moving_node(0), moving_node(1));
	begin_ns = nm_clock_ns();
	for (uint64_t i = 2; i < 2000; i++)
		say_home(i * 7919 & 0xffffff, i);
	/* An old number, and one twice. */
	say_home(5, 3);
	say_home(6, 1999);
	NM_CHECK_EQ(peer->move->opening, 1999);
	NM_CHECK(peer->move->again_ns >= begin_ns + NM_NS_PER_S);
	NM_CHECK(peer->move->again_ns <= nm_clock_ns() + NM_NS_PER_S);
	moving_message(0, 1, "far");
	moving_message(1, 0, "far");
	/* Its own word is older than that, so it is not believed, and both stay on the network. */
	arrive(1, 0, 2);
	while (!shm_of(1)->segment)
		step(2);
	for (int i = 0; i < 1500; i++)
		step(2);
	NM_CHECK_EQ(moving_channel(0, 1), NM_CHANNEL_NET);
	moving_message(0, 1, "still");
	moving_message(1, 0, "there");
	check_sound(0, 1);
	moving_destroy();
}
