/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread of a meeting place: answers visitors, tidies up, notices hangups. */
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
/* Visitors that have not said hello yet, beyond the lanes there are. */
#define MAX_STRANGERS 64

/* Turn a visitor away, in words that it gets to read. */
static NM_COLD void refuse(struct nm_meet *meet, struct nm_meeting *meeting, int err,
			   const struct nm_reason *why)
{
	nm_info("turned a visitor away: %s", why->text);
	nm_message_send_bye(meeting->fd, err, why->text);
	nm_meeting_close(meet, meeting);
}

/* The visitor must know me by my whole address, not by the name of a socket alone. */
static int check_address(const struct nm_meet *meet, const struct nm_greeting *hello,
			 struct nm_reason *ret_reason)
{
	if (memcmp(hello->owner_token, meet->config.who.token, sizeof(hello->owner_token))) {
		nm_reason_set(ret_reason, "it asked for somebody else (its token is not mine)");
		return -EBADMSG;
	}
	if (nm_identity_equal(&hello->who, &meet->config.who)) {
		nm_reason_set(ret_reason, "it says that it is me");
		return -EBADMSG;
	}
	return 0;
}

static int check_first_visit(const struct nm_meet *meet, const struct nm_identity *who,
			     struct nm_reason *ret_reason)
{
	const struct nm_meeting *other;

	for (other = meet->meetings; other; other = other->next)
		if (other->neighbour && other->encounter.role == NM_ROLE_READER &&
		    nm_identity_equal(&other->encounter.who, who)) {
			nm_reason_set(ret_reason, "it has met me already");
			return -EEXIST;
		}
	return 0;
}

static int answer_hello(struct nm_meet *meet, struct nm_meeting *meeting,
			const struct nm_greeting *hello, int window_fd,
			struct nm_reason *ret_reason)
{
	struct nm_greeting welcome;
	int err;

	err = meet->wire->ops->check_visitor(meeting, ret_reason);
	if (!err)
		err = check_address(meet, hello, ret_reason);
	if (!err)
		err = check_first_visit(meet, &hello->who, ret_reason);
	if (!err)
		err = nm_meeting_take_window(meet, meeting, hello, window_fd, ret_reason);
	if (!err)
		err = nm_meeting_take_lane(meet, meeting, ret_reason);
	if (err)
		return err;
	meeting->encounter.start = hello->start;
	nm_box_reset_feedback(nm_meeting_own_lane(meet, meeting), hello->start);
	/* Partner: nm_meeting_proven() of the visitor. */
	atomic_store_explicit(&nm_meeting_own_lane(meet, meeting)->reader_proof, hello->challenge,
			      memory_order_release);
	nm_meeting_greet(meet, meeting, NM_MESSAGE_WELCOME, &welcome);
	NM_FAULT("serve-welcome-before");
	err = nm_message_send(meeting->fd, &welcome, sizeof(welcome), meet->wire->window_fd);
	NM_FAULT("serve-welcome-after");
	if (err)
		nm_reason_set(ret_reason, "cannot answer its hello: %s", strerror(-err));
	meeting->state = NM_MEETING_AWAIT_MET;
	return err;
}

static int handle_hello(struct nm_meet *meet, struct nm_meeting *meeting, const uint8_t *bytes,
			size_t len, int window_fd, struct nm_reason *ret_reason)
{
	struct nm_greeting hello;
	int err = nm_greeting_parse(bytes, len, NM_MESSAGE_HELLO, &hello, ret_reason);

	return err ? err : answer_hello(meet, meeting, &hello, window_fd, ret_reason);
}

static int handle_met(const struct nm_meet *meet, struct nm_meeting *meeting,
		      const struct nm_step *step, struct nm_reason *ret_reason)
{
	int err;

	if (!nm_meeting_proven(meeting)) {
		nm_reason_set(
			ret_reason,
			"what it wrote does not show in the window it handed over: only one side maps it");
		return -EBADMSG;
	}
	if (nm_meeting_hear(meet, meeting, step))
		nm_meeting_reach(meet, meeting);
	NM_FAULT("serve-ack-before");
	err = nm_message_send_step(meeting->fd, NM_MESSAGE_ACK, meeting->cma_reached,
				   meeting->encounter.cma_why.text);
	NM_FAULT("serve-ack-after");
	if (err)
		nm_reason_set(ret_reason, "cannot acknowledge: %s", strerror(-err));
	meeting->state = NM_MEETING_AWAIT_GO;
	return err;
}

static int handle_message(struct nm_meet *meet, struct nm_meeting *meeting, const uint8_t *bytes,
			  size_t len, int window_fd, struct nm_reason *ret_reason)
{
	struct nm_step step;
	int kind;

	if (meeting->state == NM_MEETING_AWAIT_HELLO)
		return handle_hello(meet, meeting, bytes, len, window_fd, ret_reason);
	kind = nm_message_parse(bytes, len, ret_reason);
	if (kind < 0)
		return kind;
	/* One: a visitor that went on saying it would keep this thread and its lock busy for ever. */
	if (kind == NM_MESSAGE_BYE && !meeting->bye.header.kind) {
		nm_farewell_copy(bytes, &meeting->bye);
		return 0; /* the hangup follows */
	}
	if (meeting->state == NM_MEETING_AWAIT_MET && kind == NM_MESSAGE_MET) {
		nm_step_copy(bytes, &step);
		return handle_met(meet, meeting, &step, ret_reason);
	}
	if (meeting->state == NM_MEETING_AWAIT_GO && kind == NM_MESSAGE_GO) {
		nm_step_copy(bytes, &step);
		meeting->encounter.cma =
			meeting->cma_reached && nm_meeting_hear(meet, meeting, &step);
		meeting->state = NM_MEETING_UP;
		NM_FAULT("serve-go");
		nm_meet_push_event(meet, &meeting->source_event);
		return 0;
	}
	nm_reason_set(ret_reason, "it sent message %d out of turn", kind);
	return -EBADMSG;
}

/* The other side is gone: only whoever had met hears of it. */
static void handle_hangup(struct nm_meet *meet, struct nm_meeting *meeting)
{
	if (meeting->state == NM_MEETING_UP)
		nm_meeting_lost(meet, meeting);
	else
		nm_meeting_close(meet, meeting);
}

void nm_meeting_ready(struct nm_meet *meet, struct nm_watch *watch)
{
	struct nm_meeting *meeting = nm_container_of(watch, struct nm_meeting, watch);
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_reason why = {""};
	int len, err, window_fd;

	/*
	 * A visit whose last step failed is watched already, and still its visitor's: what we close
	 * is freed at our next turn, under its hands.
	 */
	if (meeting->state == NM_MEETING_VISITING)
		return;
	while (meeting->fd >= 0) {
		len = nm_message_receive(meeting->fd, bytes, &window_fd);
		if (len == -EAGAIN)
			return;
		if (len == 0) {
			handle_hangup(meet, meeting);
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
			err = handle_message(meet, meeting, bytes, (size_t)len, window_fd, &why);
			if (window_fd >= 0)
				close(window_fd);
		}
		if (!err)
			continue;
		if (meeting->state == NM_MEETING_UP) {
			/* Nothing but a farewell is due on a standing connection. */
			nm_message_send_bye(meeting->fd, -EBADMSG, why.text);
			nm_message_init(&meeting->bye.header, NM_MESSAGE_BYE);
			meeting->bye.err = -EBADMSG;
			memcpy(meeting->bye.words, why.text, sizeof(meeting->bye.words) - 1);
			nm_meeting_lost(meet, meeting);
		} else {
			refuse(meet, meeting, err, &why);
		}
	}
}

struct nm_meeting *nm_meet_admit(struct nm_meet *meet, int fd)
{
	uint32_t limit = 2 * meet->config.window->geometry.nr_lanes + MAX_STRANGERS;
	struct nm_meeting *meeting = NULL;

	NM_FAULT("serve-accept");
	if (meet->nr_meetings < limit)
		meeting = nm_meeting_create(meet, fd, NM_MEETING_AWAIT_HELLO);
	if (!meeting) {
		nm_message_send_bye(fd, -ENOSPC, "it has too many visitors");
		close(fd);
		return NULL;
	}
	if (!nm_meeting_watch(meet, meeting))
		return meeting;
	nm_meeting_close(meet, meeting);
	return NULL;
}

static void drop_overdue(struct nm_meet *meet)
{
	struct nm_reason why = {"no word from it within NEARMETAL_CONNECT_MS"};
	uint64_t now = nm_clock_ns();
	struct nm_meeting *meeting;

	for (meeting = meet->meetings; meeting; meeting = meeting->next)
		if (meeting->state <= NM_MEETING_AWAIT_GO && meeting->deadline_ns < now)
			refuse(meet, meeting, -ETIMEDOUT, &why);
}

/* No event that was returned before refers to them any more. */
static void free_left(struct nm_meet *meet)
{
	struct nm_meeting **place = &meet->meetings, *meeting;

	while ((meeting = *place))
		if (meeting->state == NM_MEETING_LEFT) {
			*place = meeting->next;
			meet->nr_meetings--;
			free(meeting);
		} else {
			place = &meeting->next;
		}
}

void nm_meet_wake(const struct nm_meet *meet)
{
	const uint64_t one = 1;

	while (write(meet->waker, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void *nm_meet_serve(void *arg)
{
	struct epoll_event events[EVENTS_PER_WAIT];
	struct nm_meet *meet = arg;
	uint64_t next_beat = 0, now, wait;
	int i, nr;

	for (;;) {
		now = nm_clock_ns();
		pthread_mutex_lock(&meet->lock);
		free_left(meet);
		if (meet->stopping)
			break;
		if (now >= next_beat) {
			drop_overdue(meet);
			meet->wire->ops->beat(meet);
			next_beat = now + meet->config.lease_ms * NM_NS_PER_MS;
		}
		wait = next_beat - now;
		if (meet->wire->ops->turn)
			wait = nm_min_u64(wait, meet->wire->ops->turn(meet, now));
		pthread_mutex_unlock(&meet->lock);
		nr = epoll_wait(meet->epoll, events, EVENTS_PER_WAIT,
				(int)(wait / NM_NS_PER_MS) + 1);
		pthread_mutex_lock(&meet->lock);
		for (i = 0; i < nr; i++) {
			struct nm_watch *watch = events[i].data.ptr;

			watch->ready(meet, watch);
		}
		pthread_mutex_unlock(&meet->lock);
	}
	pthread_mutex_unlock(&meet->lock);
	return NULL;
}
