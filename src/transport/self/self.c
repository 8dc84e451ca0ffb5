/* SPDX-License-Identifier: Apache-2.0 */
/* Loops packets back to the endpoint that sent them: a bounded first-in first-out queue. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/transport.h"

#define SELF_MAX_PAYLOAD 65536
#define SELF_SMALL_PAYLOAD 2048
/* Limits of the queue, far above the packets that an engine has under way to itself. */
#define SELF_NR_SMALL 1024
#define SELF_NR_LARGE 64
/* Packets per progress() call, so that other transports also progress. */
#define SELF_BATCH 32

struct self_packet {
	struct self_packet *next;
	bool large;
	struct nm_packet pkt;
	uint8_t payload[];
};

/* Freed packets are kept for the next message: only the first ones cost a malloc. */
struct packet_cache {
	struct self_packet *unused;
	uint32_t nr_left; /* number left before send() returns -EAGAIN */
};

struct self_transport {
	struct nm_transport base;
	const struct nm_identity *who; /* of the endpoint's address: later kinds complete it */
	struct nm_peer *source;	       /* the engine's cookie, after source_up */
	bool refused;
	struct packet_cache small, large;
	struct self_packet *head, **tail;
	struct nm_link *links; /* all links of this transport */
};

struct self_link {
	struct nm_link base;
	struct nm_link *next;
};

static struct self_transport *self_of(struct nm_transport *transport)
{
	return nm_container_of(transport, struct self_transport, base);
}

static int self_connect(struct nm_transport *transport, const struct nm_address *address,
			struct nm_peer *peer, struct nm_link **ret_link,
			struct nm_reason *ret_reason)
{
	struct self_transport *self = self_of(transport);
	struct self_link *link;

	if (!nm_identity_equal(&address->who, self->who)) {
		nm_reason_set(ret_reason, "another endpoint");
		return -EHOSTUNREACH;
	}
	link = calloc(1, sizeof(*link));
	if (!link) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	link->base.transport = transport;
	link->base.peer = peer;
	link->next = self->links;
	self->links = &link->base;
	*ret_link = &link->base;
	nm_reason_set(ret_reason, "the endpoint itself");
	return 0;
}

static struct self_packet *take_packet(struct self_transport *self, uint32_t len)
{
	bool large = len > SELF_SMALL_PAYLOAD;
	struct packet_cache *cache = large ? &self->large : &self->small;
	struct self_packet *packet = cache->unused;

	if (!cache->nr_left)
		return NULL;
	if (packet) {
		cache->unused = packet->next;
	} else {
		packet = malloc(sizeof(*packet) + (large ? SELF_MAX_PAYLOAD : SELF_SMALL_PAYLOAD));
		if (!packet)
			return NULL;
		packet->large = large;
	}
	cache->nr_left--;
	return packet;
}

static void give_packet(struct self_transport *self, struct self_packet *packet)
{
	struct packet_cache *cache = packet->large ? &self->large : &self->small;

	packet->next = cache->unused;
	cache->unused = packet;
	cache->nr_left++;
}

static int self_send(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		     unsigned int nr_iov)
{
	struct self_transport *self = self_of(link->transport);
	struct self_packet *packet;
	size_t offset = 0;
	unsigned int i;

	if (nm_unlikely(self->refused))
		return -EPIPE;
	packet = take_packet(self, pkt->len);
	if (!packet)
		return -EAGAIN;
	packet->pkt = *pkt;
	for (i = 0; i < nr_iov; i++) {
		if (iov[i].iov_len)
			memcpy(packet->payload + offset, iov[i].iov_base, iov[i].iov_len);
		offset += iov[i].iov_len;
	}
	packet->next = NULL;
	*self->tail = packet;
	self->tail = &packet->next;
	self->base.pause = 0;
	return 0;
}

static bool self_drained(struct nm_link *link)
{
	return !self_of(link->transport)->head;
}

static void self_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	(void)link;
	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->relation = NM_RELATION_SELF;
	ret_facts->channel = NM_CHANNEL_SELF;
	nm_reason_set(&ret_facts->reason, "the endpoint itself");
	memcpy(ret_facts->label.text, "self", sizeof("self"));
}

static unsigned int self_progress(struct nm_transport *transport)
{
	struct self_transport *self = self_of(transport);
	static const struct nm_peer_label label = {"self"};
	struct self_packet *packet;
	unsigned int done = 0;

	/* Only a send() makes work here, so pause until then. */
	if (nm_likely(!self->head)) {
		self->base.pause = UINT32_MAX;
		return 0;
	}
	if (nm_unlikely(!self->source && !self->refused)) {
		self->source = self->base.sink.source_up(transport, self->who, &label);
		self->refused = !self->source;
	}
	/* deliver() may send to itself: such packets are queued after these. */
	while (self->head && done < SELF_BATCH) {
		packet = self->head;
		self->head = packet->next;
		if (!self->head)
			self->tail = &self->head;
		if (!self->refused)
			self->base.sink.deliver(transport, self->source, &packet->pkt,
						packet->payload);
		give_packet(self, packet);
		done++;
	}
	return done;
}

static void free_packets(struct self_packet *packet)
{
	struct self_packet *next;

	for (; packet; packet = next) {
		next = packet->next;
		free(packet);
	}
}

static void self_destroy(struct nm_transport *transport)
{
	struct self_transport *self;
	struct nm_link *link, *next;

	if (!transport)
		return;
	self = self_of(transport);
	for (link = self->links; link; link = next) {
		next = nm_container_of(link, struct self_link, base)->next;
		free(nm_container_of(link, struct self_link, base));
	}
	free_packets(self->head);
	free_packets(self->small.unused);
	free_packets(self->large.unused);
	free(self);
}

static bool self_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	doorbells->rung |= self_of(transport)->head != NULL;
	return true;
}

static const struct nm_transport_ops self_ops = {
	.connect = self_connect,
	.send = self_send,
	.drained = self_drained,
	.describe = self_describe,
	.check_alive = nm_transport_unchecked,
	.sleep = self_sleep,
	.wake = nm_transport_unwoken,
	.progress = self_progress,
	.destroy = self_destroy,
};

static int self_create(const struct nm_sink *sink, struct nm_address *address,
		       struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	struct self_transport *self = calloc(1, sizeof(*self));

	if (!self) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	self->base.kind = &nm_self_kind;
	self->base.ops = &self_ops;
	self->base.sink = *sink;
	self->base.max_payload = SELF_MAX_PAYLOAD;
	self->base.eager_max = SELF_MAX_PAYLOAD;
	self->who = &address->who;
	self->small.nr_left = SELF_NR_SMALL;
	self->large.nr_left = SELF_NR_LARGE;
	self->tail = &self->head;
	nm_reason_set(ret_reason, "a queue of its own");
	*ret_transport = &self->base;
	return 0;
}

const struct nm_transport_kind nm_self_kind = {
	.channel = NM_CHANNEL_SELF,
	.rank = 10,
	.flags = NM_TRANSPORT_LOOPBACK | NM_TRANSPORT_WATCHES | NM_TRANSPORT_SILENT,
	.create = self_create,
};
