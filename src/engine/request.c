/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

#define FREE NM_STATE(NM_REQUEST_FREE)

const uint32_t nm_request_transitions[NM_NR_REQUEST_STATES] = {
	[NM_REQUEST_FREE] = NM_STATE(NM_REQUEST_NEW),
	[NM_REQUEST_NEW] = FREE | NM_STATE(NM_REQUEST_POSTED) | NM_STATE(NM_REQUEST_WAIT_DATA) |
			   NM_STATE(NM_REQUEST_WAIT_CTS) | NM_STATE(NM_REQUEST_STREAMING) |
			   NM_STATE(NM_REQUEST_LEAVING) | NM_STATE(NM_REQUEST_WAIT_ACK) |
			   NM_STATE(NM_REQUEST_PULLING) | NM_STATE(NM_REQUEST_DIRECT),
	[NM_REQUEST_POSTED] = FREE | NM_STATE(NM_REQUEST_DRAINING) |
			      NM_STATE(NM_REQUEST_WAIT_DATA) | NM_STATE(NM_REQUEST_PULLING) |
			      NM_STATE(NM_REQUEST_DIRECT),
	[NM_REQUEST_DRAINING] = FREE,
	[NM_REQUEST_WAIT_DATA] = FREE,
	[NM_REQUEST_WAIT_CTS] = FREE | NM_STATE(NM_REQUEST_STREAMING) |
				NM_STATE(NM_REQUEST_PLACING) | NM_STATE(NM_REQUEST_WAIT_ACK) |
				NM_STATE(NM_REQUEST_DIRECT),
	[NM_REQUEST_STREAMING] = FREE | NM_STATE(NM_REQUEST_WAIT_ACK),
	[NM_REQUEST_LEAVING] = FREE,
	[NM_REQUEST_WAIT_ACK] = FREE,
	[NM_REQUEST_PULLING] =
		FREE | NM_STATE(NM_REQUEST_WAIT_DATA) | NM_STATE(NM_REQUEST_WAIT_PLACED),
	[NM_REQUEST_PLACING] = FREE | NM_STATE(NM_REQUEST_WAIT_CTS),
	[NM_REQUEST_WAIT_PLACED] = FREE | NM_STATE(NM_REQUEST_WAIT_DATA),
	[NM_REQUEST_DIRECT] = FREE | NM_STATE(NM_REQUEST_WAIT_DATA) | NM_STATE(NM_REQUEST_WAIT_CTS),
};

void nm_request_pool_init(struct nm_request_pool *pool)
{
	*pool = (struct nm_request_pool){0};
}

void nm_request_pool_fini(struct nm_request_pool *pool)
{
	for (size_t i = 0; i < pool->nr_slabs; i++)
		free(pool->slabs[i]);
	free(pool->slabs);
	nm_request_pool_init(pool);
}

bool nm_request_pool_grow(struct nm_request_pool *pool)
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
	for (uint32_t i = NM_REQUEST_SLAB; i-- > 0;) {
		slab[i].index = (uint32_t)pool->nr_slabs * NM_REQUEST_SLAB + i;
		slab[i].generation = 1;
		nm_list_init(&slab[i].peer_node);
		nm_list_init(&slab[i].stream_node);
		slab[i].next_free = pool->free;
		pool->free = &slab[i];
	}
	pool->slabs[pool->nr_slabs++] = slab;
	return true;
}

void nm_request_free(struct nm_request_pool *pool, struct nm_request *request)
{
	const size_t cold = offsetof(struct nm_request, peer);

	nm_list_remove(&request->peer_node);
	nm_list_remove(&request->stream_node);
	memset((char *)request + cold, 0, offsetof(struct nm_request, remote) - cold);
	nm_request_put(pool, request);
}

struct nm_request *nm_request_find(const struct nm_request_pool *pool, uint64_t id,
				   const struct nm_peer *peer)
{
	uint32_t index = (uint32_t)id;
	struct nm_request *r;

	if (index / NM_REQUEST_SLAB >= pool->nr_slabs)
		return NULL;
	r = &pool->slabs[index / NM_REQUEST_SLAB][index % NM_REQUEST_SLAB];
	if (r->generation != id >> 32 || r->state <= NM_REQUEST_NEW || r->peer != peer)
		return NULL;
	return r;
}
