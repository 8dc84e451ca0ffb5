/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance suite (conform.h): how packets travel, and how the other side ends. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "conform.h"

struct node *node_a, *node_b;

unsigned int progress_both(void)
{
	return node_progress(node_a) + (node_b == node_a ? 0 : node_progress(node_b));
}

static bool is_drained(const struct node *node)
{
	return node->transport->ops->drained(node->link);
}

void settle(void)
{
	UNTIL(is_drained(node_a) && is_drained(node_b));
	nodes_settle(node_a, node_b);
}

void send_soon(struct node *from, uint64_t seed, uint32_t len)
{
	int err = -EAGAIN;

	UNTIL((err = node_send(from, seed, len)) != -EAGAIN);
	NM_CHECK_EQ(err, 0);
}

static void start_strangers(const struct fixture *fixture)
{
	node_a = node_create(fixture);
	node_b = loops_back(fixture) ? node_a : node_create(fixture);
	nodes_connect(fixture, node_a, node_b);
}

/* The first packet of a channel may wait for a connection; the packets of the cases do not. */
void start(const struct fixture *fixture)
{
	start_strangers(fixture);
	send_soon(node_a, 1, 8);
	UNTIL(node_b->nr_packets == 1);
	if (node_b != node_a) {
		send_soon(node_b, 1, 8);
		UNTIL(node_a->nr_packets == 1);
	}
	settle();
	node_a->nr_packets = node_b->nr_packets = 0;
}

void finish(const struct fixture *fixture)
{
	node_destroy(node_a);
	if (!loops_back(fixture))
		node_destroy(node_b);
}

void send_and_check(uint64_t seed, uint32_t len)
{
	uint64_t before = node_b->nr_packets;

	send_soon(node_a, seed, len);
	UNTIL(node_b->nr_packets > before);
	NM_CHECK_EQ(node_b->last.len, len);
	NM_CHECK_EQ(node_b->last.op, seed % NM_PACKET_NR_OPS);
	NM_CHECK_EQ(node_b->last.flags, (uint8_t)(seed >> 3));
	NM_CHECK(node_b->last.tag == seed && node_b->last.data == ~seed);
	NM_CHECK(bytes_match(node_b->payload, len, seed));
}

CONFORMS(delivers_every_size)
{
	uint32_t len, max;

	start(fixture);
	max = node_a->transport->max_payload;
	for (len = 0; len <= 2100; len++)
		send_and_check(len * 7919, len);
	for (len = 2101; len < max; len += 331)
		send_and_check(len * 104729, len);
	for (len = max - 70; len <= max; len++)
		send_and_check(len, len);
	NM_CHECK_EQ(node_b->nr_up, 1);
	NM_CHECK(nm_identity_equal(&node_b->source, &node_a->address.who));
	NM_CHECK(node_b->label.text[0] != '\0');
	finish(fixture);
}

CONFORMS(gathers_payloads_from_pieces)
{
	uint64_t random = 1, i;
	struct iovec iov[10];
	uint8_t *bytes = malloc(NODE_KEEP);
	struct nm_packet pkt = {.op = 5};
	uint32_t left, part;
	unsigned int n;

	NM_CHECK(bytes != NULL);
	start(fixture);
	for (i = 0; i < 3000; i++) {
		pkt.len = (uint32_t)(nm_test_random(&random) %
				     (i % 10 ? 1500 : node_a->transport->max_payload + 1));
		fill_bytes(bytes, pkt.len, i);
		left = pkt.len;
		for (n = 0; n < 10; n++) {
			part = n == 9 ? left : (uint32_t)(nm_test_random(&random) % (left + 1));
			if (nm_test_random(&random) % 4 == 0 && n != 9)
				part = 0;
			iov[n] = (struct iovec){part ? bytes + pkt.len - left : NULL, part};
			left -= part;
		}
		NM_CHECK_EQ(node_a->transport->ops->send(node_a->link, &pkt, iov, 10), 0);
		settle();
		UNTIL(node_b->nr_packets == i + 1);
		NM_CHECK(bytes_match(node_b->payload, pkt.len, i));
	}
	pkt.len = 0;
	NM_CHECK_EQ(node_a->transport->ops->send(node_a->link, &pkt, NULL, 0), 0);
	UNTIL(node_b->nr_packets == i + 1);
	free(bytes);
	finish(fixture);
}

struct filling {
	uint64_t seed;
	uint32_t len;
	unsigned int nr_filled;
};

static size_t fill(void *to, void *arg)
{
	struct filling *f = arg;

	f->nr_filled++;
	fill_bytes(to, f->len, f->seed);
	return f->len;
}

static void check_filled(struct node *node, const struct nm_packet *pkt, const uint8_t *payload)
{
	NM_CHECK_EQ(pkt->tag, node->nr_packets - 1);
	NM_CHECK(bytes_match(payload, pkt->len, pkt->tag));
}

/* With checksums nothing is packed in place. */
static bool ends_without_places(const struct fixture *fixture)
{
	if (node_a->transport->place)
		return false;
	NM_CHECK(getenv("NEARMETAL_CHECKSUM"));
	finish(fixture);
	return true;
}

/* In order with sent ones, whatever part of its room a packet needs. */
CONFORMS_IF(has_places, packets_are_filled_once)
{
	struct filling filling = {0};
	uint64_t random = 3;
	struct nm_packet pkt;
	uint32_t room;
	int err;

	start(fixture);
	if (ends_without_places(fixture))
		return;
	node_b->check = check_filled;
	while (filling.seed < 5000) {
		const unsigned int before = filling.nr_filled;

		room = (uint32_t)(nm_test_random(&random) % node_a->transport->max_payload);
		filling.len = (uint32_t)(nm_test_random(&random) % (room + 1));
		pkt = (struct nm_packet){.op = 7, .tag = filling.seed};
		if (nm_test_random(&random) % 4)
			err = node_a->transport->place->send_filled(node_a->link, &pkt, room, fill,
								    &filling);
		else
			err = node_send(node_a, filling.seed, pkt.len = filling.len);
		NM_CHECK(err == 0 || err == -EAGAIN);
		NM_CHECK(filling.nr_filled - before <= (err == 0));
		NM_CHECK(err || pkt.len == filling.len);
		filling.seed += !err;
		if (err)
			progress_both();
	}
	UNTIL(node_b->nr_packets == filling.seed);
	NM_CHECK(filling.nr_filled > 3000);
	node_b->check = NULL;
	finish(fixture);
}

CONFORMS_IF(has_places, nothing_is_filled_for_a_link_that_is_down)
{
	struct filling filling = {.len = 8};
	struct nm_packet pkt = {.op = 1};

	start(fixture);
	if (ends_without_places(fixture))
		return;
	node_destroy(node_b);
	while (!node_a->nr_down)
		node_progress(node_a);
	NM_CHECK_EQ(node_a->transport->place->send_filled(node_a->link, &pkt, 8, fill, &filling),
		    -EPIPE);
	NM_CHECK_EQ(filling.nr_filled, 0);
	node_destroy(node_a);
}

static uint32_t length_of(uint64_t seed, uint32_t max)
{
	uint64_t state = seed;
	uint64_t random = nm_test_random(&state);

	/* Mostly small, sometimes anything. */
	return (uint32_t)(random >> 32) % (random % 8 ? 200 : max + 1);
}

static void check_next(struct node *node, const struct nm_packet *pkt, const uint8_t *payload)
{
	NM_CHECK_EQ(pkt->tag, node->nr_packets - 1);
	NM_CHECK_EQ(pkt->len, length_of(pkt->tag, node->transport->max_payload));
	NM_CHECK(bytes_match(payload, pkt->len, pkt->tag));
}

CONFORMS(keeps_order_over_many_laps)
{
	uint64_t sent = 0, random = 7;
	int err;

	start(fixture);
	node_b->check = check_next;
	while (sent < 30000) {
		err = node_send(node_a, sent, length_of(sent, node_a->transport->max_payload));
		NM_CHECK(err == 0 || err == -EAGAIN);
		sent += err == 0;
		if (err || nm_test_random(&random) % 16 == 0)
			progress_both();
	}
	UNTIL(node_b->nr_packets == sent);
	NM_CHECK_EQ(node_b->nr_up, 1);
	finish(fixture);
}

CONFORMS(says_eagain_when_full_and_takes_nothing)
{
	static const uint32_t sizes[] = {0, 8, 100, 1024, 3000, 4096};
	uint64_t sent, before;
	size_t s, again;

	start(fixture);
	for (s = 0; s < NM_ARRAY_SIZE(sizes); s++) {
		before = node_b->nr_packets;
		for (sent = 0; node_send(node_a, sent, sizes[s]) == 0; sent++)
			NM_CHECK(sent < 1000000);
		NM_CHECK(sent > 0);
		for (again = 0; again < 1000; again++)
			NM_CHECK_EQ(node_send(node_a, sent, sizes[s]), -EAGAIN);
		UNTIL(node_b->nr_packets == before + sent);
		settle();
		NM_CHECK_EQ(node_b->nr_packets, before + sent);
		NM_CHECK_EQ(node_b->last.tag, sent - 1);
		NM_CHECK_EQ(node_send(node_a, sent, sizes[s]), 0);
		UNTIL(node_b->nr_packets == before + sent + 1);
	}
	finish(fixture);
}

CONFORMS(survives_eagain_storms_both_ways)
{
	uint64_t sent_a = 0, sent_b = 0, random = 3;
	struct node *nodes[2];
	int i, err;

	start(fixture);
	nodes[0] = node_a;
	nodes[1] = node_b;
	if (!loops_back(fixture))
		node_a->check = check_next;
	node_b->check = check_next;
	while (sent_a + sent_b < 40000) {
		i = loops_back(fixture) ? 0 : (int)(nm_test_random(&random) & 1);
		while ((err = node_send(nodes[i], i ? sent_b : sent_a,
					length_of(i ? sent_b : sent_a,
						  nodes[i]->transport->max_payload))) == 0)
			*(i ? &sent_b : &sent_a) += 1;
		NM_CHECK_EQ(err, -EAGAIN);
		node_progress(nodes[nm_test_random(&random) & 1]);
	}
	UNTIL(node_b->nr_packets == sent_a);
	if (!loops_back(fixture))
		UNTIL(node_a->nr_packets == sent_b);
	finish(fixture);
}

CONFORMS(may_send_from_within_deliver)
{
	start(fixture);
	node_b->echo = true;
	NM_CHECK_EQ(node_send(node_a, 77, 3000), 0);
	UNTIL(node_b->nr_packets >= 1);
	UNTIL(node_a->nr_packets == (loops_back(fixture) ? 2 : 1));
	NM_CHECK_EQ(node_a->last.tag, 77);
	NM_CHECK(bytes_match(node_a->payload, 3000, 77));
	finish(fixture);
}

CONFORMS(is_bounded_per_progress_call)
{
	uint64_t sent = 0, calls = 0, before;

	start(fixture);
	while (sent < 100 && node_send(node_a, sent, 8) == 0)
		sent++;
	NM_CHECK_EQ(sent, 100);
	while (node_b->nr_packets < sent) {
		before = node_b->nr_packets;
		node_progress(node_b);
		NM_CHECK(node_b->nr_packets - before <= 64);
		calls += node_b->nr_packets > before;
		if (node_a != node_b)
			node_progress(node_a);
	}
	NM_CHECK(calls > 1);
	settle();
	NM_CHECK_EQ(node_progress(node_b), 0);
	finish(fixture);
}

CONFORMS(does_not_reach_strangers)
{
	struct node *node = node_create(fixture);
	struct nm_address stranger = {.version = NM_ADDRESS_VERSION};
	unsigned int fds = nm_test_count_fds();
	struct nm_reason why = {""};

	NM_CHECK_EQ(nm_identity_create(&stranger.who), 0);
	NM_CHECK_EQ(
		node_reach(node->transport, &stranger, (struct nm_peer *)node, &node->link, &why),
		-EHOSTUNREACH);
	NM_CHECK(strlen(why.text) > 5);
	NM_CHECK_EQ(nm_test_count_fds(), fds);
	node_destroy(node);
}

CONFORMS(refused_sources_deliver_nothing)
{
	unsigned int i;

	start_strangers(fixture);
	node_b->refuse_sources = true;
	send_soon(node_a, 1, 8);
	if (loops_back(fixture))
		UNTIL(node_send(node_a, 2, 8) == -EPIPE);
	else
		UNTIL(node_a->nr_down);
	NM_CHECK_EQ(node_send(node_a, 2, 8), -EPIPE);
	for (i = 0; i < 100; i++) {
		node_send(node_a, 2 + i, 8);
		progress_both();
	}
	NM_CHECK_EQ(node_b->nr_up, 1);
	NM_CHECK_EQ(node_b->nr_packets, 0);
	finish(fixture);
}

static void connect_and_send(struct node *from, struct node *to)
{
	struct nm_reason why = {""};

	NM_CHECK_EQ(node_reach(from->transport, &to->address, (struct nm_peer *)from, &from->link,
			       &why),
		    0);
	NM_CHECK_EQ(node_send(from, 1, 8), 0);
	from->transport->close_by_ns = nm_clock_ns() + 300 * NM_NS_PER_S;
}

static void *destroy_transport(void *arg)
{
	struct node *node = arg;

	node->transport->ops->destroy(node->transport);
	return NULL;
}

/* Neither polls between the connection of the other and its own end, and neither waits for long. */
CONFORMS(channels_that_close_at_once_end)
{
	struct node *a = node_create(fixture), *b = node_create(fixture);
	pthread_t closer;

	/* A network may need polls before it takes the first packet. */
	if (!loops_back(fixture) && !(fixture->kind->flags & NM_TRANSPORT_NETWORK)) {
		connect_and_send(a, b);
		connect_and_send(b, a);
	}
	NM_CHECK_EQ(pthread_create(&closer, NULL, destroy_transport, b), 0);
	destroy_transport(a);
	NM_CHECK_EQ(pthread_join(closer, NULL), 0);
	NM_CHECK_EQ(a->nr_packets + b->nr_packets, 0);
	free(a);
	free(b);
}

/* A network has what was sent only once the other side took it: its sender waits in destroy(). */
static void *destroy_sender(void *arg)
{
	node_destroy(arg);
	return NULL;
}

static void close_sender(const struct fixture *fixture)
{
	pthread_t thread;

	if (!(fixture->kind->flags & NM_TRANSPORT_NETWORK)) {
		node_destroy(node_a);
		return;
	}
	node_a->transport->close_by_ns = nm_clock_ns() + 60 * NM_NS_PER_S;
	NM_CHECK_EQ(pthread_create(&thread, NULL, destroy_sender, node_a), 0);
	NODE_UNTIL(node_b, !pthread_tryjoin_np(thread, NULL));
}

CONFORMS_IF(pair, closing_delivers_everything_first)
{
	uint64_t sent = 0;

	start(fixture);
	while (node_send(node_a, sent, length_of(sent, node_a->transport->max_payload)) == 0)
		sent++;
	node_b->check = check_next;
	close_sender(fixture);
	NODE_UNTIL(node_b, node_b->nr_down);
	NM_CHECK_EQ(node_b->nr_packets, sent);
	NM_CHECK_EQ(node_b->down_err, 0);
	NM_CHECK_EQ(node_b->nr_down, 1);
	NM_CHECK_EQ(node_send(node_b, 1, 8), -EPIPE);
	nm_test_sleep_ms(20);
	node_progress(node_b);
	NM_CHECK_EQ(node_b->nr_down, 1);
	node_destroy(node_b);
}

/* A peer in a process of its own that sends until it is killed. */
struct victim {
	const struct fixture *fixture;
	int address_pipe[2]; /* brings the address of the one it sends to */
	int answer_pipe[2];  /* and back its own */
};

static void stream_for_ever(void *arg)
{
	struct victim *victim = arg;
	struct node *node = node_create(victim->fixture);
	struct nm_address address;
	struct nm_reason why;
	uint64_t sent = 0;

	NM_CHECK_EQ(read(victim->address_pipe[0], &address, sizeof(address)), sizeof(address));
	NM_CHECK_EQ(write(victim->answer_pipe[1], &node->address, sizeof(address)),
		    sizeof(address));
	NM_CHECK_EQ(
		node_reach(node->transport, &address, (struct nm_peer *)node, &node->link, &why),
		0);
	for (;;) {
		if (node_send(node, sent, length_of(sent, node->transport->max_payload)) == 0)
			sent++;
		node_progress(node);
	}
}

/* Waits for the news of a death as the engine does it: asks where the channel does not watch. */
static void await_death(struct node *node, const struct nm_address *address)
{
	const struct nm_transport_ops *ops = node->transport->ops;
	struct nm_reason why;

	if (node->transport->kind->flags & NM_TRANSPORT_WATCHES) {
		NODE_UNTIL(node, node->nr_down);
		NM_CHECK_HAS(node->down_why.text, "died");
		NM_CHECK_HAS(node->down_why.text, node->label.text);
		return;
	}
	NM_CHECK_EQ(node_reach(node->transport, address, (struct nm_peer *)node, &node->link, &why),
		    0);
	NODE_UNTIL(node, (ops->check_alive(node->link), node->nr_down));
	NM_CHECK(strlen(node->down_why.text) > 5);
	NM_CHECK_EQ(node_send(node, 1, 8), -EPIPE);
}

CONFORMS_IF(pair, killed_peer_goes_down_with_a_reason)
{
	struct victim victim = {.fixture = fixture};
	struct nm_address address;
	struct node *node;
	pid_t pid;

	NM_CHECK_EQ(pipe(victim.address_pipe), 0);
	NM_CHECK_EQ(pipe(victim.answer_pipe), 0);
	pid = nm_test_fork(stream_for_ever, &victim);
	node = node_create(fixture);
	NM_CHECK_EQ(write(victim.address_pipe[1], &node->address, sizeof(node->address)),
		    sizeof(node->address));
	NM_CHECK_EQ(read(victim.answer_pipe[0], &address, sizeof(address)), sizeof(address));
	node->check = check_next;
	NODE_UNTIL(node, node->nr_packets > 5000);
	kill(pid, SIGKILL);
	await_death(node, &address);
	NM_CHECK_EQ(node->nr_down, 1);
	NM_CHECK_EQ(node->down_err, -ECONNRESET);
	nm_test_join(pid, SIGKILL);
	for (unsigned int i = 0; i < 2; i++) {
		close(victim.address_pipe[i]);
		close(victim.answer_pipe[i]);
	}
	node_destroy(node);
}
