/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multi-receive: one posted buffer takes message after message, until less room is left than the
 * user asked for. It is given back once, when the last message in it is complete.
 */
#include <errno.h>
#include <string.h>

#include "engine/internal.h"
#include "engine/recv.h"

/* Give a multi-receive buffer back: alone, not with a message. */
void nm_multi_release(struct nm_engine *engine, struct nm_request *r, int err)
{
	const struct nm_recv_done done = {
		.context = r->context,
		.posted_flags = r->flags,
		.extra_flags = NM_MULTI_RECV,
		.err = err,
		.release = err == 0,
	};

	nm_complete_recv(engine, &done);
	nm_request_free(&engine->requests, r);
}

/* Take a multi-receive buffer out of the queue; it ends when its last message has. */
void nm_multi_retire(struct nm_engine *engine, struct nm_request *r, int err)
{
	nm_recv_unpost(engine, r);
	nm_request_set_state(r, NM_REQUEST_DRAINING);
	r->error = err;
	if (r->nr_children == 0)
		nm_multi_release(engine, r, err);
}

/* True when the message does not fit what is left, but may fit a fresh buffer. */
bool nm_multi_misfit(const struct nm_request *r, const struct nm_arrival *a)
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
void nm_multi_take(struct nm_engine *engine, struct nm_request *r, const struct nm_arrival *a)
{
	uint64_t len = nm_recv_min(a->size, r->capacity - r->used);
	char *start = (char *)r->iov[0].iov_base + r->used;
	struct nm_request *child = NULL;
	bool full;
	int err = 0;

	if (a->rendezvous) {
		child = multi_child(engine, r, a, start, len);
		if (!child)
			return;
	}
	nm_recv_count(a);
	r->used += len;
	full = r->capacity - r->used < (engine->min_multi_recv ? engine->min_multi_recv : 1);
	if (full) {
		nm_recv_unpost(engine, r);
		nm_request_set_state(r, NM_REQUEST_DRAINING);
	}
	if (child) {
		nm_recv_take_rendezvous(engine, child, a, len);
		return;
	}
	if (len > 0)
		err = nm_user_put(start, a->payload, len);
	full = full && r->nr_children == 0;
	nm_complete_recv(
		engine, &(struct nm_recv_done){
				.context = r->context,
				.buf = start,
				.posted_flags = r->flags,
				.extra_flags = nm_recv_flags(a->flags) | (full ? NM_MULTI_RECV : 0),
				.len = len,
				.olen = a->size - len,
				.data = a->data,
				.tag = a->tag,
				.source = a->source,
				.err = nm_unlikely(err < 0)	  ? -err :
				       nm_unlikely(a->size > len) ? NM_ETRUNC :
								    0,
			});
	if (full)
		nm_request_free(&engine->requests, r);
	if (a->flags & NM_PKT_ACK)
		nm_rndv_send_ack(engine, a->source, a->sender_id, 0);
}

/* Fill a new multi-receive buffer with what is there already. */
void nm_multi_post(struct nm_engine *engine, struct nm_match *match, struct nm_request *r)
{
	nm_recv_post(engine, match, r);
	/* The id of the request shows whether it is still the posted one. */
	for (uint64_t id = nm_request_id(r);
	     id == nm_request_id(r) && r->state == NM_REQUEST_POSTED;) {
		struct nm_unexpected *m =
			nm_match_find_unexpected(match, r->posted.source, 0, UINT64_MAX);
		struct nm_arrival a;

		if (!m)
			return;
		a = nm_recv_arrival_of(m);
		if (nm_multi_misfit(r, &a)) {
			nm_multi_retire(engine, r, 0);
			return;
		}
		nm_match_unstore(match, m);
		nm_multi_take(engine, r, &a);
		nm_recv_message_free(engine, m);
	}
}
