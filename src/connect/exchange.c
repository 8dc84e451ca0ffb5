/* SPDX-License-Identifier: Apache-2.0 */
/* One exchange: stop and wait, in one cell of the own mailbox. */
#include "connect/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"

/* A letter is sent again if no answer comes: its receiver was busy, or the answer was lost. */
#define RESEND_NS (200 * NM_NS_PER_MS)
/* Within this time an answer usually follows by itself, and it acknowledges as well. */
#define ANSWER_NS (4 * NM_NS_PER_MS)
/* How long an acknowledgement stays readable. Shorter if the mailbox is full. */
#define LINGER_NS (200 * NM_NS_PER_MS)
#define SHORT_LINGER_NS (20 * NM_NS_PER_MS)

static void close_socket(struct nm_sessions *sessions, struct nm_exchange *exchange)
{
	if (exchange->fd < 0)
		return;
	nm_sessions_unwatch(sessions, exchange->fd);
	nm_close_fd(&exchange->fd);
}

static void retract(struct nm_vmseg_wire *wire, struct nm_exchange *exchange)
{
	if (!exchange->has_cell)
		return;
	nm_vmseg_retract(wire->claim, exchange->cell);
	wire->nr_cells[exchange->peer.address.part]--;
	exchange->has_cell = exchange->is_said = false;
}

/* Only cells without a message: the sender repeats a letter that was not acknowledged. */
static void make_room(struct nm_vmseg_wire *wire, uint64_t now_ns)
{
	for (struct nm_exchange *exchange = wire->exchanges; exchange; exchange = exchange->next)
		if (exchange->has_cell && !exchange->is_said &&
		    now_ns - exchange->posted_ns > SHORT_LINGER_NS)
			retract(wire, exchange);
}

static bool post(struct nm_vmseg_wire *wire, struct nm_exchange *exchange,
		 const struct nm_exchange_message *message, unsigned int flags, uint64_t now_ns)
{
	uint8_t bytes[NM_VMSEG_MESSAGE_MAX];
	struct nm_letter_head head = {
		.magic = NM_LETTER_MAGIC,
		.flags = (uint16_t)(flags | (exchange->is_caller ? NM_LETTER_CALLER : 0)),
		.number = exchange->number,
		.taken = exchange->heard,
	};
	uint32_t cell;

	if (message) {
		head.len = message->len;
		head.flags |= message->flags;
		head.sequence = exchange->said;
		memcpy(bytes + sizeof(head), message->bytes, message->len);
	}
	memcpy(bytes, &head, sizeof(head));
	/* Neighbours in one part must not use up the whole own mailbox. */
	if (!exchange->has_cell && wire->nr_cells[exchange->peer.address.part] >= wire->cell_quota)
		make_room(wire, now_ns);
	if (!exchange->has_cell && wire->nr_cells[exchange->peer.address.part] >= wire->cell_quota)
		return false;
	if (nm_vmseg_post(wire->claim, &exchange->peer.address, bytes, sizeof(head) + head.len,
			  &cell)) {
		make_room(wire, now_ns);
		return false;
	}
	retract(wire, exchange);
	exchange->cell = cell;
	exchange->has_cell = true;
	exchange->is_said = message != NULL;
	wire->nr_cells[exchange->peer.address.part]++;
	exchange->posted_ns = now_ns;
	exchange->answer_ns = 0;
	wire->active_ns = now_ns;
	return true;
}

/* Queue a message (or none) with FLAGS. False: more messages than a session ever sends. */
static bool say(const struct nm_sessions *sessions, struct nm_exchange *exchange, const void *bytes,
		size_t len, unsigned int flags)
{
	const struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);
	struct nm_exchange_message *message = &exchange->queue[exchange->nr_queued];

	if (exchange->closing_ns)
		return true;
	/* The hangup travels with the last message if that was not posted yet. */
	if (!len && exchange->nr_queued > (exchange->is_said ? 1 : 0)) {
		exchange->queue[exchange->nr_queued - 1].flags |= flags;
		return true;
	}
	if (exchange->nr_queued == NM_EXCHANGE_QUEUE || len > sizeof(message->bytes))
		return false;
	memset(message, 0, sizeof(*message));
	if (len)
		memcpy(message->bytes, bytes, len);
	message->len = (uint16_t)len;
	message->flags = (uint16_t)flags;
	if (!exchange->nr_queued++)
		exchange->say_by_ns = nm_clock_ns() + wire->connect_ns;
	return true;
}

/* Part the exchange from its handshake: either may end first, so neither points to the other. */
static void let_go(struct nm_exchange *exchange)
{
	if (exchange->handshake)
		exchange->handshake->exchange = NULL;
	exchange->handshake = NULL;
}

/* The session sends, or has hung up, or its socket failed. */
static void listen_to_handshake(struct nm_sessions *sessions, struct nm_watch *watch)
{
	struct nm_exchange *exchange = nm_container_of(watch, struct nm_exchange, watch);
	uint8_t bytes[NM_MESSAGE_MAX];
	int len, passed;

	while (exchange->fd >= 0) {
		len = nm_message_receive(exchange->fd, bytes, &passed);
		if (passed >= 0)
			close(passed);
		if (len == -EAGAIN)
			return;
		if (len > 0 && say(sessions, exchange, bytes, (size_t)len, 0))
			continue;
		close_socket(sessions, exchange);
		let_go(exchange);
		if (!say(sessions, exchange, NULL, 0, NM_LETTER_HANGUP))
			exchange->is_over = true;
	}
}

struct nm_exchange *nm_exchange_create(struct nm_sessions *sessions,
				       const struct nm_vmseg_peer *peer, int fd, uint64_t number,
				       bool is_caller)
{
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);
	struct nm_exchange *exchange = calloc(1, sizeof(*exchange)), **place;

	if (!exchange)
		return NULL;
	exchange->watch.ready = listen_to_handshake;
	exchange->peer = *peer;
	exchange->fd = fd;
	exchange->number = number;
	exchange->is_caller = is_caller;
	exchange->said = 1;
	exchange->probe_ns = nm_clock_ns() + wire->lease_ns;
	if (nm_sessions_watch(sessions, fd, &exchange->watch)) {
		free(exchange);
		return NULL;
	}
	for (place = &wire->exchanges; *place; place = &(*place)->next)
		;
	*place = exchange;
	wire->nr_exchanges++;
	return exchange;
}

void nm_exchange_destroy(struct nm_sessions *sessions, struct nm_exchange *exchange)
{
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);
	struct nm_exchange **place;

	for (place = &wire->exchanges; *place != exchange; place = &(*place)->next)
		;
	*place = exchange->next;
	wire->nr_exchanges--;
	let_go(exchange);
	close_socket(sessions, exchange);
	retract(wire, exchange);
	free(exchange);
}

/* True if the other side closed normally, as its window shows while that side still owns it. */
static bool closed_in_order(const struct nm_vmseg_wire *wire, const struct nm_exchange *exchange)
{
	const struct nm_session *session = exchange->handshake->session;
	enum nm_vmseg_state state;
	uint64_t heartbeat;

	return session && session->window.header &&
	       nm_foreign_state(&session->window) == NM_WINDOW_GONE &&
	       !nm_vmseg_is_lost(wire->segment) &&
	       nm_vmseg_look(wire->segment, &exchange->peer.address, &state, &heartbeat) == 0;
}

void nm_exchange_end(struct nm_sessions *sessions, struct nm_exchange *exchange, bool with_hangup,
		     const char *why)
{
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);

	if (exchange->handshake) {
		exchange->handshake->ended_in_order = closed_in_order(wire, exchange);
		nm_reason_set(&exchange->handshake->ended_why, "%s", why);
		let_go(exchange);
	}
	close_socket(sessions, exchange);
	if (!with_hangup)
		retract(wire, exchange);
	/* A posted letter keeps its sequence number, and so its place in the queue. */
	exchange->nr_queued = exchange->is_said;
	if (!with_hangup || !say(sessions, exchange, NULL, 0, NM_LETTER_HANGUP))
		exchange->is_over = true;
}

void nm_exchange_miss(struct nm_sessions *sessions, struct nm_exchange *exchange, bool with_hangup,
		      const char *why)
{
	const struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);

	if (exchange->handshake)
		exchange->handshake->is_absent = true;
	nm_exchange_end(sessions, exchange, with_hangup, why);
	if (!with_hangup)
		return;
	/* The peer has to hear of it in each direction: in the other one it may not be late. */
	for (struct nm_exchange *other = wire->exchanges; other; other = other->next)
		if (other->handshake && other->handshake->state == NM_HANDSHAKE_UP &&
		    nm_vmseg_address_equal(&other->peer.address, &exchange->peer.address)) {
			other->handshake->is_absent = true;
			nm_exchange_end(sessions, other, true, why);
		}
}

/* The peer took queue[0]. */
static void was_taken(struct nm_vmseg_wire *wire, struct nm_exchange *exchange, uint64_t now_ns)
{
	bool was_last = exchange->queue[0].flags & NM_LETTER_HANGUP;

	NM_FAULT("talk-was-taken");
	retract(wire, exchange);
	exchange->said++;
	exchange->nr_queued--;
	memmove(&exchange->queue[0], &exchange->queue[1],
		exchange->nr_queued * sizeof(exchange->queue[0]));
	exchange->say_by_ns = now_ns + wire->connect_ns;
	if (was_last)
		exchange->is_over = true;
}

/* Pass a message to the session. False: the peer has to send it again. */
static bool deliver(struct nm_exchange *exchange, const uint8_t *message, size_t len)
{
	int err;

	if (!len || exchange->fd < 0)
		return true;
	NM_FAULT("talk-deliver");
	err = nm_message_send(exchange->fd, message, len, -1);
	/* The watch notices a hangup. */
	return err != -EAGAIN && err != -ENOBUFS && err != -ENOMEM;
}

void nm_exchange_hear(struct nm_sessions *sessions, struct nm_exchange *exchange,
		      const struct nm_letter_head *head, const uint8_t *message, uint64_t now_ns)
{
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);

	exchange->asked_ns = 0;
	exchange->probe_ns = now_ns + wire->lease_ns;
	if (head->flags & NM_LETTER_RESET) {
		nm_exchange_miss(sessions, exchange, false,
				 "it gave up this connection (did this machine stand still?)");
		return;
	}
	if (exchange->is_said && head->taken == exchange->said)
		was_taken(wire, exchange, now_ns);
	if (head->flags & NM_LETTER_PROBE)
		exchange->answer_ns = now_ns;
	if (!head->sequence || head->sequence > exchange->heard + 1)
		return;
	/* Nothing follows a hangup: a second one would keep this exchange. */
	if (exchange->closing_ns && head->sequence > exchange->heard)
		return;
	if (head->sequence <= exchange->heard) {
		exchange->answer_ns = now_ns;
		return;
	}
	if (!deliver(exchange, message, head->len))
		return;
	exchange->heard++;
	exchange->answer_ns = now_ns + ANSWER_NS;
	if (head->flags & NM_LETTER_HANGUP) {
		nm_exchange_miss(sessions, exchange, false, "it hung up without a goodbye");
		/* No process listens there: only the acknowledgement is sent. */
		exchange->is_over = false;
		exchange->closing_ns = exchange->answer_ns = now_ns;
	}
}

bool nm_exchange_turn(struct nm_sessions *sessions, struct nm_exchange *exchange, uint64_t now_ns)
{
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);

	if (exchange->is_over)
		return true;
	if (exchange->nr_queued && now_ns > exchange->say_by_ns) {
		nm_exchange_end(sessions, exchange, false,
				"it does not take messages from this endpoint");
		return true;
	}
	/* If its machine stands still after the question, its lease ends, and it may come back. */
	if (exchange->asked_ns && exchange->lease.since_ns > exchange->asked_ns + wire->lease_ns) {
		nm_exchange_end(sessions, exchange, true,
				"it does not answer, but its heartbeat continues");
		return true;
	}
	if (exchange->nr_queued) {
		if (!exchange->is_said || now_ns - exchange->posted_ns >= RESEND_NS)
			post(wire, exchange, &exchange->queue[0], 0, now_ns);
	} else if (exchange->answer_ns && now_ns >= exchange->answer_ns) {
		post(wire, exchange, NULL, 0, now_ns);
	} else if (exchange->fd >= 0 && now_ns >= exchange->probe_ns) {
		exchange->probe_ns = now_ns + RESEND_NS;
		if (!exchange->asked_ns)
			exchange->asked_ns = now_ns;
		post(wire, exchange, NULL, NM_LETTER_PROBE, now_ns);
	} else if (exchange->has_cell && now_ns - exchange->posted_ns >= LINGER_NS) {
		retract(wire, exchange);
	}
	if (exchange->closing_ns && now_ns - exchange->closing_ns >= 2 * LINGER_NS)
		exchange->is_over = true;
	return exchange->nr_queued || exchange->answer_ns || exchange->asked_ns ||
	       (exchange->handshake && exchange->handshake->state < NM_HANDSHAKE_UP);
}

void nm_exchange_reset(struct nm_vmseg_wire *wire, const struct nm_vmseg_address *from,
		       const struct nm_letter_head *head, uint64_t now_ns)
{
	struct nm_letter_head answer = {
		.magic = NM_LETTER_MAGIC,
		.flags = (uint16_t)(NM_LETTER_RESET |
				    (head->flags & NM_LETTER_CALLER ? 0 : NM_LETTER_CALLER)),
		.number = head->number,
		.taken = head->sequence,
	};

	for (unsigned int i = 0; i < NM_MAX_RESETS; i++)
		if (!wire->resets[i].used) {
			if (!nm_vmseg_post(wire->claim, from, &answer, sizeof(answer),
					   &wire->resets[i].cell)) {
				wire->resets[i].used = true;
				wire->resets[i].posted_ns = now_ns;
			}
			return;
		}
}

void nm_exchange_expire_resets(struct nm_vmseg_wire *wire, uint64_t now_ns)
{
	for (unsigned int i = 0; i < NM_MAX_RESETS; i++)
		if (wire->resets[i].used && now_ns - wire->resets[i].posted_ns >= LINGER_NS) {
			nm_vmseg_retract(wire->claim, wire->resets[i].cell);
			wire->resets[i].used = false;
		}
}
