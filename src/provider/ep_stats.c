/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine of an endpoint knows of its peers, for the statistics file. */
#include "provider/ep.h"

#include <string.h>

#include "base/arith.h"

_Static_assert(NM_NR_ACCESS_WAYS <= 4 && NM_NR_ACCESS_KINDS <= 4, "the file has room for all");

static void collect_accesses(struct nm_stats_peer *peer, const struct nm_peer_facts *facts)
{
	for (size_t way = 0; way < NM_NR_ACCESS_WAYS; way++)
		for (size_t kind = 0; kind < NM_NR_ACCESS_KINDS; kind++)
			peer->accesses[way][kind] = (struct nm_stats_accesses){
				.operations = facts->accesses[way][kind].messages,
				.bytes = facts->accesses[way][kind].bytes,
			};
}

static void collect_peer(void *stats, const struct nm_peer_facts *facts)
{
	struct nm_stats_peer *peer =
		nm_stats_add(stats, &facts->who, &facts->link, facts->connected);

	if (!peer)
		return;
	peer->down = facts->down;
	peer->moves = (uint16_t)nm_min_u64(facts->nr_moves, UINT16_MAX);
	peer->quarantines = facts->nr_quarantines;
	peer->stalls = facts->stalls;
	for (size_t i = 0; i < NM_NR_CHANNELS; i++)
		peer->by_channel[i] = (struct nm_stats_traffic){
			.sent_messages = facts->sent[i].messages,
			.sent_bytes = facts->sent[i].bytes,
			.received_messages = facts->received[i].messages,
			.received_bytes = facts->received[i].bytes,
		};
	collect_accesses(peer, facts);
	if (facts->down)
		nm_stats_text(peer->down_reason, sizeof(peer->down_reason),
			      facts->down_reason.text);
	peer->fallbacks = facts->bulk.fallbacks;
	memcpy(peer->protocols, facts->bulk.bytes, sizeof(facts->bulk.bytes));
	nm_stats_text(peer->fallback_reason, sizeof(peer->fallback_reason),
		      facts->bulk.fallback.text);
	nm_stats_text(peer->choice, sizeof(peer->choice), facts->bulk.choice.text);
	nm_stats_text(peer->device, sizeof(peer->device), facts->device.text);
	nm_stats_text(peer->quarantine_reason, sizeof(peer->quarantine_reason),
		      facts->quarantine_reason.text);
}

void nm_ep_collect_stats(void *engine, struct nm_stats *stats)
{
	nm_engine_visit_peers(engine, collect_peer, stats);
}
