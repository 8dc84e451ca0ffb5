/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/session.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/doorbell.h"
#include "base/fault.h"
#include "base/log.h"
#include "connect/session_private.h"

#define THREAD_STACK (256 * 1024)

static struct nm_meet *meet_of(struct nm_fork_watch *watch)
{
	return nm_container_of(watch, struct nm_meet, fork_watch);
}

static void before_fork(struct nm_fork_watch *watch)
{
	pthread_mutex_lock(&meet_of(watch)->lock);
}

static void after_fork_parent(struct nm_fork_watch *watch)
{
	pthread_mutex_unlock(&meet_of(watch)->lock);
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void close_own_fds(struct nm_meet *meet)
{
	close_fd(&meet->epoll);
	close_fd(&meet->waker);
}

/* A forked child must not hold our sockets, or nobody would notice the death of the parent. */
static void after_fork_child(struct nm_fork_watch *watch)
{
	struct nm_meet *meet = meet_of(watch);
	struct nm_meeting *meeting;

	for (meeting = meet->meetings; meeting; meeting = meeting->next)
		close_fd(&meeting->fd);
	close_own_fds(meet);
	meet->wire->ops->forget(meet);
	meet->cma.pad = NULL; /* is not here, and something else may be */
	pthread_mutex_unlock(&meet->lock);
}

/* Words about me, for the other side's logs. */
static void describe_self(struct nm_meet *meet)
{
	char host[64] = "?";
	struct stat st;

	gethostname(host, sizeof(host) - 1);
	snprintf(meet->label.text, sizeof(meet->label.text), "%s, pid %d", host, (int)getpid());
	if (stat("/proc/self/ns/pid", &st) == 0) {
		meet->pid_ns_device = st.st_dev;
		meet->pid_ns_inode = st.st_ino;
	}
}

static int init_lanes(struct nm_lane_list *list, uint32_t nr_lanes)
{
	uint32_t i;

	list->free = calloc(nr_lanes, sizeof(*list->free));
	if (!list->free)
		return -ENOMEM;
	for (i = 0; i < nr_lanes; i++)
		list->free[i] = i;
	list->nr_free = nr_lanes;
	return 0;
}

static int init_tables(struct nm_meet *meet)
{
	uint32_t nr_lanes = meet->config.window->geometry.nr_lanes;

	meet->stream_starts = calloc(nr_lanes, sizeof(*meet->stream_starts));
	if (!meet->stream_starts)
		return -ENOMEM;
	return init_lanes(&meet->writer_lanes, nr_lanes) ||
			       init_lanes(&meet->reader_lanes, nr_lanes) ?
		       -ENOMEM :
		       0;
}

static void woken(struct nm_meet *meet, struct nm_watch *watch)
{
	uint64_t count;

	(void)watch;
	while (read(meet->waker, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

static int open_descriptors(struct nm_meet *meet)
{
	int err;

	meet->epoll = epoll_create1(EPOLL_CLOEXEC);
	meet->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (meet->epoll < 0 || meet->waker < 0)
		return -errno;
	meet->waking.ready = woken;
	err = nm_meet_watch(meet, meet->waker, &meet->waking);
	return err;
}

static int start_thread(struct nm_meet *meet, struct nm_reason *ret_reason)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	sigfillset(&all);
	/* A blocked one ends the program; this one is handled where a segment is cut off. */
	if (meet->config.segment)
		sigdelset(&all, SIGBUS);
	/* The thread inherits the mask: the program's signals are not for it. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&meet->thread, &attr, nm_meet_serve, meet);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (err) {
		nm_reason_set(ret_reason, "cannot start the service thread: %s", strerror(err));
		return -err;
	}
	pthread_setname_np(meet->thread, "nm-meet");
	return 0;
}

static void free_meet(struct nm_meet *meet)
{
	struct nm_meeting *meeting, *next_meeting;
	struct nm_neighbour *neighbour, *next_neighbour;

	for (meeting = meet->meetings; meeting; meeting = next_meeting) {
		next_meeting = meeting->next;
		close_fd(&meeting->fd);
		free(meeting);
	}
	for (neighbour = meet->neighbours; neighbour; neighbour = next_neighbour) {
		next_neighbour = neighbour->next;
		nm_window_detach(&neighbour->window);
		free(neighbour);
	}
	if (meet->wire)
		meet->wire->ops->destroy(meet);
	close_own_fds(meet);
	nm_cma_place_fini(&meet->cma);
	free(meet->writer_lanes.free);
	free(meet->reader_lanes.free);
	free(meet->stream_starts);
	pthread_mutex_destroy(&meet->lock);
	free(meet);
}

int nm_meet_create(const struct nm_meet_config *config, struct nm_meet **ret_meet,
		   struct nm_reason *ret_reason)
{
	struct nm_meet *meet = calloc(1, sizeof(*meet));
	int err;

	if (!meet) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	meet->config = *config;
	meet->config.dir = NULL; /* only borrowed */
	meet->epoll = meet->waker = -1;
	meet->creator = getpid();
	pthread_mutex_init(&meet->lock, NULL);
	describe_self(meet);
	/* A slot per lane and role. */
	nm_cma_place_init(&meet->cma, config->cma && !config->segment,
			  2 * config->window->geometry.nr_lanes);
	if (config->segment) {
		nm_reason_set(&meet->cma.why, "no kernel copies between machines; not tried");
		/* Another kernel's numbers mean nothing, and the first ones are alike in all. */
		meet->pid_ns_inode = meet->pid_ns_device = 0;
	}
	err = init_tables(meet);
	if (!err)
		err = open_descriptors(meet);
	if (err) {
		nm_reason_set(ret_reason, "cannot set up a meeting place: %s", strerror(-err));
		goto err_free;
	}
	err = config->segment ? nm_wire_segment_create(config, &meet->wire, ret_reason) :
				nm_wire_dir_create(config, &meet->wire, ret_reason);
	if (err)
		goto err_free;
	nm_window_set_state(config->window, NM_WINDOW_RUN);
	err = meet->wire->ops->open(meet, ret_reason);
	if (err)
		goto err_hide;
	NM_FAULT("meet-listening");
	meet->fork_watch = (struct nm_fork_watch){
		.before = before_fork,
		.in_parent = after_fork_parent,
		.in_child = after_fork_child,
	};
	nm_fork_watch(&meet->fork_watch);
	err = start_thread(meet, ret_reason);
	if (err)
		goto err_leave;
	*ret_meet = meet;
	return 0;

err_leave:
	nm_fork_unwatch(&meet->fork_watch);
err_hide:
	meet->wire->ops->hide(meet);
err_free:
	free_meet(meet);
	return err;
}

void nm_meet_destroy(struct nm_meet *meet)
{
	struct nm_meeting *meeting;

	if (!meet)
		return;
	if (meet->creator != getpid()) {
		free_meet(meet);
		return;
	}
	meet->wire->ops->hide(meet);
	NM_FAULT("close-unlisted");
	/* Before any hangup, so that nobody takes the hangup for a death. */
	nm_window_set_state(meet->config.window, NM_WINDOW_GONE);
	NM_FAULT("close-gone");
	pthread_mutex_lock(&meet->lock);
	meet->stopping = true;
	pthread_mutex_unlock(&meet->lock);
	nm_meet_wake(meet);
	pthread_join(meet->thread, NULL);
	nm_fork_unwatch(&meet->fork_watch);
	NM_FAULT("close-farewell");
	for (meeting = meet->meetings; meeting; meeting = meeting->next)
		if (meeting->fd >= 0)
			nm_message_send_bye(meeting->fd, 0, "closed in order");
	free_meet(meet);
}

static void push(struct nm_meet *meet, struct nm_meet_event *event)
{
	struct nm_meet_event *first = atomic_load_explicit(&meet->events, memory_order_relaxed);

	/* Partner: nm_meet_take_events(). What the event speaks of is visible to who takes it. */
	do {
		event->next = first;
	} while (!atomic_compare_exchange_weak_explicit(
		&meet->events, &first, event, memory_order_release, memory_order_relaxed));
}

void nm_meet_push_event(struct nm_meet *meet, struct nm_meet_event *event)
{
	push(meet, event);
	nm_bell_ring(&meet->event_bell);
}

const nm_meet_word *nm_meet_event_word(const struct nm_meet *meet)
{
	return &meet->events;
}

const _Atomic uint32_t *nm_meet_event_bell(const struct nm_meet *meet)
{
	return &meet->event_bell;
}

static struct nm_meet_event *take_oldest_first(struct nm_meet *meet)
{
	struct nm_meet_event *newest, *oldest = NULL, *next;

	/* Partner: nm_meet_push_event(). */
	newest = atomic_exchange_explicit(&meet->events, NULL, memory_order_acquire);
	for (; newest; newest = next) {
		next = newest->next;
		newest->next = oldest;
		oldest = newest;
	}
	return oldest;
}

struct nm_encounter *nm_meet_next_event(struct nm_meet *meet, enum nm_meet_event_kind *ret_kind)
{
	struct nm_meet_event *event;

	if (!meet->taken)
		meet->taken = take_oldest_first(meet);
	event = meet->taken;
	if (!event)
		return NULL;
	meet->taken = event->next;
	*ret_kind = event->kind;
	return event->encounter;
}

static void forget_events(struct nm_meet_event **list, const struct nm_encounter *encounter)
{
	while (*list)
		if ((*list)->encounter == encounter)
			*list = (*list)->next;
		else
			list = &(*list)->next;
}

void nm_meet_leave(struct nm_meet *meet, struct nm_encounter *encounter, int err,
		   const struct nm_reason *why)
{
	struct nm_meeting *meeting = nm_container_of(encounter, struct nm_meeting, encounter);
	struct nm_meet_event *events, *next;

	pthread_mutex_lock(&meet->lock);
	if (why && meeting->fd >= 0)
		nm_message_send_bye(meeting->fd, err, why->text);
	nm_meeting_close(meet, meeting);
	NM_FAULT("meet-leave");
	/* Under the lock nothing is pushed meanwhile, so the order stays. */
	events = take_oldest_first(meet);
	forget_events(&events, encounter);
	forget_events(&meet->taken, encounter);
	for (; events; events = next) {
		next = events->next;
		push(meet, events);
	}
	pthread_mutex_unlock(&meet->lock);
}

void nm_meet_stream_ended(struct nm_meet *meet, uint32_t own_lane, uint64_t position)
{
	uint64_t slots = meet->config.window->geometry.box_slots;

	/* A lap further: a reader of the old stream must not take a slot of the next one. */
	pthread_mutex_lock(&meet->lock);
	meet->stream_starts[own_lane] = (uint32_t)(position + slots);
	pthread_mutex_unlock(&meet->lock);
}
