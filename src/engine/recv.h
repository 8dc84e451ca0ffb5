/* SPDX-License-Identifier: Apache-2.0 */
/* What receiving, multi-receive and looking for messages share. */
#ifndef NM_ENGINE_RECV_H
#define NM_ENGINE_RECV_H

#include "engine/internal.h"
#include "engine/unexpected.h"

static inline uint64_t nm_recv_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t nm_recv_flags(uint8_t packet_flags)
{
	return packet_flags & NM_PKT_DATA ? NM_REMOTE_CQ_DATA : 0;
}

static inline void nm_recv_count(const struct nm_arrival *a)
{
	a->source->received_messages++;
	a->source->received_bytes += a->size;
}

static inline struct nm_arrival nm_recv_arrival_of(const struct nm_unexpected *m)
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
		.nr_spans = m->rendezvous ? m->stored / (unsigned int)sizeof(struct nm_span) : 0,
	};
}

static inline void nm_recv_message_free(struct nm_engine *engine, struct nm_unexpected *m)
{
	nm_unexpected_remove(engine, m);
	nm_buffer_free(&engine->buffers, m, sizeof(*m) + m->stored);
}

/* recv.c */
struct nm_request *nm_recv_make(struct nm_engine *engine, const struct nm_message *message);
void nm_recv_post(struct nm_engine *engine, struct nm_match *match, struct nm_request *request);
void nm_recv_unpost(struct nm_engine *engine, struct nm_request *request);
/* Give a message to a request that is in no queue. */
void nm_recv_take(struct nm_engine *engine, struct nm_request *request,
		  const struct nm_arrival *arrival);
/* Start the transfer of a rendezvous into a request whose iov has `room` bytes. */
void nm_recv_take_rendezvous(struct nm_engine *engine, struct nm_request *request,
			     const struct nm_arrival *arrival, uint64_t room);

/* multi.c */
/* Post a multi-receive buffer and fill it with what is there already. */
void nm_multi_post(struct nm_engine *engine, struct nm_match *match, struct nm_request *request);
/* The message does not fit what is left, but may fit a fresh buffer. */
bool nm_multi_misfit(const struct nm_request *request, const struct nm_arrival *arrival);
void nm_multi_take(struct nm_engine *engine, struct nm_request *request,
		   const struct nm_arrival *arrival);
/* Take a buffer out of the queue; it is given back when its last message is complete. */
void nm_multi_retire(struct nm_engine *engine, struct nm_request *request, int err);
/* Give a buffer back by a completion of its own. */
void nm_multi_release(struct nm_engine *engine, struct nm_request *request, int err);

/* peek.c */
/* Drop all messages of PEER that no receive took yet, except claimed ones. */
void nm_recv_discard(struct nm_engine *engine, struct nm_peer *peer);
int nm_recv_peek(struct nm_engine *engine, const struct nm_message *message);
int nm_recv_claim(struct nm_engine *engine, const struct nm_message *message);

#endif
