/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Normal close. A socket that is closed with unread bytes is reset, and a reset discards data that
 * was not sent yet. So an endpoint closes only after every peer reported that it took everything
 * (BYE_SEEN) or wants nothing more (BYE), or when the time is over.
 */
#include <sched.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/transport.h"

/* While waiting, this is how often peers are checked: a dead one will not answer. */
#define ASK_NS (200 * NM_NS_PER_MS)
/* Sources that the program does not know, and that may be any process, are waited for so long. */
#define UNKNOWN_NS NM_NS_PER_S

static bool is_open(const struct nm_net_peer *peer)
{
	if (peer->state == NM_NET_DEAD || !nm_net_has_met(peer))
		return false;
	if (peer->bye_owed || peer->answer_owed || peer->in_flight)
		return true;
	/* A peer that said BYE and got its answer wants nothing more, and may have ended. */
	return peer->state <= NM_NET_HELD && !(peer->bye_sent && peer->bye_seen);
}

static unsigned int count_open(struct net *net, bool with_unknown)
{
	struct nm_net_peer *peer;
	unsigned int nr = 0;

	for (peer = net->peers.all; peer; peer = peer->next)
		nr += is_open(peer) && (with_unknown || !peer->is_unknown);
	return nr;
}

static void say_goodbyes(struct net *net)
{
	struct nm_net_peer *peer;

	for (peer = net->peers.all; peer; peer = peer->next)
		if (nm_net_has_met(peer) && peer->state == NM_NET_UP && !peer->bye_sent &&
		    !nm_net_say(net, peer, NM_NET_BYE))
			peer->bye_sent = true;
}

static void ask_who_lives(struct net *net)
{
	struct nm_net_peer *peer;

	for (peer = net->peers.all; peer; peer = peer->next)
		if (is_open(peer) && peer->state != NM_NET_HELD && peer->bye_sent &&
		    !peer->in_flight)
			nm_net_say(net, peer, NM_NET_PING);
}

void nm_net_destroy(struct nm_transport *transport)
{
	struct net *net = nm_container_of(transport, struct net, base);
	uint64_t begin, asked, now;
	unsigned int nr = 0;

	if (!transport)
		return;
	net->closing = true;
	begin = asked = now = nm_clock_ns();
	do {
		say_goodbyes(net);
		nr = count_open(net, now - begin < UNKNOWN_NS);
		if (!nr)
			break;
		if (!nm_net_poll(net))
			sched_yield();
		now = nm_clock_ns();
		if (now - asked > ASK_NS) {
			asked = now;
			ask_who_lives(net);
		}
	} while (now < transport->close_by_ns);
	if (nr)
		nm_info("network channel closed; %u peers did not answer in time", nr);
	if (net->nr_dropped)
		nm_info("network channel dropped %llu invalid messages",
			(unsigned long long)net->nr_dropped);
	nm_net_free(net);
}
