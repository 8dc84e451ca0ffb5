/* SPDX-License-Identifier: Apache-2.0 */
/* A memory channel that is spoiled is left for the network, and what was lost is known. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/unexpected.h"
#include "harness.h"
#include "near_fixture.h"
#include "shm/ring.h"

static struct near_node *a, *b;

static void start(bool a_has_net, bool b_has_net)
{
	char in[2];

	a = near_create(a_has_net);
	b = near_create(b_has_net);
	/* Both links stand, in lane 0 of either, and something has gone over them. */
	NM_CHECK_EQ(near_send(a, b, "x", 1, 1, 0, NULL), 0);
	NM_CHECK_EQ(near_send(b, a, "y", 1, 1, 0, NULL), 0);
	NM_CHECK_EQ(near_recv(b, a, in, 1, 1, "first"), 0);
	NM_CHECK_EQ(near_recv(a, b, in + 1, 1, 1, "first"), 0);
	NM_CHECK_EQ(near_wait(b, a, NULL).err, 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK(in[0] == 'x' && in[1] == 'y');
	NM_CHECK_EQ(near_facts(a, b).link.channel, NM_CHANNEL_SHM);
}

static void finish(void)
{
	near_destroy(a);
	near_destroy(b);
}

static struct nm_slot *ring_of(struct near_node *node)
{
	struct nm_window_header *header = near_window(node);

	return (struct nm_slot *)((char *)header + header->geometry.rings_off);
}

static struct nm_lane *lane_of(struct near_node *node)
{
	struct nm_window_header *header = near_window(node);

	return (struct nm_lane *)((char *)header + header->geometry.lanes_off);
}

/* The next slot of NODE's ring holds what nobody writes. */
static void spoil_slot(struct near_node *node, unsigned int position)
{
	atomic_store_explicit(&ring_of(node)[position].control, position + 1, memory_order_release);
}

/*
 * NODE's two operations of an exchange end well. What was lost BEFORE it and not told yet, because
 * no receive was posted, ends the first receive that would wait: that one is posted again.
 */
static void end_exchange(struct near_node *node, struct near_node *other, char *in, size_t len,
			 uint64_t tag, bool lost_before)
{
	for (int left = 2; left;) {
		struct nm_completion c = near_wait(node, other, NULL);

		if (lost_before && c.err == ECONNRESET && !strcmp(c.context, "in")) {
			lost_before = false;
			NM_CHECK_EQ(near_recv(node, NULL, in, len, tag, "in"), 0);
			continue;
		}
		NM_CHECK_EQ(c.err, 0);
		left--;
	}
}

/* Each sends the other a message of LEN bytes, and both arrive. */
static void exchange_after(size_t len, bool lost_before)
{
	static char out[2][200000], in[2][200000];

	memset(out[0], 'a', len);
	memset(out[1], 'b', len);
	memset(in, 0, sizeof(in));
	NM_CHECK_EQ(near_recv(a, b, in[0], len, 50, "in"), 0);
	NM_CHECK_EQ(near_recv(b, NULL, in[1], len, 51, "in"), 0);
	while (near_send(a, b, out[0], len, 51, NM_COMPLETION, "out") == -EAGAIN)
		near_step(a, b, NULL);
	while (near_send(b, a, out[1], len, 50, NM_COMPLETION, "out") == -EAGAIN)
		near_step(a, b, NULL);
	end_exchange(a, b, in[0], len, 50, lost_before);
	end_exchange(b, a, in[1], len, 51, lost_before);
	NM_CHECK(!memcmp(in[0], out[1], len) && !memcmp(in[1], out[0], len));
}

static void exchange(size_t len)
{
	exchange_after(len, false);
}

static void expect_on_network(const char *words)
{
	NM_CHECK_EQ(near_facts(a, b).link.channel, NM_CHANNEL_NET);
	NM_CHECK_EQ(near_facts(b, a).link.channel, NM_CHANNEL_NET);
	NM_CHECK_EQ(near_facts(a, b).nr_quarantines, 1);
	NM_CHECK_EQ(near_facts(b, a).nr_quarantines, 1);
	NM_CHECK(!near_facts(a, b).down && !near_facts(b, a).down);
	NM_CHECK_HAS(near_facts(a, b).quarantine_reason.text, words);
}

NM_TEST(spoiled_messages_end_in_an_error_and_others_take_the_network)
{
	char in[64];

	start(true, true);
	NM_CHECK_EQ(near_recv(a, b, in, 64, 2, "good"), 0);
	NM_CHECK_EQ(near_recv(a, b, in, 64, 3, "lost"), 0);
	NM_CHECK_EQ(near_recv(a, NULL, in, 64, 99, "anyone"), 0);
	NM_CHECK_EQ(near_send(b, a, "good", 5, 2, 0, NULL), 0);
	NM_CHECK_EQ(near_send(b, a, "lost", 5, 3, 0, NULL), 0);
	spoil_slot(b, 2);
	NM_CHECK_STR(near_wait(a, b, NULL).context, "good");
	NM_CHECK_STR(in, "good");
	for (int i = 0; i < 2; i++)
		NM_CHECK_EQ(near_wait(a, b, NULL).err, ECONNRESET);
	exchange(8);
	exchange(150000);
	expect_on_network("a slot of its ring");
	NM_CHECK_EQ(a->nr_lost, 1);
	NM_CHECK_EQ(a->failed.receives, 2);
	NM_CHECK_EQ(near_facts(a, b).received[NM_CHANNEL_SHM].messages, 2); /* one of the start */
	NM_CHECK_EQ(near_facts(a, b).received[NM_CHANNEL_NET].messages, 2);
	NM_CHECK_EQ(near_facts(b, a).sent[NM_CHANNEL_SHM].messages, 3);
	NM_CHECK_EQ(near_facts(b, a).sent[NM_CHANNEL_NET].bytes, 150008);
	finish();
}

NM_TEST(nothing_is_lost_when_nothing_was_on_its_way)
{
	char in[64] = "";

	start(true, true);
	NM_CHECK_EQ(near_recv(a, b, in, 64, 2, "in"), 0);
	NM_CHECK_EQ(near_recv(a, NULL, in, 64, 99, "anyone"), 0);
	/* A forged slot: B never sent that, and its count says so. */
	spoil_slot(b, 1);
	while (near_facts(b, a).nr_quarantines == 0)
		if (!near_step(a, b, NULL))
			nm_test_sleep_ms(1);
	while (near_send(b, a, "late", 5, 2, 0, NULL) == -EAGAIN)
		near_step(a, b, NULL);
	NM_CHECK_STR(near_wait(a, b, NULL).context, "in");
	NM_CHECK_STR(in, "late");
	exchange(8);
	expect_on_network("a slot of its ring");
	/* Whoever waits for anyone still does. */
	NM_CHECK(nm_cqueue_empty(a->cq));
	NM_CHECK(a->nr_lost == 0 && b->nr_lost == 0);
	finish();
}

NM_TEST(order_is_kept_and_nothing_lost_when_counters_lie)
{
	uint64_t in[400], out;
	int err, nr = 0, sent;

	start(true, true);
	for (int i = 0; i < 400; i++)
		NM_CHECK_EQ(near_recv(b, a, &in[i], 8, 7, &in[i]), 0);
	/* B's count of what it has read of A's ring goes back: A finds out when its room ends. */
	atomic_store(&lane_of(b)->consumed, UINT64_MAX / 2);
	for (sent = 0; sent < 400; sent++) {
		out = (uint64_t)sent;
		while ((err = near_send(a, b, &out, 8, 7, 0, NULL)) == -EAGAIN)
			if (!near_step(a, b, NULL))
				nm_test_sleep_ms(1);
		NM_CHECK_EQ(err, 0);
	}
	for (; nr < 400; nr++) {
		struct nm_completion c = near_wait(b, a, NULL);

		NM_CHECK_EQ(c.err, 0);
		NM_CHECK(c.context == &in[nr]);
		NM_CHECK_EQ(in[nr], nr);
	}
	exchange(8);
	expect_on_network("its count of read slots");
	finish();
}

/* Where NODE will publish next. */
static unsigned int next_position(struct near_node *node)
{
	unsigned int i = 0;

	while ((uint32_t)atomic_load(&ring_of(node)[i].control) == i + 1)
		i++;
	return i;
}

/*
 * A large message under way, and at each of its steps in turn B's channel is spoiled where it would
 * publish next. Either all of it arrives by another way, or both sides hear of it.
 */
NM_TEST_WITHIN(large_messages_go_on_where_they_stood, 60)
{
	static char out[3000000], in[3000000];
	unsigned int whole = 0, steps;
	struct nm_completion got, sent;

	memset(out, 'z', sizeof(out));
	for (steps = 0; steps < 12; steps++) {
		memset(in, 0, sizeof(in));
		start(true, true);
		NM_CHECK_EQ(near_recv(b, a, in, sizeof(in), 7, "in"), 0);
		NM_CHECK_EQ(near_send(a, b, out, sizeof(out), 7, NM_COMPLETION, "out"), 0);
		for (unsigned int i = 0; i < steps; i++)
			near_step(i % 2 ? a : b, NULL, NULL);
		spoil_slot(b, next_position(b));
		/* A looks before B writes there. */
		near_step(a, NULL, NULL);
		got = near_wait(b, a, NULL);
		NM_CHECK(got.err == 0 || got.err == ECONNRESET);
		if (!got.err)
			NM_CHECK(!memcmp(in, out, sizeof(in)));
		whole += !got.err;
		sent = near_wait(a, b, NULL);
		/* Where the receiver reads by itself, only its word that it has is lost. */
		NM_CHECK(sent.err == got.err || sent.err == ECONNRESET);
		exchange_after(30000, got.err || sent.err);
		expect_on_network("a slot of its ring");
		finish();
	}
	NM_CHECK(whole > 5);
}

/* A slot that was published and spoiled is never ready: nobody may wait for it for ever. */
NM_TEST(messages_that_vanish_are_missed)
{
	char in[64];

	start(true, true);
	NM_CHECK_EQ(near_recv(a, b, in, 64, 3, "lost"), 0);
	NM_CHECK_EQ(near_send(b, a, "lost", 5, 3, 0, NULL), 0);
	atomic_store(&ring_of(b)[1].control, UINT64_C(0x123456789abcdef1));
	NM_CHECK_EQ(near_wait(a, b, NULL).err, ECONNRESET);
	exchange(8);
	expect_on_network("a slot that it never published");
	finish();
}

/* Packets that no sound engine sends, on a channel whose bytes may be spoiled. */
NM_TEST(senseless_packets_spoil_the_channel_only)
{
	struct nm_slot *ring;
	char in[64];

	start(true, true);
	NM_CHECK_EQ(near_recv(a, b, in, 64, 3, "lost"), 0);
	NM_CHECK_EQ(near_send(b, a, "lost", 5, 3, 0, NULL), 0);
	ring = ring_of(b);
	atomic_fetch_or(&ring[1].control, UINT64_C(63) << NM_CONTROL_OP_SHIFT);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, ECONNRESET);
	exchange(8);
	/* With checksums (NEARMETAL_CHECKSUM) that is what is found first. */
	expect_on_network(getenv("NEARMETAL_CHECKSUM") ? "their checksum" : "unknown kind 63");
	finish();
}

NM_TEST(without_a_network_the_peer_is_lost)
{
	struct nm_peer_facts facts;
	char in[64];

	start(false, true);
	NM_CHECK_EQ(near_recv(a, b, in, 64, 3, "lost"), 0);
	spoil_slot(b, 1);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, ECONNRESET);
	facts = near_facts(a, b);
	NM_CHECK(facts.down);
	NM_CHECK_EQ(facts.nr_quarantines, 1);
	NM_CHECK_HAS(facts.down_reason.text, "a slot of its ring");
	NM_CHECK_EQ(near_send(a, b, "x", 1, 3, 0, NULL), -ECONNRESET);
	finish();
}

/* One that is told to move and says nothing is waited for as long as any handshake. */
NM_TEST(silence_after_the_quarantine_is_the_end)
{
	struct near_node *c;
	char in[64];

	setenv("NEARMETAL_CONNECT_MS", "300", 1);
	start(true, true);
	c = near_create(true);
	NM_CHECK_EQ(near_recv(a, b, in, 64, 3, "lost"), 0);
	spoil_slot(b, 1);
	near_hold_net(b, true);
	/* B is there, but makes no progress. */
	NM_CHECK_EQ(near_wait(a, NULL, NULL).err, ECONNRESET);
	NM_CHECK(near_facts(a, b).down);
	NM_CHECK_HAS(near_facts(a, b).down_reason.text, "NEARMETAL_CONNECT_MS");
	/* Others are not concerned. */
	NM_CHECK_EQ(near_send(a, c, "hi", 3, 9, 0, NULL), 0);
	NM_CHECK_EQ(near_recv(c, a, in, 64, 9, "in"), 0);
	NM_CHECK_EQ(near_wait(c, a, NULL).err, 0);
	near_destroy(c);
	finish();
}

/* Memory accesses and answers that are due are part of it. */
NM_TEST(answers_that_are_due_are_not_mistaken_afterwards)
{
	char in[64];

	start(true, true);
	NM_CHECK_EQ(near_send(b, a, "keep", 5, 4, NM_COMPLETION | NM_DELIVERY_COMPLETE, "ack"), 0);
	NM_CHECK_EQ(near_send(b, a, "lost", 5, 5, 0, NULL), 0);
	spoil_slot(b, 2);
	/* The first is here, unreceived; its sender hears that nothing is sure any more. */
	NM_CHECK_EQ(near_wait(b, a, NULL).err, ECONNRESET);
	while (near_facts(a, b).link.channel != NM_CHANNEL_NET)
		near_step(a, b, NULL);
	NM_CHECK_EQ(near_recv(a, b, in, 64, 4, "kept"), 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK_STR(in, "keep");
	/* That there was more is said once, to the first receive that would wait for it. */
	NM_CHECK_EQ(near_recv(a, b, in, 64, 5, "lost"), 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, ECONNRESET);
	exchange(8);
	expect_on_network("a slot of its ring");
	finish();
}

/* Messages of B wait at A until B is asked to keep the bytes of more. Returns how many. */
static uint64_t press(void)
{
	uint64_t nr = 0;

	setenv("NEARMETAL_UNEXPECTED_MAX", "256K", 1);
	start(true, true);
	while (!near_peer(b, a)->keeps) {
		NM_CHECK_EQ(near_send(b, a, "12345678", 8, 1000 + nr++, NM_INJECT, NULL), 0);
		near_step(a, b, NULL);
		NM_CHECK(nr < 100);
	}
	NM_CHECK(near_peer(a, b)->asked == NM_PACE_KEEP);
	return nr;
}

static void relieve(uint64_t nr)
{
	char in[8];

	while (nr-- > 0) {
		NM_CHECK_EQ(near_recv(a, b, in, 8, 1000 + nr, "in"), 0);
		NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	}
	for (int i = 0; i < 100; i++)
		near_step(a, b, NULL);
	NM_CHECK(!near_peer(b, a)->keeps && near_peer(a, b)->asked == NM_PACE_FREE);
	NM_CHECK_EQ(near_peer(a, b)->held_bytes, 0);
}

static bool has_moved(struct near_node *node, struct near_node *other)
{
	return near_facts(node, other).link.channel == NM_CHANNEL_NET &&
	       near_peer(node, other)->state == NM_PEER_CONNECTED;
}

static void move_to_network(void)
{
	while (!has_moved(a, b) || !has_moved(b, a))
		near_step(a, b, NULL);
}

/* What one has asked the other is not forgotten on the way to the network. */
NM_TEST(pace_goes_on_after_a_move_without_losses)
{
	static char out[1000], in[1000];
	uint64_t nr = press();

	memset(out, 'o', sizeof(out));
	spoil_slot(b, next_position(b));
	move_to_network();
	NM_CHECK(near_peer(b, a)->keeps && near_peer(a, b)->asked == NM_PACE_KEEP);
	/* Its bytes are kept, on a channel that would take them with the envelope. */
	NM_CHECK_EQ(near_send(b, a, out, sizeof(out), 3, NM_COMPLETION, "out"), 0);
	for (int i = 0; i < 100; i++)
		near_step(a, b, NULL);
	NM_CHECK(nm_cqueue_empty(b->cq));
	NM_CHECK_EQ(near_recv(a, b, in, sizeof(in), 3, "in"), 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, 0);
	NM_CHECK_EQ(near_wait(b, a, NULL).err, 0);
	NM_CHECK(!memcmp(in, out, sizeof(in)));
	relieve(nr);
	NM_CHECK_EQ(near_send(b, a, out, sizeof(out), 3, NM_COMPLETION, "out"), 0);
	NM_CHECK(!nm_cqueue_empty(b->cq));
	expect_on_network("a slot of its ring");
	finish();
}

/* Where something was lost it may have been that, so both begin anew, and what waits still counts. */
NM_TEST(pace_begins_anew_after_a_move_with_losses)
{
	uint64_t nr = press(), held = near_peer(a, b)->held_bytes;

	NM_CHECK_EQ(near_send(b, a, "lost", 5, 3, 0, NULL), 0);
	spoil_slot(b, next_position(b) - 1);
	move_to_network();
	NM_CHECK(!near_peer(b, a)->keeps && near_peer(a, b)->asked == NM_PACE_FREE);
	NM_CHECK_EQ(near_peer(a, b)->held_bytes, held);
	NM_CHECK_EQ(near_send(b, a, "12345678", 8, 1000 + nr++, NM_INJECT, NULL), 0);
	while (!near_peer(b, a)->keeps)
		near_step(a, b, NULL);
	relieve(nr);
	expect_on_network("a slot of its ring");
	finish();
}

/* A second memory channel: B comes to A on it, and breaks its rules. */
struct second {
	struct nm_transport base;
	bool done;
};

static unsigned int come_and_be_cast_out(struct nm_transport *transport)
{
	struct second *second = nm_container_of(transport, struct second, base);
	const struct nm_peer_label label = {"second way"};
	const struct nm_reason why = {"it wrote what a correct peer never writes"};
	const struct nm_stream_ends ends = {0};
	struct nm_sink *sink = &second->base.sink;
	struct nm_peer *peer;

	if (second->done)
		return 0;
	second->done = true;
	peer = sink->source_up(transport, &b->address.who, &label);
	sink->quarantined(transport, peer, &ends, &why);
	return 1;
}

static void nothing_to_destroy(struct nm_transport *transport)
{
	(void)transport;
}

NM_TEST(who_is_on_two_memory_channels_is_not_moved)
{
	static const struct nm_transport_kind kind = {.channel = NM_CHANNEL_VMSEG, .rank = 30};
	static const struct nm_transport_ops ops = {
		.progress = come_and_be_cast_out,
		.destroy = nothing_to_destroy,
	};
	struct second second = {
		.base = {.kind = &kind, .ops = &ops, .max_payload = NM_MIN_MAX_PAYLOAD}};
	char in[4];

	start(true, true);
	second.base.sink = *nm_engine_sink(a->engine);
	NM_CHECK_EQ(near_recv(a, b, in, sizeof(in), 9, "never"), 0);
	NM_CHECK_EQ(nm_engine_add_transport(a->engine, &second.base), 0);
	NM_CHECK_EQ(near_wait(a, b, NULL).err, ECONNRESET);
	NM_CHECK(near_facts(a, b).down);
	finish();
}
