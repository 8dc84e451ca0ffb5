/* SPDX-License-Identifier: Apache-2.0 */
#include "base/copy.h"

#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>

#define VECTOR sizeof(__m256i)
#define BLOCK (4 * VECTOR) /* two lines a round keep both load ports busy */

/* The bytes before the next boundary of WIDTH, so that no store crosses a line. */
static size_t head_of(const void *to, size_t width)
{
	return -(uintptr_t)to & (width - 1);
}

static __attribute__((target("avx2"))) void copy_avx2(char *to, const char *from, size_t len)
{
	size_t head = head_of(to, VECTOR);

	memcpy(to, from, VECTOR);
	to += head;
	from += head;
	len -= head;
	for (; len >= BLOCK; to += BLOCK, from += BLOCK, len -= BLOCK) {
		const __m256i *in = (const __m256i *)from;
		__m256i *out = (__m256i *)to;
		__m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
		__m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);

		_mm256_store_si256(out, a);
		_mm256_store_si256(out + 1, b);
		_mm256_store_si256(out + 2, c);
		_mm256_store_si256(out + 3, d);
	}
	memcpy(to, from, len);
}

static void copy_past_sse2(char *to, const char *from, size_t len)
{
	const size_t line = 4 * sizeof(__m128i);
	size_t head = head_of(to, line);

	memcpy(to, from, head);
	to += head;
	from += head;
	len -= head;
	/* Whole lines in one go, or the processor sends them to memory in parts. */
	for (; len >= line; to += line, from += line, len -= line) {
		const __m128i *in = (const __m128i *)from;
		__m128i *out = (__m128i *)to;
		__m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
		__m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);

		_mm_stream_si128(out, a);
		_mm_stream_si128(out + 1, b);
		_mm_stream_si128(out + 2, c);
		_mm_stream_si128(out + 3, d);
	}
	memcpy(to, from, len);
	/* Such stores are ordered with nothing else. */
	_mm_sfence();
}

/* Does `rep movsb` work on whole lines here? Asked once; any thread gets the same answer. */
static bool has_quick_movsb(void)
{
	static _Atomic int known; /* partner: itself; 1: no, 2: yes */
	unsigned int a, b = 0, c, d;

	if (!known)
		known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 9 ? 2 : 1;
	return known == 2;
}

void nm_copy_fresh(void *to, const void *from, size_t len)
{
	uintptr_t above = ((uintptr_t)to - (uintptr_t)from) % 4096;

	if (len >= NM_COPY_BULK_MIN && (above == 0 || above >= 64) && has_quick_movsb())
		__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len) : : "memory");
	else
		nm_copy_bulk(to, from, len);
}

void nm_copy_bulk(void *to, const void *from, size_t len)
{
	if (len >= BLOCK && __builtin_cpu_supports("avx2"))
		copy_avx2(to, from, len);
	else
		memcpy(to, from, len);
}

void nm_copy_past_cache(void *to, const void *from, size_t len)
{
	if (len >= BLOCK)
		copy_past_sse2(to, from, len);
	else
		memcpy(to, from, len);
}

#else

void nm_copy_fresh(void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
}

void nm_copy_bulk(void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
}

void nm_copy_past_cache(void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
}

#endif
