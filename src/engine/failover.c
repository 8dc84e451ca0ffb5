/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes from a broken channel to the network and finds out what was lost.
 *
 *   this side finds invalid bytes, or the peer reports them   the channel ends: quarantined()
 *   this side -> peer  SWITCH  sent: all published there, taken: all delivered   } on the network,
 *   peer -> this side  SWITCH  likewise                                          } before all else
 *
 * No other packet is sent until both have arrived, so both sides know the same four numbers. If
 * each side took what the other had sent, nothing was lost, and everything under way continues
 * where it stood. Otherwise the content of the gap is unknown: everything under way between the two
 * ends with an error on both sides. At the side that misses data, every receive that may wait for
 * it ends too. Order is kept: the side that gets SWITCH first takes the rest of the old channel.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/internal.h"
#include "engine/unexpected.h"

struct nm_failover {
	struct nm_stream_ends mine, theirs;
	bool is_left; /* the old channel has ended here: `mine` is valid */
	bool said;    /* they know mine */
	bool heard;   /* `theirs` is valid */
	bool settled; /* losses, if any, were dealt with */
	uint64_t deadline_ns;
};

void nm_failover_end(struct nm_peer *peer)
{
	free(peer->failover);
	peer->failover = NULL;
}

struct nm_transport *nm_network(const struct nm_engine *engine)
{
	for (unsigned int i = 0; i < engine->nr_polled; i++)
		if (engine->polled[i]->kind->flags & NM_TRANSPORT_NETWORK)
			return engine->polled[i];
	return NULL;
}

bool nm_network_reaches(const struct nm_transport *net, const struct nm_peer *peer)
{
	return net &&
	       (peer->address.inner_len > 0 || peer->source_channels >> net->kind->channel & 1 ||
		(peer->link && peer->link->transport == net));
}

static struct nm_failover *begin(struct nm_engine *engine, struct nm_peer *peer)
{
	if (peer->failover)
		return peer->failover;
	peer->failover = calloc(1, sizeof(*peer->failover));
	if (!peer->failover) {
		nm_peer_down(engine, peer, -ENOMEM, "no memory to go on over the network");
		return NULL;
	}
	peer->failover->deadline_ns = nm_clock_ns() + engine->params->connect_ms * NM_NS_PER_MS;
	if (peer->state != NM_PEER_MOVING)
		nm_peer_set_state(peer, NM_PEER_MOVING);
	nm_peer_activate(engine, peer);
	return peer->failover;
}

/* Some bytes were damaged on the way; which ones is unknown. */
static NM_COLD void spoiled(struct nm_engine *engine, struct nm_peer *peer, bool incoming)
{
	const struct nm_failed before = engine->failed;

	nm_error("peer " NM_WHO_FORMAT
		 ": messages %s it were damaged; its operations in progress end with an error",
		 NM_WHO(&peer->who), incoming ? "from" : "to");
	nm_peer_drop_queue(engine, peer);
	nm_unexpected_reset(peer);
	nm_recv_forget(engine, peer);
	nm_recv_forget_answers(engine, peer);
	nm_peer_fail_requests(engine, peer);
	if (incoming)
		nm_peer_fail_receives(engine, peer);
	nm_report_lost(engine, peer, &before);
}

/* Both sides' counts are known: go on, with or without losses. */
static void settle(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_failover *failover = peer->failover;

	if (!failover->is_left || !failover->heard)
		return;
	if (!failover->settled) {
		bool lost_in = failover->theirs.sent != failover->mine.taken;
		bool lost_out = failover->mine.sent != failover->theirs.taken;

		failover->settled = true;
		if (lost_in || lost_out)
			spoiled(engine, peer, lost_in);
		nm_peer_activate(engine, peer);
	}
	if (!failover->said)
		return;
	nm_failover_end(peer);
	nm_peer_set_state(peer, NM_PEER_CONNECTED);
}

/*
 * One memory channel has ended, and the peer is still on another: it could not get here on one way,
 * or I there. The counts of one do not show what was lost on both.
 */
static bool is_on_another(const struct nm_transport *ended, const struct nm_transport *net,
			  const struct nm_peer *peer)
{
	return peer->source_channels & ~(1U << net->kind->channel) ||
	       (peer->link && peer->link->transport != ended && peer->link->transport != net);
}

/* The channel FROM to and from PEER has ended; NULL: the peer left one that it never used to us. */
static void give_up(struct nm_engine *engine, struct nm_peer *peer, const struct nm_transport *from,
		    const struct nm_stream_ends *ends, const struct nm_reason *why)
{
	struct nm_peer_diag *diag = nm_peer_diag(peer);
	const struct nm_transport *net = nm_network(engine);
	struct nm_failover *failover;

	if (from)
		peer->source_channels &= ~(1U << from->kind->channel);
	if (peer->state == NM_PEER_DOWN || engine->closing)
		return;
	peer->nr_quarantines++;
	nm_reason_set(&diag->quarantine, "%s", why->text);
	if (!nm_network_reaches(net, peer) || (from && is_on_another(from, net, peer))) {
		nm_peer_down(engine, peer, -EBADMSG, why->text);
		return;
	}
	nm_peer_receives_on(peer, net->kind->channel);
	nm_warn("peer " NM_WHO_FORMAT
		" (%.60s): its memory channel is quarantined, the network is used: %s",
		NM_WHO(&peer->who), diag->label.text, why->text);
	/* The counts below take the place of those of MOVE and MOVED. */
	nm_move_end(peer, NM_WAY_COUNTED);
	/* A link that is the network's already stays. */
	if (peer->link && peer->link->transport != net) {
		nm_stages_leave(engine, peer->link);
		peer->link = NULL;
	}
	failover = begin(engine, peer);
	if (!failover)
		return;
	failover->mine = *ends;
	failover->is_left = true;
	settle(engine, peer);
}

void nm_sink_quarantined(struct nm_transport *from, struct nm_peer *peer,
			 const struct nm_stream_ends *ends, const struct nm_reason *why)
{
	give_up(from->sink.engine, peer, from, ends, why);
}

/* The channel that PEER said it left ends here too, after what it still holds. */
static void leave(struct nm_engine *engine, struct nm_peer *peer)
{
	static const struct nm_stream_ends nothing;
	const struct nm_reason why = {"it left its memory channel"};

	for (unsigned int i = 0; i < engine->nr_polled; i++)
		if (engine->polled[i]->quarantine)
			engine->polled[i]->quarantine->finish(engine->polled[i], &peer->who);
	/* It never came to me that way: then I have taken nothing of what it says it sent. */
	if (peer->state != NM_PEER_DOWN && !(peer->failover && peer->failover->is_left))
		give_up(engine, peer, NULL, &nothing, &why);
}

void nm_failover_on_switch(const struct nm_incoming *in)
{
	if (in->from != nm_network(in->engine) || in->pkt->len != 0 ||
	    in->peer->nr_quarantines > 1 || (in->peer->failover && in->peer->failover->heard) ||
	    (!in->peer->failover && in->peer->nr_quarantines)) {
		nm_violation(in, "it left a channel that it was not on");
		return;
	}
	if (!in->peer->failover || !in->peer->failover->is_left)
		leave(in->engine, in->peer);
	if (!in->peer->failover)
		return;
	in->peer->failover->theirs =
		(struct nm_stream_ends){.sent = in->pkt->tag, .taken = in->pkt->data};
	in->peer->failover->heard = true;
	settle(in->engine, in->peer);
}

/* Say how far I got, as the first thing on the network. 0 or -errno. */
static int say(struct nm_engine *engine, struct nm_peer *peer)
{
	const struct nm_packet packet = {
		.op = NM_OP_SWITCH,
		.tag = peer->failover->mine.sent,
		.data = peer->failover->mine.taken,
	};
	int err = 0;

	if (!peer->link)
		err = nm_peer_find_link(engine, peer);
	return err ? err : peer->send(peer->link, &packet, NULL, 0);
}

unsigned int nm_failover_push(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_failover *failover = peer->failover;
	int err;

	if (failover->is_left && !failover->said) {
		err = say(engine, peer);
		if (err == 0) {
			failover->said = true;
			settle(engine, peer);
			return 1;
		}
		if (err == -EHOSTUNREACH)
			nm_peer_down(engine, peer, -EBADMSG, nm_peer_diag(peer)->quarantine.text);
		/* -EPIPE: the network reports the reason soon. */
	} else if (engine->closing) {
		/* Nothing is due any more; they know how far we got. */
		nm_failover_end(peer);
		return 0;
	}
	if (peer->failover && nm_clock_ns() > failover->deadline_ns)
		nm_peer_down(engine, peer, -EBADMSG,
			     "its memory channel is quarantined, and it did not say on the network "
			     "within NEARMETAL_CONNECT_MS how far it got");
	return 0;
}
