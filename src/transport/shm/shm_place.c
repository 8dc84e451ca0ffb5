/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads in place, for devices that copy by themselves: chunks of the own pool that a device
 * fills, and chunks of a peer's pool that a device reads after their packet was delivered.
 *
 * A reader returns chunks as one count, in the order of their packets. So while one chunk is held,
 * all later ones are withheld, too, and is_wary has each packet pass nm_shm_withhold() before.
 */
#include <errno.h>

#include "base/arith.h"
#include "transport/shm/shm_private.h"

/* Bits of `held`; and a writer keeps half of its pool. */
#define WITHHELD_MAX 64
#define WITHHELD_SHARE 2

static NM_COLD void place_memory(struct nm_transport *transport, struct iovec *ret_memory)
{
	const struct nm_pool *pool = &nm_shm_of(transport)->pool;

	*ret_memory = (struct iovec){pool->base, (size_t)pool->nr_chunks * pool->chunk_size};
}

static NM_COLD int place_reserve(struct nm_link *base, unsigned int nr, struct nm_place *ret_place)
{
	struct shm_transport *shm = nm_shm_of(base->transport);
	struct shm_session *s = nm_shm_session_of(base);
	uint32_t index;
	int got;

	if (shm->pool.nr_free <= shm->pool.nr_chunks / 2)
		nm_shm_reclaim(shm);
	if (s->base.state != NM_SESSION_UP)
		return -EPIPE;
	got = nm_pool_reserve(&shm->pool, &s->link.chunks, nr, &index);
	if (got < 0)
		return got;
	*ret_place = (struct nm_place){
		.bytes = nm_pool_bytes(&shm->pool, index, 0),
		.index = index,
		.nr = (uint32_t)got,
	};
	return 0;
}

static NM_COLD int place_send(struct nm_link *base, const struct nm_packet *pkt,
			      struct nm_place *place)
{
	struct shm_transport *shm = nm_shm_of(base->transport);
	struct shm_session *s = nm_shm_session_of(base);
	int err;

	if (s->base.state != NM_SESSION_UP)
		return -EPIPE;
	err = nm_ring_check_room(&s->link.writer);
	if (err == -EBADMSG) {
		nm_shm_cast_out(shm, s, "its count of read slots");
		return -EPIPE;
	}
	if (err)
		return err;
	nm_pool_attach(&shm->pool, &s->link.chunks, place->index);
	nm_ring_write_chunk(&s->link.writer, pkt, place->index, 0);
	nm_shm_ring_sleeper(&s->link);
	place->index++;
	place->bytes += shm->pool.chunk_size;
	place->nr--;
	return 0;
}

static NM_COLD void place_unreserve(struct nm_link *base, struct nm_place *place)
{
	for (; place->nr; place->nr--)
		nm_pool_unreserve(&nm_shm_of(base->transport)->pool,
				  &nm_shm_session_of(base)->link.chunks, place->index++);
}

/* The source that PEER is. NULL: it is none. */
static struct shm_session *source_of(const struct shm_transport *shm, const struct nm_peer *peer)
{
	for (uint32_t i = 0; i < shm->nr_sources; i++)
		if (shm->sources[i]->cookie == peer)
			return shm->sources[i];
	return NULL;
}

/* Return the oldest chunks of S that are not in use. */
static void give_back(struct shm_transport *shm, struct shm_session *s)
{
	uint32_t nr = 0;

	for (; nr < s->nr_withheld && !(s->held >> nr & 1); nr++)
		;
	if (!nr)
		return;
	s->held = nr < WITHHELD_MAX ? s->held >> nr : 0;
	s->first_hold += nr;
	s->nr_withheld -= nr;
	shm->nr_unsettled -= !s->nr_withheld;
	nm_ring_return_chunks(&shm->readers[s->source_index], nr);
	shm->is_wary = shm->checked || shm->segment;
	for (uint32_t i = 0; i < shm->nr_sources; i++)
		shm->is_wary |= shm->sources[i]->nr_withheld > 0;
}

static uint32_t most(const struct nm_ring_reader *reader)
{
	return (uint32_t)nm_min_u64(WITHHELD_MAX, reader->nr_chunks / WITHHELD_SHARE);
}

/* The chunk of the packet that is being delivered is not returned when it was delivered. */
static void withhold(struct shm_transport *shm, struct shm_session *s)
{
	shm->readers[s->source_index].in_chunk = false;
	shm->nr_unsettled += !s->nr_withheld;
	s->held |= UINT64_C(1) << s->nr_withheld++;
	s->is_current = true;
	shm->is_wary = true;
}

void nm_shm_return_last(struct shm_transport *shm, struct shm_session *s)
{
	if (!s->is_current)
		return;
	s->is_current = false;
	s->held &= ~(UINT64_C(1) << (s->nr_withheld - 1));
	give_back(shm, s);
}

/*
 * A writer whose other readers withhold the rest of its pool has no chunk for the packet that would
 * have this one return some.
 */
void nm_shm_return_idle(struct shm_transport *shm)
{
	for (uint32_t i = 0; i < shm->nr_sources; i++) {
		struct shm_session *s = shm->sources[i];

		if (!s->nr_withheld || nm_ring_ready(&shm->readers[i]))
			continue;
		nm_shm_return_last(shm, s);
		if (s->nr_withheld)
			shm->base.sink.let_go(&shm->base, s->cookie, false);
	}
}

void nm_shm_withhold(struct shm_transport *shm, uint32_t i)
{
	struct shm_session *s = shm->sources[i];

	nm_shm_return_last(shm, s);
	if (!shm->readers[i].in_chunk)
		return;
	if (s->nr_withheld >= most(&shm->readers[i]))
		shm->base.sink.let_go(&shm->base, s->cookie, true);
	if (s->nr_withheld)
		withhold(shm, s);
}

static bool place_peer_memory(struct nm_transport *transport, const struct nm_peer *peer,
			      struct iovec *ret_memory)
{
	const struct shm_transport *shm = nm_shm_of(transport);
	const struct shm_session *s = source_of(shm, peer);
	const struct nm_ring_reader *reader = s ? &shm->readers[s->source_index] : NULL;

	if (!reader)
		return false;
	*ret_memory = (struct iovec){(void *)(uintptr_t)reader->pool,
				     (size_t)reader->nr_chunks * reader->chunk_size};
	return true;
}

static bool place_hold(struct nm_transport *transport, const struct nm_peer *peer,
		       uint64_t *ret_hold)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct shm_session *s = source_of(shm, peer);

	if (!s || !shm->base.sink.let_go)
		return false;
	if (shm->readers[s->source_index].in_chunk && most(&shm->readers[s->source_index]) > 0)
		withhold(shm, s);
	if (!s->is_current)
		return false;
	s->is_current = false;
	*ret_hold = s->first_hold + s->nr_withheld - 1;
	return true;
}

static void place_release(struct nm_transport *transport, const struct nm_peer *peer, uint64_t hold)
{
	struct shm_transport *shm = nm_shm_of(transport);
	struct shm_session *s = source_of(shm, peer);

	if (!s || hold - s->first_hold >= s->nr_withheld)
		return;
	s->held &= ~(UINT64_C(1) << (hold - s->first_hold));
	give_back(shm, s);
}

const struct nm_place_ops nm_shm_place_ops = {
	.memory = place_memory,
	.reserve = place_reserve,
	.send_place = place_send,
	.send_filled = nm_shm_send_filled,
	.unreserve = place_unreserve,
	.peer_memory = place_peer_memory,
	.hold = place_hold,
	.release = place_release,
};
