/* SPDX-License-Identifier: Apache-2.0 */
#include "talk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cable.h"
#include "engine/atomic.h"
#include "transport/transport.h"

/* Nobody who waits for the dead waits longer, and whoever was stopped goes on before. */
#define PATIENCE_NS (20 * NM_NS_PER_S)

/* A ring that is lost costs the first, what does not ring the second. */
#define LONGEST_SLEEP_NS (4 * NM_NS_PER_MS)
#define MOMENT_NS (200 * NM_NS_PER_US)

/* Inline in a slot, over slots, in a chunk, in many chunks; each several times. */
static const size_t sizes[] = {8, 100, 1000, 12000, 300000};
enum { NR_SIZES = sizeof(sizes) / sizeof(sizes[0]), ROUNDS = 3, SHARED = 400000 };

struct message {
	char *bytes;
	size_t size;
	bool done;
};

struct conversation {
	struct talker *me;
	struct nm_peer *peer;
	struct message in[NR_SIZES], out[NR_SIZES], access;
	unsigned int nr_due; /* completions that have to come */
	enum talk_end end;
	uint64_t deadline;
};

static char byte_of(const struct nm_identity *from, size_t i, unsigned int salt)
{
	return (char)(from->id[i % 6] + i * 7 + salt * 13);
}

static void fill(char *bytes, size_t size, const struct nm_identity *from, unsigned int salt)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = byte_of(from, i, salt);
}

static bool is_filled(const char *bytes, size_t size, const struct nm_identity *from,
		      unsigned int salt)
{
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != byte_of(from, i, salt))
			return false;
	return true;
}

static uint64_t resolve(void *arg, const struct nm_identity *who, struct nm_address *ret_address)
{
	const struct talker *me = arg;

	for (unsigned int i = 0; i < me->nr_all; i++)
		if (nm_identity_equal(&me->all[i].who, who)) {
			*ret_address = me->all[i];
			return i;
		}
	return UINT64_MAX;
}

int talker_open(struct talker *me)
{
	struct nm_engine_config config = {
		.who = me->address.who,
		.resolve = resolve,
		.resolve_arg = me,
	};
	struct nm_engine_queues queues = {0};
	struct nm_memory_region *region;
	struct nm_transport *channel;
	struct nm_reason why;
	struct iovec iov;
	const struct nm_memory_attr attr = {
		.iov = &iov,
		.nr_iov = 1,
		.access = NM_REMOTE_READ | NM_REMOTE_WRITE,
		.key = 1,
	};
	int err;

	me->shared = calloc(1, SHARED);
	iov = (struct iovec){me->shared, SHARED};
	if (!me->shared || nm_memory_table_create(&me->memory) || nm_cqueue_create(0, &me->cq) ||
	    nm_memory_register(me->memory, &attr, &region))
		return -ENOMEM;
	config.memory = me->memory;
	err = nm_engine_create(&config, &me->engine);
	if (err)
		return err;
	queues.transmit = queues.receive = me->cq;
	/* Accesses that are counted are executed here; others by whoever starts them. */
	if (me->number % 2 == 0) {
		queues.remote_read = &me->read;
		queues.remote_write = &me->written;
	}
	nm_engine_bind(me->engine, &queues);
	err = me->create(nm_engine_sink(me->engine), &me->address, &channel, &why);
	if (err)
		return err;
	err = nm_engine_add_transport(me->engine, channel);
	if (!err && me->cables)
		err = cable_create(me->cables, nm_engine_sink(me->engine), &me->address, &channel);
	return err || !me->cables ? err : nm_engine_add_transport(me->engine, channel);
}

void talker_close(struct talker *me)
{
	nm_engine_destroy(me->engine);
	nm_cqueue_destroy(me->cq);
	nm_memory_table_destroy(me->memory);
	free(me->shared);
}

static void take_completions(struct conversation *c)
{
	const struct nm_completion *done;

	while ((done = nm_cqueue_front(c->me->cq))) {
		struct message *m = done->context;

		if (m->done && c->end == TALK_GOOD)
			c->end = TALK_MIXED;
		m->done = true;
		c->nr_due--;
		if (done->err && c->end == TALK_GOOD)
			c->end = TALK_LOST;
		nm_cqueue_pop(c->me->cq);
	}
}

/* Sleep until somebody rings: what dies, stops or is late then keeps nobody asleep. */
static void sleep_a_little(struct nm_engine *engine)
{
	struct nm_doorbells doorbells = {.nr = 0};
	bool is_heard = nm_engine_sleep(engine, &doorbells);

	nm_doorbells_wait(&doorbells, is_heard ? LONGEST_SLEEP_NS : MOMENT_NS);
	nm_engine_wake(engine);
}

static void wait_a_little(struct conversation *c)
{
	if (!nm_engine_progress(c->me->engine))
		sleep_a_little(c->me->engine);
	take_completions(c);
	if (nm_clock_ns() > c->deadline)
		c->end = TALK_HUNG;
}

/* Until everything that was started has ended, well or not. */
static void finish(struct conversation *c)
{
	while (c->nr_due && c->end != TALK_HUNG && c->end != TALK_MIXED)
		wait_a_little(c);
}

/* Count the outcome of a call. True: call again. */
static bool refused(struct conversation *c, struct message *m, int err)
{
	if (err == -EAGAIN && c->end == TALK_GOOD) {
		wait_a_little(c);
		return c->end == TALK_GOOD;
	}
	if (err)
		m->done = true;
	else
		c->nr_due++;
	if (err && c->end == TALK_GOOD)
		c->end = TALK_LOST;
	return false;
}

static void start(struct conversation *c, struct message *m, bool is_send, uint64_t tag)
{
	struct iovec iov = {m->bytes, m->size};
	const struct nm_message message = {
		.iov = &iov,
		.nr_iov = 1,
		.peer = c->peer,
		.tag = tag,
		.context = m,
		.flags =
			NM_TAGGED | NM_COMPLETION | (is_send && tag % 2 ? NM_DELIVERY_COMPLETE : 0),
	};
	int err;

	m->done = false;
	do {
		err = is_send ? nm_engine_send(c->me->engine, &message) :
				nm_engine_recv(c->me->engine, &message);
	} while (refused(c, m, err));
}

static void messages(struct conversation *c, const struct nm_address *other, unsigned int round)
{
	unsigned int i;

	for (i = 0; i < NR_SIZES; i++) {
		memset(c->in[i].bytes, 0, sizes[i]);
		fill(c->out[i].bytes, sizes[i], &c->me->address.who, round * NR_SIZES + i);
		start(c, &c->in[i], false, round * NR_SIZES + i);
	}
	for (i = 0; i < NR_SIZES; i++)
		start(c, &c->out[i], true, round * NR_SIZES + i);
	finish(c);
	for (i = 0; i < NR_SIZES && c->end == TALK_GOOD; i++)
		if (!is_filled(c->in[i].bytes, sizes[i], &other->who, round * NR_SIZES + i))
			c->end = TALK_MIXED;
}

static void access_memory(struct conversation *c, size_t size, bool is_read)
{
	struct iovec iov = {c->access.bytes, size};
	const struct nm_rma rma = {
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.len = size, .key = 1}},
		.nr_remote = 1,
		.peer = c->peer,
		.flags = NM_COMPLETION,
		.context = &c->access,
	};
	int err;

	c->access.done = false;
	do {
		err = is_read ? nm_engine_read(c->me->engine, &rma) :
				nm_engine_write(c->me->engine, &rma);
	} while (refused(c, &c->access, err));
	finish(c);
}

/* Put and get back; nobody else writes there. */
static void accesses(struct conversation *c, size_t size)
{
	fill(c->access.bytes, size, &c->me->address.who, 77);
	access_memory(c, size, false);
	memset(c->access.bytes, 0, size);
	if (c->end == TALK_GOOD)
		access_memory(c, size, true);
	if (c->end == TALK_GOOD && !is_filled(c->access.bytes, size, &c->me->address.who, 77))
		c->end = TALK_MIXED;
}

static void fetch_and_add(struct conversation *c, unsigned int nth)
{
	uint64_t one = 1, before = 0;
	struct iovec operand = {&one, 8}, result = {&before, 8};
	const struct nm_atomic atomic = {
		.operand = &operand,
		.nr_operand = 1,
		.result = &result,
		.nr_result = 1,
		.remote = {{.address = SHARED - 8 * (1 + c->me->number), .len = 8, .key = 1}},
		.nr_remote = 1,
		.datatype = NM_UINT64,
		.op = NM_SUM,
		.peer = c->peer,
		.flags = NM_COMPLETION,
		.context = &c->access,
	};
	int err;

	c->access.done = false;
	do {
		err = nm_engine_atomic(c->me->engine, &atomic);
	} while (refused(c, &c->access, err));
	finish(c);
	if (c->end == TALK_GOOD && before != nth)
		c->end = TALK_MIXED;
}

enum talk_end talk(struct talker *me, const struct nm_address *other, unsigned int nth)
{
	struct conversation *c = calloc(1, sizeof(*c));
	enum talk_end end;
	unsigned int i;

	c->me = me;
	c->peer = nm_engine_peer(me->engine, other);
	c->deadline = nm_clock_ns() + PATIENCE_NS;
	c->access.bytes = calloc(1, SHARED);
	for (i = 0; i < NR_SIZES; i++) {
		c->in[i] = (struct message){calloc(1, sizes[i]), sizes[i], false};
		c->out[i] = (struct message){calloc(1, sizes[i]), sizes[i], false};
	}
	for (i = 0; i < ROUNDS && c->end == TALK_GOOD; i++)
		messages(c, other, i);
	if (c->end == TALK_GOOD)
		accesses(c, 1000);
	if (c->end == TALK_GOOD)
		accesses(c, 200000);
	if (c->end == TALK_GOOD)
		fetch_and_add(c, nth);
	/* Nobody leaves while the other still has something to do. */
	if (c->end == TALK_GOOD)
		messages(c, other, ROUNDS);
	end = c->end;
	for (i = 0; i < NR_SIZES; i++) {
		free(c->in[i].bytes);
		free(c->out[i].bytes);
	}
	free(c->access.bytes);
	free(c);
	return end;
}

struct view {
	const struct nm_identity *who;
	enum nm_channel channel;
	bool is_so;
};

static void compare(void *arg, const struct nm_peer_facts *facts)
{
	struct view *view = arg;

	if (nm_identity_equal(&facts->who, view->who))
		view->is_so = facts->connected && facts->link.channel == view->channel;
}

bool talks_on(struct talker *me, const struct nm_identity *other, enum nm_channel channel)
{
	struct view view = {other, channel, false};

	nm_engine_visit_peers(me->engine, compare, &view);
	return view.is_so;
}

bool talk_until_gone(struct talker *me, const struct nm_address *other)
{
	struct conversation c = {.me = me, .deadline = nm_clock_ns() + PATIENCE_NS};
	struct message in = {.size = 0};

	c.peer = nm_engine_peer(me->engine, other);
	start(&c, &in, false, 0);
	finish(&c);
	return c.end == TALK_LOST;
}
