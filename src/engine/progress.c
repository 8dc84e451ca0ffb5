/* SPDX-License-Identifier: Apache-2.0 */
/* Moving everything that can move, and behaving well when nothing can. */
#include <errno.h>
#include <sched.h>

#include "base/clock.h"
#include "engine/internal.h"

/* The clock is read once per this many idle calls: it costs as much as an idle call itself. */
#define IDLE_CLOCK_CALLS 64
#define BUSY_CLOCK_CALLS 1024

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

/*
 * Mark the peers that a posted receive names. Returns whether one is posted that anyone could end.
 * Buffers for many messages wait for no peer. Looking at all of them about once a second is cheaper
 * than to count at each receive.
 */
static bool mark_posted(const struct nm_match *match)
{
	bool anyone = false;

	nm_list_for_each(node, &match->posted_all) {
		const struct nm_posted *p = nm_container_of(node, struct nm_posted, all_node);
		const struct nm_request *r = nm_container_of(p, struct nm_request, posted);

		if (p->source)
			p->source->is_named = true;
		else if (r->kind != NM_REQUEST_MULTI_RECV)
			anyone = true;
	}
	return anyone;
}

static bool is_waited_for(const struct nm_peer *peer, bool for_anyone)
{
	if (peer->is_named || !nm_list_empty(&peer->requests) || peer->failover ||
	    nm_move_is_due(peer))
		return true;
	/* A peer without a link and without a source cannot be the one that is waited for. */
	return for_anyone && (nm_peer_is_source(peer) || peer->state == NM_PEER_CONNECTED);
}

/* Will a channel that the peer sends on notice its death? */
static bool is_watched(const struct nm_engine *engine, const struct nm_peer *peer)
{
	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		const struct nm_transport_kind *kind = engine->polled[i]->kind;

		if (kind->flags & NM_TRANSPORT_WATCHES &&
		    peer->source_channels >> kind->channel & 1)
			return true;
	}
	return false;
}

/*
 * Ask for a sign of life of a peer. Over a channel that does not notice deaths by itself only a
 * message to the peer finds out, and that needs a link even if nothing else is to be said.
 */
static NM_COLD void check_alive(struct nm_engine *engine, struct nm_peer *peer)
{
	struct nm_link *link;

	if (peer->state < NM_PEER_MOVING && !is_watched(engine, peer) &&
	    nm_peer_connect(engine, peer) == -EHOSTUNREACH)
		nm_peer_down(engine, peer, -EHOSTUNREACH, nm_peer_diag(peer)->channel.text);
	link = nm_move_link(peer);
	if (link && (peer->state == NM_PEER_CONNECTED || peer->failover || link != peer->link))
		link->transport->ops->check_alive(link);
}

static NM_COLD void check_waited_for(struct nm_engine *engine)
{
	const struct nm_peer_table *table = &engine->peers;
	bool for_anyone = mark_posted(&engine->matches[0]);

	for_anyone |= mark_posted(&engine->matches[1]);
	for (size_t i = 0; i <= table->mask; i++) {
		struct nm_peer *peer = table->slots[i];

		if (peer && is_waited_for(peer, for_anyone))
			check_alive(engine, peer);
		if (peer)
			peer->is_named = false;
	}
}

/* Readers outside see a count within moments. */
static NM_COLD void publish_when_due(struct nm_engine *engine, uint64_t now)
{
	if (now - engine->published_ns < engine->params->stats_ms * NM_NS_PER_MS)
		return;
	engine->published_ns = now;
	if (engine->config.publish && engine->params->stats_ms)
		engine->config.publish(engine->config.publish_arg);
}

/* Once in IDLE_CLOCK_CALLS idle calls. */
static __attribute__((noinline)) void look_at_clock(struct nm_engine *engine)
{
	struct nm_idle *idle = &engine->idle;
	uint64_t now = nm_clock_ns();

	if ((idle->calls & ~NM_IDLE_YIELDING) == IDLE_CLOCK_CALLS)
		idle->since_ns = now;
	if (now - idle->since_ns >= engine->params->spin_us * NM_NS_PER_US)
		idle->calls |= NM_IDLE_YIELDING;
	if (now - idle->checked_ns >= engine->params->keepalive_ms * NM_NS_PER_MS) {
		/* Counted from when we began to idle, not from the last time ever. */
		if (idle->checked_ns >= idle->since_ns)
			check_waited_for(engine);
		idle->checked_ns = now;
	}
	nm_rma_cma_polled(engine, now);
	publish_when_due(engine, now);
}

static inline void idle(struct nm_engine *engine)
{
	uint32_t calls = ++engine->idle.calls;

	if (nm_unlikely(calls % IDLE_CLOCK_CALLS == 0)) {
		look_at_clock(engine);
		calls = engine->idle.calls;
	}
	/* Nodes may share cores: the awaited peer may be waiting for this core. */
	if (nm_unlikely(calls & NM_IDLE_YIELDING))
		sched_yield();
}

/* Once in BUSY_CLOCK_CALLS busy calls. */
static __attribute__((noinline)) void look_at_busy_clock(struct nm_engine *engine)
{
	uint64_t now = nm_clock_ns();

	nm_rma_cma_polled(engine, now);
	publish_when_due(engine, now);
}

static inline void busy(struct nm_engine *engine)
{
	engine->idle.calls = 0;
	if (nm_unlikely(++engine->idle.busy_calls % BUSY_CLOCK_CALLS == 0))
		look_at_busy_clock(engine);
}

/* One round over everything; the amount of work done. */
static inline unsigned int move_all(struct nm_engine *engine)
{
	unsigned int nr = 0;

	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		struct nm_transport *transport = engine->polled[i];

		if (transport->pause) {
			transport->pause--;
			continue;
		}
		nr += transport->ops->progress(transport);
	}
	if (nm_unlikely(!nm_list_empty(&engine->active)))
		nr += push_active(engine);
	return nr;
}

unsigned int nm_engine_progress(struct nm_engine *engine)
{
	unsigned int nr = move_all(engine);

	if (nr == 0)
		idle(engine);
	else
		busy(engine);
	return nr;
}

unsigned int nm_engine_help(struct nm_engine *engine)
{
	unsigned int nr = move_all(engine);

	if (nr > 0)
		busy(engine);
	return nr;
}

NM_COLD enum nm_drive nm_engine_drive(struct nm_engine *engine, struct nm_doorbells *doorbells,
				      unsigned int *nr_done)
{
	uint64_t now = nm_clock_ns();
	enum nm_drive state = NM_DRIVE_QUIET;
	bool is_heard = true;

	*nr_done += nm_engine_help(engine);
	publish_when_due(engine, now);
	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		struct nm_transport *transport = engine->polled[i];

		/* Pauses are counted in calls, which are few. */
		transport->pause = 0;
		if (transport->haste > state)
			state = transport->haste;
		if (!transport->move)
			continue;
		is_heard &= transport->move->listen(transport, doorbells);
		if (state == NM_DRIVE_QUIET && transport->move->is_away(transport))
			state = NM_DRIVE_AWAY;
	}
	return !is_heard || nm_moves_are_due(engine, now) ? NM_DRIVE_MOVES : state;
}

bool nm_engine_sleep(struct nm_engine *engine, struct nm_doorbells *doorbells)
{
	/* Only this thread sends what waits for room, and room rings no doorbell. */
	bool is_heard = nm_list_empty(&engine->active);

	/* Pauses and looks at the clock are counted in calls, which will be few. */
	engine->idle.calls |= IDLE_CLOCK_CALLS - 1;
	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		struct nm_transport *transport = engine->polled[i];

		is_heard &= transport->ops->sleep(transport, doorbells);
		transport->pause = 0;
	}
	return is_heard;
}

bool nm_engine_has_work(const struct nm_engine *engine)
{
	struct nm_doorbells none;

	none.nr = 0;
	none.rung = !nm_list_empty(&engine->active);
	for (unsigned int i = 0; i < engine->nr_polled && !none.rung; i++) {
		struct nm_transport *t = engine->polled[i];

		if (t->kind->flags & NM_TRANSPORT_SILENT && !t->ops->sleep(t, &none))
			return true;
	}
	return none.rung;
}

void nm_engine_wake(struct nm_engine *engine)
{
	for (unsigned int i = 0; i < engine->nr_polled; i++)
		engine->polled[i]->ops->wake(engine->polled[i]);
}

bool nm_engine_yields(const struct nm_engine *engine)
{
	return engine->idle.calls & NM_IDLE_YIELDING;
}
