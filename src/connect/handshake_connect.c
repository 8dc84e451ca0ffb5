/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's side of a session. nm_sessions_connect() calls, and takes the peer's messages as long
 * as it waits, because waking a second thread for each costs time. After that the service thread
 * takes them, so a call goes on while the endpoint computes. All functions need sessions->lock,
 * except nm_sessions_connect().
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "connect/session_private.h"
#include "shm/doorbell.h"

/*
 * Sound peers mostly answer within this time, also where many ranks start on few cores, so a new call
 * sleeps until the answer comes. A program that polls instead takes the processor from peers that
 * share it. After each peer that is slower, the next call waits half as long, and after each that
 * answers in time, a little longer. So silent peers cost 0.4 s in a row, and among others 25 ms each.
 */
#define GRACE_NS (200 * NM_NS_PER_MS)
#define GRACE_MIN_NS (1 * NM_NS_PER_MS)
#define GRACE_GAIN_NS (GRACE_NS / 16)
/* Before the next try if the queue of the peer's socket is full, or the peer is busy. */
#define PAUSE_NS (1 * NM_NS_PER_MS)
/* Calls without a result may take this share of the descriptors of the process: an eighth. */
#define CALL_SHARE 8
/* Before the next call of a peer that uses another way meanwhile. */
#define CALL_AGAIN_NS NM_NS_PER_S
/*
 * If others wait, a call without a result loses its turn after this share of connect_ms, and waits as
 * long. So all calls have a turn in time if there are not more than descriptors.
 */
#define TURN_SHARE 8

/* The peer may still be reachable over another channel. */
NM_COLD int nm_connect_failed(struct nm_reason *ret_reason, const char *what, int err)
{
	nm_reason_set(ret_reason, "%s: %s", what, strerror(-err));
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM || err == -ENOBUFS ?
		       err :
		       -EHOSTUNREACH;
}

static NM_COLD int timed_out(const struct nm_sessions *sessions, struct nm_reason *ret_reason)
{
	nm_reason_set(ret_reason,
		      "it gave no answer within %u ms (is it stopped?): see NEARMETAL_CONNECT_MS",
		      sessions->config.connect_ms);
	return -EHOSTUNREACH;
}

/* Said at each progress, so the words are ready. */
static int not_now(struct nm_reason *ret_reason)
{
	static const struct nm_reason awaited = {"its answer is awaited"};

	if (ret_reason)
		*ret_reason = awaited;
	return -EAGAIN;
}

/* The peer may have sent its reason before it hung up. It is read in place of the answer. */
static bool hung_up(int err)
{
	return err == -EPIPE || err == -ECONNRESET;
}

/* From here on the service thread takes the messages of CALL. */
static int watch(struct nm_sessions *sessions, struct nm_handshake *call,
		 struct nm_reason *ret_reason)
{
	int err;

	if (call->is_watched)
		return 0;
	err = nm_sessions_watch(sessions, call->fd, &call->watch);
	if (err)
		return nm_connect_failed(ret_reason, "cannot watch its socket", err);
	call->is_watched = true;
	return 0;
}

static int say_hello(struct nm_sessions *sessions, struct nm_handshake *call,
		     struct nm_reason *ret_reason)
{
	struct nm_greeting hello;
	int err;

	err = nm_handshake_take_lane(sessions, call, ret_reason);
	if (err)
		return err;
	nm_handshake_greet(sessions, call, NM_MESSAGE_HELLO, &hello);
	hello.to = call->session->who;
	NM_FAULT("call-hello-before");
	err = nm_message_send(call->fd, &hello, sizeof(hello), sessions->wire->window_fd);
	NM_FAULT("call-hello-after");
	if (err == -EBUSY) {
		nm_reason_set(ret_reason, "cannot say hello: %s", nm_message_send_error(err));
		return err;
	}
	if (err && !hung_up(err))
		return nm_connect_failed(ret_reason, "cannot say hello", err);
	nm_handshake_set_state(call, NM_HANDSHAKE_AWAIT_WELCOME);
	return 0;
}

static int take_welcome(struct nm_sessions *sessions, struct nm_handshake *call,
			const uint8_t *bytes, size_t len, int window_fd,
			struct nm_reason *ret_reason)
{
	struct nm_greeting welcome;
	int err;

	err = nm_greeting_parse(bytes, len, NM_MESSAGE_WELCOME, &welcome, ret_reason);
	if (!err && !nm_identity_equal(&welcome.who, &call->session->who)) {
		nm_reason_set(ret_reason, "another endpoint answers on its socket");
		err = -EBADMSG;
	}
	if (!err)
		err = nm_handshake_take_window(sessions, call, &welcome, window_fd, ret_reason);
	if (!err && !nm_handshake_proven(sessions, call)) {
		nm_reason_set(ret_reason, "the challenge does not appear in its window");
		err = -EBADMSG;
	}
	if (err)
		return err;
	call->turn_ns = nm_clock_ns();
	/* The window may be there since a call in its name, with any label. */
	if (__atomic_load_n(&call->session->state, __ATOMIC_RELAXED) == NM_SESSION_NEW)
		call->session->label = call->label;
	nm_handshake_show(sessions, call, NM_LANE_SHOWN, welcome.challenge);
	nm_handshake_reach(sessions, call);
	NM_FAULT("call-met-before");
	err = nm_handshake_send_step(sessions, call, NM_MESSAGE_MET, call->cma_reached,
				     call->session->out.cma_why.text);
	NM_FAULT("call-met-after");
	if (err && !hung_up(err))
		return nm_connect_failed(ret_reason, "cannot continue the handshake", err);
	nm_handshake_set_state(call, NM_HANDSHAKE_AWAIT_ACK);
	return 0;
}

static int take_ack(struct nm_sessions *sessions, struct nm_handshake *call, const uint8_t *bytes,
		    size_t len, int heap_fd, struct nm_reason *ret_reason)
{
	struct nm_direction *out = &call->session->out;
	struct nm_step step;
	int kind, err;

	kind = nm_message_parse(bytes, len, ret_reason);
	if (kind < 0)
		return kind;
	nm_step_copy(bytes, &step);
	if (kind == NM_MESSAGE_BYE) {
		nm_reason_set(ret_reason, "it refused: %s", step.words);
		return step.value == -EBUSY ? -EBUSY : -ECONNREFUSED;
	}
	if (kind != NM_MESSAGE_ACK) {
		nm_reason_set(ret_reason, "it sent message %d where an ACK was due", kind);
		return -EBADMSG;
	}
	if (nm_handshake_step(sessions, call) != NM_LANE_AGREED) {
		nm_reason_set(ret_reason, "its window does not show its agreement");
		return -EBADMSG;
	}
	err = watch(sessions, call, ret_reason);
	if (err)
		return err;
	out->cma = call->cma_reached && nm_handshake_hear(sessions, call, &step);
	nm_handshake_take_heap(call, heap_fd);
	out->reads_heap = call->session->heap.base;
	NM_FAULT("call-go-before");
	/* From here on the peer may read, so there is no way back: GO only says it sooner. */
	nm_handshake_show(sessions, call, NM_LANE_AGREED, 0);
	(void)nm_message_send_step(call->fd, NM_MESSAGE_GO, out->cma, out->cma_why.text);
	nm_handshake_set_state(call, NM_HANDSHAKE_READY);
	nm_doorbell_ring(&sessions->event_doorbell);
	NM_FAULT("call-go-after");
	return 0;
}

int nm_call_handle(struct nm_sessions *sessions, struct nm_handshake *call, const uint8_t *bytes,
		   size_t len, int passed_fd, struct nm_reason *ret_reason)
{
	if (call->state == NM_HANDSHAKE_AWAIT_WELCOME)
		return take_welcome(sessions, call, bytes, len, passed_fd, ret_reason);
	return take_ack(sessions, call, bytes, len, passed_fd, ret_reason);
}

void nm_call_fail(struct nm_sessions *sessions, struct nm_handshake *call, int err,
		  const struct nm_reason *why)
{
	nm_handshake_farewell(sessions, call, err, why->text);
	nm_handshake_hang_up(sessions, call);
	call->err = err;
	call->why = *why;
	nm_handshake_set_state(call, NM_HANDSHAKE_FAILED);
	nm_doorbell_ring(&sessions->event_doorbell);
}

/* Each call holds a descriptor until its result, and the program needs some, too. */
static bool has_too_many_calls(const struct nm_sessions *sessions)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
	uint64_t nr = 0;

	getrlimit(RLIMIT_NOFILE, &limit);
	for (const struct nm_handshake *handshake = sessions->handshakes; handshake;
	     handshake = handshake->next)
		nr += nm_handshake_is_call(handshake);
	return nr >= nm_max_u64(limit.rlim_cur / CALL_SHARE, 1);
}

static int begin(struct nm_sessions *sessions, const struct nm_identity *who,
		 struct nm_handshake **ret_call, struct nm_reason *ret_reason)
{
	struct nm_handshake *call = nm_handshake_create(sessions, -1, NM_ROLE_WRITER);
	int err;

	if (!call) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = nm_handshake_join(sessions, call, who, ret_reason);
	if (err) {
		nm_handshake_close(sessions, call);
		return err;
	}
	*ret_call = call;
	return 0;
}

/* Begin it again after PAUSE_NS. The deadline stays. */
static int call_again(struct nm_sessions *sessions, struct nm_handshake **call, uint64_t pause_ns,
		      struct nm_reason *ret_reason)
{
	struct nm_identity who = (*call)->session->who;
	uint64_t deadline_ns = (*call)->deadline_ns, turn_ns = (*call)->turn_ns;
	bool is_prolonged = (*call)->is_prolonged;
	int err;

	nm_handshake_close(sessions, *call);
	err = begin(sessions, &who, call, ret_reason);
	if (err)
		return err;
	(*call)->deadline_ns = deadline_ns;
	(*call)->turn_ns = turn_ns;
	(*call)->is_prolonged = is_prolonged;
	(*call)->call_ns = nm_clock_ns() + pause_ns;
	return not_now(ret_reason);
}

static uint64_t turn_of(const struct nm_sessions *sessions)
{
	return sessions->config.connect_ms * NM_NS_PER_MS / TURN_SHARE;
}

/* End the turn of the call that waits longest for an answer. False: all are young. */
static bool end_turn(struct nm_sessions *sessions, uint64_t now)
{
	uint64_t turn_ns = turn_of(sessions);
	struct nm_handshake *handshake, *oldest = NULL;
	struct nm_reason why;

	for (handshake = sessions->handshakes; handshake; handshake = handshake->next)
		if (nm_handshake_is_call(handshake) &&
		    (!oldest || handshake->turn_ns < oldest->turn_ns))
			oldest = handshake;
	if (!oldest || now < oldest->turn_ns + turn_ns)
		return false;
	/* Its answer may be there, unread. */
	nm_handshake_ready(sessions, &oldest->watch);
	/* Without memory, its next try is a new call. */
	if (nm_handshake_is_call(oldest))
		(void)call_again(sessions, &oldest, turn_ns, &why);
	return !has_too_many_calls(sessions);
}

/* Connect and say hello. -EAGAIN: the call goes on. */
static int dial(struct nm_sessions *sessions, struct nm_handshake *call,
		struct nm_reason *ret_reason)
{
	uint64_t now = nm_clock_ns();
	int err = -EAGAIN;

	/* A peer that meets this endpoint must see its life, too. */
	if (now >= call->call_ns &&
	    atomic_load_explicit(&sessions->is_serving, memory_order_acquire)) {
		call->call_ns = now + PAUSE_NS;
		if (!has_too_many_calls(sessions) || end_turn(sessions, now)) {
			call->turn_ns = now;
			err = sessions->wire->ops->connect(sessions, call, ret_reason);
		} else if (!call->turn_ns) {
			/* Its time begins when it is its turn. */
			call->deadline_ns = now + sessions->config.connect_ms * NM_NS_PER_MS;
		}
	}
	if (err == -EAGAIN)
		return now < call->deadline_ns ? not_now(ret_reason) :
						 timed_out(sessions, ret_reason);
	/* A caller that was away gives the peer time to answer all the same, once. */
	if (!err && !call->is_prolonged && call->deadline_ns < now + turn_of(sessions)) {
		call->deadline_ns = now + turn_of(sessions);
		call->is_prolonged = true;
	}
	if (!err)
		err = say_hello(sessions, call, ret_reason);
	return err ? err : not_now(ret_reason);
}

/* Returns 0: the direction is ready; -EAGAIN: not yet; -errno with a reason. */
static int look(struct nm_sessions *sessions, struct nm_handshake *call,
		struct nm_reason *ret_reason)
{
	bool is_late = nm_clock_ns() >= call->deadline_ns;

	/* The answer may have come while this process did not run. */
	if (nm_handshake_is_call(call) && (is_late || !call->is_watched))
		nm_handshake_ready(sessions, &call->watch);
	if (nm_handshake_is_call(call) && is_late)
		return timed_out(sessions, ret_reason);
	if (call->state == NM_HANDSHAKE_CALLING)
		return dial(sessions, call, ret_reason);
	if (call->state == NM_HANDSHAKE_FAILED) {
		*ret_reason = call->why;
		return call->err;
	}
	return call->state == NM_HANDSHAKE_READY ? 0 : not_now(ret_reason);
}

/*
 * The call has ended with ERR. Returns what the endpoint gets. IS_QUIET: the peer is reached in
 * another way, and this one is tried again later.
 */
static NM_COLD int give_up(struct nm_sessions *sessions, struct nm_handshake *call, int err,
			   bool is_quiet, const struct nm_reason *why)
{
	if (is_quiet && err != -ENOENT)
		nm_session_await(sessions, call->session, call->session->part,
				 nm_clock_ns() + CALL_AGAIN_NS);
	/* A peer that is elsewhere is usual. A peer here without a session deserves a log entry. */
	if (err != -ENOENT && !is_quiet)
		nm_warn("peer " NM_WHO_FORMAT
			" cannot be reached in %.80s; a slower channel is used: %s",
			NM_WHO(&call->session->who), sessions->wire->place, why->text);
	nm_direction_close(sessions, &call->session->out, err, why);
	switch (err) {
	case -EMFILE:
	case -ENFILE:
	case -ENOMEM:
	case -ENOBUFS:
	case -ENOSPC:
		return err;
	default:
		/* After a protocol error too, the peer is not reachable here. */
		return -EHOSTUNREACH;
	}
}

/* RET_IS_NEW: a call began. RET_CALL: the call, if the result is 0 or -EAGAIN, or NULL. */
static int try_once(struct nm_sessions *sessions, const struct nm_identity *who, bool is_quiet,
		    struct nm_handshake **ret_call, bool *ret_is_new, struct nm_reason *ret_reason)
{
	struct nm_session *session = nm_session_get(sessions, who, false);
	struct nm_handshake *call = session ? session->out.handshake : NULL;
	int err = 0;

	*ret_call = NULL;
	*ret_is_new = !call || call->state >= NM_HANDSHAKE_UP || session->state > NM_SESSION_UP;
	if (*ret_is_new)
		err = begin(sessions, who, &call, ret_reason);
	if (err)
		return err;
	err = look(sessions, call, ret_reason);
	if (err == -EBUSY && nm_clock_ns() < call->deadline_ns)
		/* Strangers filled the peer's queue, or the kernel's, before it read the hello. */
		err = call_again(sessions, &call, PAUSE_NS, ret_reason);
	else if (err && err != -EAGAIN)
		err = give_up(sessions, call, err, is_quiet, ret_reason);
	if (!err || err == -EAGAIN)
		*ret_call = call;
	return err;
}

/* Wait until END_NS, until there is a message for CALL, or until it may be dialled again. */
static void await(struct nm_sessions *sessions, const struct nm_handshake *call, uint64_t end_ns)
{
	/* A negative descriptor is only a wait. */
	struct pollfd poller = {.fd = call->fd, .events = POLLIN};
	uint64_t now = nm_clock_ns();
	struct timespec timeout;

	if (call->state == NM_HANDSHAKE_CALLING)
		end_ns = nm_min_u64(end_ns, call->call_ns);
	end_ns = nm_max_u64(end_ns, now);
	timeout.tv_sec = (time_t)((end_ns - now) / NM_NS_PER_S);
	timeout.tv_nsec = (long)((end_ns - now) % NM_NS_PER_S);
	pthread_mutex_unlock(&sessions->lock);
	ppoll(&poller, 1, &timeout, NULL);
	pthread_mutex_lock(&sessions->lock);
}

static int connect_to(struct nm_sessions *sessions, const struct nm_identity *who, bool is_quiet,
		      struct nm_session **ret_session, struct nm_reason *ret_reason)
{
	struct nm_handshake *call;
	bool is_new, is_first;
	uint64_t grace_ns;
	int err;

	/* Only this thread pauses. */
	if (!sessions->wire) {
		nm_reason_set(ret_reason, "this machine has left its segment, and has no other");
		return -EHOSTUNREACH;
	}
	if (!sessions->grace_ns)
		sessions->grace_ns = GRACE_NS;
	grace_ns = nm_clock_ns() +
		   nm_min_u64(sessions->grace_ns, sessions->config.connect_ms * NM_NS_PER_MS / 2);
	pthread_mutex_lock(&sessions->lock);
	err = try_once(sessions, who, is_quiet, &call, &is_first, ret_reason);
	/* A call beside another way says nothing about the time that the next one needs. */
	is_first &= !is_quiet;
	while (call && err == -EAGAIN && is_first && nm_clock_ns() < grace_ns) {
		await(sessions, call, grace_ns);
		err = try_once(sessions, who, is_quiet, &call, &is_new, ret_reason);
	}
	if (call && !err) {
		nm_handshake_set_state(call, NM_HANDSHAKE_UP);
		*ret_session = call->session;
		nm_session_begin(sessions, call->session, NM_SESSION_UP);
	} else if (call && err == -EAGAIN && nm_handshake_is_call(call)) {
		int failed = watch(sessions, call, ret_reason);

		if (failed)
			err = give_up(sessions, call, failed, is_quiet, ret_reason);
	}
	pthread_mutex_unlock(&sessions->lock);
	if (is_first && err == -EAGAIN)
		sessions->grace_ns = nm_max_u64(sessions->grace_ns / 2, GRACE_MIN_NS);
	else if (is_first && !err)
		sessions->grace_ns = nm_min_u64(sessions->grace_ns + GRACE_GAIN_NS, GRACE_NS);
	return err;
}

int nm_sessions_connect(struct nm_sessions *sessions, const struct nm_identity *who,
			struct nm_session **ret_session, struct nm_reason *ret_reason)
{
	return connect_to(sessions, who, false, ret_session, ret_reason);
}

int nm_sessions_call(struct nm_sessions *sessions, const struct nm_identity *who,
		     struct nm_session **ret_session, struct nm_reason *ret_reason)
{
	return connect_to(sessions, who, true, ret_session, ret_reason);
}
