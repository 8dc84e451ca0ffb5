/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large messages without packets: one copy, made by the receiver, or by both sides at once.
 *
 *   RTS with spans ->                     (here the message lies)
 *                     receiver reads it all, or its head half
 *   <- CTS with spans                     (both halves: write the tail half there)
 *   sender writes, PLACED ->
 *   <- ACK                                (every byte is there)
 *   <- CTS, LAST                          (instead of ACK: send me the rest in packets)
 *
 * The receiver alone decides what is requested and in which order; the sender follows
 * and knows that it is done by ACK, or by having sent what came with LAST. Addresses are the other
 * side's word: the kernel checks them, and a lie spoils only the liar's own message. Spans of a heap
 * that the receiver maps (shm/heap.h) are offsets: the receiver reads there itself, and nothing
 * else.
 */
#include <errno.h>
#include <string.h>

#include "engine/internal.h"
#include "engine/rndv_choice.h"
#include "engine/rndv_gpudirect.h"

/* Halves meet on a page: no page is pinned by both sides' kernels at once. */
#define SPLIT_ALIGN 4096

/* One piece of a device can be shared. */
static NM_COLD unsigned int offer_share(struct nm_request *r, struct nm_wire_span *ret_spans)
{
	struct nm_device_share share = {.zero = 0};
	const struct nm_device_ops *ops;
	const struct iovec *only = NULL;

	static_assert(sizeof(share) == NM_SHARE_SPANS * sizeof(*ret_spans), "on the wire");
	for (size_t i = 0; i < r->nr_iov; i++) {
		if (r->iov[i].iov_len == 0)
			continue;
		if (only || !nm_is_device(r->iov[i].iov_base))
			return 0;
		only = &r->iov[i];
	}
	ops = only ? nm_device_ops_of(only->iov_base) : NULL;
	if (!ops || !ops->share ||
	    ops->share(nm_device_address(only->iov_base), only->iov_len, &share) < 0)
		return 0;
	share.number = nm_device_number(only->iov_base);
	memcpy(ret_spans, &share, sizeof(share));
	r->offered = true;
	return NM_SHARE_SPANS;
}

int nm_rndv_cma_share(const void *wire, struct nm_span ret_spans[NM_SHARE_SPANS])
{
	struct nm_device_share share;

	memcpy(&share, wire, sizeof(share));
	if (share.number < 1 || share.number > NM_DEVICE_MAX || share.zero)
		return -EBADMSG;
	memcpy(ret_spans, &share, sizeof(share));
	return 0;
}

bool nm_rndv_cma_take_share(struct nm_engine *engine, struct nm_request *r)
{
	struct nm_cursor cursor = {0, 0};
	const struct nm_device_ops *ops;
	struct iovec pieces[NM_IOV_MAX];
	struct nm_device_share share;
	unsigned int nr;
	int err;

	memcpy(&share, r->spans, sizeof(share));
	r->nr_spans = 0;
	ops = nm_device_plugged((unsigned int)share.number);
	if (r->accepted == 0 || !ops || !ops->pull)
		return false;
	nr = nm_cursor_take(&cursor, r->iov, r->nr_iov, r->accepted, pieces);
	err = ops->pull(&share, pieces, nr);
	if (err < 0)
		return false;
	r->done = r->accepted;
	r->packet_flags |= NM_PKT_ACK; /* the sender waits for it in any case */
	nm_rndv_finish_incoming(engine, r);
	return true;
}

/* All of the message lies in the heap that the peer reads, or none of it is offered. */
static NM_COLD unsigned int offer_heap(const struct nm_link *link, struct nm_request *r,
				       struct nm_wire_span *ret_spans)
{
	struct nm_span span;
	unsigned int nr = 0;

	for (size_t i = 0; i < r->nr_iov; i++) {
		if (r->iov[i].iov_len == 0)
			continue;
		if (!link->transport->copy->show_heap(link, &r->iov[i], &span))
			return 0;
		ret_spans[nr++] = (struct nm_wire_span){span.address, span.len};
	}
	r->offered = nr > 0;
	return nr;
}

unsigned int nm_rndv_cma_offer(const struct nm_peer *peer, struct nm_request *r,
			       struct nm_wire_span ret_spans[NM_SHARE_SPANS])
{
	unsigned int nr = 0;

	/* Addresses go only to a peer that could read them anyway. */
	if (!peer->link->remote_copy)
		return peer->link->shows_heap ? offer_heap(peer->link, r, ret_spans) : 0;
	if (nm_unlikely(!nm_user_is_host(r->iov, r->nr_iov)))
		return offer_share(r, ret_spans);
	for (size_t i = 0; i < r->nr_iov; i++)
		if (r->iov[i].iov_len > 0)
			ret_spans[nr++] = (struct nm_wire_span){
				.address = (uintptr_t)r->iov[i].iov_base,
				.len = r->iov[i].iov_len,
			};
	r->offered = nr > 0;
	return nr;
}

int nm_rndv_cma_spans(const void *wire, unsigned int nr, uint64_t len,
		      struct nm_span ret_spans[NM_SPANS_MAX])
{
	struct nm_wire_span spans[NM_SPANS_MAX];
	uint64_t total = 0;

	memcpy(spans, wire, nr * sizeof(*spans));
	for (unsigned int i = 0; i < nr; i++) {
		uint64_t end;

		if (spans[i].len == 0 || (spans[i].address ^ spans[0].address) & NM_SPAN_HEAP ||
		    __builtin_add_overflow(spans[i].address, spans[i].len, &end) ||
		    __builtin_add_overflow(total, spans[i].len, &total))
			return -EBADMSG;
		ret_spans[i] = (struct nm_span){spans[i].address, spans[i].len};
	}
	return total == len ? 0 : -EBADMSG;
}

/* LEN bytes from OFFSET on of the other side's memory. Returns the number of spans. */
static unsigned int spans_at(const struct nm_request *r, uint64_t offset, uint64_t len,
			     struct nm_span ret_spans[NM_SPANS_MAX])
{
	unsigned int nr = 0;

	for (unsigned int i = 0; i < r->nr_spans && len > 0; i++) {
		struct nm_span s = r->spans[i];

		if (offset >= s.len) {
			offset -= s.len;
			continue;
		}
		s.address += offset;
		s.len -= offset;
		if (s.len > len)
			s.len = len;
		offset = 0;
		len -= s.len;
		ret_spans[nr++] = s;
	}
	return nr;
}

/* Our half is over, and so is the sender's: every byte is here, or the rest comes in packets. */
static void settle(struct nm_engine *engine, struct nm_request *r)
{
	if (r->done == r->split)
		r->done += r->placed;
	if (r->done == r->accepted) {
		r->packet_flags |= NM_PKT_ACK; /* the sender waits for it in any case */
		nm_rndv_finish_incoming(engine, r);
		return;
	}
	nm_rndv_choice_fell_back(r, r->copy_error);
	r->cursor = nm_cursor_at(r->iov, r->nr_iov, r->done);
	nm_rndv_ask(engine, r);
}

/* Ask the sender to write what lies behind the split. */
static void ask_to_place(struct nm_engine *engine, struct nm_request *r)
{
	struct {
		struct nm_wire_cts cts;
		struct nm_wire_span spans[NM_SPANS_MAX];
	} payload = {.cts = {.offset = r->split, .len = r->accepted - r->split}};
	struct nm_cursor cursor = nm_cursor_at(r->iov, r->nr_iov, r->split);
	struct iovec pieces[NM_IOV_MAX];
	unsigned int nr = nm_cursor_take(&cursor, r->iov, r->nr_iov, payload.cts.len, pieces);
	struct nm_packet packet = {
		.op = NM_OP_CTS,
		.flags = (uint8_t)(NM_PKT_MEMORY | (nr - 1) << NM_PKT_NR_SHIFT),
		.len = (uint32_t)(sizeof(payload.cts) + nr * sizeof(payload.spans[0])),
		.tag = r->remote_id,
		.data = nm_request_id(r),
	};

	for (unsigned int i = 0; i < nr; i++)
		payload.spans[i] = (struct nm_wire_span){
			.address = (uintptr_t)pieces[i].iov_base,
			.len = pieces[i].iov_len,
		};
	r->tail_due = true;
	engine->nr_exposed++;
	nm_peer_post(engine, r->peer, &packet, &payload);
}

void nm_rndv_cma_pull(struct nm_engine *engine, struct nm_request *r)
{
	uint64_t id = nm_request_id(r);

	nm_request_set_state(r, NM_REQUEST_PULLING);
	r->split = r->accepted;
	if (r->verdict.protocol == NM_PROTOCOL_BOTH && r->accepted >= 2 * SPLIT_ALIGN) {
		r->split = r->accepted / 2 & ~(uint64_t)(SPLIT_ALIGN - 1);
		ask_to_place(engine, r);
		/* Posting may find the peer dead, and that ends the request. */
		if (nm_request_id(r) != id || r->state != NM_REQUEST_PULLING)
			return;
	}
	nm_peer_stream(engine, r->peer, r);
}

/* One remote copy of at most a step, up to END. Returns how many bytes, or -errno. */
static ssize_t copy_step(struct nm_peer *peer, struct nm_request *r, uint64_t end)
{
	const struct nm_copy_ops *ops = peer->link->transport->copy;
	bool pull = r->state == NM_REQUEST_PULLING;
	bool in_heap = pull && r->verdict.protocol == NM_PROTOCOL_HEAP;
	uint64_t len = end - r->done < NM_REMOTE_COPY_STEP ? end - r->done : NM_REMOTE_COPY_STEP;
	struct nm_cursor cursor = r->cursor;
	struct iovec pieces[NM_IOV_MAX];
	struct nm_span spans[NM_SPANS_MAX];
	unsigned int nr_pieces, nr_spans;
	ssize_t got;

	/* The heap's function looks itself whether it may. */
	if (!peer->link->remote_copy && !in_heap)
		return -EOPNOTSUPP;
	nr_pieces = nm_cursor_take(&cursor, r->iov, r->nr_iov, len, pieces);
	/* The sender knows the part that it writes, not the part before it. */
	nr_spans = spans_at(r, pull ? r->done : r->done - r->split, len, spans);
	if (in_heap)
		got = ops->read_heap(peer->link, pieces, nr_pieces, spans, nr_spans);
	else if (pull)
		got = ops->read_remote(peer->link, pieces, nr_pieces, spans, nr_spans);
	else
		got = ops->write_remote(peer->link, pieces, nr_pieces, spans, nr_spans);
	if (got <= 0 || (uint64_t)got > len)
		return got < 0 ? got : -EIO;
	if ((uint64_t)got < len) {
		cursor = r->cursor;
		nm_cursor_take(&cursor, r->iov, r->nr_iov, (uint64_t)got, pieces);
	}
	r->cursor = cursor;
	r->done += (uint64_t)got;
	return got;
}

static void pull_ended(struct nm_engine *engine, struct nm_request *r)
{
	nm_list_remove(&r->stream_node);
	if (r->tail_due)
		nm_request_set_state(r, NM_REQUEST_WAIT_PLACED);
	else
		settle(engine, r);
}

static void place_ended(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *r)
{
	struct nm_packet packet = {
		.op = NM_OP_PLACED,
		.tag = r->remote_id,
		.data = r->done - r->split,
	};

	nm_list_remove(&r->stream_node);
	nm_request_set_state(r, NM_REQUEST_WAIT_CTS); /* or the ACK that ends it */
	nm_peer_post(engine, peer, &packet, NULL);
}

int nm_rndv_cma_step(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *r)
{
	bool pull = r->state == NM_REQUEST_PULLING;
	uint64_t end = pull ? r->split : r->accepted;
	ssize_t got = copy_step(peer, r, end);

	if (got > 0 && r->done < end)
		return NM_RNDV_CMA_UNITS;
	if (got < 0)
		r->copy_error = (int)got;
	if (pull)
		pull_ended(engine, r);
	else
		place_ended(engine, peer, r);
	return 0;
}

bool nm_rndv_cma_place(struct nm_engine *engine, struct nm_request *r, const struct nm_packet *pkt,
		       const void *payload)
{
	unsigned int nr = NM_PKT_NR(pkt->flags);
	struct nm_wire_cts cts;

	if (pkt->len != sizeof(cts) + nr * sizeof(struct nm_wire_span) || !r->offered ||
	    r->nr_spans > 0 || pkt->flags & NM_PKT_LAST || !nm_user_is_host(r->iov, r->nr_iov))
		return false;
	memcpy(&cts, payload, sizeof(cts));
	if (cts.offset > r->size || cts.len > r->size - cts.offset || cts.len == 0 ||
	    nm_rndv_cma_spans((const char *)payload + sizeof(cts), nr, cts.len, r->spans) < 0)
		return false;
	r->nr_spans = nr;
	r->split = r->done = cts.offset;
	r->accepted = cts.offset + cts.len;
	r->cursor = nm_cursor_at(r->iov, r->nr_iov, r->done);
	r->remote_id = pkt->data;
	nm_request_set_state(r, NM_REQUEST_PLACING);
	nm_peer_stream(engine, r->peer, r);
	return true;
}

void nm_rndv_cma_placed(const struct nm_incoming *in)
{
	struct nm_request *r = nm_request_find(&in->engine->requests, in->pkt->tag, in->peer);

	if (r && r->state == NM_REQUEST_DIRECT && in->pkt->len == 0 &&
	    (in->engine->closing || nm_gpudirect_placed(in, r)))
		return;
	if (in->pkt->len != 0 || !r || !r->tail_due || in->pkt->data > r->accepted - r->split) {
		if (!in->engine->closing)
			nm_violation(in, "it wrote bytes that were not requested");
		return;
	}
	r->tail_due = false;
	r->placed = in->pkt->data;
	in->engine->nr_exposed--;
	if (r->state == NM_REQUEST_WAIT_PLACED && !in->engine->closing)
		settle(in->engine, r);
}
