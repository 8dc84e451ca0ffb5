/* SPDX-License-Identifier: Apache-2.0 */
/* Sources that the program does not know are answered, and each refusal is said. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "forger.h"

/* Far more than a place is held, and less than it was when strangers could hold all of them. */
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

NM_TEST(strangers_that_knock_and_compute_hold_no_place)
{
	struct node *b = node_create(&net_fixture);
	struct forger *late = forger_create();
	uint64_t begin = nm_clock_ns();

	crowd_knocks(b);
	/* None had to knock twice. */
	forger_wait(late, b);
	for (unsigned int i = 0; i < NM_NET_STRANGERS; i++)
		NM_CHECK(!net_of(b)->strangers[i].first_knock_ns ||
			 net_of(b)->strangers[i].knocked_ns);
	do {
		forge_knock(late, b, &late->address, 77);
		forger_wait(late, b);
	} while (!late->heard && nm_clock_ns() - begin < SOON_NS);
	NM_CHECK(late->heard);
	NM_CHECK_EQ(late->last.kind, NM_NET_TOKEN);
	crowd_leaves();
	forger_destroy(late);
	node_destroy(b);
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
