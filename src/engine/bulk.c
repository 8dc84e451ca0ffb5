/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bulk.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

/* Less than this, in bytes and in time, says too little: transfers end in bursts. */
#define BOOK_BYTES (256 * 1024)
#define BOOK_NS 50000

static struct nm_bulk *bulk_of(struct nm_peer *peer)
{
	/* Without memory for it the calibrated rates decide. */
	if (nm_unlikely(!peer->bulk))
		peer->bulk = calloc(1, sizeof(*peer->bulk));
	return peer->bulk;
}

/* Every change of mind is worth a line to whoever wants to know why. */
static NM_COLD void tell(const struct nm_engine *engine, struct nm_bulk *bulk,
			 const struct nm_select_facts *facts,
			 const struct nm_select_verdict *verdict)
{
	bulk->last[verdict->class][verdict->load] = verdict->protocol;
	nm_select_explain(engine->config.select, &bulk->state, facts, verdict, &bulk->facts.choice);
	if (nm_log_get_level() >= NM_LOG_DEBUG)
		nm_debug("large message of %llu bytes: %s", (unsigned long long)facts->size,
			 bulk->facts.choice.text);
}

void nm_bulk_begin(const struct nm_engine *engine, struct nm_request *r)
{
	struct nm_peer *peer = r->peer;
	struct nm_bulk *bulk = bulk_of(peer);
	struct nm_select_facts facts = {
		.size = r->accepted,
		.outstanding = bulk ? bulk->nr_incoming : 0,
		.remote_copy = r->nr_spans > 0 && peer->state == NM_PEER_CONNECTED &&
			       peer->link->remote_copy,
		.now_ns = nm_clock_ns(),
	};

	r->started_ns = facts.now_ns;
	r->verdict = nm_select_transfer(engine->config.select, bulk ? &bulk->state : NULL, &facts);
	if (!bulk)
		return;
	bulk->nr_incoming++;
	if (nm_unlikely(r->verdict.protocol != bulk->last[r->verdict.class][r->verdict.load]) &&
	    r->verdict.why != NM_SELECT_BECAUSE_PROBE)
		tell(engine, bulk, &facts, &r->verdict);
}

static bool same(const struct nm_select_verdict *a, const struct nm_select_verdict *b)
{
	return a->protocol == b->protocol && a->why == b->why && a->class == b->class &&
	       a->load == b->load;
}

static void learn(const struct nm_engine *engine, struct nm_bulk *bulk)
{
	if (bulk->bytes > 0)
		nm_select_learn(engine->config.select, &bulk->state, &bulk->booked, bulk->bytes,
				bulk->ns);
	bulk->bytes = bulk->ns = 0;
}

void nm_bulk_end(const struct nm_engine *engine, struct nm_request *r)
{
	struct nm_bulk *bulk = r->peer->bulk;
	uint64_t now, since;

	if (!bulk || r->started_ns == 0)
		return;
	now = nm_clock_ns();
	/* Of transfers under way together only one moves at a time. */
	since = r->started_ns > bulk->ended_ns ? r->started_ns : bulk->ended_ns;
	r->started_ns = 0;
	bulk->ended_ns = now;
	bulk->nr_incoming--;
	bulk->facts.bytes[r->verdict.protocol] += r->accepted;
	if (!same(&bulk->booked, &r->verdict))
		learn(engine, bulk);
	bulk->booked = r->verdict;
	bulk->bytes += r->accepted;
	bulk->ns += now - since;
	if (bulk->bytes >= BOOK_BYTES || bulk->ns >= BOOK_NS)
		learn(engine, bulk);
}

void nm_bulk_fell_back(struct nm_request *r, int err)
{
	struct nm_bulk *bulk = r->peer->bulk;

	if (!bulk)
		return;
	bulk->facts.fallbacks++;
	nm_reason_set(&bulk->facts.fallback, "%s of %llu bytes stopped at %llu: %s",
		      nm_protocol_name(r->verdict.protocol), (unsigned long long)r->accepted,
		      (unsigned long long)r->done,
		      err ? strerror(-err) : "the peer could not write");
	nm_log_once(NM_LOG_WARN, "the rest of a large message is sent in packets: %s",
		    bulk->facts.fallback.text);
}
