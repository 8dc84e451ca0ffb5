/* SPDX-License-Identifier: Apache-2.0 */
/* Sends to peers that listen and say nothing: no program waits for them, and they are reached. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/peer.h"
#include "near_fixture.h"
#include "session_fixture.h"

#define NR_SILENT 20

/* A peer that other endpoints reach over the network, as another process has its socket. */
struct silent {
	struct near_node *node;
	int listener;
};

static struct near_node *a;
static struct silent silent[NR_SILENT];

static void setup(const char *connect_ms, unsigned int nr)
{
	setenv("NEARMETAL_CONNECT_MS", connect_ms, 1);
	setenv("NEARMETAL_MAX_LOCAL_PEERS", "32", 1);
	a = near_create(true);
	for (unsigned int i = 0; i < nr; i++) {
		silent[i].node = near_create_far();
		silent[i].listener = raw_listen(&silent[i].node->address.who);
	}
}

static void finish(unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++) {
		close(silent[i].listener);
		near_destroy(silent[i].node);
	}
}

/* Send once, as a program does that goes on with other peers after -EAGAIN. */
static int try_send(struct near_node *to)
{
	uint64_t bytes = 17;
	struct iovec iov = {&bytes, sizeof(bytes)};
	const struct nm_message m = {
		.iov = &iov, .nr_iov = 1, .peer = near_peer(a, to), .tag = 1, .flags = NM_TAGGED};

	return nm_engine_send(a->engine, &m);
}

static void expect_message(struct near_node *at)
{
	uint64_t bytes = 0;

	NM_CHECK_EQ(near_recv(at, NULL, &bytes, sizeof(bytes), 1, NULL), 0);
	NM_CHECK_EQ(near_wait(at, a, NULL).err, 0);
	NM_CHECK_EQ(bytes, 17);
}

static void send_at_last(struct near_node *to)
{
	int err;

	while ((err = try_send(to)) == -EAGAIN)
		near_step(a, to, NULL);
	NM_CHECK_EQ(err, 0);
	expect_message(to);
}

NM_TEST(a_message_passes_by_silent_peers)
{
	struct near_node *sound;

	setup("3000", NR_SILENT);
	sound = near_create(true);
	for (unsigned int i = 0; i < NR_SILENT; i++)
		NM_CHECK_EQ(try_send(silent[i].node), -EAGAIN);
	send_at_last(sound);
	NM_CHECK_EQ(near_facts(a, sound).link.channel, NM_CHANNEL_SHM);
	/* All of that in less than the time that one of them has to answer. */
	NM_CHECK_EQ(near_peer(a, silent[0].node)->state, NM_PEER_CONNECTING);
	for (unsigned int i = 0; i < NR_SILENT; i++) {
		send_at_last(silent[i].node);
		NM_CHECK_EQ(near_facts(a, silent[i].node).link.channel, NM_CHANNEL_NET);
		NM_CHECK_HAS(near_facts(a, silent[i].node).link.reason.text,
			     "no answer within 3000");
	}
	near_destroy(a);
	near_destroy(sound);
	finish(NR_SILENT);
}

/* What waits for an answer needs no further send. */
NM_TEST(progress_alone_ends_the_wait)
{
	setup("200", 1);
	NM_CHECK_EQ(try_send(silent[0].node), -EAGAIN);
	while (near_peer(a, silent[0].node)->state == NM_PEER_CONNECTING)
		near_step(a, silent[0].node, NULL);
	NM_CHECK_EQ(near_peer(a, silent[0].node)->state, NM_PEER_CONNECTED);
	NM_CHECK_EQ(try_send(silent[0].node), 0);
	expect_message(silent[0].node);
	near_destroy(a);
	finish(1);
}

/* If no channel reaches the peer, the next send says so, once for each try. */
NM_TEST(a_send_reports_that_no_channel_reached_the_peer)
{
	setup("200", 0);
	silent[0].node = near_create_far();
	silent[0].node->address.inner_len = 0;
	silent[0].listener = raw_listen(&silent[0].node->address.who);
	for (unsigned int i = 0; i < 2; i++) {
		NM_CHECK_EQ(try_send(silent[0].node), -EAGAIN);
		while (near_peer(a, silent[0].node)->state == NM_PEER_CONNECTING)
			near_step(a, silent[0].node, NULL);
		NM_CHECK_EQ(try_send(silent[0].node), -EHOSTUNREACH);
	}
	near_destroy(a);
	finish(1);
}

/* The end of the endpoint does not wait for them, and leaves nothing. */
NM_TEST(closing_while_peers_are_silent)
{
	unsigned int fds = nm_test_count_fds(), mappings;

	setenv("NEARMETAL_CLOSE_MS", "600000", 1);
	setup("600000", 3);
	near_destroy(a);
	finish(3);
	mappings = nm_test_count_mappings();
	setup("600000", 3);
	for (unsigned int i = 0; i < 3; i++)
		NM_CHECK_EQ(try_send(silent[i].node), -EAGAIN);
	near_destroy(a);
	finish(3);
	NM_CHECK_EQ(nm_test_count_fds(), fds);
	NM_CHECK(nm_test_count_mappings() <= mappings);
}
