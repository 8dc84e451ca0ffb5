/* SPDX-License-Identifier: Apache-2.0 */
/* One handshake: its session, its lane, its end. All functions need sessions->lock. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/session_private.h"
#include "shm/ring.h"

/* Callers that an endpoint meets in its life. One takes some kilobytes, here and in the engine. */
#define SESSIONS_PER_LANE 32

const uint32_t nm_handshake_transitions[NM_NR_HANDSHAKE_STATES] = {
	[NM_HANDSHAKE_AWAIT_HELLO] = NM_STATE(NM_HANDSHAKE_AWAIT_MET) | NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_AWAIT_MET] = NM_STATE(NM_HANDSHAKE_AWAIT_GO) | NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_AWAIT_GO] = NM_STATE(NM_HANDSHAKE_UP) | NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_CALLING] = NM_STATE(NM_HANDSHAKE_AWAIT_WELCOME) | NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_AWAIT_WELCOME] = NM_STATE(NM_HANDSHAKE_AWAIT_ACK) |
				       NM_STATE(NM_HANDSHAKE_FAILED) | NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_AWAIT_ACK] = NM_STATE(NM_HANDSHAKE_READY) | NM_STATE(NM_HANDSHAKE_FAILED) |
				   NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_READY] = NM_STATE(NM_HANDSHAKE_UP) | NM_STATE(NM_HANDSHAKE_FAILED) |
			       NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_FAILED] = NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_UP] = NM_STATE(NM_HANDSHAKE_LOST) | NM_STATE(NM_HANDSHAKE_LEFT),
	[NM_HANDSHAKE_LOST] = NM_STATE(NM_HANDSHAKE_LEFT),
};

struct nm_handshake *nm_handshake_create(struct nm_sessions *sessions, int fd, enum nm_role role)
{
	struct nm_handshake *handshake = calloc(1, sizeof(*handshake));

	if (!handshake)
		return NULL;
	handshake->watch.ready = nm_handshake_ready;
	handshake->fd = fd;
	handshake->role = role;
	handshake->state = role == NM_ROLE_WRITER ? NM_HANDSHAKE_CALLING : NM_HANDSHAKE_AWAIT_HELLO;
	handshake->deadline_ns = nm_clock_ns() + sessions->config.connect_ms * NM_NS_PER_MS;
	handshake->next = sessions->handshakes;
	sessions->handshakes = handshake;
	return handshake;
}

/* The direction that WHO ended, as its window shows, must not keep out the next one. */
static void drop_ended(struct nm_sessions *sessions, const struct nm_identity *who)
{
	struct nm_session *session = nm_session_get(sessions, who, false);
	struct nm_handshake *in = session ? session->in.handshake : NULL;
	int err;

	if (in && in->state == NM_HANDSHAKE_AWAIT_GO &&
	    nm_handshake_look(sessions, in, &err) > NM_SIGHT_OPEN)
		nm_handshake_close(sessions, in);
}

/*
 * An identity stays in the table, and a process can call under any number of them. In a segment each
 * machine has its own bound (share.h), so that none can use up what the others need.
 */
static bool is_full(struct nm_sessions *sessions, const struct nm_identity *who)
{
	return !sessions->config.segment &&
	       sessions->nr_sessions >=
		       SESSIONS_PER_LANE * sessions->config.window->geometry.nr_lanes &&
	       !nm_session_get(sessions, who, false);
}

int nm_handshake_join(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      const struct nm_identity *who, struct nm_reason *ret_reason)
{
	struct nm_session *session;

	if (handshake->role == NM_ROLE_READER) {
		drop_ended(sessions, who);
		if (is_full(sessions, who)) {
			nm_reason_set(ret_reason, "it has met %u endpoints, and remembers no more",
				      sessions->nr_sessions);
			return -ENOSPC;
		}
	}
	session = nm_session_get(sessions, who, true);
	if (!session) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	if (__atomic_load_n(&session->state, __ATOMIC_RELAXED) > NM_SESSION_UP) {
		/* Only the endpoint's thread, which is the writer's, may read the reason. */
		if (handshake->role == NM_ROLE_WRITER)
			nm_reason_set(ret_reason, "it is gone: %.150s", session->why.text);
		else
			nm_reason_set(ret_reason, "its session has ended");
		return -EHOSTUNREACH;
	}
	if (handshake->role == NM_ROLE_WRITER ? session->out.handshake : session->in.handshake) {
		nm_reason_set(ret_reason, "this direction of its session exists already");
		return -EISCONN;
	}
	handshake->session = session;
	if (handshake->role == NM_ROLE_WRITER) {
		session->out.handshake = handshake;
		session->out.is_over = session->out.is_lost = false;
		nm_list_remove(&session->back_node);
	} else {
		session->nr_pending++;
	}
	return 0;
}

int nm_handshake_take_lane(struct nm_sessions *sessions, struct nm_handshake *handshake,
			   struct nm_reason *ret_reason)
{
	uint32_t nr_lanes = sessions->config.window->geometry.nr_lanes, lane;
	struct nm_direction *direction = nm_handshake_direction(handshake);
	struct nm_lane_list *list = &sessions->lanes[handshake->role];
	int err;

	if (!list->nr_free) {
		nm_reason_set(ret_reason,
			      "all %u lanes of %s are in use: raise NEARMETAL_MAX_LOCAL_PEERS",
			      nr_lanes, sessions->label.text);
		return -ENOSPC;
	}
	lane = list->free[list->head];
	if (handshake->role == NM_ROLE_WRITER) {
		err = nm_window_reserve_ring(sessions->config.window, lane, ret_reason);
		if (err)
			return err;
		direction->start = direction->end = sessions->stream_starts[lane];
	}
	list->head = (list->head + 1) % nr_lanes;
	list->nr_free--;
	direction->own_lane = lane;
	handshake->has_lane = true;
	nm_handshake_show(sessions, handshake, NM_LANE_IDLE, 0);
	return 0;
}

void nm_handshake_show(struct nm_sessions *sessions, struct nm_handshake *handshake,
		       unsigned int what, uint64_t challenge)
{
	bool is_writer = handshake->role == NM_ROLE_WRITER;
	_Atomic uint16_t *step;
	struct nm_lane *lane;

	if (!handshake->has_lane)
		return;
	lane = nm_handshake_own_lane(sessions, handshake);
	step = is_writer ? &lane->writer_step : &lane->reader_step;
	if (what & NM_LANE_ENDED &&
	    atomic_load_explicit(step, memory_order_relaxed) & NM_LANE_ENDED)
		return;
	if (what == NM_LANE_SHOWN) {
		memcpy(is_writer ? lane->writer_for : lane->reader_for, &handshake->session->who,
		       NM_LANE_WHO);
		if (is_writer)
			lane->start = (uint32_t)nm_handshake_direction(handshake)->start;
		/* Partner: nm_handshake_step() of the peer. */
		atomic_store_explicit(is_writer ? &lane->writer_proof : &lane->reader_proof,
				      challenge, memory_order_release);
	}
	atomic_store_explicit(step, (uint16_t)what, memory_order_release);
}

static void give_lane(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	const struct nm_geometry *geometry = &sessions->config.window->geometry;
	struct nm_lane_list *list = &sessions->lanes[handshake->role];
	const struct nm_direction *direction;

	if (!handshake->has_lane)
		return;
	direction = nm_handshake_direction(handshake);
	list->free[(list->head + list->nr_free++) % geometry->nr_lanes] = direction->own_lane;
	handshake->has_lane = false;
	/* One lap further: a reader of the old stream must not accept a slot of the next one. */
	if (handshake->role == NM_ROLE_WRITER)
		sessions->stream_starts[direction->own_lane] =
			(uint32_t)(direction->end + geometry->ring_slots);
}

void nm_handshake_hang_up(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	if (handshake->fd < 0)
		return;
	nm_sessions_unwatch(sessions, handshake->fd);
	if (sessions->wire->ops->hung_up)
		sessions->wire->ops->hung_up(sessions, handshake);
	nm_close_fd(&handshake->fd);
}

void nm_handshake_close(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	if (handshake->state == NM_HANDSHAKE_LEFT)
		return;
	nm_handshake_set_state(handshake, NM_HANDSHAKE_LEFT);
	nm_handshake_show(sessions, handshake, NM_LANE_ENDED, 0);
	nm_handshake_hang_up(sessions, handshake);
	give_lane(sessions, handshake);
	if (!handshake->session)
		return;
	if (handshake->role == NM_ROLE_WRITER || handshake->is_proven)
		nm_handshake_direction(handshake)->handshake = NULL;
	else
		handshake->session->nr_pending--;
	nm_session_put(sessions, handshake->session);
	handshake->session = NULL;
}

void nm_handshake_farewell(struct nm_sessions *sessions, struct nm_handshake *handshake, int err,
			   const char *why)
{
	/* Before the words, which the peer believes only if it sees the end here. */
	nm_handshake_show(sessions, handshake, NM_LANE_ENDED | ((unsigned int)-err & NM_LANE_ERRNO),
			  0);
	if (why && handshake->fd >= 0)
		nm_message_send_step(handshake->fd, NM_MESSAGE_BYE, err, why);
}

void nm_direction_close(struct nm_sessions *sessions, struct nm_direction *direction, int err,
			const struct nm_reason *why)
{
	struct nm_handshake *handshake = direction->handshake;

	if (!handshake)
		return;
	nm_handshake_farewell(sessions, handshake, err, why ? why->text : NULL);
	nm_handshake_close(sessions, handshake);
}

/* The window shows how the peer ended it; on the socket another process may have said it. */
static void correct_farewell(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	struct nm_step *bye = &handshake->bye;
	enum nm_sight sight;
	int err = 0;

	sight = nm_handshake_look(sessions, handshake, &err);
	if (sight == NM_SIGHT_CLOSED || sight == NM_SIGHT_DIED)
		*bye = (struct nm_step){.value = 0};
	if (!err)
		return;
	if (!bye->header.kind)
		snprintf(bye->words, sizeof(bye->words), "%s", strerror(-err));
	nm_message_init(&bye->header, NM_MESSAGE_BYE);
	bye->value = err;
}

void nm_handshake_lost(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	const char *label = handshake->session->label.text;
	struct nm_reason how = {""};

	correct_farewell(sessions, handshake);
	nm_handshake_set_state(handshake, NM_HANDSHAKE_LOST);
	nm_handshake_hang_up(sessions, handshake);
	if (handshake->bye.header.kind && handshake->bye.value) {
		/* A broken rule on this side ends only this channel. */
		handshake->err = handshake->bye.value == -EBADMSG ? -EBADMSG : -ECONNRESET;
		nm_reason_set(&handshake->why, "%s ended the connection: %s", label,
			      handshake->bye.words);
	} else if (handshake->bye.header.kind ||
		   sessions->wire->ops->ended(sessions, handshake, &how)) {
		nm_reason_set(&handshake->why, "%s closed its endpoint", label);
	} else {
		handshake->err = -ECONNRESET;
		nm_reason_set(&handshake->why, "%s died: %s", label, how.text);
	}
	handshake->is_absent &= handshake->err && !handshake->bye.header.kind &&
				!(nm_handshake_step(sessions, handshake) & NM_LANE_ENDED);
	nm_session_push_event(sessions, handshake->session, NM_SESSION_LOST);
}

void nm_handshake_greet(struct nm_sessions *sessions, struct nm_handshake *handshake,
			enum nm_message_kind kind, struct nm_greeting *ret_greeting)
{
	struct nm_greeting greeting = {
		.who = sessions->config.who,
		.lane = nm_handshake_direction(handshake)->own_lane,
		.features = sessions->config.features,
		.pid_ns_device = sessions->pid_ns_device,
		.pid_ns_inode = sessions->pid_ns_inode,
		.label = sessions->label,
	};

	/* Never 0: an unwritten lane proves nothing. The challenge must be fresh, not secret. */
	while (!handshake->challenge)
		if (getrandom(&handshake->challenge, sizeof(handshake->challenge), 0) < 0)
			handshake->challenge = nm_clock_ns();
	greeting.challenge = handshake->challenge;
	nm_handshake_offer_cma(sessions, handshake, &greeting);
	nm_message_init(&greeting.header, kind);
	*ret_greeting = greeting;
}

/* Windows of callers without a proof take room only as long as no other one needs it. */
static int map_window(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      const struct nm_greeting *greeting, int window_fd,
		      struct nm_reason *ret_reason)
{
	int err, dropped = -ENOSPC;

	do {
		err = sessions->wire->ops->map(sessions, handshake, greeting, window_fd,
					       ret_reason);
		/* In a segment a window takes no room here, and each part has its share. */
		if (err == -ENOSPC && !sessions->config.segment)
			dropped = nm_sessions_drop_unproven(sessions);
	} while (err == -ENOSPC && !dropped);
	if (err != -ENOSPC || dropped != -EBUSY)
		return err;
	nm_reason_set(ret_reason, "windows of callers without a proof take all its room");
	return -EBUSY;
}

int nm_handshake_take_window(struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting, int window_fd,
			     struct nm_reason *ret_reason)
{
	struct nm_session *session = handshake->session;
	bool is_first = !session->window.header;
	int err;

	if (greeting->features != sessions->config.features) {
		nm_reason_set(ret_reason,
			      "NEARMETAL_CHECKSUM is %s there and %s here: use one value on both",
			      greeting->features & NM_FEATURE_CHECKSUM ? "on" : "off",
			      sessions->config.features & NM_FEATURE_CHECKSUM ? "on" : "off");
		return -EPROTONOSUPPORT;
	}
	err = map_window(sessions, handshake, greeting, window_fd, ret_reason);
	if (err)
		return err;
	handshake->label = greeting->label;
	if (is_first)
		session->label = greeting->label;
	err = nm_foreign_check_lane(&session->window, greeting->lane,
				    handshake->role == NM_ROLE_READER, ret_reason);
	if (err)
		return err;
	nm_handshake_direction(handshake)->peer_lane = greeting->lane;
	nm_handshake_take_offer(sessions, handshake, greeting);
	return 0;
}

void nm_handshake_deafen(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	nm_warn("the socket of %s was cut by another process: its channel stays",
		handshake->session->label.text);
	nm_handshake_hang_up(sessions, handshake);
}

void nm_handshake_up(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	nm_handshake_set_state(handshake, NM_HANDSHAKE_UP);
	handshake->nr_looks = 0;
	nm_session_push_event(sessions, handshake->session, NM_SESSION_SOURCE);
}

int nm_sessions_watch(struct nm_sessions *sessions, int fd, struct nm_watch *watch)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = watch};

	return epoll_ctl(sessions->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

void nm_sessions_unwatch(struct nm_sessions *sessions, int fd)
{
	epoll_ctl(sessions->epoll, EPOLL_CTL_DEL, fd, NULL);
}
