/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forced mode: a machine stood still in the segment for longer than the lease, and was asked
 * nothing. Its process may live, and the memory is sound. So both writers leave it as if they had
 * been asked, each when it can: the reader goes on to read until MOVE has come.
 *
 * Death is noticed as ever: by the network, or by the segment, where the slot of the peer ends. Some
 * networks find no death. Behind one of these the heartbeat has to go on.
 */
#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/move_private.h"

/* An own pause counts as one of them, however long it was. */
#define LOOKS 4

static uint64_t look_gap(const struct nm_engine *engine)
{
	return engine->params->net_timeout_ms * NM_NS_PER_MS / LOOKS;
}

bool nm_move_miss(struct nm_engine *engine, struct nm_peer *peer, struct nm_transport *from)
{
	uint64_t now_ns = nm_clock_ns();

	if (peer->state == NM_PEER_LINK_LOST || peer->failover || peer->nr_quarantines ||
	    engine->closing || !nm_network_reaches(nm_network(engine), peer) ||
	    !nm_move_of(engine, peer))
		return false;
	if (peer->move->absent)
		return true;
	if (nm_move_may_log(peer))
		nm_warn("peer " NM_WHO_FORMAT
			" (%.60s): one of the two machines stood still for longer than the lease "
			"of the segment: the network is used if the peer lives",
			NM_WHO(&peer->who), nm_peer_diag(peer)->label.text);
	peer->move->absent = from;
	peer->move->absent_ns = now_ns + engine->params->move_ms * NM_NS_PER_MS;
	peer->move->heartbeat = from->move->heartbeat(from, &peer->who);
	peer->move->look_ns = now_ns + look_gap(engine);
	peer->move->nr_silent = 0;
	peer->move->is_sought = false;
	peer->move->is_source_absent = peer->source_channels >> from->kind->channel & 1;
	nm_peer_activate(engine, peer);
	return true;
}

static bool sends_there(const struct nm_peer *peer, const struct nm_transport *memory)
{
	return peer->way == NM_WAY_MEMORY && peer->link && peer->link->transport == memory;
}

/*
 * Both directions have left MEMORY, or the peer has come back there already. A writer in JOINING
 * completes that first: its reader knows the session.
 */
static bool is_over(const struct nm_peer *peer, const struct nm_transport *memory)
{
	const struct nm_link *left = peer->move->left;

	return !(left && left->transport == memory) && !sends_there(peer, memory) &&
	       peer->way != NM_WAY_JOINING && !peer->move->is_source_absent;
}

/* The link on the network shows whether the peer lives. Returns true once it takes packets. */
static bool seek(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_reason why = {""};
	int err;

	err = nm_move_say(engine, peer, NM_OP_MOVE, 0, 0, &why);
	if (err && !nm_move_is_transient(err)) {
		nm_reason_add(&why, "; its lease in the segment has expired");
		nm_peer_down(engine, peer, -ECONNRESET, why.text);
	}
	peer->move->is_sought |= !err;
	return !err;
}

static bool has_sign_of_life(struct nm_peer *peer)
{
	struct nm_move *move = peer->move;
	uint64_t before = move->heartbeat;
	struct nm_link_facts facts = {0};

	move->heartbeat = move->absent->move->heartbeat(move->absent, &peer->who);
	if (move->net)
		move->net->transport->ops->describe(move->net, &facts);
	return move->heartbeat != before || facts.finds_death;
}

/* For NEARMETAL_NET_TIMEOUT_MS nothing has shown that PEER lives. */
static bool is_silent(const struct nm_engine *engine, struct nm_peer *peer, uint64_t now_ns)
{
	struct nm_move *move = peer->move;

	if (now_ns < move->look_ns)
		return false;
	move->look_ns = now_ns + look_gap(engine);
	move->nr_silent = has_sign_of_life(peer) ? 0 : move->nr_silent + 1;
	return move->nr_silent == LOOKS;
}

unsigned int nm_move_leave_absent(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_move *move = peer->move;
	const struct nm_transport *memory = move->absent;
	uint64_t now_ns = nm_clock_ns();

	if (is_over(peer, memory)) {
		move->absent = NULL;
		return 0;
	}
	if (now_ns > move->absent_ns) {
		nm_peer_down(engine, peer, -ECONNRESET,
			     "its lease in the segment expired, and it did not leave the memory "
			     "within NEARMETAL_MOVE_MS");
		return 0;
	}
	if (is_silent(engine, peer, now_ns)) {
		nm_peer_down(engine, peer, -ECONNRESET,
			     "its lease in the segment expired, and neither its heartbeat nor the "
			     "network has shown within NEARMETAL_NET_TIMEOUT_MS that it lives");
		return 0;
	}
	if ((move->is_sought && !sends_there(peer, memory)) || !seek(engine, peer))
		return 0;
	if (sends_there(peer, memory) && peer->state == NM_PEER_CONNECTED) {
		nm_move_hold(engine, peer);
		nm_peer_on_way(peer, NM_WAY_LOST);
	}
	return 1;
}
