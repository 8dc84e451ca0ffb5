/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of peers, for people: which way their messages went, how many, and why. */
#include <string.h>

#include "engine/device_way.h"
#include "engine/internal.h"
#include "engine/rndv_choice.h"

static struct nm_traffic sum(const struct nm_traffic traffic[NM_NR_CHANNELS])
{
	struct nm_traffic all = {0, 0};

	for (unsigned int c = 0; c < NM_NR_CHANNELS; c++) {
		all.messages += traffic[c].messages;
		all.bytes += traffic[c].bytes;
	}
	return all;
}

/* Counted is one total for all channels; what is not split yet went over the last one. */
static void split(struct nm_traffic traffic[NM_NR_CHANNELS], enum nm_channel last,
		  uint64_t messages, uint64_t bytes)
{
	struct nm_traffic before = sum(traffic);

	traffic[last].messages += messages - before.messages;
	traffic[last].bytes += bytes - before.bytes;
}

void nm_peer_sends_on(struct nm_peer *peer, enum nm_channel channel)
{
	struct nm_peer_diag *diag = nm_peer_diag(peer);

	/* An answer to a peer that had no link yet waited for its first one, and goes over it. */
	if (peer->sends_on != NM_CHANNEL_NONE)
		split(diag->sent, peer->sends_on, peer->sent_messages, peer->sent_bytes);
	peer->sends_on = channel;
}

/* A peer that sent nothing may still have been read from, over this endpoint's link. */
static enum nm_channel received_over(const struct nm_peer *peer)
{
	return nm_peer_is_source(peer) ? peer->receives_on : peer->sends_on;
}

void nm_peer_receives_on(struct nm_peer *peer, enum nm_channel channel)
{
	struct nm_peer_diag *diag = nm_peer_diag(peer);

	split(diag->received, received_over(peer), peer->received_messages, peer->received_bytes);
	peer->receives_on = channel;
}

static void fill_traffic(const struct nm_peer *peer, struct nm_peer_facts *facts)
{
	static const struct nm_peer_diag nothing;
	const struct nm_peer_diag *diag = peer->diag ? peer->diag : &nothing;

	facts->sent_messages = peer->sent_messages;
	facts->sent_bytes = peer->sent_bytes;
	facts->received_messages = peer->received_messages;
	facts->received_bytes = peer->received_bytes;
	memcpy(facts->sent, diag->sent, sizeof(facts->sent));
	memcpy(facts->received, diag->received, sizeof(facts->received));
	split(facts->sent, peer->sends_on, peer->sent_messages, peer->sent_bytes);
	split(facts->received, received_over(peer), peer->received_messages, peer->received_bytes);
	memcpy(facts->accesses, peer->accesses, sizeof(facts->accesses));
	facts->stalls = peer->nr_stalls;
}

static void fill_facts(const struct nm_peer *peer, struct nm_peer_facts *facts)
{
	facts->who = peer->who;
	fill_traffic(peer, facts);
	facts->connected = peer->link != NULL;
	facts->down = peer->state == NM_PEER_DOWN;
	facts->nr_quarantines = peer->nr_quarantines;
	facts->nr_moves = peer->nr_moves;
	if (peer->diag) {
		facts->link.label = peer->diag->label;
		facts->link.reason = peer->diag->channel;
		facts->down_reason = peer->diag->down;
		facts->quarantine_reason = peer->diag->quarantine;
	}
	if (peer->bulk)
		facts->bulk = peer->bulk->facts;
	if (facts->connected) {
		const struct nm_stages *stages = peer->engine->stages;
		struct nm_peer_label label = facts->link.label;

		peer->link->transport->ops->describe(peer->link, &facts->link);
		if (peer->engine->config.has_devices)
			nm_device_way(nm_stages_device(stages), peer->link->transport, &facts->link,
				      nm_stages_places(stages, facts->link.channel), peer->places,
				      &facts->device);
		if (peer->diag)
			facts->link.reason = peer->diag->channel;
		if (!facts->link.label.text[0])
			facts->link.label = label;
	}
}

void nm_engine_visit_peers(struct nm_engine *engine,
			   void (*visit)(void *arg, const struct nm_peer_facts *facts), void *arg)
{
	const struct nm_peer_table *table = &engine->peers;

	for (size_t i = 0; i <= table->mask; i++) {
		struct nm_peer_facts facts = {0};

		if (!table->slots[i])
			continue;
		fill_facts(table->slots[i], &facts);
		visit(arg, &facts);
	}
}
