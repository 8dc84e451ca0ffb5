/* SPDX-License-Identifier: Apache-2.0 */
#include "net/gpudirect.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <rdma/fi_tagged.h>

#include "base/clock.h"
#include "base/device.h"
#include "base/params.h"
#include "net/host.h"

/* How long cancel() waits for an operation that cannot be cancelled. */
#define CANCEL_NS NM_NS_PER_S
/* More messages of one peer, or more bytes than NEARMETAL_UNEXPECTED_MAX, are not waited for. */
#define DISCARDS_MAX 64

/* Of one peer, until the inner endpoint is done with it. */
struct nm_net_operation {
	struct nm_net_buffer buffer; /* the inner endpoint returns its context */
	struct nm_net_operation *next;
	struct nm_peer *peer; /* the engine's record; NULL: the engine does not wait for it */
	uint64_t request;
	struct nm_net_memory *memory; /* NULL: what comes goes to `discard` */
	void *discard;
	struct fid_mr *mr; /* of `discard`, if the inner provider wants one */
	size_t len;
	uint64_t tag;
	bool is_receive, is_over;
};

static struct net *net_of(struct nm_transport *transport)
{
	return nm_container_of(transport, struct net, base);
}

static struct nm_net_operation *operation_of(struct nm_net_buffer *buffer)
{
	return nm_container_of(buffer, struct nm_net_operation, buffer);
}

static void leave_memory(struct nm_net_operation *op)
{
	if (op->memory)
		op->memory->users--;
	op->memory = NULL;
}

/* The inner endpoint has given it back, or is closed. */
static void operation_free(struct net *net, struct nm_net_operation *op)
{
	struct nm_net_operation **at = &net->gpudirect->operations;

	while (*at != op)
		at = &(*at)->next;
	*at = op->next;
	leave_memory(op);
	if (op->mr)
		fi_close(&op->mr->fid);
	if (op->discard)
		munmap(op->discard, op->len);
	free(op);
}

void nm_net_gpudirect_over(struct nm_net_buffer *buffer)
{
	operation_of(buffer)->is_over = true;
}

void nm_net_gpudirect_ended(struct net *net, struct nm_net_buffer *buffer, int err)
{
	struct nm_net_operation *op = operation_of(buffer);
	struct nm_peer *peer = op->peer;
	uint64_t request = op->request;

	operation_free(net, op);
	if (peer && !net->closing)
		net->base.sink.gpudirect_done(&net->base, peer, request, err);
}

struct nm_net_buffer *nm_net_gpudirect_early(struct net *net)
{
	struct nm_net_gpudirect *g = net->gpudirect;
	struct nm_net_buffer *buffer = g->early;

	if (buffer) {
		g->early = buffer->next;
		if (!g->early)
			g->early_end = &g->early;
	}
	return buffer;
}

/* A new operation, in the list. NULL: out of memory. */
static struct nm_net_operation *operation_make(struct net *net, struct nm_net_peer *peer)
{
	struct nm_net_operation *op = calloc(1, sizeof(*op));

	if (!op)
		return NULL;
	op->buffer.peer = peer;
	op->next = net->gpudirect->operations;
	net->gpudirect->operations = op;
	return op;
}

static ssize_t post(struct net *net, struct nm_net_operation *op, void *bytes, void *desc)
{
	const fi_addr_t peer = op->buffer.peer->inner;

	if (op->is_receive)
		return fi_trecv(net->inner.ep, bytes, op->len, desc, peer, op->tag, 0,
				&op->buffer.context);
	return fi_tsend(net->inner.ep, bytes, op->len, desc, peer, op->tag, &op->buffer.context);
}

/* The registered buffer that holds MEMORY, if one message can take all. NULL: it is staged. */
static struct nm_net_memory *reach(struct net *net, const struct iovec *memory)
{
	if (memory->iov_len > net->inner.info->ep_attr->max_msg_size)
		return NULL;
	return nm_net_memory_get(net, memory);
}

static int begin(struct nm_link *link, const struct iovec *memory, uint64_t request, uint64_t tag,
		 bool is_receive)
{
	struct nm_net_peer *peer = nm_container_of(link, struct nm_net_peer, link);
	struct net *net = net_of(link->transport);
	struct nm_net_memory *m;
	struct nm_net_operation *op;
	ssize_t err;

	if (peer->state != NM_NET_UP || peer->inner == FI_ADDR_UNSPEC)
		return -EOPNOTSUPP;
	m = reach(net, memory);
	if (!m)
		return -EOPNOTSUPP;
	op = operation_make(net, peer);
	if (!op)
		return -ENOMEM;
	op->peer = link->peer;
	op->request = request;
	op->memory = m;
	m->users++;
	op->len = memory->iov_len;
	op->tag = tag;
	op->is_receive = is_receive;
	err = post(net, op, (void *)(uintptr_t)nm_device_address(memory->iov_base),
		   fi_mr_desc(m->mr));
	if (err) {
		operation_free(net, op);
		return (int)err;
	}
	net->quiet_polls = 0;
	net->base.pause = 0;
	return 0;
}

static bool net_reaches(struct nm_link *link, const struct iovec *memory)
{
	return reach(net_of(link->transport), memory);
}

static int net_expect(struct nm_link *link, const struct iovec *memory, uint64_t request,
		      uint64_t *ret_tag)
{
	struct net *net = net_of(link->transport);
	const uint64_t nr = ++net->gpudirect->nr_tags;

	*ret_tag = nm_siphash(net->key, &nr, sizeof(nr));
	return begin(link, memory, request, *ret_tag, true);
}

static int net_send_device(struct nm_link *link, const struct iovec *memory, uint64_t tag,
			   uint64_t request)
{
	return begin(link, memory, request, tag, false);
}

/* Take one completion, and keep it if it is not of OP. False: there is none now. */
static bool take_one(struct net *net, const struct nm_net_operation *op)
{
	struct nm_net_gpudirect *g = net->gpudirect;
	struct fi_cq_msg_entry entry;
	struct fi_cq_err_entry error = {0};
	struct nm_net_buffer *buffer;
	ssize_t nr = fi_cq_read(net->inner.cq, &entry, 1);

	if (nr == -FI_EAVAIL && fi_cq_readerr(net->inner.cq, &error, 0) == 1 && error.op_context)
		entry = (struct fi_cq_msg_entry){.op_context = error.op_context};
	else if (nr != 1)
		return false;
	buffer = nm_container_of(entry.op_context, struct nm_net_buffer, context);
	buffer->len = entry.len;
	buffer->err = error.err;
	if (!buffer->pool)
		nm_net_gpudirect_over(buffer);
	if (buffer == &op->buffer)
		return true;
	buffer->next = NULL;
	*g->early_end = buffer;
	g->early_end = &buffer->next;
	return true;
}

/* May the peer still send LEN bytes more that are dropped? */
static bool may_discard(const struct net *net, const struct nm_net_peer *peer, size_t len)
{
	const struct nm_net_operation *op = net->gpudirect->operations;
	uint64_t bytes = len;
	unsigned int nr = 0;

	for (; op; op = op->next)
		if (op->discard && op->buffer.peer == peer) {
			nr++;
			bytes += op->len;
		}
	return nr == 0 || (nr < DISCARDS_MAX && bytes <= nm_params()->unexpected_max);
}

/* What the peer may still send with this tag blocks nothing. */
static void discard(struct net *net, struct nm_net_peer *peer, uint64_t tag, size_t len)
{
	struct nm_net_gpudirect *g = net->gpudirect;
	struct nm_net_operation *op;
	void *pages;

	if (!may_discard(net, peer, len)) {
		nm_net_lose(net, peer, -ECONNRESET,
			    "it owes too many messages for devices that were given up "
			    "(NEARMETAL_UNEXPECTED_MAX)");
		return;
	}
	op = operation_make(net, peer);
	pages = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		     -1, 0);

	if (op && pages != MAP_FAILED) {
		op->is_receive = true;
		op->discard = pages;
		op->len = len;
		op->tag = tag;
		if (!nm_net_register(&net->inner, pages, len, NM_NET_FIRST_KEY + g->nr_keys++,
				     &op->mr) &&
		    !post(net, op, pages, op->mr ? fi_mr_desc(op->mr) : NULL))
			return;
	} else if (pages != MAP_FAILED) {
		munmap(pages, len);
	}
	if (op)
		operation_free(net, op);
	nm_net_lose(net, peer, -ECONNRESET, "no memory for a message that it may still send");
}

/* The registration ends, and with it what an adapter can reach. OP is freed when it is over. */
static void cut_off(struct nm_net_operation *op)
{
	struct nm_net_memory *m = op->memory;

	leave_memory(op);
	/* Another operation there may have been cut off before. */
	if (m->mr)
		fi_close(&m->mr->fid);
	m->mr = NULL;
}

static void net_cancel(struct nm_transport *transport, uint64_t request, bool is_due)
{
	struct net *net = net_of(transport);
	struct nm_net_operation *op = net->gpudirect->operations;
	struct nm_net_peer *peer;
	uint64_t until;
	bool has_come;

	while (op && (!op->peer || op->request != request))
		op = op->next;
	if (!op)
		return;
	op->peer = NULL;
	peer = op->buffer.peer;
	/* Its completion is among those that take their turn. */
	if (op->is_over) {
		leave_memory(op);
		return;
	}
	if (op->is_receive)
		fi_cancel(&net->inner.ep->fid, &op->buffer.context);
	/* One wait is enough for all operations with a peer. */
	until = peer->is_deaf ? 0 : nm_clock_ns() + CANCEL_NS;
	while (!op->is_over && (take_one(net, op) || nm_clock_ns() < until))
		sched_yield();
	if (!op->is_over) {
		peer->is_deaf = true;
		cut_off(op);
		return;
	}
	has_come = op->buffer.err != FI_ECANCELED;
	if (op->is_receive && is_due && !has_come && peer->state == NM_NET_UP)
		discard(net, peer, op->tag, op->len);
	operation_free(net, op);
}

static void net_forget(struct nm_transport *transport, const struct iovec *memory)
{
	struct net *net = net_of(transport);
	const unsigned int number = nm_device_number(memory->iov_base);
	const uint64_t start = nm_device_address(memory->iov_base);

	for (size_t i = 0; i < NM_NET_MEMORIES; i++) {
		struct nm_net_memory *m = &net->gpudirect->memories[i];

		if (m->number == number && m->users == 0 && m->start < start + memory->iov_len &&
		    start < m->start + m->size)
			nm_net_memory_drop(m);
	}
}

void nm_net_gpudirect_lost(struct net *net, const struct nm_net_peer *peer)
{
	struct nm_net_operation *op = net->gpudirect ? net->gpudirect->operations : NULL;

	for (; op; op = op->next)
		if (op->discard && op->buffer.peer == peer)
			fi_cancel(&net->inner.ep->fid, &op->buffer.context);
}

static const struct nm_gpudirect_ops gpudirect_ops = {
	.reaches = net_reaches,
	.expect = net_expect,
	.send = net_send_device,
	.cancel = net_cancel,
	.forget = net_forget,
};

void nm_net_gpudirect_open(struct net *net)
{
	if (!net->inner.has_devices) {
		nm_reason_set(&net->no_gpudirect, "%s",
			      strcmp(nm_params()->gpudirect, "auto") ?
				      "NEARMETAL_GPUDIRECT=off" :
				      "the network's provider does not offer FI_HMEM");
		return;
	}
	net->gpudirect = calloc(1, sizeof(*net->gpudirect));
	if (!net->gpudirect) {
		nm_reason_set(&net->no_gpudirect, "out of memory");
		return;
	}
	net->gpudirect->early_end = &net->gpudirect->early;
	net->take = nm_net_take_with_devices;
	net->base.gpudirect = &gpudirect_ops;
}

void nm_net_gpudirect_describe(const struct net *net, struct nm_reason *ret_words)
{
	if (!net->gpudirect)
		nm_reason_set(ret_words, "staged: %.150s", net->no_gpudirect.text);
	else if (net->gpudirect->how.text[0])
		*ret_words = net->gpudirect->how;
	else
		nm_reason_set(ret_words, "GPUDirect, when a large message first uses it");
}

void nm_net_gpudirect_close(struct net *net)
{
	struct nm_net_gpudirect *g = net->gpudirect;

	if (!g)
		return;
	while (g->operations)
		operation_free(net, g->operations);
	for (size_t i = 0; i < NM_NET_MEMORIES; i++)
		nm_net_memory_drop(&g->memories[i]);
	free(g);
	net->gpudirect = NULL;
}
