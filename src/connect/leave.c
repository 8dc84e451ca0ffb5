/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/leave.h"

#include <errno.h>

#include "base/clock.h"
#include "shm/doorbell.h"

/* A machine may ask at any rate, and each report wakes the program. */
#define TELL_NS NM_NS_PER_S

static bool asks(const struct nm_vmseg_wire *wire, uint32_t part)
{
	return nm_vmseg_part_state(wire->segment, part) != NM_VMSEG_RUN;
}

static uint32_t own_part(const struct nm_vmseg_wire *wire)
{
	return nm_vmseg_facts(wire->segment)->part;
}

int nm_leave_check(const struct nm_vmseg_wire *wire, uint32_t part, struct nm_reason *ret_reason)
{
	bool is_own = asks(wire, own_part(wire));

	if (!is_own && !asks(wire, part))
		return 0;
	nm_reason_set(ret_reason, "%s machine is asked to leave the segment",
		      is_own ? "this" : "its");
	return -EHOSTUNREACH;
}

bool nm_leave_is_away(const struct nm_vmseg_wire *wire)
{
	return nm_vmseg_own_state(wire->claim) == NM_VMSEG_FROZEN;
}

void nm_leave_follow(struct nm_sessions *sessions)
{
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);
	bool is_asked = asks(wire, own_part(wire)), was_away;

	if (wire->exchanges && nm_leave_is_away(wire)) {
		/* A stray store: this endpoint had no exchange when it left, and begins none. */
		nm_vmseg_set_state(wire->claim, NM_VMSEG_RUN);
	} else if (!is_asked && nm_leave_is_away(wire)) {
		/* Else at the next turn. */
		(void)nm_vmseg_return(wire->claim);
	} else if (is_asked && !nm_leave_is_away(wire) && !wire->exchanges &&
		   !sessions->handshakes) {
		/* No handshake: no direction of any session is left. */
		nm_exchange_expire_resets(wire, UINT64_MAX);
		nm_vmseg_leave(wire->claim);
	}
	was_away = atomic_exchange_explicit(&sessions->is_away, nm_leave_is_away(wire),
					    memory_order_relaxed);
	/* A thread that moves channels while the program computes looks at the description now. */
	if (!was_away && nm_leave_is_away(wire))
		nm_doorbell_ring(&sessions->event_doorbell);
}

bool nm_leave_is_over(const struct nm_sessions *sessions)
{
	const struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);

	for (const struct nm_handshake *handshake = sessions->handshakes; handshake;
	     handshake = handshake->next)
		if (handshake->state != NM_HANDSHAKE_LEFT)
			return false;
	return nm_leave_is_away(wire) && !wire->exchanges;
}

static void report(struct nm_sessions *sessions, struct nm_exchange *exchange, bool is_asked,
		   uint64_t now_ns)
{
	struct nm_session *session = exchange->handshake ? exchange->handshake->session : NULL;

	/* While it is asked, again and again: a peer that does not leave has a limit of time. */
	if (!session || now_ns < exchange->tell_ns ||
	    __atomic_load_n(&session->state, __ATOMIC_RELAXED) != NM_SESSION_UP ||
	    (!is_asked && !atomic_load_explicit(&session->is_asked, memory_order_relaxed)))
		return;
	exchange->tell_ns = now_ns + TELL_NS;
	atomic_store_explicit(&session->is_asked, is_asked, memory_order_relaxed);
	nm_session_push_event(sessions, session, NM_SESSION_ASKED);
}

/* True if nothing prevents a call of SESSION's peer; or if it is not there any more: RET_IS_LOST. */
static bool may_call(const struct nm_vmseg_wire *wire, const struct nm_session *session,
		     uint64_t now_ns, bool *ret_is_lost)
{
	struct nm_vmseg_peer peer;
	struct nm_reason why;
	int err;

	*ret_is_lost = false;
	/* The states of the machines first: the search reads all slots. */
	if (now_ns < session->back_ns || nm_leave_check(wire, session->part, NULL))
		return false;
	err = nm_wire_vmseg_find(wire, session, &peer, &why);
	*ret_is_lost = err && err != -EHOSTUNREACH;
	return err != -EHOSTUNREACH;
}

void nm_leave_return(struct nm_sessions *sessions, uint64_t now_ns)
{
	const struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);
	bool is_lost;

	if (nm_list_empty(&sessions->awaited) || nm_leave_is_away(wire))
		return;
	nm_list_for_each_safe(node, &sessions->awaited) {
		struct nm_session *session = nm_container_of(node, struct nm_session, back_node);

		if (!may_call(wire, session, now_ns, &is_lost))
			continue;
		nm_list_remove(&session->back_node);
		if (!is_lost)
			nm_session_push_event(sessions, session, NM_SESSION_BACK);
	}
}

/* True if a session stands here, and its peer's window shows that the peer ended it. */
static bool is_ended(const struct nm_sessions *sessions, const struct nm_exchange *exchange)
{
	return exchange->handshake && exchange->handshake->state == NM_HANDSHAKE_UP &&
	       nm_handshake_step(sessions, exchange->handshake) & NM_LANE_ENDED;
}

/* What became of the absent peer of HANDSHAKE: RET_WHY, and 0 or -errno; -EAGAIN: it may live. */
static int outcome_of(const struct nm_sessions *sessions, struct nm_handshake *handshake,
		      const char **ret_why)
{
	const struct nm_session *session = handshake->session;

	*ret_why = "is lost: the segment's file was truncated";
	if (nm_vmseg_is_lost(nm_vmseg_wire_of(sessions)->segment))
		return -ECONNRESET;
	*ret_why = "died: its process ended, or its machine rebooted";
	if (!nm_vmseg_is_tied(&session->tie))
		return -ECONNRESET;
	*ret_why = "closed its endpoint";
	if (nm_foreign_state(&session->window) == NM_WINDOW_GONE)
		return 0;
	*ret_why = "died: its process ended, its machine reports";
	if (nm_vmseg_is_gone(&session->tie))
		return -ECONNRESET;
	*ret_why = "ended the connection";
	return nm_handshake_step(sessions, handshake) & NM_LANE_ENDED ? -ECONNRESET : -EAGAIN;
}

void nm_leave_look_at_absent(struct nm_sessions *sessions)
{
	const char *why;

	for (struct nm_handshake *handshake = sessions->handshakes; handshake;
	     handshake = handshake->next) {
		int err = handshake->state == NM_HANDSHAKE_LOST && handshake->is_absent ?
				  outcome_of(sessions, handshake, &why) :
				  -EAGAIN;

		if (err == -EAGAIN)
			continue;
		handshake->is_absent = false;
		handshake->err = err;
		nm_reason_set(&handshake->why, "%s %s", handshake->session->label.text, why);
		nm_session_push_event(sessions, handshake->session, NM_SESSION_LOST);
	}
}

bool nm_leave_look(struct nm_sessions *sessions, struct nm_exchange *exchange,
		   enum nm_vmseg_state state, uint64_t now_ns)
{
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);
	/* Until it is welcomed, this side can give up, and the other one loses nothing. */
	bool may_end =
		exchange->handshake && exchange->handshake->state == NM_HANDSHAKE_AWAIT_WELCOME;
	struct nm_reason why;
	bool is_asked =
		nm_leave_check(wire, exchange->peer.address.part, may_end ? &why : NULL) != 0;

	if (state == NM_VMSEG_FROZEN && is_ended(sessions, exchange)) {
		/* While this machine stood still. The peer hears nothing, so no question helps. */
		nm_exchange_end(sessions, exchange, false,
				"it gave up this connection before its machine left the segment");
		return true;
	}
	if (state == NM_VMSEG_FROZEN) {
		exchange->asked_ns = 0;
		exchange->probe_ns = now_ns + wire->lease_ns;
	}
	if (is_asked && may_end) {
		nm_session_await(sessions, exchange->handshake->session,
				 exchange->peer.address.part, 0);
		/* A peer that did not take the hello has no exchange to hang up. */
		nm_exchange_end(sessions, exchange, exchange->said > 1, why.text);
		return true;
	}
	report(sessions, exchange, is_asked, now_ns);
	return false;
}
