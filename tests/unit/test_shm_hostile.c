/* SPDX-License-Identifier: Apache-2.0 */
/* A sound shm transport against neighbours that own their windows and write lies into them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session_fixture.h"
#include "shm/ring.h"
#include "transport_fixture.h"

/* The victim is a real endpoint, the liar a table of sessions without any sense behind it. */
static struct node *victim;
static struct place liar;

static void start(void)
{
	victim = node_create(&shm_fixture);
	liar = place_create(5000);
}

static void finish(void)
{
	/* The victim is still of use to others. */
	struct node *friend = node_create(&shm_fixture);
	unsigned int ups = victim->nr_up;
	uint64_t packets = victim->nr_packets;
	struct nm_reason why;

	NM_CHECK_EQ(node_reach(friend->transport, &victim->address, (struct nm_peer *)friend,
			       &friend->link, &why),
		    0);
	victim->nr_down = 0;
	NM_CHECK_EQ(node_send(friend, 5, 100), 0);
	NODE_UNTIL(victim, victim->nr_packets == packets + 1);
	NM_CHECK_EQ(victim->nr_up, ups + 1);
	node_destroy(friend);
	place_destroy(&liar);
	node_destroy(victim);
}

/* The liar becomes a source of the victim's. Returns its ring. */
static struct nm_slot *lie_as_sender(struct nm_session **ret_session)
{
	struct nm_reason why = {""};

	if (place_call(liar.sessions, &victim->address.who, ret_session, &why))
		nm_test_fail(__FILE__, __LINE__, "visit: %s", why.text);
	NODE_UNTIL(victim, victim->nr_up > 0);
	return nm_window_ring(liar.window, (*ret_session)->out.own_lane);
}

static void expect_cast_out(const char *words)
{
	NODE_UNTIL(victim, victim->nr_down);
	NM_CHECK_EQ(victim->nr_down, 1);
	NM_CHECK_EQ(victim->down_err, -EBADMSG);
	NM_CHECK_HAS(victim->down_why.text, words);
}

static uint64_t control(uint64_t sequence, uint64_t kind, uint64_t len)
{
	return (uint32_t)sequence | kind << NM_CONTROL_KIND_SHIFT | len << NM_CONTROL_LEN_SHIFT;
}

static void expect_forged_head_found(uint64_t kind, uint64_t len, uint32_t index, uint32_t offset,
				     uint32_t chunk_len)
{
	struct nm_session *session;
	enum nm_session_event event;
	struct nm_slot *ring;

	start();
	ring = lie_as_sender(&session);
	ring->head.chunk.index = index;
	ring->head.chunk.offset = offset;
	ring->head.chunk.len = chunk_len;
	atomic_store_explicit(&ring->control, control(session->out.start + 1, kind, len),
			      memory_order_release);
	expect_cast_out("a slot of its ring");
	NM_CHECK_EQ(victim->nr_packets, 0);
	/* The liar is told why. */
	while (!nm_sessions_next_event(liar.sessions, &event))
		nm_test_sleep_ms(1);
	NM_CHECK_EQ(event, NM_SESSION_LOST);
	NM_CHECK_EQ(session->err, -EBADMSG);
	NM_CHECK_HAS(session->why.text, "correct peer never");
	finish();
}

NM_TEST(forged_slots_end_the_connection)
{
	expect_forged_head_found(0, 0, 0, 0, 0);
	expect_forged_head_found(NM_SLOT_BODY_KIND, 0, 0, 0, 0);
	expect_forged_head_found(NM_SLOT_HEAD_INLINE, 65535, 0, 0, 0);
	expect_forged_head_found(NM_SLOT_HEAD_INLINE, 41, 0, 0, 0);
	expect_forged_head_found(NM_SLOT_HEAD_CHUNK, 0, 16, 0, 1);
	expect_forged_head_found(NM_SLOT_HEAD_CHUNK, 0, UINT32_MAX, 0, 1);
	expect_forged_head_found(NM_SLOT_HEAD_CHUNK, 0, 0, 0, 4097);
	expect_forged_head_found(NM_SLOT_HEAD_CHUNK, 0, 0, UINT32_MAX, 2);
}

NM_TEST(what_was_sound_before_is_delivered)
{
	struct nm_packet pkt = {.op = 1, .len = 5};
	struct iovec iov = {(void *)(uintptr_t) "hello", 5};
	struct nm_session *session;
	struct nm_ring_writer writer;
	struct nm_slot *ring;

	start();
	ring = lie_as_sender(&session);
	nm_ring_writer_init(&writer, ring, 16, &session->window.lanes[session->out.peer_lane],
			    session->out.start, 40);
	NM_CHECK_EQ(nm_ring_write_inline(&writer, &pkt, &iov, 1), 0);
	atomic_store(&ring[1].control, control(session->out.start + 2, 0, 0));
	expect_cast_out("a slot of its ring");
	NM_CHECK_EQ(victim->nr_packets, 1);
	NM_CHECK(!memcmp(victim->payload, "hello", 5));
	finish();
}

/* Random slots and counters: whatever happens, nothing is read outside and nobody crashes. */
NM_TEST_WITHIN(random_bytes_do_no_harm, 60)
{
	struct nm_session *session;
	uint64_t random = 42, word;
	struct nm_slot *ring;
	unsigned int lap, i, n;

	for (lap = 0; lap < 60; lap++) {
		start();
		ring = lie_as_sender(&session);
		for (i = 0; i < 16; i++) {
			for (n = 1; n < 8; n++) {
				word = nm_test_random(&random);
				/* Small numbers now and then: they get further. */
				word = word & 1 ? word % 4200 : word;
				memcpy((char *)&ring[i] + 8 * n, &word, 8);
			}
			word = nm_test_random(&random);
			atomic_store(&ring[i].control, (uint32_t)(session->out.start + i + 1) |
							       (nm_test_random(&random) & 3)
								       << NM_CONTROL_KIND_SHIFT |
							       word << NM_CONTROL_OP_SHIFT);
		}
		for (i = 0; i < 100 && !victim->nr_down; i++)
			node_progress(victim);
		finish();
	}
}

/* The victim sends to the liar. Returns the liar's lane in which it counts what it has read. */
static struct nm_lane *lie_as_receiver(void)
{
	struct nm_address address = {.version = NM_ADDRESS_VERSION, .who = liar.who};
	struct nm_session *session;
	struct nm_reason why = {""};

	if (node_reach(victim->transport, &address, (struct nm_peer *)victim, &victim->link, &why))
		nm_test_fail(__FILE__, __LINE__, "connect: %s", why.text);
	session = place_expect(&liar, NM_SESSION_SOURCE);
	return &liar.window->lanes[session->in.own_lane];
}

static void expect_lie_found(uint64_t consumed, uint64_t chunks_freed, uint32_t len)
{
	struct nm_lane *lane;
	int err = 0, i;

	start();
	lane = lie_as_receiver();
	NM_CHECK_EQ(node_send(victim, 1, len), 0);
	atomic_store(&lane->consumed, consumed);
	atomic_store(&lane->chunks_freed, chunks_freed);
	/* Found at the latest when room runs out. */
	for (i = 0; i < 100000 && err != -EPIPE; i++) {
		err = node_send(victim, 1, len);
		NM_CHECK(err == 0 || err == -EPIPE);
	}
	NM_CHECK_EQ(err, -EPIPE);
	expect_cast_out("its count of");
	NM_CHECK_EQ(node_send(victim, 1, 8), -EPIPE);
	finish();
}

NM_TEST(lying_counters_end_the_connection)
{
	expect_lie_found(UINT64_MAX, 0, 8);
	expect_lie_found(UINT64_C(1) << 33, 0, 8);
	expect_lie_found(0, UINT64_MAX, 4000);
	expect_lie_found(0, UINT64_C(1) << 40, 4000);
}

/* A peer that stopped reading gets -EAGAIN for ever, and takes nothing from others. */
NM_TEST(peer_that_never_reads_starves_nobody)
{
	struct node *friend;
	struct nm_link *stuck;
	struct nm_reason why;
	uint64_t i;

	start();
	lie_as_receiver();
	stuck = victim->link;
	for (i = 0; node_send(victim, i, 4000) == 0; i++)
		NM_CHECK(i < 100000);
	friend = node_create(&shm_fixture);
	NM_CHECK_EQ(node_reach(victim->transport, &friend->address, (struct nm_peer *)victim,
			       &victim->link, &why),
		    0);
	for (i = 0; i < 5000; i++) {
		while (node_send(victim, i, 4000) == -EAGAIN)
			node_progress(friend);
		node_progress(victim);
	}
	NODE_UNTIL(friend, friend->nr_packets == 5000);
	victim->link = stuck;
	NM_CHECK_EQ(node_send(victim, 0, 4000), -EAGAIN);
	node_destroy(friend);
	NODE_UNTIL(victim, victim->nr_down);
	finish();
}

/* Two endpoints of one process, as when the provider is opened twice. */
NM_TEST(one_process_may_own_two_endpoints)
{
	struct node *a = node_create(&shm_fixture), *b = node_create(&shm_fixture);

	nodes_connect(&shm_fixture, a, b);
	NM_CHECK_EQ(node_send(a, 1, 3000), 0);
	NM_CHECK_EQ(node_send(b, 2, 3000), 0);
	NODE_UNTIL(a, a->nr_packets == 1);
	NODE_UNTIL(b, b->nr_packets == 1);
	NM_CHECK_EQ(a->last.tag, 2);
	NM_CHECK_EQ(b->last.tag, 1);
	node_destroy(a);
	node_destroy(b);
}

/* Endpoint after endpoint: what one use leaves behind does not confuse the next. */
NM_TEST_WITHIN(lanes_are_used_again_and_again, 60)
{
	struct node *a, *b;
	int i, n;

	setenv("NEARMETAL_MAX_LOCAL_PEERS", "16", 1);
	setenv("NEARMETAL_POOL_SIZE", "1M", 1);
	b = node_create(&shm_fixture);
	for (i = 0; i < 150; i++) {
		a = node_create(&shm_fixture);
		nodes_connect(&shm_fixture, a, b);
		for (n = 0; n < i % 40; n++)
			NM_CHECK_EQ(node_send(a, (uint64_t)n, 64), 0);
		NM_CHECK_EQ(node_send(b, 7, 2000), 0);
		NODE_UNTIL(a, a->nr_packets == 1);
		node_destroy(a);
		NODE_UNTIL(b, b->nr_down);
		NM_CHECK_EQ(b->nr_packets, i % 40);
		b->nr_packets = b->nr_down = 0;
	}
	node_destroy(b);
}
