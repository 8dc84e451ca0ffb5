/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine stands still in the segment for longer than its lease, and was asked nothing. If its
 * process lives, the pair goes on over the network and comes back to memory: nothing is lost,
 * doubled, changed or reordered. If it died, the pair ends with the reason.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "connect/exchange.h"
#include "connect/session_private.h"
#include "engine/internal.h"
#include "engine/move_private.h"
#include "moving.h"
#include "transport/shm/shm_private.h"

static struct nm_transport *memory_of(unsigned int i)
{
	return moving_node(i)->engine->transports[NM_CHANNEL_VMSEG];
}

static struct nm_peer *peer_of(unsigned int at, unsigned int other)
{
	return near_peer(moving_node(at), moving_node(other));
}

/*
 * Cases that do not wait for the end of a lease call moving_create() instead: on a busy machine a
 * heartbeat may be late by more than this lease.
 */
static void start(unsigned int nr)
{
	setenv("NEARMETAL_SEGMENT_LEASE_MS", "500", 1);
	moving_create(nr);
}

/* The service thread of I stands still until it is let go: no heartbeat, and no letter is taken. */
static void stop(unsigned int i)
{
	pthread_mutex_lock(&nm_shm_of(memory_of(i))->sessions->lock);
}

static void let_go(unsigned int i)
{
	pthread_mutex_unlock(&nm_shm_of(memory_of(i))->sessions->lock);
}

static void step_one(unsigned int i, unsigned int nr)
{
	while (nr--) {
		nm_engine_progress(moving_node(i)->engine);
		nm_test_sleep_ms(1);
	}
}

/* Until the lease of OF has ended. */
static void step_until_missed(unsigned int at, unsigned int of)
{
	while (!peer_of(at, of)->move || !peer_of(at, of)->move->absent)
		step_one(at, 1);
}

static void step_both(unsigned int nr)
{
	while (nr--)
		near_step(moving_node(0), moving_node(1), NULL);
}

static void check_sound(unsigned int nr)
{
	for (unsigned int a = 0; a < nr; a++)
		for (unsigned int b = 0; b < nr; b++) {
			struct nm_peer_facts facts;

			if (a == b)
				continue;
			facts = near_facts(moving_node(a), moving_node(b));
			NM_CHECK_EQ(facts.nr_quarantines, 0);
			NM_CHECK(!facts.down);
			NM_CHECK_EQ(moving_node(a)->nr_lost, 0);
		}
}

static bool is_settled(unsigned int a, unsigned int b)
{
	return !peer_of(a, b)->move || !peer_of(a, b)->move->absent;
}

static uint64_t moves_of(unsigned int a, unsigned int b)
{
	return near_facts(moving_node(a), moving_node(b)).nr_moves +
	       near_facts(moving_node(b), moving_node(a)).nr_moves;
}

/*
 * All talk until A and B have gone to the network and come back, which may be between two looks.
 * BEFORE: their moves until then.
 */
static void talk_until_back(unsigned int a, unsigned int b, uint64_t before)
{
	while (moves_of(a, b) < before + 4 || !is_settled(a, b) || !is_settled(b, a) ||
	       !moving_is_on(a, b, NM_CHANNEL_VMSEG))
		moving_talk(1, NULL);
}

/* Amid traffic of all kinds. */
static void stand_still(unsigned int still)
{
	start(2);
	moving_talk(20, NULL);
	for (unsigned int round = 0; round < 3; round++) {
		uint64_t before = moves_of(0, 1);

		stop(still);
		/* The other one sends what its ring takes, and then only waits. */
		step_until_missed(!still, still);
		let_go(still);
		talk_until_back(0, 1, before);
		moving_talk(5, NULL);
	}
	check_sound(2);
	moving_destroy();
}

NM_TEST_WITHIN(who_stood_still_goes_on, 120)
{
	stand_still(1);
}

NM_TEST_WITHIN(whoever_stood_still_goes_on, 120)
{
	stand_still(0);
}

/* The third one has nothing to do with it. */
NM_TEST_WITHIN(others_stay_in_memory, 120)
{
	setenv("NEARMETAL_SEGMENT_LEASE_MS", "3000", 1);
	moving_create(3);
	moving_talk(20, NULL);
	stop(2);
	step_until_missed(0, 2);
	let_go(2);
	talk_until_back(0, 2, 0);
	moving_talk_until_on(1, 2, NM_CHANNEL_VMSEG);
	moving_talk(10, NULL);
	NM_CHECK_EQ(moves_of(0, 1), 0);
	check_sound(3);
	moving_destroy();
}

static void say_absent(unsigned int at, unsigned int of)
{
	struct nm_transport *t = memory_of(at);

	NM_CHECK(t->sink.asked(t, peer_of(at, of), NM_ABSENT));
}

static unsigned int seed;

/* Each side hears of it at another time. */
static void miss_at_random(unsigned int round)
{
	unsigned int which;

	(void)round;
	seed = seed * 1103515245 + 12345;
	which = seed >> 16 & 0xfff;
	if (which < 4)
		say_absent(which & 1, !(which & 1));
}

NM_TEST_WITHIN(at_any_moment, 240)
{
	start(2);
	for (seed = 1; seed < 40; seed += 7) {
		uint64_t before = moves_of(0, 1);
		unsigned int mine = seed;

		moving_talk(60, miss_at_random);
		/* Whoever heard nothing yet hears it now. */
		for (unsigned int i = 0; i < 2; i++)
			say_absent(i, !i);
		talk_until_back(0, 1, before);
		seed = mine;
	}
	check_sound(2);
	moving_destroy();
}

/* It only sends, or only receives. */
NM_TEST_WITHIN(one_direction, 120)
{
	for (unsigned int from = 0; from < 2; from++) {
		start(2);
		moving_message(from, !from, "first");
		stop(1);
		step_until_missed(0, 1);
		let_go(1);
		while (moving_channel(from, !from) != NM_CHANNEL_NET)
			step_both(1);
		moving_message(from, !from, "far");
		while (moving_channel(from, !from) != NM_CHANNEL_VMSEG)
			step_both(1);
		moving_message(from, !from, "near");
		moving_message(!from, from, "answer");
		check_sound(2);
		moving_destroy();
	}
}

/* Both are asked to leave meanwhile, or were asked before. */
NM_TEST_WITHIN(a_machine_that_is_asked, 120)
{
	for (unsigned int is_before = 0; is_before < 2; is_before++) {
		start(2);
		moving_talk(10, NULL);
		if (is_before)
			NM_CHECK_EQ(machine_ask(1, NM_VMSEG_QUIESCE), 0);
		stop(1);
		step_until_missed(0, 1);
		let_go(1);
		if (!is_before)
			NM_CHECK_EQ(machine_ask(1, NM_VMSEG_QUIESCE), 0);
		moving_talk_until_on(0, 1, NM_CHANNEL_NET);
		while (machine_ask(1, NM_VMSEG_FROZEN))
			moving_talk(1, NULL);
		moving_talk(5, NULL);
		NM_CHECK(moving_is_on(0, 1, NM_CHANNEL_NET));
		NM_CHECK_EQ(machine_ask(1, NM_VMSEG_RUN), 0);
		moving_talk_until_on(0, 1, NM_CHANNEL_VMSEG);
		check_sound(2);
		moving_destroy();
	}
}

/* The lease is all that is known: without a network the pair ends, as ever. */
NM_TEST_WITHIN(without_a_network, 60)
{
	struct near_node *a, *b;
	struct nm_peer_facts facts;

	setenv("NEARMETAL_SEGMENT_LEASE_MS", "500", 1);
	a = near_create_on(0, false);
	b = near_create_on(1, false);
	near_link(a, b);
	pthread_mutex_lock(&nm_shm_of(b->engine->transports[NM_CHANNEL_VMSEG])->sessions->lock);
	while (!near_facts(a, b).down) {
		nm_engine_progress(a->engine);
		nm_test_sleep_ms(1);
	}
	facts = near_facts(a, b);
	NM_CHECK_HAS(facts.down_reason.text, "its lease expired");
	pthread_mutex_unlock(&nm_shm_of(b->engine->transports[NM_CHANNEL_VMSEG])->sessions->lock);
	near_destroy(a);
	near_destroy(b);
}

/* Only while AT stands still. */
static struct nm_exchange *exchanges_of(unsigned int at)
{
	return nm_vmseg_wire_of(nm_shm_of(memory_of(at))->sessions)->exchanges;
}

static bool is_asking(unsigned int at)
{
	bool all = true;

	stop(at);
	for (struct nm_exchange *each = exchanges_of(at); each; each = each->next)
		all &= each->asked_ns != 0;
	let_go(at);
	return all;
}

/* 0 asks if 1 is there, which stands still and does not answer. */
static void ask_in_vain(void)
{
	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	stop(0);
	stop(1);
	for (struct nm_exchange *each = exchanges_of(0); each; each = each->next)
		each->probe_ns = 1;
	let_go(0);
	while (!is_asking(0))
		step_one(0, 1);
}

/* Its last heartbeat is after the question, so the lease ends after the time for the answer. */
NM_TEST_WITHIN(who_stands_still_after_a_question, 60)
{
	ask_in_vain();
	step_one(0, 250);
	nm_vmseg_beat(nm_shm_of(memory_of(1))->claim);
	while (!peer_of(0, 1)->move || !peer_of(0, 1)->move->absent) {
		NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
		step_one(0, 1);
	}
	let_go(1);
	talk_until_back(0, 1, 0);
	check_sound(2);
	moving_destroy();
}

NM_TEST_WITHIN(who_beats_and_does_not_answer, 60)
{
	ask_in_vain();
	while (!near_facts(moving_node(0), moving_node(1)).down) {
		nm_vmseg_beat(nm_shm_of(memory_of(1))->claim);
		step_one(0, 1);
	}
	NM_CHECK_HAS(near_facts(moving_node(0), moving_node(1)).down_reason.text,
		     "it does not answer, but its heartbeat continues");
	let_go(1);
	moving_destroy();
}

static char got[16];

/* Returns how many looks of a millisecond or longer it took until the death was known. */
static unsigned int die(void (*how)(void), const char *words, int err)
{
	struct nm_peer_facts facts;
	unsigned int nr = 0;

	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	NM_CHECK_EQ(near_recv(moving_node(0), moving_node(1), got, sizeof(got), 3, "in"), 0);
	stop(1);
	step_until_missed(0, 1);
	how();
	for (; !near_facts(moving_node(0), moving_node(1)).down; nr++)
		step_one(0, 1);
	facts = near_facts(moving_node(0), moving_node(1));
	NM_CHECK_HAS(facts.down_reason.text, words);
	NM_CHECK_EQ(nm_cqueue_front(moving_node(0)->cq)->err, ECONNRESET);
	NM_CHECK_EQ(moving_node(0)->nr_lost, err != 0);
	NM_CHECK(!peer_of(0, 1)->move->absent && !peer_of(0, 1)->move->left);
	let_go(1);
	moving_destroy();
	return nr;
}

static void by_network(void)
{
	moving_end_net(0, 1, -ECONNRESET);
}

static void by_time(void)
{
	/* NEARMETAL_MOVE_MS or NEARMETAL_NET_TIMEOUT_MS passes. */
}

static void by_slot(void)
{
	struct nm_vmseg_claim *claim = nm_shm_of(memory_of(1))->claim;

	nm_vmseg_set_state(claim, NM_VMSEG_GONE);
}

static void by_close(void)
{
	nm_window_set_state(&nm_shm_of(memory_of(1))->window, NM_WINDOW_GONE);
}

NM_TEST_WITHIN(who_dies_is_missed, 60)
{
	die(by_network, "a test", -ECONNRESET);
}

NM_TEST_WITHIN(who_dies_alone_is_missed_in_time, 60)
{
	setenv("NEARMETAL_MOVE_MS", "1500", 1);
	die(by_time, "within NEARMETAL_MOVE_MS", -ECONNRESET);
}

/* A network that cannot find the death of a process: only the heartbeat is left. */
NM_TEST_WITHIN(who_dies_behind_a_network_that_sees_no_death, 60)
{
	setenv("NEARMETAL_NET_TIMEOUT_MS", "2000", 1);
	NM_CHECK(die(by_time, "neither its heartbeat nor the network", -ECONNRESET) < 5000);
}

/* Its service thread goes on, and its program computes. */
NM_TEST_WITHIN(who_computes_after_it_stood_still_is_alive, 60)
{
	setenv("NEARMETAL_NET_TIMEOUT_MS", "1000", 1);
	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	stop(1);
	step_until_missed(0, 1);
	let_go(1);
	step_one(0, 4000);
	NM_CHECK(peer_of(0, 1)->move->absent);
	talk_until_back(0, 1, 0);
	check_sound(2);
	moving_destroy();
}

/* Its heartbeat stands still, and the network says that its process lives. */
NM_TEST_WITHIN(who_stands_still_behind_a_network_that_sees_it_is_alive, 60)
{
	setenv("NEARMETAL_NET_TIMEOUT_MS", "1000", 1);
	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	near_watch_net(moving_node(0));
	stop(1);
	step_until_missed(0, 1);
	step_one(0, 4000);
	NM_CHECK(peer_of(0, 1)->move->absent);
	let_go(1);
	talk_until_back(0, 1, 0);
	check_sound(2);
	moving_destroy();
}

NM_TEST_WITHIN(whose_slot_ends_is_missed, 60)
{
	die(by_slot, "its process ended, its machine reports", -ECONNRESET);
}

NM_TEST_WITHIN(who_closes_meanwhile_is_no_loss, 60)
{
	die(by_close, "closed its endpoint", 0);
}

/* The peer comes back while this endpoint has not heard yet how much was taken. */
NM_TEST_WITHIN(who_comes_back_early, 60)
{
	struct nm_peer *peer;

	moving_create(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	peer = peer_of(0, 1);
	say_absent(1, 0);
	while (peer->source_channels >> NM_CHANNEL_VMSEG & 1)
		step_both(1);
	say_absent(0, 1);
	near_hold_net(moving_node(0), true);
	while (peer->way != NM_WAY_COUNTING)
		nm_engine_progress(moving_node(0)->engine);
	/* MOVED waits in the network, and the next session of the other direction is made. */
	while (!(peer->source_channels >> NM_CHANNEL_VMSEG & 1))
		step_both(1);
	NM_CHECK(peer->way == NM_WAY_COUNTING && peer->move->absent);
	near_hold_net(moving_node(0), false);
	while (!is_settled(0, 1) || !moving_is_on(0, 1, NM_CHANNEL_VMSEG))
		step_both(1);
	moving_message(0, 1, "near");
	moving_message(1, 0, "near");
	check_sound(2);
	moving_destroy();
}

/* It was about to come back: this ends first, and then it leaves. */
NM_TEST_WITHIN(who_is_joining, 60)
{
	for (unsigned int who = 0; who < 2; who++) {
		moving_create(2);
		moving_message(0, 1, "first");
		moving_message(1, 0, "first");
		say_absent(0, 1);
		say_absent(1, 0);
		while (!moving_is_on(0, 1, NM_CHANNEL_NET))
			step_both(1);
		near_set_net(moving_node(0), NEAR_NET_UNMET);
		while (peer_of(0, 1)->way != NM_WAY_JOINING)
			step_both(1);
		say_absent(who, !who);
		step_both(50);
		NM_CHECK_EQ(peer_of(0, 1)->way, NM_WAY_JOINING);
		say_absent(!who, who);
		step_both(50);
		near_set_net(moving_node(0), NEAR_NET_GOOD);
		while (!is_settled(0, 1) || !is_settled(1, 0) ||
		       !moving_is_on(0, 1, NM_CHANNEL_VMSEG))
			step_both(1);
		moving_message(0, 1, "near");
		moving_message(1, 0, "near");
		check_sound(2);
		moving_destroy();
	}
}

/* The network takes nothing yet: memory is used meanwhile, in both directions. */
NM_TEST_WITHIN(a_network_that_is_not_met_yet, 60)
{
	moving_create(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	near_set_net(moving_node(0), NEAR_NET_UNMET);
	near_set_net(moving_node(1), NEAR_NET_UNMET);
	say_absent(0, 1);
	say_absent(1, 0);
	step_both(200);
	moving_message(0, 1, "near");
	moving_message(1, 0, "near");
	NM_CHECK(moving_is_on(0, 1, NM_CHANNEL_VMSEG));
	near_set_net(moving_node(0), NEAR_NET_GOOD);
	near_set_net(moving_node(1), NEAR_NET_GOOD);
	while (!moving_is_on(0, 1, NM_CHANNEL_NET))
		step_both(1);
	moving_message(0, 1, "far");
	moving_message(1, 0, "far");
	while (!moving_is_on(0, 1, NM_CHANNEL_VMSEG))
		step_both(1);
	check_sound(2);
	moving_destroy();
}

/* A neighbour says without end that it was absent: each costs one change of channel at most. */
NM_TEST_WITHIN(a_flood_of_absences, 60)
{
	uint64_t moves;

	moving_create(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	for (unsigned int i = 0; i < 5000; i++)
		say_absent(0, 1);
	moves = peer_of(0, 1)->nr_moves;
	for (unsigned int i = 0; i < 5000; i++) {
		say_absent(0, 1);
		nm_engine_progress(moving_node(0)->engine);
	}
	NM_CHECK(peer_of(0, 1)->nr_moves <= moves + 1);
	say_absent(1, 0);
	while (!moving_is_on(0, 1, NM_CHANNEL_NET))
		step_both(1);
	moving_message(0, 1, "far");
	while (!moving_is_on(0, 1, NM_CHANNEL_VMSEG))
		step_both(1);
	check_sound(2);
	moving_destroy();
}
