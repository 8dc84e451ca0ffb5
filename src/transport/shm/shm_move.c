/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A direction leaves memory in order, and comes back: its own writer says on the network where its
 * packets end, and where they go on. No end is reported then.
 */
#include <errno.h>

#include "base/arith.h"
#include "base/fault.h"
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
	if (sink->asked && s->cookie &&
	    !sink->asked(&shm->base, s->cookie, is_asked ? NM_LEAVES : NM_STAYS))
		nm_shm_begin_end(shm, s, NM_SESSION_CLOSING, 0, &why);
}

NM_COLD void nm_shm_report_absent(struct shm_transport *shm, struct shm_session *s)
{
	const struct nm_sink *sink = &shm->base.sink;
	struct nm_reason why = s->base.why;

	if (!sink->asked || !s->cookie || !sink->asked(&shm->base, s->cookie, NM_ABSENT))
		nm_shm_begin_end(shm, s, NM_SESSION_CLOSING, s->base.err, &why);
}

NM_COLD void nm_shm_report_back(struct shm_transport *shm, struct shm_session *s)
{
	const struct nm_sink *sink = &shm->base.sink;

	/* A peer that the engine has no use for stays where it is. */
	if (sink->asked && s->cookie)
		(void)sink->asked(&shm->base, s->cookie, NM_STAYS);
}

static NM_COLD int enter(struct nm_transport *transport, const struct nm_address *address,
			 struct nm_peer *cookie, struct nm_link **ret_link,
			 struct nm_reason *ret_reason)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct nm_session *session;
	struct shm_session *s;
	int err;

	err = nm_sessions_call(shm->sessions, &address->who, &session, ret_reason);
	if (err) {
		nm_shm_note_cookie(shm, &address->who, cookie);
		return err;
	}
	s = nm_shm_from(session);
	nm_shm_open_link(shm, s, cookie);
	*ret_link = &s->link.base;
	return 0;
}

/* A ring in which nothing is ever published. */
static const struct nm_slot nothing;

NM_COLD void nm_shm_resume(struct shm_transport *shm, struct shm_session *s)
{
	const struct nm_foreign_window *window = &s->base.window;
	struct nm_ring_reader *reader;

	if (!s->is_suspended || !nm_shm_is_source(shm, s))
		return;
	s->is_suspended = false;
	reader = &shm->readers[s->source_index];
	reader->slots = nm_foreign_ring(window, s->base.in.peer_lane);
	reader->mask = window->geometry.ring_slots - 1;
}

static NM_COLD void suspend(struct nm_transport *transport, const struct nm_identity *who,
			    bool is_suspended)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct nm_session *session = nm_sessions_find(shm->sessions, who);
	struct shm_session *s = session ? nm_shm_from(session) : NULL;

	if (!s || !nm_shm_is_source(shm, s))
		return;
	if (!is_suspended) {
		nm_shm_resume(shm, s);
		return;
	}
	/* The poll of this source stays as it is. */
	s->is_suspended = true;
	shm->readers[s->source_index].slots = &nothing;
	shm->readers[s->source_index].mask = 0;
}

static NM_COLD uint64_t hold(struct nm_link *base)
{
	struct shm_session *s = nm_shm_session_of(base);
	struct nm_ring_writer *writer = &s->link.writer;

	/* Closing changes the limit. */
	s->floor = writer->limit - writer->mask - 1;
	nm_ring_writer_close(writer);
	base->remote_copy = false;
	s->is_held = s->base.out.is_over = true;
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
	s->taken += position;
	nm_shm_remove_source(shm, s);
	NM_FAULT("rest-taken");
	nm_sessions_end(shm->sessions, session, &session->in);
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
	s->sent += s->base.out.end - s->base.out.start;
	nm_pool_reclaim_all(&shm->pool, &s->link.chunks);
	/* Else its end is under way. */
	if (s->base.state == NM_SESSION_UP)
		nm_sessions_end(shm->sessions, &s->base, &s->base.out);
}

static NM_COLD void forget(struct nm_transport *transport, const struct nm_identity *who)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct nm_session *session = nm_sessions_find(shm->sessions, who);

	if (session && session->state == NM_SESSION_UP)
		nm_sessions_remind(shm->sessions, session);
}

static NM_COLD bool listen(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	struct shm_transport *shm = nm_shm_of(transport);
	bool is_added = !shm->segment || nm_doorbells_add(doorbells, shm->event_doorbell);

	/* Partner: nm_session_push_event(), which rings after it has set the word. */
	doorbells->rung |= shm->segment && atomic_load_explicit(shm->events, memory_order_relaxed);
	return is_added;
}

static NM_COLD bool is_away(const struct nm_transport *transport)
{
	const struct shm_transport *shm = (const struct shm_transport *)transport;

	return shm->home && nm_sessions_is_away(shm->sessions);
}

static NM_COLD bool home(struct nm_transport *transport, const struct nm_identity *who,
			 const uint8_t name[NM_HOME_LEN])
{
	struct shm_transport *shm = nm_shm_of(transport);

	if (!shm->segment)
		return false;
	nm_sessions_set_home(shm->sessions, who, name);
	return true;
}

static NM_COLD uint64_t heartbeat(struct nm_transport *transport, const struct nm_identity *who)
{
	const struct nm_session *session = nm_sessions_find(nm_shm_of(transport)->sessions, who);

	return session && session->window.header && session->tie.heartbeat ?
		       atomic_load_explicit(session->tie.heartbeat, memory_order_relaxed) :
		       0;
}

const struct nm_move_ops nm_shm_move_ops = {
	.enter = enter,
	.suspend = suspend,
	.hold = hold,
	.take_rest = take_rest,
	.replay = replay,
	.leave = leave,
	.forget = forget,
	.listen = listen,
	.is_away = is_away,
	.home = home,
	.heartbeat = heartbeat,
};
