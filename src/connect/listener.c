/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread of a table of sessions: answers callers, notices hangups. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "connect/session_private.h"
#include "shm/ring.h"

#define EVENTS_PER_WAIT 32
/* Callers without a HELLO that are allowed beyond the number of lanes. */
#define MAX_STRANGERS 64

/* Refuse a caller, with the reason. */
static NM_COLD void refuse(struct nm_sessions *sessions, struct nm_handshake *handshake, int err,
			   const struct nm_reason *why)
{
	nm_info("refused a caller: %s", why->text);
	nm_message_send_step(handshake->fd, NM_MESSAGE_BYE, err, why->text);
	nm_handshake_close(sessions, handshake);
}

/* The caller must know the whole address, not only the name of the socket. */
static int check_address(const struct nm_sessions *sessions, const struct nm_greeting *hello,
			 struct nm_reason *ret_reason)
{
	if (memcmp(hello->owner_token, sessions->config.who.token, sizeof(hello->owner_token))) {
		nm_reason_set(ret_reason,
			      "it asked for another endpoint (its token is wrong here)");
		return -EBADMSG;
	}
	if (nm_identity_equal(&hello->who, &sessions->config.who)) {
		nm_reason_set(ret_reason, "it has the identity of this endpoint");
		return -EBADMSG;
	}
	return 0;
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
		err = nm_handshake_take_lane(sessions, handshake, ret_reason);
	if (err)
		return err;
	handshake->session->in.start = hello.start;
	nm_ring_reset_feedback(nm_handshake_own_lane(sessions, handshake), hello.start);
	/* Partner: nm_handshake_proven() of the caller. */
	atomic_store_explicit(&nm_handshake_own_lane(sessions, handshake)->reader_proof,
			      hello.challenge, memory_order_release);
	nm_handshake_greet(sessions, handshake, NM_MESSAGE_WELCOME, &welcome);
	NM_FAULT("serve-welcome-before");
	err = nm_message_send(handshake->fd, &welcome, sizeof(welcome), sessions->wire->window_fd);
	NM_FAULT("serve-welcome-after");
	if (err)
		nm_reason_set(ret_reason, "cannot answer its hello: %s", strerror(-err));
	handshake->state = NM_HANDSHAKE_AWAIT_MET;
	return err;
}

static int handle_met(const struct nm_sessions *sessions, struct nm_handshake *handshake,
		      const struct nm_step *step, struct nm_reason *ret_reason)
{
	int err;

	if (!nm_handshake_proven(handshake)) {
		nm_reason_set(ret_reason,
			      "the challenge does not appear in its window: only one side maps it");
		return -EBADMSG;
	}
	if (nm_handshake_hear(sessions, handshake, step))
		nm_handshake_reach(sessions, handshake);
	NM_FAULT("serve-ack-before");
	err = nm_message_send_step(handshake->fd, NM_MESSAGE_ACK, handshake->cma_reached,
				   handshake->session->in.cma_why.text);
	NM_FAULT("serve-ack-after");
	if (err)
		nm_reason_set(ret_reason, "cannot acknowledge: %s", strerror(-err));
	handshake->state = NM_HANDSHAKE_AWAIT_GO;
	return err;
}

static int handle_message(struct nm_sessions *sessions, struct nm_handshake *handshake,
			  const uint8_t *bytes, size_t len, int window_fd,
			  struct nm_reason *ret_reason)
{
	struct nm_step step;
	int kind;

	if (handshake->state == NM_HANDSHAKE_AWAIT_HELLO)
		return handle_hello(sessions, handshake, bytes, len, window_fd, ret_reason);
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
		return handle_met(sessions, handshake, &step, ret_reason);
	if (handshake->state == NM_HANDSHAKE_AWAIT_GO && kind == NM_MESSAGE_GO) {
		handshake->session->in.cma =
			handshake->cma_reached && nm_handshake_hear(sessions, handshake, &step);
		handshake->state = NM_HANDSHAKE_UP;
		NM_FAULT("serve-go");
		nm_session_push_event(sessions, handshake->session, NM_SESSION_SOURCE);
		return 0;
	}
	nm_reason_set(ret_reason, "it sent message %d out of turn", kind);
	return -EBADMSG;
}

/* The other side is gone. If the handshake was complete, report it to the endpoint. */
static void handle_hangup(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	if (handshake->state == NM_HANDSHAKE_UP)
		nm_handshake_lost(sessions, handshake);
	else
		nm_handshake_close(sessions, handshake);
}

void nm_handshake_ready(struct nm_sessions *sessions, struct nm_watch *watch)
{
	struct nm_handshake *handshake = nm_container_of(watch, struct nm_handshake, watch);
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_reason why = {""};
	int len, err, window_fd;

	/*
	 * A call whose last step failed is watched already but still belongs to its caller. Closing
	 * it here would free it at the next turn, while the caller uses it.
	 */
	if (handshake->state == NM_HANDSHAKE_CONNECTING)
		return;
	while (handshake->fd >= 0) {
		len = nm_message_receive(handshake->fd, bytes, &window_fd);
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
			err = handle_message(sessions, handshake, bytes, (size_t)len, window_fd,
					     &why);
			if (window_fd >= 0)
				close(window_fd);
		}
		if (!err)
			continue;
		if (handshake->state == NM_HANDSHAKE_UP) {
			/* On an established connection only BYE is expected. */
			nm_message_send_step(handshake->fd, NM_MESSAGE_BYE, -EBADMSG, why.text);
			nm_message_init(&handshake->bye.header, NM_MESSAGE_BYE);
			handshake->bye.value = -EBADMSG;
			memcpy(handshake->bye.words, why.text, sizeof(handshake->bye.words) - 1);
			nm_handshake_lost(sessions, handshake);
		} else {
			refuse(sessions, handshake, err, &why);
		}
	}
}

struct nm_handshake *nm_sessions_admit(struct nm_sessions *sessions, int fd)
{
	uint32_t limit = 2 * sessions->config.window->geometry.nr_lanes + MAX_STRANGERS;
	struct nm_handshake *handshake = NULL;

	NM_FAULT("serve-accept");
	if (sessions->nr_handshakes < limit)
		handshake = nm_handshake_create(sessions, fd, NM_ROLE_READER);
	if (!handshake) {
		nm_message_send_step(fd, NM_MESSAGE_BYE, -ENOSPC, "it has too many callers");
		close(fd);
		return NULL;
	}
	if (!nm_sessions_watch(sessions, handshake->fd, &handshake->watch))
		return handshake;
	nm_handshake_close(sessions, handshake);
	return NULL;
}

static void drop_overdue(struct nm_sessions *sessions)
{
	struct nm_reason why = {"it sent no message within NEARMETAL_CONNECT_MS"};
	uint64_t now = nm_clock_ns();
	struct nm_handshake *handshake;

	for (handshake = sessions->handshakes; handshake; handshake = handshake->next)
		if (handshake->state <= NM_HANDSHAKE_AWAIT_GO && handshake->deadline_ns < now)
			refuse(sessions, handshake, -ETIMEDOUT, &why);
}

/* No event that epoll returned earlier refers to them any more. */
static void free_left(struct nm_sessions *sessions)
{
	struct nm_handshake **place = &sessions->handshakes, *handshake;

	while ((handshake = *place))
		if (handshake->state == NM_HANDSHAKE_LEFT) {
			*place = handshake->next;
			sessions->nr_handshakes--;
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

void *nm_sessions_serve(void *arg)
{
	struct epoll_event events[EVENTS_PER_WAIT];
	struct nm_sessions *sessions = arg;
	uint64_t next_beat = 0, now, wait;
	int i, nr;

	for (;;) {
		now = nm_clock_ns();
		pthread_mutex_lock(&sessions->lock);
		free_left(sessions);
		if (sessions->stopping)
			break;
		if (now >= next_beat) {
			drop_overdue(sessions);
			sessions->wire->ops->beat(sessions);
			next_beat = now + sessions->config.lease_ms * NM_NS_PER_MS;
		}
		wait = next_beat - now;
		if (sessions->wire->ops->turn)
			wait = nm_min_u64(wait, sessions->wire->ops->turn(sessions, now));
		pthread_mutex_unlock(&sessions->lock);
		nr = epoll_wait(sessions->epoll, events, EVENTS_PER_WAIT,
				(int)(wait / NM_NS_PER_MS) + 1);
		pthread_mutex_lock(&sessions->lock);
		for (i = 0; i < nr; i++) {
			struct nm_watch *watch = events[i].data.ptr;

			watch->ready(sessions, watch);
		}
		pthread_mutex_unlock(&sessions->lock);
	}
	pthread_mutex_unlock(&sessions->lock);
	return NULL;
}
