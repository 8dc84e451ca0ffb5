/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() gets a private copy of the heap. The parent makes it in private memory before
 * the fork, the child puts it where the heap was, and the parent drops its own. So neither waits
 * for the other, and a child that dies early leaves nothing.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/compiler.h"
#include "base/log.h"
#include "heap/private.h"

/* Pages that are looked at together. */
#define STEP 256
/* Pages that are read together. */
#define ABSENT 64

/*
 * Pages that are not in memory were never touched, or they were swapped out. A read of the file,
 * unlike one of the mapping, makes no page, and unlike lseek(SEEK_DATA) it waits for no lock that
 * another holder of the descriptor could keep. False: the kernel does not read it (errno). Then no
 * byte of the copy can be trusted.
 */
static bool copy_absent(size_t offset, size_t len)
{
	static const char zeros[NM_HEAP_PAGE];
	/* Under the lock. */
	static char pages[ABSENT * NM_HEAP_PAGE];
	size_t step;
	ssize_t got;

	for (; len; offset += step, len -= step) {
		step = nm_min_u64(len, sizeof(pages));
		do
			got = pread(nm_heap.fd, pages, step, (off_t)offset);
		while (got < 0 && errno == EINTR);
		if (nm_unlikely(got != (ssize_t)step)) {
			/* The seals keep the size, so nothing is short but by an error. */
			if (got >= 0)
				errno = EIO;
			return false;
		}
		for (ssize_t at = 0; at < got; at += (ssize_t)NM_HEAP_PAGE)
			if (memcmp(pages + at, zeros, NM_HEAP_PAGE) != 0)
				memcpy(nm_heap.copy + offset + at, pages + at, NM_HEAP_PAGE);
	}
	return true;
}

static bool copy_pages(size_t offset, size_t len)
{
	unsigned char there[STEP];
	size_t nr, run;

	for (; len; len -= nr * NM_HEAP_PAGE) {
		nr = nm_min_u64(len / NM_HEAP_PAGE, STEP);
		if (mincore(nm_heap.base + offset, nr * NM_HEAP_PAGE, there) < 0)
			memset(there, 1, sizeof(there));
		for (size_t i = 0; i < nr; i += run, offset += run * NM_HEAP_PAGE) {
			for (run = 1; i + run < nr && !((there[i] ^ there[i + run]) & 1);)
				run++;
			if (there[i] & 1)
				memcpy(nm_heap.copy + offset, nm_heap.base + offset,
				       run * NM_HEAP_PAGE);
			else if (!copy_absent(offset, run * NM_HEAP_PAGE))
				return false;
		}
	}
	return true;
}

static bool copy_blocks(void)
{
	/* Without the descriptor there is no way to look at a page without making it. */
	bool knows_pages = nm_heap_owns_fd();
	const struct nm_blocks *blocks = &nm_heap.blocks;
	uint32_t page = 0;

	while ((page = nm_blocks_next_used(blocks, page)) != NM_BLOCK_NONE) {
		uint32_t nr = nm_blocks_len(blocks, page);
		size_t offset = (size_t)page * NM_HEAP_PAGE, len = (size_t)nr * NM_HEAP_PAGE;

		if (knows_pages && !copy_pages(offset, len))
			return false;
		if (!knows_pages)
			memcpy(nm_heap.copy + offset, nm_heap.base + offset, len);
		page += nr;
	}
	return true;
}

static NM_COLD void drop_copy(const char *why)
{
	int err = errno;

	if (nm_heap.copy)
		munmap(nm_heap.copy, nm_heap.size);
	nm_heap.copy = NULL;
	nm_log_once(NM_LOG_WARN,
		    "%s: a forked child ends if it uses allocations of NEARMETAL_HEAP_MIN or more "
		    "(%s)",
		    why, strerror(err));
}

void nm_heap_before_fork(void)
{
	int saved_errno = errno;

	nm_heap_lock();
	/* What other handlers allocate from here on would be missing in the copy. */
	nm_heap.is_forking = true;
	if (nm_heap.state != NM_HEAP_SHOWN)
		return;
	nm_heap.copy = mmap(NULL, nm_heap.size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (nm_heap.copy == MAP_FAILED) {
		nm_heap.copy = NULL;
		drop_copy("no memory for a copy of the heap");
	} else {
		/* Most of the time goes into faults of this memory. */
		(void)madvise(nm_heap.copy, nm_heap.size, MADV_HUGEPAGE);
		if (!copy_blocks())
			drop_copy("cannot read the heap to copy it");
	}
	errno = saved_errno;
}

void nm_heap_after_fork(void)
{
	int saved_errno = errno;

	if (nm_heap.copy)
		munmap(nm_heap.copy, nm_heap.size);
	nm_heap.copy = NULL;
	nm_heap.is_forking = false;
	nm_heap_unlock();
	errno = saved_errno;
}

void nm_heap_in_child(void)
{
	int saved_errno = errno;

	nm_heap_renew_lock();
	nm_heap.is_forking = false;
	if (nm_heap.state == NM_HEAP_SHOWN) {
		if (nm_heap_owns_fd())
			close(nm_heap.fd);
		nm_heap.fd = -1;
		nm_heap.state = NM_HEAP_COPY;
		if (!nm_heap.copy ||
		    mremap(nm_heap.copy, nm_heap.size, nm_heap.size, MREMAP_MAYMOVE | MREMAP_FIXED,
			   nm_heap.base) == MAP_FAILED) {
			/* So that nothing else is put there. */
			(void)mmap(nm_heap.base, nm_heap.size, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
			nm_heap.state = NM_HEAP_LOST;
		}
		nm_heap.copy = NULL;
	}
	errno = saved_errno;
}
