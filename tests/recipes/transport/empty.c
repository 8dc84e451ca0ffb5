/* SPDX-License-Identifier: Apache-2.0 */
/* A transport that reaches no peer: where a new one begins. test_recipes.py builds it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/transport.h"

static int empty_connect(struct nm_transport *transport, const struct nm_address *address,
			 struct nm_peer *peer, struct nm_link **ret_link,
			 struct nm_reason *ret_reason)
{
	(void)transport;
	(void)address;
	(void)peer;
	(void)ret_link;
	nm_reason_set(ret_reason, "the empty channel reaches no peer");
	return -EHOSTUNREACH;
}

/* The next three take a link, and connect() never returned one. */
static int empty_send(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		      unsigned int nr_iov)
{
	(void)link;
	(void)pkt;
	(void)iov;
	(void)nr_iov;
	return -EPIPE;
}

static bool empty_drained(struct nm_link *link)
{
	(void)link;
	return true;
}

static void empty_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	(void)link;
	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->channel = NM_CHANNEL_EMPTY;
}

static bool empty_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	(void)transport;
	(void)doorbells;
	return true;
}

static unsigned int empty_progress(struct nm_transport *transport)
{
	transport->pause = UINT32_MAX;
	return 0;
}

static void empty_destroy(struct nm_transport *transport)
{
	free(transport);
}

static const struct nm_transport_ops empty_ops = {
	.connect = empty_connect,
	.send = empty_send,
	.drained = empty_drained,
	.describe = empty_describe,
	.check_alive = nm_transport_unchecked,
	.sleep = empty_sleep,
	.wake = nm_transport_unwoken,
	.progress = empty_progress,
	.destroy = empty_destroy,
};

static int empty_create(const struct nm_sink *sink, struct nm_address *address,
			struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	struct nm_transport *transport = calloc(1, sizeof(*transport));

	(void)address;
	nm_reason_set(ret_reason, transport ? "nothing to open" : "out of memory");
	if (!transport)
		return -ENOMEM;
	transport->kind = &nm_empty_kind;
	transport->ops = &empty_ops;
	transport->sink = *sink;
	transport->max_payload = transport->eager_max = NM_MIN_MAX_PAYLOAD;
	*ret_transport = transport;
	return 0;
}

const struct nm_transport_kind nm_empty_kind = {
	.channel = NM_CHANNEL_EMPTY,
	.rank = 50,
	.flags = NM_TRANSPORT_WATCHES,
	.create = empty_create,
};
