/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "engine/internal.h"

static struct nm_counter *transmit_counter(const struct nm_engine_queues *queues, uint64_t kind)
{
	if (kind & NM_SEND)
		return queues->send;
	return kind & NM_READ ? queues->read : queues->write;
}

void nm_complete_transmit(struct nm_engine *engine, uint64_t kind, uint64_t flags, void *context,
			  int err)
{
	struct nm_counter *counter = transmit_counter(&engine->queues, kind);

	if (counter) {
		if (nm_likely(err == 0))
			counter->value++;
		else
			counter->errors++;
	}
	if (!engine->queues.transmit || (err == 0 && !(flags & NM_COMPLETION)))
		return;
	*nm_cqueue_add(engine->queues.transmit) = (struct nm_completion){
		.context = context,
		.flags = kind,
		.err = err,
	};
}

void nm_complete_recv(struct nm_engine *engine, const struct nm_recv_done *done)
{
	struct nm_counter *counter = engine->queues.recv;

	/* Looking for a message receives nothing, and giving a buffer back neither. */
	if (counter && !done->release && !(done->posted_flags & NM_PEEK)) {
		if (nm_unlikely(done->err != 0))
			counter->errors++;
		else
			counter->value++;
	}
	if (nm_unlikely(done->err == ECONNRESET))
		engine->failed.receives++;
	if (!engine->queues.receive ||
	    (done->err == 0 && !(done->posted_flags & (NM_COMPLETION | NM_PEEK))))
		return;
	*nm_cqueue_add(engine->queues.receive) = (struct nm_completion){
		.context = done->context,
		.flags =
			done->extra_flags |
			(done->release ? 0 : NM_RECV | (done->posted_flags & (NM_TAGGED | NM_MSG))),
		.len = done->len,
		.buf = done->buf,
		.data = done->data,
		.tag = done->tag,
		.source = done->source,
		.err = done->err,
		.olen = done->olen,
	};
}

void nm_complete_remote(struct nm_engine *engine, struct nm_peer *peer, uint64_t kind, uint64_t len,
			uint64_t data)
{
	if (!engine->queues.receive)
		return;
	*nm_cqueue_add(engine->queues.receive) = (struct nm_completion){
		.flags = kind | NM_REMOTE_CQ_DATA,
		.len = len,
		.data = data,
		.source = peer,
	};
}

void nm_request_complete(struct nm_engine *engine, struct nm_request *request, int err)
{
	uint64_t kind = 0;

	switch (request->kind) {
	case NM_REQUEST_SEND:
		kind = NM_SEND | (request->flags & (NM_TAGGED | NM_MSG));
		break;
	case NM_REQUEST_WRITE:
		kind = NM_RMA | NM_WRITE;
		break;
	case NM_REQUEST_READ:
		kind = NM_RMA | NM_READ;
		break;
	case NM_REQUEST_ATOMIC:
		kind = NM_ATOMIC | (request->flags & (NM_READ | NM_WRITE));
		break;
	case NM_REQUEST_SERVE_WRITE:
	case NM_REQUEST_SERVE_READ:
		nm_rma_serve_end(engine, request);
		return;
	case NM_REQUEST_RECV:
	case NM_REQUEST_MULTI_RECV:
		break;
	}
	if (kind & (NM_RMA | NM_ATOMIC))
		request->peer->nr_started--;
	if (nm_unlikely(err == ECONNRESET) && kind & NM_SEND)
		engine->failed.sends++;
	else if (nm_unlikely(err == ECONNRESET) && kind)
		engine->failed.accesses++;
	if (kind)
		nm_complete_transmit(engine, kind, request->flags, request->context, err);
	nm_request_free(&engine->requests, request);
}
