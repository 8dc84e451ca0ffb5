/* SPDX-License-Identifier: Apache-2.0 */
/* The visitor's side of a meeting: blocking, with one deadline for all of it. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "locality/meet_private.h"

/* What went wrong on the way is a matter of this place alone: the peer may still be reachable. */
static NM_COLD int not_here(struct nm_reason *ret_reason, const char *what, int err)
{
	nm_reason_set(ret_reason, "%s: %s", what, strerror(-err));
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM || err == -ENOBUFS ?
		       err :
		       -EHOSTUNREACH;
}

static NM_COLD int timed_out(const struct nm_meet *meet, struct nm_reason *ret_reason)
{
	nm_reason_set(
		ret_reason,
		"it listens here but gave no answer within %u ms (is it stopped?): see NEARMETAL_CONNECT_MS",
		meet->config.connect_ms);
	return -EHOSTUNREACH;
}

static NM_COLD int connect_failed(const struct nm_meet *meet, const char *name, int err,
				  struct nm_reason *ret_reason)
{
	switch (err) {
	case -ENOENT:
		nm_reason_set(
			ret_reason,
			"it does not listen in %.80s: it is on another host, or its segment directory is another one",
			meet->dir.path);
		return -ENOENT;
	case -ECONNREFUSED:
		nm_reason_set(ret_reason,
			      "its socket in %.80s is left over from a process that has died",
			      meet->dir.path);
		unlinkat(meet->dir.fd, name, 0);
		return -EHOSTUNREACH;
	default:
		return not_here(ret_reason, "cannot connect to its socket", err);
	}
}

static int knock(struct nm_meet *meet, const struct nm_identity *who, struct nm_meeting *meeting,
		 struct nm_reason *ret_reason)
{
	const struct timespec pause = {0, 1000000};
	char name[NM_SOCKET_NAME_LEN];
	struct sockaddr_un address;
	socklen_t len;

	nm_socket_name(who->id, name);
	len = nm_segment_dir_address(&meet->dir, name, &address);
	while (connect(meeting->fd, (struct sockaddr *)&address, len) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return connect_failed(meet, name, -errno, ret_reason);
		/* Its queue is full: it serves others first. */
		if (nm_clock_ns() > meeting->deadline_ns)
			return timed_out(meet, ret_reason);
		nanosleep(&pause, NULL);
	}
	return nm_meeting_check_user(meeting, ret_reason) ? -EHOSTUNREACH : 0;
}

/* Wait for one message. Returns its length, or -errno with a reason. */
static int await(const struct nm_meet *meet, struct nm_meeting *meeting,
		 uint8_t bytes[NM_MESSAGE_MAX], int *ret_fd, struct nm_reason *ret_reason)
{
	struct pollfd poller = {.fd = meeting->fd, .events = POLLIN};
	uint64_t now;
	int len;

	for (;;) {
		len = nm_message_receive(meeting->fd, bytes, ret_fd);
		if (len > 0)
			return len;
		if (len == 0) {
			nm_reason_set(ret_reason, "it hung up during the handshake");
			return -EHOSTUNREACH;
		}
		if (len != -EAGAIN)
			return not_here(ret_reason, "cannot receive its answer", len);
		now = nm_clock_ns();
		if (now >= meeting->deadline_ns)
			return timed_out(meet, ret_reason);
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
	err = nm_message_send(meeting->fd, &hello, sizeof(hello), meet->config.window->fd);
	NM_FAULT("visit-hello-after");
	return err && !hung_up(err) ? not_here(ret_reason, "cannot say hello", err) : 0;
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
		return not_here(ret_reason, "cannot go on with the handshake", err);
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
	return err ? not_here(ret_reason, "cannot end the handshake", err) : 0;
}

int nm_meet_visit(struct nm_meet *meet, const struct nm_identity *who,
		  struct nm_encounter **ret_encounter, struct nm_reason *ret_reason)
{
	struct nm_meeting *meeting;
	int fd, err;

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return not_here(ret_reason, "cannot make a socket", -errno);
	pthread_mutex_lock(&meet->lock);
	meeting = nm_meeting_create(meet, fd, NM_MEETING_VISITING);
	pthread_mutex_unlock(&meet->lock);
	if (!meeting) {
		close(fd);
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = knock(meet, who, meeting, ret_reason);
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
			meet->dir.path, ret_reason->text);
	/* Whatever the peer did wrong, it is not reachable here. */
	if (err == -ENOENT || err == -EBADMSG || err == -EPERM || err == -EPROTONOSUPPORT ||
	    err == -ECONNREFUSED)
		err = -EHOSTUNREACH;
	nm_meet_leave(meet, &meeting->encounter, err, ret_reason);
	return err;
}
