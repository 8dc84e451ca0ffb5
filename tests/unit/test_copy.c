/* SPDX-License-Identifier: Apache-2.0 */
/* The copy kernels: every byte, no byte more, whatever the alignment and length. */
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/copy.h"
#include "harness.h"

#define GUARD 64
#define LONGEST (3 * 4096 + 77)

typedef void (*copy_fn)(void *to, const void *from, size_t len);

static void copy(void *to, const void *from, size_t len)
{
	nm_copy(to, from, len);
}

static const copy_fn kernels[] = {copy, nm_copy_bulk, nm_copy_fresh, nm_copy_past_cache};

/* Blocks of exactly the size, so that a sanitizer sees every byte touched outside. */
static void check(copy_fn kernel, size_t to_at, size_t from_at, size_t len)
{
	uint8_t *from = malloc(from_at + len), *to = malloc(GUARD + to_at + len + GUARD);
	uint64_t random = to_at * 131 + from_at * 17 + len;

	for (size_t i = 0; i < from_at + len; i++)
		from[i] = (uint8_t)nm_test_random(&random);
	memset(to, 0xa5, GUARD + to_at + len + GUARD);
	kernel(to + GUARD + to_at, from + from_at, len);
	NM_CHECK_EQ(memcmp(to + GUARD + to_at, from + from_at, len), 0);
	for (size_t i = 0; i < GUARD; i++)
		NM_CHECK(to[GUARD + to_at - 1 - i] == 0xa5 && to[GUARD + to_at + len + i] == 0xa5);
	free(from);
	free(to);
}

NM_TEST(every_short_length)
{
	for (size_t k = 0; k < NM_ARRAY_SIZE(kernels); k++)
		for (size_t len = 0; len < 300; len++)
			check(kernels[k], len % 64, (len * 7) % 64, len);
}

NM_TEST(every_alignment)
{
	static const size_t lengths[] = {NM_COPY_BULK_MIN - 1, NM_COPY_BULK_MIN, 4096, LONGEST};

	for (size_t k = 0; k < NM_ARRAY_SIZE(kernels); k++)
		for (size_t at = 0; at < 64; at++)
			for (size_t l = 0; l < NM_ARRAY_SIZE(lengths); l++) {
				check(kernels[k], at, 0, lengths[l]);
				check(kernels[k], 0, at, lengths[l]);
				check(kernels[k], at, 63 - at, lengths[l]);
			}
}
