/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's side of a session: blocking, with one deadline for all of it. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "connect/session_private.h"

/* The peer may still be reachable over another channel. */
NM_COLD int nm_connect_failed(struct nm_reason *ret_reason, const char *what, int err)
{
	nm_reason_set(ret_reason, "%s: %s", what, strerror(-err));
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM || err == -ENOBUFS ?
		       err :
		       -EHOSTUNREACH;
}

NM_COLD int nm_connect_timed_out(const struct nm_sessions *sessions, struct nm_reason *ret_reason)
{
	nm_reason_set(ret_reason,
		      "it gave no answer within %u ms (is it stopped?): see NEARMETAL_CONNECT_MS",
		      sessions->config.connect_ms);
	return -EHOSTUNREACH;
}

/* Wait for one message. Returns its length, or -errno with a reason. */
static int await(struct nm_sessions *sessions, struct nm_handshake *handshake,
		 uint8_t bytes[NM_MESSAGE_MAX], int *ret_fd, struct nm_reason *ret_reason)
{
	struct pollfd poller = {.fd = handshake->fd, .events = POLLIN};
	uint64_t now;
	int len;

	for (;;) {
		len = nm_message_receive(handshake->fd, bytes, ret_fd);
		if (len > 0)
			return len;
		if (len == 0) {
			pthread_mutex_lock(&sessions->lock);
			nm_reason_set(ret_reason, "it hung up during the handshake%s%s",
				      handshake->ended_why.text[0] ? ": " : "",
				      handshake->ended_why.text);
			pthread_mutex_unlock(&sessions->lock);
			return -EHOSTUNREACH;
		}
		if (len != -EAGAIN)
			return nm_connect_failed(ret_reason, "cannot receive its answer", len);
		now = nm_clock_ns();
		if (now >= handshake->deadline_ns)
			return nm_connect_timed_out(sessions, ret_reason);
		poll(&poller, 1, (int)((handshake->deadline_ns - now) / NM_NS_PER_MS) + 1);
	}
}

/* The peer may have sent its reason before it hung up. It is read in place of the answer. */
static bool hung_up(int err)
{
	return err == -EPIPE || err == -ECONNRESET;
}

static int say_hello(struct nm_sessions *sessions, struct nm_handshake *handshake,
		     const struct nm_identity *who, struct nm_reason *ret_reason)
{
	struct nm_greeting hello;
	int err;

	pthread_mutex_lock(&sessions->lock);
	err = nm_handshake_take_lane(sessions, handshake, ret_reason);
	if (!err)
		nm_handshake_greet(sessions, handshake, NM_MESSAGE_HELLO, &hello);
	pthread_mutex_unlock(&sessions->lock);
	if (err)
		return err;
	memcpy(hello.owner_token, who->token, sizeof(hello.owner_token));
	NM_FAULT("call-hello-before");
	err = nm_message_send(handshake->fd, &hello, sizeof(hello), sessions->wire->window_fd);
	NM_FAULT("call-hello-after");
	return err && !hung_up(err) ? nm_connect_failed(ret_reason, "cannot say hello", err) : 0;
}

static int take_welcome(struct nm_sessions *sessions, struct nm_handshake *handshake,
			const struct nm_identity *who, struct nm_reason *ret_reason)
{
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_greeting welcome;
	int len, err, window_fd;

	len = await(sessions, handshake, bytes, &window_fd, ret_reason);
	if (len < 0)
		return len;
	err = nm_greeting_parse(bytes, (size_t)len, NM_MESSAGE_WELCOME, &welcome, ret_reason);
	if (!err && !nm_identity_equal(&welcome.who, who)) {
		nm_reason_set(ret_reason, "another endpoint answers on its socket");
		err = -EBADMSG;
	}
	pthread_mutex_lock(&sessions->lock);
	if (!err)
		err = nm_handshake_take_window(sessions, handshake, &welcome, window_fd,
					       ret_reason);
	if (!err && !nm_handshake_proven(handshake)) {
		nm_reason_set(ret_reason, "the challenge does not appear in its window");
		err = -EBADMSG;
	}
	if (!err)
		/* Partner: nm_handshake_proven() of the owner. */
		atomic_store_explicit(&nm_handshake_own_lane(sessions, handshake)->writer_proof,
				      welcome.challenge, memory_order_release);
	pthread_mutex_unlock(&sessions->lock);
	if (window_fd >= 0)
		close(window_fd);
	return err;
}

static int take_ack(struct nm_sessions *sessions, struct nm_handshake *handshake,
		    struct nm_reason *ret_reason)
{
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_step step;
	int len, kind, extra_fd;

	len = await(sessions, handshake, bytes, &extra_fd, ret_reason);
	if (len < 0)
		return len;
	if (extra_fd >= 0)
		close(extra_fd);
	kind = nm_message_parse(bytes, (size_t)len, ret_reason);
	if (kind < 0)
		return -EHOSTUNREACH;
	nm_step_copy(bytes, &step);
	if (kind == NM_MESSAGE_ACK) {
		handshake->session->out.cma =
			handshake->cma_reached && nm_handshake_hear(sessions, handshake, &step);
		return 0;
	}
	if (kind == NM_MESSAGE_BYE)
		nm_reason_set(ret_reason, "it refused: %s", step.words);
	else
		nm_reason_set(ret_reason, "it sent message %d where an ACK was due", kind);
	return -EHOSTUNREACH;
}

/* All steps after connecting. After GO the other side reads. */
static int shake_hands(struct nm_sessions *sessions, struct nm_handshake *handshake,
		       const struct nm_identity *who, struct nm_reason *ret_reason)
{
	int err;

	err = say_hello(sessions, handshake, who, ret_reason);
	if (!err)
		err = take_welcome(sessions, handshake, who, ret_reason);
	if (err)
		return err;
	nm_handshake_reach(sessions, handshake);
	NM_FAULT("call-met-before");
	err = nm_message_send_step(handshake->fd, NM_MESSAGE_MET, handshake->cma_reached,
				   handshake->session->out.cma_why.text);
	NM_FAULT("call-met-after");
	if (err && !hung_up(err))
		return nm_connect_failed(ret_reason, "cannot continue the handshake", err);
	err = take_ack(sessions, handshake, ret_reason);
	if (err)
		return err;
	pthread_mutex_lock(&sessions->lock);
	NM_FAULT("call-go-before");
	err = nm_sessions_watch(sessions, handshake->fd, &handshake->watch);
	if (!err)
		err = nm_message_send_step(handshake->fd, NM_MESSAGE_GO,
					   handshake->session->out.cma,
					   handshake->session->out.cma_why.text);
	if (!err)
		handshake->state = NM_HANDSHAKE_UP;
	pthread_mutex_unlock(&sessions->lock);
	NM_FAULT("call-go-after");
	return err ? nm_connect_failed(ret_reason, "cannot end the handshake", err) : 0;
}

int nm_sessions_connect(struct nm_sessions *sessions, const struct nm_identity *who,
			struct nm_session **ret_session, struct nm_reason *ret_reason)
{
	struct nm_handshake *handshake;
	int err;

	nm_reason_set(ret_reason, "out of memory");
	pthread_mutex_lock(&sessions->lock);
	handshake = nm_handshake_create(sessions, -1, NM_ROLE_WRITER);
	err = handshake ? nm_handshake_join(sessions, handshake, who, ret_reason) : -ENOMEM;
	if (handshake && err)
		nm_handshake_close(sessions, handshake);
	pthread_mutex_unlock(&sessions->lock);
	if (err)
		return err;
	err = sessions->wire->ops->connect(sessions, handshake, who, ret_reason);
	if (!err)
		err = shake_hands(sessions, handshake, who, ret_reason);
	if (!err) {
		*ret_session = handshake->session;
		nm_session_begin(sessions, handshake->session, NM_SESSION_UP);
		return 0;
	}
	/* A peer that is elsewhere is usual. A peer here without a session deserves a log entry. */
	if (err != -ENOENT)
		nm_warn("peer " NM_WHO_FORMAT
			" cannot be reached in %.80s; a slower channel is used: %s",
			NM_WHO(who), sessions->wire->place, ret_reason->text);
	/* After a protocol error too, the peer is not reachable here. */
	if (err == -ENOENT || err == -EBADMSG || err == -EPERM || err == -EPROTONOSUPPORT ||
	    err == -ECONNREFUSED)
		err = -EHOSTUNREACH;
	pthread_mutex_lock(&sessions->lock);
	nm_direction_close(sessions, &handshake->session->out, err, ret_reason);
	pthread_mutex_unlock(&sessions->lock);
	return err;
}
