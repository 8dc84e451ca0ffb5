/* SPDX-License-Identifier: Apache-2.0 */
#include "moving.h"

#include <stdlib.h>
#include <string.h>

#include "engine/atomic.h"
#include "engine/internal.h"

/* In a slot, over slots, in a chunk, in many chunks. */
static const size_t sizes[] = {8, 100, 3000, 12000, 300000, 40};
enum { NR_SIZES = 6, BIG = 300000, SLOTS = 4, KEY = 5, AREA = 100000, QUIET = 20000 };

struct slot {
	bool used;
	char bytes[BIG];
};

/* What an endpoint does in the memory of another one: put, get, add, again and again. */
struct access {
	unsigned int phase, done;
	bool is_under_way;
	uint64_t one, before;
	char bytes[AREA];
};

static struct mover {
	struct near_node *node;
	struct nm_memory_region *region;
	char *area; /* a part for each other one: AREA bytes and a counter */
	uint32_t sent[MOVING_MAX], taken[MOVING_MAX];
	bool is_posted;
	char in[BIG];
	struct slot slots[SLOTS];
	struct access accesses[MOVING_MAX];
} * movers;
static unsigned int nr_movers;

/* In one copy, and not byte by byte, which ThreadSanitizer makes slow: the n-th byte is 3 * n. */
static char pattern[256 + BIG];

static const char *pattern_of(unsigned int from, uint32_t number)
{
	/* 3 * 171 is 1, modulo 256. */
	return pattern + (from * 101 + number * 7) * 171 % 256;
}

static void fill(char *bytes, unsigned int from, uint32_t number, size_t size)
{
	memcpy(bytes, pattern_of(from, number), size);
}

static bool is_filled(const char *bytes, unsigned int from, uint32_t number, size_t size)
{
	return memcmp(bytes, pattern_of(from, number), size) == 0;
}

static size_t area_of(unsigned int from)
{
	return from * (AREA + 8);
}

/* net_fixture.c, in programs that have it. */
extern const struct fixture net_fixture __attribute__((weak));

static void add_net(struct near_node *node)
{
	struct nm_transport *net;
	struct nm_reason why = {""};

	if (net_fixture.create(nm_engine_sink(node->engine), &node->address, &net, &why))
		nm_test_fail(__FILE__, __LINE__, "net: %s", why.text);
	NM_CHECK_EQ(nm_engine_add_transport(node->engine, net), 0);
}

void moving_create(unsigned int nr)
{
	bool is_real = &net_fixture;

	for (size_t i = 0; i < sizeof(pattern); i++)
		pattern[i] = (char)(i * 3);
	movers = calloc(nr, sizeof(*movers));
	nr_movers = nr;
	for (unsigned int i = 0; i < nr; i++) {
		struct mover *m = &movers[i];
		struct iovec iov;
		const struct nm_memory_attr attr = {
			.iov = &iov,
			.nr_iov = 1,
			.access = NM_REMOTE_READ | NM_REMOTE_WRITE,
			.key = KEY,
		};

		m->node = near_create_on(i, !is_real);
		if (is_real)
			add_net(m->node);
		m->area = calloc(MOVING_MAX, AREA + 8);
		iov = (struct iovec){m->area, MOVING_MAX * (AREA + 8)};
		NM_CHECK_EQ(nm_memory_register(m->node->memory, &attr, &m->region), 0);
	}
}

void moving_destroy(void)
{
	for (unsigned int i = 0; i < nr_movers; i++) {
		near_destroy(movers[i].node);
		free(movers[i].area);
	}
	free(movers);
}

struct near_node *moving_node(unsigned int i)
{
	return movers[i].node;
}

static void post(struct mover *m)
{
	struct iovec iov = {m->in, BIG};
	const struct nm_message message = {
		.iov = &iov,
		.nr_iov = 1,
		.ignore = UINT64_MAX,
		.context = m->in,
		.flags = NM_TAGGED | NM_COMPLETION,
	};

	if (!m->is_posted)
		NM_CHECK_EQ(nm_engine_recv(m->node->engine, &message), 0);
	m->is_posted = true;
}

static void take_message(struct mover *m, const struct nm_completion *c)
{
	unsigned int from = (unsigned int)(c->tag >> 32);
	uint32_t number = (uint32_t)c->tag;

	NM_CHECK(c->source == near_peer(m->node, movers[from].node));
	NM_CHECK_EQ(number, m->taken[from]);
	NM_CHECK_EQ(c->len, sizes[number % NR_SIZES]);
	NM_CHECK(is_filled(m->in, from, number, c->len));
	m->taken[from]++;
	m->is_posted = false;
}

static void end_access(struct access *a, unsigned int me)
{
	if (a->phase % 3 == 1)
		NM_CHECK(is_filled(a->bytes, me, a->done, AREA));
	if (a->phase % 3 == 2)
		NM_CHECK_EQ(a->before, a->done++);
	a->phase++;
	a->is_under_way = false;
}

static void take_completions(unsigned int me)
{
	struct mover *m = &movers[me];

	while (!nm_cqueue_empty(m->node->cq)) {
		struct nm_completion c = *nm_cqueue_front(m->node->cq);

		nm_cqueue_pop(m->node->cq);
		NM_CHECK_EQ(c.err, 0);
		if (c.context == m->in) {
			take_message(m, &c);
			continue;
		}
		for (unsigned int i = 0; i < nr_movers; i++)
			if (c.context == &m->accesses[i])
				end_access(&m->accesses[i], me);
		for (unsigned int i = 0; i < SLOTS; i++)
			if (c.context == &m->slots[i])
				m->slots[i].used = false;
	}
}

static void send_to(unsigned int me, unsigned int to)
{
	struct mover *m = &movers[me];
	uint32_t number = m->sent[to];
	struct slot *slot = NULL;
	uint64_t how = number % 3 == 0 ? NM_DELIVERY_COMPLETE :
		       number % 3 == 1 ? NM_TRANSMIT_COMPLETE :
					 0;
	int err;

	for (unsigned int i = 0; i < SLOTS && !slot; i++)
		slot = m->slots[i].used ? NULL : &m->slots[i];
	if (!slot)
		return;
	fill(slot->bytes, me, number, sizes[number % NR_SIZES]);
	err = near_send(m->node, movers[to].node, slot->bytes, sizes[number % NR_SIZES],
			(uint64_t)me << 32 | number, NM_COMPLETION | how, slot);
	if (err == -EAGAIN)
		return;
	NM_CHECK_EQ(err, 0);
	slot->used = true;
	m->sent[to]++;
}

static int begin_access(struct mover *m, unsigned int me, unsigned int to)
{
	struct access *a = &m->accesses[to];
	struct nm_peer *peer = near_peer(m->node, movers[to].node);
	struct iovec iov = {a->bytes, AREA}, operand = {&a->one, 8}, result = {&a->before, 8};
	const struct nm_rma rma = {
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.address = area_of(me), .len = AREA, .key = KEY}},
		.nr_remote = 1,
		.peer = peer,
		.flags = NM_COMPLETION,
		.context = a,
	};
	const struct nm_atomic atomic = {
		.operand = &operand,
		.nr_operand = 1,
		.result = &result,
		.nr_result = 1,
		.remote = {{.address = area_of(me) + AREA, .len = 8, .key = KEY}},
		.nr_remote = 1,
		.datatype = NM_UINT64,
		.op = NM_SUM,
		.peer = peer,
		.flags = NM_COMPLETION,
		.context = a,
	};

	a->one = 1;
	if (a->phase % 3 == 2)
		return nm_engine_atomic(m->node->engine, &atomic);
	if (a->phase % 3 == 1) {
		memset(a->bytes, 0, AREA);
		return nm_engine_read(m->node->engine, &rma);
	}
	fill(a->bytes, me, a->done, AREA);
	return nm_engine_write(m->node->engine, &rma);
}

static void access_memory(unsigned int me, unsigned int to)
{
	struct access *a = &movers[me].accesses[to];
	int err;

	/* A message may wait until nothing of this endpoint is under way to it. */
	if (a->is_under_way || a->phase >= movers[me].sent[to])
		return;
	err = begin_access(&movers[me], me, to);
	if (err == -EAGAIN)
		return;
	NM_CHECK_EQ(err, 0);
	a->is_under_way = true;
}

static bool is_busy(const struct mover *m)
{
	bool is_busy = false;

	for (unsigned int i = 0; i < SLOTS; i++)
		is_busy |= m->slots[i].used;
	for (unsigned int i = 0; i < nr_movers; i++)
		is_busy |= m->accesses[i].is_under_way;
	return is_busy;
}

/* One turn of ME. Returns true if it has more to do. */
static bool turn(unsigned int me, const uint32_t limits[MOVING_MAX])
{
	struct mover *m = &movers[me];
	bool has_more = false;

	post(m);
	for (unsigned int to = 0; to < nr_movers; to++) {
		if (to == me)
			continue;
		if (m->sent[to] < limits[me]) {
			send_to(me, to);
			access_memory(me, to);
		}
		has_more |= m->sent[to] < limits[me] || m->taken[to] < limits[to];
	}
	nm_engine_progress(m->node->engine);
	take_completions(me);
	return has_more || is_busy(m);
}

static uint32_t count(void)
{
	uint32_t nr = 0;

	for (unsigned int i = 0; i < nr_movers; i++)
		for (unsigned int j = 0; j < nr_movers; j++)
			nr += movers[i].sent[j] + movers[i].taken[j] + movers[i].accesses[j].phase;
	return nr;
}

void moving_talk(uint32_t nr, void (*meanwhile)(unsigned int round))
{
	uint32_t limits[MOVING_MAX], before = count();
	bool has_more = true;

	for (unsigned int i = 0; i < nr_movers; i++)
		limits[i] = movers[i].sent[i ? 0 : 1] + nr;
	for (unsigned int round = 0, quiet = 0; has_more; round++) {
		has_more = false;
		for (unsigned int i = 0; i < nr_movers; i++)
			has_more |= turn(i, limits);
		if (meanwhile)
			meanwhile(round);
		quiet = before == count() ? quiet + 1 : 0;
		before = count();
		if (quiet > 1000)
			nm_test_sleep_ms(1);
		if (quiet > QUIET)
			nm_test_fail(__FILE__, __LINE__, "nothing moves any more");
	}
}

uint64_t moving_sent(unsigned int from, unsigned int to, enum nm_channel channel)
{
	return near_facts(movers[from].node, movers[to].node).sent[channel].messages;
}

void moving_message(unsigned int from, unsigned int to, const char *text)
{
	char in[16] = "";

	NM_CHECK_EQ(near_recv(moving_node(to), moving_node(from), in, sizeof(in), 3, "in"), 0);
	while (near_send(moving_node(from), moving_node(to), text, strlen(text), 3, 0, NULL))
		if (!near_step(moving_node(from), moving_node(to), NULL))
			nm_test_sleep_ms(1);
	NM_CHECK_EQ(near_wait(moving_node(to), moving_node(from), NULL).err, 0);
	NM_CHECK_STR(in, text);
}

enum nm_channel moving_channel(unsigned int from, unsigned int to)
{
	return near_facts(movers[from].node, movers[to].node).link.channel;
}

bool moving_is_on(unsigned int a, unsigned int b, enum nm_channel channel)
{
	return moving_channel(a, b) == channel && moving_channel(b, a) == channel;
}

void moving_talk_until_on(unsigned int a, unsigned int b, enum nm_channel channel)
{
	while (!moving_is_on(a, b, channel))
		moving_talk(1, NULL);
}

void moving_forge(unsigned int at, unsigned int from, enum nm_channel channel,
		  const struct nm_packet *packet, const void *payload)
{
	struct nm_transport *t = movers[at].node->engine->transports[channel];

	t->sink.deliver(t, near_peer(movers[at].node, movers[from].node), packet, payload);
}

void moving_end_net(unsigned int at, unsigned int from, int err)
{
	struct nm_transport *t = movers[at].node->engine->transports[NM_CHANNEL_NET];
	const struct nm_reason why = {"a test"};

	t->sink.source_down(t, near_peer(movers[at].node, movers[from].node), err, &why);
}
