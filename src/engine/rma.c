/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote memory access by messages, where it cannot be had directly (rma_cma.c). The target checks
 * key, rights and bounds of every access in its own progress; nothing that the initiator says is
 * believed. Every operation is answered, so its completion means that the target has done it, at
 * every completion level.
 */
#include "engine/rma.h"

#include <errno.h>
#include <string.h>

#include "base/fault.h"
#include "engine/internal.h"

int nm_rma_check(const struct nm_iov_sizes *sizes, const struct nm_remote *remote, size_t nr_remote)
{
	uint64_t total = 0;

	if (sizes->nr_iov > NM_IOV_MAX || nr_remote < 1 || nr_remote > NM_IOV_MAX)
		return -EINVAL;
	for (size_t i = 0; i < nr_remote; i++)
		if (__builtin_add_overflow(total, remote[i].len, &total))
			return -EINVAL;
	return total == sizes->total ? 0 : -EINVAL;
}

struct nm_request *nm_rma_start(struct nm_engine *engine, struct nm_peer *peer,
				enum nm_request_kind kind, uint64_t flags, void *context)
{
	struct nm_request *r;

	/* Answers need room at the target; a sound initiator does not run away from them. */
	if (peer->nr_started >= NM_RMA_WINDOW)
		return NULL;
	r = nm_request_alloc(&engine->requests, kind);
	if (!r)
		return NULL;
	r->flags = flags;
	r->context = context;
	r->peer = peer;
	nm_list_append(&peer->requests, &r->peer_node);
	peer->nr_started++;
	return r;
}

void nm_rma_abandon(struct nm_engine *engine, struct nm_request *r)
{
	r->peer->nr_started--;
	nm_request_free(&engine->requests, r);
}

void nm_rma_to_wire(struct nm_wire_remote *ret_wire, const struct nm_remote *remote, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		ret_wire[i] = (struct nm_wire_remote){
			.address = remote[i].address,
			.len = remote[i].len,
			.key = remote[i].key,
		};
}

/* IS_DEVICE: a constant. The local bytes may lie on a device. */
static inline __attribute__((always_inline)) int start_any(struct nm_engine *engine,
							   const struct nm_rma *rma, uint64_t size,
							   bool is_read, bool is_device)
{
	struct nm_peer *peer = rma->peer;
	struct nm_wire_remote wire[NM_IOV_MAX];
	struct iovec iov[NM_IOV_MAX + 1] = {{wire, rma->nr_remote * sizeof(*wire)}};
	struct nm_packet packet = {
		.flags = (uint8_t)((rma->nr_remote - 1) << NM_PKT_NR_SHIFT),
		.data = rma->data,
	};
	unsigned int nr_iov = 1;
	struct nm_request *r;
	int err = nm_send_ready(engine, peer);

	if (err < 0)
		return err;
	if (nm_rma_cma_copy(engine, rma, size, is_read))
		return 0;
	if (rma->flags & NM_INJECT && size > peer->max_payload - iov[0].iov_len)
		return -EMSGSIZE;
	r = nm_rma_start(engine, peer, is_read ? NM_REQUEST_READ : NM_REQUEST_WRITE, rma->flags,
			 rma->context);
	if (!r)
		return -EAGAIN;
	nm_rma_to_wire(wire, rma->remote, rma->nr_remote);
	r->size = size;
	r->nr_iov = rma->nr_iov;
	for (size_t i = 0; i < rma->nr_iov; i++)
		r->iov[i] = iov[i + 1] = rma->iov[i];
	if (!is_read && rma->flags & NM_REMOTE_CQ_DATA)
		packet.flags |= NM_PKT_DATA;
	if (is_read) {
		packet.op = NM_OP_READ;
		r->accepted = size;
		nm_request_set_state(r, NM_REQUEST_WAIT_DATA);
	} else if (rma->flags & NM_INJECT ||
		   (size <= peer->link_eager_max && size + iov[0].iov_len <= peer->max_payload)) {
		packet.op = NM_OP_WRITE;
		nr_iov += (unsigned int)rma->nr_iov;
		if (is_device) {
			err = nm_stage_message(engine, rma->iov, rma->nr_iov, size, &iov[1]);
			if (err < 0) {
				nm_rma_abandon(engine, r);
				return err;
			}
			nr_iov = 2;
		}
		nm_request_set_state(r, NM_REQUEST_WAIT_ACK);
	} else {
		packet.op = NM_OP_WRITE_RTS;
		nm_request_set_state(r, NM_REQUEST_WAIT_CTS);
	}
	packet.tag = nm_request_id(r);
	packet.len = (uint32_t)nm_iov_total(iov, nr_iov);
	err = nm_send_envelope(engine, peer, &packet, iov, nr_iov);
	if (err < 0) {
		nm_rma_abandon(engine, r);
		return err;
	}
	if (!is_read) {
		peer->sent_messages++;
		peer->sent_bytes += size;
	}
	nm_peer_count_access(peer, NM_ACCESS_SERVED, is_read ? NM_ACCESS_GET : NM_ACCESS_PUT, size);
	return 0;
}

static int start(struct nm_engine *engine, const struct nm_rma *rma, uint64_t size, bool is_read)
{
	return start_any(engine, rma, size, is_read, false);
}

static NM_COLD int start_device(struct nm_engine *engine, const struct nm_rma *rma, uint64_t size,
				bool is_read)
{
	return start_any(engine, rma, size, is_read, true);
}

typedef int (*start_fn)(struct nm_engine *engine, const struct nm_rma *rma, uint64_t size,
			bool is_read);

static inline __attribute__((always_inline)) int
start_or_retry(struct nm_engine *engine, const struct nm_rma *rma, bool is_read, start_fn start_it)
{
	struct nm_iov_sizes sizes = {rma->nr_iov, 0};
	int err;

	if (!rma->peer || rma->nr_iov > NM_IOV_MAX)
		return -EINVAL;
	sizes.total = nm_iov_total(rma->iov, rma->nr_iov);
	err = nm_rma_check(&sizes, rma->remote, rma->nr_remote);
	if (err < 0)
		return err;
	err = start_it(engine, rma, sizes.total, is_read);
	if (err == -EAGAIN) {
		nm_send_stalled(engine, rma->peer);
		err = start_it(engine, rma, sizes.total, is_read);
	}
	return err;
}

int nm_engine_write(struct nm_engine *engine, const struct nm_rma *rma)
{
	return start_or_retry(engine, rma, false, start);
}

int nm_engine_write_device(struct nm_engine *engine, const struct nm_rma *rma)
{
	return start_or_retry(engine, rma, false, start_device);
}

int nm_engine_read(struct nm_engine *engine, const struct nm_rma *rma)
{
	return start_or_retry(engine, rma, true, start);
}

/* ---- the target ---- */

int nm_rma_from_wire(const struct nm_packet *pkt, const void *payload, size_t before,
		     struct nm_remote ret_remote[NM_IOV_MAX], uint64_t *ret_total)
{
	size_t nr = NM_PKT_NR(pkt->flags);
	struct nm_wire_remote wire[NM_IOV_MAX];
	uint64_t total = 0;

	if (pkt->len < before + nr * sizeof(*wire))
		return -EBADMSG;
	memcpy(wire, (const char *)payload + before, nr * sizeof(*wire));
	for (size_t i = 0; i < nr; i++) {
		ret_remote[i] = (struct nm_remote){
			.address = wire[i].address,
			.len = wire[i].len,
			.key = wire[i].key,
		};
		if (__builtin_add_overflow(total, wire[i].len, &total))
			return -EBADMSG;
	}
	*ret_total = total;
	return (int)nr;
}

int nm_rma_allowed(const struct nm_engine *engine, const struct nm_remote *remote, size_t nr,
		   uint64_t access)
{
	struct nm_memory_region *region;
	struct iovec iov[NM_IOV_MAX];

	if (!engine->config.memory)
		return -EACCES;
	for (size_t i = 0; i < nr; i++)
		if (nm_memory_resolve(engine->config.memory, remote[i].key, remote[i].address,
				      remote[i].len, access, iov, &region) < 0)
			return -EACCES;
	return 0;
}

int nm_rma_span(const struct nm_engine *engine, const struct nm_remote *remote, size_t nr,
		uint64_t offset, uint64_t len, uint64_t access, struct iovec *ret_iov)
{
	struct nm_memory_region *region;
	int nr_iov = 0;

	for (size_t i = 0; i < nr && len > 0; i++) {
		uint64_t n;
		int ret;

		if (offset >= remote[i].len) {
			offset -= remote[i].len;
			continue;
		}
		n = remote[i].len - offset;
		if (n > len)
			n = len;
		ret = nm_memory_resolve(engine->config.memory, remote[i].key,
					remote[i].address + offset, n, access, ret_iov + nr_iov,
					&region);
		if (ret < 0)
			return -EACCES;
		nr_iov += ret;
		len -= n;
		offset = 0;
	}
	return nr_iov;
}

void nm_rma_count(struct nm_engine *engine, const struct nm_remote *remote, size_t nr,
		  uint64_t access)
{
	struct nm_counter *counter =
		access & NM_REMOTE_WRITE ? engine->queues.remote_write : engine->queues.remote_read;
	struct nm_memory_region *region, *last = NULL;
	struct iovec iov[NM_IOV_MAX];

	if (counter)
		counter->value++;
	for (size_t i = 0; i < nr; i++) {
		if (nm_memory_resolve(engine->config.memory, remote[i].key, remote[i].address,
				      remote[i].len, access, iov, &region) < 0 ||
		    region == last)
			continue;
		last = region;
		if (nm_memory_counter(region))
			nm_memory_counter(region)->value++;
	}
}

static void count_refused(struct nm_counter *counter)
{
	if (counter)
		counter->errors++;
}

/* A put is done: count it, and report it if the initiator requested that. */
static void written(struct nm_engine *engine, struct nm_peer *peer, const struct nm_remote *remote,
		    size_t nr, uint64_t size, bool with_data, uint64_t data)
{
	peer->received_messages++;
	peer->received_bytes += size;
	nm_rma_count(engine, remote, nr, NM_REMOTE_WRITE);
	if (with_data)
		nm_complete_remote(engine, peer, NM_RMA | NM_REMOTE_WRITE, size, data);
}

void nm_rma_on_write(const struct nm_incoming *in)
{
	struct nm_remote remote[NM_IOV_MAX];
	struct iovec pieces[NM_RMA_SPAN_MAX];
	uint64_t size;
	int nr = nm_rma_from_wire(in->pkt, in->payload, 0, remote, &size);
	size_t header = nr < 0 ? 0 : (size_t)nr * sizeof(struct nm_wire_remote);
	int nr_pieces, err = 0;

	if (nr < 0 || size != in->pkt->len - header) {
		nm_violation(in, "it sent a put whose sizes do not add up");
		return;
	}
	if (nm_rma_allowed(in->engine, remote, (size_t)nr, NM_REMOTE_WRITE) < 0) {
		count_refused(in->engine->queues.remote_write);
		nm_rndv_send_ack(in->engine, in->peer, in->pkt->tag, EACCES);
		return;
	}
	nr_pieces = nm_rma_span(in->engine, remote, (size_t)nr, 0, size, NM_REMOTE_WRITE, pieces);
	if (nr_pieces > 0)
		err = nm_iov_scatter(pieces, (size_t)nr_pieces, (const char *)in->payload + header,
				     size);
	if (nm_unlikely(err < 0)) {
		count_refused(in->engine->queues.remote_write);
		nm_rndv_send_ack(in->engine, in->peer, in->pkt->tag, EIO);
		return;
	}
	NM_FAULT("rma-written");
	written(in->engine, in->peer, remote, (size_t)nr, size, in->pkt->flags & NM_PKT_DATA,
		in->pkt->data);
	nm_rndv_send_ack(in->engine, in->peer, in->pkt->tag, 0);
}

/* A request for a transfer from or to our memory. NULL: PEER has the error, or is down. */
static struct nm_request *serve(const struct nm_incoming *in, enum nm_request_kind kind,
				uint64_t access)
{
	const struct nm_packet *pkt = in->pkt;
	struct nm_engine *engine = in->engine;
	struct nm_peer *peer = in->peer;
	struct nm_remote remote[NM_IOV_MAX];
	struct nm_request *r;
	uint64_t size;
	int nr = nm_rma_from_wire(pkt, in->payload, 0, remote, &size);

	if (nr < 0 || pkt->len != (size_t)nr * sizeof(struct nm_wire_remote) ||
	    peer->nr_served >= NM_RMA_WINDOW) {
		nm_violation(in, "it sent a memory access that makes no sense");
		return NULL;
	}
	if (nm_rma_allowed(engine, remote, (size_t)nr, access) < 0) {
		count_refused(kind == NM_REQUEST_SERVE_READ ? engine->queues.remote_read :
							      engine->queues.remote_write);
		nm_rndv_send_ack(engine, peer, pkt->tag, EACCES);
		return NULL;
	}
	r = nm_request_alloc(&engine->requests, kind);
	if (!r) {
		nm_rndv_send_ack(engine, peer, pkt->tag, ENOMEM);
		return NULL;
	}
	r->peer = peer;
	r->remote_id = pkt->tag;
	r->data = pkt->data;
	r->packet_flags = pkt->flags;
	r->size = r->accepted = size;
	r->nr_remote = (size_t)nr;
	memcpy(r->remote, remote, sizeof(remote));
	nm_list_append(&peer->requests, &r->peer_node);
	peer->nr_served++;
	return r;
}

void nm_rma_serve_end(struct nm_engine *engine, struct nm_request *r)
{
	r->peer->nr_served--;
	nm_request_free(&engine->requests, r);
}

void nm_rma_on_write_rts(const struct nm_incoming *in)
{
	struct nm_request *r = serve(in, NM_REQUEST_SERVE_WRITE, NM_REMOTE_WRITE);

	if (!r)
		return;
	nm_rndv_accept(in->engine, r);
}

void nm_rma_write_finish(struct nm_engine *engine, struct nm_request *r)
{
	struct nm_peer *peer = r->peer;
	uint64_t id = r->remote_id;
	int err = r->error;

	if (err)
		count_refused(engine->queues.remote_write);
	else
		written(engine, peer, r->remote, r->nr_remote, r->size,
			r->packet_flags & NM_PKT_DATA, r->data);
	/*
	 * The answer comes last: a peer that takes no answers goes down in it, with its requests.
	 */
	nm_rma_serve_end(engine, r);
	nm_rndv_send_ack(engine, peer, id, err);
}

void nm_rma_write_broken(struct nm_engine *engine, struct nm_request *r)
{
	count_refused(engine->queues.remote_write);
	nm_rma_serve_end(engine, r);
}

void nm_rma_on_read(const struct nm_incoming *in)
{
	struct nm_request *r = serve(in, NM_REQUEST_SERVE_READ, NM_REMOTE_READ);
	uint64_t id;

	if (!r)
		return;
	NM_FAULT("rma-read");
	nm_rma_count(in->engine, r->remote, r->nr_remote, NM_REMOTE_READ);
	in->peer->sent_messages++;
	in->peer->sent_bytes += r->size;
	if (r->size > 0) {
		nm_request_set_state(r, NM_REQUEST_STREAMING);
		nm_peer_stream(in->engine, in->peer, r);
		return;
	}
	id = r->remote_id;
	nm_rma_serve_end(in->engine, r);
	nm_rndv_send_ack(in->engine, in->peer, id, 0);
}
