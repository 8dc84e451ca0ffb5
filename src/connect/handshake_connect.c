/* SPDX-License-Identifier: Apache-2.0 */
/* The visitor's side of a meeting: blocking, with one deadline for all of it. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "connect/session_private.h"

/* The peer may still be reachable in another place. */
NM_COLD int nm_visit_failed(struct nm_reason *ret_reason, const char *what, int err)
{
	nm_reason_set(ret_reason, "%s: %s", what, strerror(-err));
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM || err == -ENOBUFS ?
		       err :
		       -EHOSTUNREACH;
}

NM_COLD int nm_visit_timed_out(const struct nm_meet *meet, struct nm_reason *ret_reason)
{
	nm_reason_set(
		ret_reason,
		"it listens here but gave no answer within %u ms (is it stopped?): see NEARMETAL_CONNECT_MS",
		meet->config.connect_ms);
	return -EHOSTUNREACH;
}

/* Wait for one message. Returns its length, or -errno with a reason. */
static int await(struct nm_meet *meet, struct nm_meeting *meeting, uint8_t bytes[NM_MESSAGE_MAX],
		 int *ret_fd, struct nm_reason *ret_reason)
{
	struct pollfd poller = {.fd = meeting->fd, .events = POLLIN};
	uint64_t now;
	int len;

	for (;;) {
		len = nm_message_receive(meeting->fd, bytes, ret_fd);
		if (len > 0)
			return len;
		if (len == 0) {
			pthread_mutex_lock(&meet->lock);
			nm_reason_set(ret_reason, "it hung up during the handshake%s%s",
				      meeting->ended_why.text[0] ? ": " : "",
				      meeting->ended_why.text);
			pthread_mutex_unlock(&meet->lock);
			return -EHOSTUNREACH;
		}
		if (len != -EAGAIN)
			return nm_visit_failed(ret_reason, "cannot receive its answer", len);
		now = nm_clock_ns();
		if (now >= meeting->deadline_ns)
			return nm_visit_timed_out(meet, ret_reason);
		poll(&poller, 1, (int)((meeting->deadline_ns - now) / NM_NS_PER_MS) + 1);
	}
}

/* Whoever hung up may have said why: that is read where the answer was due. */
static bool hung_up(int err)
{
	return err == -EPIPE || err == -ECONNRESET;
}

static int say_hello(struct nm_meet *meet, struct nm_meeting *meeting,
		     const struct nm_identity *who, struct nm_reason *ret_reason)
{
	struct nm_greeting hello;
	int err;

	pthread_mutex_lock(&meet->lock);
	err = nm_meeting_take_lane(meet, meeting, ret_reason);
	if (!err)
		nm_meeting_greet(meet, meeting, NM_MESSAGE_HELLO, &hello);
	pthread_mutex_unlock(&meet->lock);
	if (err)
		return err;
	memcpy(hello.owner_token, who->token, sizeof(hello.owner_token));
	NM_FAULT("visit-hello-before");
	err = nm_message_send(meeting->fd, &hello, sizeof(hello), meet->wire->window_fd);
	NM_FAULT("visit-hello-after");
	return err && !hung_up(err) ? nm_visit_failed(ret_reason, "cannot say hello", err) : 0;
}

static int take_welcome(struct nm_meet *meet, struct nm_meeting *meeting,
			const struct nm_identity *who, struct nm_reason *ret_reason)
{
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_greeting welcome;
	int len, err, window_fd;

	len = await(meet, meeting, bytes, &window_fd, ret_reason);
	if (len < 0)
		return len;
	err = nm_greeting_parse(bytes, (size_t)len, NM_MESSAGE_WELCOME, &welcome, ret_reason);
	if (!err && !nm_identity_equal(&welcome.who, who)) {
		nm_reason_set(ret_reason, "somebody else answers on its socket");
		err = -EBADMSG;
	}
	pthread_mutex_lock(&meet->lock);
	if (!err)
		err = nm_meeting_take_window(meet, meeting, &welcome, window_fd, ret_reason);
	if (!err && !nm_meeting_proven(meeting)) {
		nm_reason_set(ret_reason,
			      "my challenge does not show in the window it handed over");
		err = -EBADMSG;
	}
	if (!err)
		/* Partner: nm_meeting_proven() of the owner. */
		atomic_store_explicit(&nm_meeting_own_lane(meet, meeting)->writer_proof,
				      welcome.challenge, memory_order_release);
	pthread_mutex_unlock(&meet->lock);
	if (window_fd >= 0)
		close(window_fd);
	return err;
}

static int take_ack(struct nm_meet *meet, struct nm_meeting *meeting, struct nm_reason *ret_reason)
{
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_farewell bye;
	struct nm_step step;
	int len, kind, extra_fd;

	len = await(meet, meeting, bytes, &extra_fd, ret_reason);
	if (len < 0)
		return len;
	if (extra_fd >= 0)
		close(extra_fd);
	kind = nm_message_parse(bytes, (size_t)len, ret_reason);
	if (kind == NM_MESSAGE_ACK) {
		nm_step_copy(bytes, &step);
		meeting->encounter.cma =
			meeting->cma_reached && nm_meeting_hear(meet, meeting, &step);
		return 0;
	}
	if (kind == NM_MESSAGE_BYE) {
		nm_farewell_copy(bytes, &bye);
		nm_reason_set(ret_reason, "it refused: %s", bye.words);
	} else if (kind >= 0) {
		nm_reason_set(ret_reason, "it sent message %d where an ACK was due", kind);
	}
	return -EHOSTUNREACH;
}

/* Everything after connecting. From GO on the other side reads. */
static int shake_hands(struct nm_meet *meet, struct nm_meeting *meeting,
		       const struct nm_identity *who, struct nm_reason *ret_reason)
{
	int err;

	err = say_hello(meet, meeting, who, ret_reason);
	if (!err)
		err = take_welcome(meet, meeting, who, ret_reason);
	if (err)
		return err;
	nm_meeting_reach(meet, meeting);
	NM_FAULT("visit-met-before");
	err = nm_message_send_step(meeting->fd, NM_MESSAGE_MET, meeting->cma_reached,
				   meeting->encounter.cma_why.text);
	NM_FAULT("visit-met-after");
	if (err && !hung_up(err))
		return nm_visit_failed(ret_reason, "cannot go on with the handshake", err);
	err = take_ack(meet, meeting, ret_reason);
	if (err)
		return err;
	pthread_mutex_lock(&meet->lock);
	NM_FAULT("visit-go-before");
	err = nm_meeting_watch(meet, meeting);
	if (!err)
		err = nm_message_send_step(meeting->fd, NM_MESSAGE_GO, meeting->encounter.cma,
					   meeting->encounter.cma_why.text);
	if (!err)
		meeting->state = NM_MEETING_UP;
	pthread_mutex_unlock(&meet->lock);
	NM_FAULT("visit-go-after");
	return err ? nm_visit_failed(ret_reason, "cannot end the handshake", err) : 0;
}

int nm_meet_visit(struct nm_meet *meet, const struct nm_identity *who,
		  struct nm_encounter **ret_encounter, struct nm_reason *ret_reason)
{
	struct nm_meeting *meeting;
	int err;

	pthread_mutex_lock(&meet->lock);
	meeting = nm_meeting_create(meet, -1, NM_MEETING_VISITING);
	pthread_mutex_unlock(&meet->lock);
	if (!meeting) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = meet->wire->ops->connect(meet, meeting, who, ret_reason);
	if (!err)
		err = shake_hands(meet, meeting, who, ret_reason);
	if (!err) {
		*ret_encounter = &meeting->encounter;
		return 0;
	}
	/* Not to be found here is the usual thing; found and not met is worth a line. */
	if (err != -ENOENT)
		nm_warn("neighbour %02x%02x%02x%02x%02x%02x cannot be met in %.80s, a slower channel is used: %s",
			who->id[0], who->id[1], who->id[2], who->id[3], who->id[4], who->id[5],
			meet->wire->place, ret_reason->text);
	/* Whatever the peer did wrong, it is not reachable here. */
	if (err == -ENOENT || err == -EBADMSG || err == -EPERM || err == -EPROTONOSUPPORT ||
	    err == -ECONNREFUSED)
		err = -EHOSTUNREACH;
	nm_meet_leave(meet, &meeting->encounter, err, ret_reason);
	return err;
}
