/* SPDX-License-Identifier: Apache-2.0 */
#include "packets_ways.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct world *world;

static void remember(uint64_t id)
{
	world->ids[world->nr_ids++ % IDS] = id;
}

static struct way *way_of(const struct nm_transport *transport)
{
	return &world->ways[transport == world->ways[1].transport];
}

static int fake_connect(struct nm_transport *transport, const struct nm_address *address,
			struct nm_peer *peer, struct nm_link **ret_link,
			struct nm_reason *ret_reason)
{
	struct way *way = way_of(transport);

	(void)address;
	nm_reason_set(ret_reason, "it is gone");
	if (way->gone || way->is_held)
		return -EHOSTUNREACH;
	way->link = (struct nm_link){
		.transport = transport,
		.peer = peer,
		.remote_copy = way == world->ways && world->copies > 0,
	};
	*ret_link = &way->link;
	return 0;
}

/* Look at what the engine says, as a peer would. */
static int fake_send(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		     unsigned int nr_iov)
{
	uint64_t words[2] = {0};

	if (world->dead || way_of(link->transport)->gone)
		return -EPIPE;
	if (way_of(link->transport)->is_held)
		abort();
	if (world->blocked)
		return -EAGAIN;
	if (nr_iov > 0 && iov[0].iov_len >= 8)
		memcpy(words, iov[0].iov_base, iov[0].iov_len < 16 ? 8 : 16);
	if (pkt->op == NM_OP_RTS)
		remember(words[1]);
	else if (pkt->op == NM_OP_EAGER && pkt->flags & NM_PKT_ACK)
		remember(words[0]);
	else if (pkt->op == NM_OP_CTS && pkt->len > 0)
		remember(pkt->data);
	else if (pkt->op >= NM_OP_WRITE && pkt->op <= NM_OP_ATOMIC)
		remember(pkt->tag);
	return 0;
}

/* No address is ever followed: what matters is which ones are asked for, and what comes after. */
static ssize_t fake_remote(const struct iovec *local, unsigned int nr_local,
			   const struct nm_span *remote, unsigned int nr_remote)
{
	uint64_t here = 0, there = 0;

	if (nr_local < 1 || nr_local > NM_SPANS_MAX || nr_remote < 1 || nr_remote > NM_SPANS_MAX)
		abort();
	for (unsigned int i = 0; i < nr_local; i++)
		here += local[i].iov_len;
	for (unsigned int i = 0; i < nr_remote; i++)
		there += remote[i].len;
	if (here != there || here == 0)
		abort();
	if (world->copies == 0)
		return -EFAULT;
	world->copies--;
	return (ssize_t)(world->copies % 3 ? here : (here + 1) / 2);
}

static ssize_t fake_read_remote(struct nm_link *link, const struct iovec *local,
				unsigned int nr_local, const struct nm_span *remote,
				unsigned int nr_remote)
{
	ssize_t got = fake_remote(local, nr_local, remote, nr_remote);

	(void)link;
	if (got > 0)
		memset(local[0].iov_base, 1, local[0].iov_len);
	return got;
}

static ssize_t fake_write_remote(struct nm_link *link, const struct iovec *local,
				 unsigned int nr_local, const struct nm_span *remote,
				 unsigned int nr_remote)
{
	(void)link;
	return fake_remote(local, nr_local, remote, nr_remote);
}

static bool fake_drained(struct nm_link *link)
{
	return link != NULL;
}

static void fake_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	(void)link;
	memset(ret_facts, 0, sizeof(*ret_facts));
}

static void quarantine(struct way *way)
{
	struct nm_stream_ends ends = {.sent = 3, .taken = 5};
	struct nm_reason why = {"the script says so"};

	if (way->gone || world->dead || !world->source)
		return;
	way->gone = true;
	nm_engine_sink(world->engine)->quarantined(way->transport, world->source, &ends, &why);
}

static void fake_cast_out(struct nm_transport *transport, const struct nm_identity *who,
			  const char *what)
{
	(void)who, (void)what;
	way_of(transport)->ends = true;
}

static void fake_finish(struct nm_transport *transport, const struct nm_identity *who)
{
	(void)who;
	quarantine(way_of(transport));
}

static uint64_t fake_hold(struct nm_link *link)
{
	if (way_of(link->transport)->is_held)
		abort();
	way_of(link->transport)->is_held = true;
	return HELD;
}

static int fake_take_rest(struct nm_transport *transport, const struct nm_identity *who,
			  uint64_t position)
{
	struct way *way = way_of(transport);

	(void)who;
	if (way->gone || way->is_taken || !world->source)
		return -ENOENT;
	way->is_taken = position == HELD;
	return way->is_taken ? 0 : -EBADMSG;
}

static int fake_replay(struct nm_link *link, uint64_t *position, struct nm_link *to)
{
	const struct nm_packet packet = {.op = NM_OP_PACE};
	int err = 0;

	if (!way_of(link->transport)->is_held || *position > HELD)
		abort();
	for (; *position < HELD && !err; *position += !err)
		err = to->transport->ops->send(to, &packet, NULL, 0);
	return err;
}

static void fake_leave(struct nm_link *link)
{
	struct way *way = way_of(link->transport);

	if (!way->is_held || way->is_left)
		abort();
	way->is_left = true;
}

static void fake_forget(struct nm_transport *transport, const struct nm_identity *who)
{
	(void)who;
	way_of(transport)->is_forgotten = true;
}

static int fake_enter(struct nm_transport *transport, const struct nm_address *address,
		      struct nm_peer *peer, struct nm_link **ret_link, struct nm_reason *ret_reason)
{
	struct way *way = way_of(transport);

	nm_reason_set(ret_reason, "it does not answer");
	if (way->nr_enters) {
		way->nr_enters--;
		return -EAGAIN;
	}
	/* Only a direction that was left begins again. */
	if (way->gone || way->is_held != way->is_left)
		return -EHOSTUNREACH;
	way->is_held = way->is_left = false;
	return fake_connect(transport, address, peer, ret_link, ret_reason);
}

static void fake_suspend(struct nm_transport *transport, const struct nm_identity *who,
			 bool is_suspended)
{
	(void)who;
	if (is_suspended && way_of(transport)->is_suspended)
		abort();
	way_of(transport)->is_suspended = is_suspended;
}

static bool fake_listen(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	(void)transport;
	(void)doorbells;
	return true;
}

static bool fake_is_away(const struct nm_transport *transport)
{
	(void)transport;
	return false;
}

static bool fake_home(struct nm_transport *transport, const struct nm_identity *who,
		      const uint8_t home[NM_HOME_LEN])
{
	(void)transport;
	(void)who;
	(void)home;
	return true;
}

static uint64_t fake_heartbeat(struct nm_transport *transport, const struct nm_identity *who)
{
	(void)transport;
	(void)who;
	return 0;
}

static const struct nm_move_ops fake_move_ops = {
	.enter = fake_enter,
	.suspend = fake_suspend,
	.hold = fake_hold,
	.take_rest = fake_take_rest,
	.replay = fake_replay,
	.leave = fake_leave,
	.forget = fake_forget,
	.listen = fake_listen,
	.is_away = fake_is_away,
	.home = fake_home,
	.heartbeat = fake_heartbeat,
};

static unsigned int fake_progress(struct nm_transport *transport)
{
	struct way *way = way_of(transport);
	unsigned int done = way->speaks;

	if (way->speaks && world->source && !world->dead && !way->gone && !way->is_taken &&
	    !way->is_suspended)
		nm_engine_sink(world->engine)
			->deliver(transport, world->source, &way->packet, way->payload);
	way->speaks = false;
	if (way->is_forgotten && world->source)
		nm_engine_sink(world->engine)->asked(transport, world->source, NM_LEAVES);
	way->is_forgotten = false;
	if (way->ends)
		quarantine(way);
	way->ends = false;
	return done;
}

static void fake_destroy(struct nm_transport *transport)
{
	free(transport);
}

static const struct nm_transport_ops fake_ops = {
	.connect = fake_connect,
	.send = fake_send,
	.drained = fake_drained,
	.describe = fake_describe,
	.check_alive = nm_transport_unchecked,
	.wake = nm_transport_unwoken,
	.progress = fake_progress,
	.destroy = fake_destroy,
};

static int fake_publish(struct nm_transport *transport, const struct nm_region *region)
{
	(void)transport, (void)region;
	return -ENOSPC;
}

static void fake_revoke(struct nm_transport *transport, uint64_t key)
{
	(void)transport, (void)key;
}

static int fake_reach(struct nm_link *link, const uint64_t *keys, unsigned int nr_keys,
		      struct nm_region *ret_regions)
{
	(void)link, (void)keys, (void)nr_keys, (void)ret_regions;
	return -ENOKEY;
}

static void fake_polled(struct nm_transport *transport, uint64_t now_ns)
{
	(void)transport, (void)now_ns;
}

static bool fake_polls(struct nm_link *link, uint64_t now_ns)
{
	return !link && now_ns > 0;
}

/* It shows no regions, so there is never one to leave. */
static const struct nm_copy_ops fake_copy_ops = {
	.read_remote = fake_read_remote,
	.write_remote = fake_write_remote,
	.publish = fake_publish,
	.revoke = fake_revoke,
	.reach = fake_reach,
	.leave = nm_transport_unchecked,
	.polled = fake_polled,
	.polls = fake_polls,
};

static const struct nm_quarantine_ops fake_quarantine_ops = {
	.cast_out = fake_cast_out,
	.finish = fake_finish,
};

/* Memory, then network. */
static const struct nm_transport_kind fake_kinds[2] = {
	{.channel = NM_CHANNEL_SHM, .rank = 20, .flags = NM_TRANSPORT_WATCHES},
	{.channel = NM_CHANNEL_NET,
	 .rank = 90,
	 .flags = NM_TRANSPORT_NETWORK | NM_TRANSPORT_WATCHES},
};

void add_way(unsigned int i)
{
	struct nm_transport *t = calloc(1, sizeof(*t));

	if (!t)
		abort();
	t->kind = &fake_kinds[i];
	t->ops = &fake_ops;
	t->copy = i == 0 ? &fake_copy_ops : NULL;
	t->quarantine = i == 0 ? &fake_quarantine_ops : NULL;
	t->move = i == 0 ? &fake_move_ops : NULL;
	t->sink = *nm_engine_sink(world->engine);
	t->max_payload = NM_MIN_MAX_PAYLOAD;
	t->eager_max = 64;
	world->ways[i].transport = t;
	if (nm_engine_add_transport(world->engine, t) < 0)
		abort();
}
