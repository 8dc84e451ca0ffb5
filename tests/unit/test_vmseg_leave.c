/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints of machines that are asked to leave the segment, and their neighbours. The machines are
 * processes, or endpoints of one process.
 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/exchange.h"
#include "transport/shm/shm_private.h"
#include "vmseg_nodes.h"

static void ask_until_done(uint32_t part, enum nm_vmseg_state state)
{
	int err;

	while ((err = machine_ask(part, state)) == -EBUSY)
		nm_test_sleep_ms(1);
	NM_CHECK_EQ(err, 0);
}

static int reach(struct node *from, const struct node *to, struct nm_reason *ret_why)
{
	return node_reach(from->transport, &to->address, (struct nm_peer *)from, &from->link,
			  ret_why);
}

/* The slot of the only endpoint on machine PART, as everybody sees it. */
static struct nm_vmseg_peer slot_on(uint32_t part)
{
	struct nm_vmseg *segment = segment_attach(part);
	struct nm_vmseg_peer peer;
	uint64_t cursor = 0;
	bool found;

	do
		found = nm_vmseg_next(segment, &cursor, &peer);
	while (found && peer.address.part != part);
	NM_CHECK(found);
	nm_vmseg_detach(segment);
	return peer;
}

static void poke_slot(const struct nm_vmseg_peer *slot, uint32_t state)
{
	uint64_t word = slot->address.generation << NM_VMSEG_STATE_BITS | state;
	struct nm_vmseg_shape shape;

	nm_vmseg_shape_init(MACHINE_SIZE, &shape);
	segment_poke(segment_part_offset(slot->address.part, MACHINE_SIZE) + shape.slots_off +
			     slot->address.slot * sizeof(struct nm_vmseg_slot),
		     &word, sizeof(word));
}

static void poke_part(uint32_t part, uint32_t state)
{
	segment_poke(segment_part_offset(part, MACHINE_SIZE) +
			     offsetof(struct nm_vmseg_part, state),
		     &state, sizeof(state));
}

static void poke_knock(uint32_t part, uint64_t knock)
{
	segment_poke(segment_part_offset(part, MACHINE_SIZE) +
			     offsetof(struct nm_vmseg_part, knock),
		     &knock, sizeof(knock));
}

NM_TEST_WITHIN(sessions_stand_and_nothing_begins, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1), *c = machine_node(2);
	struct nm_address address = {.version = NM_ADDRESS_VERSION};
	struct nm_transport *late;
	struct nm_sink sink = {0};
	struct nm_reason why;

	nodes_connect(&machine_fixture, a, b);
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_QUIESCE), 0);
	for (uint64_t i = 0; i < 100; i++)
		nodes_exchange(a, b, 2 * i);
	/* Neither from it nor to it, and at once. */
	NM_CHECK_EQ(reach(c, b, &why), -EHOSTUNREACH);
	NM_CHECK_STR(why.text, "its machine is asked to leave the segment");
	NM_CHECK_EQ(node_reach(b->transport, &c->address, (struct nm_peer *)b, &c->link, &why),
		    -EHOSTUNREACH);
	NM_CHECK_STR(why.text, "this machine is asked to leave the segment");
	NM_CHECK_EQ(nm_identity_create(&address.who), 0);
	NM_CHECK_EQ(machine_create(1, &sink, &address, &late, &why), -EBUSY);
	NM_CHECK_HAS(why.text, "this machine is asked to leave the segment");
	/* Its neighbours go on with each other. */
	NM_CHECK_EQ(reach(c, a, &why), 0);
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_FROZEN), -EBUSY);
	nodes_exchange(a, b, 500);
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_RUN), 0);
	NM_CHECK_EQ(reach(c, b, &why), 0);
	nodes_exchange(a, b, 600);
	NM_CHECK_EQ(a->nr_down + b->nr_down + c->nr_down, 0);
	node_destroy(a);
	node_destroy(b);
	node_destroy(c);
}

NM_TEST_WITHIN(who_has_no_session_leaves_and_comes_back, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1), *c = machine_node(2);
	struct nm_vmseg_peer before, after;
	struct nm_reason why;

	/* One that had a session. */
	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 1);
	NM_CHECK_EQ(machine_ask(0, NM_VMSEG_QUIESCE), 0);
	node_destroy(b);
	NODE_UNTIL(a, a->nr_down);
	NM_CHECK_EQ(a->down_err, 0);
	a->nr_down = 0;
	ask_until_done(0, NM_VMSEG_FROZEN);
	before = slot_on(0);
	NM_CHECK_EQ(before.state, NM_VMSEG_FROZEN);
	NM_CHECK_EQ(reach(c, a, &why), -EHOSTUNREACH);
	NM_CHECK_STR(why.text, "it has left the segment: its machine is to be moved");
	NM_CHECK_EQ(node_reach(a->transport, &c->address, (struct nm_peer *)a, &a->link, &why),
		    -EHOSTUNREACH);
	nm_test_sleep_ms(3 * NM_VMSEG_BEAT_MS);
	after = slot_on(0);
	NM_CHECK_EQ(after.state, NM_VMSEG_FROZEN);
	NM_CHECK_EQ(after.heartbeat, before.heartbeat);
	/* Who calls does not wait until the service thread has seen it. */
	NM_CHECK_EQ(machine_ask(0, NM_VMSEG_RUN), 0);
	NM_CHECK_EQ(node_reach(a->transport, &c->address, (struct nm_peer *)a, &a->link, &why), 0);
	NODE_UNTIL(c, c->nr_up);
	NM_CHECK_EQ(reach(c, a, &why), 0);
	nodes_exchange(a, c, 7);
	NM_CHECK_EQ(slot_on(0).state, NM_VMSEG_RUN);
	node_destroy(a);
	node_destroy(c);
}

static void be_there(void *arg)
{
	struct far_end *far = arg;
	struct node *node = machine_node(far->machine);

	far_end_tell(far->to_parent[1], &node->address, sizeof(node->address));
	for (;;)
		node_progress(node);
}

/* A call without an answer ends when the machine is asked, and not after NEARMETAL_CONNECT_MS. */
NM_TEST_WITHIN(a_call_that_waits_is_given_up, 60)
{
	struct nm_address address;
	struct nm_reason why;
	struct far_end far;
	struct node *a;
	uint64_t start;
	pid_t pid;
	int err;

	setenv("NEARMETAL_CONNECT_MS", "600000", 1);
	setenv("NEARMETAL_SEGMENT_LEASE_MS", "600000", 1);
	far.machine = 1;
	NM_CHECK_EQ(pipe(far.to_parent), 0);
	pid = nm_test_fork(be_there, &far);
	far_end_hear(far.to_parent[0], &address, sizeof(address));
	nm_test_stop(pid);
	a = machine_node(0);
	NM_CHECK_EQ(a->transport->ops->connect(a->transport, &address, (struct nm_peer *)a,
					       &a->link, &why),
		    -EAGAIN);
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_QUIESCE), 0);
	start = nm_clock_ns();
	err = node_reach(a->transport, &address, (struct nm_peer *)a, &a->link, &why);
	NM_CHECK_EQ(err, -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "its machine is asked to leave the segment");
	NM_CHECK(nm_clock_ns() - start < 20 * NM_NS_PER_S);
	/* Nothing of it is left: this machine may leave, too. */
	NM_CHECK_EQ(machine_ask(0, NM_VMSEG_QUIESCE), 0);
	ask_until_done(0, NM_VMSEG_FROZEN);
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
	close(far.to_parent[0]);
	close(far.to_parent[1]);
	node_destroy(a);
}

/* ---- hostile machines ---- */

static unsigned int nr_asked, nr_stays;

static void note_line(enum nm_log_level level, const char *line)
{
	(void)level;
	nr_asked += strstr(line, "this one is asked to leave the segment") != NULL;
	nr_stays += strstr(line, "no machine is asked to leave the segment any more") != NULL;
}

static void flap(void *arg)
{
	const uint32_t states[] = {0, 1, 2, 3, 3, 4, 4, 5, 6, 77, 255, UINT32_MAX};
	uint64_t random = 11, knock = UINT64_C(1) << 40;
	struct node *node = machine_node(1);

	far_end_tell(*(const int *)arg, &node->address, sizeof(node->address));
	for (;;) {
		uint64_t roll = nm_test_random(&random);

		poke_part(1, states[roll % NM_ARRAY_SIZE(states)]);
		poke_knock(1, ++knock);
		node_progress(node);
	}
}

NM_TEST_WITHIN(a_machine_whose_state_flaps_disturbs_nobody, 90)
{
	struct node *a, *b, *c;
	unsigned int nr_reached = 0;
	struct nm_address its;
	struct nm_reason why;
	pid_t flapper;
	int pipes[2];

	setenv("NEARMETAL_LOG", "info", 1);
	setenv("NEARMETAL_SEGMENT_LEASE_MS", "2000", 1);
	setenv("NEARMETAL_CONNECT_MS", "1000", 1);
	nm_log_set_sink(note_line);
	NM_CHECK_EQ(pipe(pipes), 0);
	flapper = nm_test_fork(flap, &pipes[1]);
	far_end_hear(pipes[0], &its, sizeof(its));
	a = machine_node(0);
	c = machine_node(2);
	/* Between those that do not flap everything begins, and stands. */
	nodes_connect(&machine_fixture, a, c);
	for (uint64_t i = 0; i < 60; i++) {
		for (uint64_t n = 0; n < 50; n++)
			nodes_exchange(a, c, 100 * i + 2 * n);
		nm_test_sleep_ms(50);
		/* Whether a handshake with it begins is up to that machine; it ends in time. */
		if (i % 10 == 5) {
			struct node *d = machine_node(0);

			node_reach(d->transport, &its, (struct nm_peer *)d, &d->link, &why);
			node_destroy(d);
		}
	}
	NM_CHECK_EQ(a->nr_down + c->nr_down, 0);
	kill(flapper, SIGKILL);
	nm_test_join(flapper, SIGKILL);
	close(pipes[0]);
	close(pipes[1]);
	machine_ask(1, NM_VMSEG_RUN);
	/* A session with one that flaps stands, too. */
	nr_asked = nr_stays = 0;
	b = machine_node(1);
	c->nr_up = 0;
	NM_CHECK_EQ(reach(b, c, &why), 0);
	NODE_UNTIL(c, c->nr_up);
	NM_CHECK_EQ(node_reach(c->transport, &b->address, (struct nm_peer *)c, &c->link, &why), 0);
	for (int i = 0; i < 40; i++) {
		struct node *d;

		poke_part(1, i % 2 ? NM_VMSEG_RUN : NM_VMSEG_QUIESCE);
		nm_test_sleep_ms(100);
		nodes_exchange(b, c, 1000 + 2 * (uint64_t)i);
		if (i % 10)
			continue;
		d = machine_node(0);
		nr_reached += !reach(d, b, &why);
		node_destroy(d);
	}
	NM_CHECK_EQ(nr_reached, 0);
	NM_CHECK_EQ(b->nr_down + c->nr_down, 0);
	/* Four lines for each side of the session; all may be of one kind if a thread is slow. */
	NM_CHECK(nr_asked + nr_stays > 0);
	NM_CHECK(nr_asked + nr_stays <= 8);
	node_destroy(a);
	node_destroy(b);
	node_destroy(c);
	nm_log_set_sink(NULL);
}

/* A machine on its way has no heartbeat, and a limit of its own. */
NM_TEST_WITHIN(a_frozen_slot_has_another_limit, 90)
{
	struct nm_vmseg_peer slot;
	struct far_end far;
	struct node *node;
	uint64_t start;

	setenv("NEARMETAL_SEGMENT_LEASE_MS", "2000", 1);
	setenv("NEARMETAL_MOVE_MS", "6000", 1);
	node = far_end_start(&far, 1);
	slot = slot_on(1);
	nm_test_stop(far.pid);
	poke_slot(&slot, NM_VMSEG_FROZEN);
	start = nm_clock_ns();
	while (nm_clock_ns() - start < 3000 * NM_NS_PER_MS) {
		node_progress(node);
		nm_test_sleep_ms(1);
	}
	NM_CHECK_EQ(node->nr_down, 0);
	NODE_UNTIL(node, node->nr_down);
	NM_CHECK_EQ(node->down_err, -ECONNRESET);
	NM_CHECK_HAS(node->down_why.text, "did not come back within 6000 ms");
	NM_CHECK_HAS(node->down_why.text, "NEARMETAL_MOVE_MS");
	far_end_kill(&far);
	node_destroy(node);
}

NM_TEST_WITHIN(who_is_frozen_no_more_has_its_lease, 90)
{
	struct nm_vmseg_peer slot;
	struct far_end far;
	struct node *node;

	setenv("NEARMETAL_SEGMENT_LEASE_MS", "2000", 1);
	node = far_end_start(&far, 1);
	slot = slot_on(1);
	nm_test_stop(far.pid);
	poke_slot(&slot, NM_VMSEG_FROZEN);
	nm_test_sleep_ms(3000);
	node_progress(node);
	NM_CHECK_EQ(node->nr_down, 0);
	poke_slot(&slot, NM_VMSEG_RUN);
	NODE_UNTIL(node, node->nr_down);
	NM_CHECK_HAS(node->down_why.text, "its lease expired");
	far_end_kill(&far);
	node_destroy(node);
}

/* A slot that says FROZEN, while its endpoint goes on: its packets are packets, and it heals. */
NM_TEST_WITHIN(packets_of_a_frozen_slot_are_judged_as_all_others, 90)
{
	struct nm_vmseg_peer slot;
	struct node *a, *b;
	uint64_t start;

	setenv("NEARMETAL_SEGMENT_LEASE_MS", "2000", 1);
	a = machine_node(0);
	b = machine_node(1);
	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 1);
	/* Both handshakes are over. */
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_QUIESCE), 0);
	slot = slot_on(1);
	start = nm_clock_ns();
	for (uint64_t i = 0; nm_clock_ns() - start < 4000 * NM_NS_PER_MS; i++) {
		poke_slot(&slot, NM_VMSEG_FROZEN);
		nodes_exchange(a, b, 2 * i);
		nm_test_sleep_ms(5);
	}
	NM_CHECK_EQ(a->nr_down + b->nr_down, 0);
	while (slot_on(1).state != NM_VMSEG_RUN)
		nm_test_sleep_ms(1);
	node_destroy(b);
	NODE_UNTIL(a, a->nr_down);
	NM_CHECK_EQ(a->down_err, 0);
	node_destroy(a);
}

/* A correct endpoint in FROZEN has no sessions: who was stopped meanwhile sees that it is alone. */
NM_TEST_WITHIN(who_was_given_up_learns_it_from_a_frozen_slot, 60)
{
	struct nm_reason why;
	struct far_end far;
	struct node *node;

	setenv("NEARMETAL_SEGMENT_LEASE_MS", "500", 1);
	setenv("NEARMETAL_CONNECT_MS", "1000", 1);
	node = far_end_start(&far, 1);
	nm_test_stop(far.pid);
	NODE_UNTIL(node, node->nr_down);
	NM_CHECK_EQ(machine_ask(0, NM_VMSEG_QUIESCE), 0);
	ask_until_done(0, NM_VMSEG_FROZEN);
	kill(far.pid, SIGCONT);
	NM_CHECK_EQ(far_end_join(&far, &why), -ECONNRESET);
	NM_CHECK_HAS(why.text, "it gave up this connection before its machine left the segment");
	node_destroy(node);
}

static struct nm_sessions *sessions_of(const struct node *node)
{
	return nm_shm_of(node->transport)->sessions;
}

/* Each report wakes a program that sleeps, and takes the lock of its sessions. */
NM_TEST_WITHIN(a_state_that_flaps_is_rarely_reported, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	const _Atomic uint32_t *doorbell;
	uint64_t start, now, knock = UINT64_C(1) << 40;
	uint32_t before, rings;

	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 1);
	doorbell = nm_sessions_event_doorbell(sessions_of(a));
	before = atomic_load(doorbell);
	start = now = nm_clock_ns();
	for (uint32_t i = 0; now - start < 2 * NM_NS_PER_S; i++) {
		poke_part(1, i % 2 ? NM_VMSEG_RUN : NM_VMSEG_QUIESCE);
		poke_knock(1, ++knock);
		nm_test_sleep_ms(3);
		now = nm_clock_ns();
	}
	rings = atomic_load(doorbell) - before;
	NM_CHECK(rings > 0);
	/* Two exchanges, each at most once a second. */
	NM_CHECK(rings <= 2 * ((now - start) / NM_NS_PER_S + 2));
	NM_CHECK_EQ(a->nr_down + b->nr_down, 0);
	node_destroy(a);
	node_destroy(b);
}

/* The last report is the present state all the same. */
NM_TEST_WITHIN(the_last_change_is_reported_too, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	struct nm_session *session;

	nodes_connect(&machine_fixture, a, b);
	session = nm_sessions_find(sessions_of(a), &b->address.who);
	NM_CHECK(session != NULL);
	for (unsigned int i = 0; i < 4; i++) {
		poke_part(1, i % 2 ? NM_VMSEG_RUN : NM_VMSEG_QUIESCE);
		while (atomic_load(&session->is_asked) != !(i % 2))
			nm_test_sleep_ms(1);
	}
	node_destroy(a);
	node_destroy(b);
}

/* Each hangup has a number of its own. The exchange ends all the same, so the machine may leave. */
NM_TEST_WITHIN(hangups_without_end_keep_no_machine, 60)
{
	enum { NR_KEPT = 4 };
	struct node *a = machine_node(0);
	struct nm_vmseg *segment = segment_attach(1);
	struct nm_vmseg_claim *claim = segment_open(segment, 'f', NULL);
	const struct nm_vmseg_address to = slot_on(0).address;
	uint8_t bytes[sizeof(struct nm_letter_head) + 1] = {0};
	uint32_t cells[NR_KEPT];
	uint64_t start = 0;
	int err = -EBUSY;

	for (uint32_t sequence = 1; err == -EBUSY; sequence++) {
		struct nm_letter_head head = {
			.magic = NM_LETTER_MAGIC,
			.flags = NM_LETTER_CALLER | NM_LETTER_HANGUP,
			.len = 1,
			.number = 7,
			.sequence = sequence,
		};

		if (sequence > NR_KEPT)
			nm_vmseg_retract(claim, cells[sequence % NR_KEPT]);
		memcpy(bytes, &head, sizeof(head));
		NM_CHECK_EQ(
			nm_vmseg_post(claim, &to, bytes, sizeof(bytes), &cells[sequence % NR_KEPT]),
			0);
		nm_test_sleep_ms(20);
		if (sequence == 10) {
			start = nm_clock_ns();
			NM_CHECK_EQ(machine_ask(0, NM_VMSEG_QUIESCE), 0);
		}
		if (sequence > 10)
			err = machine_ask(0, NM_VMSEG_FROZEN);
		NM_CHECK(!start || nm_clock_ns() - start < 10 * NM_NS_PER_S);
	}
	NM_CHECK_EQ(err, 0);
	nm_vmseg_release(claim);
	nm_vmseg_detach(segment);
	node_destroy(a);
}

/* Time in FROZEN is no time in which this machine stood still. */
NM_TEST_WITHIN(an_absence_prolongs_no_limit, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	struct nm_sessions *sessions = sessions_of(a);
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);
	const struct nm_vmseg_peer peer = slot_on(1);
	struct nm_exchange *exchange;
	uint64_t now, limit;
	int ends[2];

	NM_CHECK_EQ(machine_ask(0, NM_VMSEG_QUIESCE), 0);
	ask_until_done(0, NM_VMSEG_FROZEN);
	nm_test_sleep_ms(2000);
	pthread_mutex_lock(&sessions->lock);
	NM_CHECK_EQ(machine_ask(0, NM_VMSEG_RUN), 0);
	NM_CHECK_EQ(nm_vmseg_return(wire->claim), 0);
	NM_CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
	exchange = nm_exchange_create(sessions, &peer, ends[1], 7, true);
	NM_CHECK(exchange != NULL);
	now = nm_clock_ns();
	exchange->say_by_ns = limit = now + NM_NS_PER_S;
	sessions->wire->ops->turn(sessions, now);
	NM_CHECK_EQ(exchange->say_by_ns, limit);
	pthread_mutex_unlock(&sessions->lock);
	close(ends[0]);
	node_destroy(a);
	node_destroy(b);
}
