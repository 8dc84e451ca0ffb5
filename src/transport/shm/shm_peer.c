/* SPDX-License-Identifier: Apache-2.0 */
/* How peers of the channel through windows come, break the rules, and end. */
#include <errno.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/log.h"
#include "transport/shm/shm_private.h"

struct shm_peer *nm_shm_find_peer(struct shm_transport *shm, const struct nm_identity *who)
{
	struct shm_peer *peer;

	for (peer = shm->peers; peer; peer = peer->next)
		if (nm_identity_equal(&peer->who, who))
			break;
	return peer;
}

struct shm_peer *nm_shm_get_peer(struct shm_transport *shm, const struct nm_identity *who)
{
	struct shm_peer *peer = nm_shm_find_peer(shm, who);

	if (peer)
		return peer;
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->who = *who;
	peer->next = shm->peers;
	shm->peers = peer;
	return peer;
}

void nm_shm_begin_end(struct shm_transport *shm, struct shm_peer *peer, enum shm_peer_state state,
		      int err, const struct nm_reason *why)
{
	if (peer->state != PEER_UP)
		return;
	peer->state = state;
	peer->err = err;
	peer->why = *why;
	if (peer->link) {
		peer->link->down = true;
		peer->link->base.remote_copy = false;
	}
	/* One that hung up and goes on writing is not listened to for ever. */
	if (peer->source)
		peer->last = shm->readers[peer->source_index].position +
			     peer->source->window->geometry.ring_slots;
	shm->nr_ending++;
}

static bool is_tied(const struct shm_peer *peer)
{
	return (!peer->source || nm_vmseg_is_tied(&peer->source->tie)) &&
	       (!peer->link || !peer->link->session || nm_vmseg_is_tied(&peer->link->session->tie));
}

NM_COLD void nm_shm_lose(struct shm_transport *shm, struct shm_peer *peer)
{
	struct nm_reason why;

	nm_reason_set(&why, "%s died, and its window is another's already", peer->label.text);
	if (peer->state == PEER_CLOSING) {
		/* It may have closed in order, but what it had sent was not taken in time. */
		peer->state = PEER_CAST_OUT;
		peer->err = -ECONNRESET;
		peer->why = why;
	}
	nm_shm_begin_end(shm, peer, PEER_CAST_OUT, -ECONNRESET, &why);
}

NM_COLD void nm_shm_cast_out(struct shm_transport *shm, struct shm_peer *peer, const char *what)
{
	struct nm_reason why;

	if (!is_tied(peer)) {
		nm_shm_lose(shm, peer);
		return;
	}
	nm_reason_set(&why, "%s wrote what no sound peer writes: %s", peer->label.text, what);
	if (peer->state == PEER_UP)
		nm_error("%s; its memory channel is closed", why.text);
	else if (peer->state == PEER_CLOSING)
		peer->state = PEER_CAST_OUT;
	nm_shm_begin_end(shm, peer, PEER_CAST_OUT, -EBADMSG, &why);
}

static NM_COLD void add_source(struct shm_transport *shm, struct nm_session *session)
{
	const struct nm_foreign_window *window = session->window;
	struct shm_peer *peer = nm_shm_get_peer(shm, &session->who);
	struct nm_reason why = {"it does not take messages from me"};
	struct nm_peer *cookie;

	if (!peer || peer->state != PEER_UP || peer->source) {
		nm_sessions_leave(shm->sessions, session, -ECONNREFUSED, &why);
		return;
	}
	cookie = shm->base.sink.source_up(&shm->base, &session->who, &session->label);
	if (!cookie) {
		nm_sessions_leave(shm->sessions, session, -ECONNREFUSED, &why);
		return;
	}
	NM_FAULT("source-up");
	peer->cookie = cookie;
	peer->label = session->label;
	peer->source = session;
	peer->source_index = shm->nr_sources;
	session->cookie = peer;
	shm->sources[shm->nr_sources] = peer;
	nm_ring_reader_init(
		&shm->readers[shm->nr_sources++], nm_foreign_ring(window, session->peer_lane),
		window->geometry.ring_slots, window->pool, window->geometry.chunk_size,
		window->geometry.nr_chunks, &shm->window.lanes[session->own_lane], session->start);
}

NM_COLD void nm_shm_inspect(struct shm_transport *shm)
{
	uint32_t i;

	for (i = 0; i < shm->nr_sources; i++)
		if (shm->sources[i]->state == PEER_UP && !nm_ring_is_sound(&shm->readers[i]))
			nm_shm_cast_out(shm, shm->sources[i], "a slot that it never published");
}

NM_COLD void nm_shm_take_events(struct shm_transport *shm)
{
	struct nm_session *session;
	enum nm_session_event_kind kind;

	while ((session = nm_sessions_next_event(shm->sessions, &kind)))
		if (kind == NM_SESSION_SOURCE)
			add_source(shm, session);
		else
			nm_shm_begin_end(shm, session->cookie, PEER_CLOSING, session->err,
					 &session->why);
}

static void remove_source(struct shm_transport *shm, struct shm_peer *peer)
{
	uint32_t last = --shm->nr_sources;

	shm->readers[peer->source_index] = shm->readers[last];
	shm->sources[peer->source_index] = shm->sources[last];
	shm->sources[peer->source_index]->source_index = peer->source_index;
}

NM_COLD void nm_shm_end_peer(struct shm_transport *shm, struct shm_peer *peer)
{
	const struct nm_reason *words = peer->state == PEER_CAST_OUT ? &peer->why : NULL;
	const struct nm_sink *sink = &shm->base.sink;
	struct shm_link *link = peer->link;
	struct nm_stream_ends ends = {0};

	if (peer->source) {
		ends.taken = shm->readers[peer->source_index].position - peer->source->start;
		remove_source(shm, peer);
		nm_sessions_leave(shm->sessions, peer->source, peer->err, words);
		peer->source = NULL;
	}
	if (link) {
		ends.sent = link->writer.position - link->session->start;
		nm_pool_reclaim_all(&shm->pool, &link->chunks);
		nm_sessions_stream_ended(shm->sessions, link->session->own_lane,
					 link->writer.position);
		nm_sessions_leave(shm->sessions, link->session, peer->err, words);
		link->session = NULL;
	}
	NM_FAULT("end-peer");
	peer->state = PEER_DOWN;
	shm->nr_ending--;
	if (peer->err == -EBADMSG && sink->quarantined)
		sink->quarantined(&shm->base, peer->cookie, &ends, &peer->why);
	else
		sink->source_down(&shm->base, peer->cookie, peer->err, &peer->why);
}

bool nm_shm_is_unread(const struct shm_transport *shm, const struct shm_peer *peer)
{
	const struct nm_ring_reader *reader = &shm->readers[peer->source_index];

	return peer->state == PEER_CLOSING && peer->source && reader->position < peer->last &&
	       nm_ring_ready(reader);
}

NM_COLD void nm_shm_end_peers(struct shm_transport *shm)
{
	struct shm_peer *peer;

	for (peer = shm->peers; peer; peer = peer->next)
		if (peer->state == PEER_CAST_OUT ||
		    (peer->state == PEER_CLOSING && !nm_shm_is_unread(shm, peer)))
			nm_shm_end_peer(shm, peer);
}
