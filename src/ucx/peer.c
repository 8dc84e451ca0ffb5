/* SPDX-License-Identifier: Apache-2.0 */
/* Remote interfaces: identities, links, what arrives from them, and their ends. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/copy_small.h"
#include "base/log.h"
#include "base/state.h"
#include "transport/select.h"
#include "ucx/face.h"

const uint32_t nm_ucx_peer_transitions[NM_UCX_NR_PEER_STATES] = {
	[NM_UCX_PEER_KNOWN] = NM_STATE(NM_UCX_PEER_CONNECTING) | NM_STATE(NM_UCX_PEER_UP) |
			      NM_STATE(NM_UCX_PEER_DOWN),
	[NM_UCX_PEER_CONNECTING] =
		NM_STATE(NM_UCX_PEER_KNOWN) | NM_STATE(NM_UCX_PEER_UP) | NM_STATE(NM_UCX_PEER_DOWN),
	[NM_UCX_PEER_UP] = NM_STATE(NM_UCX_PEER_DOWN),
};

static void set_state(struct nm_peer *peer, enum nm_ucx_peer_state state)
{
	nm_state_check(nm_ucx_peer_transitions, peer->state, state);
	peer->state = state;
}

bool nm_ucx_address_parse(const void *bytes, size_t len, struct nm_ucx_address *ret_address)
{
	struct nm_address address = {.version = NM_ADDRESS_VERSION};
	struct nm_ucx_address from;

	if (!bytes || len != sizeof(from))
		return false;
	memcpy(&from, bytes, sizeof(from));
	if (from.version != NM_UCX_ADDRESS_VERSION || from.zero)
		return false;
	address.who = from.who;
	if (nm_address_parse(&address, sizeof(address), &address))
		return false;
	*ret_address = from;
	return true;
}

bool nm_ucx_address_fits(const struct nm_ucx_iface *iface, const struct nm_ucx_address *address,
			 struct nm_reason *ret_reason)
{
	if (address->max_message == iface->max_bcopy)
		return true;
	nm_reason_set(ret_reason,
		      "messages there have at most %u bytes, and here %u: set NEARMETAL_CHUNK_SIZE "
		      "alike for all processes",
		      address->max_message, iface->max_bcopy);
	return false;
}

struct nm_peer *nm_ucx_peer_get(struct nm_ucx_iface *iface, const struct nm_identity *who)
{
	struct nm_peer **bucket = &iface->buckets[nm_identity_hash(who) % NM_UCX_NR_BUCKETS];
	struct nm_peer *peer;

	for (peer = *bucket; peer; peer = peer->next)
		if (nm_identity_equal(&peer->who, who))
			return peer;
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->iface = iface;
	peer->who = *who;
	nm_list_init(&peer->eps);
	nm_list_init(&peer->node);
	peer->next = *bucket;
	*bucket = peer;
	return peer;
}

bool nm_ucx_peer_is_at(const struct nm_peer *peer, const uct_ep_is_connected_params_t *params)
{
	struct nm_ucx_address address;

	return params->field_mask & UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR &&
	       nm_ucx_address_parse(params->iface_addr, sizeof(address), &address) &&
	       nm_identity_equal(&address.who, &peer->who);
}

/* ---- Connecting ---- */

static int connect_on(struct nm_peer *peer, struct nm_transport *transport)
{
	const struct nm_address address = {.version = NM_ADDRESS_VERSION, .who = peer->who};
	struct nm_reason why = {""};
	struct nm_link *link;
	int err = transport->ops->connect(transport, &address, peer, &link, &why);

	if (err == -EAGAIN)
		return err;
	nm_reason_add(&peer->why, "%s%s: %s", *peer->why.text ? "; " : "",
		      nm_channel_name(transport->kind->channel), why.text);
	if (!err) {
		peer->link = link;
		peer->counted = &peer->sent[transport->kind->channel];
	}
	return err;
}

int nm_ucx_peer_connect(struct nm_peer *peer)
{
	struct nm_ucx_iface *iface = peer->iface;
	const struct nm_select_peer facts = {
		.is_self = nm_ucx_peer_is_self(peer),
	};
	const struct nm_transport *tried = peer->tried;
	int err = -EHOSTUNREACH;

	if (peer->state == NM_UCX_PEER_UP)
		return 0;
	if (peer->state == NM_UCX_PEER_DOWN)
		return -ECONNRESET;
	if (!tried)
		peer->why = iface->lacks;
	peer->tried = NULL;
	for (unsigned int i = 0; i < iface->nr_transports; i++) {
		struct nm_transport *t = iface->transports[i];

		if (!nm_select_reaches(t->kind, &facts) ||
		    (tried && t->kind->rank < tried->kind->rank))
			continue;
		err = connect_on(peer, t);
		if (err == -EAGAIN)
			peer->tried = t;
		if (err == 0 || err == -EAGAIN)
			break;
	}
	if (err == -EAGAIN)
		return err;
	if (!err) {
		nm_list_remove(&peer->node);
		set_state(peer, NM_UCX_PEER_UP);
	} else if (peer->state == NM_UCX_PEER_CONNECTING && nm_list_empty(&peer->eps)) {
		/* Nothing was promised to UCX. */
		nm_list_remove(&peer->node);
		set_state(peer, NM_UCX_PEER_KNOWN);
	} else if (peer->state == NM_UCX_PEER_CONNECTING) {
		nm_error("ucx: peer " NM_WHO_FORMAT " cannot be reached: %s", NM_WHO(&peer->who),
			 peer->why.text);
		nm_ucx_peer_down(peer, err, NULL);
	}
	return err;
}

void nm_ucx_peer_begin(struct nm_peer *peer)
{
	if (peer->state != NM_UCX_PEER_KNOWN)
		return;
	set_state(peer, NM_UCX_PEER_CONNECTING);
	nm_list_append(&peer->iface->connecting, &peer->node);
}

/* ---- Arrivals, during progress() of a transport ---- */

static struct nm_ucx_iface *sink_iface(const struct nm_transport *from)
{
	return from->sink.engine;
}

static struct nm_peer *source_up(struct nm_transport *from, const struct nm_identity *who,
				 const struct nm_peer_label *label)
{
	struct nm_peer *peer = nm_ucx_peer_get(sink_iface(from), who);

	if (!peer || peer->state == NM_UCX_PEER_DOWN)
		return NULL;
	if (label)
		peer->label = *label;
	peer->nr_sources++;
	peer->iface->has_sources = true;
	/* UCX may ask for direct copies while the first message is delivered: the link shows them. */
	if (peer->iface->has_copies)
		nm_ucx_peer_begin(peer);
	return peer;
}

/* The fault of a packet in words, or NULL. */
static const char *packet_fault(const struct nm_ucx_iface *iface, const struct nm_packet *packet)
{
	if (packet->op >= UCT_AM_ID_MAX)
		return "an active message with an unknown id";
	if (packet->data)
		return "an active message with a field that is always 0";
	if (packet->flags != NM_UCX_SHORT && packet->flags != NM_UCX_BCOPY)
		return "a packet that is no active message";
	if (packet->flags == NM_UCX_BCOPY && packet->tag)
		return "an active message with two headers";
	if (nm_ucx_header_len(packet) + packet->len > iface->max_bcopy)
		return "an active message that is too long";
	return NULL;
}

static NM_COLD void refuse(struct nm_transport *from, struct nm_peer *peer, const char *fault)
{
	struct nm_reason why;

	if (from->quarantine) {
		from->quarantine->cast_out(from, &peer->who, fault);
		return;
	}
	nm_reason_set(&why, "it sent %s", fault);
	nm_ucx_peer_down(peer, -EBADMSG, &why);
}

/*
 * UCX reads a message more than once, so it gets a private copy. It returns before the next message
 * overwrites that: without UCT_CB_PARAM_FLAG_DESC it keeps nothing.
 */
static void deliver(struct nm_transport *from, struct nm_peer *peer, const struct nm_packet *packet,
		    const void *payload)
{
	struct nm_ucx_iface *iface = sink_iface(from);
	const uct_am_handler_t *handler;
	struct nm_traffic *received;
	const char *fault;
	size_t len = packet->len;
	uint8_t *to = iface->arrived;

	if (nm_unlikely(peer->state == NM_UCX_PEER_DOWN))
		return;
	fault = packet_fault(iface, packet);
	if (nm_unlikely(fault)) {
		refuse(from, peer, fault);
		return;
	}
	if (packet->flags == NM_UCX_SHORT) {
		memcpy(to, &packet->tag, sizeof(packet->tag));
		if (len <= NM_COPY_SMALL_MAX)
			nm_copy_small(to + sizeof(packet->tag), payload, len);
		else
			memcpy(to + sizeof(packet->tag), payload, len);
		len += sizeof(packet->tag);
	} else {
		nm_copy(to, payload, len);
	}
	received = &peer->received[from->kind->channel];
	received->messages++;
	received->bytes += len;
	if (ucs_log_is_enabled(UCS_LOG_LEVEL_TRACE_DATA))
		nm_ucx_trace(iface, UCT_AM_TRACE_TYPE_RECV, packet->op, to, len);
	handler = &iface->base.am[packet->op];
	handler->cb(handler->arg, to, len, 0);
}

static void source_down(struct nm_transport *from, struct nm_peer *peer, int err,
			const struct nm_reason *why)
{
	bool is_link = peer->link && peer->link->transport == from;

	peer->nr_sources -= peer->nr_sources > 0;
	/* A channel that is used in no direction any more may close before the other one. */
	if (is_link || !peer->nr_sources)
		nm_ucx_peer_down(peer, err, why);
}

static void quarantined(struct nm_transport *from, struct nm_peer *peer,
			const struct nm_stream_ends *ends, const struct nm_reason *why)
{
	(void)from;
	(void)ends;
	/* UCX chose this transport once and has no other channel for the same lane. */
	nm_ucx_peer_down(peer, -EBADMSG, why);
}

static const struct nm_sink peer_sink = {
	.source_up = source_up,
	.deliver = deliver,
	.source_down = source_down,
	.quarantined = quarantined,
};

/* ---- Ends ---- */

void nm_ucx_peer_report(struct nm_peer *peer)
{
	if (nm_list_empty(&peer->node))
		nm_list_append(&peer->iface->lost, &peer->node);
}

/* An endpoint that does not know that PEER is lost and has to, or NULL. */
static struct nm_ucx_ep *first_owed(const struct nm_peer *peer)
{
	nm_list_for_each(node, &peer->eps) {
		struct nm_ucx_ep *ep = nm_container_of(node, struct nm_ucx_ep, node);

		if (!ep->is_reported &&
		    (peer->is_missed || ep->is_watched || !nm_list_empty(&ep->pending)))
			return ep;
	}
	return NULL;
}

void nm_ucx_peer_down(struct nm_peer *peer, int err, const struct nm_reason *why)
{
	if (peer->state == NM_UCX_PEER_DOWN)
		return;
	/* A peer that closed normally is lost only to those who want something from it. */
	peer->is_missed = err || peer->held || peer->state == NM_UCX_PEER_CONNECTING;
	set_state(peer, NM_UCX_PEER_DOWN);
	nm_list_remove(&peer->node);
	free(peer->held);
	peer->held = NULL;
	peer->link = NULL;
	peer->tried = NULL;
	peer->err = err;
	if (why)
		peer->why = *why;
	if (peer->is_missed || first_owed(peer))
		nm_ucx_peer_report(peer);
}

/* UCX may destroy endpoints in its handler, so look again after each. */
static void report(struct nm_peer *peer)
{
	struct nm_ucx_ep *ep;

	nm_ucx_count_loss(peer->iface);
	nm_info("ucx: peer " NM_WHO_FORMAT " is lost: %s", NM_WHO(&peer->who),
		*peer->why.text ? peer->why.text : "it closed");
	while ((ep = first_owed(peer))) {
		ep->is_reported = true;
		uct_iface_handle_ep_err(&peer->iface->base.super, &ep->super,
					UCS_ERR_CONNECTION_RESET);
	}
}

static unsigned int progress_connecting(struct nm_ucx_iface *iface)
{
	unsigned int nr = 0;

	nm_list_for_each_safe(node, &iface->connecting) {
		struct nm_peer *peer = nm_container_of(node, struct nm_peer, node);

		nr += nm_ucx_peer_connect(peer) == 0;
	}
	return nr;
}

static unsigned int progress_holding(struct nm_ucx_iface *iface)
{
	unsigned int nr = 0;

	nm_list_for_each_safe(node, &iface->holding) {
		struct nm_peer *peer = nm_container_of(node, struct nm_peer, node);

		if (nm_ucx_peer_send(peer, &peer->held->packet, peer->held->bytes) != UCS_OK)
			continue;
		free(peer->held);
		peer->held = NULL;
		nm_list_remove(&peer->node);
		nr++;
	}
	return nr;
}

unsigned int nm_ucx_peers_progress(struct nm_ucx_iface *iface)
{
	unsigned int nr = progress_connecting(iface);

	nr += progress_holding(iface);
	while (!nm_list_empty(&iface->lost)) {
		struct nm_peer *peer = nm_list_first(&iface->lost, struct nm_peer, node);

		nm_list_remove(&peer->node);
		report(peer);
		nr++;
	}
	return nr;
}

void nm_ucx_peers_init(struct nm_ucx_iface *iface)
{
	nm_list_init(&iface->connecting);
	nm_list_init(&iface->holding);
	nm_list_init(&iface->lost);
	nm_list_init(&iface->waiting);
	nm_list_init(&iface->copying);
	iface->sink = peer_sink;
	iface->sink.engine = iface;
}

void nm_ucx_peers_free(struct nm_ucx_iface *iface)
{
	for (unsigned int i = 0; i < NM_UCX_NR_BUCKETS; i++)
		for (struct nm_peer *peer = iface->buckets[i], *next; peer; peer = next) {
			next = peer->next;
			free(peer->held);
			free(peer);
		}
}
