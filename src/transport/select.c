/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/select.h"

bool nm_select_reaches(const struct nm_transport_kind *kind, const struct nm_select_peer *peer)
{
	if (kind->flags & NM_TRANSPORT_LOOPBACK)
		return peer->is_self;
	if (kind->flags & NM_TRANSPORT_NETWORK)
		return peer->has_network_address;
	/* An endpoint does not connect to its own window. */
	return !peer->is_self;
}

const char *nm_protocol_name(enum nm_protocol protocol)
{
	static const char *const names[NM_NR_PROTOCOLS] = {
		[NM_PROTOCOL_EAGER] = "eager",
		[NM_PROTOCOL_POOL] = "pool",
		[NM_PROTOCOL_POOL_PAST] = "pool past cache",
		[NM_PROTOCOL_PULL] = "pull",
		[NM_PROTOCOL_BOTH] = "both halves",
		[NM_PROTOCOL_HEAP] = "heap",
	};

	return protocol < NM_NR_PROTOCOLS ? names[protocol] : "?";
}

#define KIB(n) ((uint64_t)(n) << 10)

unsigned int nm_select_class(uint64_t size)
{
	if (size <= KIB(64))
		return 0;
	if (size <= KIB(256))
		return 1;
	return size <= KIB(1024) ? 2 : 3;
}

/*
 * For near placement, where the start matters most; for far peers the first messages show the rate.
 * Eager is no choice in this table. Nor is the heap before a first try: it is faster only for
 * messages that were not written just before, and on a slow machine any number here would beat the
 * measured rate of the pool. Both copies at once need both sides: not for small messages.
 */
const struct nm_select_params nm_select_defaults = {
	.prior =
		{
			/*	 eager pool past pull both heap */
			{{0, 13000, 11000, 10000, 12000, 0}, {0, 28000, 15000, 9500, 12500, 0}},
			{{0, 15000, 13000, 12500, 18000, 0}, {0, 30000, 15000, 10500, 17000, 0}},
			{{0, 28000, 15000, 12500, 20000, 0}, {0, 29000, 15000, 11000, 18000, 0}},
			{{0, 28000, 15000, 12000, 20000, 0}, {0, 27000, 15000, 10000, 19000, 0}},
		},
	/* Two copies: as measured there (docs/design/bulk.md). One copy: no cache is shared. */
	.prior_far =
		{
			{{0, 5000, 11000, 10000, 12000, 0}, {0, 6000, 16000, 9500, 12500, 0}},
			{{0, 5000, 13000, 12500, 18000, 0}, {0, 6000, 16000, 10500, 17000, 0}},
			{{0, 6000, 15000, 12500, 20000, 0}, {0, 7000, 18000, 11000, 18000, 0}},
			{{0, 6000, 15000, 12000, 20000, 0}, {0, 7000, 17000, 10000, 19000, 0}},
		},
	.probe_ms = 10,
	.probe_choices = 16,
	.margin_percent = 15,
};

static bool possible(const struct nm_select_facts *facts, enum nm_protocol protocol)
{
	return protocol == NM_PROTOCOL_POOL || protocol == NM_PROTOCOL_POOL_PAST ||
	       (facts->in_heap && protocol == NM_PROTOCOL_HEAP) ||
	       (facts->remote_copy &&
		(protocol == NM_PROTOCOL_PULL || protocol == NM_PROTOCOL_BOTH));
}

/* The reached rate, or else the calibrated one. */
static uint32_t rate_of(const struct nm_select_params *params, const struct nm_select_cell *cell,
			const struct nm_select_verdict *at, enum nm_protocol protocol)
{
	if (cell && cell->arms[protocol].mbps)
		return cell->arms[protocol].mbps;
	return (at->far ? params->prior_far : params->prior)[at->class][at->load][protocol];
}

/* The best protocol; the CURRENT one unless another is better by the margin. */
static enum nm_protocol best(const struct nm_select_params *params,
			     const struct nm_select_cell *cell, const struct nm_select_facts *facts,
			     const struct nm_select_verdict *at)
{
	enum nm_protocol pick = NM_PROTOCOL_POOL;
	uint64_t top = 0;

	for (enum nm_protocol p = NM_PROTOCOL_POOL; p < NM_NR_PROTOCOLS; p++) {
		uint64_t rate = (uint64_t)rate_of(params, cell, at, p) * 100;

		if (cell && cell->current == p)
			rate += rate / 100 * params->margin_percent;
		if (possible(facts, p) && rate > top) {
			top = rate;
			pick = p;
		}
	}
	return pick;
}

/* Choices per try: enough bytes for a result, few enough to cost little. */
static uint32_t probe_length(uint64_t size)
{
	return size < KIB(256) ? 4 : 2;
}

/* When a try is due, start the protocol whose last try is oldest. */
static void maybe_probe(const struct nm_select_params *params, struct nm_select_cell *cell,
			const struct nm_select_facts *facts)
{
	enum nm_protocol pick = NM_PROTOCOL_EAGER;

	if (cell->since_probe < params->probe_choices || facts->now_ns < cell->next_probe_ns)
		return;
	for (enum nm_protocol p = NM_PROTOCOL_POOL; p < NM_NR_PROTOCOLS; p++)
		if (possible(facts, p) && p != cell->current &&
		    (pick == NM_PROTOCOL_EAGER ||
		     cell->arms[p].tried_ns < cell->arms[pick].tried_ns))
			pick = p;
	if (pick == NM_PROTOCOL_EAGER)
		return;
	cell->probe = pick;
	cell->probe_left = probe_length(facts->size);
	cell->since_probe = 0;
	cell->probe_ns = 0;
	cell->arms[pick].tried_ns = facts->now_ns;
	cell->next_probe_ns = facts->now_ns + (uint64_t)params->probe_ms * 1000000;
}

struct nm_select_verdict nm_select_transfer(const struct nm_select_params *params,
					    struct nm_select_state *state,
					    const struct nm_select_facts *facts)
{
	struct nm_select_verdict v = {
		.why = NM_SELECT_BECAUSE_RATE,
		.class = (uint8_t)nm_select_class(facts->size),
		.load = facts->outstanding ? NM_SELECT_STREAM : NM_SELECT_LONE,
		.far = facts->far,
	};
	struct nm_select_cell *cell = state ? &state->cells[v.class][v.load] : NULL;

	v.protocol = best(params, cell, facts, &v);
	if (!cell)
		return v;
	cell->current = v.protocol;
	cell->since_probe++;
	if (cell->probe_left == 0)
		maybe_probe(params, cell, facts);
	if (cell->probe_left > 0 && possible(facts, cell->probe)) {
		cell->probe_left--;
		v.protocol = cell->probe;
		v.why = NM_SELECT_BECAUSE_PROBE;
	}
	return v;
}

void nm_select_learn(const struct nm_select_params *params, struct nm_select_state *state,
		     const struct nm_select_verdict *verdict, uint64_t bytes, uint64_t ns)
{
	struct nm_select_cell *cell = &state->cells[verdict->class][verdict->load];
	uint64_t old = rate_of(params, cell, verdict, verdict->protocol);
	uint64_t rate = bytes >= UINT64_MAX / 1000 ? UINT32_MAX : bytes * 1000 / (ns ? ns : 1);

	if (verdict->why == NM_SELECT_BECAUSE_PROBE) {
		uint64_t next;

		/* The next try waits until this one's share of the time is over. */
		cell->probe_ns += ns;
		next = cell->arms[verdict->protocol].tried_ns +
		       cell->probe_ns * NM_SELECT_PROBE_SHARE;
		if (next > cell->next_probe_ns)
			cell->next_probe_ns = next;
	}
	if (old) {
		/* One lost time slice is no change of placement; four in a row are. */
		rate = rate > old * 4 ? old * 4 : rate < old / 4 ? old / 4 : rate;
		/* A try has few messages, so each counts more. */
		rate = verdict->why == NM_SELECT_BECAUSE_PROBE ? (old + rate) / 2 :
								 (old * 3 + rate) / 4;
	}
	cell->arms[verdict->protocol].mbps = rate < 1	       ? 1 :
					     rate > UINT32_MAX ? UINT32_MAX :
								 (uint32_t)rate;
}

void nm_select_explain(const struct nm_select_params *params, const struct nm_select_state *state,
		       const struct nm_select_facts *facts, const struct nm_select_verdict *v,
		       struct nm_reason *ret_reason)
{
	const struct nm_select_cell *cell = state ? &state->cells[v->class][v->load] : NULL;
	uint32_t rates[NM_NR_PROTOCOLS];

	for (enum nm_protocol p = NM_PROTOCOL_EAGER; p < NM_NR_PROTOCOLS; p++)
		rates[p] = possible(facts, p) ? rate_of(params, cell, v, p) : 0;
	nm_reason_set(
		ret_reason,
		"%s, %s%s%s; MB/s: pool %u, past cache %u, pull %u, both halves %u, heap %u%s",
		nm_protocol_name(v->protocol), v->load == NM_SELECT_LONE ? "alone" : "in a stream",
		v->far ? ", far" : "", v->why == NM_SELECT_BECAUSE_PROBE ? ", tried again" : "",
		rates[NM_PROTOCOL_POOL], rates[NM_PROTOCOL_POOL_PAST], rates[NM_PROTOCOL_PULL],
		rates[NM_PROTOCOL_BOTH], rates[NM_PROTOCOL_HEAP],
		facts->remote_copy || facts->in_heap ? "" :
						       " (0: the peer's memory is out of reach)");
}
