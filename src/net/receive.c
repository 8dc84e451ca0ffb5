/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of the network channel: check messages, put them in order and pass them on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/gpudirect.h"
#include "net/host.h"
#include "net/transport.h"

#define BATCH 16

void nm_net_post_receive(struct net *net, struct nm_net_buffer *buffer)
{
	ssize_t err;

	err = fi_recv(net->inner.ep, buffer->bytes, net->receive.size, buffer->desc, FI_ADDR_UNSPEC,
		      &buffer->context);
	/* It stays with the unused buffers and a later progress() posts it. */
	if (nm_unlikely(err))
		nm_net_buffer_give(buffer);
}

void nm_net_drop(struct net *net, const char *why)
{
	net->nr_dropped++;
	nm_log_once(NM_LOG_WARN, "network message dropped: %s", why);
}

void nm_net_quarantine(struct net *net, struct nm_net_peer *peer, const char *why)
{
	nm_net_drop(net, why);
	nm_net_lose(net, peer, -EBADMSG, why);
}

static void take_hello(struct net *net, const struct nm_net_header *header, const uint8_t *bytes)
{
	struct nm_net_hello hello;
	struct nm_net_peer *peer;
	struct nm_reason why;
	uint64_t token;

	if (nm_net_hello_parse(bytes, header, &hello, &why) ||
	    !nm_net_inner_fits(&net->inner, &hello.address, &why)) {
		nm_net_drop(net, why.text);
		return;
	}
	token = nm_net_token(net->key, &hello.address);
	if (header->token != token) {
		nm_net_drop(net, "greeting without the token for its address");
		return;
	}
	peer = nm_net_admit(net, &hello.address, &why);
	if (!peer || peer->heard || peer->state > NM_NET_HELD || header->sequence) {
		nm_net_drop(net, peer ? "greeting at a wrong time" : why.text);
		/* A repeated one is no news. */
		if (!(peer && peer->heard) && !header->sequence && !net->closing)
			nm_net_refuse(net, &hello);
		return;
	}
	peer->label = hello.label;
	peer->rx_sequence = 1;
	peer->heard = true;
	peer->token_in = token;
	if (!peer->has_token)
		memcpy(&peer->token_out, hello.token, sizeof(hello.token));
	peer->has_token = true;
	if (net->closing)
		return;
	peer->is_source = true;
	nm_net_hold_back(net, peer);
	nm_net_meet_line(net, peer);
	peer->source = net->base.sink.source_up(&net->base, &peer->who, &peer->label);
	if (peer->source)
		return;
	/* The engine refuses it, for example after its goodbye elsewhere. Its sends end here. */
	nm_net_end(net, peer, NM_NET_CLOSED);
	peer->bye_owed = true;
	net->nr_owed++;
}

static void take_bye(struct net *net, struct nm_net_peer *peer, bool refused)
{
	struct nm_reason why;

	/* One answer: the count of debts returns to zero. A dead peer gets none. */
	if (peer->bye_heard || peer->state == NM_NET_DEAD)
		return;
	peer->bye_heard = true;
	nm_net_end(net, peer, NM_NET_CLOSED);
	/* Who refused has no record of this endpoint, and no use for an answer. */
	peer->answer_owed = !refused;
	net->nr_owed += !refused;
	if (net->closing || !peer->source)
		return;
	nm_reason_set(&why,
		      refused ? "%s refused the greeting of this endpoint, and its log says why" :
				"%s closed its endpoint",
		      peer->label.text);
	net->base.sink.source_down(&net->base, peer->source, refused ? -ECONNRESET : 0, &why);
}

/* More of one peer are lost messages, and no matter of order. */
#define EARLY_MAX 256

/* Keep a message whose number is not due yet. False: none may be early. */
static NM_COLD bool keep(const struct net *net, struct nm_net_peer *peer,
			 const struct nm_net_header *header, const uint8_t *bytes)
{
	struct nm_net_early *early;

	if (!net->inner.is_layered || peer->nr_early == EARLY_MAX ||
	    header->sequence - peer->rx_sequence > EARLY_MAX)
		return false;
	early = malloc(sizeof(*early) + header->len);
	if (!early)
		return false;
	early->header = *header;
	memcpy(early->bytes, bytes, header->len);
	early->next = peer->early;
	peer->early = early;
	peer->nr_early++;
	return true;
}

/* The kept message that is due now; NULL: none is. The caller frees it. */
static NM_COLD struct nm_net_early *due_early(struct nm_net_peer *peer)
{
	struct nm_net_early **at = &peer->early, *early;

	while (*at && (*at)->header.sequence != peer->rx_sequence)
		at = &(*at)->next;
	early = *at;
	if (early) {
		*at = early->next;
		peer->nr_early--;
	}
	return early;
}

/* The pause is the own one, and PEER has not answered yet. */
static NM_COLD void take_in_pause(struct net *net, struct nm_net_peer *peer,
				  const struct nm_packet *pkt, const uint8_t *bytes)
{
	if (peer->is_away || peer->is_quiet)
		nm_net_quarantine(net, peer, "a packet behind its pause");
	else if (!net->closing)
		net->base.sink.deliver(&net->base, peer->source, pkt, bytes);
}

static void take_due(struct net *net, struct nm_net_peer *peer, const struct nm_net_header *header,
		     const uint8_t *bytes)
{
	const struct nm_packet pkt = {
		.op = header->op,
		.flags = header->flags,
		.len = header->len,
		.tag = header->tag,
		.data = header->data,
	};

	peer->rx_sequence++;
	if (nm_likely(header->kind == NM_NET_PACKET)) {
		/* One that has closed, here or on another channel, has nothing more to say. */
		if (!net->closing && peer->state == NM_NET_UP)
			net->base.sink.deliver(&net->base, peer->source, &pkt, bytes);
		else if (peer->state == NM_NET_HELD)
			take_in_pause(net, peer, &pkt, bytes);
	} else if (header->kind == NM_NET_BYE) {
		take_bye(net, peer, header->data == NM_NET_REFUSED);
	} else if (header->kind == NM_NET_BYE_SEEN) {
		peer->bye_seen = true;
	} else if (header->kind == NM_NET_PAUSE) {
		nm_net_take_pause(net, peer);
	} else if (header->kind == NM_NET_PAUSED) {
		nm_net_take_paused(net, peer);
	}
}

static void take_known(struct net *net, struct nm_net_peer *peer,
		       const struct nm_net_header *header, const uint8_t *bytes)
{
	struct nm_net_early *early;

	if (nm_unlikely(header->sequence != peer->rx_sequence)) {
		if (!keep(net, peer, header, bytes))
			nm_net_quarantine(net, peer, "a message of its stream is missing");
		return;
	}
	take_due(net, peer, header, bytes);
	while (nm_unlikely(peer->early) && (early = due_early(peer))) {
		take_due(net, peer, &early->header, early->bytes);
		free(early);
	}
}

static NM_COLD void take_introduction(struct net *net, const struct nm_net_header *header,
				      const uint8_t *bytes)
{
	if (header->kind == NM_NET_HELLO)
		take_hello(net, header, bytes);
	else if (header->kind == NM_NET_KNOCK)
		nm_net_take_knock(net, header, bytes);
	else if (header->kind == NM_NET_TOKEN)
		nm_net_take_token(net, header);
	else if (header->kind == NM_NET_RESUME)
		nm_net_take_resume(net, header);
	else
		nm_net_take_resumed(net, header);
}

static void take_message(struct net *net, const struct nm_net_buffer *buffer, size_t len)
{
	const uint8_t *payload = buffer->bytes + sizeof(struct nm_net_header);
	struct nm_net_header header;
	struct nm_net_peer *peer;
	struct nm_reason why;

	if (nm_unlikely(
		    nm_net_header_parse(buffer->bytes, len, NM_NET_MAX_PAYLOAD, &header, &why))) {
		nm_net_drop(net, why.text);
		return;
	}
	if (nm_unlikely(nm_net_is_outside_link(header.kind))) {
		take_introduction(net, &header, payload);
		return;
	}
	peer = nm_net_peers_find(&net->peers, &header.source);
	if (nm_unlikely(!peer || !peer->heard || peer->state == NM_NET_DEAD)) {
		nm_net_drop(net, "from a source that sent no greeting, or is down");
		nm_net_miss_greeting(net, &header);
		return;
	}
	/* Another process can use the name of a source, but it does not know its token. */
	if (nm_unlikely(header.token != peer->token_in)) {
		nm_net_drop(net, "without the token of its source");
		return;
	}
	take_known(net, peer, &header, payload);
}

static void finish_send(const struct net *net, struct nm_net_buffer *buffer)
{
	struct nm_net_peer *peer = buffer->peer;

	peer->in_flight--;
	if (nm_unlikely(peer->large_in_flight) && buffer->pool == &net->large &&
	    --peer->large_in_flight == 0)
		peer->since_large = 0;
	nm_net_buffer_give(buffer);
}

static NM_COLD void fail(struct net *net, struct nm_net_buffer *buffer, int err)
{
	struct nm_net_peer *peer;
	char words[128];

	if (!buffer->pool) {
		nm_net_gpudirect_ended(net, buffer, -err);
		return;
	}
	if (!(buffer->pool == &net->receive)) {
		peer = buffer->peer;
		finish_send(net, buffer);
		if (nm_net_may_fail(net, peer))
			return;
		snprintf(words, sizeof(words), "its network connection failed: %s",
			 nm_host.strerror(err));
		nm_net_lose(net, peer, -ECONNRESET, words);
		return;
	}
	nm_net_buffer_give(buffer);
	if (err == FI_ETRUNC)
		nm_net_drop(net, "longer than any message of nearmetal");
	else if (err != FI_ECANCELED)
		nm_debug("network receive failed: %s", nm_host.strerror(err));
}

static NM_COLD unsigned int take_error(struct net *net)
{
	struct fi_cq_err_entry entry;

	memset(&entry, 0, sizeof(entry));
	if (fi_cq_readerr(net->inner.cq, &entry, 0) != 1 || !entry.op_context)
		return 0;
	fail(net, nm_container_of(entry.op_context, struct nm_net_buffer, context), entry.err);
	return 1;
}

/* HAS_DEVICES: a constant. */
static inline __attribute__((always_inline)) void
finish(struct net *net, struct nm_net_buffer *buffer, size_t len, bool has_devices)
{
	if (buffer->pool == &net->receive) {
		take_message(net, buffer, len);
		nm_net_post_receive(net, buffer);
	} else if (has_devices && !buffer->pool) {
		nm_net_gpudirect_ended(net, buffer, 0);
	} else {
		finish_send(net, buffer);
	}
}

static inline __attribute__((always_inline)) unsigned int take(struct net *net, bool has_devices)
{
	struct fi_cq_msg_entry entries[BATCH];
	ssize_t nr, i;

	nr = fi_cq_read(net->inner.cq, entries, BATCH);
	if (nr == -FI_EAVAIL)
		return take_error(net);
	/* Before any is acted upon: to act on one may end another. */
	for (i = 0; has_devices && i < nr; i++) {
		struct nm_net_buffer *b =
			nm_container_of(entries[i].op_context, struct nm_net_buffer, context);

		if (!b->pool)
			nm_net_gpudirect_over(b);
	}
	for (i = 0; i < nr; i++)
		finish(net, nm_container_of(entries[i].op_context, struct nm_net_buffer, context),
		       entries[i].len, has_devices);
	return nr > 0 ? (unsigned int)nr : 0;
}

unsigned int nm_net_take_completions(struct net *net)
{
	return take(net, false);
}

unsigned int nm_net_take_with_devices(struct net *net)
{
	struct nm_net_buffer *early;
	unsigned int nr = 0;

	while ((early = nm_net_gpudirect_early(net))) {
		nr++;
		if (early->err)
			fail(net, early, early->err);
		else
			finish(net, early, early->len, true);
	}
	return nr + take(net, true);
}
