/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers for sends and receives of the inner endpoint. Their number is bounded: if a pool is empty
 * the channel returns -EAGAIN, so a slow peer cannot use up the memory of a fast one.
 */
#ifndef NM_NET_BUFFER_H
#define NM_NET_BUFFER_H

#include "net/inner.h"

struct nm_net_peer;

struct nm_net_buffer {
	struct fi_context2 context; /* first member: the inner completion returns its address */
	struct nm_net_buffer *next;
	struct nm_net_pool *pool; /* NULL: of an operation on a device (gpudirect.h) */
	struct nm_net_peer *peer; /* its target; NULL: a receive buffer */
	uint8_t *bytes;
	void *desc;
	/* A completion that was taken early (gpudirect.c). */
	size_t len;
	int err;
};

struct nm_net_pool {
	struct nm_net_buffer *buffers;
	struct nm_net_buffer *unused;
	uint32_t nr_buffers, nr_unused;
	size_t size; /* of each buffer */
	uint8_t *slab;
	uint64_t key;
	struct fid_mr *mr; /* when the inner provider wants local memory registered */
};

/* Have MR serve the inner endpoint, if the provider wants that. 0 or negative. */
int nm_net_enable(const struct nm_net_inner *inner, struct fid_mr *mr);
/* Register memory of the host, if the inner provider wants that; else *RET_MR stays. 0 or negative. */
int nm_net_register(const struct nm_net_inner *inner, void *bytes, size_t len, uint64_t key,
		    struct fid_mr **ret_mr);

/* NR buffers of SIZE bytes. KEY: different for each pool of one inner domain. 0 or -errno. */
int nm_net_pool_init(struct nm_net_pool *pool, const struct nm_net_inner *inner, uint32_t nr,
		     size_t size, uint64_t key);
void nm_net_pool_fini(struct nm_net_pool *pool);
/* The inner endpoint is closed, but not its domain: no buffer can be taken until furnish(). */
void nm_net_pool_strip(struct nm_net_pool *pool);
/* All buffers serve INNER, and none is in use. 0 or negative. */
int nm_net_pool_furnish(struct nm_net_pool *pool, const struct nm_net_inner *inner);

/* NULL: none left. */
static inline struct nm_net_buffer *nm_net_buffer_take(struct nm_net_pool *pool)
{
	struct nm_net_buffer *buffer = pool->unused;

	if (buffer) {
		pool->unused = buffer->next;
		pool->nr_unused--;
	}
	return buffer;
}

static inline void nm_net_buffer_give(struct nm_net_buffer *buffer)
{
	struct nm_net_pool *pool = buffer->pool;

	buffer->next = pool->unused;
	pool->unused = buffer;
	pool->nr_unused++;
}

#endif
