/* SPDX-License-Identifier: Apache-2.0 */
/* What may happen while the segment of an endpoint is away, and while it attaches to another one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/internal.h"
#include "homes.h"

/* How long this thread has slept since some time: neither used a processor nor waited for one. */
static int64_t slept_ns(void)
{
	FILE *file = fopen("/proc/thread-self/schedstat", "re");
	unsigned long long ran_ns, waited_ns;
	uint64_t now_ns = nm_clock_ns();

	NM_CHECK(file && fscanf(file, "%llu %llu", &ran_ns, &waited_ns) == 2);
	fclose(file);
	return (int64_t)(now_ns - ran_ns - waited_ns);
}

/* A call that makes progress, in which an endpoint may attach. */
static void step_in_time(unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++) {
		int64_t begin = slept_ns();

		nm_engine_progress(moving_node(1)->engine);
		NM_CHECK(slept_ns() - begin < (int64_t)NM_NS_PER_S);
		nm_engine_progress(moving_node(0)->engine);
		nm_test_sleep_ms(1);
	}
}

/* Another process of the machine holds the lock file, or part and slots have had other users. */
NM_TEST_WITHIN(attaching_never_waits, 60)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	struct nm_vmseg_claim *stranger;
	struct nm_vmseg *other;
	uint32_t part = 1;
	int lock;

	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	leave_at_once(1, 2);
	segment_use(1);
	/* A slot of a dead machine, in state RUN: the lock file knows nothing of it. */
	other = segment_attach(part);
	stranger = segment_open(other, 's', NULL);
	near_describe(moving_node(1), part);
	unlink(segment_config(part).lock);
	lock = open(segment_config(part).lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	NM_CHECK(lock >= 0);
	NM_CHECK_EQ(fcntl(lock, F_OFD_SETLK, &range), 0);
	segment_use(0);
	step_in_time(1500);
	NM_CHECK(!shm_of(1)->segment);
	moving_message(0, 1, "far");
	close(lock);
	while (!shm_of(1)->segment)
		step_in_time(1);
	machines[1] = (struct machine){.segment = 1, .part = part};
	moving_message(1, 0, "found");
	moving_destroy();
	nm_vmseg_release(stranger);
	nm_vmseg_detach(other);
}

/* A process that uses the part with another lock file goes on: the part stays its own. */
NM_TEST_WITHIN(strangers_are_seen_without_waiting, 60)
{
	struct nm_vmseg_claim *stranger;
	struct nm_vmseg *other;

	start(2);
	moving_message(0, 1, "first");
	leave_at_once(1, 2);
	segment_use(1);
	other = segment_attach(1);
	stranger = segment_open(other, 's', NULL);
	near_describe(moving_node(1), 1);
	unlink(segment_config(1).lock);
	segment_use(0);
	for (unsigned int i = 0; i < 4000; i++) {
		nm_vmseg_beat(stranger);
		step_in_time(1);
	}
	NM_CHECK(!shm_of(1)->segment);
	while (!shm_of(1)->segment)
		step_in_time(1);
	machines[1] = (struct machine){.segment = 1, .part = 1};
	moving_message(1, 0, "found");
	moving_destroy();
	nm_vmseg_release(stranger);
	nm_vmseg_detach(other);
}

/* A child of fork() has nothing of the segment, and its end changes nothing. */
NM_TEST_WITHIN(a_child_is_forked_while_the_segment_is_away, 60)
{
	int status;
	pid_t child;

	start(2);
	moving_message(0, 1, "first");
	moving_message(1, 0, "first");
	leave_at_once(1, 2);
	for (unsigned int closes = 0; closes < 2; closes++) {
		child = fork();
		NM_CHECK(child >= 0);
		if (child == 0) {
			if (closes)
				near_destroy(moving_node(1));
			_exit(count_mapped(0) == 2 ? 0 : 1);
		}
		NM_CHECK_EQ(waitpid(child, &status, 0), child);
		NM_CHECK_EQ(status, 0);
		moving_message(0, 1, "far");
		moving_message(1, 0, "far");
	}
	arrive(1, 0, 2);
	while (!moving_is_on(0, 1, NM_CHANNEL_VMSEG))
		step(2);
	moving_message(0, 1, "near");
	check_sound(0, 1);
	moving_destroy();
}

static uint64_t home_of(unsigned int segment, unsigned int part)
{
	uint8_t home[NM_HOME_LEN];
	uint64_t word = 0;

	segment_use(segment);
	nm_home_name(segment_config(part).token, part, home);
	segment_use(0);
	for (int i = 0; i < NM_HOME_LEN; i++)
		word |= (uint64_t)home[i] << 8 * i;
	return word;
}

static void step_until(unsigned int at, unsigned int other, enum nm_way way)
{
	while (near_peer(moving_node(at), moving_node(other))->way != way)
		step(2);
}

/* HOME comes while the way to its sender changes, with its true home and with another one. */
NM_TEST_WITHIN(homes_amid_a_change_of_the_way, 60)
{
	for (unsigned int is_true = 0; is_true < 2; is_true++) {
		uint64_t home = home_of(!is_true, 1);

		start(2);
		moving_message(0, 1, "first");
		moving_message(1, 0, "first");
		begin_to_leave(1);
		near_hold_net(moving_node(0), true);
		step_until(0, 1, NM_WAY_COUNTING);
		say_home(home, 1);
		near_hold_net(moving_node(0), false);
		while (!moving_is_on(0, 1, NM_CHANNEL_NET))
			step(2);
		moving_message(0, 1, "far");
		near_set_net(moving_node(0), NEAR_NET_UNMET);
		machines[1].place = STAYS;
		NM_CHECK_EQ(ask(1, NM_VMSEG_RUN), 0);
		if (is_true)
			step_until(0, 1, NM_WAY_JOINING);
		say_home(home, 2);
		near_set_net(moving_node(0), NEAR_NET_GOOD);
		while (moving_channel(1, 0) != NM_CHANNEL_VMSEG && is_true)
			step(2);
		for (int i = 0; i < 100; i++)
			step(2);
		moving_message(0, 1, "then");
		moving_message(1, 0, "then");
		NM_CHECK_EQ(moving_channel(0, 1), is_true ? NM_CHANNEL_VMSEG : NM_CHANNEL_NET);
		check_sound(0, 1);
		moving_destroy();
	}
}

/* It closes while it tries to attach, which fails. */
NM_TEST_WITHIN(who_closes_while_it_attaches, 60)
{
	struct nm_vmseg_config config;

	start(2);
	moving_message(0, 1, "first");
	leave_at_once(1, 2);
	config = segment_config(1);
	config.token[3] ^= 1;
	segment_describe(&config, "node1.conf");
	for (int i = 0; i < 200; i++)
		step(2);
	moving_message(1, 0, "far");
	moving_destroy();
	NM_CHECK_EQ(count_mapped(0), 0);
}

static void one_of_three(struct near_node *nodes[3], unsigned int from, unsigned int to)
{
	char in[16] = "";

	NM_CHECK_EQ(near_recv(nodes[to], nodes[from], in, sizeof(in), 3, "in"), 0);
	while (near_send(nodes[from], nodes[to], "word", 4, 3, 0, NULL))
		near_step(nodes[0], nodes[1], nodes[2]);
	NM_CHECK_EQ(near_wait(nodes[to], nodes[(to + 1) % 3], nodes[(to + 2) % 3]).err, 0);
	NM_CHECK_STR(in, "word");
}

static struct shm_transport *memory_of(const struct near_node *node)
{
	return nm_shm_of(node->engine->transports[NM_CHANNEL_VMSEG]);
}

/* Two endpoints of a process in one machine: one computes, and the other one has moved already. */
NM_TEST_WITHIN(two_endpoints_of_a_process, 60)
{
	struct near_node *nodes[3];
	struct nm_vmseg *guest_unit;
	struct nm_reason why;
	int err = -EBUSY;

	for (unsigned int i = 0; i < 3; i++)
		nodes[i] = near_create_on(i > 0, true);
	for (unsigned int i = 1; i < 3; i++) {
		one_of_three(nodes, 0, i);
		one_of_three(nodes, i, 0);
	}
	NM_CHECK_EQ(machine_ask(1, NM_VMSEG_QUIESCE), 0);
	while (err) {
		near_step(nodes[0], nodes[1], nodes[2]);
		err = machine_ask(1, NM_VMSEG_FROZEN);
	}
	near_hide_description(nodes[1]);
	near_hide_description(nodes[2]);
	while (memory_of(nodes[1])->segment)
		near_step(nodes[0], nodes[1], NULL);
	NM_CHECK(memory_of(nodes[2])->segment != NULL);
	near_describe(nodes[1], 2);
	near_describe(nodes[2], 2);
	guest_unit = segment_attach(2);
	NM_CHECK_EQ(nm_vmseg_ask(guest_unit, NM_VMSEG_RUN, &why), 0);
	nm_vmseg_detach(guest_unit);
	while (near_facts(nodes[0], nodes[1]).link.channel != NM_CHANNEL_VMSEG)
		near_step(nodes[0], nodes[1], NULL);
	NM_CHECK_EQ(near_facts(nodes[0], nodes[2]).link.channel, NM_CHANNEL_NET);
	for (unsigned int i = 1; i < 3; i++) {
		while (near_facts(nodes[0], nodes[i]).link.channel != NM_CHANNEL_VMSEG ||
		       near_facts(nodes[i], nodes[0]).link.channel != NM_CHANNEL_VMSEG)
			near_step(nodes[0], nodes[1], nodes[2]);
		one_of_three(nodes, 0, i);
		one_of_three(nodes, i, 0);
	}
	for (unsigned int i = 0; i < 3; i++)
		near_destroy(nodes[i]);
	NM_CHECK_EQ(count_mapped(0), 0);
}
