/* SPDX-License-Identifier: Apache-2.0 */
#include "net/buffer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096

int nm_net_enable(const struct nm_net_inner *inner, struct fid_mr *mr)
{
	int err;

	if (!(inner->info->domain_attr->mr_mode & FI_MR_ENDPOINT))
		return 0;
	err = fi_mr_bind(mr, &inner->ep->fid, 0);
	return err ? err : fi_mr_enable(mr);
}

int nm_net_register(const struct nm_net_inner *inner, void *bytes, size_t len, uint64_t key,
		    struct fid_mr **ret_mr)
{
	int err;

	if (!(inner->info->domain_attr->mr_mode & FI_MR_LOCAL))
		return 0;
	err = fi_mr_reg(inner->domain, bytes, len, FI_SEND | FI_RECV, 0, key, 0, ret_mr, NULL);
	return err ? err : nm_net_enable(inner, *ret_mr);
}

void nm_net_pool_strip(struct nm_net_pool *pool)
{
	if (pool->mr)
		fi_close(&pool->mr->fid);
	pool->mr = NULL;
	pool->unused = NULL;
	pool->nr_unused = 0;
}

int nm_net_pool_furnish(struct nm_net_pool *pool, const struct nm_net_inner *inner)
{
	int err = nm_net_register(inner, pool->slab, pool->nr_buffers * pool->size, pool->key,
				  &pool->mr);
	uint32_t i;

	for (i = pool->nr_buffers; !err && i-- > 0;) {
		pool->buffers[i].desc = pool->mr ? fi_mr_desc(pool->mr) : NULL;
		nm_net_buffer_give(&pool->buffers[i]);
	}
	return err;
}

int nm_net_pool_init(struct nm_net_pool *pool, const struct nm_net_inner *inner, uint32_t nr,
		     size_t size, uint64_t key)
{
	uint32_t i;
	int err;

	memset(pool, 0, sizeof(*pool));
	pool->nr_buffers = nr;
	pool->key = key;
	pool->size = (size + PAGE - 1) / PAGE * PAGE;
	pool->buffers = calloc(nr, sizeof(*pool->buffers));
	if (!pool->buffers)
		return -ENOMEM;
	/* Mapped, not allocated: what is never used costs nothing. */
	pool->slab = mmap(NULL, nr * pool->size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pool->slab == MAP_FAILED) {
		pool->slab = NULL;
		err = -ENOMEM;
		goto err_fini;
	}
	for (i = 0; i < nr; i++) {
		pool->buffers[i].pool = pool;
		pool->buffers[i].bytes = pool->slab + i * pool->size;
	}
	err = nm_net_pool_furnish(pool, inner);
	if (err)
		goto err_fini;
	return 0;

err_fini:
	nm_net_pool_fini(pool);
	return err;
}

void nm_net_pool_fini(struct nm_net_pool *pool)
{
	nm_net_pool_strip(pool);
	if (pool->slab)
		munmap(pool->slab, pool->nr_buffers * pool->size);
	free(pool->buffers);
	memset(pool, 0, sizeof(*pool));
}
