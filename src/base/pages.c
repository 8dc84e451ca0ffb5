/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pages.h"

#include <sys/mman.h>

void *nm_pages_alloc(size_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED)
		return NULL;
	/* A huge page would be charged for the one entry of it that is used. */
	(void)madvise(pages, bytes, MADV_NOHUGEPAGE);
	return pages;
}

void *nm_pages_grow(void *old, size_t old_bytes, size_t new_bytes)
{
	void *pages;

	if (!old)
		return nm_pages_alloc(new_bytes);
	pages = mremap(old, old_bytes, new_bytes, MREMAP_MAYMOVE);
	return pages == MAP_FAILED ? NULL : pages;
}

void nm_pages_free(void *pages, size_t bytes)
{
	if (pages)
		munmap(pages, bytes);
}
