/* SPDX-License-Identifier: Apache-2.0 */
/* Moving everything that can move, and behaving well when nothing can. */
#include <sched.h>

#include "base/clock.h"
#include "engine/internal.h"

/* The clock is read once in so many idle calls: it costs as much as an idle call itself. */
#define IDLE_CLOCK_CALLS 64

/* Give every peer with something to send its turn, once. */
static unsigned int push_active(struct nm_engine *engine)
{
	struct nm_list round;
	unsigned int nr = 0;

	/* Peers that become active meanwhile wait for the next round. */
	nm_list_init(&round);
	while (!nm_list_empty(&engine->active)) {
		struct nm_list *node = engine->active.next;

		nm_list_remove(node);
		nm_list_append(&round, node);
	}
	while (!nm_list_empty(&round)) {
		struct nm_peer *peer = nm_list_first(&round, struct nm_peer, active_node);

		nm_list_remove(&peer->active_node);
		nr += nm_peer_push(engine, peer);
		if (nm_peer_has_work(peer) && nm_list_empty(&peer->active_node))
			nm_list_append(&engine->active, &peer->active_node);
	}
	return nr;
}

/* Ask for a sign of life of every peer that something here waits for. */
static NM_COLD void check_waited_for(struct nm_engine *engine)
{
	const struct nm_peer_table *table = &engine->peers;

	for (size_t i = 0; i <= table->mask; i++) {
		struct nm_peer *peer = table->slots[i];

		if (!peer || peer->state != NM_PEER_CONNECTED ||
		    (peer->nr_directed == 0 && nm_list_empty(&peer->requests)))
			continue;
		if (peer->link->transport->ops->check_alive)
			peer->link->transport->ops->check_alive(peer->link);
	}
}

static void idle(struct nm_engine *engine)
{
	struct nm_idle *idle = &engine->idle;

	if (++idle->calls % IDLE_CLOCK_CALLS == 0) {
		uint64_t now = nm_clock_ns();

		if (idle->since_ns == 0)
			idle->since_ns = now;
		idle->yielding = now - idle->since_ns >= engine->params->spin_us * NM_NS_PER_US;
		if (now - idle->checked_ns >= engine->params->keepalive_ms * NM_NS_PER_MS) {
			/* Counted from when we began to idle, not from the last time ever. */
			if (idle->checked_ns >= idle->since_ns)
				check_waited_for(engine);
			idle->checked_ns = now;
		}
	}
	/* Nodes may share cores: whoever we wait for may be waiting for ours. */
	if (idle->yielding)
		sched_yield();
}

unsigned int nm_engine_progress(struct nm_engine *engine)
{
	unsigned int nr = 0;

	engine->polling = true;
	for (unsigned int i = 0; i < engine->nr_polled; i++)
		nr += engine->polled[i]->ops->progress(engine->polled[i]);
	engine->polling = false;
	if (nm_unlikely(!nm_list_empty(&engine->active)))
		nr += push_active(engine);
	if (nr == 0) {
		idle(engine);
		return 0;
	}
	engine->idle.calls = 0;
	engine->idle.since_ns = 0;
	engine->idle.yielding = false;
	return nr;
}
