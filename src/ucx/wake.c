/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wake-up by a descriptor. Messages in shared memory make no descriptor readable, so a thread sleeps
 * on the doorbells of all transports (shm/doorbell.h) and then writes to an eventfd.
 *
 *   UCX's thread                                    the waker
 *   event_arm(): sleep() of all transports;
 *     something is there: BUSY
 *     else the doorbells, as seen ---- task ------> sleeps until one changes, or the time is over
 *   sleeps on the descriptor        <-- eventfd --  writes once
 *   progress(), the first one: wake()
 *
 * The doorbells are compared with what sleep() read, so a ring in between is not lost. A ring that a
 * sender does not make, as it sees no sleeper yet, costs NEARMETAL_SLEEP_MS (transport.h, sleep()).
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/params.h"
#include "base/thread.h"
#include "ucx/face.h"

/* Sleeps where messages come without a ring, from the first to the longest in a row. */
#define MOMENT_NS (50 * NM_NS_PER_US)
#define LONGEST_MOMENT_NS NM_NS_PER_MS
/* Nothing can come but a source, which the service thread of this process reports exactly. */
#define LONE_NS NM_NS_PER_S

struct nm_ucx_wake {
	int fd;
	uint64_t moment_ns; /* of the next sleep where messages come without a ring */
	struct nm_fork_watch fork;
	bool is_child; /* the thread is the parent's */
	pthread_t thread;
	_Atomic uint32_t control; /* doorbell: there is another task, or it is to end */
	pthread_mutex_t lock;	  /* the rest */
	pthread_cond_t given;
	bool is_ending, has_task, is_asleep;
	struct nm_doorbells doorbells; /* the task */
	uint64_t sleep_ns;
};

static void *serve(void *arg)
{
	struct nm_ucx_wake *wake = arg;
	struct nm_doorbells doorbells;
	uint64_t sleep_ns;
	uint32_t seen;

	pthread_mutex_lock(&wake->lock);
	while (!wake->is_ending) {
		if (!wake->has_task) {
			pthread_cond_wait(&wake->given, &wake->lock);
			continue;
		}
		wake->has_task = false;
		wake->is_asleep = true;
		doorbells = wake->doorbells;
		sleep_ns = wake->sleep_ns;
		seen = atomic_load_explicit(&wake->control, memory_order_relaxed);
		pthread_mutex_unlock(&wake->lock);
		nm_doorbells_wait(&doorbells, sleep_ns);
		pthread_mutex_lock(&wake->lock);
		wake->is_asleep = false;
		/* What the old task heard, arming the new one saw. */
		if (atomic_load_explicit(&wake->control, memory_order_relaxed) == seen)
			(void)eventfd_write(wake->fd, 1);
	}
	pthread_mutex_unlock(&wake->lock);
	return NULL;
}

static void after_fork_child(struct nm_fork_watch *watch)
{
	nm_container_of(watch, struct nm_ucx_wake, fork)->is_child = true;
}

static struct nm_ucx_wake *create(void)
{
	struct nm_ucx_wake *wake = calloc(1, sizeof(*wake));
	int err;

	if (!wake)
		return NULL;
	wake->moment_ns = MOMENT_NS;
	wake->fork.in_child = after_fork_child;
	pthread_mutex_init(&wake->lock, NULL);
	pthread_cond_init(&wake->given, NULL);
	wake->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	err = wake->fd < 0 ? -errno :
			     nm_thread_start(&wake->thread, "nm-waker", false, serve, wake);
	if (err) {
		nm_error("ucx: no wake-up by a descriptor: %s", strerror(-err));
		if (wake->fd >= 0)
			close(wake->fd);
		free(wake);
		return NULL;
	}
	nm_fork_watch(&wake->fork);
	return wake;
}

ucs_status_t nm_ucx_iface_event_fd_get(uct_iface_h base, int *ret_fd)
{
	struct nm_ucx_iface *iface = nm_ucx_iface_of(base);

	if (!iface->wake)
		iface->wake = create();
	if (!iface->wake)
		return UCS_ERR_IO_ERROR;
	*ret_fd = iface->wake->fd;
	return UCS_OK;
}

/* Let go of a task under way. With the lock. */
static void ring_control(struct nm_ucx_wake *wake)
{
	if (wake->is_asleep)
		nm_doorbell_ring(&wake->control);
	pthread_cond_signal(&wake->given);
}

void nm_ucx_wake_free(struct nm_ucx_iface *iface)
{
	struct nm_ucx_wake *wake = iface->wake;

	if (!wake)
		return;
	if (!wake->is_child) {
		nm_fork_unwatch(&wake->fork);
		pthread_mutex_lock(&wake->lock);
		wake->is_ending = true;
		ring_control(wake);
		pthread_mutex_unlock(&wake->lock);
		pthread_join(wake->thread, NULL);
	}
	close(wake->fd);
	free(wake);
	iface->wake = NULL;
}

/* All transports ring from now on. False: some do not. */
static bool fall_asleep(struct nm_ucx_iface *iface, struct nm_doorbells *doorbells)
{
	bool is_heard = nm_params()->sleep_ms && !nm_doorbells_are_refused();

	for (unsigned int i = 0; i < iface->nr_transports; i++) {
		struct nm_transport *t = iface->transports[i];

		is_heard &= t->ops->sleep(t, doorbells);
	}
	iface->is_armed = true;
	return is_heard;
}

NM_COLD void nm_ucx_wake_up(struct nm_ucx_iface *iface, bool has_come)
{
	iface->is_armed = false;
	for (unsigned int i = 0; i < iface->nr_transports; i++)
		iface->transports[i]->ops->wake(iface->transports[i]);
	if (has_come && iface->wake)
		iface->wake->moment_ns = MOMENT_NS;
}

/* How long the waker sleeps at most. */
static uint64_t sleep_time(const struct nm_ucx_iface *iface, bool is_heard)
{
	struct nm_ucx_wake *wake = iface->wake;
	uint64_t moment_ns = wake->moment_ns;

	if (is_heard)
		return iface->has_sources ? nm_params()->sleep_ms * NM_NS_PER_MS : LONE_NS;
	wake->moment_ns = nm_min_u64(2 * moment_ns, LONGEST_MOMENT_NS);
	return moment_ns;
}

ucs_status_t nm_ucx_iface_event_arm(uct_iface_h base, unsigned int events)
{
	struct nm_ucx_iface *iface = nm_ucx_iface_of(base);
	struct nm_ucx_wake *wake = iface->wake;
	eventfd_t raised;
	bool is_heard;

	(void)events;
	if (!wake || wake->is_child)
		return UCS_ERR_INVALID_PARAM;
	/* Only progress() ends these. What was raised before was perhaps not looked at. */
	if (iface->in_progress || nm_ucx_has_work(iface) || !eventfd_read(wake->fd, &raised))
		return UCS_ERR_BUSY;
	pthread_mutex_lock(&wake->lock);
	/* An old task that ends meanwhile raises nothing for this one to miss: see serve(). */
	ring_control(wake);
	wake->has_task = false;
	wake->doorbells.nr = 0;
	wake->doorbells.rung = false;
	nm_doorbells_add(&wake->doorbells, &wake->control);
	is_heard = fall_asleep(iface, &wake->doorbells);
	/* Then the waker just naps. */
	if (!is_heard)
		wake->doorbells.nr = 0;
	wake->sleep_ns = sleep_time(iface, is_heard);
	wake->has_task = !wake->doorbells.rung;
	pthread_mutex_unlock(&wake->lock);
	if (!wake->doorbells.rung)
		return UCS_OK;
	nm_ucx_wake_up(iface, true);
	return UCS_ERR_BUSY;
}
