/* SPDX-License-Identifier: Apache-2.0 */
/* Which channels are tried, in which order, and what is said about it. */
#include <string.h>

#include "harness.h"
#include "transport/select.h"

#define ALL                                                                                        \
	{                                                                                          \
		[NM_CHANNEL_SELF] = true, [NM_CHANNEL_SHM] = true, [NM_CHANNEL_NET] = true         \
	}

struct channel_case {
	const char *name;
	struct nm_select_peer peer;
	enum nm_channel order[NM_NR_CHANNELS];
	unsigned int nr;
	const char *reason;
};

static const struct channel_case channel_cases[] = {
	{"self first, network as the way out",
	 {.is_self = true, .allowed = ALL, .has_inner_address = true},
	 {NM_CHANNEL_SELF, NM_CHANNEL_NET},
	 2,
	 "the endpoint itself"},
	{"self without a network part",
	 {.is_self = true, .allowed = ALL},
	 {NM_CHANNEL_SELF},
	 1,
	 "the endpoint itself"},
	{"memory before the network",
	 {.allowed = ALL, .has_inner_address = true},
	 {NM_CHANNEL_SHM, NM_CHANNEL_NET},
	 2,
	 "then the network"},
	{"memory only", {.allowed = ALL}, {NM_CHANNEL_SHM}, 1, "network cannot be used"},
	{"network-only baseline",
	 {.allowed = {[NM_CHANNEL_NET] = true}, .has_inner_address = true},
	 {NM_CHANNEL_NET},
	 1,
	 "shm is not in NEARMETAL_CHANNELS"},
	{"network-only baseline, to itself",
	 {.is_self = true, .allowed = {[NM_CHANNEL_NET] = true}, .has_inner_address = true},
	 {NM_CHANNEL_NET},
	 1,
	 "self is not in NEARMETAL_CHANNELS"},
	{"nothing is allowed that would reach it",
	 {.allowed = {[NM_CHANNEL_SELF] = true}, .has_inner_address = true},
	 {0},
	 0,
	 "allows neither shm nor net"},
	{"network allowed but the peer has none",
	 {.allowed = {[NM_CHANNEL_NET] = true}},
	 {0},
	 0,
	 "no network part"},
	{"an endpoint does not visit its own window",
	 {.is_self = true, .allowed = {[NM_CHANNEL_SHM] = true}},
	 {0},
	 0,
	 "allows neither self nor net"},
};

NM_TEST(channels_are_tried_in_order_of_preference)
{
	enum nm_channel order[NM_NR_CHANNELS];
	const struct channel_case *c;
	struct nm_reason reason;
	unsigned int nr;

	for (c = channel_cases; c < channel_cases + NM_ARRAY_SIZE(channel_cases); c++) {
		reason.text[0] = '\0';
		nr = nm_select_channels(&c->peer, order, &reason);
		if (nr != c->nr || (nr && memcmp(order, c->order, nr * sizeof(order[0]))))
			nm_test_fail(__FILE__, __LINE__, "case '%s': %u channels, first %s",
				     c->name, nr, nr ? nm_channel_name(order[0]) : "none");
		NM_CHECK_HAS(reason.text, c->reason);
	}
}

NM_TEST(protocol_depends_on_size)
{
	struct nm_select_message message = {.size = 16384, .eager_max = 16384};

	NM_CHECK_EQ(nm_select_protocol(&message), NM_PROTOCOL_EAGER);
	message.size++;
	NM_CHECK_EQ(nm_select_protocol(&message), NM_PROTOCOL_RENDEZVOUS);
	message.size = 0;
	message.eager_max = 0;
	NM_CHECK_EQ(nm_select_protocol(&message), NM_PROTOCOL_EAGER);
	message.size = UINT64_MAX;
	NM_CHECK_EQ(nm_select_protocol(&message), NM_PROTOCOL_RENDEZVOUS);
}
