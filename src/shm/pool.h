/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bulk pool of a window: chunks that the owner fills and its peers read. All bookkeeping is in
 * the owner's private memory. Peers only report how many chunks they have returned, in order.
 *
 * Chunks are taken and returned first-in first-out, so a stream walks over the whole pool. If the
 * pool is larger than the private L2, the writer has evicted the lines to the shared cache before a
 * reader needs them. (Reading lines that are dirty in another core's L2 is four times slower.) For
 * the same reason small payloads move through a chunk from use to use.
 *
 * Users share the pool by a moving threshold: a user may hold SHARE times the free rest. So a peer
 * that stopped reading cannot starve the others, and a single user gets most of the pool.
 *
 * Not thread-safe.
 */
#ifndef NM_SHM_POOL_H
#define NM_SHM_POOL_H

#include <stdint.h>

/* With 4, a single user gets four fifths of the pool; two stuck users leave the third a ninth. */
#define NM_POOL_SHARE 4

struct nm_pool {
	uint8_t *base; /* in the owner's window */
	uint32_t chunk_size;
	uint32_t nr_chunks;
	uint32_t nr_free;
	uint32_t head, tail; /* of the free list, oldest first */
	uint32_t *next;	     /* links free chunks, and the chunks of each user */
	uint32_t *offset;    /* place of the next small payload */
};

/* The chunks of one link, in the order of sending. */
struct nm_pool_user {
	uint32_t head, tail;
	uint32_t nr_held;
	uint32_t nr_reserved; /* and not attached */
	uint64_t nr_freed;    /* last value read of the peer's counter */
};

/* Returns 0 or -ENOMEM. NR_CHUNKS >= 1. */
int nm_pool_init(struct nm_pool *pool, uint8_t *base, uint32_t chunk_size, uint32_t nr_chunks);
void nm_pool_fini(struct nm_pool *pool);

/*
 * Take a chunk for LEN <= chunk_size bytes. Returns 0 and the place of the payload, or -EAGAIN: no
 * chunk is free for this user.
 */
int nm_pool_take(struct nm_pool *pool, struct nm_pool_user *user, uint32_t len, uint32_t *ret_index,
		 uint32_t *ret_offset);
static inline uint8_t *nm_pool_bytes(const struct nm_pool *pool, uint32_t index, uint32_t offset)
{
	return pool->base + (uint64_t)index * pool->chunk_size + offset;
}

/*
 * Reserve up to NR whole chunks that lie side by side, from *RET_INDEX on: they are of no user until
 * nm_pool_attach() or nm_pool_unreserve(). They count as held for the share of USER in later calls.
 * Leaves at least half of the free ones. Returns their number, or -EAGAIN: USER may get none now.
 */
int nm_pool_reserve(struct nm_pool *pool, struct nm_pool_user *user, uint32_t nr,
		    uint32_t *ret_index);
/* A reserved chunk becomes the youngest of USER. */
void nm_pool_attach(struct nm_pool *pool, struct nm_pool_user *user, uint32_t index);
/* A chunk that USER has reserved is free again. */
void nm_pool_unreserve(struct nm_pool *pool, struct nm_pool_user *user, uint32_t index);

/*
 * Take back chunks up to the peer's counter NR_FREED. Returns 0, or -EBADMSG: the counter went
 * backwards or past what was sent.
 */
int nm_pool_reclaim(struct nm_pool *pool, struct nm_pool_user *user, uint64_t nr_freed);
/* The peer is gone: take everything back. */
void nm_pool_reclaim_all(struct nm_pool *pool, struct nm_pool_user *user);

#endif
