/* SPDX-License-Identifier: Apache-2.0 */
/* Life of an engine: its transports, its peers, and what is known of them. */
#include "engine/engine.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "engine/internal.h"
#include "engine/rndv_choice.h"
#include "engine/rndv_gpudirect.h"
#include "engine/unexpected.h"

int nm_engine_create(const struct nm_engine_config *config, struct nm_engine **ret_engine)
{
	const struct nm_params *params = nm_params();
	struct nm_engine *e;
	int err;

	if (!params)
		return -EINVAL;
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	e->config = *config;
	e->params = params;
	nm_unexpected_init(e);
	if (!e->config.select)
		e->config.select = nm_select_params();
	e->sink = (struct nm_sink){
		.engine = e,
		.source_up = nm_sink_source_up,
		.deliver = nm_sink_deliver,
		.source_down = nm_sink_source_down,
		.quarantined = nm_sink_quarantined,
		.let_go = nm_sink_let_go,
		.gpudirect_done = nm_sink_gpudirect_done,
		.has_devices = config->has_devices,
		.known = nm_sink_known,
		.asked = nm_sink_asked,
		.homed = nm_sink_homed,
	};
	nm_list_init(&e->active);
	nm_list_init(&e->claimed);
	nm_request_pool_init(&e->requests);
	nm_buffer_pool_init(&e->buffers);
	err = nm_peer_table_init(&e->peers);
	if (err < 0)
		goto err_free;
	err = nm_match_init(&e->matches[0], 0);
	if (err < 0)
		goto err_peers;
	err = nm_match_init(&e->matches[1], 1);
	if (err < 0)
		goto err_match;
	*ret_engine = e;
	return 0;

err_match:
	nm_match_fini(&e->matches[0]);
err_peers:
	nm_peer_table_fini(&e->peers);
err_free:
	free(e);
	return err;
}

const struct nm_sink *nm_engine_sink(struct nm_engine *engine)
{
	return &engine->sink;
}

int nm_engine_add_transport(struct nm_engine *engine, struct nm_transport *transport)
{
	enum nm_channel channel = transport->kind->channel;
	unsigned int i = engine->nr_polled;

	if (channel <= NM_CHANNEL_NONE || channel >= NM_NR_CHANNELS ||
	    transport->max_payload < NM_MIN_MAX_PAYLOAD)
		return -EINVAL;
	if (engine->transports[channel])
		return -EEXIST;
	engine->transports[channel] = transport;
	engine->nr_polled++;
	for (; i > 0 && engine->polled[i - 1]->kind->rank > transport->kind->rank; i--)
		engine->polled[i] = engine->polled[i - 1];
	engine->polled[i] = transport;
	if (transport->copy && !engine->publisher) {
		engine->publisher = transport;
		nm_rma_cma_publish(engine);
	}
	return 0;
}

void nm_engine_bind(struct nm_engine *engine, const struct nm_engine_queues *queues)
{
	engine->queues = *queues;
	nm_rma_cma_publish(engine);
}

void nm_engine_set_identity(struct nm_engine *engine, const struct nm_identity *who)
{
	engine->config.who = *who;
}

struct nm_peer *nm_engine_peer(struct nm_engine *engine, const struct nm_address *address)
{
	bool is_new;
	struct nm_peer *peer = nm_peer_table_get(&engine->peers, &address->who, &is_new);

	if (peer) {
		peer->engine = engine;
		peer->was_known = true;
	}
	/* A peer that we only knew as a source gets its network address now. */
	if (peer && peer->address.inner_len == 0)
		peer->address = *address;
	return peer;
}

/* The address of a source became known: is it the source's own? */
static void learn(struct nm_engine *engine, struct nm_peer *peer, const struct nm_address *address)
{
	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		struct nm_transport *t = engine->polled[i];

		if (t->learn && !t->learn(t, address))
			nm_peer_disown(engine, peer, t);
	}
}

void nm_engine_resolve(struct nm_engine *engine)
{
	const struct nm_peer_table *table = &engine->peers;
	struct nm_address address;

	if (engine->nr_unresolved == 0 || !engine->config.resolve)
		return;
	engine->nr_unresolved = 0;
	for (size_t i = 0; i <= table->mask; i++) {
		struct nm_peer *peer = table->slots[i];

		if (!peer || !nm_peer_is_source(peer) || !nm_peer_is_unlisted(peer))
			continue;
		nm_peer_set_index(peer, engine->config.resolve(engine->config.resolve_arg,
							       &peer->who, &address));
		peer->was_known |= !nm_peer_is_unlisted(peer);
		if (nm_peer_is_unlisted(peer))
			engine->nr_unresolved++;
		else
			learn(engine, peer, &address);
	}
}

void nm_engine_forget(struct nm_engine *engine, const struct nm_identity *who)
{
	struct nm_peer *peer = nm_peer_table_find(&engine->peers, who);

	if (!peer || nm_peer_is_unlisted(peer))
		return;
	nm_peer_set_index(peer, UINT64_MAX);
	engine->nr_unresolved += nm_peer_is_source(peer);
}

uint64_t nm_peer_index(const struct nm_peer *peer)
{
	return peer->index;
}

/* Stop reading from buffers that are the user's again; answers that wait are still sent. */
static void drop_streams(struct nm_engine *engine)
{
	for (size_t i = 0; i <= engine->peers.mask; i++) {
		struct nm_peer *peer = engine->peers.slots[i];

		while (peer && !nm_list_empty(&peer->streams))
			nm_list_remove(peer->streams.next);
		if (peer && !nm_peer_is_awaited(peer) && !nm_move_is_due(peer))
			nm_list_remove(&peer->active_node);
	}
}

static void drop_messages(struct nm_engine *engine, struct nm_list *list)
{
	while (!nm_list_empty(list)) {
		struct nm_unexpected *m = nm_list_first(list, struct nm_unexpected, all_node);

		nm_list_remove(&m->all_node);
		nm_buffer_free(&engine->buffers, m, sizeof(*m) + m->stored);
	}
}

static void drop_control(struct nm_engine *engine)
{
	for (size_t i = 0; i <= engine->peers.mask; i++) {
		struct nm_peer *peer = engine->peers.slots[i];

		while (peer && !nm_list_empty(&peer->control)) {
			struct nm_control *c =
				nm_list_first(&peer->control, struct nm_control, node);

			nm_list_remove(&c->node);
			nm_buffer_free(&engine->buffers, c, sizeof(*c) + c->packet.len);
		}
	}
}

void nm_engine_retire(struct nm_engine *engine)
{
	nm_rma_cma_withdraw(engine);
	/* Completions may be read after this, but the peers they name are about to go. */
	if (engine->queues.receive)
		nm_cqueue_forget(engine->queues.receive, engine);
	engine->queues = (struct nm_engine_queues){0};
	/* What arrives from now on finds no buffer. */
	engine->closing = true;
	NM_FAULT("close-begin");
	engine->config.resolve = NULL;
	engine->config.publish = NULL;
	drop_streams(engine);
	nm_stages_end(engine, NULL);
	nm_gpudirect_end(engine, NULL);
}

void nm_engine_destroy(struct nm_engine *engine)
{
	unsigned int nr_polled;
	uint64_t deadline;

	if (!engine)
		return;
	if (!engine->closing)
		nm_engine_retire(engine);
	deadline = nm_clock_ns() + engine->params->close_ms * NM_NS_PER_MS;
	while ((!nm_list_empty(&engine->active) || engine->nr_exposed) &&
	       nm_clock_ns() < deadline) {
		if (nm_engine_progress(engine) == 0)
			sched_yield();
	}
	NM_FAULT("close-drained");
	nm_stages_destroy(engine->stages);
	engine->stages = NULL;
	/* What comes on the last ones must not be compared with those that are gone. */
	nr_polled = engine->nr_polled;
	engine->nr_polled = 0;
	for (unsigned int i = 0; i < nr_polled; i++) {
		engine->polled[i]->close_by_ns = deadline;
		engine->polled[i]->ops->destroy(engine->polled[i]);
	}
	drop_control(engine);
	drop_messages(engine, &engine->matches[0].unexpected_all);
	drop_messages(engine, &engine->matches[1].unexpected_all);
	drop_messages(engine, &engine->claimed);
	nm_match_fini(&engine->matches[0]);
	nm_match_fini(&engine->matches[1]);
	nm_peer_table_fini(&engine->peers);
	nm_request_pool_fini(&engine->requests);
	nm_buffer_pool_fini(&engine->buffers);
	free(engine);
}
