/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping until somebody rings: the words themselves (shm/doorbell.h), and how channels use them.
 * A test that waits does so for LONG, which is beyond the time that a case has: whoever is not
 * woken fails by that.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "session_fixture.h"
#include "transport_fixture.h"
#include "vmseg_fixture.h"

#define LONG (2 * NM_TEST_TIMEOUT_S * NM_NS_PER_S)
#define MOMENT 1000

static _Atomic uint32_t a_word;

static void *ring_soon(void *unused)
{
	(void)unused;
	nm_test_sleep_ms(20);
	nm_doorbell_ring(&a_word);
	return NULL;
}

NM_TEST(a_ring_wakes_and_is_not_lost_before_the_sleep)
{
	struct nm_doorbells doorbells = {0};
	pthread_t thread;

	NM_CHECK(nm_doorbells_add(&doorbells, &a_word));
	NM_CHECK(!nm_doorbells_wait(&doorbells, MOMENT));
	NM_CHECK_EQ(pthread_create(&thread, NULL, ring_soon, NULL), 0);
	NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
	pthread_join(thread, NULL);
	/* Rung since the look: no sleep at all. */
	NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
	doorbells = (struct nm_doorbells){.rung = true};
	NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
	doorbells = (struct nm_doorbells){0};
	NM_CHECK(!nm_doorbells_wait(&doorbells, MOMENT));
	NM_CHECK(!nm_doorbells_are_refused());
}

NM_TEST(more_bells_than_the_kernel_takes)
{
	static _Atomic uint32_t words[NM_DOORBELLS_MAX + 1];
	struct nm_doorbells doorbells = {0};

	for (int i = 0; i < NM_DOORBELLS_MAX; i++)
		NM_CHECK(nm_doorbells_add(&doorbells, &words[i]));
	NM_CHECK(!nm_doorbells_add(&doorbells, &words[NM_DOORBELLS_MAX]));
	NM_CHECK(!nm_doorbells_wait(&doorbells, MOMENT));
	nm_doorbell_ring(&words[NM_DOORBELLS_MAX - 1]);
	NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
}

/* Another thread gave a peer's window back after we looked at it. */
NM_TEST(a_bell_that_is_unmapped_costs_nothing)
{
	struct nm_doorbells doorbells = {0};
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NM_CHECK(page != MAP_FAILED);
	NM_CHECK(nm_doorbells_add(&doorbells, page));
	NM_CHECK_EQ(munmap(page, 4096), 0);
	NM_CHECK(!nm_doorbells_wait(&doorbells, LONG));
	NM_CHECK(!nm_doorbells_are_refused());
}

static void forbid(long call, uint32_t err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		nm_test_skip("no seccomp filters");
}

static void expect_polling(uint32_t err)
{
	struct nm_doorbells doorbells = {0};

	forbid(SYS_futex_waitv, err);
	NM_CHECK(nm_doorbells_add(&doorbells, &a_word));
	NM_CHECK(!nm_doorbells_are_refused());
	NM_CHECK(!nm_doorbells_wait(&doorbells, LONG));
	NM_CHECK(nm_doorbells_are_refused());
	/* From now on it sleeps for a moment each time. */
	NM_CHECK(!nm_doorbells_wait(&doorbells, LONG));
}

NM_TEST(an_old_kernel_is_polled)
{
	expect_polling(ENOSYS);
}

NM_TEST(a_filter_that_forbids_it_is_lived_with)
{
	expect_polling(EPERM);
}

static struct node *sleeper, *sender;

static bool fall_asleep(struct nm_doorbells *doorbells)
{
	*doorbells = (struct nm_doorbells){0};
	return sleeper->transport->ops->sleep(sleeper->transport, doorbells);
}

static void wake_up(void)
{
	if (sleeper->transport->ops->wake)
		sleeper->transport->ops->wake(sleeper->transport);
}

static void start(void)
{
	sender = node_create(&shm_fixture);
	sleeper = node_create(&shm_fixture);
	nodes_connect(&shm_fixture, sender, sleeper);
	/* The last message of a handshake comes late if the cores are busy. */
	NODE_UNTIL(sleeper, sleeper->nr_up);
	NODE_UNTIL(sender, sender->nr_up);
	nodes_settle(sender, sleeper);
}

static void finish(void)
{
	node_destroy(sender);
	node_destroy(sleeper);
}

/* Peers ring for who sleeps, once for each sleep, and for nobody else. */
NM_TEST(whoever_sleeps_is_rung)
{
	const _Atomic uint32_t *doorbell;
	struct nm_doorbells doorbells;
	uint32_t before;

	start();
	NM_CHECK(fall_asleep(&doorbells));
	NM_CHECK(!doorbells.rung);
	/* The table of sessions's, and the sender's. */
	NM_CHECK_EQ(doorbells.nr, 2);
	doorbell = doorbells.doorbells[1].word;
	NM_CHECK(!nm_doorbells_wait(&doorbells, MOMENT));
	wake_up();
	/* In one slot, in several, and in a chunk. */
	for (uint32_t len = 8; len <= 8192; len *= 32) {
		before = atomic_load(doorbell);
		NM_CHECK_EQ(node_send(sender, len, len), 0);
		NM_CHECK_EQ(atomic_load(doorbell), before);
		nodes_settle(sender, sleeper);
		NM_CHECK(fall_asleep(&doorbells));
		NM_CHECK(!doorbells.rung);
		NM_CHECK_EQ(node_send(sender, len, len), 0);
		NM_CHECK_EQ(node_send(sender, len, len), 0);
		NM_CHECK_EQ(atomic_load(doorbell), before + 1);
		NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
		/* Another thread goes to sleep before this one is awake: it sees what came. */
		NM_CHECK(fall_asleep(&doorbells));
		NM_CHECK(doorbells.rung);
		NM_CHECK_EQ(node_send(sender, len, len), 0);
		NM_CHECK_EQ(atomic_load(doorbell), before + 2);
		wake_up();
		nodes_settle(sender, sleeper);
	}
	finish();
}

static void *send_soon(void *unused)
{
	(void)unused;
	nm_test_sleep_ms(20);
	NM_CHECK_EQ(node_send(sender, 1, 8), 0);
	return NULL;
}

NM_TEST(a_message_wakes)
{
	struct nm_doorbells doorbells;
	pthread_t thread;

	start();
	for (unsigned int i = 1; i <= 5; i++) {
		NM_CHECK(fall_asleep(&doorbells));
		NM_CHECK_EQ(pthread_create(&thread, NULL, send_soon, NULL), 0);
		NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
		wake_up();
		NODE_UNTIL(sleeper, sleeper->nr_packets == i);
		pthread_join(thread, NULL);
	}
	finish();
}

static int to_sender[2];

static void send_and_pause(void *unused)
{
	struct node *node = node_create(&shm_fixture);
	struct nm_address address;
	struct nm_reason why;

	(void)unused;
	NM_CHECK_EQ(read(to_sender[0], &address, sizeof(address)), sizeof(address));
	NM_CHECK_EQ(
		node_reach(node->transport, &address, (struct nm_peer *)node, &node->link, &why),
		0);
	NM_CHECK_EQ(node_send(node, 1, 8), 0);
	pause();
}

static void *kill_soon(void *pid)
{
	nm_test_sleep_ms(20);
	kill(*(pid_t *)pid, SIGKILL);
	return NULL;
}

/* Who comes, and who dies, is told by a thread that rings as well. */
NM_TEST(visits_and_deaths_wake)
{
	struct nm_doorbells doorbells;
	pthread_t thread;
	pid_t pid;

	NM_CHECK_EQ(pipe(to_sender), 0);
	pid = nm_test_fork(send_and_pause, NULL);
	sleeper = node_create(&shm_fixture);
	NM_CHECK(fall_asleep(&doorbells));
	NM_CHECK(!nm_doorbells_wait(&doorbells, MOMENT));
	NM_CHECK_EQ(write(to_sender[1], &sleeper->address, sizeof(sleeper->address)),
		    sizeof(sleeper->address));
	NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
	wake_up();
	NODE_UNTIL(sleeper, sleeper->nr_packets == 1);
	NM_CHECK(fall_asleep(&doorbells));
	NM_CHECK_EQ(pthread_create(&thread, NULL, kill_soon, &pid), 0);
	NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
	wake_up();
	NODE_UNTIL(sleeper, sleeper->nr_down);
	NM_CHECK_EQ(sleeper->down_err, -ECONNRESET);
	pthread_join(thread, NULL);
	nm_test_join(pid, SIGKILL);
	close(to_sender[0]);
	close(to_sender[1]);
	node_destroy(sleeper);
}

/* A neighbour that owns its window and has no sense behind it, as a source and as a reader. */
static struct place liar;

static struct nm_session *start_with_liar(void)
{
	struct nm_session *session;
	struct nm_reason why = {""};

	sleeper = node_create(&shm_fixture);
	liar = place_create(5000);
	if (place_call(liar.sessions, &sleeper->address.who, &session, &why))
		nm_test_fail(__FILE__, __LINE__, "visit: %s", why.text);
	NODE_UNTIL(sleeper, sleeper->nr_up > 0);
	return session;
}

static void finish_with_liar(void)
{
	place_destroy(&liar);
	node_destroy(sleeper);
}

NM_TEST(who_rings_for_ever_makes_poll_and_no_more)
{
	const struct nm_session *session = start_with_liar();
	_Atomic uint32_t *doorbell = &liar.window->lanes[session->out.own_lane].doorbell;
	struct nm_doorbells doorbells;

	for (int i = 0; i < 100; i++) {
		NM_CHECK(fall_asleep(&doorbells));
		NM_CHECK(!doorbells.rung);
		nm_doorbell_ring(doorbell);
		NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
		wake_up();
		NM_CHECK_EQ(node_progress(sleeper), 0);
	}
	NM_CHECK_EQ(sleeper->nr_down, 0);
	finish_with_liar();
}

/* Whatever a reader says of its sleep, each message costs its sender one ring at most. */
NM_TEST(who_says_that_it_sleeps_is_rung_once_each_time)
{
	const struct nm_session *source;
	enum nm_session_event kind;
	const _Atomic uint32_t *doorbell;
	struct nm_reason why = {""};
	struct nm_address address;

	start_with_liar();
	address = (struct nm_address){.version = NM_ADDRESS_VERSION, .who = liar.who};
	if (node_reach(sleeper->transport, &address, (struct nm_peer *)sleeper, &sleeper->link,
		       &why))
		nm_test_fail(__FILE__, __LINE__, "connect: %s", why.text);
	while (!(source = nm_sessions_next_event(liar.sessions, &kind)))
		nm_test_sleep_ms(1);
	NM_CHECK_EQ(kind, NM_SESSION_SOURCE);
	doorbell = &source->window.lanes[source->in.peer_lane].doorbell;
	for (uint32_t i = 1; i <= 5; i++) {
		atomic_store(&liar.window->header->asleep, i);
		NM_CHECK_EQ(node_send(sleeper, 1, 8), 0);
		NM_CHECK_EQ(node_send(sleeper, 2, 8), 0);
		NM_CHECK_EQ(atomic_load(doorbell), i);
	}
	atomic_store(&liar.window->header->asleep, 0);
	NM_CHECK_EQ(node_send(sleeper, 3, 8), 0);
	NM_CHECK_EQ(atomic_load(doorbell), 5);
	finish_with_liar();
}

/* What no poll stumbles over is looked for in one of thousands; of a sleeper's, in each. */
NM_TEST(a_sleeper_finds_a_slot_that_is_spoiled)
{
	const struct nm_session *session = start_with_liar();
	struct nm_slot *ring = nm_window_ring(liar.window, session->out.own_lane);
	struct nm_doorbells doorbells;

	/* Another number than the next, and none that an earlier lap could have left. */
	atomic_store(&ring->control, session->out.start + 7);
	NM_CHECK_EQ(node_progress(sleeper), 0);
	NM_CHECK_EQ(sleeper->nr_down, 0);
	NM_CHECK(fall_asleep(&doorbells));
	wake_up();
	node_progress(sleeper);
	NM_CHECK_EQ(sleeper->nr_down, 1);
	NM_CHECK_HAS(sleeper->down_why.text, "never published");
	finish_with_liar();
}

/* Another machine's kernel wakes nobody here. */
NM_TEST(a_neighbour_in_another_machine_is_not_heard)
{
	struct nm_doorbells doorbells = {0};

	sender = node_create(&segment_fixture);
	sleeper = node_create(&segment_fixture);
	NM_CHECK(fall_asleep(&doorbells));
	NM_CHECK_EQ(doorbells.nr, 1);
	nodes_connect(&segment_fixture, sender, sleeper);
	/* Its coming is: a thread of this machine meets it. */
	NM_CHECK(nm_doorbells_wait(&doorbells, LONG));
	NODE_UNTIL(sleeper, sleeper->nr_up);
	NM_CHECK(!fall_asleep(&doorbells));
	nodes_settle(sender, sleeper);
	finish();
}
