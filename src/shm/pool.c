/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/pool.h"

#include <errno.h>
#include <stdlib.h>

#include "base/arith.h"
#include "base/compiler.h"
#include "base/fault.h"

int nm_pool_init(struct nm_pool *pool, uint8_t *base, uint32_t chunk_size, uint32_t nr_chunks)
{
	uint32_t i;

	*pool = (struct nm_pool){
		.base = base,
		.chunk_size = chunk_size,
		.nr_chunks = nr_chunks,
		.nr_free = nr_chunks,
		.tail = nr_chunks - 1,
		.next = calloc(nr_chunks, sizeof(*pool->next)),
		.offset = calloc(nr_chunks, sizeof(*pool->offset)),
	};
	if (!pool->next || !pool->offset) {
		nm_pool_fini(pool);
		return -ENOMEM;
	}
	for (i = 0; i + 1 < nr_chunks; i++)
		pool->next[i] = i + 1;
	return 0;
}

void nm_pool_fini(struct nm_pool *pool)
{
	free(pool->next);
	free(pool->offset);
	pool->next = NULL;
	pool->offset = NULL;
}

int nm_pool_take(struct nm_pool *pool, struct nm_pool_user *user, uint32_t len, uint32_t *ret_index,
		 uint32_t *ret_offset)
{
	uint32_t index, offset;

	if (!pool->nr_free || user->nr_held / NM_POOL_SHARE > pool->nr_free - 1)
		return -EAGAIN;
	NM_FAULT("pool-take");
	index = pool->head;
	pool->head = pool->next[index];
	pool->nr_free--;
	if (user->nr_held++)
		pool->next[user->tail] = index;
	else
		user->head = index;
	user->tail = index;

	offset = pool->offset[index];
	if (offset + len > pool->chunk_size)
		offset = 0;
	pool->offset[index] = offset + (uint32_t)nm_align_up(len, NM_CACHE_LINE);
	*ret_index = index;
	*ret_offset = offset;
	return 0;
}

static uint32_t take_first(struct nm_pool *pool)
{
	uint32_t index = pool->head;

	pool->head = pool->next[index];
	pool->nr_free--;
	return index;
}

int nm_pool_reserve(struct nm_pool *pool, struct nm_pool_user *user, uint32_t nr,
		    uint32_t *ret_index)
{
	const uint32_t left = pool->nr_free / 2, held = user->nr_held + user->nr_reserved;
	uint32_t first, got = 1;

	if (!pool->nr_free || held / NM_POOL_SHARE > pool->nr_free - 1)
		return -EAGAIN;
	first = take_first(pool);
	while (got < nr && pool->nr_free > left && pool->head == first + got) {
		take_first(pool);
		got++;
	}
	user->nr_reserved += got;
	*ret_index = first;
	return (int)got;
}

void nm_pool_attach(struct nm_pool *pool, struct nm_pool_user *user, uint32_t index)
{
	user->nr_reserved--;
	/* All of it is used, so the next small payload begins at its start. */
	pool->offset[index] = pool->chunk_size;
	if (user->nr_held++)
		pool->next[user->tail] = index;
	else
		user->head = index;
	user->tail = index;
}

static inline void give_last(struct nm_pool *pool, uint32_t index)
{
	if (pool->nr_free++)
		pool->next[pool->tail] = index;
	else
		pool->head = index;
	pool->tail = index;
}

void nm_pool_unreserve(struct nm_pool *pool, struct nm_pool_user *user, uint32_t index)
{
	user->nr_reserved--;
	give_last(pool, index);
}

static void give_back(struct nm_pool *pool, struct nm_pool_user *user, uint32_t nr)
{
	uint32_t index;

	for (; nr; nr--) {
		NM_FAULT("pool-give-back");
		index = user->head;
		user->head = pool->next[index];
		user->nr_held--;
		give_last(pool, index);
	}
}

int nm_pool_reclaim(struct nm_pool *pool, struct nm_pool_user *user, uint64_t nr_freed)
{
	/* In modular arithmetic a step backwards is huge, so one comparison finds both errors. */
	uint64_t nr = nr_freed - user->nr_freed;

	if (nm_unlikely(nr > user->nr_held))
		return -EBADMSG;
	user->nr_freed = nr_freed;
	give_back(pool, user, (uint32_t)nr);
	return 0;
}

void nm_pool_reclaim_all(struct nm_pool *pool, struct nm_pool_user *user)
{
	user->nr_freed += user->nr_held;
	give_back(pool, user, user->nr_held);
}
