/* SPDX-License-Identifier: Apache-2.0 */
/* Small compiler conveniences. libc only. */
#ifndef NM_BASE_COMPILER_H
#define NM_BASE_COMPILER_H

#include <stddef.h>
#include <stdint.h>

#define NM_CACHE_LINE 64

#define nm_likely(x) __builtin_expect(!!(x), 1)
#define nm_unlikely(x) __builtin_expect(!!(x), 0)

#define NM_COLD __attribute__((cold, noinline))
/*
 * The other half of a short function, which ends in a call of it. With the same arguments in the
 * same places that is a jump, and the short function has nothing to save; so the compiler must not
 * make a variant with arguments of its own.
 */
#if __has_attribute(noclone)
#define NM_SLOW_HALF __attribute__((noinline, noclone))
#else
#define NM_SLOW_HALF __attribute__((noinline))
#endif
#define NM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define NM_ALIGNED(n) __attribute__((aligned(n)))

#define nm_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define NM_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/*
 * Fetch a line that will be written, without waiting. Not __builtin_prefetch(): on plain x86-64 that
 * only fetches for reading, and the write would still wait for the other core to give the line up.
 */
static inline void nm_prefetch_write(const void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
	__builtin_prefetch(line, 1);
#endif
}

#endif
