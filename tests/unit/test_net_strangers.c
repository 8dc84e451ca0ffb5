/* SPDX-License-Identifier: Apache-2.0 */
/* Sources that the program does not know are answered, and each refusal is said. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/protocol.h"
#include "forger.h"

/* Far more than ANSWERED_NS, and less than STRANGER_NS, after which any place is free (proof.c). */
#define SOON_NS (4 * NM_NS_PER_S)

static struct forger *crowd[NM_NET_STRANGERS];

/* As many strangers as there are places each knock once and then compute. */
static void crowd_knocks(struct node *at)
{
	for (unsigned int i = 0; i < NM_NET_STRANGERS; i++) {
		crowd[i] = forger_create();
		forge_knock(crowd[i], at, &crowd[i]->address, i);
	}
}

static void crowd_leaves(void)
{
	for (unsigned int i = 0; i < NM_NET_STRANGERS; i++)
		forger_destroy(crowd[i]);
}

static void link_to(struct node *from, const struct node *to)
{
	struct nm_reason why;

	NM_CHECK_EQ(from->transport->ops->connect(from->transport, &to->address,
						  (struct nm_peer *)from, &from->link, &why),
		    0);
}

/* How long a late stranger waits for its answer, behind a crowd. */
static uint64_t wait_behind_crowd(void)
{
	struct node *b = node_create(&net_fixture);
	struct forger *late = forger_create();
	uint64_t begin = nm_clock_ns(), end;

	crowd_knocks(b);
	do {
		forge_knock(late, b, &late->address, 77);
		forger_wait(late, b);
	} while (!late->heard);
	end = nm_clock_ns();
	NM_CHECK_EQ(late->last.kind, NM_NET_TOKEN);
	crowd_leaves();
	forger_destroy(late);
	node_destroy(b);
	return end - begin;
}

NM_TEST(strangers_that_knock_and_compute_hold_no_place)
{
	unsigned int nr = 0;

	/* The machine may stand still for that time once. */
	while (wait_behind_crowd() > SOON_NS)
		NM_CHECK(++nr < 3);
}

/* The place of A is another's when A reads the answer. */
NM_TEST_WITHIN(a_token_outlives_its_place, 20)
{
	struct node *a = node_create(&net_fixture), *b = node_create(&net_fixture);
	const struct nm_net_peer *place = &net_of(b)->strangers[NM_NET_STRANGERS - 1];

	link_to(a, b);
	while (!place->knocked_ns) {
		NM_CHECK_EQ(node_send(a, 1, 64), -EAGAIN);
		node_progress(a);
		node_progress(b);
	}
	NM_CHECK(nm_net_same_name(&place->address, &a->address));
	nm_test_sleep_ms(100);
	crowd_knocks(b);
	NODE_UNTIL(b, !nm_net_same_name(&place->address, &a->address));
	while (node_send(a, 5, 64) == -EAGAIN)
		nodes_settle(a, b);
	NODE_UNTIL(b, b->nr_packets == 1);
	NM_CHECK(bytes_match(b->payload, 64, 5));
	crowd_leaves();
	node_destroy(a);
	node_destroy(b);
}

/* A has a token for B, and has not greeted it. */
struct pair {
	struct node *a, *b;
};

static struct pair meet(void)
{
	struct pair pair = {node_create(&net_fixture), node_create(&net_fixture)};

	link_to(pair.a, pair.b);
	while (!net_of(pair.a)->peers.all->has_token) {
		NM_CHECK_EQ(node_send(pair.a, 1, 64), -EAGAIN);
		nodes_settle(pair.a, pair.b);
	}
	return pair;
}

static void part(struct pair *pair)
{
	node_destroy(pair->a);
	node_destroy(pair->b);
}

/* A greets B and sends to it, and learns that it was refused. */
static void a_is_refused(struct pair *pair, const char *words)
{
	unsigned int nr_up = pair->b->nr_up;

	NM_CHECK_EQ(node_send(pair->a, 2, 64), 0);
	while (!pair->a->nr_down)
		if (!(node_progress(pair->a) + node_progress(pair->b)))
			nm_test_sleep_ms(1);
	NM_CHECK_EQ(pair->a->down_err, -ECONNRESET);
	NM_CHECK_HAS(pair->a->down_why.text, words);
	NM_CHECK_EQ(node_send(pair->a, 3, 64), -EPIPE);
	NM_CHECK_EQ(pair->b->nr_up, nr_up);
	NM_CHECK_EQ(pair->b->nr_packets, 0);
	NM_CHECK_EQ(net_of(pair->b)->nr_owed, 0);
}

/* B believes that NR other sources of unknown addresses are there. */
static void fill_up(struct node *b, uint32_t nr)
{
	net_of(b)->nr_unknown += nr;
	net_of(b)->nr_unknown_ever += nr;
}

NM_TEST(a_greeting_without_room_is_refused_in_words)
{
	struct pair pair = meet();

	fill_up(pair.b, 8192);
	a_is_refused(&pair, "refused the greeting");
	part(&pair);
}

NM_TEST(a_greeting_to_who_has_given_it_up_is_refused_in_words)
{
	struct pair pair = meet();

	link_to(pair.b, pair.a);
	nm_net_lose(net_of(pair.b), net_of(pair.b)->peers.all, -ECONNRESET, "a send failed");
	a_is_refused(&pair, "refused the greeting");
	part(&pair);
}

NM_TEST(a_greeting_behind_that_of_an_impostor_is_refused_in_words)
{
	struct pair pair = meet();
	struct forger *forger = forger_create();
	struct nm_address claimed = forger->address;

	claimed.who = pair.a->address.who;
	forge_hello(forger, pair.b, &claimed, forger_ask_token(forger, pair.b, &claimed));
	NODE_UNTIL(pair.b, pair.b->nr_up == 1);
	a_is_refused(&pair, "refused the greeting");
	forger_destroy(forger);
	part(&pair);
}

/* B has room for one, which the forger takes until END ends it. */
static void place_of_one_who(void (*end)(struct forger *forger, struct node *b, uint64_t token))
{
	struct node *a = node_create(&net_fixture), *b = node_create(&net_fixture);
	struct forger *forger = forger_create();
	uint64_t token;

	fill_up(b, 4095);
	token = forger_ask_token(forger, b, &forger->address);
	forge_hello(forger, b, &forger->address, token);
	NODE_UNTIL(b, b->nr_up == 1);
	link_to(a, b);
	/* It would lose what it sends, so it waits. */
	for (uint64_t until = nm_clock_ns() + FORGER_QUIET_MS * NM_NS_PER_MS;
	     nm_clock_ns() < until;) {
		NM_CHECK_EQ(node_send(a, 1, 64), -EAGAIN);
		nodes_settle(a, b);
	}
	end(forger, b, token);
	NODE_UNTIL(b, b->nr_down == 1);
	b->nr_down = 0;
	while (node_send(a, 5, 64) == -EAGAIN)
		nodes_settle(a, b);
	NODE_UNTIL(b, b->nr_packets == 1);
	NM_CHECK(nm_identity_equal(&b->source, &a->address.who));
	forger_destroy(forger);
	node_destroy(a);
	node_destroy(b);
}

static void close_normally(struct forger *forger, struct node *b, uint64_t token)
{
	const struct nm_net_header bye = {
		.kind = NM_NET_BYE,
		.sequence = 1,
		.source = forger->address.who,
		.token = token,
	};

	forge(forger, b, bye, NULL);
}

static void break_the_rules(struct forger *forger, struct node *b, uint64_t token)
{
	const struct nm_net_header late = {
		.kind = NM_NET_PING,
		.sequence = 2,
		.source = forger->address.who,
		.token = token,
	};

	forge(forger, b, late, NULL);
}

NM_TEST(who_closes_makes_room)
{
	place_of_one_who(close_normally);
}

NM_TEST(who_dies_makes_room)
{
	place_of_one_who(break_the_rules);
}

/* An engine over memory and network, whose program knows no address but those it sends to. */
struct rank {
	struct node net; /* its transport and its address */
	struct nm_engine *engine;
	struct nm_cqueue *cq;
	struct nm_memory_table *memory;
};

static uint64_t know_nobody(void *arg, const struct nm_identity *who,
			    struct nm_address *ret_address)
{
	(void)arg;
	(void)who;
	(void)ret_address;
	return UINT64_MAX;
}

static struct rank *rank_create(void)
{
	struct rank *rank = calloc(1, sizeof(*rank));
	struct nm_engine_config config = {.resolve = know_nobody};
	struct nm_engine_queues queues = {0};
	struct nm_transport *shm;
	struct nm_reason why;

	NM_CHECK(rank != NULL);
	setenv("NEARMETAL_RUNDIR", nm_test_dir(), 0);
	rank->net.address.version = NM_ADDRESS_VERSION;
	NM_CHECK_EQ(nm_identity_create(&rank->net.address.who), 0);
	NM_CHECK_EQ(nm_memory_table_create(&rank->memory), 0);
	NM_CHECK_EQ(nm_cqueue_create(0, &rank->cq), 0);
	config.memory = rank->memory;
	config.who = rank->net.address.who;
	NM_CHECK_EQ(nm_engine_create(&config, &rank->engine), 0);
	NM_CHECK_EQ(
		nm_shm_kind.create(nm_engine_sink(rank->engine), &rank->net.address, &shm, &why),
		0);
	nm_engine_set_identity(rank->engine, &rank->net.address.who);
	NM_CHECK_EQ(net_fixture.create(nm_engine_sink(rank->engine), &rank->net.address,
				       &rank->net.transport, &why),
		    0);
	NM_CHECK_EQ(nm_engine_add_transport(rank->engine, shm), 0);
	NM_CHECK_EQ(nm_engine_add_transport(rank->engine, rank->net.transport), 0);
	queues.transmit = queues.receive = rank->cq;
	nm_engine_bind(rank->engine, &queues);
	return rank;
}

static void rank_destroy(struct rank *rank)
{
	nm_engine_destroy(rank->engine);
	nm_cqueue_destroy(rank->cq);
	nm_memory_table_destroy(rank->memory);
	free(rank);
}

static void rank_recv(struct rank *rank, void *buf, size_t len, uint64_t tag)
{
	struct iovec iov = {buf, len};
	const struct nm_message m = {
		.iov = &iov,
		.nr_iov = 1,
		.tag = tag,
		.flags = NM_TAGGED | NM_COMPLETION,
	};

	NM_CHECK_EQ(nm_engine_recv(rank->engine, &m), 0);
}

/* B's next completion, while X and the forger go on, too. */
static struct nm_completion await(struct rank *b, struct rank *x, struct forger *forger)
{
	uint64_t end = nm_clock_ns() + 20 * NM_NS_PER_S;
	struct nm_completion completion;

	while (nm_cqueue_empty(b->cq)) {
		NM_CHECK(nm_clock_ns() < end);
		if (!(nm_engine_progress(b->engine) + nm_engine_progress(x->engine) +
		      forger_step(forger)))
			nm_test_sleep_ms(1);
	}
	completion = *nm_cqueue_front(b->cq);
	nm_cqueue_pop(b->cq);
	return completion;
}

/* B receives a message that X sends now, over memory. */
static void x_is_heard(struct rank *b, struct rank *x, struct forger *forger, uint64_t tag)
{
	char out[4] = "abc", in[4] = "";
	struct iovec iov = {out, 4};
	const struct nm_message m = {
		.iov = &iov,
		.nr_iov = 1,
		.peer = nm_engine_peer(x->engine, &b->net.address),
		.tag = tag,
		.flags = NM_TAGGED,
	};
	struct nm_completion completion;

	rank_recv(b, in, 4, tag);
	while (nm_engine_send(x->engine, &m) == -EAGAIN)
		nm_engine_progress(b->engine);
	completion = await(b, x, forger);
	NM_CHECK_EQ(completion.err, 0);
	NM_CHECK_STR(in, "abc");
}

/* The forger's own address, with the identity of X. */
static struct nm_address claim(const struct forger *forger, const struct rank *x)
{
	struct nm_address claimed = forger->address;

	claimed.who = x->net.address.who;
	return claimed;
}

/* A message from the forger in the name of WHO that wants an answer. */
static void forge_message(struct forger *forger, struct rank *b, const struct nm_identity *who,
			  uint64_t token, uint32_t sequence)
{
	const struct nm_wire_id id = {.id = 1};
	const struct nm_net_header packet = {
		.kind = NM_NET_PACKET,
		.op = NM_OP_EAGER,
		.flags = NM_PKT_TAGGED | NM_PKT_ACK,
		.len = sizeof(id),
		.sequence = sequence,
		.tag = 13,
		.source = *who,
		.token = token,
	};

	forge(forger, &b->net, packet, &id);
}

NM_TEST(who_claims_to_be_a_neighbour_is_not_answered)
{
	struct rank *b = rank_create(), *x = rank_create();
	struct forger *forger = forger_create();
	struct nm_address claimed = claim(forger, x);
	const struct net *net = net_of(&b->net);

	x_is_heard(b, x, forger, 1);
	forge_knock(forger, &b->net, &claimed, 5);
	forger_wait(forger, &b->net);
	NM_CHECK(!forger->heard);
	/* Even with the right token, from before X was met. */
	forge_hello(forger, &b->net, &claimed, nm_net_token(net->key, &claimed));
	forge_message(forger, b, &claimed.who, nm_net_token(net->key, &claimed), 3);
	forger_wait(forger, &b->net);
	NM_CHECK(!forger->heard);
	NM_CHECK_EQ(net->peers.nr, 0);
	x_is_heard(b, x, forger, 2);
	forger_destroy(forger);
	rank_destroy(x);
	rank_destroy(b);
}

NM_TEST(who_is_met_in_memory_puts_out_its_impostor)
{
	struct rank *b = rank_create(), *x = rank_create();
	struct forger *forger = forger_create();
	struct nm_address claimed = claim(forger, x);
	uint64_t token = forger_ask_token(forger, &b->net, &claimed);
	char in[8];

	forge_hello(forger, &b->net, &claimed, token);
	forge_message(forger, b, &claimed.who, token, 1);
	forger_wait(forger, &b->net);
	NM_CHECK_EQ(net_of(&b->net)->nr_unknown, 1);
	x_is_heard(b, x, forger, 1);
	NM_CHECK_EQ(net_of(&b->net)->nr_unknown, 0);
	/* It breaks the rules, which ends nothing of X. */
	forge_message(forger, b, &claimed.who, token, 7);
	forger_wait(forger, &b->net);
	x_is_heard(b, x, forger, 2);
	/* What it had sent has gone with it. */
	rank_recv(b, in, sizeof(in), 13);
	forger_wait(forger, &b->net);
	NM_CHECK(nm_cqueue_empty(b->cq));
	forger_destroy(forger);
	rank_destroy(x);
	rank_destroy(b);
}

NM_TEST(an_impostor_that_has_ended_keeps_no_neighbour_out)
{
	struct rank *b = rank_create(), *x = rank_create();
	struct forger *forger = forger_create();
	struct nm_address claimed = claim(forger, x);
	uint64_t token = forger_ask_token(forger, &b->net, &claimed);

	forge_hello(forger, &b->net, &claimed, token);
	forge_message(forger, b, &claimed.who, token, 7);
	forger_wait(forger, &b->net);
	NM_CHECK_EQ(net_of(&b->net)->peers.nr, 1);
	NM_CHECK_EQ(net_of(&b->net)->nr_unknown, 0);
	x_is_heard(b, x, forger, 1);
	forger_destroy(forger);
	rank_destroy(x);
	rank_destroy(b);
}

NM_TEST_WITHIN(answers_to_an_unknown_source_go_back_on_its_channel, 10)
{
	struct rank *b = rank_create(), *x = rank_create();
	struct forger *forger = forger_create();
	struct nm_address claimed = claim(forger, x);
	uint64_t token = forger_ask_token(forger, &b->net, &claimed);
	char in[8];

	rank_recv(b, in, sizeof(in), 13);
	forge_hello(forger, &b->net, &claimed, token);
	forge_message(forger, b, &claimed.who, token, 1);
	NM_CHECK_EQ(await(b, x, forger).err, 0);
	while (forger->last.kind != NM_NET_PACKET)
		if (!(nm_engine_progress(b->engine) + nm_engine_progress(x->engine) +
		      forger_step(forger)))
			nm_test_sleep_ms(1);
	NM_CHECK_EQ(forger->last.op, NM_OP_ACK);
	forger_destroy(forger);
	rank_destroy(x);
	rank_destroy(b);
}
