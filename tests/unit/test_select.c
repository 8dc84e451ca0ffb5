/* SPDX-License-Identifier: Apache-2.0 */
/* Which channels are tried, in which order, and what is said about it. */
#include <string.h>

#include "harness.h"
#include "transport/select.h"

static const struct nm_transport_kind net_kind = {
	.channel = NM_CHANNEL_NET,
	.rank = 90,
	.flags = NM_TRANSPORT_NETWORK,
};

NM_TEST(kinds_come_in_order_of_preference)
{
	const struct nm_transport_kind *kind = NULL, *last = nm_transport_next(NULL);
	unsigned int seen = 0;

	NM_CHECK_EQ(last->channel, NM_CHANNEL_SELF);
	while ((kind = nm_transport_next(kind))) {
		NM_CHECK(last->rank <= kind->rank);
		/* The network needs libfabric, which is not part of this program. */
		NM_CHECK(kind->channel != NM_CHANNEL_NET);
		seen |= 1U << kind->channel;
		last = kind;
	}
	NM_CHECK_EQ(seen | 1U << NM_CHANNEL_NET, (1U << NM_NR_CHANNELS) - 2);
}

NM_TEST(an_endpoint_reaches_itself_by_its_queue_or_the_network)
{
	const struct nm_select_peer self = {.is_self = true};
	const struct nm_select_peer self_in_network = {true, true};

	NM_CHECK(nm_select_reaches(&nm_self_kind, &self));
	NM_CHECK(!nm_select_reaches(&nm_shm_kind, &self));
	NM_CHECK(!nm_select_reaches(&nm_vmseg_kind, &self));
	NM_CHECK(!nm_select_reaches(&net_kind, &self));
	NM_CHECK(nm_select_reaches(&net_kind, &self_in_network));
}

NM_TEST(another_endpoint_is_reached_by_memory_or_the_network)
{
	const struct nm_select_peer other = {false, false};
	const struct nm_select_peer other_in_network = {.has_network_address = true};

	NM_CHECK(!nm_select_reaches(&nm_self_kind, &other));
	NM_CHECK(nm_select_reaches(&nm_shm_kind, &other));
	NM_CHECK(nm_select_reaches(&nm_vmseg_kind, &other));
	NM_CHECK(!nm_select_reaches(&net_kind, &other));
	NM_CHECK(nm_select_reaches(&net_kind, &other_in_network));
	NM_CHECK(!nm_select_reaches(&nm_self_kind, &other_in_network));
}

NM_TEST(small_ones_go_with_their_envelope)
{
	NM_CHECK(nm_select_eager(16384, 16384));
	NM_CHECK(!nm_select_eager(16385, 16384));
	NM_CHECK(nm_select_eager(0, 0));
	NM_CHECK(!nm_select_eager(UINT64_MAX, UINT32_MAX));
}

NM_TEST(classes_hold_their_upper_bound)
{
	NM_CHECK_EQ(nm_select_class(0), 0);
	NM_CHECK_EQ(nm_select_class(64 << 10), 0);
	NM_CHECK_EQ(nm_select_class((64 << 10) + 1), 1);
	NM_CHECK_EQ(nm_select_class(256 << 10), 1);
	NM_CHECK_EQ(nm_select_class(1 << 20), 2);
	NM_CHECK_EQ(nm_select_class((1 << 20) + 1), 3);
	NM_CHECK_EQ(nm_select_class(UINT64_MAX), 3);
}

/* Without anything learnt: what the defaults say, and why. */
struct first_case {
	const char *name;
	struct nm_select_facts facts;
	enum nm_protocol protocol;
	const char *reason;
};

static const struct first_case first_cases[] = {
	{"a stream through the pool",
	 {.size = 1 << 20, .outstanding = 3, .remote_copy = true},
	 NM_PROTOCOL_POOL,
	 "pool, in a stream; MB/s: pool 29000"},
	{"a lone one of middle size by both sides",
	 {.size = 200000, .remote_copy = true},
	 NM_PROTOCOL_BOTH,
	 "both halves, alone"},
	{"the same where memory is out of reach",
	 {.size = 200000},
	 NM_PROTOCOL_POOL,
	 "pull 0, both halves 0, heap 0 (0: the peer's memory is out of reach)"},
	{"the same in the sender's heap, whose rate has to be shown first",
	 {.size = 1 << 20, .far = true, .in_heap = true},
	 NM_PROTOCOL_POOL_PAST,
	 "past cache, alone, far; MB/s: pool 6000, past cache 15000, pull 0, both halves 0, heap "
	 "0"},
	{"a stream from another NUMA node past the cache",
	 {.size = 1 << 20, .outstanding = 3, .far = true},
	 NM_PROTOCOL_POOL_PAST,
	 "pool past cache, in a stream, far; MB/s: pool 7000"},
	{"a lone one from there",
	 {.size = 200000, .far = true},
	 NM_PROTOCOL_POOL_PAST,
	 "pool past cache, alone, far"},
	{"a lone one from there by both sides where that can be",
	 {.size = 200000, .far = true, .remote_copy = true},
	 NM_PROTOCOL_BOTH,
	 "both halves, alone, far"},
};

NM_TEST(first_choice_and_its_reason)
{
	const struct first_case *c;

	for (c = first_cases; c < first_cases + NM_ARRAY_SIZE(first_cases); c++) {
		struct nm_select_state state = {0};
		struct nm_select_verdict v =
			nm_select_transfer(&nm_select_defaults, &state, &c->facts);
		struct nm_select_verdict w =
			nm_select_transfer(&nm_select_defaults, NULL, &c->facts);
		struct nm_reason reason;

		if (v.protocol != c->protocol)
			nm_test_fail(__FILE__, __LINE__, "case '%s': %s", c->name,
				     nm_protocol_name(v.protocol));
		NM_CHECK_EQ(v.protocol, w.protocol);
		nm_select_explain(&nm_select_defaults, &state, &c->facts, &v, &reason);
		NM_CHECK_HAS(reason.text, c->reason);
	}
}

/* A machine with invented rates: what a protocol achieves, by placement. */
struct machine {
	struct nm_select_state state;
	uint64_t now_ns;
	bool far; /* and that is known */
	bool in_heap;
	const uint32_t *mbps; /* by protocol */
	uint64_t nr[NM_NR_PROTOCOLS], ns[NM_NR_PROTOCOLS];
	unsigned int nr_changes;
	enum nm_protocol last;
};

static const uint32_t near_mbps[NM_NR_PROTOCOLS] = {0, 30000, 15000, 11000, 20000};
static const uint32_t far_mbps[NM_NR_PROTOCOLS] = {0, 5000, 14000, 9000, 18000};
/* The peer is off its core most of the time: only the one-sided copy does not wait for it. */
static const uint32_t crowded_mbps[NM_NR_PROTOCOLS] = {0, 1200, 1100, 8000, 900};

/* NR messages of SIZE in a stream. */
static void run(struct machine *m, unsigned int nr, uint64_t size, bool remote_copy)
{
	while (nr-- > 0) {
		struct nm_select_facts facts = {
			.size = size,
			.outstanding = 1,
			.remote_copy = remote_copy,
			.in_heap = m->in_heap,
			.far = m->far,
			.now_ns = m->now_ns,
		};
		struct nm_select_verdict v =
			nm_select_transfer(&nm_select_defaults, &m->state, &facts);
		uint64_t ns = size * 1000 / m->mbps[v.protocol];

		NM_CHECK(remote_copy || v.protocol < NM_PROTOCOL_PULL ||
			 (m->in_heap && v.protocol == NM_PROTOCOL_HEAP));
		nm_select_learn(&nm_select_defaults, &m->state, &v, size, ns);
		m->now_ns += ns;
		m->nr[v.protocol]++;
		m->ns[v.protocol] += ns;
		if (v.why == NM_SELECT_BECAUSE_RATE) {
			m->nr_changes += v.protocol != m->last;
			m->last = v.protocol;
		}
	}
}

static void forget_counts(struct machine *m)
{
	memset(m->nr, 0, sizeof(m->nr));
	memset(m->ns, 0, sizeof(m->ns));
	m->nr_changes = 0;
}

NM_TEST(cores_that_move_are_followed)
{
	static const uint64_t sizes[] = {65536, 1 << 20, 4 << 20, 1 << 30};

	for (size_t i = 0; i < NM_ARRAY_SIZE(sizes); i++) {
		for (int reach = 0; reach < 2; reach++) {
			struct machine m = {.mbps = near_mbps, .last = NM_PROTOCOL_POOL};
			enum nm_protocol far = reach ? NM_PROTOCOL_BOTH : NM_PROTOCOL_POOL_PAST;

			run(&m, 1000, sizes[i], reach);
			NM_CHECK_EQ(m.last, NM_PROTOCOL_POOL);
			NM_CHECK_EQ(m.nr_changes, 0);
			/* Away from each other: the rate falls, and a few messages later so it goes. */
			m.mbps = far_mbps;
			run(&m, 8, sizes[i], reach);
			NM_CHECK(m.last != NM_PROTOCOL_POOL);
			run(&m, 20000, sizes[i], reach);
			NM_CHECK_EQ(m.last, far);
			NM_CHECK(m.nr_changes <= 4);
			/* And back: only a try finds out that the pool is quick again. */
			m.mbps = near_mbps;
			run(&m, 20000, sizes[i], reach);
			NM_CHECK_EQ(m.last, NM_PROTOCOL_POOL);
			NM_CHECK(m.nr_changes <= 6);
		}
	}
}

/* What is told of the placement is where it begins; what is achieved has the last word. */
NM_TEST(a_known_distance_saves_the_first_transfers)
{
	struct machine m = {.mbps = far_mbps, .far = true, .last = NM_PROTOCOL_POOL_PAST};
	struct machine untold = {.mbps = far_mbps, .last = NM_PROTOCOL_POOL};

	run(&m, 8, 1 << 20, false);
	NM_CHECK_EQ(m.nr[NM_PROTOCOL_POOL], 0);
	NM_CHECK_EQ(m.nr_changes, 0);
	run(&untold, 8, 1 << 20, false);
	NM_CHECK(untold.nr[NM_PROTOCOL_POOL] > 0);
	run(&m, 20000, 1 << 20, false);
	NM_CHECK_EQ(m.last, NM_PROTOCOL_POOL_PAST);
	NM_CHECK_EQ(m.nr_changes, 0);
	/* The host pinned them otherwise meanwhile. */
	m.mbps = near_mbps;
	run(&m, 20000, 1 << 20, false);
	NM_CHECK_EQ(m.last, NM_PROTOCOL_POOL);
}

/* No fact says whether the sender has just written its messages: the rates show it. */
NM_TEST(heap_is_chosen_by_its_rate)
{
	static const uint32_t unchanged[NM_NR_PROTOCOLS] = {0, 15000, 13000, 0, 0, 50000};
	static const uint32_t written[NM_NR_PROTOCOLS] = {0, 15000, 13000, 0, 0, 5000};
	static const uint64_t sizes[] = {65536, 262144, 1 << 20, 4 << 20};

	for (size_t i = 0; i < NM_ARRAY_SIZE(sizes); i++) {
		struct machine m = {.mbps = written, .last = NM_PROTOCOL_POOL, .in_heap = true};

		run(&m, 1, sizes[i], false);
		NM_CHECK_EQ(m.nr[NM_PROTOCOL_POOL], 1);
		run(&m, 20000, sizes[i], false);
		NM_CHECK_EQ(m.last, NM_PROTOCOL_POOL);
		NM_CHECK(m.nr[NM_PROTOCOL_HEAP] > 0); /* tries */
		m.mbps = unchanged;
		run(&m, 20000, sizes[i], false);
		NM_CHECK_EQ(m.last, NM_PROTOCOL_HEAP);
		m.mbps = written;
		run(&m, 100, sizes[i], false);
		NM_CHECK_EQ(m.last, NM_PROTOCOL_POOL);
	}
}

/* Nobody tells that cores are shared: the rates do. */
NM_TEST(peers_that_lose_their_core_are_followed)
{
	struct machine m = {.mbps = near_mbps, .last = NM_PROTOCOL_POOL};

	run(&m, 1000, 1 << 20, true);
	m.mbps = crowded_mbps;
	run(&m, 2000, 1 << 20, true);
	NM_CHECK_EQ(m.last, NM_PROTOCOL_PULL);
	m.mbps = near_mbps;
	run(&m, 20000, 1 << 20, true);
	NM_CHECK_EQ(m.last, NM_PROTOCOL_POOL);
}

NM_TEST(tries_cost_little_and_go_on)
{
	struct machine m = {.mbps = far_mbps, .last = NM_PROTOCOL_POOL};
	uint64_t before, tries = 0;

	run(&m, 2000, 4 << 20, true);
	forget_counts(&m);
	before = m.now_ns;
	run(&m, 20000, 4 << 20, true);
	for (enum nm_protocol p = NM_PROTOCOL_POOL; p < NM_PROTOCOL_BOTH; p++) {
		NM_CHECK(m.nr[p] > 0); /* every one is looked at again */
		tries += m.ns[p];
	}
	NM_CHECK(tries * NM_SELECT_PROBE_SHARE / 2 < m.now_ns - before);
	NM_CHECK_EQ(m.nr_changes, 0);
}

/* A stolen time slice makes one message a hundred times slower: no reason to change one's mind. */
NM_TEST(one_slow_message_changes_nothing)
{
	struct machine m = {.mbps = near_mbps, .last = NM_PROTOCOL_POOL};
	uint32_t stolen[NM_NR_PROTOCOLS];

	for (enum nm_protocol p = 0; p < NM_NR_PROTOCOLS; p++)
		stolen[p] = near_mbps[p] / 100 + 1;
	run(&m, 100, 1 << 20, true);
	for (int i = 0; i < 50; i++) {
		m.mbps = stolen;
		run(&m, 1, 1 << 20, true);
		m.mbps = near_mbps;
		run(&m, 20, 1 << 20, true);
	}
	NM_CHECK_EQ(m.nr_changes, 0);
}

/* Two that are as good as each other: the choice stays where it is. */
NM_TEST(small_differences_are_ignored)
{
	static const uint32_t a[NM_NR_PROTOCOLS] = {0, 20000, 21500, 9000, 19000};
	static const uint32_t b[NM_NR_PROTOCOLS] = {0, 21500, 20000, 9000, 19000};
	struct machine m = {.mbps = a, .last = NM_PROTOCOL_POOL};

	for (int i = 0; i < 40; i++) {
		m.mbps = i % 2 ? a : b;
		run(&m, 200, 1 << 20, true);
	}
	NM_CHECK_EQ(m.nr_changes, 0);
}

NM_TEST(the_same_facts_give_the_same_choices)
{
	struct machine m = {.mbps = near_mbps, .last = NM_PROTOCOL_POOL}, n = m;

	run(&m, 5000, 100000, true);
	run(&n, 5000, 100000, true);
	NM_CHECK_EQ(memcmp(&m.state, &n.state, sizeof(m.state)), 0);
	NM_CHECK_EQ(m.now_ns, n.now_ns);
}

/* Absurd numbers do not divide by zero or wrap. */
NM_TEST(absurd_rates)
{
	struct nm_select_state state = {0};
	struct nm_select_facts facts = {.size = UINT64_MAX, .remote_copy = true};
	struct nm_select_verdict v = nm_select_transfer(&nm_select_defaults, &state, &facts);

	nm_select_learn(&nm_select_defaults, &state, &v, UINT64_MAX, 0);
	nm_select_learn(&nm_select_defaults, &state, &v, 0, UINT64_MAX / 1000);
	NM_CHECK(state.cells[v.class][v.load].arms[v.protocol].mbps > 0);
	NM_CHECK_STR(nm_protocol_name(NM_NR_PROTOCOLS), "?");
}
