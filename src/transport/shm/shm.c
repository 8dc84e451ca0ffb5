/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel through shared windows: rings and pool chunks of peers that have been met
 * (connect/session.h). Sending writes my own window, receiving reads the peer's; no system call,
 * allocation, lock or log on either way.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/params.h"
#include "base/user_copy.h"
#include "transport/shm/shm_private.h"

/* Packets per source and progress() call, so that every source and transport gets its turn. */
#define SHM_BATCH 32
/* A spoiled slot looks like one that is not there yet; every so many polls a source is looked at. */
#define POLLS_PER_LOOK 4096

static const _Atomic uint32_t nobody_asleep;

static void init_link(struct shm_transport *shm, struct shm_link *link,
		      const struct nm_session *session)
{
	struct nm_link_facts *facts = &link->facts;

	nm_ring_writer_init(&link->writer, nm_window_ring(&shm->window, session->own_lane),
			    shm->window.geometry.ring_slots,
			    &session->window->lanes[session->peer_lane], session->start,
			    (uint32_t)nm_params()->inline_max);
	/* Sleepers of another kernel cannot be woken, and do not ask for it. */
	link->asleep = shm->segment ? &nobody_asleep : &session->window->header->asleep;
	link->doorbell = &shm->window.lanes[session->own_lane].doorbell;
	facts->relation = session->relation;
	facts->channel = shm->base.kind->channel;
	facts->integrity = session->integrity;
	facts->label = session->label;
	facts->reason = session->how;
	link->base.far = session->far;
	nm_shm_init_copies(link, session);
}

/* Is there a reason not to try? */
static int check_peer(const struct shm_peer *peer, struct nm_reason *ret_reason)
{
	if (peer && peer->state != PEER_UP) {
		nm_reason_set(ret_reason, "it is gone: %.150s", peer->why.text);
		return -EHOSTUNREACH;
	}
	if (peer && peer->link) {
		nm_reason_set(ret_reason, "a link to it exists already");
		return -EISCONN;
	}
	return 0;
}

int nm_shm_connect(struct nm_transport *transport, const struct nm_address *address,
		   struct nm_peer *cookie, struct nm_link **ret_link, struct nm_reason *ret_reason)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct shm_link *link;
	struct shm_peer *peer;
	int err;

	err = check_peer(nm_shm_find_peer(shm, &address->who), ret_reason);
	if (err)
		return err;
	link = calloc(1, sizeof(*link));
	if (!link) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = nm_sessions_connect(shm->sessions, &address->who, &link->session, ret_reason);
	if (err)
		goto err_free;
	/* Only now: peers that are not near leave nothing behind. */
	peer = nm_shm_get_peer(shm, &address->who);
	if (!peer) {
		nm_reason_set(ret_reason, "out of memory");
		nm_sessions_leave(shm->sessions, link->session, -ENOMEM, ret_reason);
		err = -ENOMEM;
		goto err_free;
	}
	if (!shm->links)
		nm_window_warm(&shm->window);
	NM_FAULT("connect-met");
	init_link(shm, link, link->session);
	link->base.transport = transport;
	link->base.peer = cookie;
	link->peer = peer;
	link->session->cookie = peer;
	link->next = shm->links;
	shm->links = link;
	peer->label = link->session->label;
	peer->cookie = cookie;
	peer->link = link;
	*ret_link = &link->base;
	nm_reason_set(ret_reason, "%s", link->facts.reason.text);
	return 0;

err_free:
	free(link);
	return err;
}

/* Take back the chunks that the peer of LINK says it has read. */
static int reclaim(struct shm_transport *shm, struct shm_link *link)
{
	/* Partner: nm_ring_release() of the reader. */
	uint64_t freed =
		atomic_load_explicit(&link->writer.feedback->chunks_freed, memory_order_acquire);

	return nm_pool_reclaim(&shm->pool, &link->chunks, freed);
}

static __attribute__((noinline)) int take_chunk_slowly(struct shm_transport *shm,
						       struct shm_link *link, uint32_t len,
						       uint32_t *ret_index, uint32_t *ret_offset)
{
	struct shm_link *other;

	for (other = shm->links; other; other = other->next)
		if (other->chunks.nr_held && !other->down && reclaim(shm, other))
			nm_shm_cast_out(shm, other->peer, "its count of chunks");
	if (link->down)
		return -EPIPE;
	return nm_pool_take(&shm->pool, &link->chunks, len, ret_index, ret_offset);
}

static int take_chunk(struct shm_transport *shm, struct shm_link *link, uint32_t len,
		      uint32_t *ret_index, uint32_t *ret_offset)
{
	/* Looking at the peer's counter costs a cache miss: only when chunks run low. */
	if (shm->pool.nr_free <= shm->pool.nr_chunks / 2 && nm_unlikely(reclaim(shm, link)))
		return -EBADMSG;
	if (nm_likely(!nm_pool_take(&shm->pool, &link->chunks, len, ret_index, ret_offset)))
		return 0;
	return take_chunk_slowly(shm, link, len, ret_index, ret_offset);
}

static int send_chunk(struct shm_transport *shm, struct shm_link *link, const struct nm_packet *pkt,
		      const struct iovec *iov, unsigned int nr_iov)
{
	nm_copy_fn copy = link->base.past_cache ? nm_copy_past_cache : nm_copy_fresh;
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
			nm_user_get_by(copy, to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	NM_FAULT("chunk-filled");
	nm_ring_write_chunk(&link->writer, pkt, index, offset);
	return 0;
}

/* Once for each sleep: whatever a hostile reader says, a message costs one ring at most. */
static NM_COLD void ring_doorbell(struct shm_link *link, uint32_t asleep)
{
	if (asleep == link->rung)
		return;
	NM_FAULT("sleeper-seen");
	link->rung = asleep;
	nm_doorbell_ring(link->doorbell);
}

/*
 * After a packet was published. No fence between that and this look: the peer may go to sleep in
 * the nanoseconds between, and then sleeps for one of its periods.
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
	struct shm_link *link = nm_shm_link_of(base);
	int err;

	if (nm_unlikely(link->down))
		return -EPIPE;
	if (nm_likely(pkt->len <= link->writer.inline_max))
		err = nm_ring_write_inline(&link->writer, pkt, iov, nr_iov);
	else
		err = send_chunk(shm, link, pkt, iov, nr_iov);
	if (nm_unlikely(err == -EBADMSG)) {
		nm_shm_cast_out(shm, link->peer, "its count of what it has read");
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

	if (nm_likely(nr_iov == 1 && !link->down &&
		      nm_ring_write_slot(&link->writer, pkt, iov->iov_base))) {
		/* The only message between two looks for others is no stream: it would be late. */
		if (nm_shm_of(base->transport)->nr_sent++)
			nm_ring_write_ahead(&link->writer);
		ring_sleeper(link);
		return 0;
	}
	return send_any(base, pkt, iov, nr_iov);
}

bool nm_shm_drained(struct nm_link *link)
{
	/* What was sent is published, and a window outlives its owner while it is mapped. */
	(void)link;
	return true;
}

void nm_shm_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	*ret_facts = nm_container_of(link, const struct shm_link, base)->facts;
	ret_facts->remote_copy = link->remote_copy;
}

/* Deliver what source I has sent, at most a batch. */
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
		if (nm_unlikely(shm->sources[i]->state == PEER_CAST_OUT))
			break;
		nm_ring_release(reader);
		done++;
	}
	return done;
}

NM_COLD bool nm_shm_prepare_sleep(struct shm_transport *shm, struct nm_doorbells *doorbells)
{
	bool is_heard = nm_doorbells_add(doorbells, shm->event_doorbell);

	/* Partner: nm_sessions_push_event(). */
	if (atomic_load_explicit(shm->events, memory_order_relaxed))
		doorbells->rung = true;
	/* Polls will be few: each looks for what no poll stumbles over. */
	shm->nr_polls |= POLLS_PER_LOOK - 1;
	return is_heard;
}

NM_COLD bool nm_shm_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	struct shm_transport *shm = nm_shm_of(transport);
	bool is_heard = nm_shm_prepare_sleep(shm, doorbells) && !shm->nr_ending;

	if (!++shm->nr_sleeps)
		shm->nr_sleeps++;
	NM_FAULT("sleep-before");
	/* Partner: ring_sleeper() of peers. Said before the last look at what they published. */
	atomic_store_explicit(&shm->window.header->asleep, shm->nr_sleeps, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	NM_FAULT("sleep-said");
	for (uint32_t i = 0; i < shm->nr_sources; i++) {
		const struct nm_session *source = shm->sources[i]->source;

		is_heard &= nm_doorbells_add(doorbells,
					     &source->window->lanes[source->peer_lane].doorbell);
		if (nm_ring_ready(&shm->readers[i]) && shm->sources[i]->state <= PEER_CLOSING)
			doorbells->rung = true;
	}
	return is_heard;
}

NM_COLD void nm_shm_wake(struct nm_transport *transport)
{
	/* Who sees the old number rings once in vain. */
	atomic_store_explicit(&nm_shm_of(transport)->window.header->asleep, 0,
			      memory_order_relaxed);
}

unsigned int nm_shm_progress(struct nm_transport *transport)
{
	struct shm_transport *shm = nm_shm_of(transport);
	unsigned int done = 0;
	uint32_t i;

	shm->nr_sent = 0;
	/* Partner: nm_sessions_push_event(); taking the events acquires what they speak of. */
	if (nm_unlikely(atomic_load_explicit(shm->events, memory_order_relaxed) != NULL))
		nm_shm_take_events(shm);
	for (i = 0; i < shm->nr_sources; i++) {
		if (nm_ring_ready(&shm->readers[i]) && shm->sources[i]->state <= PEER_CLOSING)
			done += drain(shm, i);
		else
			nm_ring_return_credits(&shm->readers[i]);
	}
	if (nm_unlikely(!(++shm->nr_polls % POLLS_PER_LOOK)))
		nm_shm_inspect(shm);
	if (nm_unlikely(shm->nr_ending))
		nm_shm_end_peers(shm);
	return done;
}

static NM_COLD void shm_cast_out(struct nm_transport *transport, const struct nm_identity *who,
				 const char *what)
{
	struct shm_peer *peer = nm_shm_find_peer(nm_shm_of(transport), who);

	if (peer)
		nm_shm_cast_out(nm_shm_of(transport), peer, what);
}

static NM_COLD void shm_finish(struct nm_transport *transport, const struct nm_identity *who)
{
	const struct nm_reason why = {"it left this channel"};
	struct shm_transport *shm = nm_shm_of(transport);
	struct shm_peer *peer;

	/* It may have come, sent and gone since the last look. */
	nm_shm_take_events(shm);
	peer = nm_shm_get_peer(shm, who);
	if (!peer || peer->state == PEER_DOWN)
		return;
	if (!peer->cookie) {
		/* Never met: nor will it be, should it still be on its way. */
		peer->state = PEER_DOWN;
		peer->why = why;
		return;
	}
	nm_shm_begin_end(shm, peer, PEER_CLOSING, -EBADMSG, &why);
	peer->err = -EBADMSG;
	while (nm_shm_is_unread(shm, peer))
		drain(shm, peer->source_index);
	nm_shm_end_peer(shm, peer);
}

const struct nm_quarantine_ops nm_shm_quarantine_ops = {
	.cast_out = shm_cast_out,
	.finish = shm_finish,
};
