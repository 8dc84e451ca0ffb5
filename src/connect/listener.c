/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread of a table of sessions: answers callers, notices hangups. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "connect/session_private.h"
#include "shm/ring.h"

#define EVENTS_PER_WAIT 32
/* Callers without a HELLO that are held at most, and how long. */
#define MAX_STRANGERS 64
#define STRANGER_MS 1000
/* Likewise, as a share of the descriptors that this process may have: an eighth. */
#define STRANGER_SHARE 8
/* A caller whose handshake takes longer may lose its place to another caller. */
#define YOUNG_MS 100
/* After this time under the lock the endpoint's thread gets its turn: a lock is not fair. */
#define HOLD_NS (10 * NM_NS_PER_MS)
#define REST_NS NM_NS_PER_MS

/* Refuse a caller, with the reason. */
static NM_COLD void refuse(struct nm_sessions *sessions, struct nm_handshake *handshake, int err,
			   const struct nm_reason *why)
{
	nm_info("refused a caller: %s", why->text);
	nm_handshake_farewell(sessions, handshake, err, why->text);
	nm_handshake_close(sessions, handshake);
}

/* The name of a socket is only a part of an identity, and files can be renamed. */
static int check_address(const struct nm_sessions *sessions, const struct nm_greeting *hello,
			 struct nm_reason *ret_reason)
{
	if (!nm_identity_equal(&hello->to, &sessions->config.who)) {
		nm_reason_set(ret_reason, "it asked for another endpoint");
		return -EBADMSG;
	}
	if (nm_identity_equal(&hello->who, &sessions->config.who)) {
		nm_reason_set(ret_reason, "it has the identity of this endpoint");
		return -EBADMSG;
	}
	return 0;
}

/* Those that hold a descriptor. */
struct crowd {
	unsigned int nr;		      /* handshakes */
	unsigned int nr_strangers;	      /* callers without a HELLO */
	struct nm_handshake *oldest_stranger; /* NULL: there is none */
	struct nm_handshake
		*oldest_unproven; /* caller with a HELLO, no proof; NULL: there is none */
};

static struct crowd look_at_crowd(const struct nm_sessions *sessions)
{
	struct crowd crowd = {0};
	struct nm_handshake *handshake;

	/* The list begins with the newest. */
	for (handshake = sessions->handshakes; handshake; handshake = handshake->next) {
		crowd.nr += handshake->fd >= 0;
		if (handshake->state == NM_HANDSHAKE_AWAIT_HELLO) {
			crowd.nr_strangers++;
			crowd.oldest_stranger = handshake;
		} else if (handshake->state == NM_HANDSHAKE_AWAIT_MET) {
			crowd.oldest_unproven = handshake;
		}
	}
	return crowd;
}

int nm_sessions_drop_unproven(struct nm_sessions *sessions)
{
	struct nm_reason why = {"it did not prove itself while other callers waited"};
	struct nm_handshake *oldest = look_at_crowd(sessions).oldest_unproven;

	if (!oldest)
		return -ENOSPC;
	if (oldest->deadline_ns - sessions->config.connect_ms * NM_NS_PER_MS +
		    YOUNG_MS * NM_NS_PER_MS >
	    nm_clock_ns())
		return -EBUSY;
	refuse(sessions, oldest, -EBUSY, &why);
	return 0;
}

static int take_lane(struct nm_sessions *sessions, struct nm_handshake *handshake,
		     struct nm_reason *ret_reason)
{
	if (!sessions->lanes[NM_ROLE_READER].nr_free &&
	    nm_sessions_drop_unproven(sessions) == -EBUSY) {
		nm_reason_set(ret_reason, "all its lanes are in use by callers without a proof");
		return -EBUSY;
	}
	return nm_handshake_take_lane(sessions, handshake, ret_reason);
}

static int handle_hello(struct nm_sessions *sessions, struct nm_handshake *handshake,
			const uint8_t *bytes, size_t len, int window_fd,
			struct nm_reason *ret_reason)
{
	struct nm_greeting hello, welcome;
	int err;

	err = nm_greeting_parse(bytes, len, NM_MESSAGE_HELLO, &hello, ret_reason);
	if (!err)
		err = sessions->wire->ops->check_caller(handshake, ret_reason);
	if (!err)
		err = check_address(sessions, &hello, ret_reason);
	if (!err)
		err = nm_handshake_join(sessions, handshake, &hello.who, ret_reason);
	if (!err)
		err = nm_handshake_take_window(sessions, handshake, &hello, window_fd, ret_reason);
	if (!err)
		err = take_lane(sessions, handshake, ret_reason);
	if (err)
		return err;
	nm_handshake_show(sessions, handshake, NM_LANE_SHOWN, hello.challenge);
	nm_handshake_greet(sessions, handshake, NM_MESSAGE_WELCOME, &welcome);
	NM_FAULT("serve-welcome-before");
	err = nm_message_send(handshake->fd, &welcome, sizeof(welcome), sessions->wire->window_fd);
	NM_FAULT("serve-welcome-after");
	if (err)
		nm_reason_set(ret_reason, "cannot answer its hello: %s",
			      nm_message_send_error(err));
	nm_handshake_set_state(handshake, NM_HANDSHAKE_AWAIT_MET);
	handshake->deadline_ns = nm_clock_ns() + sessions->config.connect_ms * NM_NS_PER_MS;
	return err;
}

/* The caller is the peer that it names: its direction is the session's from here on. */
static int take_in(struct nm_sessions *sessions, struct nm_handshake *handshake,
		   struct nm_reason *ret_reason)
{
	struct nm_direction *pending = &handshake->pending;
	struct nm_session *session = handshake->session;
	enum nm_session_state state = __atomic_load_n(&session->state, __ATOMIC_RELAXED);
	int err;

	if (session->in.handshake || state > NM_SESSION_UP) {
		nm_reason_set(ret_reason, "this direction of its session exists already");
		return -EISCONN;
	}
	/* Not before the proof: it takes long, and anybody can offer windows of others. */
	err = nm_foreign_check_pool(&session->window, ret_reason);
	if (err)
		return err;
	pending->start = session->window.lanes[pending->peer_lane].start;
	nm_ring_reset_feedback(nm_handshake_own_lane(sessions, handshake), pending->start);
	pending->handshake = handshake;
	session->in = *pending;
	session->nr_pending--;
	handshake->is_proven = true;
	if (state == NM_SESSION_NEW)
		session->label = handshake->label;
	nm_handshake_show(sessions, handshake, NM_LANE_AGREED, 0);
	nm_handshake_set_state(handshake, NM_HANDSHAKE_AWAIT_GO);
	return 0;
}

static int handle_met(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      const struct nm_step *step, int heap_fd, struct nm_reason *ret_reason)
{
	int err;

	if (!nm_handshake_proven(sessions, handshake)) {
		nm_reason_set(ret_reason,
			      "the challenge does not appear in its window: only one side maps it");
		return -EBADMSG;
	}
	err = take_in(sessions, handshake, ret_reason);
	if (err)
		return err;
	if (nm_handshake_hear(sessions, handshake, step))
		nm_handshake_reach(sessions, handshake);
	nm_handshake_take_heap(handshake, heap_fd);
	NM_FAULT("serve-ack-before");
	err = nm_handshake_send_step(sessions, handshake, NM_MESSAGE_ACK, handshake->cma_reached,
				     handshake->session->in.cma_why.text);
	NM_FAULT("serve-ack-after");
	if (err)
		nm_reason_set(ret_reason, "cannot acknowledge: %s", strerror(-err));
	return err;
}

/* True if the peer still decides, as its window shows, or has decided: this side agreed. */
static bool may_still_go(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	int err;

	return handshake->state == NM_HANDSHAKE_AWAIT_GO &&
	       (nm_handshake_look(sessions, handshake, &err) == NM_SIGHT_OPEN ||
		nm_handshake_has_gone(sessions, handshake));
}

static int handle_message(struct nm_sessions *sessions, struct nm_handshake *handshake,
			  const uint8_t *bytes, size_t len, int passed_fd,
			  struct nm_reason *ret_reason)
{
	struct nm_step step;
	int kind;

	if (handshake->state == NM_HANDSHAKE_AWAIT_HELLO)
		return handle_hello(sessions, handshake, bytes, len, passed_fd, ret_reason);
	if (nm_handshake_is_call(handshake))
		return nm_call_handle(sessions, handshake, bytes, len, passed_fd, ret_reason);
	kind = nm_message_parse(bytes, len, ret_reason);
	if (kind < 0)
		return kind;
	nm_step_copy(bytes, &step);
	/* Only once: a caller that repeats BYE would keep this thread and its lock busy forever. */
	if (kind == NM_MESSAGE_BYE && !handshake->bye.header.kind) {
		handshake->bye = step;
		return 0; /* the hangup follows */
	}
	if (handshake->state == NM_HANDSHAKE_AWAIT_MET && kind == NM_MESSAGE_MET)
		return handle_met(sessions, handshake, &step, passed_fd, ret_reason);
	if (handshake->state == NM_HANDSHAKE_AWAIT_GO && kind == NM_MESSAGE_GO &&
	    nm_handshake_step(sessions, handshake) == NM_LANE_AGREED) {
		handshake->session->in.cma =
			handshake->cma_reached && nm_handshake_hear(sessions, handshake, &step);
		NM_FAULT("serve-go");
		nm_handshake_up(sessions, handshake);
		return 0;
	}
	if (handshake->go_is_due && kind == NM_MESSAGE_GO) {
		handshake->go_is_due = false;
		return 0;
	}
	nm_reason_set(ret_reason, "it sent message %d out of turn", kind);
	return -EBADMSG;
}

/*
 * The socket hung up or broke a rule. If the peer's window shows that the peer had no part in it,
 * only the socket ends, and nm_sessions_look() watches the peer. True: so it was.
 */
static bool only_socket_ends(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	int err;

	if ((handshake->state != NM_HANDSHAKE_UP && handshake->state != NM_HANDSHAKE_READY &&
	     handshake->state != NM_HANDSHAKE_AWAIT_GO) ||
	    (nm_handshake_look(sessions, handshake, &err) != NM_SIGHT_OPEN &&
	     !nm_handshake_has_gone(sessions, handshake)))
		return false;
	nm_handshake_deafen(sessions, handshake);
	return true;
}

/* The other side is gone. If the handshake was complete, report it to the endpoint. */
static void handle_hangup(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	struct nm_reason why;

	if (only_socket_ends(sessions, handshake))
		return;
	if (handshake->state == NM_HANDSHAKE_UP) {
		nm_handshake_lost(sessions, handshake);
	} else if (handshake->role == NM_ROLE_WRITER) {
		nm_reason_set(&why, "it hung up during the handshake%s%s%s",
			      handshake->ended_why.text[0] ? ": " : "", handshake->ended_why.text,
			      handshake->bye.words);
		nm_call_fail(sessions, handshake, -EHOSTUNREACH, &why);
	} else {
		nm_handshake_close(sessions, handshake);
	}
}

void nm_handshake_ready(struct nm_sessions *sessions, struct nm_watch *watch)
{
	struct nm_handshake *handshake = nm_container_of(watch, struct nm_handshake, watch);
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_reason why = {""};
	int len, err, passed_fd;

	while (handshake->fd >= 0) {
		len = nm_message_receive(handshake->fd, bytes, &passed_fd);
		if (len == -EAGAIN)
			return;
		if (len == 0) {
			handle_hangup(sessions, handshake);
			return;
		}
		if (len < 0) {
			if (len == -EMFILE)
				nm_reason_set(&why, "%s", nm_no_descriptor);
			else
				nm_reason_set(&why, "cannot receive its message: %s",
					      strerror(-len));
			err = len;
		} else {
			err = handle_message(sessions, handshake, bytes, (size_t)len, passed_fd,
					     &why);
			if (passed_fd >= 0)
				close(passed_fd);
		}
		if (!err || only_socket_ends(sessions, handshake))
			continue;
		if (handshake->state == NM_HANDSHAKE_UP) {
			/* On an established connection only BYE is expected. */
			nm_message_send_step(handshake->fd, NM_MESSAGE_BYE, -EBADMSG, why.text);
			nm_message_init(&handshake->bye.header, NM_MESSAGE_BYE);
			handshake->bye.value = -EBADMSG;
			memcpy(handshake->bye.words, why.text, sizeof(handshake->bye.words) - 1);
			nm_handshake_lost(sessions, handshake);
		} else if (handshake->role == NM_ROLE_WRITER) {
			nm_call_fail(sessions, handshake, err, &why);
		} else {
			refuse(sessions, handshake, err, &why);
		}
	}
}

/* A new caller comes. If there are too many strangers, the oldest goes, so silence gains nothing. */
static void limit_strangers(struct nm_sessions *sessions, uint64_t most)
{
	struct nm_reason why = {"it said no hello while other callers waited"};
	struct crowd crowd = look_at_crowd(sessions);
	struct nm_handshake *oldest = crowd.oldest_stranger;

	if (!oldest || crowd.nr_strangers < most)
		return;
	/* Its hello may be there, unread. */
	nm_handshake_ready(sessions, &oldest->watch);
	if (oldest->state == NM_HANDSHAKE_AWAIT_HELLO)
		refuse(sessions, oldest, -EBUSY, &why);
}

struct nm_handshake *nm_sessions_admit(struct nm_sessions *sessions, int fd)
{
	uint64_t most = 2 * sessions->config.window->geometry.nr_lanes + MAX_STRANGERS;
	struct nm_handshake *handshake = NULL;
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
	int err = 0;

	NM_FAULT("serve-accept");
	getrlimit(RLIMIT_NOFILE, &limit);
	limit_strangers(sessions, nm_min_u64(MAX_STRANGERS, limit.rlim_cur / STRANGER_SHARE));
	/* The program needs descriptors too: a quarter of them is left to it. */
	most = nm_min_u64(most, limit.rlim_cur - limit.rlim_cur / 4);
	if (look_at_crowd(sessions).nr >= most)
		err = nm_sessions_drop_unproven(sessions);
	if (!err)
		handshake = nm_handshake_create(sessions, fd, NM_ROLE_READER);
	if (!handshake) {
		nm_message_send_step(fd, NM_MESSAGE_BYE, err ? err : -ENOMEM,
				     "it has too many callers");
		close(fd);
		return NULL;
	}
	handshake->deadline_ns =
		nm_min_u64(handshake->deadline_ns, nm_clock_ns() + STRANGER_MS * NM_NS_PER_MS);
	if (!nm_sessions_watch(sessions, handshake->fd, &handshake->watch))
		return handshake;
	nm_handshake_close(sessions, handshake);
	return NULL;
}

/* The endpoint asks no more what became of its call, as the peer was lost on another channel. */
static bool is_forsaken(const struct nm_sessions *sessions, const struct nm_handshake *handshake,
			uint64_t now)
{
	return (handshake->state == NM_HANDSHAKE_CALLING || nm_handshake_is_call(handshake) ||
		handshake->state == NM_HANDSHAKE_FAILED) &&
	       now > handshake->deadline_ns + sessions->config.connect_ms * NM_NS_PER_MS;
}

/* An honest caller may have been stopped before its hello: it calls again, within its own time. */
static int overdue_error(const struct nm_handshake *handshake)
{
	return handshake->state == NM_HANDSHAKE_AWAIT_HELLO ? -EBUSY : -ETIMEDOUT;
}

static void drop_overdue(struct nm_sessions *sessions)
{
	struct nm_reason why = {"it sent no message within NEARMETAL_CONNECT_MS, or no hello "
				"within a second"};
	uint64_t now = nm_clock_ns();
	struct nm_handshake *handshake;

	for (handshake = sessions->handshakes; handshake; handshake = handshake->next)
		if (handshake->state <= NM_HANDSHAKE_AWAIT_GO && handshake->deadline_ns < now &&
		    !may_still_go(sessions, handshake))
			refuse(sessions, handshake, overdue_error(handshake), &why);
		else if (is_forsaken(sessions, handshake, now))
			nm_handshake_close(sessions, handshake);
}

/* No event that epoll returned earlier refers to them any more. */
static void free_left(struct nm_sessions *sessions)
{
	struct nm_handshake **place = &sessions->handshakes, *handshake;

	while ((handshake = *place))
		if (handshake->state == NM_HANDSHAKE_LEFT) {
			*place = handshake->next;
			free(handshake);
		} else {
			place = &handshake->next;
		}
}

void nm_sessions_wake(const struct nm_sessions *sessions)
{
	const uint64_t one = 1;

	while (write(sessions->waker, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/*
 * Show the peers that this process lives. The kernel itself marks the word at the end of the
 * thread, before it closes the sockets, and no other process can write it.
 */
static void show_life(struct nm_sessions *sessions)
{
	_Atomic uint32_t *life = &sessions->config.window->header->life;

	if (!sessions->config.segment) {
		sessions->life_entry.next = &sessions->life.list;
		sessions->life.list.next = &sessions->life_entry;
		sessions->life.futex_offset = (char *)life - (char *)&sessions->life_entry;
		atomic_store_explicit(life, (uint32_t)syscall(SYS_gettid), memory_order_release);
		if (syscall(SYS_set_robust_list, &sessions->life, sizeof(sessions->life)) < 0)
			atomic_store_explicit(life, 0, memory_order_release);
	}
	atomic_store_explicit(&sessions->is_serving, true, memory_order_release);
}

/* Handle events, but not for longer than HOLD_NS; the wait reports the others again. */
static void handle_events(struct nm_sessions *sessions, const struct epoll_event *events, int nr)
{
	const struct timespec rest = {0, REST_NS};
	bool is_late = false;
	uint64_t end;

	pthread_mutex_lock(&sessions->lock);
	end = nm_clock_ns() + HOLD_NS;
	for (int i = 0; i < nr && !is_late; i++) {
		struct nm_watch *watch = events[i].data.ptr;

		watch->ready(sessions, watch);
		is_late = nm_clock_ns() > end;
	}
	pthread_mutex_unlock(&sessions->lock);
	if (is_late)
		nanosleep(&rest, NULL);
}

void *nm_sessions_serve(void *arg)
{
	struct epoll_event events[EVENTS_PER_WAIT];
	struct nm_sessions *sessions = arg;
	uint64_t lease_ns = sessions->config.lease_ms * NM_NS_PER_MS;
	uint64_t next_beat = nm_clock_ns() + lease_ns, now, wait;
	int nr;

	show_life(sessions);
	for (;;) {
		now = nm_clock_ns();
		pthread_mutex_lock(&sessions->lock);
		free_left(sessions);
		if (sessions->stopping)
			break;
		if (now >= next_beat) {
			drop_overdue(sessions);
			sessions->wire->ops->beat(sessions);
			next_beat = now + lease_ns;
		}
		wait = next_beat - now;
		if (sessions->wire->ops->turn)
			wait = nm_min_u64(wait, sessions->wire->ops->turn(sessions, now));
		pthread_mutex_unlock(&sessions->lock);
		nr = epoll_wait(sessions->epoll, events, EVENTS_PER_WAIT,
				(int)(wait / NM_NS_PER_MS) + 1);
		handle_events(sessions, events, nr);
	}
	pthread_mutex_unlock(&sessions->lock);
	return NULL;
}
