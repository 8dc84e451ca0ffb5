/* SPDX-License-Identifier: Apache-2.0 */
#include "transport_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "far_node.h"
#include "vmseg_fixture.h"

const struct fixture self_fixture = {
	.kind = &nm_self_kind,
	.relation = "self",
	.hears = true,
};

/* The next node is on the next machine of a segment that the case has for itself. */
static int create_segment(const struct nm_sink *sink, struct nm_address *address,
			  struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	int door, err;

	if (far_is_next())
		return far_create("segment", sink, address, ret_transport, ret_reason);
	if (far_is_given())
		return nm_vmseg_kind.create(sink, address, ret_transport, ret_reason);
	door = segment_enter_next_machine();
	err = nm_vmseg_kind.create(sink, address, ret_transport, ret_reason);
	close(door);
	return err;
}

static int create_shm(const struct nm_sink *sink, struct nm_address *address,
		      struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	return far_is_next() ? far_create("shm", sink, address, ret_transport, ret_reason) :
			       nm_shm_kind.create(sink, address, ret_transport, ret_reason);
}

const struct fixture shm_fixture = {
	.kind = &nm_shm_kind,
	.relation = "node",
	.create = create_shm,
	.hears = true,
	.copies = true,
	.quarantines = true,
	.has_places = true,
	.outlives = true,
};

const struct fixture segment_fixture = {
	.kind = &nm_vmseg_kind,
	.relation = "host",
	.create = create_segment,
	.quarantines = true,
	.has_places = true,
};

void fill_bytes(uint8_t *bytes, uint32_t len, uint64_t seed)
{
	uint64_t state = seed * 1000003 + len, word;
	uint32_t i;

	for (i = 0; i < len; i += (uint32_t)sizeof(word)) {
		word = nm_test_random(&state);
		memcpy(bytes + i, &word, len - i < sizeof(word) ? len - i : sizeof(word));
	}
}

bool bytes_match(const uint8_t *bytes, uint32_t len, uint64_t seed)
{
	static uint8_t expected[NODE_KEEP];

	fill_bytes(expected, len, seed);
	return !memcmp(bytes, expected, len);
}

static struct nm_peer *source_up(struct nm_transport *from, const struct nm_identity *who,
				 const struct nm_peer_label *label)
{
	struct node *node = from->sink.engine;

	node->nr_up++;
	node->source = *who;
	node->label = *label;
	return node->refuse_sources ? NULL : (struct nm_peer *)node;
}

static void deliver(struct nm_transport *from, struct nm_peer *source, const struct nm_packet *pkt,
		    const void *payload)
{
	struct node *node = from->sink.engine;
	struct iovec iov;

	NM_CHECK(source == (struct nm_peer *)node);
	NM_CHECK(pkt->len <= NODE_KEEP);
	NM_CHECK_EQ(node->nr_down, 0);
	node->nr_packets++;
	node->last = *pkt;
	if (pkt->len)
		memcpy(node->payload, payload, pkt->len);
	if (node->check)
		node->check(node, pkt, node->payload);
	if (node->echo) {
		node->echo = false;
		iov = (struct iovec){node->payload, pkt->len};
		NM_CHECK_EQ(node->transport->ops->send(node->link, pkt, &iov, 1), 0);
	}
}

static void source_down(struct nm_transport *from, struct nm_peer *source, int err,
			const struct nm_reason *why)
{
	struct node *node = from->sink.engine;

	NM_CHECK(source == (struct nm_peer *)node);
	node->nr_down++;
	node->down_err = err;
	node->down_why = *why;
}

static bool known(struct nm_transport *from, const struct nm_identity *who,
		  struct nm_address *ret_address)
{
	const struct node *node = from->sink.engine;

	if (!node->known || !nm_identity_equal(&node->known->who, who))
		return false;
	*ret_address = *node->known;
	return true;
}

struct node *node_create(const struct fixture *fixture)
{
	struct node *node = calloc(1, sizeof(*node));
	struct nm_reason why = {""};
	struct nm_sink sink = {
		.engine = node,
		.source_up = source_up,
		.deliver = deliver,
		.source_down = source_down,
		.known = known,
	};
	const char *name = nm_channel_name(fixture->kind->channel);
	int err;

	NM_CHECK(node != NULL);
	setenv("NEARMETAL_RUNDIR", nm_test_dir(), 0);
	node->address.version = NM_ADDRESS_VERSION;
	NM_CHECK_EQ(nm_identity_create(&node->address.who), 0);
	err = (fixture->create ? fixture->create : fixture->kind->create)(&sink, &node->address,
									  &node->transport, &why);
	if (err)
		nm_test_fail(__FILE__, __LINE__, "create %s: %d: %s", name, err, why.text);
	NM_CHECK(node->transport->max_payload >= NM_MIN_MAX_PAYLOAD);
	NM_CHECK(node->transport->max_payload <= NODE_KEEP);
	NM_CHECK(node->transport->eager_max <= node->transport->max_payload);
	NM_CHECK_STR(nm_channel_name(node->transport->kind->channel), name);
	return node;
}

void node_destroy(struct node *node)
{
	node->transport->ops->destroy(node->transport);
	free(node);
}

static void connect_one(struct node *from, struct node *to)
{
	struct nm_reason why = {""};
	int err = node_reach(from->transport, &to->address, (struct nm_peer *)from, &from->link,
			     &why);

	if (err)
		nm_test_fail(__FILE__, __LINE__, "connect: %d: %s", err, why.text);
	NM_CHECK(from->link->transport == from->transport);
	NM_CHECK(from->link->peer == (struct nm_peer *)from);
	NM_CHECK(why.text[0] != '\0');
}

void nodes_connect(const struct fixture *fixture, struct node *a, struct node *b)
{
	connect_one(a, b);
	if (!loops_back(fixture))
		connect_one(b, a);
}

unsigned int node_progress(struct node *node)
{
	return node->transport->ops->progress(node->transport);
}

void nodes_settle(struct node *a, struct node *b)
{
	while (node_progress(a) + node_progress(b))
		;
}

int node_send(struct node *node, uint64_t seed, uint32_t len)
{
	struct nm_packet pkt = {
		.op = (uint8_t)(seed % NM_PACKET_NR_OPS),
		.flags = (uint8_t)(seed >> 3),
		.len = len,
		.tag = seed,
		.data = ~seed,
	};
	static uint8_t bytes[NODE_KEEP];
	struct iovec iov = {bytes, len};

	fill_bytes(bytes, len, seed);
	return node->transport->ops->send(node->link, &pkt, &iov, 1);
}
