/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints over any transport, and what each of them was told: the common ground of the tests
 * over the transport contract.
 */
#ifndef NM_TEST_TRANSPORT_FIXTURE_H
#define NM_TEST_TRANSPORT_FIXTURE_H

#include <errno.h>

#include "harness.h"
#include "transport/transport.h"

#define NODE_KEEP 65536 /* bytes of the last payload that are kept */

struct node {
	struct nm_transport *transport;
	struct nm_link *link; /* to the other node */
	struct nm_address address;
	const struct nm_address *known; /* the address that its program gave; NULL: none */
	bool refuse_sources;
	bool echo; /* send every packet back from within deliver() */
	/* what happened */
	unsigned int nr_up, nr_down;
	int down_err;
	struct nm_reason down_why;
	struct nm_peer_label label;
	struct nm_identity source;
	uint64_t nr_packets;
	struct nm_packet last;
	uint8_t payload[NODE_KEEP];
	/* called for every packet when set */
	void (*check)(struct node *node, const struct nm_packet *pkt, const uint8_t *payload);
	void *check_arg;
};

/*
 * A channel under the suite of test_transport.c. What a fixture says of its channel chooses the
 * cases, and has_every_slot checks it.
 */
struct fixture {
	const struct nm_transport_kind *kind;
	const char *relation;
	/* NULL: as the kind does it */
	int (*create)(const struct nm_sink *sink, struct nm_address *address,
		      struct nm_transport **ret_transport, struct nm_reason *ret_reason);
	bool hears;	  /* sleep() is true with a connected peer: every arrival is heard */
	bool copies;	  /* has nm_copy_ops */
	bool quarantines; /* has nm_quarantine_ops */
	bool has_places;  /* has nm_place_ops */
	bool outlives;	  /* what was sent is safe at once, in memory that outlives its sender */
};

/* net_fixture: net_fixture.c, in programs with a libfabric beside them. */
extern const struct fixture self_fixture, shm_fixture, segment_fixture, net_fixture;

/* Both nodes are one: no death, no closing of the other side. */
static inline bool loops_back(const struct fixture *fixture)
{
	return fixture->kind->flags & NM_TRANSPORT_LOOPBACK;
}

/* One endpoint; the rundir is the case's own. */
struct node *node_create(const struct fixture *fixture);
void node_destroy(struct node *node);
/* connect() of TRANSPORT until it has a result. */
static inline int node_reach(struct nm_transport *transport, const struct nm_address *address,
			     struct nm_peer *peer, struct nm_link **ret_link,
			     struct nm_reason *ret_reason)
{
	int err;

	while ((err = transport->ops->connect(transport, address, peer, ret_link, ret_reason)) ==
	       -EAGAIN)
		nm_test_sleep_ms(1);
	return err;
}
/* Links in both directions (or to itself). */
void nodes_connect(const struct fixture *fixture, struct node *a, struct node *b);
/* Progress both until nothing moves. */
void nodes_settle(struct node *a, struct node *b);
unsigned int node_progress(struct node *node);
/* Send LEN bytes whose contents follow from SEED; the tag is SEED. In one piece. */
int node_send(struct node *node, uint64_t seed, uint32_t len);
/* Progress NODE until CONDITION or the case times out. */
#define NODE_UNTIL(node, condition)                                                                \
	do {                                                                                       \
		while (!(condition))                                                               \
			if (!node_progress(node))                                                  \
				nm_test_sleep_ms(1);                                               \
	} while (0)

void fill_bytes(uint8_t *bytes, uint32_t len, uint64_t seed);
bool bytes_match(const uint8_t *bytes, uint32_t len, uint64_t seed);

#endif
