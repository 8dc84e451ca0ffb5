/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/rndv_choice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

/* After this many bytes or transfers, an endless sample counts and the choice is made again. */
#define SAMPLE_BYTES (64 << 20)
#define SAMPLE_NR 1024
/* Messages up to this size fit into a private cache. */
#define PRIVATE_MAX (256 << 10)
/* If the next message begins later than this, the pause hides what the last one cost the sender. */
#define PAUSE_NS 200000

static struct nm_rndv_choice *bulk_of(struct nm_peer *peer)
{
	/* Without memory for it the calibrated rates decide. */
	if (nm_unlikely(!peer->bulk))
		peer->bulk = calloc(1, sizeof(*peer->bulk));
	return peer->bulk;
}

/* Each change of the choice is logged at level debug, with its reason. */
static NM_COLD void explain(const struct nm_engine *engine, struct nm_rndv_choice *bulk,
			    const struct nm_select_facts *facts,
			    const struct nm_select_verdict *verdict)
{
	bulk->last[verdict->class][verdict->load] = verdict->protocol;
	nm_select_explain(engine->config.select, &bulk->states[facts->in_heap], facts, verdict,
			  &bulk->facts.choice);
	if (nm_log_get_level() >= NM_LOG_DEBUG)
		nm_debug("large message of %llu bytes: %s", (unsigned long long)facts->size,
			 bulk->facts.choice.text);
}

static bool has_place(const struct nm_request *r)
{
	return r->nr_spans - 1 < NM_SPANS_MAX && r->peer->state == NM_PEER_CONNECTED &&
	       nm_user_is_host(r->iov, r->nr_iov);
}

static bool is_in_heap(const struct nm_request *r)
{
	return has_place(r) && r->spans[0].address & NM_SPAN_HEAP && r->peer->link->reads_heap;
}

static bool reachable(const struct nm_request *r)
{
	return has_place(r) && !(r->spans[0].address & NM_SPAN_HEAP) && r->peer->link->remote_copy;
}

static bool is_possible(const struct nm_request *r, enum nm_protocol protocol)
{
	if (protocol < NM_PROTOCOL_PULL)
		return true;
	return protocol == NM_PROTOCOL_HEAP ? is_in_heap(r) : reachable(r);
}

static struct nm_select_verdict choose(const struct nm_engine *engine, struct nm_rndv_choice *bulk,
				       const struct nm_request *r, uint64_t now_ns, bool stream)
{
	struct nm_select_facts facts = {
		.size = r->accepted,
		.outstanding = stream,
		.remote_copy = reachable(r),
		.in_heap = is_in_heap(r),
		.far = r->peer->state == NM_PEER_CONNECTED && r->peer->link->far,
		.now_ns = now_ns,
	};
	struct nm_select_verdict v = nm_select_transfer(
		engine->config.select, bulk ? &bulk->states[facts.in_heap] : NULL, &facts);

	if (bulk && nm_unlikely(v.protocol != bulk->last[v.class][v.load]) &&
	    v.why != NM_SELECT_BECAUSE_PROBE)
		explain(engine, bulk, &facts, &v);
	return v;
}

/* Book what the sample achieved where it belongs, now that its size and load are known. */
static void learn(const struct nm_engine *engine, struct nm_rndv_choice *bulk, uint64_t now_ns)
{
	struct nm_sample *sample = &bulk->sample;

	bulk->streams = sample->nr_peak > 1;
	if (sample->mixed || sample->bytes == 0)
		return;
	sample->verdict.class = (uint8_t)nm_select_class(sample->bytes / sample->nr);
	sample->verdict.load = bulk->streams ? NM_SELECT_STREAM : NM_SELECT_LONE;
	nm_select_learn(engine->config.select, &bulk->states[sample->in_heap], &sample->verdict,
			sample->bytes, now_ns - sample->started_ns);
}

/*
 * The next message begins, so it is known what the last one cost both sides. After a long pause
 * that is unknown: it counts against the heap, and the other ways have the time of the transfer.
 */
static void learn_late(const struct nm_engine *engine, struct nm_rndv_choice *bulk, uint64_t now_ns)
{
	uint64_t ended_ns = bulk->sample.ended_ns;
	uint64_t penalty_ns = bulk->sample.verdict.protocol == NM_PROTOCOL_HEAP ? PAUSE_NS : 0;

	learn(engine, bulk, now_ns - ended_ns > PAUSE_NS ? ended_ns + penalty_ns : now_ns);
}

static void sample_begin(const struct nm_engine *engine, struct nm_rndv_choice *bulk,
			 const struct nm_request *r, bool stream)
{
	uint64_t now_ns = nm_clock_ns();
	enum nm_protocol before = bulk->sample.verdict.protocol;

	if (bulk->nr_incoming > 0)
		learn(engine, bulk, now_ns);
	else if (bulk->sample.is_due)
		learn_late(engine, bulk, now_ns);
	bulk->sample = (struct nm_sample){
		.started_ns = now_ns,
		.verdict = choose(engine, bulk, r, now_ns, stream),
		.in_heap = is_in_heap(r),
	};
	bulk->sample.mixed = bulk->nr_incoming > 0 && bulk->sample.verdict.protocol != before;
}

void nm_rndv_choice_begin(const struct nm_engine *engine, struct nm_request *r)
{
	struct nm_rndv_choice *bulk = bulk_of(r->peer);
	struct nm_sample *sample;

	if (nm_unlikely(!bulk)) {
		r->verdict = choose(engine, NULL, r, 0, false);
		return;
	}
	sample = &bulk->sample;
	if (bulk->nr_incoming == 0)
		sample_begin(engine, bulk, r, bulk->streams);
	else if (sample->bytes >= SAMPLE_BYTES || sample->nr >= SAMPLE_NR)
		sample_begin(engine, bulk, r, true);
	r->verdict = sample->verdict;
	if (nm_unlikely(!is_possible(r, r->verdict.protocol))) {
		r->verdict.protocol = NM_PROTOCOL_POOL;
		sample->mixed = true;
	}
	r->is_counted = true;
	sample->nr++;
	if (++bulk->nr_incoming > sample->nr_peak)
		sample->nr_peak = bulk->nr_incoming;
}

void nm_rndv_choice_end(const struct nm_engine *engine, struct nm_request *r)
{
	struct nm_rndv_choice *bulk = r->peer->bulk;

	if (!r->is_counted)
		return;
	r->is_counted = false;
	bulk->facts.bytes[r->verdict.protocol] += r->accepted;
	bulk->sample.bytes += r->accepted;
	if (--bulk->nr_incoming > 0)
		return;
	if (bulk->sample.in_heap && bulk->sample.nr_peak == 1 && r->accepted <= PRIVATE_MAX) {
		bulk->streams = false;
		bulk->sample.is_due = true;
		bulk->sample.ended_ns = nm_clock_ns();
	} else {
		learn(engine, bulk, nm_clock_ns());
	}
}

void nm_rndv_choice_reset(struct nm_peer *peer)
{
	if (!peer->bulk)
		return;
	peer->bulk->nr_incoming = 0;
	peer->bulk->sample.mixed = true;
}

void nm_rndv_choice_fell_back(struct nm_request *r, int err)
{
	struct nm_rndv_choice *bulk = r->peer->bulk;

	if (!bulk)
		return;
	bulk->facts.fallbacks++;
	nm_reason_set(&bulk->facts.fallback, "%s of %llu bytes stopped at %llu: %s",
		      nm_protocol_name(r->verdict.protocol), (unsigned long long)r->accepted,
		      (unsigned long long)r->done,
		      err == -ENODATA ? "these pages of the heap were not touched, or swapped out" :
		      err	      ? strerror(-err) :
					"the peer could not write");
	/* Pages of a heap that were never touched are nothing to worry about. */
	if (err == -ENODATA)
		nm_debug("the rest of a large message is sent in packets: %s",
			 bulk->facts.fallback.text);
	else
		nm_log_once(NM_LOG_WARN, "the rest of a large message is sent in packets: %s",
			    bulk->facts.fallback.text);
}

void nm_rndv_choice_access_fell_back(struct nm_peer *peer, bool is_read, int err)
{
	struct nm_rndv_choice *bulk = bulk_of(peer);

	if (!bulk)
		return;
	bulk->facts.fallbacks++;
	nm_reason_set(&bulk->facts.fallback, "a direct %s failed, the target takes over: %s",
		      is_read ? "get" : "put", strerror(-err));
	nm_log_once(NM_LOG_WARN, "%s", bulk->facts.fallback.text);
}
