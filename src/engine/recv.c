/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving messages: posted receives, unexpected messages, cancel. */
#include <errno.h>
#include <string.h>

#include "base/copy_small.h"
#include "engine/internal.h"
#include "engine/recv.h"

static struct nm_request *request_of(struct nm_posted *posted)
{
	return nm_container_of(posted, struct nm_request, posted);
}

void nm_recv_unpost(struct nm_engine *engine, struct nm_request *r)
{
	nm_match_unpost(nm_match_of(engine, r->flags & NM_TAGGED), &r->posted);
}

/* Start the transfer of a rendezvous into request R, whose iov has room for `room` bytes. */
void nm_recv_take_rendezvous(struct nm_engine *engine, struct nm_request *r,
			     const struct nm_arrival *a, uint64_t room)
{
	r->peer = a->source;
	r->size = a->size;
	r->accepted = nm_recv_min(a->size, room);
	r->remote_id = a->sender_id;
	r->tag = a->tag;
	r->data = a->data;
	r->packet_flags = a->flags;
	r->nr_spans = a->nr_spans;
	memcpy(r->spans, a->payload, a->nr_spans * sizeof(r->spans[0]));
	nm_list_append(&a->source->requests, &r->peer_node);
	nm_rndv_accept(engine, r);
}

/* R is out of the queue: give it the message. */
void nm_recv_take(struct nm_engine *engine, struct nm_request *r, const struct nm_arrival *a)
{
	uint64_t len;
	int err;

	nm_recv_count(a);
	if (a->rendezvous) {
		nm_recv_take_rendezvous(engine, r, a, r->capacity);
		return;
	}
	len = nm_recv_min(a->size, r->capacity);
	err = nm_iov_scatter(r->iov, r->nr_iov, a->payload, len);
	const struct nm_recv_done done = {
		.context = r->context,
		.buf = r->nr_iov ? r->iov[0].iov_base : NULL,
		.posted_flags = r->flags,
		.extra_flags = nm_recv_flags(a->flags),
		.len = len,
		.olen = a->size - len,
		.data = a->data,
		.tag = a->tag,
		.source = a->source,
		.err = nm_unlikely(err < 0)	  ? -err :
		       nm_unlikely(a->size > len) ? NM_ETRUNC :
						    0,
	};

	nm_complete_recv(engine, &done);
	nm_request_put(&engine->requests, r);
	if (nm_unlikely(a->flags & NM_PKT_ACK))
		nm_rndv_send_ack(engine, a->source, a->sender_id, 0);
}

void nm_recv_finish(struct nm_engine *engine, struct nm_request *r, int err)
{
	struct nm_request *parent = r->parent;
	bool last = parent && --parent->nr_children == 0 && parent->state == NM_REQUEST_DRAINING;
	uint64_t olen = err ? r->size - r->done : r->size - r->accepted;
	/* Of a peer that is down nobody waits. After an error of the device its sender still does. */
	bool answered = err != ECONNRESET && r->packet_flags & NM_PKT_ACK;
	struct nm_peer *source = r->peer;
	uint64_t id = r->remote_id;

	if (nm_unlikely(r->tail_due))
		engine->nr_exposed--; /* the peer is gone */

	/* The release goes with the last message, unless it is an error of its own. */
	const struct nm_recv_done done = {
		.context = r->context,
		.buf = r->nr_iov ? r->iov[0].iov_base : NULL,
		.posted_flags = r->flags,
		.extra_flags = nm_recv_flags(r->packet_flags) |
			       (last && !parent->error ? NM_MULTI_RECV : 0),
		.len = r->done,
		.olen = olen,
		.data = r->data,
		.tag = r->tag,
		.source = r->peer,
		.err = err  ? err :
		       olen ? NM_ETRUNC :
			      0,
	};

	nm_complete_recv(engine, &done);
	nm_request_free(&engine->requests, r);
	if (last && parent->error)
		nm_multi_release(engine, parent, parent->error);
	else if (last)
		nm_request_free(&engine->requests, parent);
	/* The answer comes last: a peer that takes no answers goes down in it, with its requests. */
	if (answered)
		nm_rndv_send_ack(engine, source, id, 0);
}

static NM_COLD void store(struct nm_engine *engine, const struct nm_arrival *a)
{
	size_t stored = a->rendezvous ? a->nr_spans * sizeof(struct nm_span) : (size_t)a->size;
	struct nm_unexpected *m;

	if (!nm_unexpected_has_room(engine, a->source, sizeof(*m) + stored))
		return;
	m = nm_buffer_alloc(&engine->buffers, sizeof(*m) + stored);
	if (!m) {
		nm_peer_down(engine, a->source, -ENOMEM, "no memory for a message from it");
		return;
	}
	m->source = a->source;
	m->tag = a->tag;
	m->data = a->data;
	m->size = a->size;
	m->sender_id = a->sender_id;
	m->context = NULL;
	m->stored = (uint32_t)stored;
	m->flags = a->flags;
	m->rendezvous = a->rendezvous;
	m->lost = false;
	if (stored > 0)
		memcpy(m->payload, a->payload, stored);
	nm_match_store(nm_match_of(engine, a->flags & NM_PKT_TAGGED), m);
	nm_unexpected_add(engine, m);
}

static NM_SLOW_HALF void arrive(struct nm_engine *engine, struct nm_peer *source,
				const struct nm_packet *pkt, const void *payload)
{
	const struct nm_arrival a = {
		.source = source,
		.tag = pkt->flags & NM_PKT_TAGGED ? pkt->tag : 0,
		.data = pkt->data,
		.size = pkt->len,
		.payload = payload,
		.flags = pkt->flags,
	};

	nm_recv_arrive(engine, &a);
}

/*
 * nm_recv_arrive() and nm_recv_take() for the case that nearly every message is: a few bytes, one
 * of the oldest receives wants them, and it has one buffer. It calls nothing, so it saves nothing.
 */
void nm_recv_eager(struct nm_engine *engine, struct nm_peer *source, const struct nm_packet *pkt,
		   const void *payload)
{
	struct nm_match *match = nm_match_of(engine, pkt->flags & NM_PKT_TAGGED);
	uint64_t tag = pkt->flags & NM_PKT_TAGGED ? pkt->tag : 0;
	struct nm_posted *posted = nm_match_find_oldest(match, source, tag);
	struct nm_request *r = nm_container_of(posted, struct nm_request, posted);
	struct nm_cqueue *queue = engine->queues.receive;
	uint32_t len = pkt->len;
	struct nm_completion *c;

	if (nm_unlikely(!posted || !nm_match_is_plain(match, posted) ||
			r->kind != NM_REQUEST_RECV || r->nr_iov != 1 || len > r->capacity ||
			len > NM_COPY_SMALL_MAX || !queue || nm_cqueue_full(queue))) {
		arrive(engine, source, pkt, payload);
		return;
	}
	nm_match_take(match, posted);
	nm_copy_small(r->iov[0].iov_base, payload, len);
	if (r->flags & NM_COMPLETION) {
		c = nm_cqueue_next(queue);
		c->context = r->context;
		c->flags = nm_recv_flags(pkt->flags) | NM_RECV | (r->flags & (NM_TAGGED | NM_MSG));
		c->len = len;
		c->buf = r->iov[0].iov_base;
		c->data = pkt->data;
		c->tag = tag;
		c->source = source;
		c->err = 0;
		c->olen = 0;
	}
	nm_request_put(&engine->requests, r);
	source->received_messages++;
	source->received_bytes += len;
	if (engine->queues.recv)
		engine->queues.recv->value++;
}

void nm_recv_arrive(struct nm_engine *engine, const struct nm_arrival *a)
{
	struct nm_match *match = nm_match_of(engine, a->flags & NM_PKT_TAGGED);
	struct nm_posted *posted;

	while ((posted = nm_match_find_posted(match, a->source, a->tag))) {
		struct nm_request *r = request_of(posted);

		if (nm_likely(r->kind == NM_REQUEST_RECV)) {
			nm_recv_unpost(engine, r);
			nm_recv_take(engine, r, a);
			return;
		}
		if (!nm_multi_misfit(r, a)) {
			nm_multi_take(engine, r, a);
			return;
		}
		/* It must not take a later, smaller message: that would overtake this one. */
		nm_multi_retire(engine, r, 0);
	}
	store(engine, a);
}

void nm_recv_fail_posted(struct nm_engine *engine, struct nm_request *r, int err)
{
	if (r->kind == NM_REQUEST_MULTI_RECV) {
		nm_multi_retire(engine, r, err);
		return;
	}
	nm_recv_unpost(engine, r);
	const struct nm_recv_done done = {
		.context = r->context,
		.posted_flags = r->flags,
		.tag = r->posted.tag,
		.source = r->posted.source,
		.err = err,
	};

	nm_complete_recv(engine, &done);
	nm_request_put(&engine->requests, r);
}

struct nm_request *nm_recv_make(struct nm_engine *engine, const struct nm_message *m)
{
	bool multi = m->flags & NM_MULTI_RECV;
	struct nm_request *r = nm_request_alloc(&engine->requests,
						multi ? NM_REQUEST_MULTI_RECV : NM_REQUEST_RECV);

	if (!r)
		return NULL;
	nm_request_set_state(r, NM_REQUEST_POSTED);
	r->flags = m->flags;
	r->context = m->context;
	r->nr_iov = m->nr_iov;
	for (size_t i = 0; i < m->nr_iov; i++)
		r->iov[i] = m->iov[i];
	r->capacity = nm_iov_total(m->iov, m->nr_iov);
	r->posted.source = m->peer;
	r->posted.tag = m->flags & NM_TAGGED ? m->tag : 0;
	r->posted.ignore = m->flags & NM_TAGGED ? m->ignore : UINT64_MAX;
	return r;
}

/* A receive that would wait for a peer that is gone, or that could have matched one that crashed
 * unseen: it ends now. True when it did. */
static NM_COLD bool hopeless(struct nm_engine *engine, struct nm_request *r)
{
	struct nm_peer *source = r->posted.source ? r->posted.source : engine->crash_untold;
	const struct nm_failed before = engine->failed;
	bool is_loss;

	if (r->posted.source ? source->state != NM_PEER_DOWN && source->loss != NM_LOSS_UNREPORTED :
			       r->kind == NM_REQUEST_MULTI_RECV)
		return false;
	is_loss = source->loss != NM_LOSS_NONE;
	if (source->loss == NM_LOSS_UNREPORTED)
		source->loss = NM_LOSS_NONE;
	engine->crash_untold = NULL;
	nm_recv_fail_posted(engine, r, ECONNRESET);
	if (is_loss)
		nm_report_lost(engine, source, &before);
	return true;
}

void nm_recv_post(struct nm_engine *engine, struct nm_match *match, struct nm_request *r)
{
	nm_match_post(match, &r->posted);
	if (nm_unlikely((r->posted.source && (r->posted.source->state == NM_PEER_DOWN ||
					      r->posted.source->loss == NM_LOSS_UNREPORTED)) ||
			engine->crash_untold))
		hopeless(engine, r);
}

/* There may be a message already, or the end of a peer to report, or no request left. */
static NM_SLOW_HALF int recv_slowly(struct nm_engine *engine, struct nm_peer *source, void *buffer,
				    size_t len, uint64_t tag, uint64_t ignore, uint64_t flags,
				    void *context)
{
	const struct iovec iov = {.iov_base = buffer, .iov_len = len};
	const struct nm_message message = {
		.iov = &iov,
		.nr_iov = 1,
		.peer = source,
		.tag = tag,
		.ignore = ignore,
		.context = context,
		.flags = flags,
	};

	return nm_engine_recv(engine, &message);
}

int nm_engine_recv_buffer(struct nm_engine *engine, struct nm_peer *source, void *buffer,
			  size_t len, uint64_t tag, uint64_t ignore, uint64_t flags, void *context)
{
	struct nm_match *match = nm_match_of(engine, flags & NM_TAGGED);
	struct nm_request *r;

	if (nm_unlikely(match->nr_unexpected > 0 || engine->crash_untold ||
			!engine->requests.free ||
			(source &&
			 (source->state == NM_PEER_DOWN || source->loss == NM_LOSS_UNREPORTED))))
		return recv_slowly(engine, source, buffer, len, tag, ignore, flags, context);
	r = nm_request_alloc(&engine->requests, NM_REQUEST_RECV);
	nm_request_set_state(r, NM_REQUEST_POSTED);
	r->flags = flags;
	r->context = context;
	r->nr_iov = 1;
	r->iov[0].iov_base = buffer;
	r->iov[0].iov_len = len;
	r->capacity = len;
	r->posted.source = source;
	r->posted.tag = tag;
	r->posted.ignore = ignore;
	nm_match_post(match, &r->posted);
	return 0;
}

int nm_engine_recv(struct nm_engine *engine, const struct nm_message *m)
{
	struct nm_match *match = nm_match_of(engine, m->flags & NM_TAGGED);
	struct nm_unexpected *found;
	struct nm_arrival a;
	struct nm_request *r;

	if (nm_unlikely(m->nr_iov > NM_IOV_MAX))
		return -EINVAL;
	if (nm_unlikely(m->flags & (NM_PEEK | NM_CLAIM | NM_DISCARD | NM_MULTI_RECV))) {
		if (m->flags & NM_PEEK)
			return nm_recv_peek(engine, m);
		if (m->flags & NM_CLAIM)
			return nm_recv_claim(engine, m);
		if (m->flags & NM_DISCARD || m->flags & NM_TAGGED || m->nr_iov != 1)
			return -EINVAL;
	}
	r = nm_recv_make(engine, m);
	if (!r)
		return -EAGAIN;
	if (m->flags & NM_MULTI_RECV) {
		nm_multi_post(engine, match, r);
		return 0;
	}
	found = nm_match_find_unexpected(match, m->peer, r->posted.tag, r->posted.ignore);
	if (nm_likely(!found)) {
		nm_recv_post(engine, match, r);
		return 0;
	}
	nm_match_unstore(match, found);
	a = nm_recv_arrival_of(found);
	nm_recv_take(engine, r, &a);
	nm_recv_message_free(engine, found);
	return 0;
}

void nm_engine_set_min_multi_recv(struct nm_engine *engine, size_t bytes)
{
	engine->min_multi_recv = bytes;
}

int nm_engine_cancel(struct nm_engine *engine, void *context)
{
	for (unsigned int i = 0; i < 2; i++) {
		nm_list_for_each(node, &engine->matches[i].posted_all) {
			struct nm_posted *p = nm_container_of(node, struct nm_posted, all_node);

			if (request_of(p)->context == context) {
				nm_recv_fail_posted(engine, request_of(p), ECANCELED);
				return 0;
			}
		}
	}
	return -ENOENT;
}
