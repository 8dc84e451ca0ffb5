/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network of endpoints goes and comes back amid their traffic (resume.c). Their inner endpoints
 * are those of libfabric (tcp, loopback), and are really closed and opened again.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/params.h"
#include "engine/internal.h"
#include "moving.h"
#include "net/transport.h"

enum { NR = 3 };

/* The guest unit of one machine. */
struct guest {
	char path[128];
	int fd;
	bool has_lock;
};
static struct guest guests[NR];

static void guest_write(const struct guest *guest, const char *word)
{
	NM_CHECK_EQ(ftruncate(guest->fd, 0), 0);
	NM_CHECK_EQ(pwrite(guest->fd, word, strlen(word), 0), (ssize_t)strlen(word));
}

static void guest_begin(unsigned int i)
{
	struct guest *guest = &guests[i];

	snprintf(guest->path, sizeof(guest->path), "%s/network-%u", nm_test_dir(), i);
	guest->fd = open(guest->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	NM_CHECK(guest->fd >= 0);
	guest_write(guest, "stay");
}

static void guest_ask(unsigned int i)
{
	guest_write(&guests[i], "leave");
}

/* True once every endpoint of the machine has closed its network. */
static bool guest_has(unsigned int i)
{
	guests[i].has_lock |= flock(guests[i].fd, LOCK_EX | LOCK_NB) == 0;
	return guests[i].has_lock;
}

static void guest_return(unsigned int i)
{
	guest_write(&guests[i], "stay");
	NM_CHECK_EQ(flock(guests[i].fd, LOCK_UN), 0);
	guests[i].has_lock = false;
}

static struct net *node_net(unsigned int i)
{
	const struct nm_engine *engine = moving_node(i)->engine;

	for (unsigned int j = 0; j < engine->nr_polled; j++)
		if (engine->polled[j]->kind == &nm_net_kind)
			return nm_container_of(engine->polled[j], struct net, base);
	nm_test_fail(__FILE__, __LINE__, "no network");
}

static void heed(struct net *net, unsigned int i)
{
	guest_begin(i);
	NM_CHECK_EQ(nm_net_heed(net, guests[i].path), 0);
}

/* All endpoints use the network alone, because their machines have left the segment. */
static void create(void)
{
	bool is_frozen[NR] = {false};

	setenv("NEARMETAL_NET", "tcp", 1);
	setenv("NEARMETAL_NET_NOTICE", "/nowhere", 1);
	moving_create(NR);
	for (unsigned int i = 0; i < NR; i++) {
		heed(node_net(i), i);
		NM_CHECK_EQ(machine_ask(i, NM_VMSEG_QUIESCE), 0);
	}
	for (unsigned int nr = 0; nr < NR;) {
		moving_talk(10, NULL);
		for (unsigned int i = 0; i < NR; i++) {
			if (is_frozen[i] || machine_ask(i, NM_VMSEG_FROZEN))
				continue;
			is_frozen[i] = true;
			nr++;
		}
	}
	for (unsigned int i = 0; i < NR; i++)
		NM_CHECK_EQ(moving_channel(i, (i + 1) % NR), NM_CHANNEL_NET);
}

/* Who goes, and for how many turns it has been away. */
static bool goes[NR];
static unsigned int turns, away[NR];
enum { FIRST_TURN = 20, AWAY_TURNS = 300 };

static void go_and_come(unsigned int round)
{
	(void)round;
	turns++;
	for (unsigned int i = 0; i < NR; i++) {
		if (!goes[i])
			continue;
		if (turns == FIRST_TURN)
			guest_ask(i);
		if (turns < FIRST_TURN || away[i] > AWAY_TURNS || !guest_has(i))
			continue;
		NM_CHECK(!node_net(i)->inner.ep);
		if (++away[i] > AWAY_TURNS)
			guest_return(i);
	}
}

static bool are_back(void)
{
	bool are_back = true;

	for (unsigned int i = 0; i < NR; i++)
		are_back &= !goes[i] ||
			    (away[i] > AWAY_TURNS && node_net(i)->pause.place == NM_NET_STAYS);
	return are_back;
}

/* Those with goes[] go once, and come back to the same address. */
static void pause_amid_traffic(void)
{
	uint8_t name[NR][NM_INNER_MAX];

	turns = 0;
	memset(away, 0, sizeof(away));
	for (unsigned int i = 0; i < NR; i++)
		memcpy(name[i], node_net(i)->inner.name, sizeof(name[i]));
	while (!are_back())
		moving_talk(30, go_and_come);
	moving_talk(10, NULL);
	for (unsigned int i = 0; i < NR; i++) {
		NM_CHECK(!memcmp(name[i], node_net(i)->inner.name, sizeof(name[i])));
		NM_CHECK_EQ(node_net(i)->nr_dropped, 0);
	}
}

static void destroy(void)
{
	moving_destroy();
	for (unsigned int i = 0; i < NR; i++)
		close(guests[i].fd);
}

static void pause_often(unsigned int times, bool first, bool second, bool third)
{
	goes[0] = first;
	goes[1] = second;
	goes[2] = third;
	create();
	for (unsigned int i = 0; i < times; i++)
		pause_amid_traffic();
	for (unsigned int i = 0; i < NR; i++)
		NM_CHECK_EQ(node_net(i)->pause.opening, goes[i] ? times : 0);
	destroy();
}

NM_TEST_WITHIN(one_network_goes_and_comes_back, 240)
{
	pause_often(20, false, true, false);
}

NM_TEST_WITHIN(two_go_at_once, 240)
{
	pause_often(5, true, true, false);
}

NM_TEST_WITHIN(all_go_at_once, 240)
{
	pause_often(5, true, true, true);
}

/* The guest unit asks, and takes that back at once: no endpoint is closed in vain. */
NM_TEST_WITHIN(a_pause_is_given_up, 240)
{
	create();
	goes[1] = true;
	for (unsigned int i = 0; i < 5; i++) {
		guest_ask(1);
		while (node_net(1)->pause.place == NM_NET_STAYS)
			nm_engine_progress(moving_node(1)->engine);
		NM_CHECK_EQ(node_net(1)->pause.place, NM_NET_PAUSING);
		guest_return(1);
		nm_test_sleep_ms(100);
		/* The peers have not answered yet. */
		while (node_net(1)->pause.place == NM_NET_PAUSING)
			nm_engine_progress(moving_node(1)->engine);
		NM_CHECK_EQ(node_net(1)->pause.place, NM_NET_RETURNING);
		NM_CHECK(node_net(1)->inner.ep != NULL);
		while (node_net(1)->pause.place != NM_NET_STAYS)
			moving_talk(5, NULL);
		moving_talk(5, NULL);
	}
	NM_CHECK_EQ(node_net(1)->pause.opening, 5);
	NM_CHECK(!guest_has(1));
	destroy();
}
