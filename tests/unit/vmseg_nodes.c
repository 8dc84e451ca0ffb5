/* SPDX-License-Identifier: Apache-2.0 */
#include "vmseg_nodes.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

static uint32_t wanted_machine;

int machine_create(uint32_t part, const struct nm_sink *sink, struct nm_address *address,
		   struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	int door = segment_enter_machine(part);
	int err = nm_vmseg_kind.create(sink, address, ret_transport, ret_reason);

	close(door);
	return err;
}

static int create_there(const struct nm_sink *sink, struct nm_address *address,
			struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	return machine_create(wanted_machine, sink, address, ret_transport, ret_reason);
}

const struct fixture machine_fixture = {
	.kind = &nm_vmseg_kind,
	.relation = "host",
	.create = create_there,
};

struct node *machine_node(uint32_t part)
{
	wanted_machine = part;
	return node_create(&machine_fixture);
}

int machine_ask(uint32_t part, enum nm_vmseg_state state)
{
	struct nm_vmseg *segment = segment_attach(part);
	struct nm_reason why = {""};
	int err = nm_vmseg_ask(segment, state, &why);

	NM_CHECK_EQ(!err, !why.text[0]);
	nm_vmseg_detach(segment);
	return err;
}

void nodes_exchange(struct node *a, struct node *b, uint64_t seed)
{
	uint64_t before_a = a->nr_packets, before_b = b->nr_packets;

	NM_CHECK_EQ(node_send(a, seed, 3000), 0);
	NM_CHECK_EQ(node_send(b, seed + 1, 8), 0);
	NODE_UNTIL(b, b->nr_packets > before_b);
	NODE_UNTIL(a, a->nr_packets > before_a);
	NM_CHECK(bytes_match(b->payload, 3000, seed));
	NM_CHECK(bytes_match(a->payload, 8, seed + 1));
}

void far_end_tell(int fd, const void *bytes, size_t len)
{
	NM_CHECK_EQ(write(fd, bytes, len), len);
}

void far_end_hear(int fd, void *bytes, size_t len)
{
	NM_CHECK_EQ(read(fd, bytes, len), len);
}

static void live(void *arg)
{
	struct far_end *far = arg;
	struct node *node = machine_node(far->machine);
	struct nm_reason why = {""};
	struct nm_address address;
	uint64_t sent = 0;

	far_end_tell(far->to_parent[1], &node->address, sizeof(node->address));
	far_end_hear(far->to_child[0], &address, sizeof(address));
	NM_CHECK_EQ(
		node_reach(node->transport, &address, (struct nm_peer *)node, &node->link, &why),
		0);
	while (!node->nr_down) {
		sent += !node_send(node, sent, 100);
		node_progress(node);
	}
	far_end_tell(far->to_parent[1], &node->down_err, sizeof(node->down_err));
	far_end_tell(far->to_parent[1], &node->down_why, sizeof(node->down_why));
	node_destroy(node);
}

struct node *far_end_start(struct far_end *far, uint32_t machine)
{
	struct nm_address address;
	struct nm_reason why;
	struct node *node;

	far->machine = machine;
	NM_CHECK_EQ(pipe2(far->to_child, O_CLOEXEC), 0);
	NM_CHECK_EQ(pipe2(far->to_parent, O_CLOEXEC), 0);
	far->pid = nm_test_fork(live, far);
	node = machine_node(0);
	far_end_hear(far->to_parent[0], &address, sizeof(address));
	far_end_tell(far->to_child[1], &node->address, sizeof(node->address));
	NM_CHECK_EQ(
		node_reach(node->transport, &address, (struct nm_peer *)node, &node->link, &why),
		0);
	NODE_UNTIL(node, node->nr_packets > 1000);
	return node;
}

int far_end_join(struct far_end *far, struct nm_reason *ret_why)
{
	int err;

	far_end_hear(far->to_parent[0], &err, sizeof(err));
	far_end_hear(far->to_parent[0], ret_why, sizeof(*ret_why));
	nm_test_join(far->pid, 0);
	far_end_close(far);
	return err;
}

void far_end_kill(struct far_end *far)
{
	kill(far->pid, SIGKILL);
	nm_test_join(far->pid, SIGKILL);
	far_end_close(far);
}

void far_end_close(struct far_end *far)
{
	close(far->to_child[0]);
	close(far->to_child[1]);
	close(far->to_parent[0]);
	close(far->to_parent[1]);
}
