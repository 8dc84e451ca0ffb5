/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/session.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "connect/session_private.h"
#include "shm/doorbell.h"

const uint32_t nm_session_transitions[NM_NR_SESSION_STATES] = {
	[NM_SESSION_NEW] = NM_STATE(NM_SESSION_UP) | NM_STATE(NM_SESSION_DOWN),
	[NM_SESSION_UP] = NM_STATE(NM_SESSION_CLOSING) | NM_STATE(NM_SESSION_CAST_OUT) |
			  NM_STATE(NM_SESSION_DOWN),
	[NM_SESSION_CLOSING] = NM_STATE(NM_SESSION_CAST_OUT) | NM_STATE(NM_SESSION_DOWN),
	[NM_SESSION_CAST_OUT] = NM_STATE(NM_SESSION_DOWN),
};

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

static void close_own_fds(struct nm_sessions *sessions)
{
	nm_close_fd(&sessions->epoll);
	nm_close_fd(&sessions->waker);
}

/* A forked child must not hold these sockets, or no peer would notice the parent's death. */
static void after_fork_child(struct nm_fork_watch *watch)
{
	struct nm_sessions *sessions = sessions_of(watch);
	struct nm_handshake *handshake;

	for (handshake = sessions->handshakes; handshake; handshake = handshake->next)
		nm_close_fd(&handshake->fd);
	close_own_fds(sessions);
	nm_own_heap_close(&sessions->heap);
	if (sessions->wire)
		sessions->wire->ops->forget(sessions);
	sessions->cma.pad = NULL; /* the child does not have it, and may have other data there */
	pthread_mutex_unlock(&sessions->lock);
}

/* The text about this endpoint in the other side's logs. */
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

int nm_sessions_init_lanes(struct nm_sessions *sessions)
{
	uint32_t nr_lanes = sessions->config.window->geometry.nr_lanes;

	sessions->stream_starts = calloc(nr_lanes, sizeof(*sessions->stream_starts));
	if (!sessions->stream_starts)
		return -ENOMEM;
	return init_lanes(&sessions->lanes[NM_ROLE_WRITER], nr_lanes) ?:
		       init_lanes(&sessions->lanes[NM_ROLE_READER], nr_lanes);
}

void nm_sessions_free_lanes(struct nm_sessions *sessions)
{
	free(sessions->lanes[NM_ROLE_WRITER].free);
	free(sessions->lanes[NM_ROLE_READER].free);
	free(sessions->stream_starts);
	memset(sessions->lanes, 0, sizeof(sessions->lanes));
	sessions->stream_starts = NULL;
}

static int init_tables(struct nm_sessions *sessions)
{
	uint32_t nr_lanes = sessions->config.window->geometry.nr_lanes;

	/* Enough buckets for one peer per lane, so most buckets hold one session. */
	for (sessions->nr_buckets = 1; sessions->nr_buckets < 2 * nr_lanes;)
		sessions->nr_buckets *= 2;
	sessions->buckets = calloc(sessions->nr_buckets, sizeof(*sessions->buckets));
	return sessions->buckets ? nm_sessions_init_lanes(sessions) : -ENOMEM;
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
	sessions->epoll = epoll_create1(EPOLL_CLOEXEC);
	sessions->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (sessions->epoll < 0 || sessions->waker < 0)
		return -errno;
	sessions->waking.ready = woken;
	return nm_sessions_watch(sessions, sessions->waker, &sessions->waking);
}

/* Not for peers in other machines: they cannot map it. */
static void find_heap(struct nm_sessions *sessions)
{
	struct nm_reason why;
	int err;

	sessions->heap.fd = -1;
	if (sessions->config.segment)
		return;
	err = nm_own_heap_open(&sessions->heap, &why);
	if (err && err != -ENOENT)
		nm_log_once(NM_LOG_WARN, "large messages of this process are copied twice: %s",
			    why.text);
}

static int start_thread(struct nm_sessions *sessions, struct nm_reason *ret_reason)
{
	int err = nm_thread_start(&sessions->thread, "nm-sessions", sessions->config.segment,
				  nm_sessions_serve, sessions);

	if (err)
		nm_reason_set(ret_reason, "cannot start the service thread: %s", strerror(-err));
	return err;
}

static void free_sessions(struct nm_sessions *sessions)
{
	struct nm_handshake *handshake, *next_handshake;
	struct nm_session *session, *next_session;

	for (handshake = sessions->handshakes; handshake; handshake = next_handshake) {
		next_handshake = handshake->next;
		nm_close_fd(&handshake->fd);
		free(handshake);
	}
	for (uint32_t i = 0; sessions->buckets && i < sessions->nr_buckets; i++)
		for (session = sessions->buckets[i]; session; session = next_session) {
			next_session = session->next_in_bucket;
			nm_foreign_heap_detach(&session->heap);
			nm_window_detach(&session->window);
			free(session);
		}
	if (sessions->wire)
		sessions->wire->ops->destroy(sessions);
	close_own_fds(sessions);
	nm_cma_place_fini(&sessions->cma);
	nm_own_heap_close(&sessions->heap);
	nm_sessions_free_lanes(sessions);
	free(sessions->buckets);
	pthread_mutex_destroy(&sessions->lock);
	free(sessions);
}

int nm_sessions_open(struct nm_sessions *sessions, const struct nm_sessions_config *config,
		     struct nm_reason *ret_reason)
{
	int err;

	err = config->segment ? nm_wire_vmseg_create(config, &sessions->wire, ret_reason) :
				nm_wire_socket_create(config, &sessions->config.who,
						      &sessions->wire, ret_reason);
	if (err)
		return err;
	nm_window_set_state(config->window, NM_WINDOW_RUN);
	err = sessions->wire->ops->open(sessions, ret_reason);
	if (!err) {
		NM_FAULT("sessions-listening");
		nm_fork_watch(&sessions->fork_watch);
		err = start_thread(sessions, ret_reason);
		if (err)
			nm_fork_unwatch(&sessions->fork_watch);
	}
	if (err) {
		sessions->wire->ops->hide(sessions);
		sessions->wire->ops->destroy(sessions);
		sessions->wire = NULL;
	}
	return err;
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
	/* A multiple of cache lines, which aligned_alloc() requires. */
	sessions->config.session_size =
		(nm_max_u64(config->session_size, sizeof(struct nm_session)) + NM_CACHE_LINE - 1) /
		NM_CACHE_LINE * NM_CACHE_LINE;
	nm_list_init(&sessions->events);
	nm_list_init(&sessions->awaited);
	sessions->epoll = sessions->waker = -1;
	sessions->creator = getpid();
	pthread_mutex_init(&sessions->lock, NULL);
	describe_self(sessions);
	/* One slot per lane and role. */
	nm_cma_place_init(&sessions->cma, config->cma && !config->segment,
			  2 * config->window->geometry.nr_lanes);
	if (config->segment) {
		nm_reason_set(&sessions->cma.why, "the kernel cannot copy between machines");
		/* Another kernel's numbers mean nothing: the first are the same in all. */
		sessions->pid_ns_inode = sessions->pid_ns_device = 0;
	}
	find_heap(sessions);
	err = init_tables(sessions);
	if (!err)
		err = open_descriptors(sessions);
	if (err) {
		nm_reason_set(ret_reason, "cannot set up the table of sessions: %s",
			      strerror(-err));
		goto err_free;
	}
	sessions->fork_watch = (struct nm_fork_watch){
		.before = before_fork,
		.in_parent = after_fork_parent,
		.in_child = after_fork_child,
	};
	err = nm_sessions_open(sessions, config, ret_reason);
	if (err)
		goto err_free;
	*ret_sessions = sessions;
	return 0;

err_free:
	free_sessions(sessions);
	return err;
}

void nm_sessions_destroy(struct nm_sessions *sessions)
{
	struct nm_handshake *handshake;

	if (!sessions)
		return;
	/* Paused: all that others see was given up. */
	if (sessions->creator != getpid() || !sessions->wire) {
		free_sessions(sessions);
		return;
	}
	sessions->wire->ops->hide(sessions);
	NM_FAULT("close-unlisted");
	/* Before any hangup, so that no peer mistakes the hangup for a death. */
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
			nm_message_send_step(handshake->fd, NM_MESSAGE_BYE, 0, "closed normally");
	/* A thread that sleeps on this word looks for other ones. */
	nm_doorbell_ring(&sessions->event_doorbell);
	free_sessions(sessions);
}

/* The place of WHO's session in the table, also if there is none. */
static struct nm_session **place_of(const struct nm_sessions *sessions,
				    const struct nm_identity *who)
{
	struct nm_session **place =
		&sessions->buckets[nm_identity_hash(who) >> 32 & (sessions->nr_buckets - 1)];

	while (*place && !nm_identity_equal(&(*place)->who, who))
		place = &(*place)->next_in_bucket;
	return place;
}

struct nm_session *nm_session_get(struct nm_sessions *sessions, const struct nm_identity *who,
				  bool make)
{
	struct nm_session **place = place_of(sessions, who), *session = *place;

	if (session || !make)
		return session;
	session = aligned_alloc(NM_CACHE_LINE, sessions->config.session_size);
	if (!session)
		return NULL;
	memset(session, 0, sessions->config.session_size);
	session->who = *who;
	nm_list_init(&session->event_node);
	nm_list_init(&session->back_node);
	*place = session;
	sessions->nr_sessions++;
	return session;
}

void nm_session_put(struct nm_sessions *sessions, struct nm_session *session)
{
	if (session->in.handshake || session->out.handshake || session->nr_pending)
		return;
	nm_foreign_heap_detach(&session->heap);
	nm_window_detach(&session->window);
	/* What was asked concerned its directions. */
	atomic_store_explicit(&session->is_asked, false, memory_order_relaxed);
	if (session->is_kept ||
	    __atomic_load_n(&session->state, __ATOMIC_RELAXED) != NM_SESSION_NEW)
		return;
	*place_of(sessions, &session->who) = session->next_in_bucket;
	sessions->nr_sessions--;
	free(session);
}

struct nm_session *nm_sessions_find(struct nm_sessions *sessions, const struct nm_identity *who)
{
	struct nm_session *session;

	pthread_mutex_lock(&sessions->lock);
	session = nm_session_get(sessions, who, false);
	pthread_mutex_unlock(&sessions->lock);
	return session;
}

const struct nm_identity *nm_sessions_who(const struct nm_sessions *sessions)
{
	return &sessions->config.who;
}

struct nm_session *nm_sessions_first(const struct nm_sessions *sessions)
{
	return sessions->first;
}

void nm_session_begin(struct nm_sessions *sessions, struct nm_session *session,
		      enum nm_session_state state)
{
	if (session->state != NM_SESSION_NEW)
		return;
	nm_session_set_state(session, state);
	session->next = sessions->first;
	sessions->first = session;
}

void nm_sessions_forbid(struct nm_sessions *sessions, const struct nm_identity *who,
			const struct nm_reason *why)
{
	struct nm_session *session;

	pthread_mutex_lock(&sessions->lock);
	session = nm_session_get(sessions, who, true);
	if (session && session->state == NM_SESSION_NEW) {
		session->why = *why;
		nm_session_begin(sessions, session, NM_SESSION_DOWN);
		nm_direction_close(sessions, &session->out, -ECONNREFUSED, why);
	}
	pthread_mutex_unlock(&sessions->lock);
}

void nm_session_begin_end(struct nm_session *session, enum nm_session_state state, int err,
			  const struct nm_reason *why)
{
	session->err = err;
	session->why = *why;
	nm_session_set_state(session, state);
}

void nm_session_push_event(struct nm_sessions *sessions, struct nm_session *session,
			   enum nm_session_event event)
{
	if (!session->events)
		nm_list_append(&sessions->events, &session->event_node);
	session->events |= event;
	atomic_store_explicit(&sessions->has_events, 1, memory_order_relaxed);
	nm_doorbell_ring(&sessions->event_doorbell);
}

const _Atomic uint32_t *nm_sessions_event_word(const struct nm_sessions *sessions)
{
	return &sessions->has_events;
}

const _Atomic uint32_t *nm_sessions_event_doorbell(const struct nm_sessions *sessions)
{
	return &sessions->event_doorbell;
}

/* Remove EVENTS from SESSION. */
static void drop_events(struct nm_sessions *sessions, struct nm_session *session,
			unsigned int events)
{
	session->events &= ~events;
	if (!session->events)
		nm_list_remove(&session->event_node);
	if (nm_list_empty(&sessions->events))
		atomic_store_explicit(&sessions->has_events, 0, memory_order_relaxed);
}

void nm_sessions_refuse_source(struct nm_sessions *sessions, struct nm_session *session)
{
	const struct nm_reason why = {"it does not take messages from this endpoint"};

	pthread_mutex_lock(&sessions->lock);
	nm_direction_close(sessions, &session->in, -ECONNREFUSED, &why);
	pthread_mutex_unlock(&sessions->lock);
}

static bool is_lost(const struct nm_direction *direction)
{
	return direction->handshake && direction->handshake->state == NM_HANDSHAKE_LOST;
}

/* The handshake that shows how the peer ended SESSION. NULL: it did not. */
static const struct nm_handshake *find_lost(struct nm_session *session)
{
	session->out.is_lost |= is_lost(&session->out);
	if (session->out.is_lost && !session->out.is_over)
		return session->out.handshake;
	return is_lost(&session->in) ? session->in.handshake : NULL;
}

static enum nm_session_event first_of(unsigned int events)
{
	if (events & NM_SESSION_SOURCE)
		return NM_SESSION_SOURCE;
	if (events & NM_SESSION_ASKED)
		return NM_SESSION_ASKED;
	return events & NM_SESSION_LOST ? NM_SESSION_LOST : NM_SESSION_BACK;
}

struct nm_session *nm_sessions_next_event(struct nm_sessions *sessions,
					  enum nm_session_event *ret_event)
{
	struct nm_session *session = NULL, *first;
	const struct nm_handshake *lost;

	pthread_mutex_lock(&sessions->lock);
	while (!session && !nm_list_empty(&sessions->events)) {
		first = nm_list_first(&sessions->events, struct nm_session, event_node);
		*ret_event = first_of(first->events);
		drop_events(sessions, first, *ret_event);
		lost = find_lost(first);
		if (*ret_event == NM_SESSION_SOURCE) {
			session = first;
			nm_session_begin(sessions, session, NM_SESSION_UP);
		} else if (*ret_event == NM_SESSION_ASKED) {
			session = first->state == NM_SESSION_UP ? first : NULL;
		} else if (*ret_event == NM_SESSION_BACK) {
			session = first->state <= NM_SESSION_UP && !first->out.handshake ? first :
											   NULL;
		} else if (first->state == NM_SESSION_UP && lost && lost->is_absent) {
			session = first;
			session->err = lost->err;
			session->why = lost->why;
			*ret_event = NM_SESSION_ABSENT;
		} else if (first->state == NM_SESSION_UP && lost) {
			session = first;
			nm_session_begin_end(session, NM_SESSION_CLOSING, lost->err, &lost->why);
		}
	}
	pthread_mutex_unlock(&sessions->lock);
	return session;
}

void nm_sessions_leave(struct nm_sessions *sessions, struct nm_session *session, int err,
		       const struct nm_reason *why)
{
	pthread_mutex_lock(&sessions->lock);
	nm_session_set_state(session, NM_SESSION_DOWN);
	nm_direction_close(sessions, &session->in, err, why);
	nm_direction_close(sessions, &session->out, err, why);
	drop_events(sessions, session, UINT_MAX);
	nm_list_remove(&session->back_node);
	NM_FAULT("session-left");
	pthread_mutex_unlock(&sessions->lock);
}

void nm_sessions_end(struct nm_sessions *sessions, struct nm_session *session,
		     struct nm_direction *direction)
{
	pthread_mutex_lock(&sessions->lock);
	NM_FAULT("direction-end-before");
	nm_direction_close(sessions, direction, 0, NULL);
	NM_FAULT("direction-end-after");
	if (direction == &session->out)
		nm_session_await(sessions, session, session->part, 0);
	pthread_mutex_unlock(&sessions->lock);
}

void nm_session_await(struct nm_sessions *sessions, struct nm_session *session, uint32_t part,
		      uint64_t from_ns)
{
	if (!sessions->config.segment)
		return;
	atomic_store_explicit(&session->is_kept, true, memory_order_relaxed);
	session->part = part;
	session->back_ns = from_ns;
	if (nm_list_empty(&session->back_node))
		nm_list_append(&sessions->awaited, &session->back_node);
}

void nm_sessions_remind(struct nm_sessions *sessions, struct nm_session *session)
{
	pthread_mutex_lock(&sessions->lock);
	nm_session_push_event(sessions, session,
			      atomic_load_explicit(&session->is_asked, memory_order_relaxed) ?
				      NM_SESSION_ASKED :
				      NM_SESSION_LOST);
	pthread_mutex_unlock(&sessions->lock);
}
