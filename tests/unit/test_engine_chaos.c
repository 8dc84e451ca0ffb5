/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything at once, and in the middle of it one of three nodes ends. Whatever it was doing: every
 * operation of the others is completed exactly once, with an error if the dead one had a part in
 * it, and the two that live go on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

enum { NODES = 3, OPS = 400, BUF = 30000, WINDOW = 30000, DYING = 2 };

struct op {
	unsigned int node; /* who started it */
	unsigned int with; /* the other side; NODES: anyone */
	bool is_recv, is_multi, is_access, done;
	char *buf;
};

struct world {
	struct mesh *mesh;
	uint64_t random;
	struct op ops[OPS];
	size_t nr;
	char *windows[NODES];
	bool killed;
};

static size_t pick(struct world *w, size_t n)
{
	return (size_t)(nm_test_random(&w->random) % n);
}

static struct op *new_op(struct world *w, unsigned int node, unsigned int with)
{
	struct op *op = &w->ops[w->nr++];

	*op = (struct op){.node = node, .with = with, .buf = calloc(1, BUF)};
	return op;
}

/* Takes back an operation that was refused. */
static void check_started(struct world *w, struct op *op, int err)
{
	if (err == 0)
		return;
	NM_CHECK(err == -EAGAIN || ((err == -ECONNRESET || err == -EHOSTUNREACH) && w->killed));
	free(op->buf);
	w->nr--;
}

static void start_message(struct world *w, struct op *op, struct iovec *iov)
{
	struct nm_message m = {
		.iov = iov,
		.nr_iov = 1,
		.peer = op->with < NODES ? mesh_peer(w->mesh, op->node, op->with) : NULL,
		.tag = pick(w, 2),
		.context = op,
		.flags = NM_COMPLETION | NM_TAGGED,
	};
	struct nm_engine *engine = mesh_node(w->mesh, op->node)->engine;

	if (op->is_recv) {
		iov->iov_len = BUF;
		if (pick(w, 8) == 0) {
			op->is_multi = true;
			m.flags = NM_COMPLETION | NM_MSG | NM_MULTI_RECV;
		}
		check_started(w, op, nm_engine_recv(engine, &m));
	} else {
		if (pick(w, 4) == 0)
			m.flags |= NM_DELIVERY_COMPLETE;
		if (pick(w, 8) == 0)
			m.flags ^= NM_TAGGED | NM_MSG;
		check_started(w, op, nm_engine_send(engine, &m));
	}
}

static void start_access(struct world *w, struct op *op, struct iovec *iov)
{
	struct nm_engine *engine = mesh_node(w->mesh, op->node)->engine;
	struct nm_rma rma = {
		.iov = iov,
		.nr_iov = 1,
		.remote = {{.len = iov->iov_len}},
		.nr_remote = 1,
		.peer = mesh_peer(w->mesh, op->node, op->with),
		.context = op,
		.flags = NM_COMPLETION,
	};
	struct iovec eight = {op->buf, 8};
	struct nm_atomic atomic = {
		.operand = &eight,
		.nr_operand = 1,
		.result = &eight,
		.nr_result = pick(w, 2),
		.remote = {{.len = 8}},
		.nr_remote = 1,
		.datatype = 7, /* 64 bits without sign */
		.op = 2,       /* sum */
		.peer = rma.peer,
		.context = op,
		.flags = NM_COMPLETION,
	};

	switch (pick(w, 3)) {
	case 0:
		check_started(w, op, nm_engine_write(engine, &rma));
		break;
	case 1:
		check_started(w, op, nm_engine_read(engine, &rma));
		break;
	default:
		check_started(w, op, nm_engine_atomic(engine, &atomic));
		break;
	}
}

static void start_one(struct world *w)
{
	unsigned int node = (unsigned int)pick(w, w->killed ? DYING : NODES);
	unsigned int with = (unsigned int)pick(w, NODES);
	struct op *op = new_op(w, node, with);
	struct iovec iov = {op->buf, pick(w, (size_t)1 << pick(w, 15))};

	if (pick(w, 3) == 0) {
		op->is_access = true;
		start_access(w, op, &iov);
		return;
	}
	op->is_recv = pick(w, 2);
	if (op->is_recv && pick(w, 3) == 0)
		op->with = NODES;
	start_message(w, op, &iov);
}

static void take_all(struct world *w)
{
	for (unsigned int i = 0; i < NODES; i++) {
		struct nm_cqueue *cq = mesh_node(w->mesh, i)->cq;
		const struct nm_completion *c;

		while (cq && (c = nm_cqueue_front(cq))) {
			struct op *op = c->context;

			NM_CHECK(op->node == i && !op->done);
			/* Errors are for those who deal with the dead one, or with anyone. */
			if (c->err != 0)
				NM_CHECK(
					c->err == ECONNRESET && w->killed &&
					(op->with == DYING || op->with == NODES ||
					 (c->source && c->source == mesh_peer(w->mesh, i, DYING))));
			op->done = !op->is_multi || c->flags & NM_MULTI_RECV;
			nm_cqueue_pop(cq);
		}
	}
}

static void kill_one(struct world *w, int err)
{
	take_all(w);
	mesh_kill(w->mesh, DYING, err);
	w->killed = true;
	/* A crashed node stands still, but its completions are nobody's business. */
	for (size_t i = 0; i < w->nr; i++)
		w->ops[i].done |= w->ops[i].node == DYING;
}

/* After all has settled: whatever named the dead one is done. */
static void check_all(struct world *w)
{
	mesh_settle(w->mesh);
	take_all(w);
	for (size_t i = 0; i < w->nr; i++) {
		struct op *op = &w->ops[i];

		/* A memory access between the living waits for no receive. */
		if ((op->with == DYING || op->is_access) && !op->done)
			nm_test_fail(__FILE__, __LINE__, "operation %zu still waits", i);
	}
}

static void chaos(uint64_t seed, int err)
{
	struct mesh_options options = {
		.nr_nodes = NODES,
		.capacity = 4,
		.refuse_percent = seed % 3 * 25,
		.remote_copy = seed % 2,
		.seed = seed,
	};
	struct world *w = calloc(1, sizeof(*w));
	size_t end;

	w->mesh = mesh_create(&options);
	w->random = seed;
	for (unsigned int i = 0; i < NODES; i++) {
		struct iovec iov = {w->windows[i] = calloc(1, WINDOW), WINDOW};
		struct nm_memory_attr attr = {
			.iov = &iov,
			.nr_iov = 1,
			.access = NM_REMOTE_READ | NM_REMOTE_WRITE,
		};
		struct nm_memory_region *region;

		NM_CHECK_EQ(nm_memory_register(mesh_node(w->mesh, i)->memory, &attr, &region), 0);
	}
	end = 50 + pick(w, 200);
	for (size_t i = 0; w->nr < OPS - 1 && i < 2000; i++) {
		if (w->nr >= end && !w->killed)
			kill_one(w, err);
		if (pick(w, 2))
			start_one(w);
		else
			mesh_step(w->mesh);
		take_all(w);
	}
	NM_CHECK(w->killed);
	check_all(w);
	mesh_destroy(w->mesh);
	for (size_t i = 0; i < w->nr; i++)
		free(w->ops[i].buf);
	for (unsigned int i = 0; i < NODES; i++)
		free(w->windows[i]);
	free(w);
}

NM_TEST_WITHIN(a_node_crashes, 100)
{
	for (uint64_t seed = 1; seed <= 40; seed++)
		chaos(seed, -ECONNRESET);
}

NM_TEST_WITHIN(a_node_closes, 100)
{
	for (uint64_t seed = 1; seed <= 40; seed++)
		chaos(seed, 0);
}
