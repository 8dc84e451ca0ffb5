/* SPDX-License-Identifier: Apache-2.0 */
/* One meeting: its lane, its neighbour's window, its end. Everything here: under meet->lock. */
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

struct nm_meeting *nm_meeting_create(struct nm_meet *meet, int fd, enum nm_meeting_state state)
{
	struct nm_meeting *meeting = calloc(1, sizeof(*meeting));

	if (!meeting)
		return NULL;
	meeting->watch.ready = nm_meeting_ready;
	meeting->fd = fd;
	meeting->state = state;
	meeting->encounter.role = state == NM_MEETING_VISITING ? NM_ROLE_WRITER : NM_ROLE_READER;
	meeting->deadline_ns = nm_clock_ns() + meet->config.connect_ms * NM_NS_PER_MS;
	meeting->source_event.encounter = &meeting->encounter;
	meeting->source_event.kind = NM_MEET_SOURCE;
	meeting->lost_event.encounter = &meeting->encounter;
	meeting->lost_event.kind = NM_MEET_LOST;
	meeting->next = meet->meetings;
	meet->meetings = meeting;
	meet->nr_meetings++;
	return meeting;
}

static struct nm_lane_list *lanes_of(struct nm_meet *meet, const struct nm_meeting *meeting)
{
	return meeting->encounter.role == NM_ROLE_WRITER ? &meet->writer_lanes :
							   &meet->reader_lanes;
}

int nm_meeting_take_lane(struct nm_meet *meet, struct nm_meeting *meeting,
			 struct nm_reason *ret_reason)
{
	uint32_t nr_lanes = meet->config.window->geometry.nr_lanes, lane;
	struct nm_lane_list *list = lanes_of(meet, meeting);
	int err;

	if (!list->nr_free) {
		nm_reason_set(ret_reason,
			      "all %u lanes of %s are in use: raise NEARMETAL_MAX_LOCAL_PEERS",
			      nr_lanes, meet->label.text);
		return -ENOSPC;
	}
	lane = list->free[list->head];
	if (meeting->encounter.role == NM_ROLE_WRITER) {
		err = nm_window_reserve_box(meet->config.window, lane, ret_reason);
		if (err)
			return err;
		meeting->encounter.start = meet->stream_starts[lane];
	}
	list->head = (list->head + 1) % nr_lanes;
	list->nr_free--;
	meeting->encounter.own_lane = lane;
	meeting->has_lane = true;
	return 0;
}

static void give_lane(struct nm_meet *meet, struct nm_meeting *meeting)
{
	uint32_t nr_lanes = meet->config.window->geometry.nr_lanes;
	struct nm_lane_list *list = lanes_of(meet, meeting);

	if (!meeting->has_lane)
		return;
	list->free[(list->head + list->nr_free++) % nr_lanes] = meeting->encounter.own_lane;
	meeting->has_lane = false;
}

static void drop_neighbour(struct nm_meet *meet, struct nm_neighbour *neighbour)
{
	struct nm_neighbour **place;

	if (!neighbour || --neighbour->nr_users)
		return;
	for (place = &meet->neighbours; *place != neighbour; place = &(*place)->next)
		;
	*place = neighbour->next;
	nm_window_detach(&neighbour->window);
	free(neighbour);
}

static void hang_up(struct nm_meet *meet, struct nm_meeting *meeting)
{
	if (meeting->fd < 0)
		return;
	nm_meet_unwatch(meet, meeting->fd);
	if (meet->wire->ops->hung_up)
		meet->wire->ops->hung_up(meet, meeting);
	close(meeting->fd);
	meeting->fd = -1;
}

void nm_meeting_close(struct nm_meet *meet, struct nm_meeting *meeting)
{
	if (meeting->state == NM_MEETING_LEFT)
		return;
	meeting->state = NM_MEETING_LEFT;
	hang_up(meet, meeting);
	give_lane(meet, meeting);
	drop_neighbour(meet, meeting->neighbour);
	meeting->neighbour = NULL;
	meeting->encounter.window = NULL;
}

void nm_meeting_lost(struct nm_meet *meet, struct nm_meeting *meeting)
{
	struct nm_encounter *encounter = &meeting->encounter;
	const char *label = encounter->label.text;
	struct nm_reason how = {""};

	meeting->state = NM_MEETING_LOST;
	hang_up(meet, meeting);
	if (meeting->bye.header.kind && meeting->bye.err) {
		/* That I broke the rules is an end of this channel alone. */
		encounter->err = meeting->bye.err == -EBADMSG ? -EBADMSG : -ECONNRESET;
		nm_reason_set(&encounter->why, "%s ended the connection: %s", label,
			      meeting->bye.words);
	} else if (meeting->bye.header.kind || meet->wire->ops->ended(meet, meeting, &how)) {
		encounter->err = 0;
		nm_reason_set(&encounter->why, "%s closed its endpoint", label);
	} else {
		encounter->err = -ECONNRESET;
		nm_reason_set(&encounter->why, "%s died: %s", label, how.text);
	}
	nm_meet_push_event(meet, &meeting->lost_event);
}

void nm_meeting_greet(struct nm_meet *meet, struct nm_meeting *meeting, enum nm_message_kind kind,
		      struct nm_greeting *ret_greeting)
{
	struct nm_greeting greeting = {
		.who = meet->config.who,
		.lane = meeting->encounter.own_lane,
		.features = meet->config.features,
		.start = meeting->encounter.start,
		.pid_ns_device = meet->pid_ns_device,
		.pid_ns_inode = meet->pid_ns_inode,
		.label = meet->label,
	};

	/* Never 0: an unwritten lane proves nothing. Not a secret, only fresh. */
	while (!meeting->challenge)
		if (getrandom(&meeting->challenge, sizeof(meeting->challenge), 0) < 0)
			meeting->challenge = nm_clock_ns();
	greeting.challenge = meeting->challenge;
	nm_meeting_offer_cma(meet, meeting, &greeting);
	nm_message_init(&greeting.header, kind);
	*ret_greeting = greeting;
}

static int find_or_map(struct nm_meet *meet, struct nm_meeting *meeting,
		       const struct nm_greeting *greeting, int window_fd,
		       struct nm_neighbour **ret_neighbour, struct nm_reason *ret_reason)
{
	struct nm_neighbour *neighbour;
	int err;

	for (neighbour = meet->neighbours; neighbour; neighbour = neighbour->next)
		if (nm_identity_equal(&neighbour->who, &greeting->who)) {
			err = meet->wire->ops->map(meet, meeting, greeting, window_fd,
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
	err = meet->wire->ops->map(meet, meeting, greeting, window_fd, NULL, &neighbour->window,
				   ret_reason);
	if (err) {
		free(neighbour);
		return err;
	}
	neighbour->who = greeting->who;
	neighbour->nr_users = 1;
	neighbour->next = meet->neighbours;
	meet->neighbours = neighbour;
	*ret_neighbour = neighbour;
	return 0;
}

int nm_meeting_take_window(struct nm_meet *meet, struct nm_meeting *meeting,
			   const struct nm_greeting *greeting, int window_fd,
			   struct nm_reason *ret_reason)
{
	struct nm_encounter *encounter = &meeting->encounter;
	struct nm_neighbour *neighbour;
	int err;

	if (greeting->features != meet->config.features) {
		nm_reason_set(ret_reason,
			      "NEARMETAL_CHECKSUM is %s there and %s here: set it alike",
			      greeting->features & NM_FEATURE_CHECKSUM ? "on" : "off",
			      meet->config.features & NM_FEATURE_CHECKSUM ? "on" : "off");
		return -EPROTONOSUPPORT;
	}
	err = find_or_map(meet, meeting, greeting, window_fd, &neighbour, ret_reason);
	if (err)
		return err;
	if (greeting->lane >= neighbour->window.geometry.nr_lanes) {
		nm_reason_set(ret_reason, "it named lane %u of %u", greeting->lane,
			      neighbour->window.geometry.nr_lanes);
		drop_neighbour(meet, neighbour);
		return -EBADMSG;
	}
	meeting->neighbour = neighbour;
	encounter->window = &neighbour->window;
	encounter->who = greeting->who;
	encounter->label = greeting->label;
	encounter->peer_lane = greeting->lane;
	nm_meeting_take_offer(meet, meeting, greeting);
	return 0;
}

struct nm_lane *nm_meeting_own_lane(struct nm_meet *meet, struct nm_meeting *meeting)
{
	return &meet->config.window->lanes[meeting->encounter.own_lane];
}

bool nm_meeting_proven(const struct nm_meeting *meeting)
{
	const struct nm_encounter *encounter = &meeting->encounter;
	const struct nm_lane *lane = &encounter->window->lanes[encounter->peer_lane];

	/* Partner: the release stores of `proof` in listener.c and handshake_connect.c; the message that
	 * announces it came after. */
	return atomic_load_explicit(encounter->role == NM_ROLE_WRITER ? &lane->reader_proof :
									&lane->writer_proof,
				    memory_order_acquire) == meeting->challenge;
}

int nm_meeting_watch(struct nm_meet *meet, struct nm_meeting *meeting)
{
	return nm_meet_watch(meet, meeting->fd, &meeting->watch);
}

int nm_meet_watch(struct nm_meet *meet, int fd, struct nm_watch *watch)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = watch};

	return epoll_ctl(meet->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

void nm_meet_unwatch(struct nm_meet *meet, int fd)
{
	epoll_ctl(meet->epoll, EPOLL_CTL_DEL, fd, NULL);
}
