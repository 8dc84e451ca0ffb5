/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/move.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "engine/internal.h"
#include "engine/move_private.h"
#include "engine/stage.h"

/* Lines about changes of channel, for each peer. */
#define MOVE_LINES 32
/* Transports report about once a second while a machine is asked to leave. */
#define ASKED_NS (2 * NM_NS_PER_S)

void nm_peer_on_way(struct nm_peer *peer, enum nm_way_event event)
{
	int next = nm_move_next(&nm_ways, peer->way, event);

#ifdef NM_CHECK_STATES
	if (next < 0)
		abort();
#endif
	if (next >= 0)
		peer->way = (enum nm_way)next;
}

struct nm_move *nm_move_of(struct nm_engine *engine, struct nm_peer *peer)
{
	if (peer->move)
		return peer->move;
	peer->move = calloc(1, sizeof(*peer->move));
	if (peer->move)
		peer->move->number = peer->way == NM_WAY_MEMORY;
	else
		nm_peer_down(engine, peer, -ENOMEM, "no memory to leave its memory channel");
	return peer->move;
}

/* A machine may be asked, and stay again, at any rate. */
bool nm_move_may_log(const struct nm_peer *peer)
{
	struct nm_move *move = peer->move;

	if (!move || peer->failover)
		return true;
	if (move->nr_lines >= MOVE_LINES)
		return false;
	move->nr_lines++;
	return true;
}

void nm_move_first_session(struct nm_peer *peer)
{
	nm_peer_on_way(peer, NM_WAY_MET);
	nm_peer_on_way(peer, NM_WAY_SAID);
	if (peer->move)
		peer->move->number++;
}

struct nm_link *nm_move_link(const struct nm_peer *peer)
{
	const struct nm_move *move = peer->move;

	return move && (move->left || (move->absent && move->net)) ? move->net : peer->link;
}

struct nm_link *nm_move_beside(const struct nm_peer *peer, const struct nm_transport *net)
{
	struct nm_link *link = peer->move ? peer->move->net : NULL;

	return link && link->transport == net ? link : NULL;
}

/* PEER is not left, for the reason WHY. */
static void stay(struct nm_peer *peer, const char *why)
{
	peer->move->is_asked = false;
	if (peer->move->has_warned)
		return;
	peer->move->has_warned = true;
	nm_warn("peer " NM_WHO_FORMAT " (%.60s): its messages stay in memory, also if a machine is "
		"asked to leave the segment: there is no network to it: %s",
		NM_WHO(&peer->who), nm_peer_diag(peer)->label.text, why);
}

/* A machine that is asked to leave does not wait for what a peer that is down has left in memory. */
static void forget(const struct nm_peer *peer)
{
	const struct nm_engine *engine = peer->engine;

	for (unsigned int i = 0; engine && i < engine->nr_polled; i++)
		if (engine->polled[i]->move)
			engine->polled[i]->move->forget(engine->polled[i], &peer->who);
}

void nm_move_end(struct nm_peer *peer, enum nm_way_event event)
{
	struct nm_move *move = peer->move;

	if (nm_move_next(&nm_ways, peer->way, event) >= 0)
		nm_peer_on_way(peer, event);
	if (event == NM_WAY_DOWN)
		forget(peer);
	if (!move)
		return;
	nm_move_end_back(peer);
	move->is_asked = move->is_pending = move->is_answer_due = move->is_home_due = false;
	move->absent = NULL;
	move->await_ns = 0;
	if (move->left)
		move->left->transport->move->leave(move->left);
	move->left = NULL;
}

void nm_move_free(struct nm_peer *peer)
{
	free(peer->move);
	peer->move = NULL;
}

bool nm_move_is_due(const struct nm_peer *peer)
{
	const struct nm_move *move = peer->move;

	if (!move || move->is_answer_due)
		return move;
	/* What waits for the way keeps a closing engine busy by itself. */
	return !peer->engine->closing && (move->is_asked || move->is_pending || move->left ||
					  move->memory || move->is_home_due || move->absent);
}

/* Words that a thread has left on the network are on their way only while it polls. */
static bool is_on_its_way(const struct nm_peer *peer)
{
	struct nm_link *net = peer->move ? peer->move->net : NULL;

	return nm_move_is_due(peer) || (net && !net->transport->ops->drained(net));
}

bool nm_moves_are_due(const struct nm_engine *engine, uint64_t now_ns)
{
	const struct nm_peer_table *table = &engine->peers;

	if (engine->asked_ns && now_ns < engine->asked_ns + ASKED_NS)
		return true;
	for (size_t i = 0; i <= table->mask; i++)
		if (table->slots[i] && is_on_its_way(table->slots[i]))
			return true;
	return false;
}

/* PEER has left memory, where this endpoint sends, but sends from there itself. */
static bool is_overdue(const struct nm_peer *peer, const struct nm_transport *from)
{
	const struct nm_move *move = peer->move;

	return move && move->await_ns && peer->source_channels >> from->kind->channel & 1 &&
	       nm_clock_ns() > move->await_ns;
}

bool nm_sink_asked(struct nm_transport *from, struct nm_peer *peer, enum nm_asked what)
{
	struct nm_engine *engine = from->sink.engine;

	if (peer->state == NM_PEER_DOWN)
		return false;
	if (!from->move)
		return true;
	engine->asked_ns = nm_clock_ns();
	if (what == NM_ABSENT)
		return nm_move_miss(engine, peer, from);
	if (what == NM_STAYS) {
		if (peer->move) {
			peer->move->is_asked = false;
			peer->move->await_ns = 0;
		}
		nm_move_want_back(engine, peer, from);
		return true;
	}
	/* The other direction is left by its own writer. */
	if (is_overdue(peer, from)) {
		nm_peer_down(
			engine, peer, -ECONNRESET,
			"it answered that it left the memory of a machine that is to be moved, "
			"but did not stop to send there within NEARMETAL_MOVE_MS");
		return false;
	}
	if (peer->way == NM_WAY_JOINING ?
		    peer->move->met->transport != from :
		    peer->way != NM_WAY_MEMORY || peer->link->transport != from)
		return true;
	if (!nm_move_of(engine, peer))
		return false;
	peer->move->is_asked = true;
	nm_peer_activate(engine, peer);
	return true;
}

/* All that PEER sent on the network was taken: it came back to memory, and has not left since. */
static bool is_back(const struct nm_move *move)
{
	return move->in_number && move->is_marked && !move->has_reported;
}

bool nm_move_net_ended(struct nm_peer *peer, const struct nm_transport *net, int err,
		       const char *why)
{
	const uint32_t bit = 1U << net->kind->channel;
	struct nm_move *move = peer->move;

	if (!move || !(net->kind->flags & NM_TRANSPORT_NETWORK))
		return false;
	if (move->suspended && !err)
		nm_move_resume(peer);
	if (move->net && move->net != peer->link)
		move->net = NULL;
	/* Nothing of it is there, and nothing of this endpoint: memory is all that counts. */
	if (!err || move->left || move->absent || peer->way != NM_WAY_MEMORY ||
	    move->is_answer_due || (peer->source_channels & bit && !is_back(move)))
		return false;
	peer->source_channels &= ~bit;
	stay(peer, why);
	return true;
}

int nm_move_find_net(struct nm_engine *engine, struct nm_peer *peer, struct nm_reason *ret_why)
{
	struct nm_transport *net = nm_network(engine);

	if (peer->move->net)
		return 0;
	if (!nm_network_reaches(net, peer)) {
		nm_reason_set(ret_why, "there is no network to it");
		return -EHOSTUNREACH;
	}
	if (peer->link && peer->link->transport == net) {
		peer->move->net = peer->link;
		return 0;
	}
	return net->ops->connect(net, &peer->address, peer, &peer->move->net, ret_why);
}

int nm_move_say(struct nm_engine *engine, struct nm_peer *peer, enum nm_op op, uint64_t position,
		uint64_t session, struct nm_reason *ret_why)
{
	const struct nm_packet packet = {.op = op, .tag = position, .data = session};
	int err = nm_move_find_net(engine, peer, ret_why);
	struct nm_link *net = peer->move->net;

	return err ? err : net->transport->ops->send(net, &packet, NULL, 0);
}

void nm_move_hold(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_move *move = peer->move;

	move->is_asked = false;
	move->left = peer->link;
	nm_stages_leave(engine, move->left);
	move->sent = move->left->transport->move->hold(move->left);
	move->deadline_ns = nm_clock_ns() + engine->params->move_ms * NM_NS_PER_MS;
	nm_peer_set_state(peer, NM_PEER_MOVING);
	nm_peer_activate(engine, peer);
}

/*
 * The memory is used until the network is there: a link to a peer that cannot be reached takes no
 * packet. So the first one asks for nothing.
 */
static unsigned int begin(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_reason why = {""};
	int err;

	/* The channel has ended: its report follows. */
	if (peer->state != NM_PEER_CONNECTED) {
		peer->move->is_asked = false;
		return 0;
	}
	if (peer->way != NM_WAY_MEMORY)
		return 0;
	NM_FAULT("move-begin");
	err = nm_move_say(engine, peer, NM_OP_MOVE, 0, 0, &why);
	if (err == 0) {
		nm_move_hold(engine, peer);
		nm_peer_on_way(peer, NM_WAY_QUIESCED);
	} else if (!nm_move_is_transient(err)) {
		stay(peer, why.text);
	}
	return err == 0;
}

static unsigned int say_move(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_reason why;
	int err;

	NM_FAULT("move-say-before");
	err = nm_move_say(engine, peer, NM_OP_MOVE, peer->move->sent, peer->move->number, &why);
	NM_FAULT("move-say-after");
	if (err == 0)
		nm_peer_on_way(peer, NM_WAY_SAID);
	else if (!nm_move_is_transient(err))
		nm_peer_down(engine, peer, -ECONNRESET, why.text);
	return err == 0;
}

static void check_deadline(struct nm_engine *engine, struct nm_peer *peer)
{
	if (nm_clock_ns() > peer->move->deadline_ns)
		nm_peer_down(engine, peer, -ECONNRESET,
			     "it did not say within NEARMETAL_MOVE_MS how much it took from the "
			     "memory that is left");
}

/* The peer's count is known: send again what it did not take, then use the network. */
static void go_on(struct nm_engine *engine, struct nm_peer *peer)
{
	static const struct nm_reason others = {"the memory was left: a machine is to be moved"};
	struct nm_move *move = peer->move;
	struct nm_reason why;
	int err = nm_move_find_net(engine, peer, &why);

	if (!err && move->taken != move->sent) {
		nm_reason_set(&why, "what it left in memory cannot be sent again");
		err = move->left->transport->move->replay(move->left, &move->taken, move->net);
	}
	if (nm_move_is_transient(err))
		return;
	if (err) {
		nm_peer_down(engine, peer, -EBADMSG, why.text);
		return;
	}
	NM_FAULT("move-counted");
	if (peer->source_channels >> move->left->transport->kind->channel & 1)
		move->await_ns = nm_clock_ns() + engine->params->move_ms * NM_NS_PER_MS;
	move->left->transport->move->leave(move->left);
	move->left = NULL;
	/* It may have closed the memory in the meantime, and then uses only the network itself. */
	if (peer->state != NM_PEER_MOVING)
		return;
	nm_peer_set_link(peer, move->net, &others);
	nm_peer_set_state(peer, NM_PEER_CONNECTED);
	peer->nr_moves++;
}

/* Where PEER sends from now on. */
static void left_by(struct nm_engine *engine, struct nm_peer *peer, const struct nm_transport *from)
{
	peer->source_channels &= ~(1U << from->kind->channel);
	nm_peer_receives_on(peer, nm_network(engine)->kind->channel);
	peer->move->is_pending = false;
	peer->move->is_source_absent = false;
	peer->move->has_reported = true;
	peer->move->is_answer_due = true;
	peer->move->answer_number = peer->move->in_number;
	peer->move->await_ns = 0;
	if (nm_move_may_log(peer))
		nm_info("peer " NM_WHO_FORMAT " (%.60s): it left the memory channel %s in order",
			NM_WHO(&peer->who), nm_peer_diag(peer)->label.text,
			nm_channel_name(from->kind->channel));
}

/* Take the rest of the session that PEER left. 0; -ENOENT: there is none; -EBADMSG. */
static int take_rest(struct nm_engine *engine, struct nm_peer *peer)
{
	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		struct nm_transport *t = engine->polled[i];
		int err =
			t->move ? t->move->take_rest(t, &peer->who, peer->move->position) : -ENOENT;

		if (err == -ENOENT)
			continue;
		/* A packet in there may have ended the peer. */
		if (err == 0 && peer->state != NM_PEER_DOWN)
			left_by(engine, peer, t);
		return err == -EBADMSG ? err : 0;
	}
	return -ENOENT;
}

/* MOVE may overtake the last word of the handshake, which goes through memory. */
static void take_pending(struct nm_engine *engine, struct nm_peer *peer)
{
	int err = take_rest(engine, peer);

	if (err != -ENOENT)
		peer->move->is_pending = false;
	if (err == -EBADMSG)
		nm_peer_down(engine, peer, err, "it left its memory at a wrong position");
	else if (err == -ENOENT && nm_clock_ns() > peer->move->pending_ns)
		nm_peer_down(engine, peer, -EBADMSG, "it left a memory channel that it never had");
}

static unsigned int answer(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_reason why;
	int err;

	NM_FAULT("moved-say-before");
	err = nm_move_say(engine, peer, NM_OP_MOVED, peer->move->position,
			  peer->move->answer_number, &why);
	NM_FAULT("moved-say-after");
	if (err == 0) {
		peer->move->is_answer_due = false;
	} else if (!nm_move_is_transient(err)) {
		nm_peer_down(engine, peer, -ECONNRESET,
			     "it left the memory, and there is no network to answer it");
	}
	return err == 0;
}

unsigned int nm_move_push(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_move *move = peer->move;
	unsigned int nr = 0;

	if (move->is_pending)
		take_pending(engine, peer);
	if (move->is_answer_due)
		nr += answer(engine, peer);
	if (move->is_home_due)
		nr += nm_move_say_home(engine, peer);
	if (move->memory)
		nr += nm_move_push_back(engine, peer);
	if (move->absent)
		nr += nm_move_leave_absent(engine, peer);
	if (move->is_asked)
		nr += begin(engine, peer);
	if (peer->way == NM_WAY_LEAVING)
		nr += say_move(engine, peer);
	if (peer->way == NM_WAY_NETWORK && move->left)
		go_on(engine, peer);
	else if (move->left)
		check_deadline(engine, peer);
	return nr;
}

/*
 * MOVE and MOVED, whose last session is LAST: false if IN has no effect, or was a violation and is
 * reported.
 */
static bool is_for_session(const struct nm_incoming *in, uint32_t last)
{
	if (!(in->from->kind->flags & NM_TRANSPORT_NETWORK) || in->pkt->len != 0) {
		nm_violation(in, "it sent %s with %u bytes on channel %s",
			     in->pkt->op == NM_OP_MOVE ? "MOVE" : "MOVED", in->pkt->len,
			     nm_channel_name(in->from->kind->channel));
		return false;
	}
	if (in->pkt->data == 0 || in->pkt->data > last) {
		nm_violation(in, "it named session %llu in memory, which never was",
			     (unsigned long long)in->pkt->data);
		return false;
	}
	/* The counts of SWITCH are the last word about memory. */
	return in->pkt->data == last && !in->peer->failover && !in->peer->nr_quarantines;
}

void nm_move_on_move(const struct nm_incoming *in)
{
	struct nm_engine *engine = in->engine;
	struct nm_peer *peer = in->peer;
	const struct nm_move *move = peer->move;
	int err;

	if (in->pkt->data >= NM_MOVE_TO_MEMORY) {
		nm_move_on_return(in);
		return;
	}
	/* It sees whether the network is there. */
	if (!in->pkt->data && !in->pkt->tag && !in->pkt->len &&
	    in->from->kind->flags & NM_TRANSPORT_NETWORK)
		return;
	/* The first session needs no word. */
	if (!is_for_session(in, move && move->in_number ? move->in_number : 1) ||
	    !nm_move_of(engine, peer) || peer->move->has_reported || peer->move->is_pending)
		return;
	peer->move->in_number = (uint32_t)in->pkt->data;
	peer->move->position = in->pkt->tag;
	err = take_rest(engine, peer);
	if (err == -EBADMSG) {
		nm_violation(in, "it left its memory at position %llu, where no packet ends",
			     (unsigned long long)in->pkt->tag);
	} else if (err == -ENOENT) {
		peer->move->is_pending = true;
		peer->move->pending_ns = nm_clock_ns() + engine->params->connect_ms * NM_NS_PER_MS;
	}
	if (peer->state != NM_PEER_DOWN && nm_move_is_due(peer))
		nm_peer_activate(engine, peer);
}

void nm_move_on_moved(const struct nm_incoming *in)
{
	struct nm_peer *peer = in->peer;

	if (!is_for_session(in, peer->move		   ? peer->move->number :
				peer->way == NM_WAY_MEMORY ? 1 :
							     0))
		return;
	if (peer->way != NM_WAY_MEMORY && peer->way != NM_WAY_LEAVING &&
	    peer->way != NM_WAY_COUNTING)
		return;
	if (!nm_move_of(in->engine, peer))
		return;
	if (!peer->move->left && peer->state == NM_PEER_CONNECTED)
		nm_move_hold(in->engine, peer);
	if (!peer->move->left)
		return;
	if (in->pkt->tag > peer->move->sent) {
		nm_violation(in, "it took %llu places of the ring, and %llu were used",
			     (unsigned long long)in->pkt->tag,
			     (unsigned long long)peer->move->sent);
		return;
	}
	peer->move->taken = in->pkt->tag;
	nm_peer_on_way(peer, NM_WAY_COUNTED);
	nm_peer_activate(in->engine, peer);
}
