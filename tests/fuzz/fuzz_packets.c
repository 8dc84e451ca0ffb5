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

#include "packets_ways.h"
#include "target.h"

struct script {
	const uint8_t *at, *end;
};

static uint8_t next(struct script *s)
{
	return s->at < s->end ? *s->at++ : 0;
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
	if (byte == 254)
		return NM_MOVE_TO_MEMORY + next(s);
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

/* After it left memory in order, it may come back. */
static void source_again(void)
{
	struct way *way = &world->ways[0];

	if (!way->is_taken || way->gone || world->dead || !world->source)
		return;
	if (nm_engine_sink(world->engine)->source_up(way->transport, &other.who, NULL))
		way->is_taken = way->is_suspended = false;
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
		world->ways[0].nr_enters = next(s) % 4;
		if (world->source && !world->ways[0].gone)
			nm_engine_sink(world->engine)
				->asked(world->ways[0].transport, world->source,
					(enum nm_asked)(next(s) % 3));
		break;
	case 13:
		source_again();
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
