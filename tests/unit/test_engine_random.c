/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random traffic of three engines. Every message carries its number in its data; receives are
 * posted early and late, directed and from anyone, with and without ignored tag bits, peeked at
 * and cancelled, over links that refuse at random. Whatever happens: every byte is right, every
 * message is received once, and a model that only walks lists makes the same matches.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

enum { NODES = 3, MESSAGES = 300, TAGS = 3, LEN_MAX = 40000, RECVS = 4 * MESSAGES };

struct sent {
	unsigned int from, to;
	uint64_t tag;
	size_t len;
	char *bytes;
	bool received;
};

struct posted {
	unsigned int at;
	char *buf;
	bool done;
};

struct world {
	struct mesh *mesh;
	uint64_t random;
	struct sent sent[MESSAGES];
	struct posted posted[RECVS];
	size_t nr_sent, nr_posted, nr_received, nr_cancelled;
};

static size_t pick(struct world *w, size_t n)
{
	return (size_t)(nm_test_random(&w->random) % n);
}

/* Sizes spread evenly over their logarithm. */
static size_t random_len(struct world *w)
{
	size_t len = pick(w, (size_t)1 << pick(w, 16));

	return len < LEN_MAX ? len : LEN_MAX;
}

static void send_one(struct world *w)
{
	size_t i = w->nr_sent;
	struct sent *s = &w->sent[i];
	uint64_t flags = NM_TAGGED | NM_REMOTE_CQ_DATA;
	struct iovec iov;
	struct nm_message m;
	int err;

	*s = (struct sent){.from = (unsigned int)pick(w, NODES),
			   .to = (unsigned int)pick(w, NODES)};
	s->tag = pick(w, TAGS);
	s->len = random_len(w);
	s->bytes = malloc(s->len + 1);
	fill(s->bytes, s->len, i);
	if (pick(w, 4) == 0)
		flags |= NM_DELIVERY_COMPLETE;
	iov = (struct iovec){s->bytes, s->len};
	m = (struct nm_message){
		.iov = &iov,
		.nr_iov = 1,
		.peer = mesh_peer(w->mesh, s->from, s->to),
		/* The top bit is one that receives ignore. */
		.tag = s->tag | (i & 1) << 63,
		.data = i,
		.flags = flags,
	};
	err = nm_engine_send(mesh_node(w->mesh, s->from)->engine, &m);
	if (err == -EAGAIN) {
		free(s->bytes);
		return;
	}
	NM_CHECK_EQ(err, 0);
	w->nr_sent++;
}

static void post_one(struct world *w, unsigned int at, struct nm_peer *source, uint64_t tag,
		     uint64_t ignore)
{
	struct posted *p = &w->posted[w->nr_posted];

	NM_CHECK(w->nr_posted < RECVS);
	p->at = at;
	p->buf = malloc(LEN_MAX);
	NM_CHECK_EQ(recv_from(w->mesh, at, source, p->buf, LEN_MAX, tag, ignore, TAGGED,
			      (void *)(w->nr_posted + 1)),
		    0);
	w->nr_posted++;
}

static void take(struct world *w, unsigned int at, const struct nm_completion *c)
{
	struct posted *p = &w->posted[(size_t)c->context - 1];
	struct sent *s = &w->sent[c->data];

	NM_CHECK(!p->done);
	p->done = true;
	if (c->err == ECANCELED) {
		w->nr_cancelled++;
	} else {
		NM_CHECK_EQ(c->err, 0);
		NM_CHECK(c->data < w->nr_sent && !s->received && s->to == at && p->at == at);
		NM_CHECK(c->source == mesh_peer(w->mesh, at, s->from));
		NM_CHECK_EQ(c->tag, s->tag | (c->data & 1) << 63);
		NM_CHECK_EQ(c->len, s->len);
		check_filled(p->buf, s->len, c->data);
		s->received = true;
		w->nr_received++;
	}
	free(p->buf);
}

/* Drain completions; peeks answer through here as well. */
static void take_all(struct world *w)
{
	for (unsigned int i = 0; i < NODES; i++) {
		struct nm_cqueue *cq = mesh_node(w->mesh, i)->cq;

		while (!nm_cqueue_empty(cq)) {
			struct nm_completion c = *nm_cqueue_front(cq);

			nm_cqueue_pop(cq);
			if (c.context)
				take(w, i, &c);
			else
				NM_CHECK(c.err == 0 || c.err == ENOMSG);
		}
	}
}

static void cancel_one(struct world *w)
{
	size_t i;

	if (w->nr_posted == 0)
		return;
	i = pick(w, w->nr_posted);
	/* Done, under way, or ended by this: exactly one completion tells, see take(). */
	nm_engine_cancel(mesh_node(w->mesh, w->posted[i].at)->engine, (void *)(i + 1));
}

static void step(struct world *w)
{
	unsigned int at = (unsigned int)pick(w, NODES);
	struct nm_peer *source =
		pick(w, 2) ? NULL : mesh_peer(w->mesh, at, (unsigned int)pick(w, NODES));
	size_t what = pick(w, 100);

	if (what < 40 && w->nr_sent < MESSAGES)
		send_one(w);
	else if (what < 60 && w->nr_posted < MESSAGES)
		post_one(w, at, source, pick(w, TAGS), UINT64_C(1) << 63);
	else if (what < 65 && w->nr_posted < MESSAGES)
		post_one(w, at, source, 0, UINT64_MAX);
	else if (what < 70)
		recv_from(w->mesh, at, source, NULL, 0, pick(w, TAGS), UINT64_C(1) << 63,
			  TAGGED | NM_PEEK, NULL);
	else if (what < 73)
		cancel_one(w);
	else
		mesh_step(w->mesh);
	take_all(w);
}

static void random_traffic(uint64_t seed, unsigned int refuse_percent, bool remote_copy)
{
	struct mesh_options options = {
		.nr_nodes = NODES,
		.capacity = 6,
		.refuse_percent = refuse_percent,
		.seed = seed,
		.remote_copy = remote_copy,
	};
	struct world *w = calloc(1, sizeof(*w));

	w->mesh = mesh_create(&options);
	w->random = seed;
	while (w->nr_sent < MESSAGES)
		step(w);
	/* Receive the rest, in whatever order it comes. */
	for (int round = 0; w->nr_received < MESSAGES; round++) {
		NM_CHECK(round < 100000);
		if (w->nr_posted - w->nr_received - w->nr_cancelled < 2 * NODES &&
		    w->nr_posted < RECVS)
			for (unsigned int i = 0; i < NODES; i++)
				post_one(w, i, NULL, 0, UINT64_MAX);
		/* Every node must have a receive that takes anything. */
		mesh_step(w->mesh);
		take_all(w);
		if (round % 1000 == 999 && w->nr_posted + NODES < RECVS)
			for (unsigned int i = 0; i < NODES; i++)
				post_one(w, i, NULL, 0, UINT64_MAX);
	}
	mesh_settle(w->mesh);
	take_all(w);
	for (unsigned int i = 0; i < NODES; i++)
		NM_CHECK_EQ(mesh_node(w->mesh, i)->send.errors, 0);
	for (size_t i = 0; i < w->nr_posted; i++)
		if (!w->posted[i].done)
			free(w->posted[i].buf);
	mesh_destroy(w->mesh);
	for (size_t i = 0; i < w->nr_sent; i++)
		free(w->sent[i].bytes);
	free(w);
}

NM_TEST_WITHIN(random_traffic_arrives_whole, 100)
{
	for (uint64_t seed = 1; seed <= 12; seed++)
		random_traffic(seed, seed % 3 * 30, seed % 2);
}

/* ---- the model ---- */

struct model_recv {
	struct nm_peer *source;
	uint64_t tag, ignore;
	size_t got; /* message + 1 */
};

struct model {
	struct model_recv recvs[2000];
	size_t nr_recvs;
	struct {
		struct nm_peer *source;
		uint64_t tag;
		bool taken;
	} messages[2000];
	size_t nr_messages;
};

static bool model_matches(const struct model *m, size_t recv, size_t message)
{
	const struct model_recv *r = &m->recvs[recv];

	return (!r->source || r->source == m->messages[message].source) &&
	       ((r->tag ^ m->messages[message].tag) & ~r->ignore) == 0;
}

static void model_send(struct model *m, struct nm_peer *source, uint64_t tag)
{
	size_t i = m->nr_messages++;

	m->messages[i].source = source;
	m->messages[i].tag = tag;
	for (size_t r = 0; r < m->nr_recvs; r++) {
		if (!m->recvs[r].got && model_matches(m, r, i)) {
			m->recvs[r].got = i + 1;
			m->messages[i].taken = true;
			return;
		}
	}
}

static void model_recv(struct model *m, struct nm_peer *source, uint64_t tag, uint64_t ignore)
{
	size_t r = m->nr_recvs++;

	m->recvs[r] = (struct model_recv){source, tag, ignore, 0};
	for (size_t i = 0; i < m->nr_messages; i++) {
		if (!m->messages[i].taken && model_matches(m, r, i)) {
			m->messages[i].taken = true;
			m->recvs[r].got = i + 1;
			return;
		}
	}
}

static void matches_like_the_model(uint64_t seed)
{
	static const uint64_t ignores[] = {0, 0, 1, 6, UINT64_MAX};
	struct mesh_options options = {
		.nr_nodes = NODES,
		.capacity = 5,
		.refuse_percent = 30,
		.seed = seed,
	};
	struct mesh *mesh = mesh_create(&options);
	struct model *model = calloc(1, sizeof(*model));
	char *bytes = calloc(1, 3000), *in = malloc(3000);
	size_t *got = calloc(2000, sizeof(*got));
	uint64_t random = seed;
	struct nm_completion c;

	for (int i = 0; i < 1500; i++) {
		unsigned int from = 1 + (unsigned int)(nm_test_random(&random) % 2);
		struct nm_peer *source =
			nm_test_random(&random) % 2 ? NULL : mesh_peer(mesh, 0, from);
		uint64_t tag = nm_test_random(&random) % 6;

		if (nm_test_random(&random) % 2) {
			struct iovec iov = {bytes, nm_test_random(&random) % 2 ? 3000 : 8};
			struct nm_message m = {
				.iov = &iov,
				.nr_iov = 1,
				.peer = mesh_peer(mesh, from, 0),
				.tag = tag,
				.data = model->nr_messages,
				.flags = NM_TAGGED | NM_REMOTE_CQ_DATA,
			};

			while (nm_engine_send(mesh_node(mesh, from)->engine, &m) == -EAGAIN)
				mesh_step(mesh);
			mesh_settle(mesh); /* so that the model knows the order of arrival */
			model_send(model, mesh_peer(mesh, 0, from), tag);
		} else {
			uint64_t ignore = ignores[nm_test_random(&random) % 5];

			recv_from(mesh, 0, source, in, 3000, tag, ignore, TAGGED,
				  (void *)(model->nr_recvs + 1));
			model_recv(model, source, tag, ignore);
		}
	}
	mesh_settle(mesh);
	while (!nm_cqueue_empty(mesh_node(mesh, 0)->cq)) {
		c = mesh_wait(mesh, 0);
		got[(size_t)c.context - 1] = c.data + 1;
	}
	for (size_t r = 0; r < model->nr_recvs; r++)
		NM_CHECK_EQ(got[r], model->recvs[r].got);
	mesh_destroy(mesh);
	free(model);
	free(bytes);
	free(in);
	free(got);
}

NM_TEST_WITHIN(matching_agrees_with_the_model, 100)
{
	for (uint64_t seed = 1; seed <= 8; seed++)
		matches_like_the_model(seed);
}
