/* SPDX-License-Identifier: Apache-2.0 */
#include "provider/mover.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "provider/lock.h"

/* Between two rounds of a move: the second is that of the service thread. */
#define MIN_PAUSE_NS (100 * NM_NS_PER_US)
#define MAX_PAUSE_NS (10 * NM_NS_PER_MS)
/* While a machine has no segment, or has left it: nothing rings when its description changes. */
#define AWAY_NS (100 * NM_NS_PER_MS)
/* The longest sleep. Everything rings, so this costs nothing and bounds what is lost. */
#define SLEEP_NS (60 * NM_NS_PER_S)
/* A thread of the program that is stopped or interrupted amid a call may hold the lock at exit(). */
#define EXIT_WAIT_S 1

/* All that run; each is ended by the one who takes it out. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nm_mover *all;

bool nm_mover_is_wanted(void)
{
	return nm_params() && !strcmp(nm_params()->move_thread, "on");
}

static void rest(const struct nm_doorbells *doorbells, uint64_t ns)
{
	struct timespec time;

	if (!nm_doorbells_are_refused()) {
		nm_doorbells_wait(doorbells, ns);
		return;
	}
	/* Without doorbells as often as the service thread. */
	time = (struct timespec){.tv_nsec = (long)nm_min_u64(ns, MAX_PAUSE_NS)};
	nanosleep(&time, NULL);
}

/* One round of all engines. Returns the state of the one that needs the next round first. */
static enum nm_drive drive(struct nm_mover *mover, struct nm_doorbells *doorbells,
			   unsigned int *nr_done)
{
	struct nm_engine *engine;
	enum nm_drive state = NM_DRIVE_QUIET;

	nm_lock_take(mover->lock);
	for (size_t i = 0; (engine = mover->engine(mover->arg, i)); i++) {
		enum nm_drive of_engine = nm_engine_drive(engine, doorbells, nr_done);

		if (of_engine > state)
			state = of_engine;
	}
	nm_lock_give(mover->lock);
	return state;
}

static void *run(void *arg)
{
	struct nm_mover *mover = arg;
	uint64_t pause_ns = MIN_PAUSE_NS;
	struct nm_doorbells doorbells;

	for (;;) {
		unsigned int nr_done = 0;
		enum nm_drive state;

		doorbells.nr = 0;
		doorbells.rung = false;
		nm_doorbells_add(&doorbells, &mover->doorbell);
		/* Partner: end(), which rings after it. */
		if (atomic_load_explicit(&mover->is_stopping, memory_order_relaxed))
			return NULL;
		state = drive(mover, &doorbells, &nr_done);
		pause_ns = nr_done || state != NM_DRIVE_MOVES ?
				   MIN_PAUSE_NS :
				   nm_min_u64(2 * pause_ns, MAX_PAUSE_NS);
		rest(&doorbells, state == NM_DRIVE_MOVES ? pause_ns :
				 state == NM_DRIVE_AWAY	 ? AWAY_NS :
							   SLEEP_NS);
	}
}

static void end(struct nm_mover *mover)
{
	atomic_store_explicit(&mover->is_stopping, true, memory_order_relaxed);
	nm_doorbell_ring(&mover->doorbell);
}

static void end_all(void)
{
	struct nm_mover **place = &all;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += EXIT_WAIT_S;
	/* Held, so that a domain which is closed meanwhile does not go before its thread. */
	pthread_mutex_lock(&mutex);
	while (*place) {
		end(*place);
		/* One that still runs stays: a domain that is closed later waits for it. */
		if (pthread_timedjoin_np((*place)->thread, NULL, &until))
			place = &(*place)->next;
		else
			*place = (*place)->next;
	}
	pthread_mutex_unlock(&mutex);
}

static void end_at_exit(void)
{
	atexit(end_all);
}

static void start(struct nm_mover *mover)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int err;

	pthread_once(&once, end_at_exit);
	err = nm_thread_start(&mover->thread, "nm-mover", true, run, mover);
	if (err) {
		nm_warn("no thread for NEARMETAL_MOVE_THREAD: %s; a move of this machine or of a "
			"neighbour waits until the program communicates",
			strerror(-err));
		return;
	}
	mover->is_running = true;
	pthread_mutex_lock(&mutex);
	mover->next = all;
	all = mover;
	pthread_mutex_unlock(&mutex);
}

void nm_mover_look(struct nm_mover *mover)
{
	if (mover->is_running)
		nm_doorbell_ring(&mover->doorbell);
	else if (!mover->is_forked && nm_mover_is_wanted())
		start(mover);
}

void nm_mover_stop(struct nm_mover *mover)
{
	struct nm_mover **place;

	pthread_mutex_lock(&mutex);
	for (place = &all; *place && *place != mover; place = &(*place)->next)
		;
	if (*place) {
		*place = mover->next;
		end(mover);
		pthread_join(mover->thread, NULL);
	}
	mover->is_running = false;
	pthread_mutex_unlock(&mutex);
}

void nm_mover_forget(struct nm_mover *mover)
{
	/* Only this thread is here, and another one may have held the mutex. */
	pthread_mutex_init(&mutex, NULL);
	all = NULL;
	mover->is_running = false;
	mover->is_forked = true;
}
