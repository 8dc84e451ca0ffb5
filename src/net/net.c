/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects, sends and polls; receive.c receives, alive.c checks silent peers, close.c closes. Each
 * peer has one ordered stream of the inner endpoint, numbered so that every loss is noticed.
 */
#include "net/transport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/params.h"
#include "net/gpudirect.h"
#include "net/host.h"

#define SMALL_PAYLOAD 2048
#define NR_SMALL 512
#define NR_LARGE 48
#define NR_RECEIVE 48
/* Largest number of send buffers that one peer may hold if it does not take its messages. */
#define NR_SMALL_PER_PEER 128
#define NR_LARGE_PER_PEER 16 /* 1 MiB in flight: more than TCP takes at once */
/* Messages to one peer since a large one that is in flight, over an endpoint that may reorder. */
#define NR_LAYERED 64 /* a quarter of what receive.c keeps */
/*
 * Polling the inner endpoint is a system call. After this many polls without result it is polled
 * every SLOW_CALLS calls or SLOW_NS, whichever comes first: 5 us are short compared with the 10 us
 * of a message over TCP, and long compared with the 0.1 us of one through memory.
 */
#define QUIET_POLLS 64
#define SLOW_CALLS 64
#define SLOW_NS (5 * NM_NS_PER_US)
/*
 * While no peer is known on this channel there is only a first greeting to miss, and a job whose
 * ranks are all near would pay a tenth of its latency for looking: 50 us are enough.
 */
#define LONELY_NS (50 * NM_NS_PER_US)

static struct net *net_of(struct nm_transport *transport)
{
	return nm_container_of(transport, struct net, base);
}

static struct nm_net_peer *peer_of(const struct nm_link *link)
{
	return nm_container_of(link, struct nm_net_peer, link);
}

void nm_net_lose(struct net *net, struct nm_net_peer *peer, int err, const char *words)
{
	bool was_up = peer->state <= NM_NET_HELD;

	if (peer->state == NM_NET_DEAD)
		return;
	nm_net_end(net, peer, NM_NET_DEAD);
	nm_net_gpudirect_lost(net, peer);
	nm_net_peer_drop_early(peer);
	peer->loss_err = err;
	nm_reason_set(&peer->loss, "%s", words);
	/* The end of one that had closed is no news. */
	if (!was_up)
		return;
	peer->loss_unreported = true;
	net->nr_unreported++;
}

static void report_losses(struct net *net)
{
	struct nm_net_peer *peer;

	net->nr_unreported = 0;
	for (peer = net->peers.all; peer; peer = peer->next) {
		if (!peer->loss_unreported)
			continue;
		peer->loss_unreported = false;
		if (!net->closing && (peer->is_source || peer->linked))
			net->base.sink.source_down(&net->base,
						   peer->is_source ? peer->source : peer->link.peer,
						   peer->loss_err, &peer->loss);
	}
}

int nm_net_reach(struct net *net, struct nm_net_peer *peer)
{
	if (peer->inner != FI_ADDR_UNSPEC)
		return 0;
	if (fi_av_insert(net->inner.av, peer->address.inner, 1, &peer->inner, 0, NULL) != 1) {
		peer->inner = FI_ADDR_UNSPEC;
		return -EHOSTUNREACH;
	}
	return 0;
}

static void fill_header(struct net *net, const struct nm_net_peer *peer, enum nm_net_kind kind,
			const struct nm_packet *pkt, struct nm_net_header *header)
{
	*header = (struct nm_net_header){
		.magic = NM_NET_MAGIC,
		.version = NM_NET_VERSION,
		.kind = (uint8_t)kind,
		.op = pkt->op,
		.flags = pkt->flags,
		.len = pkt->len,
		.sequence = peer->tx_sequence,
		.tag = pkt->tag,
		.data = pkt->data,
		.source = net->who,
		.token = peer->token_out,
	};
}

/* The inner endpoint refused for good. Out of the line: nothing of this is on the usual path. */
static NM_COLD int send_failed(struct net *net, struct nm_net_peer *peer, ssize_t err)
{
	char words[128];

	if (nm_net_may_fail(net, peer))
		return -EAGAIN;
	snprintf(words, sizeof(words), "network send to it failed: %s",
		 nm_host.strerror((int)-err));
	nm_net_lose(net, peer, -ECONNRESET, words);
	return -EPIPE;
}

int nm_net_send_one(struct net *net, struct nm_net_peer *peer, enum nm_net_kind kind,
		    const struct nm_packet *pkt, const struct iovec *iov, unsigned int nr_iov)
{
	bool is_small = pkt->len <= SMALL_PAYLOAD;
	struct nm_net_buffer *buffer;
	size_t at = sizeof(struct nm_net_header);
	unsigned int i;
	ssize_t err;

	if (peer->in_flight >= (is_small ? NR_SMALL_PER_PEER : NR_LARGE_PER_PEER) ||
	    nm_unlikely(peer->since_large >= NR_LAYERED)) {
		nm_net_stuck(net, peer);
		return -EAGAIN;
	}
	buffer = nm_net_buffer_take(is_small ? &net->small : &net->large);
	if (!buffer) {
		nm_net_exhausted(net);
		return -EAGAIN;
	}
	net->exhausted_ns = 0;
	fill_header(net, peer, kind, pkt, (struct nm_net_header *)(void *)buffer->bytes);
	for (i = 0; i < nr_iov; i++) {
		if (iov[i].iov_len)
			memcpy(buffer->bytes + at, iov[i].iov_base, iov[i].iov_len);
		at += iov[i].iov_len;
	}
	buffer->peer = peer;
	err = fi_send(net->inner.ep, buffer->bytes, at, buffer->desc, peer->inner,
		      &buffer->context);
	if (nm_unlikely(err)) {
		nm_net_buffer_give(buffer);
		if (err != -FI_EAGAIN)
			return send_failed(net, peer, err);
		nm_net_stuck(net, peer);
		return peer->state == NM_NET_DEAD ? -EPIPE : -EAGAIN;
	}
	peer->stuck_ns = 0;
	peer->in_flight++;
	if (nm_unlikely(net->inner.is_layered)) {
		peer->large_in_flight += !is_small;
		peer->since_large += peer->large_in_flight > 0;
	}
	peer->tx_sequence += nm_net_is_numbered((uint8_t)kind);
	net->quiet_polls = 0;
	net->base.pause = 0;
	return 0;
}

static int greet(struct net *net, struct nm_net_peer *peer)
{
	struct nm_net_hello hello = {.address = net->address, .label = net->label};
	const struct nm_packet pkt = {.len = sizeof(hello)};
	struct iovec iov = {.iov_base = &hello, .iov_len = sizeof(hello)};
	uint64_t token;
	int err;

	err = nm_net_reach(net, peer);
	if (err)
		return send_failed(net, peer, -FI_EHOSTUNREACH);
	if (!peer->has_token)
		return nm_net_knock(net, peer);
	token = nm_net_token(net->key, &peer->address);
	memcpy(hello.token, &token, sizeof(token));
	err = nm_net_send_one(net, peer, NM_NET_HELLO, &pkt, &iov, 1);
	if (err)
		return err;
	peer->greeted = true;
	if (peer->state == NM_NET_UP)
		nm_net_meet_line(net, peer);
	return 0;
}

int nm_net_say(struct net *net, struct nm_net_peer *peer, enum nm_net_kind kind)
{
	const struct nm_packet pkt = {.data = peer->is_refused ? NM_NET_REFUSED : 0};
	int err = peer->greeted ? 0 : greet(net, peer);

	return err ? err : nm_net_send_one(net, peer, kind, &pkt, NULL, 0);
}

static int net_connect(struct nm_transport *transport, const struct nm_address *address,
		       struct nm_peer *engine_peer, struct nm_link **ret_link,
		       struct nm_reason *ret_reason)
{
	struct net *net = net_of(transport);
	struct nm_net_peer *peer = nm_net_peers_find(&net->peers, &address->who);

	/* A source may be answered before the program inserts its address: its greeting has one. */
	if (!(peer && peer->is_source) && !nm_net_inner_fits(&net->inner, address, ret_reason))
		return -EHOSTUNREACH;
	peer = nm_net_peers_get(&net->peers, &address->who);
	if (!peer) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	if (peer->is_unknown && address->inner_len && !nm_net_same_name(&peer->address, address)) {
		nm_reason_set(ret_reason, "another process has greeted in its name");
		return -EHOSTUNREACH;
	}
	nm_net_hold_back(net, peer);
	if (peer->state > NM_NET_HELD) {
		nm_reason_set(ret_reason, "the peer is down: %s",
			      peer->state == NM_NET_CLOSED ? "it closed" : peer->loss.text);
		return -EHOSTUNREACH;
	}
	if (peer->inner == FI_ADDR_UNSPEC && !peer->is_source)
		peer->address = *address;
	if (net->pause.place != NM_NET_AWAY && nm_net_reach(net, peer)) {
		nm_reason_set(ret_reason, "%s cannot use the peer's network address",
			      net->inner.text);
		return -EHOSTUNREACH;
	}
	peer->link.transport = transport;
	peer->link.peer = engine_peer;
	peer->linked = true;
	*ret_link = &peer->link;
	nm_reason_set(ret_reason, "%s", net->inner.text);
	return 0;
}

/* PEER is not UP. */
static NM_COLD int refuse(struct net *net, struct nm_net_peer *peer)
{
	if (peer->state == NM_NET_HELD)
		nm_net_stuck(net, peer);
	return peer->state == NM_NET_HELD ? -EAGAIN : -EPIPE;
}

static int net_send(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		    unsigned int nr_iov)
{
	struct net *net = net_of(link->transport);
	struct nm_net_peer *peer = peer_of(link);
	int err;

	if (nm_unlikely(peer->state != NM_NET_UP))
		return refuse(net, peer);
	if (nm_unlikely(!peer->greeted)) {
		err = greet(net, peer);
		if (err)
			return err;
	}
	return nm_net_send_one(net, peer, NM_NET_PACKET, pkt, iov, nr_iov);
}

static bool net_drained(struct nm_link *link)
{
	return !peer_of(link)->in_flight || peer_of(link)->state > NM_NET_HELD;
}

static void net_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	const struct nm_net_peer *peer = peer_of(link);

	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->relation = NM_RELATION_NETWORK;
	ret_facts->channel = NM_CHANNEL_NET;
	ret_facts->integrity = NM_INTEGRITY_NONE;
	nm_reason_set(&ret_facts->reason, "%s", net_of(link->transport)->inner.text);
	ret_facts->label = peer->label;
	ret_facts->finds_death = nm_net_finds_death(net_of(link->transport), peer);
	if (net_of(link->transport)->base.sink.has_devices)
		nm_net_gpudirect_describe(net_of(link->transport), &ret_facts->device);
}

/*
 * Whether there is a peer, its lifeline says. Whether the inner endpoint's own connection still
 * stands while nothing is sent on it, a send finds out.
 */
static void net_check_alive(struct nm_link *link)
{
	struct net *net = net_of(link->transport);
	struct nm_net_peer *peer = peer_of(link);
	uint64_t now = nm_clock_ns();

	nm_net_watch(net, peer);
	if (peer->state != NM_NET_UP || peer->in_flight || now - peer->pinged_ns < net->ping_ns)
		return;
	peer->pinged_ns = now;
	nm_net_say(net, peer, NM_NET_PING);
}

/* The inner endpoint has accepted nothing for PEER for so long that its host counts as lost. */
static bool is_lost(const struct net *net, const struct nm_net_peer *peer)
{
	return peer->stuck_ns && nm_clock_ns() - peer->stuck_ns >= net->timeout_ns;
}

/*
 * Send KIND if it is owed. If it cannot be sent now, for lack of buffers, it stays owed. A dead or
 * lost peer is owed nothing.
 */
static void pay(struct net *net, struct nm_net_peer *peer, enum nm_net_kind kind, bool *owed)
{
	if (!*owed)
		return;
	if (peer->state != NM_NET_DEAD && nm_net_say(net, peer, kind) == -EAGAIN &&
	    peer->state != NM_NET_DEAD && !is_lost(net, peer))
		return;
	*owed = false;
	net->nr_owed--;
}

/* The own PAUSE, if there is one to say, is the answer to that of PEER. */
static void pay_paused(struct net *net, struct nm_net_peer *peer)
{
	bool leaves = net->pause.place == NM_NET_PAUSING;

	NM_FAULT("net-paused-say-before");
	pay(net, peer, leaves ? NM_NET_PAUSE : NM_NET_PAUSED, &peer->paused_owed);
	NM_FAULT("net-paused-say-after");
	if (!peer->paused_owed)
		peer->pause_said = peer->is_quiet = leaves;
}

static void pay_all(struct net *net)
{
	struct nm_net_peer *peer;

	for (peer = net->peers.all; peer; peer = peer->next) {
		pay(net, peer, NM_NET_BYE, &peer->bye_owed);
		pay(net, peer, NM_NET_BYE_SEEN, &peer->answer_owed);
		if (peer->paused_owed)
			pay_paused(net, peer);
		if (peer->resumed_owed)
			nm_net_pay_resumed(net, peer);
	}
	for (unsigned int i = 0; i < NM_NET_STRANGERS; i++)
		pay(net, &net->strangers[i], NM_NET_BYE, &net->strangers[i].bye_owed);
}

unsigned int nm_net_poll(struct net *net)
{
	struct nm_net_buffer *buffer;
	unsigned int work;

	work = net->take(net);
	while (nm_unlikely(net->receive.unused)) {
		uint32_t before = net->receive.nr_unused;

		buffer = nm_net_buffer_take(&net->receive);
		nm_net_post_receive(net, buffer);
		if (net->receive.nr_unused == before)
			break;
	}
	if (nm_unlikely(net->nr_owed))
		pay_all(net);
	if (nm_unlikely(net->nr_unreported))
		report_losses(net);
	return work;
}

/* May the inner endpoint be left alone for this call? */
static bool may_skip(struct net *net)
{
	bool lonely = net->peers.nr == 0;
	uint64_t now;

	if (net->quiet_polls < QUIET_POLLS || net->nr_unreported)
		return false;
	/* The clock costs 20 ns, and so does this call; asked for now and then it is not seen. */
	net->base.pause = lonely ? 63 : 7;
	net->skipped += net->base.pause + 1;
	if (!lonely && net->skipped >= SLOW_CALLS)
		return false;
	now = nm_clock_ns();
	return now - net->polled_ns < (lonely ? LONELY_NS : SLOW_NS);
}

static unsigned int net_progress(struct nm_transport *transport)
{
	struct net *net = net_of(transport);
	unsigned int work;

	if (may_skip(net))
		return 0;
	net->skipped = 0;
	if (net->quiet_polls >= QUIET_POLLS) {
		net->polled_ns = nm_clock_ns();
		nm_net_look(net, net->polled_ns);
	}
	nm_net_lifeline_serve(net);
	work = nm_net_poll(net);
	net->quiet_polls = work ? 0 : net->quiet_polls + 1;
	return work;
}

/* Messages arrive only if this endpoint polls; a peer's first greeting can wait for a moment. */
static bool net_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	(void)doorbells;
	return net_of(transport)->peers.nr == 0;
}

static const struct nm_transport_ops net_ops = {
	.connect = net_connect,
	.send = net_send,
	.drained = net_drained,
	.describe = net_describe,
	.check_alive = net_check_alive,
	.sleep = net_sleep,
	.wake = nm_transport_unwoken,
	.progress = net_progress,
	.destroy = nm_net_destroy,
};

static void make_label(struct nm_peer_label *label)
{
	char host[65] = "?";

	gethostname(host, sizeof(host) - 1);
	snprintf(label->text, sizeof(label->text), "%s, pid %d", host, (int)getpid());
}

static int init_buffers(struct net *net)
{
	const size_t header = sizeof(struct nm_net_header);
	int err;

	err = nm_net_pool_init(&net->small, &net->inner, NR_SMALL, header + SMALL_PAYLOAD, 1);
	if (!err)
		err = nm_net_pool_init(&net->large, &net->inner, NR_LARGE,
				       header + NM_NET_MAX_PAYLOAD, 2);
	if (!err)
		err = nm_net_pool_init(&net->receive, &net->inner, NR_RECEIVE,
				       header + NM_NET_MAX_PAYLOAD, 3);
	return err;
}

void nm_net_free(struct net *net)
{
	/*
	 * The endpoint first: it still writes into posted buffers. Then registrations, then the
	 * rest.
	 */
	if (net->inner.ep)
		fi_close(&net->inner.ep->fid);
	net->inner.ep = NULL;
	if (net->pause.notice >= 0)
		close(net->pause.notice);
	nm_net_gpudirect_close(net);
	nm_net_lifeline_close(net);
	nm_net_pool_fini(&net->small);
	nm_net_pool_fini(&net->large);
	nm_net_pool_fini(&net->receive);
	nm_net_inner_close(&net->inner);
	nm_net_peers_fini(&net->peers);
	free(net);
}

static int net_create(const struct nm_sink *sink, struct nm_address *address,
		      struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	const struct nm_params *params = nm_params();
	struct net *net;
	int err;

	net = calloc(1, sizeof(*net));
	if (!net || nm_net_peers_init(&net->peers)) {
		free(net);
		nm_reason_set(ret_reason, "out of memory");
		err = -ENOMEM;
		goto err_log;
	}
	err = nm_net_heed(net, params->net_notice);
	if (err) {
		nm_reason_set(ret_reason, "%s: %s", params->net_notice,
			      err == -EBUSY ? "this machine is being moved" : strerror(-err));
		goto err_free;
	}
	if (getrandom(net->key, sizeof(net->key), 0) != sizeof(net->key)) {
		nm_reason_set(ret_reason, "no random numbers: %s", strerror(errno));
		err = -EIO;
		goto err_free;
	}
	err = nm_net_inner_open(params->net, NR_SMALL + NR_LARGE + NR_RECEIVE,
				sink->has_devices && !strcmp(params->gpudirect, "auto"),
				&net->inner, ret_reason);
	if (err)
		goto err_free;
	nm_net_inner_set_lifeline(&net->inner, nm_net_lifeline_open(net));
	err = init_buffers(net);
	if (err) {
		nm_reason_set(ret_reason, "no memory for the buffers of %s: %s%s", net->inner.text,
			      strerror(-err),
			      net->inner.info->domain_attr->mr_mode & FI_MR_LOCAL ?
				      NM_RAISE_MEMLOCK :
				      "");
		goto err_free;
	}
	net->base.kind = &nm_net_kind;
	net->base.ops = &net_ops;
	net->base.sink = *sink;
	net->base.learn = nm_net_learn;
	net->take = nm_net_take_completions;
	if (sink->has_devices)
		nm_net_gpudirect_open(net);
	net->base.max_payload = NM_NET_MAX_PAYLOAD;
	net->base.eager_max = (uint32_t)params->net_eager_max;
	net->ping_ns = net->watch_ns = params->keepalive_ms * NM_NS_PER_MS / 2;
	net->timeout_ns = params->net_timeout_ms * NM_NS_PER_MS;
	net->stuck_ns = params->keepalive_ms * NM_NS_PER_MS;
	net->move_ns = params->move_ms * NM_NS_PER_MS;
	memcpy(address->inner, net->inner.name, sizeof(address->inner));
	address->inner_len = net->inner.name_len;
	net->who = address->who;
	net->address = *address;
	make_label(&net->label);
	nm_net_poll(net); /* posts the receive buffers */
	nm_reason_set(ret_reason, "%s", net->inner.text);
	*ret_transport = &net->base;
	return 0;

err_free:
	nm_net_free(net);
err_log:
	nm_log_once(NM_LOG_WARN,
		    "network channel unavailable, only neighbours can be reached: %s "
		    "(NEARMETAL_NET=%s)",
		    ret_reason->text, params->net);
	return err;
}

const struct nm_transport_kind nm_net_kind = {
	.channel = NM_CHANNEL_NET,
	.rank = 90,
	.flags = NM_TRANSPORT_NETWORK | NM_TRANSPORT_SILENT,
	.create = net_create,
};
