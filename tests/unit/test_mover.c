/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program computes: it makes no call. A thread of each domain moves the channels meanwhile. The
 * network is libfabric's (tcp, loopback).
 */
#include "provider/mover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/params.h"
#include "engine/internal.h"
#include "moving.h"
#include "provider/lock.h"
#include "transport/vmseg/home.h"

/* Long beside the rounds of a thread that moves something: 10 ms apart at most. */
#define QUIET_MS 300

static struct domain {
	struct nm_lock lock;
	struct nm_mover mover;
	struct nm_engine *engine; /* NULL: closed */
	unsigned int nr_rounds;	  /* of the thread */
} domains[MOVING_MAX];
static unsigned int nr_domains;
static _Atomic bool is_late, is_inside;

void nm_naps_look(struct nm_lock *lock)
{
	(void)lock;
}

static struct nm_engine *engine_at(void *arg, size_t i)
{
	struct domain *domain = arg;

	domain->nr_rounds += i == 0;
	if (is_late) {
		is_inside = true;
		nm_test_sleep_ms(1500);
		is_inside = false;
		return NULL;
	}
	return i == 0 ? domain->engine : NULL;
}

static void hold_all(void)
{
	for (unsigned int i = 0; i < nr_domains; i++)
		nm_lock_take(&domains[i].lock);
}

static void compute(void)
{
	for (unsigned int i = 0; i < nr_domains; i++)
		nm_lock_give(&domains[i].lock);
}

/* Endpoints with a domain each, whose locks are held; they have no connection. */
static void open_strangers(unsigned int nr, const char *knob)
{
	setenv("NEARMETAL_NET", "tcp", 1);
	/* The last to close has nobody that answers. */
	setenv("NEARMETAL_CLOSE_MS", "200", 1);
	setenv("NEARMETAL_MOVE_THREAD", knob, 1);
	moving_create(nr);
	nr_domains = nr;
	for (unsigned int i = 0; i < nr; i++) {
		struct domain *domain = &domains[i];

		domain->engine = moving_node(i)->engine;
		domain->mover = (struct nm_mover){
			.lock = &domain->lock, .engine = engine_at, .arg = domain};
		NM_CHECK_EQ(nm_lock_init(&domain->lock, true), 0);
		nm_lock_take(&domain->lock);
		nm_mover_look(&domain->mover);
	}
}

static void open_all(unsigned int nr, const char *knob)
{
	open_strangers(nr, knob);
	moving_talk(20, NULL);
}

static void close_threads(void)
{
	compute();
	for (unsigned int i = 0; i < nr_domains; i++) {
		nm_mover_stop(&domains[i].mover);
		nm_lock_fini(&domains[i].lock);
	}
	nr_domains = 0;
}

static void close_all(void)
{
	close_threads();
	moving_destroy();
}

static bool are_on(unsigned int part, enum nm_channel channel)
{
	bool are_on = true;

	for (unsigned int i = 0; i < nr_domains; i++)
		are_on &= i == part || (moving_channel(i, part) == channel &&
					moving_channel(part, i) == channel);
	return are_on;
}

static void ask(unsigned int part, enum nm_vmseg_state state)
{
	NM_CHECK_EQ(machine_ask(part, state), 0);
}

static bool freezes(unsigned int part)
{
	int err = machine_ask(part, NM_VMSEG_FROZEN);

	NM_CHECK(!err || err == -EBUSY);
	return !err;
}

/* Until PART is frozen, without a call of the program. */
static void leave(unsigned int part)
{
	ask(part, NM_VMSEG_QUIESCE);
	compute();
	while (!freezes(part))
		nm_test_sleep_ms(1);
	hold_all();
	NM_CHECK(are_on(part, NM_CHANNEL_NET));
}

static void come_back(unsigned int part)
{
	ask(part, NM_VMSEG_RUN);
	while (!are_on(part, NM_CHANNEL_VMSEG)) {
		compute();
		nm_test_sleep_ms(1);
		hold_all();
	}
}

NM_TEST_WITHIN(a_machine_goes_and_comes_while_all_compute, 120)
{
	open_all(3, "on");
	for (unsigned int part = 0; part < 3; part++) {
		leave(part);
		moving_talk(20, NULL);
		come_back(part);
		moving_talk(20, NULL);
	}
	for (unsigned int i = 0; i < 3; i++)
		for (unsigned int j = 0; j < 3; j++)
			if (i != j)
				NM_CHECK_EQ(near_facts(moving_node(i), moving_node(j)).nr_moves, 4);
	close_all();
}

/* All machines of the host at once. */
NM_TEST_WITHIN(all_machines_go_at_once_while_all_compute, 120)
{
	open_all(3, "on");
	for (unsigned int round = 0; round < 3; round++) {
		for (unsigned int part = 0; part < 3; part++)
			ask(part, NM_VMSEG_QUIESCE);
		compute();
		for (unsigned int part = 0; part < 3; part++)
			while (!freezes(part))
				nm_test_sleep_ms(1);
		hold_all();
		moving_talk(10, NULL);
		for (unsigned int part = 0; part < 3; part++)
			ask(part, NM_VMSEG_RUN);
		for (unsigned int part = 0; part < 3; part++)
			come_back(part);
		moving_talk(10, NULL);
	}
	close_all();
}

/* Without the thread, the machine waits for the next call of each. */
NM_TEST_WITHIN(without_the_thread_nothing_moves, 60)
{
	open_all(2, "off");
	ask(1, NM_VMSEG_QUIESCE);
	compute();
	for (int i = 0; i < QUIET_MS / 10; i++) {
		NM_CHECK(!freezes(1));
		nm_test_sleep_ms(10);
	}
	hold_all();
	NM_CHECK_EQ(domains[0].nr_rounds + domains[1].nr_rounds, 0);
	while (!freezes(1))
		moving_talk(1, NULL);
	close_all();
}

static void leave_amid(unsigned int round)
{
	if (round == 30)
		leave(1);
}

/* Messages of all kinds are under way when the program begins to compute. */
NM_TEST_WITHIN(what_is_under_way_arrives, 60)
{
	open_all(3, "on");
	for (unsigned int i = 0; i < 3; i++) {
		moving_talk(40, leave_amid);
		NM_CHECK(are_on(1, NM_CHANNEL_NET));
		come_back(1);
	}
	close_all();
}

static unsigned int rounds(void)
{
	return domains[0].nr_rounds + domains[1].nr_rounds;
}

/* Until thread I has nothing to do, without a call of the program. */
static void await_quiet(unsigned int i)
{
	unsigned int before;

	do {
		before = domains[i].nr_rounds;
		compute();
		nm_test_sleep_ms(QUIET_MS);
		hold_all();
	} while (domains[i].nr_rounds != before);
}

/* Neither messages nor quiet wake it. */
NM_TEST_WITHIN(it_sleeps_unless_a_machine_is_asked, 60)
{
	unsigned int before;

	open_all(2, "on");
	leave(1);
	come_back(1);
	/* The last report of the segment is some seconds old. */
	await_quiet(0);
	await_quiet(1);
	before = rounds();
	moving_talk(100, NULL);
	compute();
	nm_test_sleep_ms(QUIET_MS);
	hold_all();
	NM_CHECK_EQ(rounds(), before);
	leave(1);
	NM_CHECK(rounds() > before);
	close_all();
}

static struct shm_transport *shm_of(unsigned int i)
{
	return nm_shm_of(moving_node(i)->engine->transports[NM_CHANNEL_VMSEG]);
}

/* The guest unit takes the description of PART away, or has given another one. */
static void await_segment(unsigned int part, bool is_there)
{
	while (!!shm_of(part)->segment != is_there) {
		compute();
		nm_test_sleep_ms(1);
		hold_all();
	}
}

/* The segment of a machine that moves is given up and found, in the same part. */
NM_TEST_WITHIN(a_segment_is_given_up_and_found_while_all_compute, 120)
{
	unsigned int before;
	uint64_t begin_ns;

	open_all(2, "on");
	for (unsigned int round = 0; round < 4; round++) {
		leave(1);
		/* The last report of the segment is some seconds old. */
		if (round == 0)
			await_quiet(0);
		near_hide_description(moving_node(1));
		await_segment(1, false);
		moving_talk(20, NULL);
		if (round == 0) {
			/* The other machine's thread sleeps; this one looks now and then. */
			await_quiet(0);
			before = domains[1].nr_rounds;
			begin_ns = nm_clock_ns();
			compute();
			nm_test_sleep_ms(QUIET_MS);
			hold_all();
			NM_CHECK(domains[1].nr_rounds - before <=
				 (nm_clock_ns() - begin_ns) / (100 * NM_NS_PER_MS) + 5);
		}
		near_describe(moving_node(1), 1);
		come_back(1);
		moving_talk(20, NULL);
	}
	await_quiet(0);
	await_quiet(1);
	close_all();
}

/* No connection, so no report: its thread slept since it was created. */
NM_TEST_WITHIN(an_endpoint_without_connections_gives_the_segment_up, 30)
{
	open_strangers(2, "on");
	await_quiet(1);
	ask(1, NM_VMSEG_QUIESCE);
	compute();
	while (!freezes(1))
		nm_test_sleep_ms(1);
	hold_all();
	near_hide_description(moving_node(1));
	await_segment(1, false);
	near_describe(moving_node(1), 1);
	ask(1, NM_VMSEG_RUN);
	await_segment(1, true);
	moving_talk(20, NULL);
	close_all();
}

static void say(int notice, const char *word)
{
	NM_CHECK_EQ(pwrite(notice, word, 6, 0), 6);
}

/* Both networks go, and come back. */
static void cut_networks(int notice)
{
	say(notice, "leave\n");
	compute();
	while (flock(notice, LOCK_EX | LOCK_NB))
		nm_test_sleep_ms(1);
	say(notice, "stay \n");
	NM_CHECK_EQ(flock(notice, LOCK_UN), 0);
	/* Not again before both are back. */
	nm_test_sleep_ms(3 * QUIET_MS);
	hold_all();
}

/* The notice of the machine wakes nothing, so it is looked at. */
NM_TEST_WITHIN(a_network_goes_and_comes_while_all_compute, 60)
{
	char path[128];
	int notice;

	snprintf(path, sizeof(path), "%s/network", nm_test_dir());
	notice = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	NM_CHECK(notice >= 0);
	say(notice, "stay \n");
	setenv("NEARMETAL_NET_NOTICE", path, 1);
	open_all(2, "on");
	cut_networks(notice);
	NM_CHECK_EQ(moving_channel(0, 1), NM_CHANNEL_VMSEG);
	leave(1);
	moving_talk(20, NULL);
	cut_networks(notice);
	moving_talk(20, NULL);
	close_all();
	close(notice);
}

/* An endpoint closes while its thread moves it, at any time. */
NM_TEST_WITHIN(an_endpoint_closes_amid_a_move, 120)
{
	for (unsigned int round = 0; round < 12; round++) {
		open_all(2, "on");
		/* libfabric 1.17 leaves sockets of connections that begin when it closes. */
		leave(1);
		come_back(1);
		ask(1, NM_VMSEG_QUIESCE);
		compute();
		nm_test_sleep_ms(3 * round);
		for (unsigned int i = 0; i < 2; i++) {
			nm_lock_take(&domains[i].lock);
			domains[i].engine = NULL;
			nm_mover_look(&domains[i].mover);
			nm_engine_retire(moving_node(i)->engine);
			nm_lock_give(&domains[i].lock);
		}
		moving_destroy();
		hold_all();
		close_threads();
		ask(1, NM_VMSEG_RUN);
	}
}

/* ARG: one of the two is held up, as if exit() had interrupted a call. */
static void end_with_threads(void *arg)
{
	open_all(2, "on");
	ask(1, NM_VMSEG_QUIESCE);
	compute();
	if (arg)
		nm_lock_take(&domains[1].lock);
	exit(0);
}

NM_TEST_WITHIN(a_process_ends_amid_a_move, 60)
{
	nm_test_join(nm_test_fork(end_with_threads, NULL), 0);
}

/* The sanitizer reports a thread that is left. */
#ifndef __SANITIZE_THREAD__
NM_TEST_WITHIN(a_process_ends_amid_a_call, 60)
{
	nm_test_join(nm_test_fork(end_with_threads, domains), 0);
}
#endif

static void stop_late(void)
{
	nm_mover_stop(&domains[0].mover);
	_exit(is_inside);
}

static void end_with_a_late_thread(void *arg)
{
	(void)arg;
	/* It runs after that of the threads. */
	atexit(stop_late);
	open_all(1, "on");
	is_late = true;
	nm_mover_look(&domains[0].mover);
	compute();
	while (!is_inside)
		nm_test_sleep_ms(1);
	exit(0);
}

/* A domain that is closed after exit() has given its thread up. */
NM_TEST_WITHIN(a_domain_waits_for_a_late_thread, 60)
{
	nm_test_join(nm_test_fork(end_with_a_late_thread, NULL), 0);
}

static void fork_amid_a_move(void *arg)
{
	pid_t pid;
	int status;

	(void)arg;
	open_all(2, "on");
	ask(1, NM_VMSEG_QUIESCE);
	compute();
	nm_test_sleep_ms(5);
	pid = fork();
	if (!pid) {
		for (unsigned int i = 0; i < 2; i++) {
			nm_lock_forget(&domains[i].lock);
			nm_mover_forget(&domains[i].mover);
		}
		hold_all();
		for (unsigned int i = 0; i < 2; i++) {
			/* It closes an endpoint of its parent. */
			nm_mover_look(&domains[i].mover);
			NM_CHECK(!domains[i].mover.is_running);
		}
		close_threads();
		_exit(0);
	}
	NM_CHECK_EQ(waitpid(pid, &status, 0), pid);
	NM_CHECK_EQ(status, 0);
	while (!freezes(1))
		nm_test_sleep_ms(1);
	hold_all();
	close_all();
}

NM_TEST_WITHIN(a_forked_child_has_no_thread, 60)
{
	nm_test_join(nm_test_fork(fork_amid_a_move, NULL), 0);
}
