/* SPDX-License-Identifier: Apache-2.0 */
/* One talk: stop and wait, in one cell of my mailbox. */
#include "connect/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"

/* Who has not said that it took a letter gets it again: it was busy, or the answer was lost. */
#define RESEND_NS (200 * NM_NS_PER_MS)
/* An answer usually follows by itself within this time, and acknowledges as well. */
#define ANSWER_NS (4 * NM_NS_PER_MS)
/* For how long an acknowledgement is left to be seen; less when the mailbox is full. */
#define LINGER_NS (200 * NM_NS_PER_MS)
#define SHORT_LINGER_NS (20 * NM_NS_PER_MS)

static void close_socket(struct nm_meet *meet, struct nm_talk *talk)
{
	if (talk->fd < 0)
		return;
	nm_meet_unwatch(meet, talk->fd);
	close(talk->fd);
	talk->fd = -1;
}

static void retract(struct nm_segment_wire *wire, struct nm_talk *talk)
{
	if (!talk->has_cell)
		return;
	nm_segment_retract(wire->claim, talk->cell);
	wire->nr_cells[talk->peer.address.part]--;
	talk->has_cell = talk->is_said = false;
}

/* Only what nobody waits for: a letter that was not taken yet would come again anyway. */
static void make_room(struct nm_segment_wire *wire, uint64_t now_ns)
{
	for (struct nm_talk *talk = wire->talks; talk; talk = talk->next)
		if (talk->has_cell && !talk->is_said && now_ns - talk->posted_ns > SHORT_LINGER_NS)
			retract(wire, talk);
}

static bool post(struct nm_segment_wire *wire, struct nm_talk *talk,
		 const struct nm_talk_message *message, unsigned int flags, uint64_t now_ns)
{
	uint8_t bytes[NM_SEGMENT_MESSAGE_MAX];
	struct nm_letter_head head = {
		.magic = NM_LETTER_MAGIC,
		.flags = (uint16_t)(flags | (talk->is_visitor ? NM_LETTER_VISITOR : 0)),
		.number = talk->number,
		.taken = talk->heard,
	};
	uint32_t cell;

	if (message) {
		head.len = message->len;
		head.flags |= message->flags;
		head.sequence = talk->said;
		memcpy(bytes + sizeof(head), message->bytes, message->len);
	}
	memcpy(bytes, &head, sizeof(head));
	/* Neighbours in one part must not be able to use up the whole of my mailbox. */
	if (!talk->has_cell && wire->nr_cells[talk->peer.address.part] >= wire->cell_quota)
		make_room(wire, now_ns);
	if (!talk->has_cell && wire->nr_cells[talk->peer.address.part] >= wire->cell_quota)
		return false;
	if (nm_segment_post(wire->claim, &talk->peer.address, bytes, sizeof(head) + head.len,
			    &cell)) {
		make_room(wire, now_ns);
		return false;
	}
	retract(wire, talk);
	talk->cell = cell;
	talk->has_cell = true;
	talk->is_said = message != NULL;
	wire->nr_cells[talk->peer.address.part]++;
	talk->posted_ns = now_ns;
	talk->answer_ns = 0;
	wire->active_ns = now_ns;
	return true;
}

static void cover(const struct nm_meet *meet, const struct nm_talk *talk, bool from_visitor,
		  void *message, size_t len)
{
	const struct nm_segment_wire *wire = nm_segment_wire_of(meet);
	const struct nm_segment_address *me = nm_segment_own_address(wire->claim);
	struct nm_letter_cover secrets = {
		.owner_token = talk->owner_token,
		.segment = nm_segment_facts(wire->segment)->token,
		.visitor = talk->is_visitor ? me : &talk->peer.address,
		.owner = talk->is_visitor ? &talk->peer.address : me,
		.number = talk->number,
	};

	nm_letter_cover(&secrets, from_visitor, message, len);
}

/* Queue a message, or none, that ends with FLAGS. False: more than a meeting ever says. */
static bool say(struct nm_meet *meet, struct nm_talk *talk, const void *bytes, size_t len,
		unsigned int flags)
{
	struct nm_segment_wire *wire = nm_segment_wire_of(meet);
	struct nm_talk_message *message = &talk->queue[talk->nr_queued];

	if (talk->closing_ns)
		return true;
	/* The end goes along with the last words, if they have not left yet. */
	if (!len && talk->nr_queued > (talk->is_said ? 1 : 0)) {
		talk->queue[talk->nr_queued - 1].flags |= flags;
		return true;
	}
	if (talk->nr_queued == NM_TALK_QUEUE || len > sizeof(message->bytes))
		return false;
	memset(message, 0, sizeof(*message));
	if (len)
		memcpy(message->bytes, bytes, len);
	message->len = (uint16_t)len;
	message->flags = (uint16_t)flags;
	cover(meet, talk, talk->is_visitor, message->bytes, len);
	if (!talk->nr_queued++)
		talk->say_by_ns = nm_clock_ns() + wire->connect_ns;
	return true;
}

/* The meeting speaks, or has hung up. */
static void listen_to_meeting(struct nm_meet *meet, struct nm_watch *watch)
{
	struct nm_talk *talk = nm_container_of(watch, struct nm_talk, watch);
	uint8_t bytes[NM_MESSAGE_MAX];
	int len, passed;

	while (talk->fd >= 0) {
		len = nm_message_receive(talk->fd, bytes, &passed);
		if (passed >= 0)
			close(passed);
		if (len == -EAGAIN)
			return;
		if (len > 0 && say(meet, talk, bytes, (size_t)len, 0))
			continue;
		close_socket(meet, talk);
		talk->meeting = NULL;
		if (!say(meet, talk, NULL, 0, NM_LETTER_HANGUP))
			talk->is_over = true;
	}
}

struct nm_talk *nm_talk_create(struct nm_meet *meet, const struct nm_segment_peer *peer, int fd,
			       uint64_t number, bool is_visitor, const uint8_t owner_token[8])
{
	struct nm_segment_wire *wire = nm_segment_wire_of(meet);
	struct nm_talk *talk = calloc(1, sizeof(*talk)), **place;

	if (!talk)
		return NULL;
	talk->watch.ready = listen_to_meeting;
	talk->peer = *peer;
	talk->fd = fd;
	talk->number = number;
	talk->is_visitor = is_visitor;
	memcpy(talk->owner_token, owner_token, sizeof(talk->owner_token));
	talk->said = 1;
	talk->probe_ns = nm_clock_ns() + wire->lease_ns;
	if (nm_meet_watch(meet, fd, &talk->watch)) {
		free(talk);
		return NULL;
	}
	for (place = &wire->talks; *place; place = &(*place)->next)
		;
	*place = talk;
	wire->nr_talks++;
	return talk;
}

void nm_talk_destroy(struct nm_meet *meet, struct nm_talk *talk)
{
	struct nm_segment_wire *wire = nm_segment_wire_of(meet);
	struct nm_talk **place;

	for (place = &wire->talks; *place != talk; place = &(*place)->next)
		;
	*place = talk->next;
	wire->nr_talks--;
	if (talk->meeting)
		talk->meeting->talk = NULL;
	close_socket(meet, talk);
	retract(wire, talk);
	free(talk);
}

/* Did the other side close its endpoint in order? Its window says so, while it is its window. */
static bool closed_in_order(const struct nm_segment_wire *wire, const struct nm_talk *talk)
{
	const struct nm_foreign_window *window = talk->meeting->encounter.window;
	enum nm_segment_state state;
	uint64_t heartbeat;

	return window && nm_foreign_state(window) == NM_WINDOW_GONE &&
	       !nm_segment_is_lost(wire->segment) &&
	       nm_segment_look(wire->segment, &talk->peer.address, &state, &heartbeat) == 0;
}

void nm_talk_end(struct nm_meet *meet, struct nm_talk *talk, bool with_hangup, const char *why)
{
	struct nm_segment_wire *wire = nm_segment_wire_of(meet);

	if (talk->meeting) {
		talk->meeting->ended_in_order = closed_in_order(wire, talk);
		nm_reason_set(&talk->meeting->ended_why, "%s", why);
		talk->meeting->talk = NULL;
		talk->meeting = NULL;
	}
	close_socket(meet, talk);
	if (!with_hangup)
		retract(wire, talk);
	/* What was posted once keeps its number, and so its place. */
	talk->nr_queued = talk->is_said;
	if (!with_hangup || !say(meet, talk, NULL, 0, NM_LETTER_HANGUP))
		talk->is_over = true;
}

/* The one in front was taken. */
static void was_taken(struct nm_segment_wire *wire, struct nm_talk *talk, uint64_t now_ns)
{
	bool was_last = talk->queue[0].flags & NM_LETTER_HANGUP;

	NM_FAULT("talk-was-taken");
	retract(wire, talk);
	talk->said++;
	talk->nr_queued--;
	memmove(&talk->queue[0], &talk->queue[1], talk->nr_queued * sizeof(talk->queue[0]));
	talk->say_by_ns = now_ns + wire->connect_ns;
	if (was_last)
		talk->is_over = true;
}

/* Hand a message on. False: it has to come again. */
static bool deliver(struct nm_meet *meet, struct nm_talk *talk, uint8_t *message, size_t len)
{
	int err;

	if (!len || talk->fd < 0)
		return true;
	cover(meet, talk, !talk->is_visitor, message, len);
	NM_FAULT("talk-deliver");
	err = nm_message_send(talk->fd, message, len, -1);
	/* Who has hung up is noticed by the watch. */
	return err != -EAGAIN && err != -ENOBUFS && err != -ENOMEM;
}

void nm_talk_hear(struct nm_meet *meet, struct nm_talk *talk, const struct nm_letter_head *head,
		  uint8_t *message, uint64_t now_ns)
{
	struct nm_segment_wire *wire = nm_segment_wire_of(meet);

	talk->asked_ns = 0;
	talk->probe_ns = now_ns + wire->lease_ns;
	if (head->flags & NM_LETTER_RESET) {
		nm_talk_end(meet, talk, false,
			    "it has given this connection up (did this machine stand still?)");
		return;
	}
	if (talk->is_said && head->taken == talk->said)
		was_taken(wire, talk, now_ns);
	if (head->flags & NM_LETTER_PROBE)
		talk->answer_ns = now_ns;
	if (!head->sequence || head->sequence > talk->heard + 1)
		return;
	if (head->sequence <= talk->heard) {
		talk->answer_ns = now_ns;
		return;
	}
	if (!deliver(meet, talk, message, head->len))
		return;
	talk->heard++;
	talk->answer_ns = now_ns + ANSWER_NS;
	if (head->flags & NM_LETTER_HANGUP) {
		nm_talk_end(meet, talk, false, "it hung up without a farewell");
		/* Nobody listens there: all there is to say is that I heard it. */
		talk->is_over = false;
		talk->closing_ns = talk->answer_ns = now_ns;
	}
}

bool nm_talk_turn(struct nm_meet *meet, struct nm_talk *talk, uint64_t now_ns)
{
	struct nm_segment_wire *wire = nm_segment_wire_of(meet);

	if (talk->is_over)
		return true;
	if (talk->nr_queued && now_ns > talk->say_by_ns) {
		nm_talk_end(meet, talk, false, "it does not take what I say to it");
		return true;
	}
	if (talk->asked_ns && now_ns - talk->asked_ns > wire->lease_ns) {
		nm_talk_end(meet, talk, true, "its heartbeat goes on, but it does not answer");
		return true;
	}
	if (talk->nr_queued) {
		if (!talk->is_said || now_ns - talk->posted_ns >= RESEND_NS)
			post(wire, talk, &talk->queue[0], 0, now_ns);
	} else if (talk->answer_ns && now_ns >= talk->answer_ns) {
		post(wire, talk, NULL, 0, now_ns);
	} else if (talk->fd >= 0 && now_ns >= talk->probe_ns) {
		talk->probe_ns = now_ns + RESEND_NS;
		if (!talk->asked_ns)
			talk->asked_ns = now_ns;
		post(wire, talk, NULL, NM_LETTER_PROBE, now_ns);
	} else if (talk->has_cell && now_ns - talk->posted_ns >= LINGER_NS) {
		retract(wire, talk);
	}
	if (talk->closing_ns && now_ns - talk->closing_ns >= 2 * LINGER_NS)
		talk->is_over = true;
	return talk->nr_queued || talk->answer_ns || talk->asked_ns ||
	       (talk->meeting && talk->meeting->state < NM_MEETING_UP);
}

void nm_talk_reset(struct nm_segment_wire *wire, const struct nm_segment_address *from,
		   const struct nm_letter_head *head, uint64_t now_ns)
{
	struct nm_letter_head answer = {
		.magic = NM_LETTER_MAGIC,
		.flags = (uint16_t)(NM_LETTER_RESET |
				    (head->flags & NM_LETTER_VISITOR ? 0 : NM_LETTER_VISITOR)),
		.number = head->number,
		.taken = head->sequence,
	};

	for (unsigned int i = 0; i < NM_MAX_RESETS; i++)
		if (!wire->resets[i].used) {
			if (!nm_segment_post(wire->claim, from, &answer, sizeof(answer),
					     &wire->resets[i].cell)) {
				wire->resets[i].used = true;
				wire->resets[i].posted_ns = now_ns;
			}
			return;
		}
}

void nm_talk_expire_resets(struct nm_segment_wire *wire, uint64_t now_ns)
{
	for (unsigned int i = 0; i < NM_MAX_RESETS; i++)
		if (wire->resets[i].used && now_ns - wire->resets[i].posted_ns >= LINGER_NS) {
			nm_segment_retract(wire->claim, wire->resets[i].cell);
			wire->resets[i].used = false;
		}
}
