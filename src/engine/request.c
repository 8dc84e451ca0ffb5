/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/request.h"

#include <stdlib.h>

void nm_request_pool_init(struct nm_request_pool *pool)
{
	*pool = (struct nm_request_pool){0};
	nm_list_init(&pool->free);
}

void nm_request_pool_fini(struct nm_request_pool *pool)
{
	for (size_t i = 0; i < pool->nr_slabs; i++)
		free(pool->slabs[i]);
	free(pool->slabs);
	nm_request_pool_init(pool);
}

static NM_COLD bool pool_grow(struct nm_request_pool *pool)
{
	struct nm_request *slab;

	if (pool->nr_slabs >= UINT32_MAX / NM_REQUEST_SLAB)
		return false;
	if (pool->nr_slabs == pool->max_slabs) {
		size_t max = pool->max_slabs ? pool->max_slabs * 2 : 8;
		struct nm_request **slabs = realloc(pool->slabs, max * sizeof(*slabs));

		if (!slabs)
			return false;
		pool->slabs = slabs;
		pool->max_slabs = max;
	}
	slab = calloc(NM_REQUEST_SLAB, sizeof(*slab));
	if (!slab)
		return false;
	for (uint32_t i = 0; i < NM_REQUEST_SLAB; i++) {
		slab[i].index = (uint32_t)pool->nr_slabs * NM_REQUEST_SLAB + i;
		slab[i].generation = 1;
		nm_list_append(&pool->free, &slab[i].peer_node);
	}
	pool->slabs[pool->nr_slabs++] = slab;
	return true;
}

struct nm_request *nm_request_alloc(struct nm_request_pool *pool, enum nm_request_kind kind)
{
	struct nm_request *r;

	if (nm_unlikely(nm_list_empty(&pool->free)) && !pool_grow(pool))
		return NULL;
	r = nm_list_first(&pool->free, struct nm_request, peer_node);
	nm_list_remove(&r->peer_node);
	nm_posted_init(&r->posted);
	nm_list_init(&r->stream_node);
	r->kind = kind;
	r->peer = NULL;
	r->accepted = r->done = r->used = 0;
	r->cursor = (struct nm_cursor){0, 0};
	r->nr_iov = r->nr_remote = 0;
	r->packet_flags = 0;
	r->error = 0;
	r->parent = NULL;
	r->nr_children = 0;
	pool->nr_used++;
	return r;
}

void nm_request_free(struct nm_request_pool *pool, struct nm_request *request)
{
	nm_list_remove(&request->peer_node);
	nm_list_remove(&request->stream_node);
	request->state = NM_REQUEST_FREE;
	request->generation++;
	pool->nr_used--;
	/* The next one is taken from here too: it is still in the cache. */
	nm_list_prepend(&pool->free, &request->peer_node);
}

struct nm_request *nm_request_find(const struct nm_request_pool *pool, uint64_t id,
				   const struct nm_peer *peer)
{
	uint32_t index = (uint32_t)id;
	struct nm_request *r;

	if (index / NM_REQUEST_SLAB >= pool->nr_slabs)
		return NULL;
	r = &pool->slabs[index / NM_REQUEST_SLAB][index % NM_REQUEST_SLAB];
	if (r->generation != id >> 32 || r->state == NM_REQUEST_FREE || r->peer != peer)
		return NULL;
	return r;
}
