/* SPDX-License-Identifier: Apache-2.0 */
/* One session: its lane, its neighbour's window, its end. Everything here: under sessions->lock. */
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

struct nm_handshake *nm_handshake_create(struct nm_sessions *sessions, int fd,
					 enum nm_handshake_state state)
{
	struct nm_handshake *handshake = calloc(1, sizeof(*handshake));

	if (!handshake)
		return NULL;
	handshake->watch.ready = nm_handshake_ready;
	handshake->fd = fd;
	handshake->state = state;
	handshake->session.role =
		state == NM_HANDSHAKE_CONNECTING ? NM_ROLE_WRITER : NM_ROLE_READER;
	handshake->deadline_ns = nm_clock_ns() + sessions->config.connect_ms * NM_NS_PER_MS;
	handshake->source_event.session = &handshake->session;
	handshake->source_event.kind = NM_SESSION_SOURCE;
	handshake->lost_event.session = &handshake->session;
	handshake->lost_event.kind = NM_SESSION_LOST;
	handshake->next = sessions->handshakes;
	sessions->handshakes = handshake;
	sessions->nr_handshakes++;
	return handshake;
}

static struct nm_lane_list *lanes_of(struct nm_sessions *sessions,
				     const struct nm_handshake *handshake)
{
	return handshake->session.role == NM_ROLE_WRITER ? &sessions->writer_lanes :
							   &sessions->reader_lanes;
}

int nm_handshake_take_lane(struct nm_sessions *sessions, struct nm_handshake *handshake,
			   struct nm_reason *ret_reason)
{
	uint32_t nr_lanes = sessions->config.window->geometry.nr_lanes, lane;
	struct nm_lane_list *list = lanes_of(sessions, handshake);
	int err;

	if (!list->nr_free) {
		nm_reason_set(ret_reason,
			      "all %u lanes of %s are in use: raise NEARMETAL_MAX_LOCAL_PEERS",
			      nr_lanes, sessions->label.text);
		return -ENOSPC;
	}
	lane = list->free[list->head];
	if (handshake->session.role == NM_ROLE_WRITER) {
		err = nm_window_reserve_ring(sessions->config.window, lane, ret_reason);
		if (err)
			return err;
		handshake->session.start = sessions->stream_starts[lane];
	}
	list->head = (list->head + 1) % nr_lanes;
	list->nr_free--;
	handshake->session.own_lane = lane;
	handshake->has_lane = true;
	return 0;
}

static void give_lane(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	uint32_t nr_lanes = sessions->config.window->geometry.nr_lanes;
	struct nm_lane_list *list = lanes_of(sessions, handshake);

	if (!handshake->has_lane)
		return;
	list->free[(list->head + list->nr_free++) % nr_lanes] = handshake->session.own_lane;
	handshake->has_lane = false;
}

static void drop_neighbour(struct nm_sessions *sessions, struct nm_neighbour *neighbour)
{
	struct nm_neighbour **place;

	if (!neighbour || --neighbour->nr_users)
		return;
	for (place = &sessions->neighbours; *place != neighbour; place = &(*place)->next)
		;
	*place = neighbour->next;
	nm_window_detach(&neighbour->window);
	free(neighbour);
}

static void hang_up(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	if (handshake->fd < 0)
		return;
	nm_sessions_unwatch(sessions, handshake->fd);
	if (sessions->wire->ops->hung_up)
		sessions->wire->ops->hung_up(sessions, handshake);
	close(handshake->fd);
	handshake->fd = -1;
}

void nm_handshake_close(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	if (handshake->state == NM_HANDSHAKE_LEFT)
		return;
	handshake->state = NM_HANDSHAKE_LEFT;
	hang_up(sessions, handshake);
	give_lane(sessions, handshake);
	drop_neighbour(sessions, handshake->neighbour);
	handshake->neighbour = NULL;
	handshake->session.window = NULL;
}

void nm_handshake_lost(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	struct nm_session *session = &handshake->session;
	const char *label = session->label.text;
	struct nm_reason how = {""};

	handshake->state = NM_HANDSHAKE_LOST;
	hang_up(sessions, handshake);
	if (handshake->bye.header.kind && handshake->bye.err) {
		/* That I broke the rules is an end of this channel alone. */
		session->err = handshake->bye.err == -EBADMSG ? -EBADMSG : -ECONNRESET;
		nm_reason_set(&session->why, "%s ended the connection: %s", label,
			      handshake->bye.words);
	} else if (handshake->bye.header.kind ||
		   sessions->wire->ops->ended(sessions, handshake, &how)) {
		session->err = 0;
		nm_reason_set(&session->why, "%s closed its endpoint", label);
	} else {
		session->err = -ECONNRESET;
		nm_reason_set(&session->why, "%s died: %s", label, how.text);
	}
	nm_sessions_push_event(sessions, &handshake->lost_event);
}

void nm_handshake_greet(struct nm_sessions *sessions, struct nm_handshake *handshake,
			enum nm_message_kind kind, struct nm_greeting *ret_greeting)
{
	struct nm_greeting greeting = {
		.who = sessions->config.who,
		.lane = handshake->session.own_lane,
		.features = sessions->config.features,
		.start = handshake->session.start,
		.pid_ns_device = sessions->pid_ns_device,
		.pid_ns_inode = sessions->pid_ns_inode,
		.label = sessions->label,
	};

	/* Never 0: an unwritten lane proves nothing. Not a secret, only fresh. */
	while (!handshake->challenge)
		if (getrandom(&handshake->challenge, sizeof(handshake->challenge), 0) < 0)
			handshake->challenge = nm_clock_ns();
	greeting.challenge = handshake->challenge;
	nm_handshake_offer_cma(sessions, handshake, &greeting);
	nm_message_init(&greeting.header, kind);
	*ret_greeting = greeting;
}

static int find_or_map(struct nm_sessions *sessions, struct nm_handshake *handshake,
		       const struct nm_greeting *greeting, int window_fd,
		       struct nm_neighbour **ret_neighbour, struct nm_reason *ret_reason)
{
	struct nm_neighbour *neighbour;
	int err;

	for (neighbour = sessions->neighbours; neighbour; neighbour = neighbour->next)
		if (nm_identity_equal(&neighbour->who, &greeting->who)) {
			err = sessions->wire->ops->map(sessions, handshake, greeting, window_fd,
						       &neighbour->window, NULL, ret_reason);
			if (err)
				return err;
			neighbour->nr_users++;
			*ret_neighbour = neighbour;
			return 0;
		}
	neighbour = calloc(1, sizeof(*neighbour));
	if (!neighbour) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = sessions->wire->ops->map(sessions, handshake, greeting, window_fd, NULL,
				       &neighbour->window, ret_reason);
	if (err) {
		free(neighbour);
		return err;
	}
	neighbour->who = greeting->who;
	neighbour->nr_users = 1;
	neighbour->next = sessions->neighbours;
	sessions->neighbours = neighbour;
	*ret_neighbour = neighbour;
	return 0;
}

int nm_handshake_take_window(struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting, int window_fd,
			     struct nm_reason *ret_reason)
{
	struct nm_session *session = &handshake->session;
	struct nm_neighbour *neighbour;
	int err;

	if (greeting->features != sessions->config.features) {
		nm_reason_set(ret_reason,
			      "NEARMETAL_CHECKSUM is %s there and %s here: set it alike",
			      greeting->features & NM_FEATURE_CHECKSUM ? "on" : "off",
			      sessions->config.features & NM_FEATURE_CHECKSUM ? "on" : "off");
		return -EPROTONOSUPPORT;
	}
	err = find_or_map(sessions, handshake, greeting, window_fd, &neighbour, ret_reason);
	if (err)
		return err;
	if (greeting->lane >= neighbour->window.geometry.nr_lanes) {
		nm_reason_set(ret_reason, "it named lane %u of %u", greeting->lane,
			      neighbour->window.geometry.nr_lanes);
		drop_neighbour(sessions, neighbour);
		return -EBADMSG;
	}
	handshake->neighbour = neighbour;
	session->window = &neighbour->window;
	session->who = greeting->who;
	session->label = greeting->label;
	session->peer_lane = greeting->lane;
	nm_handshake_take_offer(sessions, handshake, greeting);
	return 0;
}

struct nm_lane *nm_handshake_own_lane(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	return &sessions->config.window->lanes[handshake->session.own_lane];
}

bool nm_handshake_proven(const struct nm_handshake *handshake)
{
	const struct nm_session *session = &handshake->session;
	const struct nm_lane *lane = &session->window->lanes[session->peer_lane];

	/* Partner: the release stores of `proof` in listener.c and handshake_connect.c; the message that
	 * announces it came after. */
	return atomic_load_explicit(session->role == NM_ROLE_WRITER ? &lane->reader_proof :
								      &lane->writer_proof,
				    memory_order_acquire) == handshake->challenge;
}

int nm_handshake_watch(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	return nm_sessions_watch(sessions, handshake->fd, &handshake->watch);
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
