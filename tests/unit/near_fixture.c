/* SPDX-License-Identifier: Apache-2.0 */
#include "near_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/internal.h"
#include "harness.h"
#include "transport/vmseg/home.h"
#include "vmseg_nodes.h"

#define NODES_MAX 24
#define PATIENCE_ROUNDS 15000 /* of a millisecond and more in which nothing moves */

struct net_packet {
	struct net_packet *next;
	struct nm_packet packet;
	uint8_t payload[];
};

struct near_net {
	struct nm_transport base;
	struct near_node *node;
	bool held, is_watched;
	enum near_net_state state;
	struct net_link {
		struct nm_link base;
		unsigned int to;
		bool is_lost; /* and that is not reported */
	} links[NODES_MAX];
	/* by sender */
	struct net_packet *inbox[NODES_MAX];
	struct nm_peer *sources[NODES_MAX];
};

static struct near_node *nodes[NODES_MAX];
const struct nm_select_params *near_select;

static unsigned int index_of(const struct near_node *node)
{
	unsigned int i;

	for (i = 0; i < NODES_MAX && nodes[i] != node; i++)
		;
	NM_CHECK(i < NODES_MAX);
	return i;
}

static int net_connect(struct nm_transport *transport, const struct nm_address *address,
		       struct nm_peer *peer, struct nm_link **ret_link,
		       struct nm_reason *ret_reason)
{
	struct near_net *net = nm_container_of(transport, struct near_net, base);

	for (unsigned int i = 0; i < NODES_MAX; i++) {
		if (!nodes[i] || !nodes[i]->net ||
		    !nm_identity_equal(&nodes[i]->address.who, &address->who))
			continue;
		net->links[i].base = (struct nm_link){.transport = transport, .peer = peer};
		net->links[i].to = i;
		*ret_link = &net->links[i].base;
		return 0;
	}
	nm_reason_set(ret_reason, "it is in no network");
	return -EHOSTUNREACH;
}

static int net_send(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
		    unsigned int nr_iov)
{
	struct net_link *link = nm_container_of(base, struct net_link, base);
	struct near_net *net = nm_container_of(base->transport, struct near_net, base);
	struct near_node *to = nodes[link->to];
	struct net_packet *p, **tail;
	size_t at = 0;

	if (net->state == NEAR_NET_UNMET)
		return -EAGAIN;
	link->is_lost = net->state == NEAR_NET_BROKEN;
	if (!to || link->is_lost)
		return -EPIPE;
	p = calloc(1, sizeof(*p) + pkt->len);
	p->packet = *pkt;
	for (unsigned int i = 0; i < nr_iov; at += iov[i++].iov_len)
		if (iov[i].iov_len)
			memcpy(p->payload + at, iov[i].iov_base, iov[i].iov_len);
	NM_CHECK_EQ(at, pkt->len);
	for (tail = &to->net->inbox[index_of(net->node)]; *tail; tail = &(*tail)->next)
		;
	*tail = p;
	return 0;
}

static bool net_drained(struct nm_link *link)
{
	(void)link;
	return true;
}

static void net_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->relation = NM_RELATION_NETWORK;
	ret_facts->finds_death =
		nm_container_of(link->transport, struct near_net, base)->is_watched;
	ret_facts->channel = NM_CHANNEL_NET;
	nm_reason_set(&ret_facts->reason, "a queue");
}

static unsigned int net_progress(struct nm_transport *transport)
{
	struct near_net *net = nm_container_of(transport, struct near_net, base);
	const struct nm_sink *sink = &net->base.sink;
	const struct nm_peer_label label = {"by net"};
	const struct nm_reason why = {"no route to it"};
	unsigned int done = 0;

	for (unsigned int i = 0; i < NODES_MAX; i++) {
		if (net->links[i].is_lost)
			sink->source_down(transport, net->links[i].base.peer, -ECONNRESET, &why);
		net->links[i].is_lost = false;
	}

	for (unsigned int i = 0; i < NODES_MAX && !net->held; i++) {
		struct net_packet *p;

		while ((p = net->inbox[i])) {
			net->inbox[i] = p->next;
			if (!net->sources[i])
				net->sources[i] =
					sink->source_up(transport, &nodes[i]->address.who, &label);
			if (net->sources[i])
				sink->deliver(transport, net->sources[i], &p->packet, p->payload);
			free(p);
			done++;
		}
	}
	return done;
}

static void net_destroy(struct nm_transport *transport)
{
	struct near_net *net = nm_container_of(transport, struct near_net, base);

	for (unsigned int i = 0; i < NODES_MAX; i++) {
		struct net_packet *p;

		while ((p = net->inbox[i])) {
			net->inbox[i] = p->next;
			free(p);
		}
	}
	free(net);
}

static bool net_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	(void)transport;
	(void)doorbells;
	return false;
}

static const struct nm_transport_kind net_kind = {
	.channel = NM_CHANNEL_NET,
	.rank = 90,
	.flags = NM_TRANSPORT_NETWORK | NM_TRANSPORT_WATCHES,
};

static const struct nm_transport_ops net_ops = {
	.connect = net_connect,
	.send = net_send,
	.drained = net_drained,
	.describe = net_describe,
	.check_alive = nm_transport_unchecked,
	.sleep = net_sleep,
	.wake = nm_transport_unwoken,
	.progress = net_progress,
	.destroy = net_destroy,
};

static void add_windows(struct near_node *node)
{
	struct nm_transport *shm;
	struct nm_reason why = {""};

	if (nm_shm_kind.create(nm_engine_sink(node->engine), &node->address, &shm, &why))
		nm_test_fail(__FILE__, __LINE__, "shm: %s", why.text);
	NM_CHECK_EQ(nm_engine_add_transport(node->engine, shm), 0);
}

static void add_machine(struct near_node *node, uint32_t part)
{
	struct nm_transport *segment;
	struct nm_reason why = {""};

	if (machine_create(part, nm_engine_sink(node->engine), &node->address, &segment, &why))
		nm_test_fail(__FILE__, __LINE__, "segment: %s", why.text);
	NM_CHECK_EQ(nm_engine_add_transport(node->engine, segment), 0);
	nm_engine_set_identity(node->engine, &node->address.who);
	near_describe(node, part);
}

void near_describe(struct near_node *node, uint32_t part)
{
	struct shm_home *home = nm_shm_of(node->engine->transports[NM_CHANNEL_VMSEG])->home;
	struct nm_vmseg_config config = segment_config(part);
	char name[32];

	snprintf(name, sizeof(name), "node%u.conf", index_of(node));
	snprintf(home->path, sizeof(home->path), "%s", segment_describe(&config, name));
}

void near_hide_description(const struct near_node *node)
{
	NM_CHECK_EQ(unlink(nm_shm_of(node->engine->transports[NM_CHANNEL_VMSEG])->home->path), 0);
}

static void add_net(struct near_node *node)
{
	node->net = calloc(1, sizeof(*node->net));
	node->net->base.kind = &net_kind;
	node->net->base.ops = &net_ops;
	node->net->base.sink = *nm_engine_sink(node->engine);
	node->net->base.max_payload = 2 * NM_MIN_MAX_PAYLOAD;
	node->net->base.eager_max = NM_MIN_MAX_PAYLOAD;
	node->net->node = node;
	node->address.inner_len = 1;
	NM_CHECK_EQ(nm_engine_add_transport(node->engine, &node->net->base), 0);
}

static void note_lost(void *arg, const struct nm_lost *lost)
{
	struct near_node *node = arg;

	node->nr_lost++;
	node->failed = lost->failed;
}

#define NO_PART UINT32_MAX

static struct near_node *create(bool has_windows, uint32_t part, bool has_net)
{
	struct near_node *node = calloc(1, sizeof(*node));
	struct nm_engine_config config = {.who = {.id = {0}}};
	struct nm_engine_queues queues = {0};

	setenv("NEARMETAL_RUNDIR", nm_test_dir(), 0);
	setenv("NEARMETAL_POOL_SIZE", "1M", 0);
	setenv("NEARMETAL_MAX_LOCAL_PEERS", "4", 0);
	setenv("NEARMETAL_CONNECT_MS", "2000", 0);
	/* Knobs are read once, by the engine. */
	if (part != NO_PART)
		close(segment_enter_machine(part));
	nodes[index_of(NULL)] = node;
	node->address.version = NM_ADDRESS_VERSION;
	NM_CHECK_EQ(nm_identity_create(&node->address.who), 0);
	NM_CHECK_EQ(nm_memory_table_create(&node->memory), 0);
	NM_CHECK_EQ(nm_cqueue_create(0, &node->cq), 0);
	config.who = node->address.who;
	config.memory = node->memory;
	config.select = near_select;
	config.lost = note_lost;
	config.lost_arg = node;
	NM_CHECK_EQ(nm_engine_create(&config, &node->engine), 0);
	queues.transmit = queues.receive = node->cq;
	nm_engine_bind(node->engine, &queues);
	if (has_windows)
		add_windows(node);
	if (part != NO_PART)
		add_machine(node, part);
	if (has_net)
		add_net(node);
	return node;
}

struct near_node *near_create(bool has_net)
{
	return create(true, NO_PART, has_net);
}

struct near_node *near_create_on(uint32_t part, bool has_net)
{
	return create(false, part, has_net);
}

struct near_node *near_create_far(void)
{
	return create(false, NO_PART, true);
}

void near_destroy(struct near_node *node)
{
	unsigned int i = index_of(node);

	nm_engine_destroy(node->engine);
	nm_cqueue_destroy(node->cq);
	nm_memory_table_destroy(node->memory);
	nodes[i] = NULL;
	free(node);
}

unsigned int near_step(struct near_node *a, struct near_node *b, struct near_node *c)
{
	return nm_engine_progress(a->engine) + (b ? nm_engine_progress(b->engine) : 0) +
	       (c ? nm_engine_progress(c->engine) : 0);
}

void near_set_net(struct near_node *node, enum near_net_state state)
{
	node->net->state = state;
}

void near_watch_net(struct near_node *node)
{
	node->net->is_watched = true;
}

void near_hold_net(struct near_node *node, bool held)
{
	node->net->held = held;
}

unsigned int near_waiting(const struct near_node *node, const struct near_node *from)
{
	unsigned int nr = 0;

	for (const struct net_packet *p = node->net->inbox[index_of(from)]; p; p = p->next)
		nr++;
	return nr;
}

struct nm_window_header *near_window(const struct near_node *node)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	struct nm_window_header *found = NULL;
	char line[512], rights[8];
	unsigned long from;

	NM_CHECK(maps != NULL);
	while (!found && fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "nearmetal-window") ||
		    sscanf(line, "%lx-%*x %7s", &from, rights) != 2 || rights[1] != 'w')
			continue;
		found = (struct nm_window_header *)from;
		if (memcmp(found->id, node->address.who.id, sizeof(found->id)))
			found = NULL;
	}
	fclose(maps);
	NM_CHECK(found != NULL);
	return found;
}

struct nm_region_slot *near_regions(const struct near_node *node)
{
	struct nm_window_header *header = near_window(node);

	return (void *)((char *)header + header->geometry.regions_off);
}

struct nm_rma near_rma(struct near_node *a, struct near_node *b, void *local, size_t len,
		       uint64_t address, uint64_t key)
{
	static struct iovec iov;

	iov = (struct iovec){local, len};
	return (struct nm_rma){
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.address = address, .len = len, .key = key}},
		.nr_remote = 1,
		.peer = near_peer(a, b),
		.context = local,
		.flags = NM_COMPLETION,
	};
}

struct nm_peer *near_peer(struct near_node *at, struct near_node *other)
{
	struct nm_peer *peer = nm_engine_peer(at->engine, &other->address);

	NM_CHECK(peer != NULL);
	return peer;
}

void near_link(struct near_node *from, struct near_node *to)
{
	struct nm_peer *peer = near_peer(from, to);

	while (peer->state < NM_PEER_MOVING && nm_peer_connect(from->engine, peer) == -EAGAIN)
		nm_test_sleep_ms(1);
}

int near_send(struct near_node *from, struct near_node *to, const void *buf, size_t len,
	      uint64_t tag, uint64_t flags, void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};
	const struct nm_message m = {
		.iov = &iov,
		.nr_iov = 1,
		.peer = near_peer(from, to),
		.tag = tag,
		.context = context,
		.flags = NM_TAGGED | flags,
	};

	near_link(from, to);
	return nm_engine_send(from->engine, &m);
}

int near_recv(struct near_node *at, struct near_node *from, void *buf, size_t len, uint64_t tag,
	      void *context)
{
	struct iovec iov = {buf, len};
	const struct nm_message m = {
		.iov = &iov,
		.nr_iov = 1,
		.peer = from ? near_peer(at, from) : NULL,
		.tag = tag,
		.context = context,
		.flags = NM_TAGGED | NM_COMPLETION,
	};

	return nm_engine_recv(at->engine, &m);
}

struct look {
	struct nm_identity who;
	struct nm_peer_facts facts;
};

static void look_at(void *arg, const struct nm_peer_facts *facts)
{
	struct look *look = arg;

	if (nm_identity_equal(&facts->who, &look->who))
		look->facts = *facts;
}

struct nm_peer_facts near_facts(struct near_node *at, struct near_node *other)
{
	struct look look = {.who = other->address.who};

	nm_engine_visit_peers(at->engine, look_at, &look);
	return look.facts;
}

struct nm_completion near_wait(struct near_node *node, struct near_node *other,
			       struct near_node *third)
{
	struct nm_completion completion;
	unsigned int idle = 0;

	while (nm_cqueue_empty(node->cq)) {
		if (near_step(node, other, third))
			continue;
		if (++idle > PATIENCE_ROUNDS)
			nm_test_fail(__FILE__, __LINE__, "no completion came");
		nm_test_sleep_ms(1);
	}
	completion = *nm_cqueue_front(node->cq);
	nm_cqueue_pop(node->cq);
	return completion;
}
