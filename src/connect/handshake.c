/* SPDX-License-Identifier: Apache-2.0 */
/* One handshake: its session, its lane, its end. All functions need sessions->lock. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/session_private.h"
#include "shm/ring.h"

struct nm_handshake *nm_handshake_create(struct nm_sessions *sessions, int fd, enum nm_role role)
{
	struct nm_handshake *handshake = calloc(1, sizeof(*handshake));

	if (!handshake)
		return NULL;
	handshake->watch.ready = nm_handshake_ready;
	handshake->fd = fd;
	handshake->role = role;
	handshake->state =
		role == NM_ROLE_WRITER ? NM_HANDSHAKE_CONNECTING : NM_HANDSHAKE_AWAIT_HELLO;
	handshake->deadline_ns = nm_clock_ns() + sessions->config.connect_ms * NM_NS_PER_MS;
	handshake->next = sessions->handshakes;
	sessions->handshakes = handshake;
	sessions->nr_handshakes++;
	return handshake;
}

int nm_handshake_join(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      const struct nm_identity *who, struct nm_reason *ret_reason)
{
	struct nm_session *session = nm_session_get(sessions, who, true);

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
	nm_handshake_direction(handshake)->handshake = handshake;
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
	return 0;
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

static void hang_up(struct nm_sessions *sessions, struct nm_handshake *handshake)
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
	handshake->state = NM_HANDSHAKE_LEFT;
	hang_up(sessions, handshake);
	give_lane(sessions, handshake);
	if (!handshake->session)
		return;
	nm_handshake_direction(handshake)->handshake = NULL;
	nm_session_put(sessions, handshake->session);
	handshake->session = NULL;
}

void nm_direction_close(struct nm_sessions *sessions, struct nm_direction *direction, int err,
			const struct nm_reason *why)
{
	struct nm_handshake *handshake = direction->handshake;

	if (!handshake)
		return;
	if (why && handshake->fd >= 0)
		nm_message_send_step(handshake->fd, NM_MESSAGE_BYE, err, why->text);
	nm_handshake_close(sessions, handshake);
}

void nm_handshake_lost(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	const char *label = handshake->session->label.text;
	struct nm_reason how = {""};

	handshake->state = NM_HANDSHAKE_LOST;
	hang_up(sessions, handshake);
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
	nm_session_push_event(sessions, handshake->session, NM_SESSION_LOST);
}

void nm_handshake_greet(struct nm_sessions *sessions, struct nm_handshake *handshake,
			enum nm_message_kind kind, struct nm_greeting *ret_greeting)
{
	struct nm_greeting greeting = {
		.who = sessions->config.who,
		.lane = nm_handshake_direction(handshake)->own_lane,
		.features = sessions->config.features,
		.start = nm_handshake_direction(handshake)->start,
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
	err = sessions->wire->ops->map(sessions, handshake, greeting, window_fd, ret_reason);
	if (err)
		return err;
	if (is_first)
		session->label = greeting->label;
	if (greeting->lane >= session->window.geometry.nr_lanes) {
		nm_reason_set(ret_reason, "it named lane %u of %u", greeting->lane,
			      session->window.geometry.nr_lanes);
		return -EBADMSG;
	}
	nm_handshake_direction(handshake)->peer_lane = greeting->lane;
	nm_handshake_take_offer(sessions, handshake, greeting);
	return 0;
}

bool nm_handshake_proven(const struct nm_handshake *handshake)
{
	const struct nm_lane *lane =
		&handshake->session->window.lanes[nm_handshake_direction(handshake)->peer_lane];

	/* Partner: the release stores of both proofs by the other side, before its report. */
	return atomic_load_explicit(handshake->role == NM_ROLE_WRITER ? &lane->reader_proof :
									&lane->writer_proof,
				    memory_order_acquire) == handshake->challenge;
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
