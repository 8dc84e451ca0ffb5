/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is peculiar to the channel between machines: leases, machines that stand still, slots that
 * are used again, and neighbours that write all over their part. The machines are processes, or
 * endpoints of one process; what all channels do alike is in test_transport.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/exchange.h"
#include "transport/shm/shm_private.h"
#include "transport_fixture.h"
#include "vmseg_fixture.h"
#include "vmseg_nodes.h"

/* Two that have nothing to do with what happened before. */
static void expect_sound(uint32_t first, uint32_t second)
{
	struct node *a = machine_node(first), *b = machine_node(second);

	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 1000);
	node_destroy(a);
	node_destroy(b);
}

NM_TEST_WITHIN(facts_name_device_and_part, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	struct nm_link_facts facts;

	nodes_connect(&machine_fixture, a, b);
	a->transport->ops->describe(a->link, &facts);
	NM_CHECK_EQ(facts.relation, NM_RELATION_HOST);
	NM_CHECK_EQ(facts.channel, NM_CHANNEL_VMSEG);
	NM_CHECK_EQ(facts.integrity, NM_INTEGRITY_CONVENTION);
	NM_CHECK_HAS(facts.reason.text, "its window is in part 1 of segment 01020304 of ");
	NM_CHECK_HAS(facts.reason.text, nm_test_dir());
	NM_CHECK_HAS(
		facts.reason.text,
		"own part is 0; on NUMA node 1, own node 0: distance 21, own 10; one region for "
		"all");
	NM_CHECK(a->link->far && b->link->far);
	NM_CHECK(!facts.remote_copy);
	NM_CHECK_HAS(facts.copy_reason.text, "the kernel cannot copy between machines");
	NM_CHECK(a->transport->copy == NULL);
	node_destroy(a);
	node_destroy(b);
}

NM_TEST_WITHIN(two_containers_of_one_machine_sessions_in_its_part, 60)
{
	struct node *a = machine_node(2), *b = machine_node(2);
	struct nm_link_facts facts;

	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 5);
	a->transport->ops->describe(a->link, &facts);
	NM_CHECK_EQ(facts.integrity, NM_INTEGRITY_CONVENTION);
	NM_CHECK_HAS(facts.reason.text, "both in one machine's part");
	NM_CHECK(!a->link->far);
	node_destroy(a);
	node_destroy(b);
}

NM_TEST_WITHIN(a_machine_that_comes_late_meets_who_is_there, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1), *c;

	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 5);
	c = machine_node(2);
	nodes_connect(&machine_fixture, c, a);
	nodes_exchange(c, a, 9);
	node_destroy(b);
	NODE_UNTIL(a, a->nr_down == 1);
	NM_CHECK_EQ(a->down_err, 0);
	node_destroy(c);
	NODE_UNTIL(a, a->nr_down == 2);
	node_destroy(a);
}

NM_TEST_WITHIN(slots_and_bytes_are_used_again, 60)
{
	struct node *keeper = machine_node(0);

	/* More than fit at once. */
	for (unsigned int i = 0; i < 12; i++) {
		struct node *guest = machine_node(1);

		nodes_connect(&machine_fixture, guest, keeper);
		nodes_exchange(guest, keeper, i);
		node_destroy(guest);
		NODE_UNTIL(keeper, keeper->nr_down);
		NM_CHECK_EQ(keeper->down_err, 0);
		keeper->nr_down = 0;
	}
	node_destroy(keeper);
}

static void *destroy_soon(void *node)
{
	nm_test_sleep_ms(100);
	node_destroy(node);
	return NULL;
}

/* The engine destroys its transports one after another: the last ones must not call it any more. */
NM_TEST_WITHIN(a_channel_that_closes_reports_nothing, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	pthread_t closer;

	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 5);
	NM_CHECK_EQ(node_send(a, 1, 8), 0);
	NM_CHECK_EQ(node_send(b, 1, 8), 0);
	NM_CHECK_EQ(pthread_create(&closer, NULL, destroy_soon, b), 0);
	a->nr_packets = 0;
	/* It waits for its peer to take the packet, and sees the peer send, close and go. */
	a->transport->close_by_ns = nm_clock_ns() + 20 * NM_NS_PER_S;
	a->transport->ops->destroy(a->transport);
	NM_CHECK_EQ(a->nr_down, 0);
	NM_CHECK_EQ(a->nr_packets, 0);
	NM_CHECK_EQ(pthread_join(closer, NULL), 0);
	free(a);
}

/* ---- death ---- */

NM_TEST_WITHIN(who_dies_alone_on_its_machine_is_missed_by_its_lease, 60)
{
	struct far_end far;
	struct node *node;

	setenv("NEARMETAL_SEGMENT_LEASE_MS", "1000", 1);
	node = far_end_start(&far, 1);
	kill(far.pid, SIGKILL);
	NODE_UNTIL(node, node->nr_down);
	NM_CHECK_EQ(node->down_err, -ECONNRESET);
	NM_CHECK_HAS(node->down_why.text, "lease expired");
	NM_CHECK_EQ(node_send(node, 1, 8), -EPIPE);
	nm_test_join(far.pid, SIGKILL);
	far_end_close(&far);
	node_destroy(node);
	expect_sound(1, 0);
}

NM_TEST_WITHIN(who_dies_among_siblings_is_missed_at_once, 60)
{
	struct node *node, *sibling;
	struct far_end far;

	/* No lease would expire within the time of the case. */
	setenv("NEARMETAL_SEGMENT_LEASE_MS", "600000", 1);
	node = far_end_start(&far, 1);
	sibling = machine_node(1);
	far_end_kill(&far);
	NODE_UNTIL(node, node->nr_down);
	NM_CHECK_EQ(node->down_err, -ECONNRESET);
	NM_CHECK_HAS(node->down_why.text, "its machine reports");
	node_destroy(sibling);
	node_destroy(node);
}

NM_TEST_WITHIN(who_stood_still_for_longer_than_its_lease_is_a_stranger, 60)
{
	struct far_end far;
	struct nm_reason why;
	struct node *node;

	setenv("NEARMETAL_SEGMENT_LEASE_MS", "1000", 1);
	node = far_end_start(&far, 1);
	nm_test_stop(far.pid);
	NODE_UNTIL(node, node->nr_down);
	NM_CHECK_HAS(node->down_why.text, "lease expired");
	/* It comes back, and is told that it was given up: by what waits for it, or by asking. */
	kill(far.pid, SIGCONT);
	NM_CHECK_EQ(far_end_join(&far, &why), -ECONNRESET);
	NM_CHECK_EQ(node->nr_down, 1);
	node_destroy(node);
}

NM_TEST_WITHIN(who_stood_still_for_a_moment_is_not_given_up, 60)
{
	struct far_end far;
	struct node *node;
	uint64_t before;

	setenv("NEARMETAL_SEGMENT_LEASE_MS", "20000", 1);
	node = far_end_start(&far, 1);
	nm_test_stop(far.pid);
	nm_test_sleep_ms(1500);
	before = node->nr_packets;
	kill(far.pid, SIGCONT);
	NODE_UNTIL(node, node->nr_packets > before + 10000);
	NM_CHECK_EQ(node->nr_down, 0);
	far_end_kill(&far);
	node_destroy(node);
}

static void only_exit(void *arg)
{
	struct node *node = arg;

	/* As a program does that closes everything in the child, too. */
	node_destroy(node);
}

NM_TEST_WITHIN(a_forked_child_takes_nothing_along, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	pid_t pid;

	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 1);
	pid = nm_test_fork(only_exit, a);
	nm_test_join(pid, 0);
	nodes_exchange(a, b, 3);
	NM_CHECK_EQ(a->nr_down + b->nr_down, 0);
	node_destroy(a);
	NODE_UNTIL(b, b->nr_down);
	NM_CHECK_EQ(b->down_err, 0);
	node_destroy(b);
}

/* ---- hostile machines ---- */

static uint8_t *map_file(size_t *ret_len)
{
	struct nm_vmseg_config config = segment_config(0);
	int fd = open(config.all, O_RDWR | O_CLOEXEC);
	struct stat st;
	void *base;

	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(fstat(fd, &st), 0);
	*ret_len = (size_t)st.st_size;
	base = mmap(NULL, *ret_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NM_CHECK(base != MAP_FAILED);
	close(fd);
	return base;
}

/* Noise, zeros, ones and pieces of other parts, all over part 2 of the segment. */
static void scribble(void *arg)
{
	size_t len, lines = MACHINE_SIZE / 64;
	uint64_t random = 99;
	uint8_t *file, *part;

	(void)arg;
	file = map_file(&len);
	part = file + segment_part_offset(2, MACHINE_SIZE);
	for (;;) {
		/* Mostly where headers, slots and mailboxes are. */
		uint64_t roll = nm_test_random(&random);
		size_t at = (size_t)(nm_test_random(&random) % (roll % 8 ? 16384 : lines)) * 64;
		uint64_t word = nm_test_random(&random);

		switch (roll >> 8 & 3) {
		case 0:
			memset(part + at, (int)(word & 0xff), 64);
			break;
		case 1:
			memcpy(part + at + (word & 56), &word, sizeof(word));
			break;
		case 2:
			memcpy(part + at, file + segment_part_offset(word & 1, MACHINE_SIZE) + at,
			       64);
			break;
		default:
			/* A small number: one that may fit. */
			word &= 0x3f;
			memcpy(part + at + (roll >> 16 & 56), &word, sizeof(word));
		}
	}
}

static unsigned int nr_lines;

static void count_line(enum nm_log_level level, const char *line)
{
	(void)level;
	(void)line;
	__atomic_add_fetch(&nr_lines, 1, __ATOMIC_RELAXED);
}

NM_TEST_WITHIN(who_writes_all_over_its_part_spoils_only_its_own, 110)
{
	const char *seconds = getenv("SCRIBBLE_SECONDS");
	uint64_t rounds = 0, end;
	struct node *a, *b, *c;
	struct far_end far;
	pid_t scribbler;

	nm_log_set_sink(count_line);
	setenv("NEARMETAL_SEGMENT_LEASE_MS", "2000", 1);
	/* One with whom a sound connection stood before. */
	c = far_end_start(&far, 2);
	scribbler = nm_test_fork(scribble, NULL);
	a = machine_node(0);
	b = machine_node(1);
	nodes_connect(&machine_fixture, a, b);
	for (end = (seconds ? strtoul(seconds, NULL, 10) : 4) * 20; rounds < end; rounds++) {
		for (uint64_t i = 0; i < 50; i++)
			nodes_exchange(a, b, rounds * 100 + 2 * i);
		node_progress(c);
		if (rounds % 20 == 10)
			expect_sound(0, 1);
		nm_test_sleep_ms(50);
	}
	NODE_UNTIL(c, c->nr_down);
	NM_CHECK(c->down_err != 0);
	NM_CHECK_EQ(a->nr_down + b->nr_down, 0);
	/* Whatever it did, it is worth a few lines. */
	NM_CHECK(__atomic_load_n(&nr_lines, __ATOMIC_RELAXED) < 50);
	kill(scribbler, SIGKILL);
	kill(far.pid, SIGKILL);
	nm_test_join(scribbler, SIGKILL);
	waitpid(far.pid, NULL, 0);
	far_end_close(&far);
	node_destroy(a);
	node_destroy(b);
	node_destroy(c);
	nm_log_set_sink(NULL);
}

/* Find the slot of WHO in part PART, as a neighbour that reads everything does. */
static struct nm_vmseg_slot *find_slot(uint8_t *file, uint32_t part, const struct node *who)
{
	uint8_t *base = file + segment_part_offset(part, MACHINE_SIZE);
	struct nm_vmseg_part *header = (struct nm_vmseg_part *)(void *)base;
	struct nm_vmseg_slot *slot = (struct nm_vmseg_slot *)(void *)(base + header->slots_off);

	for (uint32_t i = 0; i < header->nr_slots; i++)
		if (!memcmp(slot[i].id, who->address.who.id, sizeof(slot[i].id)))
			return &slot[i];
	nm_test_fail(__FILE__, __LINE__, "no slot of it in part %u", part);
}

NM_TEST_WITHIN(nobody_passes_for_an_endpoint_of_another_part, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1), *liar = machine_node(2);
	const struct nm_address address = b->address;
	struct nm_vmseg_slot *forged, *real;
	uint8_t *file, *window;
	struct nm_reason why;
	size_t len;

	/* It shows what it has read of b: in its slot, and in its window. */
	file = map_file(&len);
	real = find_slot(file, 1, b);
	forged = find_slot(file, 2, liar);
	memcpy(forged->id, real->id, sizeof(forged->id));
	window = file + segment_part_offset(2, MACHINE_SIZE) + forged->window_off;
	memcpy(window + offsetof(struct nm_window_header, id), real->id, 6);
	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 1);
	NM_CHECK_EQ(liar->nr_up, 0);
	node_destroy(b);
	NODE_UNTIL(a, a->nr_down);
	node_destroy(a);
	/* Alone it is not believed either. */
	a = machine_node(0);
	NM_CHECK_EQ(node_reach(a->transport, &address, (struct nm_peer *)a, &a->link, &why),
		    -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "in another machine's part");
	munmap(file, len);
	node_destroy(a);
	node_destroy(liar);
}

NM_TEST_WITHIN(an_address_with_another_part_is_not_met, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	struct nm_address address = b->address;
	struct nm_reason why;

	address.who.place[NM_PLACE_FILE] ^= 1;
	NM_CHECK_EQ(node_reach(a->transport, &address, (struct nm_peer *)a, &a->link, &why),
		    -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "in another machine's part");
	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 1);
	node_destroy(a);
	node_destroy(b);
}

/* The exchange is freed at the next turn, and its handshake may end later. */
NM_TEST_WITHIN(an_exchange_whose_socket_fails_is_no_longer_its_handshakes, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	struct nm_sessions *sessions = nm_shm_of(a->transport)->sessions;
	const uint8_t too_long[NM_MESSAGE_MAX + 1] = {0};
	struct nm_handshake *handshake;
	struct nm_exchange *its;

	nodes_connect(&machine_fixture, a, b);
	pthread_mutex_lock(&sessions->lock);
	handshake = sessions->handshakes;
	NM_CHECK(handshake && handshake->exchange);
	its = handshake->exchange;
	NM_CHECK_EQ(send(handshake->fd, too_long, sizeof(too_long), MSG_NOSIGNAL),
		    (ssize_t)sizeof(too_long));
	its->watch.ready(sessions, &its->watch);
	NM_CHECK(!its->handshake && !handshake->exchange);
	pthread_mutex_unlock(&sessions->lock);
	NODE_UNTIL(b, b->nr_down);
	node_destroy(a);
	node_destroy(b);
}

NM_TEST_WITHIN(a_file_that_is_cut_off_ends_its_channels, 60)
{
	struct node *a = machine_node(0), *b = machine_node(1);
	struct nm_vmseg_config config = segment_config(0);

	nodes_connect(&machine_fixture, a, b);
	nodes_exchange(a, b, 1);
	NM_CHECK_EQ(truncate(config.all, 4096), 0);
	NODE_UNTIL(a, a->nr_down);
	NODE_UNTIL(b, b->nr_down);
	NM_CHECK(a->down_err != 0 && b->down_err != 0);
	node_destroy(a);
	node_destroy(b);
}

/* How many endpoints find room in a part before the next one is refused, in words. */
static unsigned int count_endpoints(void)
{
	struct nm_transport *transports[64];
	struct nm_sink sink = {0};
	struct nm_reason why = {""};
	unsigned int nr = 0;
	int err = 0;

	nm_log_set_sink(count_line);
	while (nr < NM_ARRAY_SIZE(transports) && !err) {
		struct nm_address address = {.version = NM_ADDRESS_VERSION};

		NM_CHECK_EQ(nm_identity_create(&address.who), 0);
		err = machine_create(0, &sink, &address, &transports[nr], &why);
		nr += !err;
	}
	NM_CHECK_EQ(err, -ENOSPC);
	NM_CHECK(why.text[0]);
	for (unsigned int i = 0; i < nr; i++)
		transports[i]->ops->destroy(transports[i]);
	nm_log_set_sink(NULL);
	return nr;
}

NM_TEST_WITHIN(a_part_without_room_says_so, 60)
{
	setenv("NEARMETAL_SEGMENT_ENDPOINTS", "3", 1);
	NM_CHECK(count_endpoints() >= 3);
}

NM_TEST_WITHIN(a_part_has_room_for_as_many_endpoints_as_the_guest_unit_says, 60)
{
	segment_tell_endpoints(20);
	NM_CHECK(count_endpoints() >= 20);
}

NM_TEST_WITHIN(the_knob_goes_before_the_guest_unit, 60)
{
	segment_tell_endpoints(20);
	setenv("NEARMETAL_SEGMENT_ENDPOINTS", "3", 1);
	NM_CHECK(count_endpoints() < 20);
}
