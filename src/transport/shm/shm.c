/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel through shared windows: rings and pool chunks of sessions (connect/session.h).
 * Sending writes the own window, receiving reads the peer's. Both ways need no system call,
 * allocation, lock or log entry.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/copy.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/params.h"
#include "transport/shm/shm_private.h"

/* Packets per source and progress() call, so that every source and transport progresses. */
#define SHM_BATCH 32
/* A damaged slot looks unpublished, so each source is inspected after this many polls. */
#define POLLS_PER_LOOK 4096

static const _Atomic uint32_t never_asleep;

static void init_link(struct shm_transport *shm, struct shm_session *s)
{
	const struct nm_direction *out = &s->base.out;
	const struct nm_foreign_window *window = &s->base.window;
	struct shm_link *link = &s->link;

	nm_ring_writer_init(&link->writer, nm_window_ring(&shm->window, out->own_lane),
			    shm->window.geometry.ring_slots, &window->lanes[out->peer_lane],
			    out->start, (uint32_t)nm_params()->inline_max);
	/* Also after another session with the peer; its chunks were given back. */
	link->chunks.nr_freed = 0;
	link->rung = 0;
	/* Sleepers of another kernel cannot be woken and do not ask for it. */
	link->asleep = shm->segment ? &never_asleep : &window->header->asleep;
	link->doorbell = &shm->window.lanes[out->own_lane].doorbell;
	link->base.far = s->base.far;
	nm_shm_init_copies(s);
}

static bool has_links(const struct shm_transport *shm)
{
	nm_shm_for_each(s, shm) if (nm_shm_has_link(s)) return true;
	return false;
}

void nm_shm_open_link(struct shm_transport *shm, struct shm_session *s, struct nm_peer *cookie)
{
	/* The pool of a window of its own was touched when it was created. */
	if (shm->segment && !has_links(shm))
		nm_window_warm(&shm->window);
	NM_FAULT("connect-met");
	s->is_held = s->is_left = false;
	init_link(shm, s);
	s->link.base.transport = &shm->base;
	s->link.base.peer = cookie;
	s->cookie = cookie;
	/* What was reported before there was a link. */
	if (atomic_load_explicit(&s->base.is_asked, memory_order_relaxed))
		nm_sessions_remind(shm->sessions, &s->base);
}

NM_COLD void nm_shm_note_cookie(struct shm_transport *shm, const struct nm_identity *who,
				struct nm_peer *cookie)
{
	struct nm_session *session = nm_sessions_find(shm->sessions, who);

	if (session && atomic_load_explicit(&session->is_kept, memory_order_relaxed))
		nm_shm_from(session)->cookie = cookie;
}

int nm_shm_connect(struct nm_transport *transport, const struct nm_address *address,
		   struct nm_peer *cookie, struct nm_link **ret_link, struct nm_reason *ret_reason)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct nm_session *session;
	struct shm_session *s;
	int err;

	err = nm_sessions_connect(shm->sessions, &address->who, &session, ret_reason);
	if (err) {
		nm_shm_note_cookie(shm, &address->who, cookie);
		return err;
	}
	s = nm_shm_from(session);
	nm_shm_open_link(shm, s, cookie);
	*ret_link = &s->link.base;
	nm_reason_set(ret_reason, "%s", session->how.text);
	return 0;
}

/* Take back the chunks that the peer of LINK reports as read. */
static int reclaim(struct shm_transport *shm, struct shm_link *link)
{
	/* Partner: nm_ring_release() of the reader. */
	uint64_t freed =
		atomic_load_explicit(&link->writer.feedback->chunks_freed, memory_order_acquire);

	return nm_pool_reclaim(&shm->pool, &link->chunks, freed);
}

void nm_shm_reclaim(struct shm_transport *shm)
{
	/* The lane of a peer that left may have another owner already. */
	nm_shm_for_each(s, shm) if (s->link.chunks.nr_held && s->base.state == NM_SESSION_UP &&
				    !s->is_held && reclaim(shm, &s->link))
		nm_shm_cast_out(shm, s, "its count of chunks");
}

static __attribute__((noinline)) int take_chunk_slowly(struct shm_transport *shm,
						       struct shm_link *link, uint32_t len,
						       uint32_t *ret_index, uint32_t *ret_offset)
{
	nm_shm_reclaim(shm);
	if (nm_shm_session_of(&link->base)->base.state != NM_SESSION_UP)
		return -EPIPE;
	return nm_pool_take(&shm->pool, &link->chunks, len, ret_index, ret_offset);
}

static inline __attribute__((always_inline)) int take_chunk(struct shm_transport *shm,
							    struct shm_link *link, uint32_t len,
							    uint32_t *ret_index,
							    uint32_t *ret_offset)
{
	/* Reading the peer's counter costs a cache miss: only when chunks run low. */
	if (shm->pool.nr_free <= shm->pool.nr_chunks / 2 && nm_unlikely(reclaim(shm, link)))
		return -EBADMSG;
	if (nm_likely(!nm_pool_take(&shm->pool, &link->chunks, len, ret_index, ret_offset)))
		return 0;
	return take_chunk_slowly(shm, link, len, ret_index, ret_offset);
}

static int send_chunk(struct shm_transport *shm, struct shm_link *link, const struct nm_packet *pkt,
		      const struct iovec *iov, unsigned int nr_iov)
{
	void (*copy)(void *to, const void *from, size_t len) =
		link->base.past_cache ? nm_copy_past_cache : nm_copy_fresh;
	uint32_t index, offset;
	unsigned int i;
	uint8_t *to;
	int err;

	err = nm_ring_check_room(&link->writer);
	if (nm_unlikely(err))
		return err;
	err = take_chunk(shm, link, pkt->len, &index, &offset);
	if (nm_unlikely(err))
		return err;
	NM_FAULT("chunk-taken");
	to = nm_pool_bytes(&shm->pool, index, offset);
	for (i = 0; i < nr_iov; i++) {
		if (iov[i].iov_len)
			copy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	NM_FAULT("chunk-filled");
	nm_ring_write_chunk(&link->writer, pkt, index, offset);
	return 0;
}

/* Once per sleep, so that even with a hostile reader a message costs at most one ring. */
static NM_COLD void ring_doorbell(struct shm_link *link, uint32_t asleep)
{
	if (asleep == link->rung)
		return;
	NM_FAULT("sleeper-seen");
	link->rung = asleep;
	nm_doorbell_ring(link->doorbell);
}

/*
 * After a packet was published. There is no fence in between: if the peer falls asleep in these
 * nanoseconds, it sleeps for one of its periods.
 */
static inline void ring_sleeper(struct shm_link *link)
{
	/* Partner: nm_shm_sleep(). */
	uint32_t asleep = atomic_load_explicit(link->asleep, memory_order_relaxed);

	if (nm_unlikely(asleep))
		ring_doorbell(link, asleep);
}

static NM_SLOW_HALF int send_any(struct nm_link *base, const struct nm_packet *pkt,
				 const struct iovec *iov, unsigned int nr_iov)
{
	struct shm_transport *shm = nm_shm_of(base->transport);
	struct shm_session *s = nm_shm_session_of(base);
	struct shm_link *link = &s->link;
	int err;

	if (nm_unlikely(s->base.state != NM_SESSION_UP))
		return -EPIPE;
	if (nm_likely(pkt->len <= link->writer.inline_max))
		err = nm_ring_write_inline(&link->writer, pkt, iov, nr_iov);
	else
		err = send_chunk(shm, link, pkt, iov, nr_iov);
	if (nm_unlikely(err == -EBADMSG)) {
		nm_shm_cast_out(shm, s, "its count of read slots");
		err = -EPIPE;
	}
	if (!err)
		ring_sleeper(link);
	return err;
}

int nm_shm_send(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
		unsigned int nr_iov)
{
	struct shm_link *link = nm_shm_link_of(base);

	/* The end of a session closes its writer. */
	if (nm_likely(nr_iov == 1 && nm_ring_write_slot(&link->writer, pkt, iov->iov_base))) {
		/* One message between two progress() calls is no stream: it would be late. */
		if (nm_shm_of(base->transport)->nr_sent++)
			nm_ring_write_ahead(&link->writer);
		ring_sleeper(link);
		return 0;
	}
	return send_any(base, pkt, iov, nr_iov);
}

int nm_shm_send_filled(struct nm_link *base, struct nm_packet *pkt, uint32_t room,
		       size_t (*fill)(void *to, void *arg), void *arg)
{
	struct shm_transport *shm = nm_shm_of(base->transport);
	struct shm_session *s = nm_shm_session_of(base);
	struct shm_link *link = &s->link;
	uint32_t index, offset;
	size_t len;
	int err;

	if (nm_unlikely(s->base.state != NM_SESSION_UP))
		return -EPIPE;
	err = nm_ring_check_room(&link->writer);
	if (nm_likely(!err))
		err = take_chunk(shm, link, room, &index, &offset);
	if (nm_unlikely(err == -EBADMSG)) {
		nm_shm_cast_out(shm, s, "its count of read slots");
		err = -EPIPE;
	}
	if (nm_unlikely(err))
		return err;
	NM_FAULT("chunk-taken");
	len = fill(nm_pool_bytes(&shm->pool, index, offset), arg);
	/* It has written beyond its place already: there is no way to go on. */
	if (nm_unlikely(len > room))
		abort();
	pkt->len = (uint32_t)len;
	NM_FAULT("chunk-filled");
	nm_ring_write_chunk(&link->writer, pkt, index, offset);
	ring_sleeper(link);
	return 0;
}

void nm_shm_ring_sleeper(struct shm_link *link)
{
	ring_sleeper(link);
}

bool nm_shm_drained(struct nm_link *link)
{
	/* All sent packets are published, and a window outlives its owner while it is mapped. */
	(void)link;
	return true;
}

void nm_shm_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	const struct nm_session *session = &nm_shm_session_of(link)->base;

	*ret_facts = (struct nm_link_facts){
		.relation = session->relation,
		.channel = link->transport->kind->channel,
		.integrity = session->integrity,
		.reason = session->how,
		.label = session->label,
		.remote_copy = link->remote_copy,
		.copy_reason = session->out.cma_why,
	};
}

/* Deliver packets of source I, at most a batch. */
static inline __attribute__((always_inline)) unsigned int drain(struct shm_transport *shm,
								uint32_t i)
{
	struct nm_ring_reader *reader = &shm->readers[i];
	struct nm_peer *cookie = shm->sources[i]->cookie;
	struct nm_packet pkt;
	unsigned int done = 0;
	const void *payload;
	int got;

	while (done < SHM_BATCH) {
		got = nm_ring_peek(reader, shm->bounce, &pkt, &payload);
		if (got <= 0) {
			if (nm_unlikely(got < 0))
				nm_shm_cast_out(shm, shm->sources[i], "a slot of its ring");
			break;
		}
		if (nm_unlikely(shm->is_wary) && !nm_shm_vouch(shm, i, &pkt, &payload))
			break;
		if (done)
			nm_ring_read_ahead(reader);
		NM_FAULT("deliver-before");
		shm->base.sink.deliver(&shm->base, cookie, &pkt, payload);
		NM_FAULT("deliver-after");
		if (nm_unlikely(shm->sources[i]->base.state == NM_SESSION_CAST_OUT))
			break;
		nm_ring_release(reader);
		done++;
	}
	return done;
}

NM_COLD unsigned int nm_shm_drain(struct shm_transport *shm, uint32_t i)
{
	return drain(shm, i);
}

NM_COLD bool nm_shm_prepare_sleep(struct shm_transport *shm, struct nm_doorbells *doorbells)
{
	bool is_heard = nm_doorbells_add(doorbells, shm->event_doorbell);

	/* Partner: nm_session_push_event(). */
	if (atomic_load_explicit(shm->events, memory_order_relaxed))
		doorbells->rung = true;
	/* Few polls follow: let each of them inspect its sources. */
	shm->nr_polls |= POLLS_PER_LOOK - 1;
	return is_heard;
}

NM_COLD bool nm_shm_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	struct shm_transport *shm = nm_shm_of(transport);
	bool is_heard = nm_shm_prepare_sleep(shm, doorbells) && !shm->nr_unsettled;

	if (!++shm->nr_sleeps)
		shm->nr_sleeps++;
	NM_FAULT("sleep-before");
	/* Partner: ring_sleeper() of peers. Stored before the last look at their packets. */
	atomic_store_explicit(&shm->window.header->asleep, shm->nr_sleeps, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	NM_FAULT("sleep-said");
	for (uint32_t i = 0; i < shm->nr_sources; i++) {
		const struct nm_session *source = &shm->sources[i]->base;

		is_heard &= nm_doorbells_add(doorbells,
					     &source->window.lanes[source->in.peer_lane].doorbell);
		if (nm_ring_ready(&shm->readers[i]) &&
		    shm->sources[i]->base.state <= NM_SESSION_CLOSING)
			doorbells->rung = true;
	}
	return is_heard;
}

NM_COLD void nm_shm_wake(struct nm_transport *transport)
{
	/* A sender that sees the old number rings once, without effect. */
	atomic_store_explicit(&nm_shm_of(transport)->window.header->asleep, 0,
			      memory_order_relaxed);
}

unsigned int nm_shm_progress(struct nm_transport *transport)
{
	struct shm_transport *shm = nm_shm_of(transport);
	unsigned int done = 0;
	uint32_t i;

	shm->nr_sent = 0;
	/* Partner: nm_session_push_event(). Taking an event acquires the data of its session. */
	if (nm_unlikely(atomic_load_explicit(shm->events, memory_order_relaxed)))
		nm_shm_take_events(shm);
	for (i = 0; i < shm->nr_sources; i++) {
		if (nm_ring_ready(&shm->readers[i]) &&
		    shm->sources[i]->base.state <= NM_SESSION_CLOSING)
			done += drain(shm, i);
		else
			nm_ring_return_credits(&shm->readers[i]);
	}
	if (nm_unlikely(!(++shm->nr_polls % POLLS_PER_LOOK)))
		nm_shm_inspect(shm);
	if (nm_unlikely(shm->nr_unsettled))
		nm_shm_settle(shm);
	return done;
}

static NM_COLD void shm_cast_out(struct nm_transport *transport, const struct nm_identity *who,
				 const char *what)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct nm_session *session = nm_sessions_find(shm->sessions, who);

	if (session && session->state != NM_SESSION_NEW)
		nm_shm_cast_out(shm, nm_shm_from(session), what);
}

static NM_COLD void shm_finish(struct nm_transport *transport, const struct nm_identity *who)
{
	const struct nm_reason why = {"it left this channel"};
	struct shm_transport *shm = nm_shm_of(transport);
	struct nm_session *session;
	struct shm_session *s;

	/* The peer may have connected, sent and closed since the last call. */
	nm_shm_take_events(shm);
	nm_sessions_forbid(shm->sessions, who, &why);
	session = nm_sessions_find(shm->sessions, who);
	/* NEW: the ban found no memory, and the service thread has just begun another session. */
	if (!session || session->state == NM_SESSION_DOWN || session->state == NM_SESSION_NEW)
		return;
	s = nm_shm_from(session);
	nm_shm_begin_end(shm, s, NM_SESSION_CLOSING, -EBADMSG, &why);
	session->err = -EBADMSG;
	while (nm_shm_is_unread(shm, s))
		nm_shm_drain(shm, s->source_index);
	nm_shm_end(shm, s);
}

const struct nm_quarantine_ops nm_shm_quarantine_ops = {
	.cast_out = shm_cast_out,
	.finish = shm_finish,
};
