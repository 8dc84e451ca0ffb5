/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on sizes that may come from a peer: overflow is a result, never an accident. */
#ifndef NM_BASE_ARITH_H
#define NM_BASE_ARITH_H

#include <stdbool.h>
#include <stdint.h>

/* True when it fits; *ret_sum is written only then. */
static inline bool nm_add_u64(uint64_t a, uint64_t b, uint64_t *ret_sum)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*ret_sum = sum;
	return true;
}

static inline bool nm_mul_u64(uint64_t a, uint64_t b, uint64_t *ret_product)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*ret_product = product;
	return true;
}

static inline bool nm_is_power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

/* Round up to a multiple of the power of two ALIGN; the caller knows that it fits. */
static inline uint64_t nm_align_up(uint64_t n, uint64_t align)
{
	return (n + align - 1) & ~(align - 1);
}

static inline uint64_t nm_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline uint64_t nm_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* The same test as in `index < count`, in a form that the processor cannot speculate past. */
static inline uint32_t nm_clamp_index(uint32_t index, uint32_t count)
{
#if defined(__x86_64__)
	uint64_t mask;

	__asm__("cmp %1, %2\n\tsbb %0, %0" : "=r"(mask) : "r"(count), "r"(index) : "cc");
	return index & (uint32_t)mask;
#else
	return index < count ? index : 0;
#endif
}

#endif
