/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/heap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/params.h"
#include "heap/blocks.h"
#include "heap/private.h"

struct nm_heap_bounds nm_heap_bounds = {.min = SIZE_MAX};
struct nm_heap nm_heap = {.fd = -1};
/* The log may allocate while it is held. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void nm_heap_lock(void)
{
	pthread_mutex_lock(&lock);
}

void nm_heap_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void nm_heap_renew_lock(void)
{
	/* Its owner is a thread of the parent. */
	lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

static NM_COLD void turn_off(const char *why, int err)
{
	nm_heap.state = NM_HEAP_OFF;
	atomic_store_explicit(&nm_heap_bounds.min, SIZE_MAX, memory_order_relaxed);
	nm_warn("no heap that neighbours read, large messages are copied twice: %s%s%s", why,
		err ? ": " : "", err ? strerror(-err) : "");
}

void nm_heap_watch_forks(void)
{
	pthread_atfork(nm_heap_before_fork, nm_heap_after_fork, nm_heap_in_child);
}

void nm_heap_start(void)
{
	char message[256];
	uint64_t size, min;

	if (!nm_params_uint("NEARMETAL_HEAP_SIZE", &size, message) ||
	    !nm_params_uint("NEARMETAL_HEAP_MIN", &min, message)) {
		turn_off(message, 0);
		return;
	}
	nm_heap.size = nm_align_up(size, NM_HEAP_PAGE);
	nm_heap.state = NM_HEAP_NONE;
	atomic_store_explicit(&nm_heap_bounds.min, min, memory_order_relaxed);
}

/* The kernel then promises no memory for a file, and a touch of it could end the program. */
static bool is_commit_strict(void)
{
	char text[8];
	int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	ssize_t len = fd < 0 ? -1 : nm_file_read(fd, text, sizeof(text));

	if (fd >= 0)
		close(fd);
	return len > 0 && text[0] == '2';
}

/* Map it at a multiple of NM_HEAP_ALIGN. */
static void *map_aligned(const struct nm_heap *heap)
{
	size_t room = heap->size + NM_HEAP_ALIGN;
	char *reserved =
		mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *base, *end;

	if (reserved == MAP_FAILED)
		return MAP_FAILED;
	base = (char *)nm_align_up((uintptr_t)reserved, NM_HEAP_ALIGN);
	end = base + heap->size;
	if (mmap(base, heap->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
		 heap->fd, 0) == MAP_FAILED) {
		munmap(reserved, room);
		return MAP_FAILED;
	}
	if (base > reserved)
		munmap(reserved, (size_t)(base - reserved));
	munmap(end, (size_t)(reserved + room - end));
	return base;
}

/* What failed, in words, or NULL. */
static const char *make_file(struct nm_heap *heap, int *ret_err)
{
	struct stat st;
	void *base;

	heap->fd = nm_memfd_create("nearmetal-heap");
	*ret_err = heap->fd;
	if (heap->fd < 0)
		return "cannot create a memfd";
	if (ftruncate(heap->fd, (off_t)heap->size) < 0 || fstat(heap->fd, &st) < 0) {
		*ret_err = -errno;
		return "cannot size it";
	}
	base = map_aligned(heap);
	if (base == MAP_FAILED) {
		*ret_err = -errno;
		return "cannot map it";
	}
	heap->base = base;
	heap->device = st.st_dev;
	heap->inode = st.st_ino;
	/* A child without the handlers of fork() must not write the parent's memory. */
	*ret_err = madvise(base, heap->size, MADV_DONTFORK) < 0 ? -errno : 0;
	if (*ret_err)
		return "cannot keep it from children";
	*ret_err = nm_memfd_seal(heap->fd);
	return *ret_err ? "cannot seal it (Linux 5.1 or newer is needed)" : NULL;
}

static NM_COLD bool make(void)
{
	const char *failed = NULL;
	int err = 0;

	if (nm_heap.state != NM_HEAP_NONE)
		return false;
	if (!nm_file_fits(nm_heap.size))
		failed = "NEARMETAL_HEAP_SIZE is larger than files may be (ulimit -f)";
	else if (is_commit_strict())
		failed = "this kernel does not overcommit memory (vm.overcommit_memory=2)";
	if (!failed)
		failed = make_file(&nm_heap, &err);
	if (!failed) {
		err = nm_blocks_init(&nm_heap.blocks, (uint32_t)(nm_heap.size / NM_HEAP_PAGE));
		if (err)
			failed = "cannot make its table";
	}
	if (failed) {
		if (nm_heap.base)
			munmap(nm_heap.base, nm_heap.size);
		if (nm_heap.fd >= 0)
			close(nm_heap.fd);
		nm_heap.base = NULL;
		nm_heap.fd = -1;
		turn_off(failed, err);
		return false;
	}
	nm_heap.state = NM_HEAP_SHOWN;
	atomic_store_explicit(&nm_heap_bounds.base, (uintptr_t)nm_heap.base, memory_order_relaxed);
	/* Partner: nm_heap_has(). */
	atomic_store_explicit(&nm_heap_bounds.size, nm_heap.size, memory_order_release);
	return true;
}

static bool is_usable(void)
{
	if (nm_unlikely(nm_heap.is_forking))
		return false;
	return nm_heap.state == NM_HEAP_SHOWN || nm_heap.state == NM_HEAP_COPY || make();
}

static uint32_t take(size_t size, size_t align, uint32_t *ret_fresh)
{
	uint32_t page = NM_BLOCK_NONE;
	size_t pages = align > NM_HEAP_PAGE ? align / NM_HEAP_PAGE : 1;
	int saved_errno = errno;

	if (size > nm_heap.size || align > NM_HEAP_ALIGN)
		return NM_BLOCK_NONE;
	nm_heap_lock();
	if (is_usable()) {
		page = nm_blocks_take(&nm_heap.blocks,
				      (uint32_t)((size + NM_HEAP_PAGE - 1) / NM_HEAP_PAGE),
				      (uint32_t)pages, ret_fresh);
		if (nm_unlikely(page == NM_BLOCK_NONE))
			nm_log_once(NM_LOG_WARN,
				    "the heap that neighbours read has no room for %zu bytes: "
				    "large messages from other memory are copied twice; raise "
				    "NEARMETAL_HEAP_SIZE",
				    size);
	}
	nm_heap_unlock();
	errno = saved_errno;
	return page;
}

void *nm_heap_alloc(size_t size, size_t align, bool is_zero)
{
	uint32_t fresh = 0, page = take(size, align, &fresh);
	size_t whole, used;
	char *bytes;

	if (page == NM_BLOCK_NONE)
		return NULL;
	bytes = nm_heap.base + (size_t)page * NM_HEAP_PAGE;
	if (!is_zero)
		return bytes;
	whole = nm_align_up(size, NM_HEAP_PAGE);
	used = whole - (size_t)fresh * NM_HEAP_PAGE;
	/* Fresh pages are zeros, and touching them would take memory. */
	memset(bytes, 0, nm_min_u64(used, size));
	return bytes;
}

/* As the C library does: what follows a wrong free() cannot be trusted. */
static NM_COLD __attribute__((noreturn)) void die(const void *bytes)
{
	nm_error("%p is in the heap, but it is no allocation: it was freed before, or is no begin "
		 "of one",
		 bytes);
	abort();
}

/* The page at which the allocation BYTES begins, in the lock. */
static uint32_t page_of(const void *bytes)
{
	size_t offset = (size_t)((const char *)bytes - nm_heap.base);
	uint32_t page = (uint32_t)(offset / NM_HEAP_PAGE);

	if (nm_unlikely(offset % NM_HEAP_PAGE || !nm_blocks_len(&nm_heap.blocks, page)))
		die(bytes);
	return page;
}

void nm_heap_free(void *bytes)
{
	nm_heap_lock();
	/* In a child that got no copy nothing is left to free. */
	if (nm_heap.state != NM_HEAP_LOST)
		nm_blocks_give(&nm_heap.blocks, page_of(bytes));
	nm_heap_unlock();
}

size_t nm_heap_len(const void *bytes)
{
	size_t len;

	nm_heap_lock();
	len = (size_t)nm_blocks_len(&nm_heap.blocks, page_of(bytes)) * NM_HEAP_PAGE;
	nm_heap_unlock();
	return len;
}

bool nm_heap_resize(void *bytes, size_t size)
{
	bool is_done = false;

	if (size > nm_heap.size)
		return false;
	nm_heap_lock();
	if (is_usable())
		is_done = nm_blocks_resize(&nm_heap.blocks, page_of(bytes),
					   (uint32_t)((size + NM_HEAP_PAGE - 1) / NM_HEAP_PAGE));
	nm_heap_unlock();
	return is_done;
}

bool nm_heap_owns_fd(void)
{
	struct stat st;

	/* Some programs close every descriptor that they did not open. */
	return nm_heap.fd >= 0 && fstat(nm_heap.fd, &st) == 0 && st.st_dev == nm_heap.device &&
	       st.st_ino == nm_heap.inode;
}

int nm_heap_show(struct nm_heap_face *ret_face)
{
	int saved_errno = errno, err = -ENOTSUP;

	nm_heap_lock();
	if (nm_heap.state == NM_HEAP_NONE)
		make();
	if (nm_heap.state == NM_HEAP_SHOWN && nm_heap_owns_fd()) {
		*ret_face = (struct nm_heap_face){
			.fd = nm_heap.fd,
			.base = (uintptr_t)nm_heap.base,
			.size = nm_heap.size,
			.device = nm_heap.device,
			.inode = nm_heap.inode,
		};
		err = 0;
	}
	nm_heap_unlock();
	errno = saved_errno;
	return err;
}
