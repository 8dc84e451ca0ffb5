/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer may not say of the pause of its network, and how long it may last (resume.c). */
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forger.h"

enum { PATH_LEN = 128 };

struct scene {
	struct node *node;
	struct forger *forger;
	struct nm_net_peer *peer; /* the forger, to the node */
	struct nm_net_header header;
};

static void scene_begin(struct scene *scene)
{
	uint64_t token;

	setenv("NEARMETAL_NET_NOTICE", "/nowhere", 1);
	memset(scene, 0, sizeof(*scene));
	scene->node = node_create(&net_fixture);
	scene->forger = forger_create();
	token = forger_ask_token(scene->forger, scene->node, &scene->forger->address);
	forge_hello(scene->forger, scene->node, &scene->forger->address, token);
	NODE_UNTIL(scene->node, scene->node->nr_up == 1);
	scene->peer = nm_net_peers_find(&net_of(scene->node)->peers, &scene->forger->address.who);
	scene->header = (struct nm_net_header){
		.source = scene->forger->address.who,
		.sequence = 1,
		.token = token,
	};
}

static void scene_end(struct scene *scene)
{
	forger_destroy(scene->forger);
	/* What it did not answer is not waited for. */
	scene->node->transport->close_by_ns = 0;
	node_destroy(scene->node);
}

/* The next message of the forger's stream. */
static void say(struct scene *scene, enum nm_net_kind kind)
{
	scene->header.kind = (uint8_t)kind;
	forge(scene->forger, scene->node, scene->header, NULL);
	scene->header.sequence++;
}

static void say_resume(struct scene *scene, uint64_t opening, uint64_t taken)
{
	struct nm_net_header header = scene->header;

	header.kind = NM_NET_RESUME;
	header.tag = opening;
	header.data = taken;
	forge(scene->forger, scene->node, header, NULL);
}

static void hear(struct scene *scene, enum nm_net_kind kind)
{
	while (!scene->forger->heard || scene->forger->last.kind != kind)
		if (!node_progress(scene->node) && !forger_step(scene->forger))
			nm_test_sleep_ms(1);
	scene->forger->heard = false;
}

static void pause_in_order(struct scene *scene)
{
	scene->forger->heard = false;
	say(scene, NM_NET_PAUSE);
	hear(scene, NM_NET_PAUSED);
	NM_CHECK_EQ(scene->peer->state, NM_NET_HELD);
}

static void is_violation(struct scene *scene)
{
	NODE_UNTIL(scene->node, scene->node->nr_down == 1);
	NM_CHECK_EQ(scene->node->down_err, -EBADMSG);
	NM_CHECK_EQ(scene->node->nr_packets, 0);
	scene_end(scene);
}

NM_TEST(an_answer_without_a_pause_ends_the_peer)
{
	struct scene scene;

	scene_begin(&scene);
	say(&scene, NM_NET_PAUSED);
	is_violation(&scene);
}

NM_TEST(a_second_pause_ends_the_peer)
{
	struct scene scene;

	scene_begin(&scene);
	pause_in_order(&scene);
	say(&scene, NM_NET_PAUSE);
	is_violation(&scene);
}

NM_TEST(a_packet_in_a_pause_ends_the_peer)
{
	struct scene scene;

	scene_begin(&scene);
	pause_in_order(&scene);
	say(&scene, NM_NET_PACKET);
	is_violation(&scene);
}

NM_TEST(a_pause_ends_by_the_right_word_alone)
{
	struct scene scene;
	uint64_t token;

	scene_begin(&scene);
	/* Not paused. */
	say_resume(&scene, 1, scene.peer->tx_sequence);
	forger_wait(scene.forger, scene.node);
	NM_CHECK_EQ(scene.peer->state, NM_NET_UP);
	NM_CHECK_EQ(scene.peer->opening, 0);
	pause_in_order(&scene);
	token = scene.header.token;
	scene.header.token = token + 1;
	say_resume(&scene, 1, scene.peer->tx_sequence);
	scene.header.token = token;
	say_resume(&scene, 0, scene.peer->tx_sequence);
	say_resume(&scene, UINT64_C(1) << 32, scene.peer->tx_sequence);
	forger_wait(scene.forger, scene.node);
	NM_CHECK_EQ(net_of(scene.node)->nr_dropped, 4);
	NM_CHECK_EQ(scene.peer->state, NM_NET_HELD);
	for (unsigned int i = 2; i < 5; i++) {
		scene.forger->heard = false;
		say_resume(&scene, i, scene.peer->tx_sequence);
		hear(&scene, NM_NET_RESUMED);
		NM_CHECK_EQ(scene.forger->last.tag, i);
		NM_CHECK_EQ(scene.forger->last.data, scene.header.sequence);
		NM_CHECK_EQ(scene.peer->state, NM_NET_UP);
		pause_in_order(&scene);
		/* Of earlier openings. */
		say_resume(&scene, i, scene.peer->tx_sequence);
		say_resume(&scene, 1, scene.peer->tx_sequence);
		forger_wait(scene.forger, scene.node);
		NM_CHECK_EQ(scene.peer->state, NM_NET_HELD);
	}
	NM_CHECK_EQ(scene.node->nr_down, 0);
	scene_end(&scene);
}

/* TAKEN_MORE: what the forger claims to have taken; SENT_MORE: to have sent. */
static void wrong_counts(uint64_t taken_more, uint32_t sent_more)
{
	struct scene scene;

	scene_begin(&scene);
	pause_in_order(&scene);
	scene.header.sequence += sent_more;
	say_resume(&scene, 1, scene.peer->tx_sequence + taken_more);
	NODE_UNTIL(scene.node, scene.node->nr_down == 1);
	NM_CHECK_EQ(scene.node->down_err, -ECONNRESET);
	NM_CHECK(strstr(scene.node->down_why.text, "messages were lost in a pause") != NULL);
	scene_end(&scene);
}

NM_TEST(what_was_lost_in_a_pause_ends_the_peer)
{
	wrong_counts(1, 0);
	wrong_counts(UINT64_C(1) << 32, 0);
	wrong_counts(0, 1);
}

/* IS_WAITED_FOR: something waits for the peer; else a program tries to send to it. */
static void reach_limit(bool is_waited_for)
{
	struct scene scene;
	struct nm_link *link;
	struct nm_reason why;

	scene_begin(&scene);
	NM_CHECK_EQ(node_reach(scene.node->transport, &scene.forger->address,
			       (struct nm_peer *)(void *)scene.node, &link, &why),
		    0);
	pause_in_order(&scene);
	/* No room, as long as it may come back. */
	scene.node->link = link;
	NM_CHECK_EQ(node_send(scene.node, 1, 8), -EAGAIN);
	net_of(scene.node)->move_ns = NM_NS_PER_S;
	while (scene.node->nr_down == 0) {
		node_progress(scene.node);
		if (is_waited_for)
			scene.node->transport->ops->check_alive(link);
		else
			(void)node_send(scene.node, 1, 8);
		nm_test_sleep_ms(1);
	}
	NM_CHECK_EQ(scene.node->down_err, -ECONNRESET);
	NM_CHECK(strstr(scene.node->down_why.text, "NEARMETAL_MOVE_MS") != NULL);
	NM_CHECK(nm_clock_ns() - scene.peer->away_ns >= NM_NS_PER_S);
	NM_CHECK_EQ(node_send(scene.node, 1, 8), -EPIPE);
	scene_end(&scene);
}

NM_TEST(a_pause_has_a_limit)
{
	reach_limit(true);
	reach_limit(false);
}

static void notice(const char *path, const char *word)
{
	FILE *file = fopen(path, "w");

	NM_CHECK(file && fputs(word, file) >= 0);
	NM_CHECK_EQ(fclose(file), 0);
}

/* A has sent to B. PATH: the notice of one of them. */
static void begin_pair(struct node **ret_a, struct node **ret_b, char path[PATH_LEN])
{
	struct node *a, *b;

	setenv("NEARMETAL_NET_NOTICE", "/nowhere", 1);
	snprintf(path, PATH_LEN, "%s/network", nm_test_dir());
	a = *ret_a = node_create(&net_fixture);
	b = *ret_b = node_create(&net_fixture);
	nodes_connect(&net_fixture, a, b);
	NODE_UNTIL(a, (node_progress(b), node_send(a, 1, 8) == 0));
	NODE_UNTIL(b, (node_progress(a), b->nr_packets == 1));
}

static void heed(struct node *node, const char *path)
{
	notice(path, "stay");
	NM_CHECK_EQ(nm_net_heed(net_of(node), path), 0);
}

/* The network of B comes back. */
static void goes_on(struct node *a, struct node *b)
{
	NODE_UNTIL(b, (node_progress(a), net_of(b)->pause.place == NM_NET_STAYS));
	NODE_UNTIL(a, (node_progress(b), node_send(a, 2, 8) == 0));
	NODE_UNTIL(b, (node_progress(a), b->nr_packets == 2));
}

NM_TEST(a_peer_that_ends_while_this_endpoint_is_away_is_lost)
{
	struct node *a, *b;
	char path[PATH_LEN];

	begin_pair(&a, &b, path);
	heed(a, path);
	notice(path, "leave");
	NODE_UNTIL(a, (node_progress(b), net_of(a)->pause.place == NM_NET_AWAY));
	NM_CHECK_EQ(node_send(a, 2, 8), -EAGAIN);
	b->transport->close_by_ns = 0;
	node_destroy(b);
	notice(path, "stay");
	NODE_UNTIL(a, a->nr_down == 1);
	NM_CHECK_EQ(a->down_err, -ECONNRESET);
	NM_CHECK_EQ(node_send(a, 2, 8), -EPIPE);
	NODE_UNTIL(a, net_of(a)->pause.place == NM_NET_STAYS);
	a->transport->close_by_ns = 0;
	node_destroy(a);
}

/* In a pause, after which the messages that followed it arrive. */
NM_TEST(whose_greeting_was_lost_is_told)
{
	struct nm_net_header header = {.sequence = 1, .kind = NM_NET_PACKET};
	struct nm_net_header token = {.kind = NM_NET_TOKEN, .data = 77};
	struct node *node;
	struct forger *forger;
	uint64_t nonce = 0;

	node = node_create(&net_fixture);
	forger = forger_create();
	node->known = &forger->address;
	header.source = token.source = forger->address.who;
	header.token = forger_ask_token(forger, node, &forger->address);
	/* No pause, so no greeting was lost; and then a token that was not given. */
	for (int i = 0; i < 2; i++) {
		forger->heard = false;
		header.token += (uint64_t)i;
		forge(forger, node, header, NULL);
		forger_wait(forger, node);
		header.token -= (uint64_t)i;
		NM_CHECK(!forger->heard);
		net_of(node)->pause.opening = 1;
	}
	forge(forger, node, header, NULL);
	while (!forger->heard || forger->last.kind != NM_NET_BYE) {
		if (forger->heard && forger->last.kind == NM_NET_KNOCK && !nonce) {
			nonce = token.tag = forger->last.data;
			forge(forger, node, token, NULL);
		}
		if (!node_progress(node) && !forger_step(forger))
			nm_test_sleep_ms(1);
	}
	NM_CHECK_EQ(forger->last.data, NM_NET_REFUSED);
	NM_CHECK_EQ(forger->last.token, 77);
	NM_CHECK_EQ(forger->last.sequence, 1);
	NM_CHECK_EQ(node->nr_packets + node->nr_up, 0);
	/* Repeated, it is no news. */
	forger->heard = false;
	forge(forger, node, header, NULL);
	forger_wait(forger, node);
	NM_CHECK(!forger->heard);
	forger_destroy(forger);
	node->transport->close_by_ns = 0;
	node_destroy(node);
}

static in_port_t port_of(const struct node *node)
{
	return ((const struct sockaddr_in *)(const void *)net_of(node)->inner.name)->sin_port;
}

/* A copy of the socket of the connection that OF has to TO. */
static int copy_socket(const struct node *of, const struct node *to)
{
	for (int fd = 0; fd < 256; fd++) {
		struct sockaddr_in near = {0}, far = {0};
		socklen_t near_len = sizeof(near), far_len = sizeof(far);

		if (!getsockname(fd, (struct sockaddr *)&near, &near_len) &&
		    !getpeername(fd, (struct sockaddr *)&far, &far_len) &&
		    (near.sin_port == port_of(of) || far.sin_port == port_of(to)))
			return dup(fd);
	}
	nm_test_fail(__FILE__, __LINE__, "no connection");
}

/* The words that end a connection do not arrive at FD. */
static void hear_no_end(int fd)
{
	struct sock_filter words[] = {
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13), /* flags of TCP */
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, TH_FIN | TH_RST, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 0),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
	};
	const struct sock_fprog filter = {NM_ARRAY_SIZE(words), words};

	NM_CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)), 0);
}

/* With the device went the word that ends a connection, so only the peer has it still. */
NM_TEST_WITHIN(a_connection_of_which_only_the_peer_knows_is_no_obstacle, 60)
{
	struct node *a, *b;
	char path[PATH_LEN];
	int near, far, on = 1;

	begin_pair(&a, &b, path);
	heed(b, path);
	near = copy_socket(a, b);
	far = copy_socket(b, a);
	hear_no_end(near);
	/* Else the peer would repeat what was not acknowledged, and hear that it is not wanted. */
	NM_CHECK_EQ(setsockopt(far, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on)), 0);
	notice(path, "leave");
	NODE_UNTIL(b, (node_progress(a), net_of(b)->pause.place == NM_NET_AWAY));
	/* The kernel forgets it without a word. It says the end again where it may not be told that. */
	(void)setsockopt(far, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on));
	close(far);
	NM_CHECK_EQ(setsockopt(near, SOL_SOCKET, SO_DETACH_FILTER, &on, sizeof(on)), 0);
	close(near);
	notice(path, "stay");
	goes_on(a, b);
	NM_CHECK_EQ(a->nr_down + b->nr_down, 0);
	NM_CHECK_EQ(net_of(a)->nr_dropped + net_of(b)->nr_dropped, 0);
	node_destroy(b);
	node_destroy(a);
}

/* It has the sockets of libfabric, and so the port. */
NM_TEST_WITHIN(a_forked_child_delays_the_return, 60)
{
	struct node *a, *b;
	char path[PATH_LEN];
	pid_t child;

	begin_pair(&a, &b, path);
	heed(b, path);
	child = fork();
	if (child == 0) {
		for (;;)
			pause();
	}
	notice(path, "leave");
	NODE_UNTIL(b, (node_progress(a), net_of(b)->pause.place == NM_NET_AWAY));
	notice(path, "stay");
	NODE_UNTIL(b, (node_progress(a), net_of(b)->pause.nr_lines > 0));
	NM_CHECK_EQ(net_of(b)->pause.place, NM_NET_AWAY);
	NM_CHECK_EQ(kill(child, SIGKILL), 0);
	NM_CHECK_EQ(waitpid(child, NULL, 0), child);
	goes_on(a, b);
	node_destroy(b);
	node_destroy(a);
}

NM_TEST(no_endpoint_begins_while_the_network_is_away)
{
	struct nm_sink sink = {0};
	struct nm_address address = {.version = NM_ADDRESS_VERSION};
	struct nm_transport *transport;
	struct nm_reason why = {""};
	char path[PATH_LEN];

	snprintf(path, sizeof(path), "%s/network", nm_test_dir());
	setenv("NEARMETAL_NET_NOTICE", path, 1);
	notice(path, "leave");
	NM_CHECK_EQ(net_fixture.create(&sink, &address, &transport, &why), -EBUSY);
	NM_CHECK(strstr(why.text, "this machine is being moved") != NULL);
	notice(path, "stay");
	NM_CHECK_EQ(net_fixture.create(&sink, &address, &transport, &why), 0);
	transport->close_by_ns = 0;
	transport->ops->destroy(transport);
}
