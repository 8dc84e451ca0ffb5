/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of the network goes while the machine of this endpoint moves, and comes back with its
 * address (docs/design/migration.md, "The network").
 *
 *	this endpoint                        each peer that it met
 *	PAUSE, behind everything    ->       sends no packet any more
 *	                           <-        PAUSED, behind everything
 *	closes its inner endpoint, and opens it again
 *	RESUME                      ->       compares the numbers of messages
 *	                           <-        RESUMED, then packets
 *	compares, and sends packets
 *
 * If both pause, the PAUSE of the other one is the answer. An endpoint that is asked after it answered
 * waits with its own pause until that peer has come back: so whoever comes back finds all peers where
 * they were. While a peer is paused, send() has no room for it.
 *
 * The guest unit writes "leave" into a file, the notice, and locks it. Each endpoint has a shared
 * lock of the file while its inner endpoint is open, so the guest unit gets its own when all are
 * closed. It writes anything else, and gives its lock back, when the network is there again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "net/transport.h"

#define LEAVE "leave"
/* Between two looks at the notice. */
#define LOOK_NS (100 * NM_NS_PER_MS)
/* Between two RESUMEs: doubles from the first to the last while there is no answer. */
#define RESUME_FIRST_NS (20 * NM_NS_PER_MS)
#define RESUME_LAST_NS NM_NS_PER_S
/* Between two attempts to open the inner endpoint, and their lines in the log. */
#define RETRY_NS NM_NS_PER_S
#define FAILURE_LINES 4
/* Between two questions for the host of a peer that is away. */
#define ASK_NS NM_NS_PER_S

static bool is_asked(const struct net *net)
{
	char word[sizeof(LEAVE) - 1];

	return pread(net->pause.notice, word, sizeof(word), 0) == sizeof(word) &&
	       !memcmp(word, LEAVE, sizeof(word));
}

static void enter(struct net *net, enum nm_net_place place)
{
	net->pause.place = place;
	net->base.haste = place == NM_NET_PAUSING || place == NM_NET_RETURNING ? 2 : 1;
}

int nm_net_heed(struct net *net, const char *path)
{
	net->pause.notice = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (net->pause.notice < 0)
		return errno == ENOENT ? 0 : -errno;
	if (is_asked(net))
		return -EBUSY;
	enter(net, NM_NET_STAYS);
	return flock(net->pause.notice, LOCK_SH | LOCK_NB) == 0 ? 0 :
	       errno == EWOULDBLOCK				? -EBUSY :
								  -errno;
}

void nm_net_hold_back(struct net *net, struct nm_net_peer *peer)
{
	if (peer->state == NM_NET_UP &&
	    (net->pause.place == NM_NET_PAUSING || net->pause.place == NM_NET_AWAY))
		peer->state = NM_NET_HELD;
}

bool nm_net_may_fail(const struct net *net, const struct nm_net_peer *peer)
{
	/* A peer that is there is checked by its lifeline. */
	return peer->state == NM_NET_HELD &&
	       (peer->is_away || net->pause.place == NM_NET_RETURNING);
}

/* Packets flow again in both directions. */
static void go_on(struct net *net, struct nm_net_peer *peer)
{
	peer->pause_said = peer->is_quiet = peer->is_away = false;
	peer->resume_ns = peer->first_resume_ns = 0;
	peer->state = NM_NET_UP;
	nm_net_forget_line(peer);
	nm_net_hold_back(net, peer);
}

void nm_net_take_pause(struct net *net, struct nm_net_peer *peer)
{
	if (peer->state > NM_NET_HELD)
		return;
	if (peer->is_away || peer->is_quiet || peer->resumed_owed) {
		nm_net_quarantine(net, peer, "a pause within a pause");
		return;
	}
	NM_FAULT("net-pause-heard");
	peer->state = NM_NET_HELD;
	peer->is_away = net->pause.has_away = true;
	peer->away_ns = nm_clock_ns();
	nm_net_forget_line(peer);
	if (peer->pause_said) {
		peer->is_quiet = true;
		return;
	}
	peer->paused_owed = true;
	net->nr_owed++;
	/* One of this machine is asked by the same notice, and is back only with this endpoint. */
	net->pause.look_ns = 0;
	nm_net_look(net, peer->away_ns);
}

void nm_net_take_paused(struct net *net, struct nm_net_peer *peer)
{
	if (peer->state > NM_NET_HELD)
		return;
	if (!peer->pause_said || peer->is_quiet) {
		nm_net_quarantine(net, peer, "the answer to a pause that was not");
		return;
	}
	NM_FAULT("net-paused-heard");
	peer->is_quiet = true;
}

/* RESUME and RESUMED: the peer that sent it, if it may do so; else NULL. */
static struct nm_net_peer *sender(struct net *net, const struct nm_net_header *header)
{
	struct nm_net_peer *peer = nm_net_peers_find(&net->peers, &header->source);

	if (!peer || !peer->heard || header->token != peer->token_in) {
		nm_net_drop(net, "the end of a pause without the token of its source");
		return NULL;
	}
	if (header->len || header->tag == 0 || header->tag > UINT32_MAX) {
		nm_net_drop(net, "the end of a pause with wrong numbers");
		return NULL;
	}
	return peer;
}

/* Whether all that each side sent was taken by the other one; else PEER is lost. */
static bool compare(struct net *net, struct nm_net_peer *peer, const struct nm_net_header *header)
{
	char words[160];

	if (header->sequence == peer->rx_sequence && header->data == peer->tx_sequence)
		return true;
	snprintf(words, sizeof(words),
		 "messages were lost in a pause of the network: it sent %u and %u were taken, it "
		 "took %llu and %u were sent",
		 header->sequence, peer->rx_sequence, (unsigned long long)header->data,
		 peer->tx_sequence);
	nm_net_lose(net, peer, -ECONNRESET, words);
	return false;
}

void nm_net_take_resume(struct net *net, const struct nm_net_header *header)
{
	struct nm_net_peer *peer = sender(net, header);

	/* Repeated, or crossed by the answer to the own one: no news. */
	if (!peer || header->tag <= peer->opening)
		return;
	if (peer->state != NM_NET_HELD || !peer->is_away || peer->paused_owed) {
		nm_net_drop(net, "the end of a pause that was not");
		return;
	}
	if (!compare(net, peer, header))
		return;
	NM_FAULT("net-resume-heard");
	peer->opening = (uint32_t)header->tag;
	/* It stays paused until it has the answer. */
	peer->is_away = peer->pause_said = peer->is_quiet = false;
	peer->resumed_owed = true;
	net->nr_owed++;
}

void nm_net_pay_resumed(struct net *net, struct nm_net_peer *peer)
{
	const struct nm_packet pkt = {.tag = peer->opening, .data = peer->rx_sequence};

	NM_FAULT("net-resumed-say-before");
	if (peer->state == NM_NET_HELD &&
	    nm_net_send_one(net, peer, NM_NET_RESUMED, &pkt, NULL, 0) == -EAGAIN)
		return;
	NM_FAULT("net-resumed-say-after");
	peer->resumed_owed = false;
	net->nr_owed--;
	if (peer->state == NM_NET_HELD)
		go_on(net, peer);
}

void nm_net_take_resumed(struct net *net, const struct nm_net_header *header)
{
	struct nm_net_peer *peer = sender(net, header);

	if (!peer || peer->state != NM_NET_HELD || !peer->first_resume_ns || peer->resumed_owed ||
	    header->tag != net->pause.opening)
		return;
	NM_FAULT("net-resumed-heard");
	if (compare(net, peer, header))
		go_on(net, peer);
}

/* PEER has to answer the own PAUSE, or to come back first. Says PAUSE if that is due. */
static bool is_awaited(struct net *net, struct nm_net_peer *peer)
{
	if (peer->state == NM_NET_DEAD)
		return false;
	if (peer->in_flight)
		return true;
	if (peer->state != NM_NET_HELD || peer->is_quiet)
		return false;
	/* The token that it asked for finds nobody later. */
	if (!nm_net_has_met(peer) && peer->first_knock_ns && !peer->has_token)
		return nm_net_knock(net, peer) == -EAGAIN;
	if (!nm_net_has_met(peer))
		return false;
	if (!peer->pause_said && !peer->is_away && !peer->resumed_owed) {
		NM_FAULT("net-pause-say-before");
		peer->pause_said = nm_net_say(net, peer, NM_NET_PAUSE) == 0;
		NM_FAULT("net-pause-say-after");
	}
	return true;
}

/* The endpoint first: it still writes into posted buffers. */
static void shut(struct net *net)
{
	fi_close(&net->inner.ep->fid);
	net->inner.ep = NULL;
	nm_net_pool_strip(&net->small);
	nm_net_pool_strip(&net->large);
	nm_net_pool_strip(&net->receive);
	nm_net_lifeline_shut(net);
	nm_net_inner_shut(&net->inner);
}

static void cut(struct net *net)
{
	struct nm_net_peer *peer;

	NM_FAULT("net-all-quiet");
	shut(net);
	NM_FAULT("net-shut");
	for (peer = net->peers.all; peer; peer = peer->next) {
		peer->in_flight = 0;
		nm_net_forget_line(peer);
	}
	memset(net->strangers, 0, sizeof(net->strangers));
	flock(net->pause.notice, LOCK_UN);
	NM_FAULT("net-unlocked");
	enter(net, NM_NET_AWAY);
	net->pause.nr_lines = 0;
	net->pause.look_ns = 0;
	nm_info("the network was given up: this machine is to be moved");
}

static void pause_peers(struct net *net)
{
	struct nm_net_peer *peer;
	bool awaits = net->nr_owed > 0;

	for (peer = net->peers.all; peer; peer = peer->next) {
		nm_net_hold_back(net, peer);
		if (!is_awaited(net, peer))
			continue;
		awaits = true;
		nm_net_watch(net, peer);
	}
	for (unsigned int i = 0; i < NM_NET_STRANGERS; i++)
		awaits |= net->strangers[i].in_flight > 0;
	if (!awaits)
		cut(net);
}

static void begin_return(struct net *net)
{
	enter(net, NM_NET_RETURNING);
	net->pause.opening++;
	net->pause.limit_ns = nm_clock_ns() + net->move_ns;
}

static int reopen(struct net *net, struct nm_reason *ret_why)
{
	int err = nm_net_inner_reopen(&net->inner, ret_why);

	if (err)
		return err;
	err = nm_net_lifeline_reopen(net);
	if (!err)
		err = nm_net_pool_furnish(&net->small, &net->inner);
	if (!err)
		err = nm_net_pool_furnish(&net->large, &net->inner);
	if (!err)
		err = nm_net_pool_furnish(&net->receive, &net->inner);
	if (!err)
		return 0;
	nm_reason_set(ret_why, "%s: %s", net->inner.text, strerror(-err));
	shut(net);
	return err;
}

/* The new address vector is empty. */
static void reach_again(struct net *net)
{
	struct nm_net_peer *peer;

	for (peer = net->peers.all; peer; peer = peer->next) {
		if (peer->inner == FI_ADDR_UNSPEC)
			continue;
		peer->inner = FI_ADDR_UNSPEC;
		if (peer->state != NM_NET_DEAD && nm_net_reach(net, peer))
			nm_net_lose(net, peer, -ECONNRESET,
				    "its network address cannot be used any more");
	}
}

static void try_return(struct net *net, uint64_t now)
{
	struct nm_reason why;

	/* The guest unit gives its lock back when the network is there. */
	if (!net->closing && flock(net->pause.notice, LOCK_SH | LOCK_NB))
		return;
	NM_FAULT("net-locked");
	if (reopen(net, &why)) {
		flock(net->pause.notice, LOCK_UN);
		net->pause.look_ns = now + RETRY_NS;
		if (net->pause.nr_lines++ < FAILURE_LINES)
			nm_warn("the network cannot be used yet: %s", why.text);
		return;
	}
	NM_FAULT("net-opened");
	reach_again(net);
	begin_return(net);
	nm_info("the network is there again: %s", net->inner.text);
}

/* False: PEER is to be resumed, or has to answer a PAUSE before. */
static bool is_resumed(struct net *net, struct nm_net_peer *peer, uint64_t now)
{
	const struct nm_packet pkt = {.tag = net->pause.opening, .data = peer->rx_sequence};
	const uint64_t gap =
		nm_net_gap(peer->first_resume_ns, peer->resume_ns, RESUME_FIRST_NS, RESUME_LAST_NS);

	if (peer->state != NM_NET_HELD)
		return true;
	if (!peer->pause_said) {
		/* It was not asked; one that is away comes back by itself. */
		if (!peer->is_away && !peer->resumed_owed)
			go_on(net, peer);
		return true;
	}
	if (now > net->pause.limit_ns)
		nm_net_lose(net, peer, -ECONNRESET,
			    "it has not answered the return of this endpoint's network within "
			    "NEARMETAL_MOVE_MS");
	else
		nm_net_watch(net, peer);
	if (!peer->is_quiet || peer->state != NM_NET_HELD || peer->in_flight ||
	    (peer->first_resume_ns && now - peer->resume_ns < gap) ||
	    nm_net_send_one(net, peer, NM_NET_RESUME, &pkt, NULL, 0))
		return peer->state != NM_NET_HELD;
	NM_FAULT("net-resume-said");
	peer->resume_ns = now;
	if (!peer->first_resume_ns)
		peer->first_resume_ns = now;
	return false;
}

static void resume_peers(struct net *net)
{
	uint64_t now = nm_clock_ns();
	struct nm_net_peer *peer;
	bool is_over = true;

	for (peer = net->peers.all; peer; peer = peer->next)
		is_over &= is_resumed(net, peer, now);
	if (!is_over)
		return;
	NM_FAULT("net-returned");
	enter(net, NM_NET_STAYS);
	net->take = net->pause.take;
}

/* `take` of the transport until all peers are resumed. */
static NM_COLD unsigned int take(struct net *net)
{
	unsigned int nr = 0;

	if (net->inner.ep)
		nr = net->pause.take(net);
	if (net->pause.place == NM_NET_PAUSING)
		pause_peers(net);
	else if (net->pause.place == NM_NET_RETURNING)
		resume_peers(net);
	if (net->pause.place != NM_NET_STAYS)
		nm_net_look(net, nm_clock_ns());
	return nr;
}

static void begin(struct net *net)
{
	/* The memory of devices is registered for good, and a machine that has some is not moved. */
	if (net->gpudirect) {
		nm_log_once(NM_LOG_WARN, "the network is kept, though this machine is to be moved: "
					 "adapters reach memory of devices (NEARMETAL_GPUDIRECT)");
		return;
	}
	NM_FAULT("net-pause-begin");
	enter(net, NM_NET_PAUSING);
	net->pause.take = net->take;
	net->take = take;
}

/*
 * The word that ends a connection can be lost with the device. Only this endpoint has it then, and the
 * inner endpoint takes no other one from that peer. Whatever is sent there ends it, as soon as the
 * host of the peer answers again; a request for a token has no other effect.
 */
static void ask_away(struct net *net, uint64_t now)
{
	struct nm_net_peer *peer;

	net->pause.ask_ns = now + ASK_NS;
	net->pause.has_away = false;
	for (peer = net->peers.all; peer; peer = peer->next) {
		if (peer->state != NM_NET_HELD || !peer->is_away)
			continue;
		net->pause.has_away = true;
		if (!peer->paused_owed && !peer->in_flight && nm_net_host_answers(net, peer))
			nm_net_knock(net, peer);
	}
}

void nm_net_look(struct net *net, uint64_t now_ns)
{
	bool leaves;

	if (now_ns < net->pause.look_ns)
		return;
	net->pause.look_ns = now_ns + LOOK_NS;
	if (net->pause.has_away && net->pause.place != NM_NET_AWAY && now_ns >= net->pause.ask_ns)
		ask_away(net, now_ns);
	if (net->pause.notice < 0)
		return;
	leaves = !net->closing && is_asked(net);
	if (leaves && net->pause.place == NM_NET_STAYS)
		begin(net);
	else if (!leaves && net->pause.place == NM_NET_PAUSING)
		begin_return(net);
	else if (!leaves && net->pause.place == NM_NET_AWAY)
		try_return(net, now_ns);
}
