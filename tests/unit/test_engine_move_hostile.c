/* SPDX-License-Identifier: Apache-2.0 */
/* MOVE and MOVED that no correct peer sends: a reason in words, or no effect. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"
#include "moving.h"

static struct nm_peer *peer_of(unsigned int at, unsigned int other)
{
	return near_peer(moving_node(at), moving_node(other));
}

static void step(unsigned int times)
{
	while (times--)
		near_step(moving_node(0), moving_node(1), NULL);
}

static void step_receiver(unsigned int times)
{
	while (times--)
		near_step(moving_node(0), NULL, NULL);
}

static void say(enum nm_op op, uint64_t position, uint64_t session)
{
	const struct nm_packet packet = {.op = (uint8_t)op, .tag = position, .data = session};

	moving_forge(0, 1, NM_CHANNEL_NET, &packet, NULL);
}

static int send_one(unsigned int from, const void *bytes, size_t len)
{
	return near_send(moving_node(from), moving_node(!from), bytes, len, 3, 0, NULL);
}

/* What 1 sent, as 0 receives it. */
static void expect(const char *text, size_t len)
{
	char in[4096];

	NM_CHECK_EQ(near_recv(moving_node(0), NULL, in, sizeof(in), 3, "in"), 0);
	NM_CHECK_EQ(near_wait(moving_node(0), moving_node(1), NULL).err, 0);
	NM_CHECK(!memcmp(in, text, len));
}

/* Both have sent a packet of one slot; 0 has taken it, 1 has not. */
static void start(void)
{
	/* Nobody takes the rest at the end. */
	setenv("NEARMETAL_CLOSE_MS", "20", 1);
	moving_create(2);
	NM_CHECK_EQ(send_one(1, "x", 1), 0);
	expect("x", 1);
	NM_CHECK_EQ(send_one(0, "y", 1), 0);
}

static void expect_down(const char *words)
{
	struct nm_peer_facts facts = near_facts(moving_node(0), moving_node(1));

	NM_CHECK(facts.down);
	NM_CHECK_HAS(facts.down_reason.text, words);
	NM_CHECK_EQ(peer_of(0, 1)->way, NM_WAY_ENDED);
	moving_destroy();
}

static void refused(enum nm_op op, uint64_t position, uint64_t session, const char *words)
{
	start();
	say(op, position, session);
	step(3);
	expect_down(words);
}

NM_TEST(sessions_that_never_were)
{
	const uint64_t sessions[] = {0, 2, 3, UINT32_MAX};
	const uint64_t returns[] = {0, 3, UINT32_MAX, UINT64_MAX - NM_MOVE_TO_MEMORY};

	for (size_t i = 0; i < NM_ARRAY_SIZE(sessions); i++) {
		refused(NM_OP_MOVE, 1, sessions[i], "in memory, which never was");
		refused(NM_OP_MOVED, 1, sessions[i], "in memory, which never was");
	}
	for (size_t i = 0; i < NM_ARRAY_SIZE(returns); i++) {
		refused(NM_OP_MOVE, 0, NM_MOVE_TO_MEMORY + returns[i], "out of turn");
		refused(NM_OP_MOVED, 0, NM_MOVE_TO_MEMORY + returns[i],
			"in memory, which never was");
	}
	refused(NM_OP_MOVE, 1, NM_MOVE_TO_MEMORY + 1, "it came back to memory with 0 bytes");
}

/* 1 has left memory in order; 0 took what was there, and 1 knows it. */
static void start_on_network(void)
{
	start();
	/* It does not really come back. */
	moving_node(1)->engine->transports[NM_CHANNEL_VMSEG]->sink.asked = NULL;
	say(NM_OP_MOVE, 1, 1);
	step(3);
}

/* Who came back on the network may not say so again, before it has left; nor who has not left. */
NM_TEST(returns_out_of_turn)
{
	start_on_network();
	say(NM_OP_MOVE, 0, NM_MOVE_TO_MEMORY + 2);
	say(NM_OP_MOVE, 0, NM_MOVE_TO_MEMORY + 2);
	NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
	say(NM_OP_MOVE, 0, NM_MOVE_TO_MEMORY + 3);
	expect_down("out of turn, in session 3");
	start_on_network();
	say(NM_OP_MOVE, 0, NM_MOVE_TO_MEMORY + 1);
	NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
	say(NM_OP_MOVE, 0, NM_MOVE_TO_MEMORY + 3);
	expect_down("out of turn, in session 3");
}

/* It leaves a session that it only spoke of. */
NM_TEST_WITHIN(a_return_without_a_session, 60)
{
	setenv("NEARMETAL_CONNECT_MS", "1000", 1);
	start_on_network();
	say(NM_OP_MOVE, 0, NM_MOVE_TO_MEMORY + 2);
	say(NM_OP_MOVE, 0, 2);
	while (!near_facts(moving_node(0), moving_node(1)).down) {
		step(1);
		nm_test_sleep_ms(1);
	}
	expect_down("it left a memory channel that it never had");
}

static void say_in_memory(uint64_t session)
{
	const struct nm_packet packet = {.op = NM_OP_MOVE, .data = NM_MOVE_TO_MEMORY + session};

	moving_forge(0, 1, NM_CHANNEL_VMSEG, &packet, NULL);
}

static void expect_quarantine(const char *words)
{
	step(3);
	NM_CHECK_EQ(near_facts(moving_node(0), moving_node(1)).nr_quarantines, 1);
	NM_CHECK_HAS(near_facts(moving_node(0), moving_node(1)).quarantine_reason.text, words);
	moving_destroy();
}

/* In memory: the channel ends, and the network is used. */
NM_TEST(marks_that_no_session_begins_with)
{
	const uint64_t sessions[] = {0, 2, 3, UINT32_MAX};

	for (size_t i = 0; i < NM_ARRAY_SIZE(sessions); i++) {
		start();
		say_in_memory(sessions[i]);
		expect_quarantine("out of turn");
	}
	start();
	say_in_memory(1);
	say_in_memory(1);
	expect_quarantine("out of turn");
}

/* Whose packets wait for a word on the network that never comes: they wait, and nobody else does. */
NM_TEST(a_mark_without_its_word)
{
	char in[8];

	start();
	say_in_memory(1);
	NM_CHECK_EQ(send_one(1, "z", 1), 0);
	NM_CHECK_EQ(near_recv(moving_node(0), NULL, in, sizeof(in), 3, "in"), 0);
	step(100);
	NM_CHECK(nm_cqueue_empty(moving_node(0)->cq));
	NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
	say(NM_OP_MOVE, 0, NM_MOVE_TO_MEMORY + 1);
	NM_CHECK_EQ(near_wait(moving_node(0), moving_node(1), NULL).err, 0);
	NM_CHECK_EQ(in[0], 'z');
	moving_destroy();
}

/* A question for the network, without end. */
NM_TEST(words_that_want_nothing)
{
	start();
	for (int i = 0; i < 100000; i++)
		say(NM_OP_MOVE, 0, 0);
	step(3);
	NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
	NM_CHECK(peer_of(0, 1)->move == NULL);
	moving_destroy();
}

/* Behind what was taken, after the last packet, beyond the ring, beyond all numbers. */
NM_TEST(positions_where_no_packet_ends)
{
	const uint64_t positions[] = {0, 2, 1 + NM_MAX_RING_SLOTS, UINT32_MAX, UINT64_MAX};

	for (size_t i = 0; i < NM_ARRAY_SIZE(positions); i++)
		refused(NM_OP_MOVE, positions[i], 1, "where no packet ends");
}

NM_TEST(a_position_within_a_packet)
{
	static const char large[150];

	start();
	NM_CHECK_EQ(send_one(1, large, sizeof(large)), 0);
	say(NM_OP_MOVE, 2, 1);
	expect_down("where no packet ends");
}

NM_TEST(more_than_was_sent)
{
	refused(NM_OP_MOVED, 2, 1, "it took 2 places of the ring, and 1 were used");
	refused(NM_OP_MOVED, UINT64_MAX, 1, "places of the ring, and 1 were used");
}

NM_TEST(bytes_and_other_channels)
{
	const enum nm_op ops[] = {NM_OP_MOVE, NM_OP_MOVED};

	for (int i = 0; i < 2; i++) {
		const struct nm_packet bytes = {.op = (uint8_t)ops[i], .len = 1, .data = 1};

		start();
		moving_forge(0, 1, NM_CHANNEL_NET, &bytes, "b");
		expect_down("with 1 bytes on channel net");
	}
	for (int i = 0; i < 2; i++) {
		const struct nm_packet packet = {.op = (uint8_t)ops[i], .tag = 1, .data = 1};

		/* That channel is given up, as after other packets that no correct peer sends. */
		start();
		moving_forge(0, 1, NM_CHANNEL_VMSEG, &packet, NULL);
		step(3);
		NM_CHECK_EQ(near_facts(moving_node(0), moving_node(1)).nr_quarantines, 1);
		NM_CHECK_HAS(near_facts(moving_node(0), moving_node(1)).quarantine_reason.text,
			     "on channel segment");
		moving_destroy();
	}
}

NM_TEST(an_answer_before_the_handshake)
{
	moving_create(2);
	say(NM_OP_MOVED, 0, 1);
	expect_down("in memory, which never was");
}

/* A session that never comes is not waited for. */
NM_TEST_WITHIN(before_the_handshake, 60)
{
	setenv("NEARMETAL_CONNECT_MS", "1000", 1);
	moving_create(2);
	say(NM_OP_MOVE, 0, 1);
	say(NM_OP_MOVE, 0, 1);
	NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
	while (!near_facts(moving_node(0), moving_node(1)).down) {
		step(1);
		nm_test_sleep_ms(1);
	}
	expect_down("it left a memory channel that it never had");
}

/* MOVE is quicker than the last word of the handshake. */
NM_TEST_WITHIN(a_move_that_comes_too_early_is_taken_later, 60)
{
	moving_create(2);
	near_hold_net(moving_node(1), true);
	say(NM_OP_MOVE, 1, 1);
	step(3);
	NM_CHECK_EQ(send_one(1, "x", 1), 0);
	expect("x", 1);
	NM_CHECK(!(peer_of(0, 1)->source_channels & 1U << NM_CHANNEL_VMSEG));
	NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
	moving_destroy();
}

/* Repeated without end: one answer, no memory, no work. */
NM_TEST_WITHIN(repetitions_have_no_effect, 60)
{
	start();
	/* Only 0 acts now: 1 said nothing of this, so for it the session ends without order. */
	near_hold_net(moving_node(1), true);
	for (uint64_t i = 0; i < 100000; i++)
		say(NM_OP_MOVE, i ? i : 1, 1);
	step_receiver(100);
	NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
	NM_CHECK_EQ(near_waiting(moving_node(1), moving_node(0)), 1);
	/* Its own way does not change by that. */
	NM_CHECK_EQ(peer_of(0, 1)->way, NM_WAY_MEMORY);
	/* A report of the reader, over and over. */
	for (uint64_t i = 0; i < 100000; i++)
		say(NM_OP_MOVED, i ? i : 1, 1);
	step_receiver(100);
	NM_CHECK(!near_facts(moving_node(0), moving_node(1)).down);
	NM_CHECK_EQ(peer_of(0, 1)->way, NM_WAY_NETWORK);
	NM_CHECK_EQ(near_waiting(moving_node(1), moving_node(0)), 1);
	moving_destroy();
}

/* Node 1 never looks into the ring of 0 again. */
static void blind(void)
{
	moving_node(1)->engine->transports[NM_CHANNEL_VMSEG]->pause = UINT32_MAX;
}

/* A reader that lost its memory says so by itself; what it did not take comes again. */
NM_TEST_WITHIN(what_the_reader_left_is_sent_again, 60)
{
	static char out[3][3000], in[4096];

	start();
	NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, 1, 3, "in"), 0);
	NM_CHECK_EQ(near_wait(moving_node(1), moving_node(0), NULL).err, 0);
	blind();
	for (size_t i = 0; i < 3; i++) {
		memset(out[i], 'a' + (int)i, sizeof(out[i]));
		NM_CHECK_EQ(send_one(0, out[i], 100 + 1400 * i), 0);
	}
	say(NM_OP_MOVED, 1, 1);
	while (send_one(0, "end", 4) == -EAGAIN)
		step(1);
	for (size_t i = 0; i < 4; i++) {
		size_t len = i < 3 ? 100 + 1400 * i : 4;

		NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, sizeof(in), 3, "in"), 0);
		NM_CHECK_EQ(near_wait(moving_node(1), moving_node(0), NULL).len, len);
		NM_CHECK(!memcmp(in, i < 3 ? out[i] : "end", len));
	}
	NM_CHECK_EQ(near_facts(moving_node(0), moving_node(1)).link.channel, NM_CHANNEL_NET);
	moving_destroy();
}

/* What lies there is another packet already, or the middle of one. */
NM_TEST_WITHIN(what_is_overwritten_is_not_sent_again, 60)
{
	static const char large[150];

	for (int i = 0; i < 2; i++) {
		uint64_t position = 0;

		start();
		if (i == 0) {
			/* Rings later, as the reader's count has shown. */
			for (int n = 0; n < 5000; n++) {
				char in[8];

				NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, 8, 3, "in"), 0);
				NM_CHECK_EQ(near_wait(moving_node(1), moving_node(0), NULL).err, 0);
				while (send_one(0, "z", 1) == -EAGAIN)
					step(1);
			}
		} else {
			blind();
			NM_CHECK_EQ(send_one(0, large, sizeof(large)), 0);
			position = 2;
		}
		say(NM_OP_MOVED, position, 1);
		step(5);
		expect_down("what it left in memory cannot be sent again");
	}
}

/* Invalid bytes amid a move: SWITCH counts, and nothing is lost. */
NM_TEST_WITHIN(a_quarantine_amid_a_move, 60)
{
	struct nm_transport *segment;
	char in[8];

	start();
	NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, 1, 3, "in"), 0);
	NM_CHECK_EQ(near_wait(moving_node(1), moving_node(0), NULL).err, 0);
	near_hold_net(moving_node(1), true);
	segment = moving_node(0)->engine->transports[NM_CHANNEL_VMSEG];
	NM_CHECK(segment->sink.asked(segment, peer_of(0, 1), NM_LEAVES));
	while (peer_of(0, 1)->way != NM_WAY_COUNTING)
		step(1);
	segment->quarantine->cast_out(segment, &moving_node(1)->address.who, "a test");
	step(10);
	NM_CHECK_EQ(peer_of(0, 1)->way, NM_WAY_NETWORK);
	near_hold_net(moving_node(1), false);
	while (send_one(0, "after", 6) == -EAGAIN)
		step(1);
	NM_CHECK_EQ(near_recv(moving_node(1), NULL, in, sizeof(in), 3, "in"), 0);
	NM_CHECK_EQ(near_wait(moving_node(1), moving_node(0), NULL).err, 0);
	NM_CHECK_STR(in, "after");
	NM_CHECK_EQ(moving_node(0)->nr_lost + moving_node(1)->nr_lost, 0);
	NM_CHECK_EQ(near_facts(moving_node(0), moving_node(1)).nr_quarantines, 1);
	NM_CHECK_EQ(near_facts(moving_node(1), moving_node(0)).nr_quarantines, 1);
	moving_destroy();
}
