/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/heap.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/heap_face.h"
#include "base/memfd.h"
#include "base/pages.h"
#include "shm/budget.h"

#define PAGE UINT64_C(4096)
#define WORD_PAGES 64
/* NEARMETAL_HEAP_SIZE has this bound, too. */
#define HEAP_MAX (UINT64_C(64) << 30)

/* The file is FACE's: a program may have closed the descriptor and opened another file there. */
static int take_file(const struct nm_heap_face *face, struct nm_own_heap *heap,
		     struct nm_reason *ret_reason)
{
	struct stat st;
	int err;

	heap->fd = fcntl(face->fd, F_DUPFD_CLOEXEC, 0);
	if (heap->fd < 0) {
		err = -errno;
		nm_reason_set(ret_reason, "cannot duplicate its descriptor: %s", strerror(-err));
		return err;
	}
	err = nm_memfd_check(heap->fd, "heap", &st, ret_reason);
	if (!err && (st.st_dev != face->device || st.st_ino != face->inode)) {
		nm_reason_set(ret_reason, "the program closed its descriptor");
		err = -EBADF;
	}
	if (err)
		nm_own_heap_close(heap);
	return err;
}

int nm_own_heap_open(struct nm_own_heap *ret_heap, struct nm_reason *ret_reason)
{
	struct nm_own_heap heap = {.fd = -1};
	struct nm_heap_face face;
	nm_heap_face_fn *show;
	void *found;
	int err;

	*ret_heap = heap;
	found = dlsym(RTLD_DEFAULT, NM_HEAP_FACE);
	if (!found)
		return -ENOENT;
	memcpy(&show, &found, sizeof(show));
	err = show(&face);
	if (err) {
		nm_reason_set(ret_reason, "libnearmetal-heap.so has no heap here: %s",
			      strerror(-err));
		return err;
	}
	err = take_file(&face, &heap, ret_reason);
	if (err)
		return err;
	heap.base = (uintptr_t)face.base;
	heap.size = face.size;
	*ret_heap = heap;
	return 0;
}

void nm_own_heap_close(struct nm_own_heap *heap)
{
	if (heap->fd >= 0)
		close(heap->fd);
	heap->fd = -1;
}

bool nm_own_heap_has(const struct nm_own_heap *heap, const void *start, uint64_t len,
		     uint64_t *ret_offset)
{
	uint64_t offset = (uintptr_t)start - heap->base;

	if (offset >= heap->size || len > heap->size - offset)
		return false;
	*ret_offset = offset;
	return true;
}

/*
 * Without making a page, which would be charged to this process: after mlockall(MCL_FUTURE) a
 * readable mapping would be filled at once. Nor is it any part of this process's core dump.
 */
static void *map_unfilled(int fd, uint64_t size)
{
	void *base = mmap(NULL, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	int err;

	if (base == MAP_FAILED)
		return base;
	if (munlock(base, size) < 0 || madvise(base, size, MADV_DONTDUMP) < 0 ||
	    mprotect(base, size, PROT_READ) < 0) {
		err = errno;
		munmap(base, size);
		errno = err;
		return MAP_FAILED;
	}
	return base;
}

/* A bit for each page, in whole words. */
static size_t size_of_present(const struct nm_foreign_heap *heap)
{
	return nm_align_up(heap->size / PAGE, WORD_PAGES) / 8;
}

int nm_foreign_heap_attach(int fd, struct nm_foreign_heap *ret_heap, struct nm_reason *ret_reason)
{
	struct nm_foreign_heap heap = {0};
	struct stat st;
	void *base;
	int err;

	err = nm_memfd_check(fd, "heap", &st, ret_reason);
	if (err)
		return err;
	heap.size = (uint64_t)st.st_size;
	if (heap.size == 0 || heap.size > HEAP_MAX || heap.size % PAGE) {
		nm_reason_set(ret_reason, "its heap has %lld bytes", (long long)st.st_size);
		return -EBADMSG;
	}
	err = nm_budget_take_spare(heap.size, ret_reason);
	if (err)
		return err;
	heap.present = nm_pages_alloc(size_of_present(&heap));
	base = heap.present ? map_unfilled(fd, heap.size) : MAP_FAILED;
	if (base == MAP_FAILED) {
		err = heap.present ? -errno : -ENOMEM;
		nm_reason_set(ret_reason, "cannot map its heap: %s", strerror(-err));
		nm_foreign_heap_detach(&heap);
		nm_budget_return(heap.size);
		return err;
	}
	heap.base = base;
	*ret_heap = heap;
	return 0;
}

void nm_foreign_heap_detach(struct nm_foreign_heap *heap)
{
	if (!heap)
		return;
	nm_pages_free(heap->present, size_of_present(heap));
	heap->present = NULL;
	if (!heap->base)
		return;
	munmap((void *)(uintptr_t)heap->base, heap->size);
	nm_budget_return(heap->size);
	heap->base = NULL;
}

static bool is_known(const struct nm_foreign_heap *heap, uint64_t page)
{
	return heap->present[page / WORD_PAGES] >> page % WORD_PAGES & 1;
}

/* Look at the pages of a word from PAGE on, before END. False: one of them is not there. */
static bool look(struct nm_foreign_heap *heap, uint64_t page, uint64_t end)
{
	unsigned char there[WORD_PAGES];
	uint64_t nr = nm_min_u64(end - page, WORD_PAGES - page % WORD_PAGES);
	void *start = (void *)(uintptr_t)(heap->base + page * PAGE);

	/* Unlike SEEK_HOLE, this waits for no lock of the file, which its owner could hold. */
	if (mincore(start, nr * PAGE, there) < 0)
		return false;
	for (uint64_t i = 0; i < nr; i++)
		if (!(there[i] & 1))
			return false;
	/* This only improves speed. */
	(void)madvise(start, nr * PAGE, MADV_POPULATE_READ);
	for (uint64_t i = 0; i < nr; i++)
		heap->present[page / WORD_PAGES] |= UINT64_C(1) << (page + i) % WORD_PAGES;
	return true;
}

const uint8_t *nm_foreign_heap_at(struct nm_foreign_heap *heap, uint64_t offset, uint64_t len)
{
	uint64_t page, end;

	if (!heap->base || offset >= heap->size || len > heap->size - offset)
		return NULL;
	end = (offset + len + PAGE - 1) / PAGE;
	for (page = offset / PAGE; page < end;) {
		if (is_known(heap, page)) {
			page++;
			continue;
		}
		if (!look(heap, page, end))
			return NULL;
		page += WORD_PAGES - page % WORD_PAGES;
	}
	return heap->base + offset;
}
