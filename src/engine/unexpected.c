/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   messages of a peer take a 64th of unexpected_max here    -> PACE keep
 *   half of that is gone again                               -> PACE free
 *   they take unexpected_max                                 -> PACE stop, and the peer is given up
 */
#include "engine/unexpected.h"

#include <errno.h>

#include "base/arith.h"
#include "base/log.h"

#define KEEP_PART 64
/* A peer that takes nothing in cannot receive the reason; it is given up this part later. */
#define UNTOLD_PART 8
/* More than one round of progress brings; after a round the peer can be informed. */
#define UNTOLD_MIN (UINT64_C(4) << 20)

static void say(struct nm_engine *engine, struct nm_peer *peer, enum nm_pace pace)
{
	const struct nm_packet packet = {.op = NM_OP_PACE, .data = pace};

	nm_peer_post(engine, peer, &packet, NULL);
}

void nm_unexpected_give_up(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_reason why;

	nm_reason_set(&why,
		      "its unexpected messages take %llu KiB here; if this is "
		      "meant, set NEARMETAL_UNEXPECTED_MAX to more",
		      (unsigned long long)(peer->held_bytes >> 10));
	nm_peer_down(engine, peer, -ENOBUFS, why.text);
}

/* Inform it before it is given up, so that it does not wait. Earlier packets go first. */
static NM_COLD bool has_room_still(struct nm_engine *engine, struct nm_peer *peer, uint64_t excess)
{
	if (peer->asked != NM_PACE_STOP) {
		peer->asked = NM_PACE_STOP;
		say(engine, peer, NM_PACE_STOP);
	}
	if (peer->state == NM_PEER_DOWN)
		return false;
	if (peer->nr_control > 0 &&
	    excess <= nm_max_u64(engine->params->unexpected_max / UNTOLD_PART, UNTOLD_MIN))
		return true; /* nm_peer_push() ends it */
	nm_unexpected_give_up(engine, peer);
	return false;
}

bool nm_unexpected_has_room(struct nm_engine *engine, struct nm_peer *peer, size_t bytes)
{
	uint64_t held = peer->held_bytes + nm_buffer_block(bytes);

	if (nm_likely(held <= engine->params->unexpected_max))
		return true;
	return has_room_still(engine, peer, held - engine->params->unexpected_max);
}

void nm_unexpected_add(struct nm_engine *engine, struct nm_peer *peer, size_t bytes)
{
	peer->held_bytes += nm_buffer_block(bytes);
	if (nm_likely(peer->asked != NM_PACE_FREE ||
		      peer->held_bytes <= engine->params->unexpected_max / KEEP_PART))
		return;
	nm_log_once(
		NM_LOG_INFO,
		"a peer sends faster than this endpoint receives: the peer now keeps the bytes");
	peer->asked = NM_PACE_KEEP;
	say(engine, peer, NM_PACE_KEEP);
}

void nm_unexpected_remove(struct nm_engine *engine, struct nm_peer *peer, size_t bytes)
{
	peer->held_bytes -= nm_buffer_block(bytes);
	if (nm_likely(peer->asked != NM_PACE_KEEP ||
		      peer->held_bytes > engine->params->unexpected_max / KEEP_PART / 2))
		return;
	peer->asked = NM_PACE_FREE;
	say(engine, peer, NM_PACE_FREE);
}

static void set_keeps(struct nm_peer *peer, bool keeps)
{
	peer->keeps = keeps;
	peer->eager_max = keeps && peer->link_eager_max > NM_UNEXPECTED_EAGER ?
				  NM_UNEXPECTED_EAGER :
				  peer->link_eager_max;
}

void nm_unexpected_on_pace(const struct nm_incoming *in)
{
	if (in->pkt->len != 0 || in->pkt->data > NM_PACE_STOP)
		nm_violation(in, "it set a pace that does not exist");
	else if (in->pkt->data == NM_PACE_STOP)
		nm_peer_down(
			in->engine, in->peer, -ENOBUFS,
			"too many messages of this endpoint wait there for a receive: it takes no more "
			"(its NEARMETAL_UNEXPECTED_MAX)");
	else
		set_keeps(in->peer, in->pkt->data == NM_PACE_KEEP);
}

void nm_unexpected_on_link(struct nm_peer *peer, uint32_t eager_max)
{
	peer->link_eager_max = eager_max;
	set_keeps(peer, peer->keeps);
}

void nm_unexpected_reset(struct nm_peer *peer)
{
	peer->asked = NM_PACE_FREE;
	set_keeps(peer, false);
}
