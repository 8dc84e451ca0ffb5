/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions in a segment between virtual machines. A neighbour is another kernel, so no socket hangs
 * up when it dies: it counts as alive while its heartbeat advances (a lease). Its messages come
 * through mailboxes (exchange.h). Its window is a part of the segment, mapped since attach.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "connect/exchange.h"
#include "connect/leave.h"
#include "connect/share.h"

/* Letters taken in one turn, because other threads wait for the lock. */
#define LETTERS_PER_TURN 64
/* Intervals for reading the knocks of neighbours: during handshakes, after them, and otherwise. */
#define BUSY_WAIT_NS (1 * NM_NS_PER_MS - 1)
#define ACTIVE_WAIT_NS (2 * NM_NS_PER_MS)
#define IDLE_WAIT_NS (10 * NM_NS_PER_MS)
#define ACTIVE_FOR_NS (1000 * NM_NS_PER_MS)
/* Interval for reading a neighbour's heartbeat. */
#define LOOK_NS (NM_VMSEG_BEAT_MS * NM_NS_PER_MS)
/* A longer interval means that this machine stood still, which shows nothing about neighbours. */
#define STALL_NS (5 * LOOK_NS)

/* A part may use 1/parts of the own mailbox, but not less than 1/QUOTA_SHARES. */
#define QUOTA_SHARES 8

static struct nm_vmseg_wire *wire_of(const struct nm_sessions *sessions)
{
	return nm_vmseg_wire_of(sessions);
}

/*
 * Only the machine of that part can write there. The address names it, and after a move the peer
 * itself, on the network.
 */
static bool is_home(const struct nm_vmseg_wire *wire, const struct nm_session *session,
		    uint32_t part)
{
	const uint8_t *token = nm_vmseg_facts(wire->segment)->token;
	uint8_t home[NM_HOME_LEN];

	if (!session->has_home)
		return nm_identity_has_part(&session->who, token, part);
	nm_home_name(token, part, home);
	return !memcmp(home, session->home, sizeof(home));
}

static int segment_open(struct nm_sessions *sessions, struct nm_reason *ret_reason)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);

	wire->inbox = nm_vmseg_inbox_create(wire->claim);
	if (!wire->inbox) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	/* Before a peer can see that the heartbeat stands still. */
	nm_vmseg_beat(wire->claim);
	return 0;
}

/* Callers are served until the slot is in state GONE. */
static void segment_hide(struct nm_sessions *sessions)
{
	(void)sessions;
}

static void segment_forget(struct nm_sessions *sessions)
{
	for (struct nm_exchange *exchange = wire_of(sessions)->exchanges; exchange;
	     exchange = exchange->next) {
		nm_close_fd(&exchange->fd);
	}
}

static void segment_destroy(struct nm_sessions *sessions)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);
	struct nm_exchange *next;

	for (struct nm_exchange *exchange = wire->exchanges; exchange; exchange = next) {
		next = exchange->next;
		nm_close_fd(&exchange->fd);
		free(exchange);
	}
	nm_vmseg_inbox_destroy(wire->inbox);
	free(wire->nr_cells);
	free(wire->nr_met);
	free(wire);
}

/* The current slot at ADDRESS. */
static bool find_address(const struct nm_vmseg_wire *wire, const struct nm_vmseg_address *address,
			 struct nm_vmseg_peer *ret_peer)
{
	uint64_t cursor = 0;

	while (nm_vmseg_next(wire->segment, &cursor, ret_peer))
		if (nm_vmseg_address_equal(&ret_peer->address, address))
			return ret_peer->state == NM_VMSEG_RUN;
	return false;
}

int nm_wire_vmseg_find(const struct nm_vmseg_wire *wire, const struct nm_session *session,
		       struct nm_vmseg_peer *ret_peer, struct nm_reason *ret_reason)
{
	unsigned int nr_seen = 0, nr_liars = 0, nr_leaving = 0;
	struct nm_vmseg_peer leaving;
	uint64_t cursor = 0;

	while (nm_vmseg_next(wire->segment, &cursor, ret_peer)) {
		if (ret_peer->state == NM_VMSEG_GONE)
			continue;
		nr_seen++;
		if (memcmp(ret_peer->id, session->who.id, sizeof(session->who.id)) != 0)
			continue;
		if (!is_home(wire, session, ret_peer->address.part))
			nr_liars++;
		else if (ret_peer->state == NM_VMSEG_RUN)
			return nm_leave_check(wire, ret_peer->address.part, ret_reason);
		else if (!nr_leaving++)
			leaving = *ret_peer;
	}
	if (nr_leaving) {
		*ret_peer = leaving;
		nm_reason_set(ret_reason, "it has left the segment: its machine is to be moved");
		return -EHOSTUNREACH;
	}
	if (nr_liars) {
		nm_reason_set(ret_reason,
			      "an endpoint in %.80s shows its name, but in another machine's part",
			      wire->place);
		return -EBADMSG;
	}
	nm_reason_set(
		ret_reason,
		"it is none of the %u endpoints in %.80s: on another host, or without this segment",
		nr_seen, wire->place);
	return -ENOENT;
}

static uint64_t new_number(void)
{
	uint64_t number = 0;

	while (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number) || !number)
		number = nm_clock_ns();
	return number;
}

static int segment_connect(struct nm_sessions *sessions, struct nm_handshake *handshake,
			   struct nm_reason *ret_reason)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);
	struct nm_vmseg_peer peer;
	struct nm_exchange *exchange;
	int err, ends[2];

	err = nm_wire_vmseg_find(wire, handshake->session, &peer, ret_reason);
	if (err == -EHOSTUNREACH)
		nm_session_await(sessions, handshake->session, peer.address.part, 0);
	/* Its machine stays after all. */
	if (!err && nm_leave_is_away(wire) && nm_vmseg_return(wire->claim)) {
		nm_reason_set(ret_reason, "this endpoint comes back to the segment");
		err = -EAGAIN;
	}
	if (err)
		return err;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		return nm_connect_failed(ret_reason, "cannot create a socket", -errno);
	NM_FAULT("talk-begin");
	handshake->fd = ends[0];
	exchange = nm_exchange_create(sessions, &peer, ends[1], new_number(), true);
	handshake->exchange = exchange;
	if (exchange)
		exchange->handshake = handshake;
	if (!exchange) {
		close(ends[1]);
		return nm_connect_failed(ret_reason, "cannot start the handshake with it", -ENOMEM);
	}
	nm_sessions_wake(sessions);
	return 0;
}

static int segment_check_caller(struct nm_handshake *handshake, struct nm_reason *ret_reason)
{
	/* Another kernel's user ids mean nothing; all machines of a segment are of one job. */
	if (handshake->exchange)
		return 0;
	nm_reason_set(ret_reason, "it is already gone");
	return -EHOSTUNREACH;
}

/* True if the mapped window still belongs to the same endpoint. */
static bool is_known(const struct nm_session *session, const struct nm_foreign_window *window,
		     const struct nm_vmseg_tie *tie)
{
	return session->window.header == window->header &&
	       session->window.geometry.size == window->geometry.size &&
	       session->tie.expected_part == tie->expected_part &&
	       session->tie.expected_slot == tie->expected_slot;
}

/* Who comes back was met before: in state UP also if no direction is left. */
static bool is_new(const struct nm_session *session)
{
	return !session->is_kept &&
	       __atomic_load_n(&session->state, __ATOMIC_RELAXED) == NM_SESSION_NEW;
}

static void describe(const struct nm_vmseg_wire *wire, struct nm_session *session, uint32_t part)
{
	const struct nm_vmseg_facts *facts = nm_vmseg_facts(wire->segment);
	bool is_own = part == facts->part;
	struct nm_reason numa;

	session->relation = NM_RELATION_HOST;
	session->integrity =
		facts->enforced && !is_own ? NM_INTEGRITY_ENFORCED : NM_INTEGRITY_CONVENTION;
	session->far = nm_vmseg_is_far(wire->segment, part, &numa);
	nm_reason_set(&session->how, "its window is in part %u of %.90s, own part is %u%s%s; %s",
		      part, wire->place, facts->part, *numa.text ? "; on " : "", numa.text,
		      is_own ? "both in one machine's part" : facts->integrity_why.text);
}

static int segment_map(struct nm_sessions *sessions, struct nm_handshake *handshake,
		       const struct nm_greeting *greeting, int window_fd,
		       struct nm_reason *ret_reason)
{
	const struct nm_vmseg_wire *wire = wire_of(sessions);
	const struct nm_exchange *exchange = handshake->exchange;
	struct nm_session *session = handshake->session;
	bool is_first = !session->window.header;
	struct nm_foreign_window window;
	struct nm_vmseg_tie tie;
	int err;

	(void)window_fd;
	if (!exchange) {
		nm_reason_set(ret_reason, "it is already gone: %.150s", handshake->ended_why.text);
		return -EHOSTUNREACH;
	}
	err = nm_vmseg_view(wire->segment, &exchange->peer, &window, ret_reason);
	if (err)
		return err;
	if (memcmp(window.id, greeting->who.id, sizeof(window.id)) != 0 ||
	    !nm_identity_equal(&greeting->who, &session->who) ||
	    !is_home(wire, session, exchange->peer.address.part))
		err = -EBADMSG;
	NM_FAULT("talk-window-seen");
	if (!err)
		err = nm_vmseg_tie(wire->segment, &exchange->peer.address, &tie);
	if (!err && !is_first && !is_known(session, &window, &tie))
		err = -EBADMSG;
	if (err)
		nm_reason_set(ret_reason, "the window in its slot belongs to another endpoint");
	if (!err && handshake->role == NM_ROLE_READER)
		err = nm_share_check(sessions, exchange->peer.address.part, is_new(session),
				     ret_reason);
	if (err || !is_first) {
		nm_window_detach(&window);
		return err;
	}
	session->window = window;
	session->tie = tie;
	session->part = exchange->peer.address.part;
	describe(wire, session, exchange->peer.address.part);
	return 0;
}

static bool segment_ended(struct nm_sessions *sessions, struct nm_handshake *handshake,
			  struct nm_reason *ret_why)
{
	(void)sessions;
	nm_reason_set(ret_why, "%s",
		      handshake->ended_why.text[0] ? handshake->ended_why.text :
						     "the connection to it broke");
	return handshake->ended_in_order;
}

static void segment_hung_up(struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	(void)sessions;
	if (handshake->exchange)
		handshake->exchange->handshake = NULL;
	handshake->exchange = NULL;
}

static void segment_beat(struct nm_sessions *sessions)
{
	nm_vmseg_bury(wire_of(sessions)->segment);
}

static unsigned int count_strangers(const struct nm_vmseg_wire *wire, uint32_t part)
{
	unsigned int nr = 0;

	for (const struct nm_exchange *exchange = wire->exchanges; exchange;
	     exchange = exchange->next)
		nr += exchange->peer.address.part == part &&
		      (!exchange->handshake || exchange->handshake->state <= NM_HANDSHAKE_AWAIT_GO);
	return nr;
}

static struct nm_exchange *find_exchange(const struct nm_vmseg_wire *wire,
					 const struct nm_vmseg_address *from,
					 const struct nm_letter_head *head)
{
	struct nm_exchange *exchange;

	for (exchange = wire->exchanges; exchange; exchange = exchange->next)
		if (exchange->number == head->number && !exchange->is_over &&
		    exchange->is_caller != !!(head->flags & NM_LETTER_CALLER) &&
		    nm_vmseg_address_equal(&exchange->peer.address, from))
			break;
	return exchange;
}

/* Make an exchange for a new caller. NULL: not now, or refused. */
static struct nm_exchange *welcome(struct nm_sessions *sessions,
				   const struct nm_vmseg_address *from,
				   const struct nm_letter_head *head)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);
	uint32_t strangers = nm_share_strangers();
	uint32_t limit = 4 * sessions->config.window->geometry.nr_lanes + strangers;
	struct nm_vmseg_peer peer;
	struct nm_exchange *exchange;
	int ends[2];

	/* A correct caller sees by itself that a machine is asked to leave; others delay nothing. */
	if (nm_leave_check(wire, from->part, NULL))
		return NULL;
	/* The caller will repeat its letter; by then there may be room. */
	if (wire->nr_exchanges >= limit || count_strangers(wire, from->part) >= strangers ||
	    !find_address(wire, from, &peer) ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		return NULL;
	exchange = nm_exchange_create(sessions, &peer, ends[1], head->number, false);
	if (!exchange) {
		close(ends[0]);
		close(ends[1]);
		return NULL;
	}
	NM_FAULT("talk-welcome");
	/* If it is refused, the caller reads the reason. */
	exchange->handshake = nm_sessions_admit(sessions, ends[0]);
	if (exchange->handshake) {
		exchange->handshake->exchange = exchange;
		exchange->handshake->part = from->part;
	}
	return exchange;
}

static void take_letter(struct nm_sessions *sessions, struct nm_vmseg_letter *letter,
			uint64_t now_ns)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);
	struct nm_letter_head head;
	struct nm_exchange *exchange;

	/* Other bytes are ignored. */
	if (nm_letter_parse(letter->bytes, letter->len, &head))
		return;
	exchange = find_exchange(wire, &letter->from, &head);
	if (!exchange && head.sequence == 1 && head.len && head.flags & NM_LETTER_CALLER) {
		exchange = welcome(sessions, &letter->from, &head);
		if (!exchange)
			return;
	}
	if (exchange)
		nm_exchange_hear(sessions, exchange, &head, letter->bytes + sizeof(head), now_ns);
	else if (!(head.flags & NM_LETTER_RESET) && (head.sequence || head.flags & NM_LETTER_PROBE))
		nm_exchange_reset(wire, &letter->from, &head, now_ns);
}

/* Returns true if there may be more. */
static bool take_letters(struct nm_sessions *sessions, uint64_t now_ns)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);
	struct nm_vmseg_letter letter;

	for (unsigned int i = 0; i < LETTERS_PER_TURN; i++) {
		if (!nm_vmseg_take(wire->inbox, &letter))
			return false;
		wire->active_ns = now_ns;
		take_letter(sessions, &letter, now_ns);
	}
	return true;
}

/* Check that the heartbeat is not too old. False: with a reason. */
static bool is_in_time(const struct nm_vmseg_wire *wire, struct nm_exchange *exchange,
		       enum nm_vmseg_state state, uint64_t heartbeat, uint64_t now_ns,
		       struct nm_reason *ret_why)
{
	bool is_frozen = state == NM_VMSEG_FROZEN;
	uint64_t limit_ns = is_frozen ? wire->move_ns : wire->lease_ns;

	if (nm_vmseg_lease_holds(&exchange->lease, heartbeat, now_ns, limit_ns))
		return true;
	if (is_frozen)
		nm_reason_set(
			ret_why,
			"its machine left the segment for a move and did not come back within "
			"%llu ms (see NEARMETAL_MOVE_MS)",
			(unsigned long long)(limit_ns / NM_NS_PER_MS));
	else
		nm_reason_set(ret_why,
			      "its lease expired: no heartbeat for %llu ms (its machine is "
			      "stopped, gone or too busy; see NEARMETAL_SEGMENT_LEASE_MS)",
			      (unsigned long long)(limit_ns / NM_NS_PER_MS));
	return false;
}

/* Check that the other side of EXCHANGE still lives. */
static void look_at(struct nm_sessions *sessions, struct nm_exchange *exchange, uint64_t now_ns)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);
	uint64_t heartbeat, before = exchange->lease.heartbeat;
	enum nm_vmseg_state state;
	struct nm_reason why;

	if (nm_vmseg_is_lost(wire->segment)) {
		nm_exchange_end(sessions, exchange, false, "the segment's file was truncated");
	} else if (nm_vmseg_look(wire->segment, &exchange->peer.address, &state, &heartbeat)) {
		nm_exchange_end(
			sessions, exchange, false,
			"its slot is not its own any more: it ended, or its machine rebooted");
	} else if (state == NM_VMSEG_GONE) {
		nm_exchange_end(sessions, exchange, false,
				"its process ended, its machine reports");
	} else if (exchange->fd >= 0 &&
		   !is_in_time(wire, exchange, state, heartbeat, now_ns, &why)) {
		/* If it comes back, it has to learn that it was given up. */
		if (state == NM_VMSEG_FROZEN)
			nm_exchange_end(sessions, exchange, true, why.text);
		else
			nm_exchange_miss(sessions, exchange, true, why.text);
	} else if (nm_leave_look(sessions, exchange, state, now_ns)) {
		return;
	} else if (before && heartbeat - before > wire->lease_ns / LOOK_NS / 2) {
		/* Time went on without this machine: peers may have given it up. */
		exchange->probe_ns = now_ns;
	}
}

static void look_at_neighbours(struct nm_sessions *sessions, uint64_t now_ns)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);
	uint64_t gap = wire->looked_ns ? now_ns - wire->looked_ns : 0;
	uint64_t stalled = gap > STALL_NS ? gap - STALL_NS : 0;

	wire->looked_ns = now_ns;
	wire->look_ns = now_ns + LOOK_NS;
	for (struct nm_exchange *exchange = wire->exchanges; exchange; exchange = exchange->next) {
		if (stalled) {
			exchange->lease.since_ns += stalled;
			exchange->say_by_ns += stalled;
			exchange->asked_ns += exchange->asked_ns ? stalled : 0;
		}
		if (!exchange->is_over)
			look_at(sessions, exchange, now_ns);
	}
	nm_leave_look_at_absent(sessions);
}

static void free_over(struct nm_sessions *sessions)
{
	struct nm_exchange *exchange, *next;

	for (exchange = wire_of(sessions)->exchanges; exchange; exchange = next) {
		next = exchange->next;
		if (exchange->is_over)
			nm_exchange_destroy(sessions, exchange);
	}
}

static uint64_t segment_turn(struct nm_sessions *sessions, uint64_t now_ns)
{
	struct nm_vmseg_wire *wire = wire_of(sessions);
	bool busy, knocked;

	free_over(sessions);
	/* A neighbour also knocks when it goes, and a machine when it is asked to. */
	knocked = nm_vmseg_knocked(wire->inbox);
	if (knocked || now_ns >= wire->look_ns) {
		nm_leave_follow(sessions);
		nm_leave_return(sessions, now_ns);
	}
	if (nm_leave_is_away(wire)) {
		/* This machine does not stand still meanwhile. */
		wire->looked_ns = 0;
		return IDLE_WAIT_NS;
	}
	if (now_ns >= wire->beat_ns) {
		nm_vmseg_beat(wire->claim);
		wire->beat_ns = now_ns + NM_VMSEG_BEAT_MS * NM_NS_PER_MS;
	}
	nm_exchange_expire_resets(wire, now_ns);
	busy = knocked && take_letters(sessions, now_ns);
	if (knocked || now_ns >= wire->look_ns)
		look_at_neighbours(sessions, now_ns);
	for (struct nm_exchange *exchange = wire->exchanges; exchange; exchange = exchange->next)
		busy |= nm_exchange_turn(sessions, exchange, now_ns);
	if (busy)
		return BUSY_WAIT_NS;
	return now_ns - wire->active_ns < ACTIVE_FOR_NS ? ACTIVE_WAIT_NS : IDLE_WAIT_NS;
}

static const struct nm_wire_ops segment_ops = {
	.open = segment_open,
	.hide = segment_hide,
	.destroy = segment_destroy,
	.forget = segment_forget,
	.connect = segment_connect,
	.check_caller = segment_check_caller,
	.map = segment_map,
	.ended = segment_ended,
	.hung_up = segment_hung_up,
	.beat = segment_beat,
	.turn = segment_turn,
};

int nm_wire_vmseg_create(const struct nm_sessions_config *config, struct nm_wire **ret_wire,
			 struct nm_reason *ret_reason)
{
	const struct nm_vmseg_facts *facts = nm_vmseg_facts(config->segment);
	struct nm_vmseg_wire *wire = calloc(1, sizeof(*wire));

	if (wire) {
		wire->nr_cells = calloc(facts->nr_parts, sizeof(*wire->nr_cells));
		wire->nr_met = calloc(facts->nr_parts, sizeof(*wire->nr_met));
	}
	if (!wire || !wire->nr_cells || !wire->nr_met) {
		if (wire) {
			free(wire->nr_cells);
			free(wire->nr_met);
		}
		free(wire);
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	wire->base.ops = &segment_ops;
	wire->base.place = wire->place;
	wire->base.window_fd = -1;
	wire->segment = config->segment;
	wire->claim = config->claim;
	wire->lease_ns = config->peer_lease_ms * NM_NS_PER_MS;
	wire->move_ns = config->move_ms * NM_NS_PER_MS;
	wire->connect_ns = config->connect_ms * NM_NS_PER_MS;
	wire->cell_quota = NM_VMSEG_NR_CELLS / (uint32_t)nm_min_u64(facts->nr_parts, QUOTA_SHARES);
	snprintf(wire->place, sizeof(wire->place), "segment %02x%02x%02x%02x of %.60s",
		 facts->token[0], facts->token[1], facts->token[2], facts->token[3], config->dir);
	*ret_wire = &wire->base;
	return 0;
}
