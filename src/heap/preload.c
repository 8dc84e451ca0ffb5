/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnearmetal-heap.so, a library for LD_PRELOAD: the functions of malloc(3). Large allocations go
 * to the heap (heap.h), all others and those that find no room there to the next allocator: the C
 * library's, another preloaded one or the program's own.
 *
 * The next allocator is looked up at the first call, before any constructor. dlsym() itself may
 * allocate, and gets a little memory from here that is never freed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/compiler.h"
#include "heap/heap.h"

#define EXPORTED __attribute__((visibility("default")))

static struct {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t nr, size_t size);
	void *(*realloc)(void *bytes, size_t size);
	void (*free)(void *bytes);
	size_t (*usable_size)(void *bytes);
	int (*posix_memalign)(void **ret_bytes, size_t align, size_t size);
	void *(*aligned_alloc)(size_t align, size_t size);
	void *(*memalign)(size_t align, size_t size);
	void *(*valloc)(size_t size);
	void *(*pvalloc)(size_t size);
} next;

enum { UNKNOWN, ASKING, KNOWN };
static _Atomic int asked;

/* ---- Before the next allocator is known ---- */

#define EARLY_SIZE (64U << 10)
#define EARLY_HEAD 16U /* before each allocation: its length */

static _Alignas(EARLY_HEAD) char early[EARLY_SIZE];
static _Atomic size_t early_used;

static bool is_early(const void *bytes)
{
	return (uintptr_t)bytes - (uintptr_t)early < EARLY_SIZE;
}

static size_t early_len(const void *bytes)
{
	size_t len;

	memcpy(&len, (const char *)bytes - EARLY_HEAD, sizeof(len));
	return len;
}

/* Zeros, as the memory was never used. */
static void *early_alloc(size_t size)
{
	size_t whole, at;

	if (size > EARLY_SIZE / 2) {
		errno = ENOMEM;
		return NULL;
	}
	whole = EARLY_HEAD + nm_align_up(size, EARLY_HEAD);
	at = atomic_fetch_add(&early_used, whole);
	if (at > EARLY_SIZE - whole) {
		errno = ENOMEM;
		return NULL;
	}
	memcpy(early + at, &size, sizeof(size));
	return early + at + EARLY_HEAD;
}

static NM_COLD void find(const char *name, void *ret_function)
{
	static const char what[] = "nearmetal: error: libnearmetal-heap.so finds no allocator\n";
	void *found = dlsym(RTLD_NEXT, name);

	if (!found) {
		(void)!write(STDERR_FILENO, what, sizeof(what) - 1);
		abort();
	}
	memcpy(ret_function, &found, sizeof(found));
}

/* False: this call comes from the look-up, or from another thread meanwhile. */
static NM_COLD bool ask(void)
{
	int expected = UNKNOWN;

	if (!atomic_compare_exchange_strong(&asked, &expected, ASKING))
		return expected == KNOWN;
	find("malloc", &next.malloc);
	find("calloc", &next.calloc);
	find("realloc", &next.realloc);
	find("free", &next.free);
	find("malloc_usable_size", &next.usable_size);
	find("posix_memalign", &next.posix_memalign);
	find("aligned_alloc", &next.aligned_alloc);
	find("memalign", &next.memalign);
	find("valloc", &next.valloc);
	find("pvalloc", &next.pvalloc);
	atomic_store_explicit(&asked, KNOWN, memory_order_release);
	nm_heap_watch_forks();
	return true;
}

static inline bool is_known(void)
{
	return nm_likely(atomic_load_explicit(&asked, memory_order_acquire) == KNOWN) || ask();
}

/* After those of the C library, before those of programs. */
__attribute__((constructor(101))) static void start(void)
{
	is_known();
	nm_heap_start();
}

/* ---- The functions of malloc(3) ---- */

EXPORTED void *malloc(size_t size)
{
	if (nm_unlikely(nm_heap_is_worth(size))) {
		void *bytes = nm_heap_alloc(size, 1, false);

		if (bytes)
			return bytes;
	}
	return is_known() ? next.malloc(size) : early_alloc(size);
}

EXPORTED void *calloc(size_t nr, size_t size)
{
	size_t total;

	if (nm_unlikely(__builtin_mul_overflow(nr, size, &total))) {
		errno = ENOMEM;
		return NULL;
	}
	if (nm_unlikely(nm_heap_is_worth(total))) {
		void *bytes = nm_heap_alloc(total, 1, true);

		if (bytes)
			return bytes;
	}
	return is_known() ? next.calloc(nr, size) : early_alloc(total);
}

EXPORTED void free(void *bytes)
{
	if (nm_unlikely(nm_heap_has(bytes)))
		nm_heap_free(bytes);
	else if (bytes && !is_early(bytes) && is_known())
		next.free(bytes);
}

EXPORTED size_t malloc_usable_size(void *bytes)
{
	if (nm_heap_has(bytes))
		return nm_heap_len(bytes);
	if (is_early(bytes))
		return early_len(bytes);
	return is_known() ? next.usable_size(bytes) : 0;
}

/* Into another place; LEN bytes of BYTES count. */
static NM_COLD void *move(void *bytes, size_t len, void *to, size_t size)
{
	if (!to)
		return NULL;
	memcpy(to, bytes, nm_min_u64(len, size));
	free(bytes);
	return to;
}

EXPORTED void *realloc(void *bytes, size_t size)
{
	if (!bytes)
		return malloc(size);
	if (nm_unlikely(nm_heap_has(bytes))) {
		if (size == 0) {
			free(bytes);
			return NULL;
		}
		if (nm_heap_is_worth(size) && nm_heap_resize(bytes, size))
			return bytes;
		return move(bytes, nm_heap_len(bytes), malloc(size), size);
	}
	if (nm_unlikely(is_early(bytes)))
		return move(bytes, early_len(bytes), malloc(size), size);
	if (nm_unlikely(nm_heap_is_worth(size))) {
		void *to = nm_heap_alloc(size, 1, false);

		if (to)
			return move(bytes, malloc_usable_size(bytes), to, size);
	}
	return is_known() ? next.realloc(bytes, size) : NULL;
}

EXPORTED void *reallocarray(void *bytes, size_t nr, size_t size)
{
	size_t total;

	if (__builtin_mul_overflow(nr, size, &total)) {
		errno = ENOMEM;
		return NULL;
	}
	return realloc(bytes, total);
}

/* In the heap, or NULL. Wrong arguments are left to the next allocator. */
static void *take_aligned(size_t align, size_t size)
{
	return nm_heap_is_worth(size) && nm_is_power_of_two(align) ?
		       nm_heap_alloc(size, align, false) :
		       NULL;
}

EXPORTED int posix_memalign(void **ret_bytes, size_t align, size_t size)
{
	void *bytes = align % sizeof(void *) ? NULL : take_aligned(align, size);

	if (!bytes)
		return is_known() ? next.posix_memalign(ret_bytes, align, size) : ENOMEM;
	*ret_bytes = bytes;
	return 0;
}

EXPORTED void *aligned_alloc(size_t align, size_t size)
{
	void *bytes = take_aligned(align, size);

	return bytes || !is_known() ? bytes : next.aligned_alloc(align, size);
}

EXPORTED void *memalign(size_t align, size_t size)
{
	void *bytes = take_aligned(align, size);

	return bytes || !is_known() ? bytes : next.memalign(align, size);
}

EXPORTED void *valloc(size_t size)
{
	void *bytes = take_aligned((size_t)sysconf(_SC_PAGESIZE), size);

	return bytes || !is_known() ? bytes : next.valloc(size);
}

/* Whole pages, as all blocks of the heap are. */
EXPORTED void *pvalloc(size_t size)
{
	void *bytes = take_aligned((size_t)sysconf(_SC_PAGESIZE), size);

	return bytes || !is_known() ? bytes : next.pvalloc(size);
}

EXPORTED int nearmetal_heap_1(struct nm_heap_face *ret_face);
EXPORTED int nearmetal_heap_1(struct nm_heap_face *ret_face)
{
	return nm_heap_show(ret_face);
}
