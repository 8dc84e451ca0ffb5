/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and gets from heaps that neighbours read: copied once, without the kernel (shm/heap.h). */
#include <errno.h>

#include "base/arith.h"
#include "base/copy.h"
#include "transport/shm/shm_private.h"

bool nm_shm_show_heap(const struct nm_link *base, const struct iovec *piece,
		      struct nm_span *ret_span)
{
	const struct shm_transport *shm = nm_shm_of(base->transport);
	uint64_t offset;

	if (!base->shows_heap || !nm_own_heap_has(nm_sessions_heap(shm->sessions), piece->iov_base,
						  piece->iov_len, &offset))
		return false;
	*ret_span = (struct nm_span){offset | NM_SPAN_HEAP, piece->iov_len};
	return true;
}

ssize_t nm_shm_read_heap(struct nm_link *base, const struct iovec *local, unsigned int nr_local,
			 const struct nm_span *remote, unsigned int nr_remote)
{
	struct nm_foreign_heap *heap = &nm_shm_session_of(base)->base.heap;
	unsigned int i = 0;
	uint64_t at = 0; /* in local[i] */
	ssize_t got = 0;

	if (nm_unlikely(!base->reads_heap))
		return -EOPNOTSUPP;
	for (unsigned int j = 0; j < nr_remote; j++) {
		uint64_t offset = remote[j].address & ~NM_SPAN_HEAP, left = remote[j].len;
		const uint8_t *from = nm_foreign_heap_at(heap, offset, left);

		if (nm_unlikely(!from))
			return got						  ? got :
			       offset >= heap->size || left > heap->size - offset ? -EFAULT :
										    -ENODATA;
		while (left > 0 && i < nr_local) {
			uint64_t len = nm_min_u64(left, local[i].iov_len - at);

			nm_copy((char *)local[i].iov_base + at, from, len);
			from += len;
			left -= len;
			got += (ssize_t)len;
			at += len;
			if (at == local[i].iov_len) {
				i++;
				at = 0;
			}
		}
	}
	return got;
}

void nm_shm_publish_heap(struct shm_transport *shm, const struct nm_region *region)
{
	const struct nm_own_heap *heap = nm_sessions_heap(shm->sessions);
	uint64_t start = nm_max_u64(region->base, heap->base);
	uint64_t end = nm_min_u64(region->base + region->len, heap->base + heap->size);
	struct nm_region part = *region;

	if (start >= end)
		return;
	part.in_heap = true;
	part.base = start - heap->base;
	part.len = end - start;
	part.offset += start - region->base;
	(void)nm_regions_publish(shm->window.regions, shm->window.geometry.nr_regions, &part);
}

/*
 * Unlike a write of the kernel, a late read harms nobody. So the owner does not wait for readers
 * when it hides a region: a reader that finds it hidden after the copy has copied nothing.
 */
int nm_shm_get_heap(struct nm_link *base, const struct nm_region *wanted, const struct iovec *local,
		    unsigned int nr_local)
{
	const struct nm_foreign_window *window = &nm_shm_session_of(base)->base.window;
	struct nm_region_seen seen;
	struct nm_region region;
	struct nm_span span;
	uint64_t start;
	ssize_t got;
	int err;

	if (nm_unlikely(!base->reads_heap))
		return -EOPNOTSUPP;
	err = nm_regions_find(window->regions, window->geometry.nr_regions, wanted->key, true,
			      &region, &seen);
	if (err)
		return err;
	start = wanted->offset - region.offset;
	if ((region.access & wanted->access) != wanted->access || wanted->offset < region.offset ||
	    start > region.len || wanted->len > region.len - start)
		return -EACCES;
	/* A place that no heap has is refused there. */
	span = (struct nm_span){(region.base + start) | NM_SPAN_HEAP, wanted->len};
	got = nm_shm_read_heap(base, local, nr_local, &span, 1);
	if (got < 0 || (uint64_t)got != wanted->len)
		return got < 0 ? (int)got : -EFAULT;
	return nm_regions_is_shown(&seen) ? 0 : -ENOKEY;
}
