/* SPDX-License-Identifier: Apache-2.0 */
/* Begin, protocol errors and end of sessions of the channel through windows. */
#include <errno.h>

#include "base/fault.h"
#include "base/log.h"
#include "transport/shm/shm_private.h"

/* S is no longer UP: send nothing more, and accept only a little more. */
static void stop(struct shm_transport *shm, struct shm_session *s)
{
	if (nm_shm_has_link(s)) {
		nm_ring_writer_close(&s->link.writer);
		s->link.base.remote_copy = false;
		s->link.base.shows_heap = s->link.base.reads_heap = false;
	}
	/* A peer that hung up but still writes is read only up to this position. */
	if (nm_shm_is_source(shm, s))
		s->last =
			shm->readers[s->source_index].position + s->base.window.geometry.ring_slots;
	shm->nr_unsettled++;
}

void nm_shm_begin_end(struct shm_transport *shm, struct shm_session *s, enum nm_session_state state,
		      int err, const struct nm_reason *why)
{
	if (s->base.state != NM_SESSION_UP)
		return;
	nm_session_begin_end(&s->base, state, err, why);
	stop(shm, s);
}

NM_COLD void nm_shm_lose(struct shm_transport *shm, struct shm_session *s)
{
	struct nm_reason why;

	nm_reason_set(&why, "%s died, and another endpoint already has its window",
		      s->base.label.text);
	/* It may have closed normally, but its last packets were not taken in time. */
	if (s->base.state == NM_SESSION_CLOSING)
		nm_session_begin_end(&s->base, NM_SESSION_CAST_OUT, -ECONNRESET, &why);
	else
		nm_shm_begin_end(shm, s, NM_SESSION_CAST_OUT, -ECONNRESET, &why);
}

NM_COLD void nm_shm_cast_out(struct shm_transport *shm, struct shm_session *s, const char *what)
{
	struct nm_reason why;

	if (!nm_vmseg_is_tied(&s->base.tie)) {
		nm_shm_lose(shm, s);
		return;
	}
	nm_reason_set(&why, "%s wrote what a correct peer never writes: %s", s->base.label.text,
		      what);
	if (s->base.state == NM_SESSION_UP)
		nm_error("%s; its memory channel is closed", why.text);
	else if (s->base.state == NM_SESSION_CLOSING)
		nm_session_set_state(&s->base, NM_SESSION_CAST_OUT);
	nm_shm_begin_end(shm, s, NM_SESSION_CAST_OUT, -EBADMSG, &why);
}

NM_COLD void nm_shm_add_reader(struct shm_transport *shm, struct shm_session *s)
{
	const struct nm_foreign_window *window = &s->base.window;
	const struct nm_direction *in = &s->base.in;

	s->source_index = shm->nr_sources;
	shm->sources[shm->nr_sources] = s;
	nm_ring_reader_init(&shm->readers[shm->nr_sources], nm_foreign_ring(window, in->peer_lane),
			    window->geometry.ring_slots, window->pool, window->geometry.chunk_size,
			    window->geometry.nr_chunks, &shm->window.lanes[in->own_lane],
			    in->start);
	/* A job has many sources that never send a chunk. */
	shm->readers[shm->nr_sources++].is_cold = !window->is_view;
}

static NM_COLD void add_source(struct shm_transport *shm, struct shm_session *s)
{
	struct nm_peer *cookie = NULL;

	if (s->base.state == NM_SESSION_UP)
		cookie = shm->base.sink.source_up(&shm->base, &s->base.who, &s->base.label);
	if (!cookie) {
		nm_sessions_refuse_source(shm->sessions, &s->base);
		return;
	}
	NM_FAULT("source-up");
	s->cookie = cookie;
	s->is_suspended = false;
	nm_shm_add_reader(shm, s);
}

NM_COLD void nm_shm_inspect(struct shm_transport *shm)
{
	uint32_t i;

	for (i = 0; i < shm->nr_sources; i++)
		if (shm->sources[i]->base.state == NM_SESSION_UP &&
		    !nm_ring_is_sound(&shm->readers[i]))
			nm_shm_cast_out(shm, shm->sources[i], "a slot that it never published");
}

NM_COLD void nm_shm_take_events(struct shm_transport *shm)
{
	struct nm_session *session;
	enum nm_session_event event;

	while ((session = nm_sessions_next_event(shm->sessions, &event)))
		switch (event) {
		case NM_SESSION_SOURCE:
			add_source(shm, nm_shm_from(session));
			break;
		case NM_SESSION_LOST:
			stop(shm, nm_shm_from(session));
			break;
		case NM_SESSION_ASKED:
			nm_shm_report_asked(shm, nm_shm_from(session));
			break;
		case NM_SESSION_ABSENT:
			nm_shm_report_absent(shm, nm_shm_from(session));
			break;
		case NM_SESSION_BACK:
			nm_shm_report_back(shm, nm_shm_from(session));
			break;
		}
}

NM_COLD void nm_shm_remove_source(struct shm_transport *shm, struct shm_session *s)
{
	uint32_t last = --shm->nr_sources;

	shm->readers[s->source_index] = shm->readers[last];
	shm->sources[s->source_index] = shm->sources[last];
	shm->sources[s->source_index]->source_index = s->source_index;
}

NM_COLD void nm_shm_end(struct shm_transport *shm, struct shm_session *s)
{
	const struct nm_reason *words = s->base.state == NM_SESSION_CAST_OUT ? &s->base.why : NULL;
	const struct nm_sink *sink = &shm->base.sink;
	struct nm_stream_ends ends = {.sent = s->sent, .taken = s->taken};

	nm_shm_return_last(shm, s);
	if (s->nr_withheld)
		sink->let_go(&shm->base, s->cookie, true);
	if (nm_shm_is_source(shm, s)) {
		ends.taken += shm->readers[s->source_index].position - s->base.in.start;
		nm_shm_remove_source(shm, s);
	}
	if (nm_shm_has_link(s)) {
		if (!s->is_left)
			ends.sent += s->link.writer.position - s->base.out.start;
		nm_pool_reclaim_all(&shm->pool, &s->link.chunks);
		s->base.out.end = s->link.writer.position;
	}
	nm_sessions_leave(shm->sessions, &s->base, s->base.err, words);
	NM_FAULT("session-ended");
	shm->nr_unsettled--;
	/* The engine refused this source and has no link to it. */
	if (!s->cookie)
		return;
	if (s->base.err == -EBADMSG && sink->quarantined)
		sink->quarantined(&shm->base, s->cookie, &ends, &s->base.why);
	else
		sink->source_down(&shm->base, s->cookie, s->base.err, &s->base.why);
}

bool nm_shm_is_unread(const struct shm_transport *shm, const struct shm_session *s)
{
	const struct nm_ring_reader *reader = &shm->readers[s->source_index];

	return s->base.state == NM_SESSION_CLOSING && nm_shm_is_source(shm, s) &&
	       reader->position < s->last && nm_ring_ready(reader);
}

static bool is_due(const struct shm_transport *shm, const struct shm_session *s)
{
	return s->base.state == NM_SESSION_CAST_OUT ||
	       (s->base.state == NM_SESSION_CLOSING && !s->is_suspended &&
		!nm_shm_is_unread(shm, s));
}

NM_COLD void nm_shm_settle(struct shm_transport *shm)
{
	nm_shm_return_idle(shm);
	nm_shm_for_each(s, shm) if (is_due(shm, s)) nm_shm_end(shm, s);
}
