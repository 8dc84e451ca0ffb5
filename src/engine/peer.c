/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/peer.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"
#include "engine/unexpected.h"
#include "transport/select.h"

#define TABLE_MIN 64
/* Of why a channel was taken, where why not the others is to be said, too. */
#define WHY_THIS_MAX 90
/* DATA packets sent to a peer in one round, before others have their turn. */
#define STREAM_BUDGET 16
/*
 * Bytes of answers that may wait for a peer that takes none. A sound one has asked for each of them
 * and gets them while it waits: 32 MiB are a quarter of a million answers to messages, or
 * sixteen thousand of the largest results of atomics. Beyond that a peer would be eating our
 * memory.
 */
#define CONTROL_BYTES_MAX (UINT64_C(32) << 20)

const uint32_t nm_peer_transitions[NM_NR_PEER_STATES] = {
	[NM_PEER_KNOWN] = NM_STATE(NM_PEER_CONNECTING) | NM_STATE(NM_PEER_UNREACHED) |
			  NM_STATE(NM_PEER_CONNECTED) | NM_STATE(NM_PEER_MOVING) |
			  NM_STATE(NM_PEER_DOWN),
	[NM_PEER_CONNECTING] = NM_STATE(NM_PEER_KNOWN) | NM_STATE(NM_PEER_CONNECTED) |
			       NM_STATE(NM_PEER_MOVING) | NM_STATE(NM_PEER_DOWN),
	[NM_PEER_UNREACHED] =
		NM_STATE(NM_PEER_KNOWN) | NM_STATE(NM_PEER_MOVING) | NM_STATE(NM_PEER_DOWN),
	[NM_PEER_CONNECTED] =
		NM_STATE(NM_PEER_MOVING) | NM_STATE(NM_PEER_LINK_LOST) | NM_STATE(NM_PEER_DOWN),
	[NM_PEER_MOVING] =
		NM_STATE(NM_PEER_CONNECTED) | NM_STATE(NM_PEER_LINK_LOST) | NM_STATE(NM_PEER_DOWN),
	[NM_PEER_LINK_LOST] = NM_STATE(NM_PEER_MOVING) | NM_STATE(NM_PEER_DOWN),
};

int nm_peer_table_init(struct nm_peer_table *table)
{
	table->slots = calloc(TABLE_MIN, sizeof(*table->slots));
	if (!table->slots)
		return -ENOMEM;
	table->mask = TABLE_MIN - 1;
	table->nr = 0;
	return 0;
}

void nm_peer_table_fini(struct nm_peer_table *table)
{
	if (!table->slots)
		return;
	for (size_t i = 0; i <= table->mask; i++) {
		if (table->slots[i]) {
			nm_failover_end(table->slots[i]);
			nm_move_free(table->slots[i]);
			free(table->slots[i]->diag);
			free(table->slots[i]->bulk);
		}
		free(table->slots[i]);
	}
	free(table->slots);
	table->slots = NULL;
}

static struct nm_peer **table_slot(const struct nm_peer_table *table, const struct nm_identity *who)
{
	size_t i = (size_t)nm_identity_hash(who) & table->mask;

	while (table->slots[i] && !nm_identity_equal(&table->slots[i]->who, who))
		i = (i + 1) & table->mask;
	return &table->slots[i];
}

static int table_grow(struct nm_peer_table *table)
{
	struct nm_peer_table bigger = {
		.slots = calloc((table->mask + 1) * 2, sizeof(*bigger.slots)),
		.mask = table->mask * 2 + 1,
		.nr = table->nr,
	};

	if (!bigger.slots)
		return -ENOMEM;
	for (size_t i = 0; i <= table->mask; i++)
		if (table->slots[i])
			*table_slot(&bigger, &table->slots[i]->who) = table->slots[i];
	free(table->slots);
	*table = bigger;
	return 0;
}

struct nm_peer *nm_peer_table_find(const struct nm_peer_table *table, const struct nm_identity *who)
{
	return *table_slot(table, who);
}

struct nm_peer *nm_peer_table_get(struct nm_peer_table *table, const struct nm_identity *who,
				  bool *ret_new)
{
	struct nm_peer *peer = nm_peer_table_find(table, who);

	*ret_new = !peer;
	if (peer)
		return peer;
	if (table->nr * 2 > table->mask && table_grow(table) < 0)
		return NULL;
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->who = *who;
	peer->address.version = NM_ADDRESS_VERSION;
	peer->address.who = *who;
	peer->index = UINT64_MAX;
	nm_list_init(&peer->unexpected[0]);
	nm_list_init(&peer->unexpected[1]);
	nm_list_init(&peer->control);
	nm_list_init(&peer->streams);
	nm_list_init(&peer->active_node);
	nm_list_init(&peer->requests);
	*table_slot(table, who) = peer;
	table->nr++;
	return peer;
}

/* What a packet takes while it waits. */
static size_t control_block(const struct nm_packet *packet)
{
	return nm_buffer_block(sizeof(struct nm_control) + packet->len);
}

struct nm_peer_diag *nm_peer_diag(struct nm_peer *peer)
{
	static struct nm_peer_diag spare;

	if (!peer->diag)
		peer->diag = calloc(1, sizeof(*peer->diag));
	return peer->diag ? peer->diag : &spare;
}

void nm_peer_set_link(struct nm_peer *peer, struct nm_link *link, const struct nm_reason *others)
{
	struct nm_transport *t = link->transport;
	struct nm_peer_diag *diag = nm_peer_diag(peer);
	struct nm_link_facts facts = {0};

	peer->link = link;
	peer->send = t->ops->send;
	peer->max_payload = t->max_payload;
	if (t->move && peer->way == NM_WAY_NETWORK)
		nm_move_first_session(peer);
	nm_unexpected_on_link(peer, t->eager_max);
	nm_peer_sends_on(peer, t->kind->channel);
	nm_move_introduce(peer->engine, peer);
	t->ops->describe(link, &facts);
	facts.label.text[sizeof(facts.label.text) - 1] = '\0';
	if (facts.label.text[0])
		diag->label = facts.label;
	facts.reason.text[sizeof(facts.reason.text) - 1] = '\0';
	/* Why this channel, and why none of those that were tried before it. */
	diag->channel = facts.reason;
	if (*others->text)
		nm_reason_set(&diag->channel, "%.*s%s; %s", WHY_THIS_MAX, facts.reason.text,
			      strlen(facts.reason.text) > WHY_THIS_MAX ? "..." : "", others->text);
	if (nm_move_may_log(peer))
		nm_info("peer " NM_WHO_FORMAT " (%s): channel %s, relation %s: %s",
			NM_WHO(&peer->who), diag->label.text, nm_channel_name(facts.channel),
			nm_relation_name(facts.relation), diag->channel.text);
}

/* Add "channel: reason" to the report on a peer without a link. */
static void reason_add(struct nm_reason *all, const char *channel, const char *text)
{
	nm_reason_add(all, "%s%s: %s", *all->text ? "; " : "", channel, text);
}

/* Try one channel. A channel that fails although the peer was there is worth a warning. */
static int connect_on(struct nm_transport *t, struct nm_peer *peer, struct nm_reason *why)
{
	const char *name = nm_channel_name(t->kind->channel);
	struct nm_reason reason = {""};
	struct nm_link *link = nm_move_beside(peer, t);
	int err = link ? 0 : t->ops->connect(t, &peer->address, peer, &link, &reason);

	if (err == 0) {
		nm_peer_set_link(peer, link, why);
		return 0;
	}
	/* Asked at each progress, so it costs no words. */
	if (err == -EAGAIN)
		return err;
	reason.text[sizeof(reason.text) - 1] = '\0';
	reason_add(why, name, reason.text);
	if (err != -EHOSTUNREACH)
		nm_log_once(NM_LOG_WARN, "channel %s failed, a slower one will be used: %s", name,
			    reason.text);
	return err;
}

/*
 * Report the channels below RANK that could reach the peer but did not open here. *NEXT: the kind
 * to look at first; moves on.
 */
static void add_absent(const struct nm_engine *engine, const struct nm_select_peer *facts,
		       unsigned int rank, const struct nm_transport_kind **next,
		       struct nm_reason *why)
{
	for (; *next && (*next)->rank < rank; *next = nm_transport_next(*next)) {
		const char *name = nm_channel_name((*next)->channel);

		if (!engine->transports[(*next)->channel] &&
		    !((*next)->flags & NM_TRANSPORT_OPTIONAL) &&
		    nm_params_channel_allowed(engine->params, name) &&
		    nm_select_reaches(*next, facts))
			reason_add(why, name, "not open");
	}
}

/*
 * Another process can claim the identity of a peer that the program does not know on a channel that
 * believes it. So the answers go back on the way that it came.
 */
static bool may_answer_on(const struct nm_peer *peer, const struct nm_transport *t)
{
	return peer->was_known || peer->source_channels >> t->kind->channel & 1;
}

int nm_peer_find_link(struct nm_engine *engine, struct nm_peer *peer)
{
	const struct nm_select_peer facts = {
		.is_self = nm_identity_equal(&peer->who, &engine->config.who),
		/* The transport knows the way back to a peer that reached us over the network. */
		.has_network_address = peer->address.inner_len > 0 || nm_peer_is_source(peer),
	};
	const struct nm_transport *tried = peer->tried;
	const struct nm_transport_kind *next = nm_transport_next(tried ? tried->kind : NULL);
	struct nm_reason why = {""};

	/* It goes on where it stood: the diag has the reasons of the channels before. */
	if (tried)
		why = nm_peer_diag(peer)->channel;
	peer->tried = NULL;
	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		struct nm_transport *t = engine->polled[i];
		int err;

		if (!may_answer_on(peer, t) || !nm_select_reaches(t->kind, &facts) ||
		    (tried && t->kind->rank < tried->kind->rank))
			continue;
		add_absent(engine, &facts, t->kind->rank, &next, &why);
		err = connect_on(t, peer, &why);
		/* Not ready yet is no reason to take a slower way. */
		if (err == -EAGAIN) {
			peer->tried = t;
			nm_peer_diag(peer)->channel = why;
		}
		if (err == 0 || err == -EAGAIN)
			return err;
	}
	add_absent(engine, &facts, UINT_MAX, &next, &why);
	if (!*why.text)
		nm_reason_set(&why, "no channel of NEARMETAL_CHANNELS=%s reaches it%s",
			      engine->params->channels,
			      facts.has_network_address || facts.is_self ?
				      "" :
				      ", and its address has no network part");
	nm_peer_diag(peer)->channel = why;
	nm_error("peer " NM_WHO_FORMAT " cannot be reached: %s", NM_WHO(&peer->who), why.text);
	return -EHOSTUNREACH;
}

int nm_peer_connect(struct nm_engine *engine, struct nm_peer *peer)
{
	int err;

	if (peer->state == NM_PEER_CONNECTED)
		return 0;
	if (peer->state == NM_PEER_MOVING)
		return -EAGAIN;
	if (peer->state == NM_PEER_UNREACHED) {
		nm_peer_set_state(peer, NM_PEER_KNOWN);
		return -EHOSTUNREACH;
	}
	if (peer->state != NM_PEER_KNOWN && peer->state != NM_PEER_CONNECTING)
		return -ECONNRESET;
	err = nm_peer_find_link(engine, peer);
	if (err == 0) {
		nm_peer_set_state(peer, NM_PEER_CONNECTED);
	} else if (err == -EAGAIN && peer->state == NM_PEER_KNOWN) {
		/* Progress brings it to an end, whether or not the program sends again. */
		nm_peer_set_state(peer, NM_PEER_CONNECTING);
		nm_peer_activate(engine, peer);
	} else if (err != -EAGAIN && peer->state == NM_PEER_CONNECTING) {
		nm_peer_set_state(peer, NM_PEER_KNOWN);
	}
	return err;
}

/* Go on to connect, without a send that could report a failure. */
static int push_connect(struct nm_engine *engine, struct nm_peer *peer)
{
	int err = nm_peer_connect(engine, peer);

	if (err != -EHOSTUNREACH)
		return err;
	if (nm_peer_is_awaited(peer))
		nm_peer_down(engine, peer, err, "there is no way to answer it");
	else
		nm_peer_set_state(peer, NM_PEER_UNREACHED);
	return err;
}

void nm_peer_post(struct nm_engine *engine, struct nm_peer *peer, const struct nm_packet *packet,
		  const void *payload)
{
	struct nm_control *c;

	if (peer->state >= NM_PEER_LINK_LOST)
		return;
	if (peer->state == NM_PEER_CONNECTED && nm_list_empty(&peer->control)) {
		struct iovec iov = {(void *)payload, packet->len};
		unsigned int nr_iov = packet->len > 0;
		int err = peer->send(peer->link, packet, &iov, nr_iov);

		if (nm_likely(err == 0))
			return;
		if (err != -EAGAIN)
			nm_peer_link_broken(engine, peer);
	}
	if (peer->control_bytes >= CONTROL_BYTES_MAX) {
		struct nm_reason words;

		nm_reason_set(&words, "it does not take answers: %llu bytes wait",
			      (unsigned long long)peer->control_bytes);
		nm_peer_down(engine, peer, -EBADMSG, words.text);
		return;
	}
	c = nm_buffer_alloc(&engine->buffers, sizeof(*c) + packet->len);
	if (!c) {
		nm_peer_down(engine, peer, -ENOMEM, "no memory for an answer to it");
		return;
	}
	c->packet = *packet;
	if (packet->len > 0)
		memcpy(c->payload, payload, packet->len);
	nm_list_append(&peer->control, &c->node);
	peer->nr_control++;
	peer->control_bytes += control_block(packet);
	if (peer->state != NM_PEER_MOVING)
		nm_peer_activate(engine, peer);
}

void nm_peer_stream(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *request)
{
	nm_list_append(&peer->streams, &request->stream_node);
	if (peer->state != NM_PEER_MOVING)
		nm_peer_activate(engine, peer);
}

static int push_control(struct nm_engine *engine, struct nm_peer *peer, unsigned int *nr)
{
	while (!nm_list_empty(&peer->control)) {
		struct nm_control *c = nm_list_first(&peer->control, struct nm_control, node);
		struct iovec iov = {c->payload, c->packet.len};
		int err = peer->send(peer->link, &c->packet, &iov, c->packet.len > 0);

		if (err < 0)
			return err;
		++*nr;
		nm_list_remove(&c->node);
		peer->nr_control--;
		peer->control_bytes -= control_block(&c->packet);
		nm_buffer_free(&engine->buffers, c, sizeof(*c) + c->packet.len);
	}
	return 0;
}

static int push_streams(struct nm_engine *engine, struct nm_peer *peer, unsigned int *nr)
{
	for (int units = 0; units < STREAM_BUDGET && !nm_list_empty(&peer->streams);) {
		struct nm_request *r =
			nm_list_first(&peer->streams, struct nm_request, stream_node);
		int ret = nm_rndv_step(engine, peer, r);

		if (ret < 0)
			return ret;
		units += ret ? ret : 1;
		++*nr;
	}
	if (!nm_list_empty(&peer->streams)) {
		struct nm_list *head = peer->streams.next;

		nm_list_remove(head);
		nm_list_append(&peer->streams, head);
	}
	return 0;
}

static bool is_drained(const struct nm_peer *peer)
{
	return peer->link->transport->ops->drained(peer->link);
}

void nm_peer_leave(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *request)
{
	if (is_drained(peer)) {
		nm_request_complete(engine, request, 0);
		return;
	}
	nm_request_set_state(request, NM_REQUEST_LEAVING);
	nm_list_append(&peer->requests, &request->peer_node);
	peer->nr_leaving++;
	nm_peer_activate(engine, peer);
}

static void end_leaving(struct nm_engine *engine, struct nm_peer *peer)
{
	nm_list_for_each_safe(node, &peer->requests) {
		struct nm_request *r = nm_container_of(node, struct nm_request, peer_node);

		if (r->state == NM_REQUEST_LEAVING)
			nm_request_complete(engine, r, 0);
	}
	peer->nr_leaving = 0;
}

static NM_COLD unsigned int push_unconnected(struct nm_engine *engine, struct nm_peer *peer)
{
	if (peer->failover)
		return nm_failover_push(engine, peer);
	if (peer->state == NM_PEER_CONNECTING ||
	    (peer->state < NM_PEER_MOVING && nm_peer_is_awaited(peer)))
		push_connect(engine, peer);
	return 0;
}

unsigned int nm_peer_push(struct nm_engine *engine, struct nm_peer *peer)
{
	unsigned int nr = 0;
	int err = 0;

	if (nm_unlikely(peer->move))
		nr = nm_move_push(engine, peer);
	if (nm_unlikely(peer->state != NM_PEER_CONNECTED)) {
		nr += push_unconnected(engine, peer);
		if (peer->state != NM_PEER_CONNECTED)
			return nr;
	}
	if (nm_unlikely(peer->nr_leaving && is_drained(peer)))
		end_leaving(engine, peer);
	err = push_control(engine, peer, &nr);
	if (nm_unlikely(err == 0 && peer->asked == NM_PACE_STOP)) {
		nm_unexpected_give_up(engine, peer);
		return nr;
	}
	/* Every other round is left to a new message that found no room, no more. */
	peer->paused = peer->send_refused && !peer->paused;
	peer->send_refused = false;
	if (err == 0 && !peer->paused)
		err = push_streams(engine, peer, &nr);
	if (err < 0 && err != -EAGAIN)
		nm_peer_link_broken(engine, peer);
	return nr;
}
