/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving messages: posted receives, unexpected messages, multi-receive, probing, cancel. */
#include <errno.h>
#include <string.h>

#include "engine/internal.h"

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static struct nm_request *request_of(struct nm_posted *posted)
{
	return nm_container_of(posted, struct nm_request, posted);
}

static uint64_t arrival_flags(uint8_t packet_flags)
{
	return packet_flags & NM_PKT_DATA ? NM_REMOTE_CQ_DATA : 0;
}

static void count_arrival(const struct nm_arrival *a)
{
	a->source->received_messages++;
	a->source->received_bytes += a->size;
}

static void unpost(struct nm_engine *engine, struct nm_request *r)
{
	nm_match_unpost(nm_match_of(engine, r->flags & NM_TAGGED), &r->posted);
	if (r->posted.source)
		r->posted.source->nr_directed--;
}

/* Start the transfer of a rendezvous into request R, whose iov has room for `room` bytes. */
static void take_rendezvous(struct nm_engine *engine, struct nm_request *r,
			    const struct nm_arrival *a, uint64_t room)
{
	r->peer = a->source;
	r->size = a->size;
	r->accepted = min64(a->size, room);
	r->remote_id = a->sender_id;
	r->tag = a->tag;
	r->data = a->data;
	r->packet_flags = a->flags;
	r->state = NM_REQUEST_WAIT_DATA;
	nm_list_append(&a->source->requests, &r->peer_node);
	nm_transfer_accept(engine, r);
}

/* R is out of the queue: give it the message. */
static void take(struct nm_engine *engine, struct nm_request *r, const struct nm_arrival *a)
{
	uint64_t len;

	count_arrival(a);
	if (a->rendezvous) {
		take_rendezvous(engine, r, a, r->capacity);
		return;
	}
	len = min64(a->size, r->capacity);
	nm_iov_scatter(r->iov, r->nr_iov, a->payload, len);
	nm_complete_recv(engine, &(struct nm_recv_done){
					 .context = r->context,
					 .buf = r->nr_iov ? r->iov[0].iov_base : NULL,
					 .posted_flags = r->flags,
					 .extra_flags = arrival_flags(a->flags),
					 .len = len,
					 .olen = a->size - len,
					 .data = a->data,
					 .tag = a->tag,
					 .source = a->source,
					 .err = nm_unlikely(a->size > len) ? NM_ETRUNC : 0,
				 });
	nm_request_free(&engine->requests, r);
	if (nm_unlikely(a->flags & NM_PKT_ACK))
		nm_transfer_send_ack(engine, a->source, a->sender_id, 0);
}

/* Give a multi-receive buffer back: alone, not with a message. */
static void multi_release(struct nm_engine *engine, struct nm_request *r, int err)
{
	nm_complete_recv(engine, &(struct nm_recv_done){
					 .context = r->context,
					 .posted_flags = r->flags,
					 .extra_flags = NM_MULTI_RECV,
					 .err = err,
					 .release = err == 0,
				 });
	nm_request_free(&engine->requests, r);
}

/* Take a multi-receive buffer out of the queue; it ends when its last message has. */
static void multi_retire(struct nm_engine *engine, struct nm_request *r, int err)
{
	unpost(engine, r);
	r->state = NM_REQUEST_DRAINING;
	r->error = err;
	if (r->nr_children == 0)
		multi_release(engine, r, err);
}

/* True when the message does not fit what is left, but may fit a fresh buffer. */
static bool multi_misfit(const struct nm_request *r, const struct nm_arrival *a)
{
	return r->used > 0 && a->size > r->capacity - r->used;
}

/* A request of its own for a rendezvous into buffer R. NULL: the peer went down for it. */
static struct nm_request *multi_child(struct nm_engine *engine, struct nm_request *r,
				      const struct nm_arrival *a, char *start, uint64_t len)
{
	struct nm_request *child = nm_request_alloc(&engine->requests, NM_REQUEST_RECV);

	if (!child) {
		nm_peer_down(engine, a->source, -ENOMEM, "no memory for a message from it");
		return NULL;
	}
	child->flags = r->flags;
	child->context = r->context;
	child->parent = r;
	child->capacity = len;
	child->nr_iov = 1;
	child->iov[0] = (struct iovec){start, len};
	r->nr_children++;
	return child;
}

/* Put a message into a posted multi-receive buffer. */
static void multi_take(struct nm_engine *engine, struct nm_request *r, const struct nm_arrival *a)
{
	uint64_t len = min64(a->size, r->capacity - r->used);
	char *start = (char *)r->iov[0].iov_base + r->used;
	struct nm_request *child = NULL;
	bool full;

	if (a->rendezvous) {
		child = multi_child(engine, r, a, start, len);
		if (!child)
			return;
	}
	count_arrival(a);
	r->used += len;
	full = r->capacity - r->used < (engine->min_multi_recv ? engine->min_multi_recv : 1);
	if (full) {
		unpost(engine, r);
		r->state = NM_REQUEST_DRAINING;
	}
	if (child) {
		take_rendezvous(engine, child, a, len);
		return;
	}
	if (len > 0)
		memcpy(start, a->payload, len);
	full = full && r->nr_children == 0;
	nm_complete_recv(
		engine, &(struct nm_recv_done){
				.context = r->context,
				.buf = start,
				.posted_flags = r->flags,
				.extra_flags = arrival_flags(a->flags) | (full ? NM_MULTI_RECV : 0),
				.len = len,
				.olen = a->size - len,
				.data = a->data,
				.tag = a->tag,
				.source = a->source,
				.err = nm_unlikely(a->size > len) ? NM_ETRUNC : 0,
			});
	if (full)
		nm_request_free(&engine->requests, r);
	if (a->flags & NM_PKT_ACK)
		nm_transfer_send_ack(engine, a->source, a->sender_id, 0);
}

void nm_recv_finish(struct nm_engine *engine, struct nm_request *r, int err)
{
	struct nm_request *parent = r->parent;
	bool last = parent && --parent->nr_children == 0 && parent->state == NM_REQUEST_DRAINING;
	uint64_t olen = err ? r->size - r->done : r->size - r->accepted;

	/* The release goes with the last message, unless it is an error of its own. */
	nm_complete_recv(engine,
			 &(struct nm_recv_done){
				 .context = r->context,
				 .buf = r->nr_iov ? r->iov[0].iov_base : NULL,
				 .posted_flags = r->flags,
				 .extra_flags = arrival_flags(r->packet_flags) |
						(last && !parent->error ? NM_MULTI_RECV : 0),
				 .len = r->done,
				 .olen = olen,
				 .data = r->data,
				 .tag = r->tag,
				 .source = r->peer,
				 .err = err  ? err :
					olen ? NM_ETRUNC :
					       0,
			 });
	if (!err && r->packet_flags & NM_PKT_ACK)
		nm_transfer_send_ack(engine, r->peer, r->remote_id, 0);
	nm_request_free(&engine->requests, r);
	if (last && parent->error)
		multi_release(engine, parent, parent->error);
	else if (last)
		nm_request_free(&engine->requests, parent);
}

static NM_COLD void store(struct nm_engine *engine, const struct nm_arrival *a)
{
	size_t stored = a->rendezvous ? 0 : (size_t)a->size;
	struct nm_unexpected *m = nm_buffer_alloc(&engine->buffers, sizeof(*m) + stored);

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
}

void nm_recv_arrive(struct nm_engine *engine, const struct nm_arrival *a)
{
	struct nm_match *match = nm_match_of(engine, a->flags & NM_PKT_TAGGED);
	struct nm_posted *posted;

	while ((posted = nm_match_find_posted(match, a->source, a->tag))) {
		struct nm_request *r = request_of(posted);

		if (nm_likely(r->kind == NM_REQUEST_RECV)) {
			unpost(engine, r);
			take(engine, r, a);
			return;
		}
		if (!multi_misfit(r, a)) {
			multi_take(engine, r, a);
			return;
		}
		/* It must not take a later, smaller message: that would overtake this one. */
		multi_retire(engine, r, 0);
	}
	store(engine, a);
}

static struct nm_arrival arrival_of(const struct nm_unexpected *m)
{
	return (struct nm_arrival){
		.source = m->source,
		.tag = m->tag,
		.data = m->data,
		.size = m->size,
		.sender_id = m->sender_id,
		.payload = m->payload,
		.flags = m->flags,
		.rendezvous = m->rendezvous,
	};
}

static void message_free(struct nm_engine *engine, struct nm_unexpected *m)
{
	nm_buffer_free(&engine->buffers, m, sizeof(*m) + m->stored);
}

/* Drop a message that is in no queue; its sender does not wait for ever. */
static void message_discard(struct nm_engine *engine, struct nm_unexpected *m)
{
	if (m->rendezvous && !m->lost) {
		struct nm_wire_cts cts = {.accepted = 0};
		struct nm_packet packet = {
			.op = NM_OP_CTS,
			.len = sizeof(cts),
			.tag = m->sender_id,
		};

		nm_peer_post(engine, m->source, &packet, &cts);
	}
	if (m->flags & NM_PKT_ACK && !m->lost)
		nm_transfer_send_ack(engine, m->source, m->sender_id, 0);
	message_free(engine, m);
}

void nm_recv_forget(struct nm_engine *engine, struct nm_peer *peer)
{
	for (unsigned int i = 0; i < 2; i++) {
		nm_list_for_each_safe(node, &peer->unexpected[i]) {
			struct nm_unexpected *m =
				nm_container_of(node, struct nm_unexpected, source_node);

			if (!m->rendezvous)
				continue;
			nm_match_unstore(&engine->matches[i], m);
			message_free(engine, m);
		}
	}
	nm_list_for_each(node, &engine->claimed) {
		struct nm_unexpected *m = nm_container_of(node, struct nm_unexpected, all_node);

		if (m->source == peer && m->rendezvous)
			m->lost = true;
	}
}

void nm_recv_fail_posted(struct nm_engine *engine, struct nm_request *r, int err)
{
	if (r->kind == NM_REQUEST_MULTI_RECV) {
		multi_retire(engine, r, err);
		return;
	}
	unpost(engine, r);
	nm_complete_recv(engine, &(struct nm_recv_done){
					 .context = r->context,
					 .posted_flags = r->flags,
					 .tag = r->posted.tag,
					 .source = r->posted.source,
					 .err = err,
				 });
	nm_request_free(&engine->requests, r);
}

static struct nm_request *request_make(struct nm_engine *engine, const struct nm_message *m)
{
	bool multi = m->flags & NM_MULTI_RECV;
	struct nm_request *r = nm_request_alloc(&engine->requests,
						multi ? NM_REQUEST_MULTI_RECV : NM_REQUEST_RECV);

	if (!r)
		return NULL;
	r->state = NM_REQUEST_POSTED;
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
	const struct nm_peer *source = r->posted.source;

	if (source ? source->state != NM_PEER_DOWN : r->kind == NM_REQUEST_MULTI_RECV)
		return false;
	engine->crash_untold = NULL;
	nm_recv_fail_posted(engine, r, ECONNRESET);
	return true;
}

static void post(struct nm_engine *engine, struct nm_match *match, struct nm_request *r)
{
	nm_match_post(match, &r->posted);
	if (r->posted.source)
		r->posted.source->nr_directed++;
	if (nm_unlikely((r->posted.source && r->posted.source->state == NM_PEER_DOWN) ||
			engine->crash_untold))
		hopeless(engine, r);
}

/* Fill a new multi-receive buffer with what is there already. */
static void multi_post(struct nm_engine *engine, struct nm_match *match, struct nm_request *r)
{
	post(engine, match, r);
	/* The request's id tells whether it still is what we posted. */
	for (uint64_t id = nm_request_id(r);
	     id == nm_request_id(r) && r->state == NM_REQUEST_POSTED;) {
		struct nm_unexpected *m =
			nm_match_find_unexpected(match, r->posted.source, 0, UINT64_MAX);
		struct nm_arrival a;

		if (!m)
			return;
		a = arrival_of(m);
		if (multi_misfit(r, &a)) {
			multi_retire(engine, r, 0);
			return;
		}
		nm_match_unstore(match, m);
		multi_take(engine, r, &a);
		message_free(engine, m);
	}
}

static void look_done(struct nm_engine *engine, const struct nm_message *m,
		      const struct nm_unexpected *found, int err)
{
	struct nm_recv_done done = {
		.context = m->context,
		.posted_flags = m->flags | NM_PEEK,
		.tag = m->tag,
		.source = m->peer,
		.err = err,
	};

	if (found) {
		done.len = found->size;
		done.tag = found->tag;
		done.data = found->data;
		done.source = found->source;
		done.extra_flags = arrival_flags(found->flags);
	}
	nm_complete_recv(engine, &done);
}

static int peek(struct nm_engine *engine, const struct nm_message *m)
{
	struct nm_match *match = nm_match_of(engine, m->flags & NM_TAGGED);
	bool tagged = m->flags & NM_TAGGED;
	struct nm_unexpected *found;

	/* The message may be at the door. */
	nm_engine_progress(engine);
	found = nm_match_find_unexpected(match, m->peer, tagged ? m->tag : 0,
					 tagged ? m->ignore : UINT64_MAX);
	if (!found) {
		look_done(engine, m, NULL, ENOMSG);
		return 0;
	}
	look_done(engine, m, found, 0);
	if (m->flags & (NM_CLAIM | NM_DISCARD))
		nm_match_unstore(match, found);
	if (m->flags & NM_CLAIM) {
		found->context = m->context;
		nm_list_append(&engine->claimed, &found->all_node);
	} else if (m->flags & NM_DISCARD) {
		message_discard(engine, found);
	}
	return 0;
}

static struct nm_unexpected *claimed_find(struct nm_engine *engine, const void *context)
{
	nm_list_for_each(node, &engine->claimed) {
		struct nm_unexpected *m = nm_container_of(node, struct nm_unexpected, all_node);

		if (m->context == context)
			return m;
	}
	return NULL;
}

static int claim(struct nm_engine *engine, const struct nm_message *m)
{
	struct nm_unexpected *found = claimed_find(engine, m->context);
	struct nm_arrival a;
	struct nm_request *r;

	if (!found)
		return -EINVAL;
	if (found->lost || m->flags & NM_DISCARD) {
		nm_list_remove(&found->all_node);
		look_done(engine, m, found, found->lost ? ECONNRESET : 0);
		message_discard(engine, found);
		return 0;
	}
	r = request_make(engine, m);
	if (!r)
		return -EAGAIN;
	nm_list_remove(&found->all_node);
	a = arrival_of(found);
	take(engine, r, &a);
	message_free(engine, found);
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
			return peek(engine, m);
		if (m->flags & NM_CLAIM)
			return claim(engine, m);
		if (m->flags & NM_DISCARD || m->flags & NM_TAGGED || m->nr_iov != 1)
			return -EINVAL;
	}
	r = request_make(engine, m);
	if (!r)
		return -EAGAIN;
	if (m->flags & NM_MULTI_RECV) {
		multi_post(engine, match, r);
		return 0;
	}
	found = nm_match_find_unexpected(match, m->peer, r->posted.tag, r->posted.ignore);
	if (nm_likely(!found)) {
		post(engine, match, r);
		return 0;
	}
	nm_match_unstore(match, found);
	a = arrival_of(found);
	take(engine, r, &a);
	message_free(engine, found);
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
