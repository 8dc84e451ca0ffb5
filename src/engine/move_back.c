/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "engine/move_private.h"

/* Before the next look for the answer of a peer that is called. */
#define AGAIN_NS NM_NS_PER_MS

void nm_move_resume(struct nm_peer *peer)
{
	struct nm_transport *from = peer->move->suspended;

	peer->move->suspended = NULL;
	if (from)
		from->move->suspend(from, &peer->who, false);
}

void nm_move_end_back(struct nm_peer *peer)
{
	struct nm_move *move = peer->move;

	nm_move_resume(peer);
	move->memory = NULL;
	if (move->met) {
		move->met->transport->move->hold(move->met);
		move->met->transport->move->leave(move->met);
	}
	move->met = NULL;
}

/*
 * Memory proves who a peer is; the network only believes it. So a peer that the program does not
 * know is not called there unless it was there.
 */
static bool may_call(const struct nm_peer *peer)
{
	return peer->was_known || (peer->move && (peer->move->number || peer->move->in_number));
}

void nm_move_want_back(struct nm_engine *engine, struct nm_peer *peer, struct nm_transport *from)
{
	if (peer->way != NM_WAY_NETWORK || !peer->link || peer->failover || peer->nr_quarantines ||
	    engine->closing || !may_call(peer) || !nm_move_of(engine, peer))
		return;
	peer->move->memory = from;
	peer->move->again_ns = 0;
	nm_peer_activate(engine, peer);
}

/*
 * Call the peer in memory, once it knows where this endpoint is, until it answers.
 * 0: move->met is set.
 */
static int meet(struct nm_peer *peer)
{
	struct nm_move *move = peer->move;
	uint64_t now = nm_clock_ns();
	struct nm_reason why;
	int err;

	/* A move from memory ends first. */
	if (peer->state == NM_PEER_MOVING || move->is_home_due || move->absent ||
	    now < move->again_ns)
		return -EAGAIN;
	move->again_ns = now + AGAIN_NS;
	if (peer->state != NM_PEER_CONNECTED)
		return -EPIPE;
	err = move->memory->move->enter(move->memory, &peer->address, peer, &move->met, &why);
	if (!err)
		nm_peer_on_way(peer, NM_WAY_MET);
	return err;
}

unsigned int nm_move_push_back(struct nm_engine *engine, struct nm_peer *peer)
{
	static const struct nm_reason others = {"no machine is to be moved any more"};
	struct nm_move *move = peer->move;
	uint64_t session = NM_MOVE_TO_MEMORY | (move->number + 1);
	const struct nm_packet mark = {.op = NM_OP_MOVE, .data = session};
	struct nm_link *met;
	struct nm_reason why;
	int err = move->met ? 0 : meet(peer);

	if (err == -EAGAIN)
		return 0;
	/* The transport tries again, or the network reports the end of the peer. */
	if (!err)
		err = nm_move_say(engine, peer, NM_OP_MOVE, 0, session, &why);
	if (nm_move_is_transient(err) && move->met)
		return 0;
	move->memory = NULL;
	met = move->met;
	if (err) {
		nm_move_end_back(peer);
		return 0;
	}
	NM_FAULT("return-said");
	move->met = NULL;
	move->number++;
	peer->nr_moves++;
	/* There is room in an empty ring; if it has ended, the next packet finds out. */
	(void)met->transport->ops->send(met, &mark, NULL, 0);
	NM_FAULT("return-marked");
	nm_peer_on_way(peer, NM_WAY_SAID);
	nm_peer_set_link(peer, met, &others);
	return 1;
}

/* Both have come: what the peer sends from now on is in memory. */
static void arrive(struct nm_peer *peer, const struct nm_transport *from)
{
	peer->move->is_marked = true;
	/* The window may be another one, and a device pins it again. */
	peer->places = NM_PLACES_UNKNOWN;
	nm_peer_receives_on(peer, from->kind->channel);
	if (nm_move_may_log(peer))
		nm_info("peer " NM_WHO_FORMAT " (%.60s): it came back to the memory channel %s",
			NM_WHO(&peer->who), nm_peer_diag(peer)->label.text,
			nm_channel_name(from->kind->channel));
}

/* The packet on the network. NUMBER is the next one. */
static void on_network(const struct nm_incoming *in, uint32_t number)
{
	struct nm_move *move = in->peer->move;
	struct nm_transport *suspended = move->suspended;

	move->in_number = number;
	move->has_reported = move->is_marked = false;
	NM_FAULT("return-heard");
	if (!suspended)
		return;
	arrive(in->peer, suspended);
	nm_move_resume(in->peer);
}

void nm_move_on_return(const struct nm_incoming *in)
{
	struct nm_move *move = nm_move_of(in->engine, in->peer);
	bool is_network = in->from->kind->flags & NM_TRANSPORT_NETWORK;
	uint64_t number = in->pkt->data - NM_MOVE_TO_MEMORY;
	bool is_next;

	if (!move)
		return;
	is_next = number == (uint64_t)move->in_number + 1 &&
		  (!move->in_number || move->has_reported) && !move->is_answer_due;
	if (in->pkt->len != 0 || in->pkt->tag != 0 || (!is_network && !in->from->move)) {
		nm_violation(in, "it came back to memory with %u bytes on channel %s", in->pkt->len,
			     nm_channel_name(in->from->kind->channel));
	} else if (is_network && number && number <= move->in_number) {
		/* Repeated, or what it sent again from memory that is over. */
	} else if (in->peer->failover || in->peer->nr_quarantines) {
		/* As in move.c. */
	} else if (is_network && is_next) {
		on_network(in, (uint32_t)number);
	} else if (!is_network && number && number == move->in_number && !move->has_reported &&
		   !move->is_marked) {
		arrive(in->peer, in->from);
	} else if (!is_network && is_next && !move->suspended) {
		move->suspended = in->from;
		NM_FAULT("return-suspended");
		in->from->move->suspend(in->from, &in->peer->who, true);
	} else {
		nm_violation(in, "it came back to memory out of turn, in session %llu",
			     (unsigned long long)number);
	}
}
