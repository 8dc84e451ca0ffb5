/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile peer against an engine that also works: the input is a script of packets from the peer
 * and of calls of the user. Packets may name the ids that the engine gave out, so that the fuzzer
 * gets past the first check, and come by memory or by network; the peer may change from one to the
 * other. Nothing may crash, leak or be written out of place, and no operation may be completed
 * twice.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/protocol.h"
#include "target.h"

enum { IDS = 8, CONTEXTS = 64, ROOM = 12000, WINDOW = 256, HELD = 3 };

struct script {
	const uint8_t *at, *end;
};

struct world {
	struct nm_engine *engine;
	struct nm_cqueue *cq;
	struct nm_memory_table *memory;
	struct nm_memory_region *region;
	struct nm_peer *peer;	/* as the user knows it */
	struct nm_peer *source; /* as the transport does; NULL: not up */
	bool blocked, dead;
	uint8_t copies;	   /* remote copies that succeed before one fails */
	uint64_t ids[IDS]; /* given out lately */
	unsigned int nr_ids;
	char room[ROOM];
	char window[WINDOW];
	uint8_t completions[CONTEXTS];
	bool multi[CONTEXTS];
	unsigned int nr_contexts;
	/* memory and network: what each is about to say when it is polled */
	struct way {
		struct nm_transport *transport;
		struct nm_link link;
		bool gone;
		bool ends; /* is to be told as quarantined */
		bool speaks;
		bool is_held, is_left, is_taken, is_forgotten; /* see nm_move_ops */
		struct nm_packet packet;
		char *payload;
	} ways[2];
};

static struct world *world; /* one at a time; the transport finds it here */

static uint8_t next(struct script *s)
{
	return s->at < s->end ? *s->at++ : 0;
}

static void remember(uint64_t id)
{
	world->ids[world->nr_ids++ % IDS] = id;
}

static struct way *way_of(const struct nm_transport *transport)
{
	return &world->ways[transport == world->ways[1].transport];
}

static int fake_connect(struct nm_transport *transport, const struct nm_address *address,
			struct nm_peer *peer, struct nm_link **ret_link,
			struct nm_reason *ret_reason)
{
	struct way *way = way_of(transport);

	(void)address;
	nm_reason_set(ret_reason, "it is gone");
	if (way->gone || way->is_held)
		return -EHOSTUNREACH;
	way->link = (struct nm_link){
		.transport = transport,
		.peer = peer,
		.remote_copy = way == world->ways && world->copies > 0,
	};
	*ret_link = &way->link;
	return 0;
}

/* Look at what the engine says, as a peer would. */
static int fake_send(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		     unsigned int nr_iov)
{
	uint64_t words[2] = {0};

	if (world->dead || way_of(link->transport)->gone)
		return -EPIPE;
	if (way_of(link->transport)->is_held)
		abort();
	if (world->blocked)
		return -EAGAIN;
	if (nr_iov > 0 && iov[0].iov_len >= 8)
		memcpy(words, iov[0].iov_base, iov[0].iov_len < 16 ? 8 : 16);
	if (pkt->op == NM_OP_RTS)
		remember(words[1]);
	else if (pkt->op == NM_OP_EAGER && pkt->flags & NM_PKT_ACK)
		remember(words[0]);
	else if (pkt->op == NM_OP_CTS && pkt->len > 0)
		remember(pkt->data);
	else if (pkt->op >= NM_OP_WRITE && pkt->op <= NM_OP_ATOMIC)
		remember(pkt->tag);
	return 0;
}

/* No address is ever followed: what matters is which ones are asked for, and what comes after. */
static ssize_t fake_remote(const struct iovec *local, unsigned int nr_local,
			   const struct nm_span *remote, unsigned int nr_remote)
{
	uint64_t here = 0, there = 0;

	if (nr_local < 1 || nr_local > NM_SPANS_MAX || nr_remote < 1 || nr_remote > NM_SPANS_MAX)
		abort();
	for (unsigned int i = 0; i < nr_local; i++)
		here += local[i].iov_len;
	for (unsigned int i = 0; i < nr_remote; i++)
		there += remote[i].len;
	if (here != there || here == 0)
		abort();
	if (world->copies == 0)
		return -EFAULT;
	world->copies--;
	return (ssize_t)(world->copies % 3 ? here : (here + 1) / 2);
}

static ssize_t fake_read_remote(struct nm_link *link, const struct iovec *local,
				unsigned int nr_local, const struct nm_span *remote,
				unsigned int nr_remote)
{
	ssize_t got = fake_remote(local, nr_local, remote, nr_remote);

	(void)link;
	if (got > 0)
		memset(local[0].iov_base, 1, local[0].iov_len);
	return got;
}

static ssize_t fake_write_remote(struct nm_link *link, const struct iovec *local,
				 unsigned int nr_local, const struct nm_span *remote,
				 unsigned int nr_remote)
{
	(void)link;
	return fake_remote(local, nr_local, remote, nr_remote);
}

static bool fake_drained(struct nm_link *link)
{
	return link != NULL;
}

static void fake_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	(void)link;
	memset(ret_facts, 0, sizeof(*ret_facts));
}

static void quarantine(struct way *way)
{
	struct nm_stream_ends ends = {.sent = 3, .taken = 5};
	struct nm_reason why = {"the script says so"};

	if (way->gone || world->dead || !world->source)
		return;
	way->gone = true;
	nm_engine_sink(world->engine)->quarantined(way->transport, world->source, &ends, &why);
}

static void fake_cast_out(struct nm_transport *transport, const struct nm_identity *who,
			  const char *what)
{
	(void)who, (void)what;
	way_of(transport)->ends = true;
}

static void fake_finish(struct nm_transport *transport, const struct nm_identity *who)
{
	(void)who;
	quarantine(way_of(transport));
}

static uint64_t fake_hold(struct nm_link *link)
{
	if (way_of(link->transport)->is_held)
		abort();
	way_of(link->transport)->is_held = true;
	return HELD;
}

static int fake_take_rest(struct nm_transport *transport, const struct nm_identity *who,
			  uint64_t position)
{
	struct way *way = way_of(transport);

	(void)who;
	if (way->gone || way->is_taken || !world->source)
		return -ENOENT;
	way->is_taken = position == HELD;
	return way->is_taken ? 0 : -EBADMSG;
}

static int fake_replay(struct nm_link *link, uint64_t *position, struct nm_link *to)
{
	const struct nm_packet packet = {.op = NM_OP_PACE};
	int err = 0;

	if (!way_of(link->transport)->is_held || *position > HELD)
		abort();
	for (; *position < HELD && !err; *position += !err)
		err = to->transport->ops->send(to, &packet, NULL, 0);
	return err;
}

static void fake_leave(struct nm_link *link)
{
	struct way *way = way_of(link->transport);

	if (!way->is_held || way->is_left)
		abort();
	way->is_left = true;
}

static void fake_forget(struct nm_transport *transport, const struct nm_identity *who)
{
	(void)who;
	way_of(transport)->is_forgotten = true;
}

static const struct nm_move_ops fake_move_ops = {
	.hold = fake_hold,
	.take_rest = fake_take_rest,
	.replay = fake_replay,
	.leave = fake_leave,
	.forget = fake_forget,
};

static unsigned int fake_progress(struct nm_transport *transport)
{
	struct way *way = way_of(transport);
	unsigned int done = way->speaks;

	if (way->speaks && world->source && !world->dead && !way->gone && !way->is_taken)
		nm_engine_sink(world->engine)
			->deliver(transport, world->source, &way->packet, way->payload);
	way->speaks = false;
	if (way->is_forgotten && world->source)
		nm_engine_sink(world->engine)->asked(transport, world->source, true);
	way->is_forgotten = false;
	if (way->ends)
		quarantine(way);
	way->ends = false;
	return done;
}

static void fake_destroy(struct nm_transport *transport)
{
	free(transport);
}

static const struct nm_transport_ops fake_ops = {
	.connect = fake_connect,
	.send = fake_send,
	.drained = fake_drained,
	.describe = fake_describe,
	.check_alive = nm_transport_unchecked,
	.wake = nm_transport_unwoken,
	.progress = fake_progress,
	.destroy = fake_destroy,
};

static int fake_publish(struct nm_transport *transport, const struct nm_region *region)
{
	(void)transport, (void)region;
	return -ENOSPC;
}

static void fake_revoke(struct nm_transport *transport, uint64_t key)
{
	(void)transport, (void)key;
}

static int fake_reach(struct nm_link *link, const uint64_t *keys, unsigned int nr_keys,
		      struct nm_region *ret_regions)
{
	(void)link, (void)keys, (void)nr_keys, (void)ret_regions;
	return -ENOKEY;
}

static void fake_polled(struct nm_transport *transport, uint64_t now_ns)
{
	(void)transport, (void)now_ns;
}

static bool fake_polls(struct nm_link *link, uint64_t now_ns)
{
	return !link && now_ns > 0;
}

/* It shows no regions, so there is never one to leave. */
static const struct nm_copy_ops fake_copy_ops = {
	.read_remote = fake_read_remote,
	.write_remote = fake_write_remote,
	.publish = fake_publish,
	.revoke = fake_revoke,
	.reach = fake_reach,
	.leave = nm_transport_unchecked,
	.polled = fake_polled,
	.polls = fake_polls,
};

static const struct nm_quarantine_ops fake_quarantine_ops = {
	.cast_out = fake_cast_out,
	.finish = fake_finish,
};

/* Memory, then network. */
static const struct nm_transport_kind fake_kinds[2] = {
	{.channel = NM_CHANNEL_SHM, .rank = 20, .flags = NM_TRANSPORT_WATCHES},
	{.channel = NM_CHANNEL_NET,
	 .rank = 90,
	 .flags = NM_TRANSPORT_NETWORK | NM_TRANSPORT_WATCHES},
};

static void add_way(unsigned int i)
{
	struct nm_transport *t = calloc(1, sizeof(*t));

	if (!t)
		abort();
	t->kind = &fake_kinds[i];
	t->ops = &fake_ops;
	t->copy = i == 0 ? &fake_copy_ops : NULL;
	t->quarantine = i == 0 ? &fake_quarantine_ops : NULL;
	t->move = i == 0 ? &fake_move_ops : NULL;
	t->sink = *nm_engine_sink(world->engine);
	t->max_payload = NM_MIN_MAX_PAYLOAD;
	t->eager_max = 64;
	world->ways[i].transport = t;
	if (nm_engine_add_transport(world->engine, t) < 0)
		abort();
}

static const struct nm_address other = {
	.version = NM_ADDRESS_VERSION, .inner_len = 1, .who = {.id = {2}}};

static void world_create(void)
{
	struct nm_engine_config config = {.who = {.id = {1}}};
	struct nm_engine_queues queues = {0};
	struct iovec iov;
	struct nm_memory_attr attr = {
		.iov = &iov,
		.nr_iov = 1,
		.access = NM_REMOTE_READ | NM_REMOTE_WRITE,
	};

	/* Nobody is there who could end what is under way. */
	setenv("NEARMETAL_CLOSE_MS", "0", 1);
	/* A handful of messages is many, and a script can hold too many. */
	setenv("NEARMETAL_UNEXPECTED_MAX", "64K", 1);
	world = calloc(1, sizeof(*world));
	iov = (struct iovec){world->window, WINDOW};
	if (!world || nm_memory_table_create(&world->memory) < 0 ||
	    nm_memory_register(world->memory, &attr, &world->region) < 0 ||
	    nm_cqueue_create(0, &world->cq) < 0)
		abort();
	config.memory = world->memory;
	if (nm_engine_create(&config, &world->engine) < 0)
		abort();
	queues.transmit = queues.receive = world->cq;
	nm_engine_bind(world->engine, &queues);
	add_way(0);
	add_way(1);
	world->peer = nm_engine_peer(world->engine, &other);
	world->source = nm_engine_sink(world->engine)
				->source_up(world->ways[0].transport, &other.who, NULL);
}

static void take_completions(void)
{
	const struct nm_completion *c;

	while ((c = nm_cqueue_front(world->cq))) {
		size_t i = (size_t)c->context;

		/* Context 0: looks for messages, and puts of the peer. */
		if (i > 0 && !world->multi[i] && world->completions[i]++)
			abort();
		nm_cqueue_pop(world->cq);
	}
}

static void world_destroy(void)
{
	take_completions();
	world->blocked = false;
	nm_engine_destroy(world->engine);
	nm_cqueue_destroy(world->cq);
	nm_memory_table_destroy(world->memory);
	free(world);
}

/* An id of the engine, or a number. */
static uint64_t number(struct script *s)
{
	uint8_t byte = next(s);

	if (byte < IDS)
		return world->ids[byte];
	if (byte == 255)
		return UINT64_MAX - next(s);
	return byte - IDS;
}

static void packet(struct script *s, unsigned int by)
{
	struct way *way = &world->ways[by];
	struct nm_packet pkt = {.op = next(s), .flags = next(s)};
	size_t left;
	char *payload;

	pkt.tag = number(s);
	pkt.data = number(s);
	pkt.len = next(s) * (next(s) % 17u + 1);
	left = (size_t)(s->end - s->at);
	/* In a block of its own, so that reading past it is seen. */
	payload = calloc(1, pkt.len + !pkt.len);
	memcpy(payload, s->at, left < pkt.len ? left : pkt.len);
	s->at += left < pkt.len ? left : pkt.len;
	way->speaks = true;
	way->packet = pkt;
	way->payload = payload;
	nm_engine_progress(world->engine);
	way->speaks = false;
	free(payload);
}

static void *new_context(bool multi)
{
	if (world->nr_contexts + 1 >= CONTEXTS)
		return NULL;
	world->multi[++world->nr_contexts] = multi;
	return (void *)(size_t)world->nr_contexts;
}

static void message(struct script *s, bool is_send)
{
	static const uint64_t flags[] = {
		NM_TAGGED,
		NM_MSG,
		NM_TAGGED | NM_PEEK,
		NM_TAGGED | NM_PEEK | NM_CLAIM,
		NM_TAGGED | NM_PEEK | NM_DISCARD,
		NM_TAGGED | NM_CLAIM,
		NM_TAGGED | NM_CLAIM | NM_DISCARD,
		NM_MSG | NM_MULTI_RECV,
	};
	struct iovec iov[2] = {{world->room, next(s) * 40u}, {world->room, next(s)}};
	uint8_t what = next(s);
	struct nm_message m = {
		.iov = iov,
		.nr_iov = 1 + what % 2,
		.tag = next(s),
		.ignore = next(s),
		.flags = NM_COMPLETION | flags[is_send ? what / 2 % 2 : what / 2 % 8],
	};

	if (is_send && what & 8)
		m.flags |= NM_DELIVERY_COMPLETE;
	if (is_send || what & 64)
		m.peer = world->peer;
	if (m.flags & NM_MULTI_RECV)
		m.nr_iov = 1;
	/* What is claimed is found by its context; a message looked at keeps none. */
	if (!(m.flags & (NM_PEEK | NM_CLAIM))) {
		m.context = new_context(m.flags & NM_MULTI_RECV);
		if (!m.context)
			return;
	}
	if (is_send)
		nm_engine_send(world->engine, &m);
	else
		nm_engine_recv(world->engine, &m);
}

static void access_memory(struct script *s)
{
	uint8_t what = next(s);
	struct iovec iov = {world->room, next(s) * 40u};
	struct nm_rma rma = {
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.len = iov.iov_len}},
		.nr_remote = 1,
		.peer = world->peer,
		.flags = NM_COMPLETION,
		.context = new_context(false),
	};
	struct nm_atomic atomic = {
		.operand = &iov,
		.nr_operand = 1,
		.remote = {{.len = iov.iov_len}},
		.nr_remote = 1,
		.op = 2,
		.peer = world->peer,
		.flags = NM_COMPLETION,
		.context = rma.context,
	};

	if (!rma.context)
		return;
	if (what % 3 == 0)
		nm_engine_write(world->engine, &rma);
	else if (what % 3 == 1)
		nm_engine_read(world->engine, &rma);
	else
		nm_engine_atomic(world->engine, &atomic);
}

static void peer_ends(struct script *s)
{
	struct nm_reason why = {"the script says so"};

	if (world->dead || !world->source)
		return;
	world->dead = true;
	nm_engine_sink(world->engine)
		->source_down(world->ways[0].transport, world->source,
			      next(s) % 2 ? -ECONNRESET : 0, &why);
}

static void act(struct script *s)
{
	switch (next(s) % 16) {
	case 0:
	case 1:
		message(s, false);
		break;
	case 2:
		message(s, true);
		break;
	case 3:
		access_memory(s);
		break;
	case 4:
		nm_engine_progress(world->engine);
		break;
	case 5:
		nm_engine_cancel(world->engine, (void *)(size_t)(1 + next(s) % CONTEXTS));
		break;
	case 6:
		world->blocked = next(s) % 2;
		break;
	case 7:
		if (next(s) == 77)
			peer_ends(s);
		break;
	case 8:
		nm_memory_deregister(world->memory, world->region);
		world->region = NULL;
		break;
	case 9:
		packet(s, 1);
		break;
	case 10:
		if (next(s) == 77)
			world->ways[0].ends = true;
		break;
	case 11:
		world->copies = next(s);
		world->ways[0].link.remote_copy = world->copies > 0;
		break;
	case 12:
		if (world->source && !world->ways[0].gone)
			nm_engine_sink(world->engine)
				->asked(world->ways[0].transport, world->source, next(s) % 4);
		break;
	default:
		packet(s, 0);
		break;
	}
	take_completions();
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct script script = {bytes, bytes + len};

	world_create();
	while (script.at < script.end)
		act(&script);
	nm_engine_progress(world->engine);
	world_destroy();
}
