/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/peer.h"
#include "harness.h"
#include "transport/transport.h"

/* Rounds without work after which nothing moves any more, even with random refusals. */
#define QUIET_ROUNDS 50
#define WAIT_ROUNDS 200000

struct mesh_packet {
	struct mesh_packet *next;
	struct nm_packet packet;
	void *payload;
};

struct mesh_link {
	struct nm_link base;
	struct mesh *mesh;
	unsigned int from, to;
	bool connected, announced, blocked, down_told;
	struct nm_peer *source; /* the receiver's cookie */
	struct mesh_packet *head, **tail;
	unsigned int nr, alive_checks;
	uint64_t copied, copies_left;
	int copies_err;
};

struct mesh_transport {
	struct nm_transport base;
	struct mesh *mesh;
	unsigned int node;
};

struct mesh {
	struct mesh_options options;
	struct mesh_node nodes[MESH_NODES_MAX];
	struct mesh_transport *transports[MESH_NODES_MAX];
	struct mesh_link links[MESH_NODES_MAX][MESH_NODES_MAX];
	bool dead[MESH_NODES_MAX], hidden[MESH_NODES_MAX];
	bool is_unknown[MESH_NODES_MAX], was_another[MESH_NODES_MAX];
	int dead_err[MESH_NODES_MAX];
	uint64_t random;
};

static struct mesh_link *link_of(const struct nm_link *link)
{
	return nm_container_of((struct nm_link *)link, struct mesh_link, base);
}

static int mesh_connect(struct nm_transport *transport, const struct nm_address *address,
			struct nm_peer *peer, struct nm_link **ret_link,
			struct nm_reason *ret_reason)
{
	struct mesh_transport *t = nm_container_of(transport, struct mesh_transport, base);
	struct mesh *mesh = t->mesh;

	for (unsigned int i = 0; i < mesh->options.nr_nodes; i++) {
		struct mesh_link *link = &mesh->links[t->node][i];

		if (!nm_identity_equal(&mesh->nodes[i].address.who, &address->who))
			continue;
		if (mesh->hidden[i] || mesh->dead[i])
			break;
		NM_CHECK(!link->connected);
		link->connected = true;
		link->base.transport = transport;
		link->base.peer = peer;
		link->base.remote_copy = mesh->options.remote_copy;
		*ret_link = &link->base;
		return 0;
	}
	nm_reason_set(ret_reason, "nobody is there");
	return -EHOSTUNREACH;
}

static int mesh_send(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
		     unsigned int nr_iov)
{
	struct mesh_link *link = link_of(base);
	struct mesh *mesh = link->mesh;
	struct mesh_packet *p;
	size_t at = 0;

	NM_CHECK(pkt->len <= mesh->options.max_payload);
	if (mesh->dead[link->to])
		return -EPIPE;
	if (link->blocked || link->nr >= mesh->options.capacity ||
	    nm_test_random(&mesh->random) % 100 < mesh->options.refuse_percent)
		return -EAGAIN;
	p = calloc(1, sizeof(*p));
	p->packet = *pkt;
	p->payload = malloc(pkt->len);
	for (unsigned int i = 0; i < nr_iov; i++) {
		if (iov[i].iov_len > 0)
			memcpy((char *)p->payload + at, iov[i].iov_base, iov[i].iov_len);
		at += iov[i].iov_len;
	}
	NM_CHECK_EQ(at, pkt->len);
	*link->tail = p;
	link->tail = &p->next;
	link->nr++;
	return 0;
}

static bool mesh_drained(struct nm_link *link)
{
	return link_of(link)->nr == 0;
}

static void mesh_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->relation = NM_RELATION_HOST;
	ret_facts->channel = NM_CHANNEL_SHM;
	nm_reason_set(&ret_facts->reason, "same test");
	ret_facts->label.text[0] = (char)('0' + link_of(link)->to);
}

static void mesh_check_alive(struct nm_link *link)
{
	link_of(link)->alive_checks++;
}

/* All nodes live in one process: their addresses are ours. */
static ssize_t copy_remote(struct mesh_link *link, const struct iovec *local, unsigned int nr_local,
			   const struct nm_span *remote, unsigned int nr_remote, bool read)
{
	uint64_t total = 0, at = 0, len, far = 0;

	NM_CHECK(nr_local >= 1 && nr_local <= NM_SPANS_MAX);
	NM_CHECK(nr_remote >= 1 && nr_remote <= NM_SPANS_MAX);
	if (!link->base.remote_copy)
		return -EOPNOTSUPP;
	if (link->mesh->dead[link->to])
		return -ESRCH;
	for (unsigned int i = 0; i < nr_local; i++)
		total += local[i].iov_len;
	for (unsigned int i = 0; i < nr_remote; i++)
		far += remote[i].len;
	NM_CHECK_EQ(total, far);
	NM_CHECK(total > 0 && total <= NM_REMOTE_COPY_STEP);
	if (link->copies_left == 0) {
		link->base.remote_copy = link->copies_err == -EFAULT;
		return link->copies_err;
	}
	len = nm_test_random(&link->mesh->random) % 4 ? total : (total + 1) / 2;
	if (len > link->copies_left)
		len = link->copies_left;
	for (; at < len; at++) {
		uint64_t l = at, r = at;
		unsigned int i = 0, j = 0;
		char *mine, *theirs;

		for (; l >= local[i].iov_len; i++)
			l -= local[i].iov_len;
		for (; r >= remote[j].len; j++)
			r -= remote[j].len;
		mine = (char *)local[i].iov_base + l;
		theirs = (char *)(uintptr_t)remote[j].address + r;
		*(read ? mine : theirs) = *(read ? theirs : mine);
	}
	link->copied += len;
	link->copies_left -= len;
	return (ssize_t)len;
}

static ssize_t mesh_read_remote(struct nm_link *base, const struct iovec *local,
				unsigned int nr_local, const struct nm_span *remote,
				unsigned int nr_remote)
{
	return copy_remote(link_of(base), local, nr_local, remote, nr_remote, true);
}

static ssize_t mesh_write_remote(struct nm_link *base, const struct iovec *local,
				 unsigned int nr_local, const struct nm_span *remote,
				 unsigned int nr_remote)
{
	return copy_remote(link_of(base), local, nr_local, remote, nr_remote, false);
}

static void announce(struct mesh *mesh, struct mesh_link *link)
{
	struct mesh_transport *t = mesh->transports[link->to];
	struct nm_peer_label label = {"node"};

	if (link->announced)
		return;
	link->announced = true;
	link->source =
		t->base.sink.source_up(&t->base, &mesh->nodes[link->from].address.who, &label);
}

static void deliver(struct mesh *mesh, struct mesh_link *link)
{
	struct mesh_transport *t = mesh->transports[link->to];
	struct mesh_packet *p = link->head;

	link->head = p->next;
	if (!link->head)
		link->tail = &link->head;
	link->nr--;
	announce(mesh, link);
	if (link->source)
		t->base.sink.deliver(&t->base, link->source, &p->packet, p->payload);
	free(p->payload);
	free(p);
}

/* Tell node I of a dead neighbour, once all that it sent was delivered. */
static void tell_down(struct mesh *mesh, unsigned int dead, unsigned int i)
{
	struct mesh_link *in = &mesh->links[dead][i], *out = &mesh->links[i][dead];
	struct mesh_transport *t = mesh->transports[i];
	struct nm_peer *peer = in->source ? in->source : out->connected ? out->base.peer : NULL;
	struct nm_reason why;

	if (in->down_told || in->head || !peer)
		return;
	in->down_told = true;
	nm_reason_set(&why, "node %u ended", dead);
	t->base.sink.source_down(&t->base, peer, mesh->dead_err[dead], &why);
}

static unsigned int mesh_progress(struct nm_transport *transport)
{
	struct mesh_transport *t = nm_container_of(transport, struct mesh_transport, base);
	struct mesh *mesh = t->mesh;
	unsigned int done = 0;

	for (unsigned int i = 0; i < mesh->options.nr_nodes; i++) {
		struct mesh_link *link = &mesh->links[i][t->node];
		uint64_t batch = nm_test_random(&mesh->random) % 8;

		for (; batch > 0 && link->head; batch--, done++)
			deliver(mesh, link);
		if (mesh->dead[i])
			tell_down(mesh, i, t->node);
	}
	return done;
}

static void mesh_transport_destroy(struct nm_transport *transport)
{
	free(nm_container_of(transport, struct mesh_transport, base));
}

/* Its peers show no regions, so they have to be asked. */
static int mesh_publish(struct nm_transport *transport, const struct nm_region *region)
{
	(void)transport;
	(void)region;
	return -ENOSPC;
}

static void mesh_revoke(struct nm_transport *transport, uint64_t key)
{
	(void)transport;
	(void)key;
}

static int mesh_reach(struct nm_link *link, const uint64_t *keys, unsigned int nr_keys,
		      struct nm_region *ret_regions)
{
	(void)link;
	(void)keys;
	(void)nr_keys;
	(void)ret_regions;
	return -ENOKEY;
}

static void mesh_leave(struct nm_link *link)
{
	(void)link;
}

static void mesh_polled(struct nm_transport *transport, uint64_t now_ns)
{
	(void)transport;
	(void)now_ns;
}

static bool mesh_polls(struct nm_link *link, uint64_t now_ns)
{
	(void)link;
	(void)now_ns;
	return false;
}

static const struct nm_copy_ops mesh_copy_ops = {
	.read_remote = mesh_read_remote,
	.write_remote = mesh_write_remote,
	.publish = mesh_publish,
	.revoke = mesh_revoke,
	.reach = mesh_reach,
	.leave = mesh_leave,
	.polled = mesh_polled,
	.polls = mesh_polls,
};

static bool mesh_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	(void)transport;
	(void)doorbells;
	return false;
}

static const struct nm_transport_kind mesh_kind = {.channel = NM_CHANNEL_SHM, .rank = 20};

static const struct nm_transport_ops mesh_ops = {
	.connect = mesh_connect,
	.send = mesh_send,
	.drained = mesh_drained,
	.describe = mesh_describe,
	.check_alive = mesh_check_alive,
	.sleep = mesh_sleep,
	.wake = nm_transport_unwoken,
	.progress = mesh_progress,
	.destroy = mesh_transport_destroy,
};

static uint64_t resolve(void *arg, const struct nm_identity *who, struct nm_address *ret_address)
{
	const struct mesh *mesh = arg;
	unsigned int i = who->id[5];

	if (i < MESH_NODES_MAX && mesh->is_unknown[i])
		return UINT64_MAX;
	*ret_address = (struct nm_address){.version = NM_ADDRESS_VERSION, .who = *who};
	return i;
}

static bool mesh_learn(struct nm_transport *transport, const struct nm_address *address)
{
	const struct mesh *mesh = nm_container_of(transport, struct mesh_transport, base)->mesh;

	return !mesh->was_another[address->who.id[5]];
}

void mesh_take_out(struct mesh *mesh, unsigned int i)
{
	mesh->is_unknown[i] = true;
}

void mesh_insert(struct mesh *mesh, unsigned int i, bool was_another)
{
	mesh->is_unknown[i] = false;
	mesh->was_another[i] = was_another;
	for (unsigned int j = 0; j < mesh->options.nr_nodes; j++)
		nm_engine_resolve(mesh->nodes[j].engine);
	mesh->was_another[i] = false;
}

static void node_create(struct mesh *mesh, unsigned int i)
{
	struct mesh_node *n = &mesh->nodes[i];
	struct nm_engine_config config = {.resolve = resolve, .resolve_arg = mesh};
	struct nm_engine_queues queues = {
		.send = &n->send,
		.recv = &n->recv,
		.read = &n->read,
		.write = &n->write,
		.remote_read = &n->remote_read,
		.remote_write = &n->remote_write,
	};
	struct mesh_transport *t = calloc(1, sizeof(*t));
	struct nm_transport *self;
	struct nm_reason why;

	n->address = (struct nm_address){.version = NM_ADDRESS_VERSION};
	n->address.who.id[5] = (uint8_t)i;
	n->address.who.place[0] = (uint8_t)(i + 1);
	NM_CHECK_EQ(nm_memory_table_create(&n->memory), 0);
	NM_CHECK_EQ(nm_cqueue_create(0, &n->cq), 0);
	config.who = n->address.who;
	config.memory = n->memory;
	config.select = mesh->options.select;
	config.lost = i == 0 ? mesh->options.lost : NULL;
	config.lost_arg = mesh->options.lost_arg;
	NM_CHECK_EQ(nm_engine_create(&config, &n->engine), 0);
	queues.transmit = queues.receive = n->cq;
	nm_engine_bind(n->engine, &queues);
	t->base.kind = &mesh_kind;
	t->base.ops = &mesh_ops;
	t->base.copy = &mesh_copy_ops;
	t->base.learn = mesh_learn;
	t->base.sink = *nm_engine_sink(n->engine);
	t->base.max_payload = mesh->options.max_payload;
	t->base.eager_max = mesh->options.eager_max;
	t->mesh = mesh;
	t->node = i;
	mesh->transports[i] = t;
	NM_CHECK_EQ(nm_engine_add_transport(n->engine, &t->base), 0);
	NM_CHECK_EQ(nm_self_kind.create(nm_engine_sink(n->engine), &n->address, &self, &why), 0);
	NM_CHECK_EQ(nm_engine_add_transport(n->engine, self), 0);
}

struct mesh *mesh_create(const struct mesh_options *options)
{
	struct mesh *mesh = calloc(1, sizeof(*mesh));
	struct mesh_options *o = &mesh->options;

	/* All nodes are of one thread: who yields waits for nobody but itself, and on a busy machine
	 * for very long. */
	setenv("NEARMETAL_SPIN_US", "1000000", 0);
	if (options)
		*o = *options;
	o->nr_nodes = o->nr_nodes ? o->nr_nodes : 2;
	o->max_payload = o->max_payload ? o->max_payload : NM_MIN_MAX_PAYLOAD;
	o->eager_max = o->eager_max ? o->eager_max : 1024;
	o->capacity = o->capacity ? o->capacity : 64;
	mesh->random = o->seed + 1;
	for (unsigned int i = 0; i < MESH_NODES_MAX; i++) {
		for (unsigned int j = 0; j < MESH_NODES_MAX; j++) {
			struct mesh_link *link = &mesh->links[i][j];

			link->mesh = mesh;
			link->from = i;
			link->to = j;
			link->tail = &link->head;
			link->copies_left = UINT64_MAX;
		}
	}
	for (unsigned int i = 0; i < o->nr_nodes; i++)
		node_create(mesh, i);
	return mesh;
}

static void node_destroy(struct mesh *mesh, unsigned int i)
{
	struct mesh_node *n = &mesh->nodes[i];

	nm_engine_destroy(n->engine);
	nm_cqueue_destroy(n->cq);
	nm_memory_table_destroy(n->memory);
	n->engine = NULL;
	n->cq = NULL;
	n->memory = NULL;
}

static void link_clear(struct mesh_link *link)
{
	while (link->head) {
		struct mesh_packet *p = link->head;

		link->head = p->next;
		free(p->payload);
		free(p);
	}
	link->tail = &link->head;
	link->nr = 0;
}

void mesh_destroy(struct mesh *mesh)
{
	for (unsigned int i = 0; i < MESH_NODES_MAX; i++)
		node_destroy(mesh, i);
	for (unsigned int i = 0; i < MESH_NODES_MAX; i++)
		for (unsigned int j = 0; j < MESH_NODES_MAX; j++)
			link_clear(&mesh->links[i][j]);
	free(mesh);
}

struct mesh_node *mesh_node(struct mesh *mesh, unsigned int i)
{
	return &mesh->nodes[i];
}

struct nm_peer *mesh_peer(struct mesh *mesh, unsigned int from, unsigned int to)
{
	struct nm_peer *peer = nm_engine_peer(mesh->nodes[from].engine, &mesh->nodes[to].address);

	if (mesh->is_unknown[to])
		peer->was_known = false;
	return peer;
}

unsigned int mesh_step(struct mesh *mesh)
{
	unsigned int done = 0;

	for (unsigned int i = 0; i < mesh->options.nr_nodes; i++)
		if (mesh->nodes[i].engine && !mesh->dead[i])
			done += nm_engine_progress(mesh->nodes[i].engine);
	return done;
}

void mesh_settle(struct mesh *mesh)
{
	for (unsigned int quiet = 0; quiet < QUIET_ROUNDS; quiet++)
		if (mesh_step(mesh) > 0)
			quiet = 0;
}

struct nm_completion mesh_wait(struct mesh *mesh, unsigned int node)
{
	struct nm_cqueue *cq = mesh->nodes[node].cq;
	struct nm_completion completion;

	for (unsigned int i = 0; nm_cqueue_empty(cq) && i < WAIT_ROUNDS; i++)
		mesh_step(mesh);
	NM_CHECK(!nm_cqueue_empty(cq));
	completion = *nm_cqueue_front(cq);
	nm_cqueue_pop(cq);
	return completion;
}

bool mesh_quiet(struct mesh *mesh, unsigned int node)
{
	mesh_settle(mesh);
	return nm_cqueue_empty(mesh->nodes[node].cq);
}

void mesh_kill(struct mesh *mesh, unsigned int i, int err)
{
	if (err == 0)
		node_destroy(mesh, i);
	mesh->dead[i] = true;
	mesh->dead_err[i] = err;
	/* What a crashed node had not yet been taken from is lost with it. */
	for (unsigned int j = 0; err != 0 && j < MESH_NODES_MAX; j++)
		link_clear(&mesh->links[i][j]);
}

void mesh_block(struct mesh *mesh, unsigned int from, unsigned int to, bool blocked)
{
	mesh->links[from][to].blocked = blocked;
}

void mesh_forge(struct mesh *mesh, unsigned int from, unsigned int to,
		const struct nm_packet *packet, const void *payload)
{
	struct mesh_link *link = &mesh->links[from][to];
	struct mesh_packet *p = calloc(1, sizeof(*p));

	p->packet = *packet;
	p->payload = malloc(packet->len);
	if (packet->len > 0)
		memcpy(p->payload, payload, packet->len);
	*link->tail = p;
	link->tail = &p->next;
	link->nr++;
}

void mesh_spoil_copies(struct mesh *mesh, unsigned int from, unsigned int to, uint64_t bytes,
		       int err)
{
	mesh->links[from][to].copies_left = bytes;
	mesh->links[from][to].copies_err = err;
}

uint64_t mesh_copied(struct mesh *mesh, unsigned int from, unsigned int to)
{
	return mesh->links[from][to].copied;
}

unsigned int mesh_alive_checks(struct mesh *mesh, unsigned int from, unsigned int to)
{
	return mesh->links[from][to].alive_checks;
}

void mesh_hide(struct mesh *mesh, unsigned int i)
{
	mesh->hidden[i] = true;
}
