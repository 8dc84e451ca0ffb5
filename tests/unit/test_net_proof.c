/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of the network channel prove where they are. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "forger.h"

/* A has a link to B, on which nothing was sent yet. */
struct scene {
	struct node *a, *b;
	struct forger *forger;
};

static void link_nodes(struct node *from, struct node *to)
{
	struct nm_reason why;

	NM_CHECK_EQ(from->transport->ops->connect(from->transport, &to->address,
						  (struct nm_peer *)from, &from->link, &why),
		    0);
}

static struct scene scene_create(void)
{
	struct scene scene;

	scene.a = node_create(&net_fixture);
	scene.b = node_create(&net_fixture);
	scene.forger = forger_create();
	link_nodes(scene.a, scene.b);
	return scene;
}

static void step_both(const struct scene *scene)
{
	if (!(node_progress(scene->a) + node_progress(scene->b)))
		nm_test_sleep_ms(1);
}

static void send_soon(const struct scene *scene, uint64_t seed)
{
	int err;

	while ((err = node_send(scene->a, seed, 64)) == -EAGAIN)
		step_both(scene);
	NM_CHECK_EQ(err, 0);
}

/* A's messages arrive, in order and whole, and it is still there. */
static void a_is_heard(const struct scene *scene)
{
	uint64_t before = scene->b->nr_packets;
	unsigned int i;

	for (i = 1; i <= 3; i++) {
		send_soon(scene, 100 + i);
		while (scene->b->nr_packets < before + i)
			step_both(scene);
		NM_CHECK_EQ(scene->b->last.tag, 100 + i);
		NM_CHECK(bytes_match(scene->b->payload, 64, 100 + i));
	}
	NM_CHECK(nm_identity_equal(&scene->b->source, &scene->a->address.who));
	NM_CHECK_EQ(scene->b->nr_down, 0);
}

static void scene_end(struct scene *scene)
{
	forger_destroy(scene->forger);
	node_destroy(scene->a);
	node_destroy(scene->b);
}

NM_TEST(tokens_are_of_one_address_and_one_endpoint)
{
	const uint8_t key[NM_SIPHASH_KEY_LEN] = {1}, other_key[NM_SIPHASH_KEY_LEN] = {2};
	struct nm_address a = {.inner_len = 8, .who.id = {1}, .inner = {1, 2, 3, 4, 5, 6, 7, 8}};
	struct nm_address b = a;
	uint64_t token = nm_net_token(key, &a);

	NM_CHECK(token != nm_net_token(other_key, &a));
	NM_CHECK(token != nm_net_nonce(key, &a));
	b.inner[20] = 9; /* behind the name */
	NM_CHECK_EQ(nm_net_token(key, &b), token);
	NM_CHECK(nm_net_same_name(&a, &b));
	b.inner[7] = 9;
	NM_CHECK(nm_net_token(key, &b) != token);
	NM_CHECK(!nm_net_same_name(&a, &b));
	b = a;
	b.inner_len = 7;
	NM_CHECK(nm_net_token(key, &b) != token);
	NM_CHECK(!nm_net_same_name(&a, &b));
	b = a;
	b.who.place[7] = 1;
	NM_CHECK(nm_net_token(key, &b) != token);
}

NM_TEST(greetings_without_a_token_are_dropped)
{
	struct scene scene = scene_create();
	const uint64_t tokens[] = {0, 1, nm_net_token(net_of(scene.a)->key, &scene.a->address)};

	for (unsigned int i = 0; i < NM_ARRAY_SIZE(tokens); i++)
		forge_hello(scene.forger, scene.b, &scene.a->address, tokens[i]);
	forger_wait(scene.forger, scene.b);
	NM_CHECK_EQ(scene.b->nr_up, 0);
	NM_CHECK_EQ(net_of(scene.b)->nr_dropped, NM_ARRAY_SIZE(tokens));
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(messages_in_the_name_of_a_source_end_nothing)
{
	static const uint8_t kinds[] = {NM_NET_PACKET, NM_NET_PING, NM_NET_BYE, NM_NET_BYE_SEEN};
	struct scene scene = scene_create();
	uint64_t nr_packets;

	a_is_heard(&scene);
	nr_packets = scene.b->nr_packets;
	for (uint32_t i = 0; i < 8 * NM_ARRAY_SIZE(kinds); i++) {
		/* The right number is among these. */
		const struct nm_net_header header = {
			.kind = kinds[i / 8],
			.sequence = i % 8,
			.source = scene.a->address.who,
			.token = i % 3 ? i : 0,
		};

		forge(scene.forger, scene.b, header, NULL);
	}
	forger_wait(scene.forger, scene.b);
	NM_CHECK_EQ(scene.b->nr_packets, nr_packets);
	NM_CHECK_EQ(scene.b->nr_down, 0);
	NM_CHECK_EQ(net_of(scene.b)->nr_dropped, 8 * NM_ARRAY_SIZE(kinds));
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(tokens_that_were_not_asked_for_are_dropped)
{
	struct scene scene = scene_create();
	struct nm_net_header header = {
		.kind = NM_NET_TOKEN,
		.source = scene.b->address.who,
		.data = 13,
	};

	/* Before A knocks, and while it waits for the answer. */
	forge(scene.forger, scene.a, header, NULL);
	while (!net_of(scene.a)->peers.all->first_knock_ns) {
		node_progress(scene.b);
		NM_CHECK_EQ(node_send(scene.a, 1, 64), -EAGAIN);
		node_progress(scene.a);
	}
	header.tag = nm_net_nonce(net_of(scene.b)->key, &scene.b->address);
	forge(scene.forger, scene.a, header, NULL);
	forger_wait(scene.forger, scene.a);
	NM_CHECK_EQ(net_of(scene.a)->nr_dropped, 2);
	a_is_heard(&scene);
	/* And when it has one. */
	forge(scene.forger, scene.a, header, NULL);
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(the_answer_goes_to_the_address_that_was_claimed)
{
	struct scene scene = scene_create();

	forge_knock(scene.forger, scene.b, &scene.a->address, 5);
	forger_wait(scene.forger, scene.b);
	NM_CHECK(!scene.forger->heard);
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(a_token_is_good_for_one_name_and_one_greeting)
{
	struct scene scene = scene_create();
	struct forger *forger = scene.forger;
	struct nm_address other = forger->address;
	uint64_t token = forger_ask_token(forger, scene.b, &forger->address);
	uint64_t nr_dropped = net_of(scene.b)->nr_dropped;

	other.who = scene.a->address.who;
	forge_hello(forger, scene.b, &other, token);
	forge_hello(forger, scene.b, &scene.a->address, token);
	forge_hello(forger, scene.a, &forger->address, token);
	forger_wait(forger, scene.b);
	NM_CHECK_EQ(scene.b->nr_up, 0);
	NM_CHECK_EQ(scene.a->nr_up, 0);
	NM_CHECK_EQ(net_of(scene.b)->nr_dropped, nr_dropped + 2);
	forge_hello(forger, scene.b, &forger->address, token);
	forger_wait(forger, scene.b);
	NM_CHECK_EQ(scene.b->nr_up, 1);
	NM_CHECK(nm_identity_equal(&scene.b->source, &forger->address.who));
	/* A replay. */
	forge_hello(forger, scene.b, &forger->address, token);
	forger_wait(forger, scene.b);
	NM_CHECK_EQ(scene.b->nr_up, 1);
	NM_CHECK_EQ(scene.b->nr_down, 0);
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(a_known_identity_is_refused_at_another_address)
{
	struct scene scene = scene_create();
	struct nm_address claimed = scene.forger->address;

	scene.b->known = &scene.a->address;
	claimed.who = scene.a->address.who;
	forge_knock(scene.forger, scene.b, &claimed, 5);
	forger_wait(scene.forger, scene.b);
	NM_CHECK(!scene.forger->heard);
	/* Even with the right token. */
	forge_hello(scene.forger, scene.b, &claimed, nm_net_token(net_of(scene.b)->key, &claimed));
	forger_wait(scene.forger, scene.b);
	NM_CHECK_EQ(scene.b->nr_up, 0);
	NM_CHECK_EQ(net_of(scene.b)->nr_dropped, 2);
	NM_CHECK(!scene.forger->heard);
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(a_peer_with_a_link_is_refused_at_another_address)
{
	struct scene scene = scene_create();
	struct nm_address claimed = scene.forger->address;

	link_nodes(scene.b, scene.a);
	claimed.who = scene.a->address.who;
	forge_hello(scene.forger, scene.b, &claimed, nm_net_token(net_of(scene.b)->key, &claimed));
	forger_wait(scene.forger, scene.b);
	NM_CHECK_EQ(scene.b->nr_up, 0);
	NM_CHECK_EQ(net_of(scene.b)->nr_dropped, 1);
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(an_impostor_is_put_out_when_the_address_is_learned)
{
	struct scene scene = scene_create();
	struct node *a = scene.a, *b = scene.b;
	struct nm_net_header packet = {.kind = NM_NET_PACKET, .source = a->address.who};
	struct nm_address claimed = scene.forger->address;

	claimed.who = a->address.who;
	packet.token = forger_ask_token(scene.forger, b, &claimed);
	forge_hello(scene.forger, b, &claimed, packet.token);
	packet.sequence = 1;
	forge(scene.forger, b, packet, NULL);
	NODE_UNTIL(b, b->nr_packets == 1);
	/* The name is taken for now, and its owner waits. */
	for (uint64_t end = nm_clock_ns() + FORGER_QUIET_MS * NM_NS_PER_MS; nm_clock_ns() < end;) {
		NM_CHECK_EQ(node_send(a, 1, 8), -EAGAIN);
		step_both(&scene);
	}
	NM_CHECK_EQ(b->nr_up, 1);
	b->known = &a->address;
	NM_CHECK(!b->transport->learn(b->transport, &a->address));
	packet.sequence = 2;
	forge(scene.forger, b, packet, NULL);
	forger_wait(scene.forger, b);
	NM_CHECK_EQ(b->nr_packets, 1);
	NM_CHECK_EQ(b->nr_down, 0);
	a_is_heard(&scene);
	NM_CHECK_EQ(b->nr_up, 2);
	NM_CHECK(b->transport->learn(b->transport, &a->address));
	scene_end(&scene);
}

NM_TEST(a_source_that_was_not_known_stays_when_its_address_is_learned)
{
	struct scene scene = scene_create();

	a_is_heard(&scene);
	NM_CHECK_EQ(net_of(scene.b)->nr_unknown, 1);
	scene.b->known = &scene.a->address;
	NM_CHECK(scene.b->transport->learn(scene.b->transport, &scene.a->address));
	NM_CHECK_EQ(net_of(scene.b)->nr_unknown, 0);
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(a_source_that_is_not_known_does_not_hold_up_the_end)
{
	struct scene scene = scene_create();
	uint64_t begin = nm_clock_ns();

	forge_hello(scene.forger, scene.b, &scene.forger->address,
		    forger_ask_token(scene.forger, scene.b, &scene.forger->address));
	NODE_UNTIL(scene.b, scene.b->nr_up == 1);
	/* It never answers the goodbye. */
	scene.b->transport->close_by_ns = begin + 120 * NM_NS_PER_S;
	node_destroy(scene.b);
	NM_CHECK(nm_clock_ns() - begin < 60 * NM_NS_PER_S);
	forger_destroy(scene.forger);
	node_destroy(scene.a);
}

NM_TEST(knocks_cost_no_memory)
{
	struct scene scene = scene_create();
	struct nm_address claimed = scene.forger->address;
	uint64_t nr = net_of(scene.b)->peers.nr;

	for (uint32_t i = 0; i < 4000; i++) {
		uint16_t port = (uint16_t)(1000 + i % 400);

		claimed.who.id[0] = (uint8_t)i;
		claimed.who.id[1] = (uint8_t)(i >> 8);
		memcpy(&claimed.inner[2], &port, sizeof(port));
		forge_knock(scene.forger, scene.b, &claimed, i);
	}
	NM_CHECK_EQ(net_of(scene.b)->peers.nr, nr);
	NM_CHECK_EQ(net_of(scene.b)->nr_unknown, 0);
	NM_CHECK_EQ(scene.b->nr_up, 0);
	/* Who is known does not wait for strangers. */
	scene.b->known = &scene.a->address;
	a_is_heard(&scene);
	scene_end(&scene);
}

NM_TEST(an_address_has_few_identities)
{
	struct scene scene = scene_create();
	struct nm_address claimed = scene.forger->address;
	const struct net *net = net_of(scene.b);

	/* One knock, so that the name is one that was answered. */
	forger_ask_token(scene.forger, scene.b, &claimed);
	for (unsigned int i = 0; i < 50; i++) {
		claimed.who.id[0] = (uint8_t)i;
		forge_hello(scene.forger, scene.b, &claimed, nm_net_token(net->key, &claimed));
	}
	forger_wait(scene.forger, scene.b);
	NM_CHECK(scene.b->nr_up > 0 && scene.b->nr_up < 20);
	NM_CHECK_EQ(net->nr_unknown, scene.b->nr_up);
	scene.b->known = &scene.a->address;
	a_is_heard(&scene);
	scene_end(&scene);
}
