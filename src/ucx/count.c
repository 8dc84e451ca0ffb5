/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of an interface by peer and channel, for the statistics file and the log. */
#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "ucx/face.h"

static void collect_peer(struct nm_stats *stats, const struct nm_peer *peer)
{
	struct nm_link_facts facts = {.label = peer->label};
	struct nm_stats_peer *to;

	if (peer->link)
		peer->link->transport->ops->describe(peer->link, &facts);
	facts.reason = peer->why;
	to = nm_stats_add(stats, &peer->who, &facts, peer->link != NULL);
	if (!to)
		return;
	to->stalls = peer->nr_stalls;
	for (unsigned int i = 0; i < NM_NR_CHANNELS; i++)
		to->by_channel[i] = (struct nm_stats_traffic){
			.sent_messages = peer->sent[i].messages,
			.sent_bytes = peer->sent[i].bytes,
			.received_messages = peer->received[i].messages,
			.received_bytes = peer->received[i].bytes,
		};
	to->down = peer->state == NM_UCX_PEER_DOWN;
	if (to->down)
		nm_stats_text(to->down_reason, sizeof(to->down_reason),
			      peer->err ? peer->why.text : "it closed");
}

static void collect(void *arg, struct nm_stats *stats)
{
	const struct nm_ucx_iface *iface = arg;

	for (unsigned int i = 0; i < NM_UCX_NR_BUCKETS; i++)
		for (const struct nm_peer *peer = iface->buckets[i]; peer; peer = peer->next)
			collect_peer(stats, peer);
}

void nm_ucx_count_open(struct nm_ucx_iface *iface)
{
	iface->stats = nm_stats_open(&iface->address.who, NM_STATS_UCX);
	nm_stats_publish(iface->stats, collect, iface);
}

void nm_ucx_count_look(struct nm_ucx_iface *iface)
{
	uint64_t now = nm_clock_ns(), period_ns = nm_params()->stats_ms * NM_NS_PER_MS;

	iface->nr_progress = 0;
	if (!period_ns || now - iface->published_ns < period_ns)
		return;
	iface->published_ns = now;
	nm_stats_publish(iface->stats, collect, iface);
}

void nm_ucx_count_loss(struct nm_ucx_iface *iface)
{
	if (!iface->loss_written)
		nm_stats_publish(iface->stats, collect, iface);
	iface->loss_written = true;
}

static void say_closed(const struct nm_ucx_iface *iface)
{
	uint64_t sent[NM_NR_CHANNELS] = {0}, received[NM_NR_CHANNELS] = {0};

	for (unsigned int i = 0; i < NM_UCX_NR_BUCKETS; i++)
		for (const struct nm_peer *peer = iface->buckets[i]; peer; peer = peer->next)
			for (unsigned int c = 0; c < NM_NR_CHANNELS; c++) {
				sent[c] += peer->sent[c].messages;
				received[c] += peer->received[c].messages;
			}
	for (unsigned int i = 0; i < iface->nr_transports; i++) {
		enum nm_channel channel = iface->transports[i]->kind->channel;

		nm_info("ucx: %s carried %llu messages out and %llu in", nm_channel_name(channel),
			(unsigned long long)sent[channel], (unsigned long long)received[channel]);
	}
}

void nm_ucx_count_close(struct nm_ucx_iface *iface)
{
	say_closed(iface);
	nm_stats_close(iface->stats, collect, iface);
	iface->stats = NULL;
}
