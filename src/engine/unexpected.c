/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   messages of a peer take a 64th of unexpected_max here    -> PACE keep
 *   half of that is gone again                               -> PACE free
 *   they take unexpected_max                                 -> PACE stop, and the peer is given up
 *   the same for all peers without an address together, at smaller limits
 */
#include "engine/unexpected.h"

#include <errno.h>

#include "base/arith.h"
#include "base/log.h"
#include "engine/recv.h"
#include "shm/budget.h"

#define KEEP_PART 64
/* Of the memory of this process. */
#define MEMORY_PART 8
/* Of unexpected_max, for all peers together that the address vector does not have. */
#define STRANGERS_PART 4
/* Of that, before the bytes stay at the senders. Many of them may send at the same time. */
#define STRANGERS_KEEP_PART 16
/* A peer that takes nothing in cannot receive the reason; it is given up this part later. */
#define UNTOLD_PART 8
/* More than one round of progress brings; after a round the peer can be informed. */
#define UNTOLD_MIN (UINT64_C(4) << 20)

void nm_unexpected_init(struct nm_engine *engine)
{
	engine->unexpected_max =
		nm_min_u64(engine->params->unexpected_max, nm_budget_memory() / MEMORY_PART);
}

static void say(struct nm_engine *engine, struct nm_peer *peer, enum nm_pace pace)
{
	const struct nm_packet packet = {.op = NM_OP_PACE, .data = pace};

	nm_peer_post(engine, peer, &packet, NULL);
}

void nm_unexpected_give_up(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_reason why;

	nm_reason_set(&why,
		      "its unexpected messages take %llu KiB here; if this is meant, set "
		      "NEARMETAL_UNEXPECTED_MAX to more (an eighth of the memory is the most)",
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
	    excess <= nm_max_u64(engine->unexpected_max / UNTOLD_PART, UNTOLD_MIN))
		return true; /* nm_peer_push() ends it */
	nm_unexpected_give_up(engine, peer);
	return false;
}

static uint64_t strangers_max(const struct nm_engine *engine)
{
	return engine->unexpected_max / STRANGERS_PART;
}

/* The limit for messages of PEER. */
static uint64_t limit_of(const struct nm_engine *engine, const struct nm_peer *peer)
{
	return nm_peer_is_unlisted(peer) ? strangers_max(engine) : engine->unexpected_max;
}

bool nm_unexpected_has_room(struct nm_engine *engine, struct nm_peer *peer, size_t bytes)
{
	uint64_t held = peer->held_bytes + nm_buffer_block(bytes), limit = limit_of(engine, peer);

	if (nm_likely(held <= limit))
		return true;
	return has_room_still(engine, peer, held - limit);
}

static size_t block_of(const struct nm_unexpected *m)
{
	return nm_buffer_block(sizeof(*m) + m->stored);
}

/* The peer without an index in the address vector whose messages take most. NULL: there is none. */
static struct nm_peer *find_largest_stranger(struct nm_engine *engine)
{
	struct nm_peer *largest = NULL;

	for (size_t i = 0; i <= engine->peers.mask; i++) {
		struct nm_peer *peer = engine->peers.slots[i];

		if (peer && nm_peer_is_unlisted(peer) && peer->held_bytes &&
		    (!largest || peer->held_bytes > largest->held_bytes))
			largest = peer;
	}
	return largest;
}

/*
 * Any process can have many names, so all strangers together have one limit. A sound program can have
 * strangers, too: Open MPI inserts an address when it first sends there. So each is informed.
 */
static NM_COLD void make_room(struct nm_engine *engine)
{
	struct nm_peer *peer = find_largest_stranger(engine);

	if (!peer || (peer->state != NM_PEER_DOWN &&
		      has_room_still(engine, peer, engine->unlisted_bytes - strangers_max(engine))))
		return;
	nm_recv_discard(engine, peer);
}

/* More than a part of what PEER may have here; or of what all strangers may have, if it is one. */
static bool is_much(const struct nm_engine *engine, const struct nm_peer *peer, unsigned int part)
{
	return peer->held_bytes > limit_of(engine, peer) / KEEP_PART / part ||
	       (nm_peer_is_unlisted(peer) &&
		engine->unlisted_bytes > strangers_max(engine) / STRANGERS_KEEP_PART / part);
}

static void set_pace(struct nm_engine *engine, struct nm_peer *peer)
{
	if (peer->asked == NM_PACE_FREE && is_much(engine, peer, 1)) {
		nm_log_once(NM_LOG_INFO, "a peer sends faster than this endpoint receives: the "
					 "peer now keeps the bytes");
		peer->asked = NM_PACE_KEEP;
		say(engine, peer, NM_PACE_KEEP);
	} else if (nm_unlikely(peer->asked == NM_PACE_KEEP) && !is_much(engine, peer, 2)) {
		peer->asked = NM_PACE_FREE;
		say(engine, peer, NM_PACE_FREE);
	}
}

void nm_unexpected_add(struct nm_engine *engine, struct nm_unexpected *m)
{
	struct nm_peer *peer = m->source;

	peer->held_bytes += block_of(m);
	if (nm_unlikely(nm_peer_is_unlisted(peer))) {
		engine->unlisted_bytes += block_of(m);
		if (engine->unlisted_bytes > strangers_max(engine)) {
			make_room(engine);
			return;
		}
	}
	set_pace(engine, peer);
}

void nm_unexpected_remove(struct nm_engine *engine, const struct nm_unexpected *m)
{
	struct nm_peer *peer = m->source;

	peer->held_bytes -= block_of(m);
	if (nm_unlikely(nm_peer_is_unlisted(peer)))
		engine->unlisted_bytes -= block_of(m);
	if (nm_unlikely(peer->asked == NM_PACE_KEEP))
		set_pace(engine, peer);
}

void nm_peer_set_index(struct nm_peer *peer, uint64_t index)
{
	bool is_listed = index != UINT64_MAX;

	if (peer->held_bytes && nm_peer_is_unlisted(peer) == is_listed)
		peer->engine->unlisted_bytes += is_listed ? -peer->held_bytes : peer->held_bytes;
	peer->index = index;
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
