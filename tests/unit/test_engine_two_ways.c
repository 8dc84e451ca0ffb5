/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that speaks on two channels has closed when it has said so on both. */
#include <errno.h>
#include <string.h>

#include "engine/protocol.h"
#include "traffic.h"

/* A channel with nothing beneath it: it says what the test tells it to, when it is polled. */
struct second_way {
	struct nm_transport base;
	const struct nm_identity *who;
	struct nm_peer *peer;
	bool greet, speak, leave;
	int leave_err;
};

static unsigned int say(struct nm_transport *transport)
{
	struct second_way *way = nm_container_of(transport, struct second_way, base);
	const struct nm_packet packet = {
		.op = NM_OP_EAGER, .flags = NM_PKT_TAGGED, .len = 4, .tag = 7};
	const struct nm_peer_label label = {"second, pid 2"};
	const struct nm_reason why = {"it closed"};
	struct nm_sink *sink = &way->base.sink;
	unsigned int nr = (unsigned int)way->greet + way->speak + way->leave;

	if (way->greet)
		way->peer = sink->source_up(transport, way->who, &label);
	if (way->speak)
		sink->deliver(transport, way->peer, &packet, "late");
	if (way->leave)
		sink->source_down(transport, way->peer, way->leave_err, &why);
	way->greet = way->speak = way->leave = false;
	return nr;
}

static void nothing_to_destroy(struct nm_transport *transport)
{
	(void)transport;
}

static const struct nm_transport_kind second_kind = {
	.channel = NM_CHANNEL_NET,
	.rank = 90,
	.flags = NM_TRANSPORT_NETWORK | NM_TRANSPORT_WATCHES,
};

static const struct nm_transport_ops second_ops = {
	.progress = say,
	.destroy = nothing_to_destroy,
};

/* Node 1 has sent to node 0 by the mesh and has greeted it the other way too. */
static struct mesh *meet_on_both(struct second_way *way)
{
	struct mesh *mesh = mesh_create(&(struct mesh_options){.nr_nodes = 2});
	char in[1];

	send_to(mesh, 1, 0, "x", 1, 999, NM_TAGGED, NULL);
	recv_from(mesh, 0, NULL, in, 1, 999, 0, TAGGED, NULL);
	mesh_wait(mesh, 0);
	*way = (struct second_way){.who = &mesh_node(mesh, 1)->address.who, .greet = true};
	way->base.kind = &second_kind;
	way->base.ops = &second_ops;
	way->base.sink = *nm_engine_sink(mesh_node(mesh, 0)->engine);
	way->base.max_payload = NM_MIN_MAX_PAYLOAD;
	NM_CHECK_EQ(nm_engine_add_transport(mesh_node(mesh, 0)->engine, &way->base), 0);
	mesh_settle(mesh);
	NM_CHECK(way->peer == mesh_peer(mesh, 0, 1));
	return mesh;
}

NM_TEST(goodbye_on_one_way_does_not_lose_the_other)
{
	struct second_way way;
	struct mesh *mesh = meet_on_both(&way);
	struct nm_completion c;
	char in[4];

	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 4, 7, 0, TAGGED, "late one");
	mesh_kill(mesh, 1, 0);
	NM_CHECK(mesh_quiet(mesh, 0));
	way.speak = true;
	c = mesh_wait(mesh, 0);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK_STR(c.context, "late one");
	NM_CHECK(memcmp(in, "late", 4) == 0);
	mesh_destroy(mesh);
}

NM_TEST(last_goodbye_ends_what_waits)
{
	struct second_way way;
	struct mesh *mesh = meet_on_both(&way);
	struct nm_completion c;
	char in[4];

	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 4, 7, 0, TAGGED, "never");
	mesh_kill(mesh, 1, 0);
	way.leave = true;
	c = mesh_wait(mesh, 0);
	NM_CHECK_EQ(c.err, ECONNRESET);
	NM_CHECK_STR(c.context, "never");
	mesh_destroy(mesh);
}

NM_TEST(crash_on_one_way_is_the_end_of_both)
{
	struct second_way way;
	struct mesh *mesh = meet_on_both(&way);
	char in[4];

	recv_from(mesh, 0, mesh_peer(mesh, 0, 1), in, 4, 7, 0, TAGGED, "never");
	mesh_kill(mesh, 1, -ECONNRESET);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	way.speak = true;
	NM_CHECK(mesh_quiet(mesh, 0));
	mesh_destroy(mesh);
}
