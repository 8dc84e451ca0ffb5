/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a channel that was given up to the network, without losing count of what is lost.
 *
 *   I find a lie, or the peer says that it found one      the channel ends: quarantined()
 *   me -> peer  SWITCH  sent: all I published there, taken: all I delivered      } on the network,
 *   peer -> me  SWITCH  likewise                                                 } before all else
 *
 * Until both are here nothing else is said, so both sides know the same four numbers before they go
 * on. What one had sent is what the other has taken, both ways: nothing was lost, and everything
 * under way goes on where it stood. Otherwise nobody can tell what was in the gap: everything under
 * way between the two ends with an error on both sides, and so does, at whoever misses something,
 * every receive that may wait for it. Order is kept: whoever hears SWITCH first takes what the old
 * channel still holds.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/hold.h"
#include "engine/internal.h"

struct nm_move {
	struct nm_stream_ends mine, theirs;
	bool is_left; /* the old channel has ended here: `mine` is valid */
	bool said;    /* they know mine */
	bool heard;   /* `theirs` is valid */
	bool settled; /* losses, if any, were dealt with */
	uint64_t deadline_ns;
};

void nm_move_end(struct nm_peer *peer)
{
	free(peer->move);
	peer->move = NULL;
}

static void activate(struct nm_engine *engine, struct nm_peer *peer)
{
	if (nm_list_empty(&peer->active_node))
		nm_list_append(&engine->active, &peer->active_node);
}

static struct nm_transport *network(const struct nm_engine *engine)
{
	return engine->transports[NM_CHANNEL_NET];
}

/* Is there a network with a way to PEER? */
static bool can_move(const struct nm_engine *engine, const struct nm_peer *peer)
{
	return network(engine) &&
	       (peer->address.inner_len > 0 || peer->source_channels & 1U << NM_CHANNEL_NET ||
		(peer->link && peer->link->transport == network(engine)));
}

bool nm_move_cast_out(struct nm_engine *engine, struct nm_peer *peer, const char *what)
{
	const struct nm_transport *from = engine->polled_now;

	if (!from || !from->ops->cast_out || peer->move)
		return false;
	from->ops->cast_out(engine->transports[from->ops->channel], &peer->who, what);
	return true;
}

static struct nm_move *begin(struct nm_engine *engine, struct nm_peer *peer)
{
	if (peer->move)
		return peer->move;
	peer->move = calloc(1, sizeof(*peer->move));
	if (!peer->move) {
		nm_peer_down(engine, peer, -ENOMEM, "no memory to go on over the network");
		return NULL;
	}
	peer->move->deadline_ns = nm_clock_ns() + engine->params->connect_ms * NM_NS_PER_MS;
	peer->state = NM_PEER_MOVING;
	peer->is_watched = false;
	activate(engine, peer);
	return peer->move;
}

/* Something was spoiled on the way, nobody knows what. */
static NM_COLD void spoiled(struct nm_engine *engine, struct nm_peer *peer, bool incoming)
{
	nm_error(
		"peer %02x%02x%02x%02x%02x%02x: messages %s it were spoiled; what was under way ends with an error",
		peer->who.id[0], peer->who.id[1], peer->who.id[2], peer->who.id[3], peer->who.id[4],
		peer->who.id[5], incoming ? "from" : "to");
	nm_peer_drop_queue(engine, peer);
	nm_hold_reset(peer);
	nm_recv_forget(engine, peer);
	nm_recv_forget_answers(engine, peer);
	nm_peer_fail_requests(engine, peer);
	if (incoming)
		nm_peer_fail_receives(engine, peer);
}

/* Both sides' counts are known: go on, with or without losses. */
static void settle(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_move *move = peer->move;

	if (!move->is_left || !move->heard)
		return;
	if (!move->settled) {
		bool lost_in = move->theirs.sent != move->mine.taken;
		bool lost_out = move->mine.sent != move->theirs.taken;

		move->settled = true;
		if (lost_in || lost_out)
			spoiled(engine, peer, lost_in);
		activate(engine, peer);
	}
	if (!move->said)
		return;
	nm_move_end(peer);
	peer->state = NM_PEER_CONNECTED;
}

/*
 * One memory channel has ended, and the peer is still on another: it could not get here on one way,
 * or I there. The counts of one cannot tell what was lost on both.
 */
static bool is_on_another(const struct nm_engine *engine, const struct nm_peer *peer)
{
	const struct nm_transport *ended = engine->polled_now;

	return ended &&
	       (peer->source_channels & ~(1U << NM_CHANNEL_NET) ||
		(peer->link && peer->link->transport != engine->transports[ended->ops->channel] &&
		 peer->link->transport != network(engine)));
}

void nm_sink_quarantined(void *engine_, struct nm_peer *peer, const struct nm_stream_ends *ends,
			 const struct nm_reason *why)
{
	struct nm_engine *engine = engine_;
	struct nm_peer_story *story = nm_peer_story(peer);
	struct nm_move *move;

	if (engine->polled_now)
		peer->source_channels &= ~(1U << engine->polled_now->ops->channel);
	if (peer->state == NM_PEER_DOWN || engine->closing)
		return;
	peer->nr_quarantines++;
	nm_peer_receives_on(peer, NM_CHANNEL_NET);
	nm_reason_set(&story->quarantine, "%s", why->text);
	if (!can_move(engine, peer) || is_on_another(engine, peer)) {
		nm_peer_down(engine, peer, -EBADMSG, why->text);
		return;
	}
	nm_warn("peer %02x%02x%02x%02x%02x%02x (%.60s): its memory channel is quarantined, the network is used: %s",
		peer->who.id[0], peer->who.id[1], peer->who.id[2], peer->who.id[3], peer->who.id[4],
		peer->who.id[5], story->label.text, why->text);
	/* A link that is the network's already stays. */
	if (peer->link && peer->link->transport != network(engine))
		peer->link = NULL;
	move = begin(engine, peer);
	if (!move)
		return;
	move->mine = *ends;
	move->is_left = true;
	settle(engine, peer);
}

/* The channel that PEER said it left ends here too, after what it still holds. */
static void leave(struct nm_engine *engine, struct nm_peer *peer)
{
	static const struct nm_stream_ends nothing;
	const struct nm_transport *before = engine->polled_now;
	const struct nm_reason why = {"it left its memory channel"};

	for (unsigned int c = 0; c < NM_NR_CHANNELS; c++) {
		struct nm_transport *t = engine->transports[c];

		if (!t || !t->ops->finish)
			continue;
		engine->polled_now = t;
		t->ops->finish(t, &peer->who);
	}
	engine->polled_now = before;
	/* It never came to me that way: then I have taken nothing of what it says it sent. */
	if (peer->state != NM_PEER_DOWN && !(peer->move && peer->move->is_left)) {
		engine->polled_now = NULL;
		nm_sink_quarantined(engine, peer, &nothing, &why);
		engine->polled_now = before;
	}
}

void nm_move_on_switch(struct nm_engine *engine, struct nm_peer *peer, const struct nm_packet *pkt)
{
	if (engine->polled_now != network(engine) || pkt->len != 0 || peer->nr_quarantines > 1 ||
	    (peer->move && peer->move->heard) || (!peer->move && peer->nr_quarantines)) {
		nm_peer_violation(engine, peer, "it left a channel that it was not on");
		return;
	}
	if (!peer->move || !peer->move->is_left)
		leave(engine, peer);
	if (!peer->move)
		return;
	peer->move->theirs = (struct nm_stream_ends){.sent = pkt->tag, .taken = pkt->data};
	peer->move->heard = true;
	settle(engine, peer);
}

/* Say how far I got, as the first thing on the network. 0 or -errno. */
static int say(struct nm_engine *engine, struct nm_peer *peer)
{
	const struct nm_packet packet = {
		.op = NM_OP_SWITCH,
		.tag = peer->move->mine.sent,
		.data = peer->move->mine.taken,
	};
	int err = 0;

	if (!peer->link) {
		peer->state = NM_PEER_KNOWN;
		err = nm_peer_connect(engine, peer);
		peer->state = NM_PEER_MOVING;
	}
	return err ? err : peer->send(peer->link, &packet, NULL, 0);
}

unsigned int nm_move_push(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_move *move = peer->move;
	int err;

	if (engine->polled_now)
		return 0;
	if (move->is_left && !move->said) {
		err = say(engine, peer);
		if (err == 0) {
			move->said = true;
			settle(engine, peer);
			return 1;
		}
		if (err == -EHOSTUNREACH)
			nm_peer_down(engine, peer, -EBADMSG, nm_peer_story(peer)->quarantine.text);
		/* -EPIPE: the network is about to tell why. */
	} else if (engine->closing) {
		/* Nothing is due any more; they know how far we got. */
		nm_move_end(peer);
		return 0;
	}
	if (peer->move && nm_clock_ns() > move->deadline_ns)
		nm_peer_down(engine, peer, -EBADMSG,
			     "its memory channel is quarantined, and it did not say on the network "
			     "within NEARMETAL_CONNECT_MS how far it got");
	return 0;
}
