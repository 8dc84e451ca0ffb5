/* SPDX-License-Identifier: Apache-2.0 */
/* Over ofi_rxm a large message may complete after small ones that were sent behind it. */
#include <errno.h>
#include <stdlib.h>

#include "forger.h"

enum { ROUNDS = 3, NR_SMALL = 400, LARGE = 60000 };

static void in_order(struct node *node, const struct nm_packet *pkt, const uint8_t *payload)
{
	uint64_t *due = node->check_arg;

	if (pkt->tag >= 1000)
		NM_CHECK_EQ(pkt->tag, (*due)++);
	NM_CHECK(bytes_match(payload, pkt->len, pkt->tag));
}

NM_TEST(small_messages_behind_a_large_one_end_no_peer)
{
	struct node *a, *b;
	uint64_t seed = 1000, due = 1000;
	unsigned int turns = 0;

	setenv("NEARMETAL_NET", "tcp;ofi_rxm", 1);
	a = node_create(&net_fixture);
	b = node_create(&net_fixture);
	NM_CHECK(net_of(b)->inner.is_layered);
	b->check = in_order;
	b->check_arg = &due;
	nodes_connect(&net_fixture, a, b);
	for (unsigned int i = 0; i < ROUNDS * (NR_SMALL + 1); i++) {
		const uint32_t len = i % (NR_SMALL + 1) ? 8 : LARGE;
		int err;

		/* B looks only when A alone cannot go on. */
		while ((err = node_send(a, seed, len)) == -EAGAIN) {
			node_progress(a);
			if (++turns % 100 == 0)
				node_progress(b);
		}
		NM_CHECK_EQ(err, 0);
		seed++;
	}
	while (due < seed && !b->nr_down) {
		node_progress(a);
		node_progress(b);
	}
	NM_CHECK_EQ(b->nr_down, 0);
	node_destroy(a);
	node_destroy(b);
}

/* What a peer sent ahead is not kept when it is lost. */
NM_TEST(a_lost_peer_keeps_no_messages)
{
	struct node *b = node_create(&net_fixture);
	struct forger *forger = forger_create();
	struct nm_net_header header = {.kind = NM_NET_PACKET, .source = forger->address.who};
	const struct nm_net_peer *peer;

	net_of(b)->inner.is_layered = true;
	header.token = forger_ask_token(forger, b, &forger->address);
	forge_hello(forger, b, &forger->address, header.token);
	NODE_UNTIL(b, b->nr_up == 1);
	peer = nm_net_peers_find(&net_of(b)->peers, &forger->address.who);
	for (header.sequence = 2; header.sequence < 10; header.sequence++)
		forge(forger, b, header, NULL);
	NODE_UNTIL(b, peer->nr_early == 8);
	header.sequence = 1000;
	forge(forger, b, header, NULL);
	NODE_UNTIL(b, b->nr_down == 1);
	NM_CHECK_EQ(b->down_err, -EBADMSG);
	NM_CHECK_EQ(b->nr_packets, 0);
	NM_CHECK(!peer->early);
	forger_destroy(forger);
	node_destroy(b);
}
