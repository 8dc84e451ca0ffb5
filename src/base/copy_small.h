/* SPDX-License-Identifier: Apache-2.0 */
/* Copying a few bytes without a call. */
#ifndef NM_BASE_COPY_SMALL_H
#define NM_BASE_COPY_SMALL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NM_COPY_SMALL_MAX 64

/*
 * memcpy() of at most NM_COPY_SMALL_MAX bytes that do not overlap: both ends of the range with the
 * widest word that fits; bytes between them are copied twice. Neither side is touched outside of
 * it. LEN 0 takes NULL.
 */
static inline void nm_copy_small(void *to, const void *from, size_t len)
{
	const char *f = from;
	char *t = to;

	if (len >= 16) {
		struct {
			uint64_t word[2];
		} first, last, left, right;

		/* The middle of 33 to 64 bytes; of fewer it is the two ends again. */
		size_t step = len > 32 ? 16 : 0;

		memcpy(&first, f, 16);
		memcpy(&left, f + step, 16);
		memcpy(&right, f + len - 16 - step, 16);
		memcpy(&last, f + len - 16, 16);
		memcpy(t, &first, 16);
		memcpy(t + step, &left, 16);
		memcpy(t + len - 16 - step, &right, 16);
		memcpy(t + len - 16, &last, 16);
	} else if (len >= 8) {
		uint64_t first, last;

		memcpy(&first, f, 8);
		memcpy(&last, f + len - 8, 8);
		memcpy(t, &first, 8);
		memcpy(t + len - 8, &last, 8);
	} else if (len >= 4) {
		uint32_t first, last;

		memcpy(&first, f, 4);
		memcpy(&last, f + len - 4, 4);
		memcpy(t, &first, 4);
		memcpy(t + len - 4, &last, 4);
	} else if (len) {
		t[0] = f[0];
		if (len > 1) {
			t[1] = f[1];
			t[len - 1] = f[len - 1];
		}
	}
}

#endif
