/* SPDX-License-Identifier: Apache-2.0 */
/* Reading bytes that another process may change at any time: each word exactly once. */
#ifndef NM_SHM_FOREIGN_H
#define NM_SHM_FOREIGN_H

#include <stddef.h>
#include <stdint.h>

/*
 * Copy LEN bytes (whole, aligned 8-byte words) into private memory. With memcpy(), the compiler may
 * drop the copy and read the original again later.
 */
static inline void nm_copy_words(void *to, const void *from, size_t len)
{
	typedef uint64_t __attribute__((may_alias)) word_type;
	const word_type *source = from;
	unsigned char *target = to;

	for (size_t i = 0; i < len / sizeof(*source); i++) {
		uint64_t word = __atomic_load_n(source + i, __ATOMIC_RELAXED);

		__builtin_memcpy(target + i * sizeof(word), &word, sizeof(word));
	}
}

#endif
