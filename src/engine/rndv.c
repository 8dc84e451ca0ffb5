/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload in pieces, for all that is too large for its envelope: the receiver says how much it
 * takes (CTS), the sender streams it in order (DATA), the receiver confirms when asked (ACK).
 */
#include <errno.h>
#include <string.h>

#include "base/device.h"
#include "base/fault.h"
#include "engine/internal.h"
#include "engine/rndv_choice.h"
#include "engine/rndv_gpudirect.h"

#define ERRNO_MAX 4095

void nm_rndv_send_ack(struct nm_engine *engine, struct nm_peer *peer, uint64_t id, int err)
{
	struct nm_packet packet = {.op = NM_OP_ACK, .tag = id, .data = (uint64_t)err};

	nm_peer_post(engine, peer, &packet, NULL);
}

void nm_rndv_finish_incoming(struct nm_engine *engine, struct nm_request *r)
{
	nm_rndv_choice_end(engine, r);
	if (r->kind == NM_REQUEST_RECV)
		nm_recv_finish(engine, r, r->error);
	else if (r->kind == NM_REQUEST_SERVE_WRITE)
		nm_rma_write_finish(engine, r);
	else
		nm_request_complete(engine, r, r->error);
}

/*
 * The bytes of an outgoing transfer can be read no more (ERR, negative: the device has failed, or the
 * region has gone): it ends here and at the peer.
 */
static NM_COLD void break_outgoing(struct nm_engine *engine, struct nm_request *r, int err)
{
	struct nm_peer *peer = r->peer;
	uint64_t id = r->remote_id;

	nm_stage_end(engine, r);
	if (r->kind == NM_REQUEST_SERVE_READ)
		nm_rma_serve_end(engine, r);
	else
		nm_request_complete(engine, r, -err);
	nm_rndv_send_ack(engine, peer, id, err == -EACCES ? EACCES : EIO);
}

void nm_rndv_ask(struct nm_engine *engine, struct nm_request *r)
{
	struct nm_wire_cts cts = {.offset = r->done, .len = r->accepted - r->done};
	struct nm_packet packet = {
		.op = NM_OP_CTS,
		.flags = NM_PKT_LAST |
			 (r->verdict.protocol == NM_PROTOCOL_POOL_PAST ? NM_PKT_PAST : 0),
		.len = sizeof(cts),
		.tag = r->remote_id,
		.data = nm_request_id(r),
	};

	if (nm_unlikely(r->packet_flags & NM_PKT_DIRECT) && nm_gpudirect_ask(engine, r))
		return;
	nm_request_set_state(r, NM_REQUEST_WAIT_DATA);
	nm_peer_post(engine, r->peer, &packet, &cts);
}

void nm_rndv_accept(struct nm_engine *engine, struct nm_request *r)
{
	uint64_t id = nm_request_id(r);

	NM_FAULT("transfer-accept");
	if (nm_unlikely(r->nr_spans > NM_SPANS_MAX) && nm_rndv_cma_take_share(engine, r))
		return;
	if (r->accepted > 0)
		nm_rndv_choice_begin(engine, r);
	if (r->accepted > 0 && r->verdict.protocol >= NM_PROTOCOL_PULL) {
		nm_rndv_cma_pull(engine, r);
		return;
	}
	nm_rndv_ask(engine, r);
	/* Posting may find the peer dead, and that ends the request. */
	if (nm_request_id(r) == id && r->state == NM_REQUEST_WAIT_DATA && r->accepted == 0)
		nm_rndv_finish_incoming(engine, r);
}

/* The last byte of an outgoing transfer was handed over. */
static void finish_outgoing(struct nm_engine *engine, struct nm_request *r)
{
	NM_FAULT("transfer-sent");
	nm_list_remove(&r->stream_node);
	if (r->kind == NM_REQUEST_SERVE_READ)
		nm_rma_serve_end(engine, r); /* the initiator counts the bytes */
	else if (r->kind == NM_REQUEST_WRITE || r->packet_flags & NM_PKT_ACK)
		nm_request_set_state(r, NM_REQUEST_WAIT_ACK);
	else
		nm_request_complete(engine, r, 0);
}

void nm_rndv_cts(const struct nm_incoming *in)
{
	struct nm_request *r = nm_request_find(&in->engine->requests, in->pkt->tag, in->peer);
	struct nm_wire_cts cts;

	if (in->pkt->len < sizeof(cts) || !r || r->state != NM_REQUEST_WAIT_CTS) {
		nm_violation(in, "it requested a message that was not offered");
		return;
	}
	if (nm_unlikely(in->pkt->len == sizeof(cts) + sizeof(struct nm_wire_tag))) {
		if (!nm_gpudirect_send(in, r))
			nm_violation(in, "it requested bytes past the packets");
		return;
	}
	if (in->pkt->flags & NM_PKT_MEMORY) {
		if (!nm_rndv_cma_place(in->engine, r, in->pkt, in->payload))
			nm_violation(in, "it requested bytes at an invalid place");
		return;
	}
	memcpy(&cts, in->payload, sizeof(cts));
	if (in->pkt->len != sizeof(cts) || !(in->pkt->flags & NM_PKT_LAST) ||
	    cts.offset > r->size || cts.len > r->size - cts.offset ||
	    (r->kind == NM_REQUEST_WRITE && cts.offset + cts.len != r->size)) {
		nm_violation(in, "it requested %llu bytes at %llu of %llu",
			     (unsigned long long)cts.len, (unsigned long long)cts.offset,
			     (unsigned long long)r->size);
		return;
	}
	NM_FAULT("transfer-cts");
	r->done = cts.offset;
	r->accepted = cts.offset + cts.len;
	r->cursor = nm_cursor_at(r->iov, r->nr_iov, r->done);
	r->remote_id = in->pkt->data;
	r->past_cache = in->pkt->flags & NM_PKT_PAST;
	if (cts.len == 0) {
		finish_outgoing(in->engine, r);
		return;
	}
	nm_request_set_state(r, NM_REQUEST_STREAMING);
	nm_peer_stream(in->engine, in->peer, r);
}

int nm_rndv_step(struct nm_engine *engine, struct nm_peer *peer, struct nm_request *r)
{
	uint64_t left = r->accepted - r->done;
	struct iovec pieces[NM_RMA_SPAN_MAX];
	struct nm_cursor cursor = r->cursor;
	struct nm_packet packet = {
		.op = NM_OP_DATA,
		.len = (uint32_t)(left < peer->max_payload ? left : peer->max_payload),
		.tag = r->remote_id,
		.data = r->done,
	};
	int nr, err;

	if (r->state != NM_REQUEST_STREAMING)
		return nm_rndv_cma_step(engine, peer, r);
	if (r->kind == NM_REQUEST_SERVE_READ) {
		/* Looked up again each time: the region may be gone by now. */
		nr = nm_rma_span(engine, r->remote, r->nr_remote, r->done, packet.len,
				 NM_REMOTE_READ, pieces);
		if (nr < 0) {
			nm_stage_end(engine, r);
			nm_rma_serve_end(engine, r);
			nm_rndv_send_ack(engine, peer, packet.tag, EACCES);
			return 0;
		}
	} else {
		nr = (int)nm_cursor_take(&cursor, r->iov, r->nr_iov, packet.len, pieces);
		peer->link->past_cache = r->past_cache;
	}
	if (nm_unlikely(!nm_user_is_host(pieces, (size_t)nr))) {
		err = nm_stage_send(engine, r, &packet);
		if (err == -EFAULT || err == -EIO || err == -EACCES) {
			break_outgoing(engine, r, err);
			return 0;
		}
	} else {
		err = peer->send(peer->link, &packet, pieces, (unsigned int)nr);
	}
	if (err < 0)
		return err;
	r->cursor = cursor;
	r->done += packet.len;
	if (r->done < r->accepted)
		return 1;
	finish_outgoing(engine, r);
	return 0;
}

static NM_COLD void store_on_device(const struct nm_incoming *in, struct nm_request *r)
{
	int err = r->error ? 0 : nm_stage_in(in, r, in->payload, in->pkt->len);

	if (err < 0)
		nm_stage_failed(r, err);
}

/* Put a piece where it belongs. */
static void store_piece(const struct nm_incoming *in, struct nm_request *r)
{
	struct nm_engine *engine = in->engine;
	struct iovec pieces[NM_RMA_SPAN_MAX];
	uint32_t len = in->pkt->len;
	int nr;

	if (r->kind != NM_REQUEST_SERVE_WRITE) {
		if (nm_unlikely(!nm_user_is_host(r->iov, r->nr_iov)))
			store_on_device(in, r);
		else
			nm_cursor_fill(&r->cursor, r->iov, r->nr_iov, in->payload, len);
		return;
	}
	if (r->error)
		return;
	/* Looked up again each time: the region may be gone by now. */
	nr = nm_rma_span(engine, r->remote, r->nr_remote, r->done, len, NM_REMOTE_WRITE, pieces);
	if (nr < 0) {
		nm_stage_end(engine, r);
		r->error = EACCES;
	} else if (nm_unlikely(!nm_user_is_host(pieces, (size_t)nr) ||
			       (engine->stages && nm_stage_is_open(engine, r)))) {
		store_on_device(in, r);
	} else {
		nm_iov_scatter(pieces, (size_t)nr, in->payload, len);
	}
}

void nm_rndv_data(const struct nm_incoming *in)
{
	struct nm_request *r = nm_request_find(&in->engine->requests, in->pkt->tag, in->peer);

	if (!r || r->state != NM_REQUEST_WAIT_DATA) {
		nm_violation(in, "it sent bytes of a message that was not requested");
		return;
	}
	if (in->pkt->len == 0 || in->pkt->data != r->done || in->pkt->len > r->accepted - r->done) {
		nm_violation(in, "it sent %u bytes at %llu, when %llu of %llu were due",
			     in->pkt->len, (unsigned long long)in->pkt->data,
			     (unsigned long long)r->done, (unsigned long long)r->accepted);
		return;
	}
	NM_FAULT("transfer-piece");
	store_piece(in, r);
	r->done += in->pkt->len;
	if (r->done == r->accepted)
		nm_rndv_finish_incoming(in->engine, r);
}

/* May an ACK with this outcome end request R as it stands? */
static bool ack_fits(const struct nm_request *r, uint64_t outcome)
{
	switch (r->kind) {
	case NM_REQUEST_SEND:
		return outcome == 0 && (r->state == NM_REQUEST_WAIT_ACK ||
					(r->state == NM_REQUEST_WAIT_CTS && r->offered));
	case NM_REQUEST_WRITE:
		return r->state == NM_REQUEST_WAIT_ACK ||
		       (r->state == NM_REQUEST_WAIT_CTS && outcome != 0);
	case NM_REQUEST_READ:
		return outcome != 0 || r->size == 0;
	case NM_REQUEST_ATOMIC:
		return outcome != 0 || r->size == 0; /* a fetching one needs its RESULT */
	case NM_REQUEST_RECV:
	case NM_REQUEST_SERVE_WRITE:
		return outcome != 0 && r->state == NM_REQUEST_WAIT_DATA;
	case NM_REQUEST_MULTI_RECV:
	case NM_REQUEST_SERVE_READ:
		break;
	}
	return false;
}

/* The sender cannot read the rest of what it sends. */
static NM_COLD void broken_incoming(struct nm_engine *engine, struct nm_request *r)
{
	nm_stage_end(engine, r);
	r->accepted = r->done;
	r->packet_flags &= (uint8_t)~NM_PKT_ACK; /* it waits for no answer */
	nm_rndv_choice_end(engine, r);
	if (r->kind == NM_REQUEST_RECV)
		nm_recv_finish(engine, r, EIO);
	else
		nm_rma_write_broken(engine, r);
}

/* A peer has copied what it was shown. 0, or EFAULT: it was not what R is to send any more. */
static NM_COLD int check_shown(const struct nm_request *r)
{
	for (size_t i = 0; i < r->nr_iov; i++)
		if (nm_is_device(r->iov[i].iov_base) &&
		    !nm_device_is_there(r->iov[i].iov_base, r->iov[i].iov_len))
			return EFAULT;
	return 0;
}

void nm_rndv_ack(const struct nm_incoming *in)
{
	int err;

	struct nm_request *r = nm_request_find(&in->engine->requests, in->pkt->tag, in->peer);

	if (in->pkt->len != 0 || in->pkt->data > ERRNO_MAX || !r || !ack_fits(r, in->pkt->data)) {
		nm_violation(in, "it confirmed a request that was not made");
		return;
	}
	NM_FAULT("transfer-ack");
	if (nm_unlikely(in->pkt->data &&
			(r->kind == NM_REQUEST_RECV || r->kind == NM_REQUEST_SERVE_WRITE))) {
		broken_incoming(in->engine, r);
		return;
	}
	err = (int)in->pkt->data;
	if (nm_unlikely(!err && r->kind == NM_REQUEST_SEND && r->state == NM_REQUEST_WAIT_CTS &&
			!nm_user_is_host(r->iov, r->nr_iov)))
		err = check_shown(r);
	if (nm_unlikely(err))
		nm_stage_end(in->engine, r);
	nm_request_complete(in->engine, r, err);
}
