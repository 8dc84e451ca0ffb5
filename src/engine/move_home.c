/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine that has moved has another part of a segment, and the identities of its endpoints still
 * name the first one. Each says its new home to the peers that use the network, once per move.
 */
#include <string.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "engine/move_private.h"
#include "engine/stage.h"

/* A peer may say a new home at any rate, and each one costs a search of the segment. */
#define HOME_NS NM_NS_PER_S

static uint64_t word_of(const uint8_t home[NM_HOME_LEN])
{
	uint64_t word = 0;

	for (int i = 0; i < NM_HOME_LEN; i++)
		word |= (uint64_t)home[i] << 8 * i;
	return word;
}

void nm_move_introduce(struct nm_engine *engine, struct nm_peer *peer)
{
	const struct nm_transport *net = nm_network(engine);

	if (!engine->opening || engine->closing || !net || peer->state == NM_PEER_DOWN ||
	    !((peer->link && peer->link->transport == net) ||
	      peer->source_channels >> net->kind->channel & 1) ||
	    (peer->move && peer->move->told == engine->opening) || !nm_move_of(engine, peer))
		return;
	peer->move->is_home_due = true;
	nm_peer_activate(engine, peer);
}

unsigned int nm_move_say_home(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_reason why;
	int err;

	NM_FAULT("home-say-before");
	err = nm_move_say(engine, peer, NM_OP_HOME, word_of(engine->home), engine->opening, &why);
	NM_FAULT("home-say-after");
	if (nm_move_is_transient(err))
		return 0;
	/* Without a network it stays where it is, and is not called in memory. */
	peer->move->is_home_due = false;
	if (err)
		return 0;
	peer->move->told = engine->opening;
	/* It may have refused this endpoint before, as one that shows another's name. */
	nm_move_want_back(engine, peer, engine->moved);
	return 1;
}

/* FROM looks for PEER at its home from now on. False: FROM has no such memory. */
static bool take_home(struct nm_peer *peer, struct nm_transport *from)
{
	return from->move->home(from, &peer->who, peer->move->home);
}

void nm_sink_homed(struct nm_transport *from, const uint8_t home[NM_HOME_LEN])
{
	struct nm_engine *engine = from->sink.engine;

	engine->opening++;
	engine->moved = from;
	memcpy(engine->home, home, NM_HOME_LEN);
	nm_stages_forget_places(engine->stages, from->kind->channel);
	for (size_t i = 0; i <= engine->peers.mask; i++) {
		struct nm_peer *peer = engine->peers.slots[i];

		if (!peer || peer->state == NM_PEER_DOWN ||
		    nm_identity_equal(&peer->who, &engine->config.who))
			continue;
		if (peer->move && peer->move->opening)
			(void)take_home(peer, from);
		nm_move_introduce(engine, peer);
		nm_move_want_back(engine, peer, from);
	}
}

/* The memory of HOME may be one that this endpoint sees. */
static void look_for(struct nm_engine *engine, struct nm_peer *peer)
{
	uint64_t now_ns = nm_clock_ns();

	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		struct nm_transport *t = engine->polled[i];

		if (!t->move || !take_home(peer, t))
			continue;
		nm_move_want_back(engine, peer, t);
		if (!peer->move->memory)
			return;
		peer->move->again_ns = peer->move->home_ns;
		peer->move->home_ns = now_ns + HOME_NS;
		return;
	}
}

void nm_move_on_home(const struct nm_incoming *in)
{
	struct nm_peer *peer = in->peer;

	if (!(in->from->kind->flags & NM_TRANSPORT_NETWORK) || in->pkt->len != 0 ||
	    in->pkt->data == 0 || in->pkt->data > UINT32_MAX ||
	    in->pkt->tag >> 8 * NM_HOME_LEN != 0) {
		nm_violation(in, "it said home %llu of move %llu with %u bytes on channel %s",
			     (unsigned long long)in->pkt->tag, (unsigned long long)in->pkt->data,
			     in->pkt->len, nm_channel_name(in->from->kind->channel));
		return;
	}
	/* Repeated, or older than what is known. */
	if (!nm_move_of(in->engine, peer) || in->pkt->data <= peer->move->opening)
		return;
	peer->move->opening = (uint32_t)in->pkt->data;
	for (int i = 0; i < NM_HOME_LEN; i++)
		peer->move->home[i] = (uint8_t)(in->pkt->tag >> 8 * i);
	look_for(in->engine, peer);
}
