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

#include "base/fault.h"
#include "base/log.h"
#include "connect/session_private.h"
#include "shm/doorbell.h"

#define THREAD_STACK (256 * 1024)

static struct nm_sessions *sessions_of(struct nm_fork_watch *watch)
{
	return nm_container_of(watch, struct nm_sessions, fork_watch);
}

static void before_fork(struct nm_fork_watch *watch)
{
	pthread_mutex_lock(&sessions_of(watch)->lock);
}

static void after_fork_parent(struct nm_fork_watch *watch)
{
	pthread_mutex_unlock(&sessions_of(watch)->lock);
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void close_own_fds(struct nm_sessions *sessions)
{
	close_fd(&sessions->epoll);
	close_fd(&sessions->waker);
}

/* A forked child must not hold our sockets, or nobody would notice the death of the parent. */
static void after_fork_child(struct nm_fork_watch *watch)
{
	struct nm_sessions *sessions = sessions_of(watch);
	struct nm_handshake *handshake;

	for (handshake = sessions->handshakes; handshake; handshake = handshake->next)
		close_fd(&handshake->fd);
	close_own_fds(sessions);
	sessions->wire->ops->forget(sessions);
	sessions->cma.pad = NULL; /* is not here, and something else may be */
	pthread_mutex_unlock(&sessions->lock);
}

/* Words about me, for the other side's logs. */
static void describe_self(struct nm_sessions *sessions)
{
	char host[64] = "?";
	struct stat st;

	gethostname(host, sizeof(host) - 1);
	snprintf(sessions->label.text, sizeof(sessions->label.text), "%s, pid %d", host,
		 (int)getpid());
	if (stat("/proc/self/ns/pid", &st) == 0) {
		sessions->pid_ns_device = st.st_dev;
		sessions->pid_ns_inode = st.st_ino;
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

static int init_tables(struct nm_sessions *sessions)
{
	uint32_t nr_lanes = sessions->config.window->geometry.nr_lanes;

	sessions->stream_starts = calloc(nr_lanes, sizeof(*sessions->stream_starts));
	if (!sessions->stream_starts)
		return -ENOMEM;
	return init_lanes(&sessions->writer_lanes, nr_lanes) ||
			       init_lanes(&sessions->reader_lanes, nr_lanes) ?
		       -ENOMEM :
		       0;
}

static void woken(struct nm_sessions *sessions, struct nm_watch *watch)
{
	uint64_t count;

	(void)watch;
	while (read(sessions->waker, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

static int open_descriptors(struct nm_sessions *sessions)
{
	int err;

	sessions->epoll = epoll_create1(EPOLL_CLOEXEC);
	sessions->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (sessions->epoll < 0 || sessions->waker < 0)
		return -errno;
	sessions->waking.ready = woken;
	err = nm_sessions_watch(sessions, sessions->waker, &sessions->waking);
	return err;
}

static int start_thread(struct nm_sessions *sessions, struct nm_reason *ret_reason)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	sigfillset(&all);
	/* A blocked one ends the program; this one is handled where a segment is cut off. */
	if (sessions->config.segment)
		sigdelset(&all, SIGBUS);
	/* The thread inherits the mask: the program's signals are not for it. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&sessions->thread, &attr, nm_sessions_serve, sessions);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (err) {
		nm_reason_set(ret_reason, "cannot start the service thread: %s", strerror(err));
		return -err;
	}
	pthread_setname_np(sessions->thread, "nm-meet");
	return 0;
}

static void free_sessions(struct nm_sessions *sessions)
{
	struct nm_handshake *handshake, *next_handshake;
	struct nm_neighbour *neighbour, *next_neighbour;

	for (handshake = sessions->handshakes; handshake; handshake = next_handshake) {
		next_handshake = handshake->next;
		close_fd(&handshake->fd);
		free(handshake);
	}
	for (neighbour = sessions->neighbours; neighbour; neighbour = next_neighbour) {
		next_neighbour = neighbour->next;
		nm_window_detach(&neighbour->window);
		free(neighbour);
	}
	if (sessions->wire)
		sessions->wire->ops->destroy(sessions);
	close_own_fds(sessions);
	nm_cma_place_fini(&sessions->cma);
	free(sessions->writer_lanes.free);
	free(sessions->reader_lanes.free);
	free(sessions->stream_starts);
	pthread_mutex_destroy(&sessions->lock);
	free(sessions);
}

int nm_sessions_create(const struct nm_sessions_config *config, struct nm_sessions **ret_sessions,
		       struct nm_reason *ret_reason)
{
	struct nm_sessions *sessions = calloc(1, sizeof(*sessions));
	int err;

	if (!sessions) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	sessions->config = *config;
	sessions->config.dir = NULL; /* only borrowed */
	sessions->epoll = sessions->waker = -1;
	sessions->creator = getpid();
	pthread_mutex_init(&sessions->lock, NULL);
	describe_self(sessions);
	/* A slot per lane and role. */
	nm_cma_place_init(&sessions->cma, config->cma && !config->segment,
			  2 * config->window->geometry.nr_lanes);
	if (config->segment) {
		nm_reason_set(&sessions->cma.why, "no kernel copies between machines; not tried");
		/* Another kernel's numbers mean nothing, and the first ones are alike in all. */
		sessions->pid_ns_inode = sessions->pid_ns_device = 0;
	}
	err = init_tables(sessions);
	if (!err)
		err = open_descriptors(sessions);
	if (err) {
		nm_reason_set(ret_reason, "cannot set up a meeting place: %s", strerror(-err));
		goto err_free;
	}
	err = config->segment ? nm_wire_vmseg_create(config, &sessions->wire, ret_reason) :
				nm_wire_socket_create(config, &sessions->wire, ret_reason);
	if (err)
		goto err_free;
	nm_window_set_state(config->window, NM_WINDOW_RUN);
	err = sessions->wire->ops->open(sessions, ret_reason);
	if (err)
		goto err_hide;
	NM_FAULT("meet-listening");
	sessions->fork_watch = (struct nm_fork_watch){
		.before = before_fork,
		.in_parent = after_fork_parent,
		.in_child = after_fork_child,
	};
	nm_fork_watch(&sessions->fork_watch);
	err = start_thread(sessions, ret_reason);
	if (err)
		goto err_leave;
	*ret_sessions = sessions;
	return 0;

err_leave:
	nm_fork_unwatch(&sessions->fork_watch);
err_hide:
	sessions->wire->ops->hide(sessions);
err_free:
	free_sessions(sessions);
	return err;
}

void nm_sessions_destroy(struct nm_sessions *sessions)
{
	struct nm_handshake *handshake;

	if (!sessions)
		return;
	if (sessions->creator != getpid()) {
		free_sessions(sessions);
		return;
	}
	sessions->wire->ops->hide(sessions);
	NM_FAULT("close-unlisted");
	/* Before any hangup, so that nobody takes the hangup for a death. */
	nm_window_set_state(sessions->config.window, NM_WINDOW_GONE);
	NM_FAULT("close-gone");
	pthread_mutex_lock(&sessions->lock);
	sessions->stopping = true;
	pthread_mutex_unlock(&sessions->lock);
	nm_sessions_wake(sessions);
	pthread_join(sessions->thread, NULL);
	nm_fork_unwatch(&sessions->fork_watch);
	NM_FAULT("close-farewell");
	for (handshake = sessions->handshakes; handshake; handshake = handshake->next)
		if (handshake->fd >= 0)
			nm_message_send_bye(handshake->fd, 0, "closed in order");
	free_sessions(sessions);
}

static void push(struct nm_sessions *sessions, struct nm_session_event *event)
{
	struct nm_session_event *first =
		atomic_load_explicit(&sessions->events, memory_order_relaxed);

	/*
	 * Partner: nm_sessions_take_events(). What the event speaks of is visible to who takes it.
	 */
	do {
		event->next = first;
	} while (!atomic_compare_exchange_weak_explicit(
		&sessions->events, &first, event, memory_order_release, memory_order_relaxed));
}

void nm_sessions_push_event(struct nm_sessions *sessions, struct nm_session_event *event)
{
	push(sessions, event);
	nm_doorbell_ring(&sessions->event_doorbell);
}

const nm_session_word *nm_sessions_event_word(const struct nm_sessions *sessions)
{
	return &sessions->events;
}

const _Atomic uint32_t *nm_sessions_event_bell(const struct nm_sessions *sessions)
{
	return &sessions->event_doorbell;
}

static struct nm_session_event *take_oldest_first(struct nm_sessions *sessions)
{
	struct nm_session_event *newest, *oldest = NULL, *next;

	/* Partner: nm_sessions_push_event(). */
	newest = atomic_exchange_explicit(&sessions->events, NULL, memory_order_acquire);
	for (; newest; newest = next) {
		next = newest->next;
		newest->next = oldest;
		oldest = newest;
	}
	return oldest;
}

struct nm_session *nm_sessions_next_event(struct nm_sessions *sessions,
					  enum nm_session_event_kind *ret_kind)
{
	struct nm_session_event *event;

	if (!sessions->taken)
		sessions->taken = take_oldest_first(sessions);
	event = sessions->taken;
	if (!event)
		return NULL;
	sessions->taken = event->next;
	*ret_kind = event->kind;
	return event->session;
}

static void forget_events(struct nm_session_event **list, const struct nm_session *session)
{
	while (*list)
		if ((*list)->session == session)
			*list = (*list)->next;
		else
			list = &(*list)->next;
}

void nm_sessions_leave(struct nm_sessions *sessions, struct nm_session *session, int err,
		       const struct nm_reason *why)
{
	struct nm_handshake *handshake = nm_container_of(session, struct nm_handshake, session);
	struct nm_session_event *events, *next;

	pthread_mutex_lock(&sessions->lock);
	if (why && handshake->fd >= 0)
		nm_message_send_bye(handshake->fd, err, why->text);
	nm_handshake_close(sessions, handshake);
	NM_FAULT("meet-leave");
	/* Under the lock nothing is pushed meanwhile, so the order stays. */
	events = take_oldest_first(sessions);
	forget_events(&events, session);
	forget_events(&sessions->taken, session);
	for (; events; events = next) {
		next = events->next;
		push(sessions, events);
	}
	pthread_mutex_unlock(&sessions->lock);
}

void nm_sessions_stream_ended(struct nm_sessions *sessions, uint32_t own_lane, uint64_t position)
{
	uint64_t slots = sessions->config.window->geometry.ring_slots;

	/* A lap further: a reader of the old stream must not take a slot of the next one. */
	pthread_mutex_lock(&sessions->lock);
	sessions->stream_starts[own_lane] = (uint32_t)(position + slots);
	pthread_mutex_unlock(&sessions->lock);
}
