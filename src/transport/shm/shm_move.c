/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a session in order: each direction is left by its own writer, which says on the network
 * where its packets end. No end is reported then.
 */
#include <errno.h>

#include "base/arith.h"
#include "base/log.h"
#include "transport/shm/shm_private.h"

/* Lines about requests to leave, for each session. */
#define ASKED_LINES 4

/* A machine may ask at any rate. */
static void log_asked(struct shm_session *s, bool is_asked)
{
	if (s->nr_asked >= ASKED_LINES)
		return;
	s->nr_asked++;
	nm_info("%s: %s", s->base.label.text,
		is_asked ? "its machine or this one is asked to leave the segment" :
			   "no machine is asked to leave the segment any more");
}

NM_COLD void nm_shm_report_asked(struct shm_transport *shm, struct shm_session *s)
{
	const struct nm_reason why = {"it is not used, and a machine is asked to leave"};
	const struct nm_sink *sink = &shm->base.sink;
	bool is_asked = atomic_load_explicit(&s->base.is_asked, memory_order_relaxed);

	log_asked(s, is_asked);
	/* Without a record of the engine there is neither a source nor a link. */
	if (sink->asked && s->cookie && !sink->asked(&shm->base, s->cookie, is_asked))
		nm_shm_begin_end(shm, s, NM_SESSION_CLOSING, 0, &why);
}

bool nm_shm_is_quiet(const struct shm_transport *shm, const struct shm_session *s)
{
	return (s->is_held || s->is_taken) && !nm_shm_is_source(shm, s) &&
	       (s->is_held || !nm_shm_has_link(s));
}

NM_COLD void nm_shm_part(struct shm_transport *shm, struct shm_session *s)
{
	bool has_ended = s->base.state == NM_SESSION_CLOSING;
	bool is_over = nm_shm_is_quiet(shm, s) && (s->is_left || !nm_shm_has_link(s));

	if (s->base.state != NM_SESSION_UP && !has_ended)
		return;
	/* A handshake that was under way made the other direction. */
	if (s->is_parting && !is_over) {
		s->is_parting = false;
		shm->nr_unsettled--;
	}
	if (!is_over)
		return;
	if (nm_sessions_part(shm->sessions, &s->base, s->is_taken, s->is_left)) {
		shm->nr_unsettled += !s->is_parting;
		s->is_parting = true;
		return;
	}
	shm->nr_unsettled -= s->is_parting + has_ended;
	s->is_parting = false;
	nm_info("%s: the session in memory has ended in order", s->base.label.text);
}

static NM_COLD uint64_t hold(struct nm_link *base)
{
	struct shm_session *s = nm_shm_session_of(base);
	struct nm_ring_writer *writer = &s->link.writer;

	/* Closing changes the limit. */
	s->floor = writer->limit - writer->mask - 1;
	nm_ring_writer_close(writer);
	base->remote_copy = false;
	s->is_held = true;
	return writer->position - s->base.out.start;
}

static NM_COLD int take_rest(struct nm_transport *transport, const struct nm_identity *who,
			     uint64_t position)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct nm_session *session;
	struct nm_ring_reader *reader;
	struct shm_session *s;
	uint64_t end;

	/* The peer may have connected and sent since the last progress(). */
	nm_shm_take_events(shm);
	session = nm_sessions_find(shm->sessions, who);
	if (!session || session->state == NM_SESSION_NEW || session->state == NM_SESSION_DOWN)
		return -ENOENT;
	s = nm_shm_from(session);
	if (!nm_shm_is_source(shm, s))
		return -ENOENT;
	end = session->in.start + position;
	while ((reader = &shm->readers[s->source_index])->position != end) {
		if (session->state > NM_SESSION_CLOSING)
			return -EPIPE;
		/* In modular arithmetic also a position that was passed already. */
		if (end - reader->position > (uint64_t)reader->mask + 1 || !nm_ring_ready(reader))
			return -EBADMSG;
		if (!nm_shm_drain(shm, s->source_index))
			return -EPIPE;
	}
	if (session->state > NM_SESSION_CLOSING)
		return -EPIPE;
	nm_shm_return_last(shm, s);
	if (s->nr_withheld)
		shm->base.sink.let_go(&shm->base, s->cookie, true);
	nm_ring_return_credits(reader);
	s->taken = position;
	s->is_taken = true;
	nm_shm_remove_source(shm, s);
	nm_shm_part(shm, s);
	return 0;
}

static NM_COLD int replay(struct nm_link *base, uint64_t *position, struct nm_link *to)
{
	struct shm_transport *shm = nm_shm_of(base->transport);
	struct shm_session *s = nm_shm_session_of(base);
	const struct nm_ring_writer *writer = &s->link.writer;
	struct nm_ring_reader reader;
	struct nm_packet pkt;
	const void *payload;
	struct iovec iov;
	int err;

	if (s->base.state == NM_SESSION_DOWN || s->base.out.start + *position < s->floor)
		return -EBADMSG;
	nm_ring_reader_init(&reader, writer->slots, writer->mask + 1, shm->window.pool,
			    shm->window.geometry.chunk_size, shm->window.geometry.nr_chunks, NULL,
			    s->base.out.start + *position);
	while (reader.position != writer->position) {
		if (nm_ring_peek(&reader, shm->bounce, &pkt, &payload) <= 0)
			return -EBADMSG;
		if (shm->checked)
			pkt.len -= (uint32_t)nm_min_u64(pkt.len, NM_SHM_CHECK_LEN);
		if (pkt.len > to->transport->max_payload)
			return -EMSGSIZE;
		iov = (struct iovec){(void *)(uintptr_t)payload, pkt.len};
		err = to->transport->ops->send(to, &pkt, &iov, pkt.len > 0);
		if (err)
			return err;
		reader.position += reader.nr_taken;
		*position += reader.nr_taken;
	}
	return 0;
}

static NM_COLD void leave(struct nm_link *base)
{
	struct shm_session *s = nm_shm_session_of(base);
	struct shm_transport *shm = nm_shm_of(base->transport);

	if (s->base.state == NM_SESSION_DOWN || s->is_left)
		return;
	s->is_left = true;
	s->base.out.end = s->link.writer.position;
	nm_pool_reclaim_all(&shm->pool, &s->link.chunks);
	nm_shm_part(shm, s);
}

static NM_COLD void forget(struct nm_transport *transport, const struct nm_identity *who)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct nm_session *session = nm_sessions_find(shm->sessions, who);

	if (session && session->state == NM_SESSION_UP &&
	    atomic_load_explicit(&session->is_asked, memory_order_relaxed))
		nm_sessions_remind(shm->sessions, session);
}

const struct nm_move_ops nm_shm_move_ops = {
	.hold = hold,
	.take_rest = take_rest,
	.replay = replay,
	.leave = leave,
	.forget = forget,
};
