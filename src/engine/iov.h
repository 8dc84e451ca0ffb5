/* SPDX-License-Identifier: Apache-2.0 */
/* Walking over scattered buffers piece by piece; 64-bit everywhere. */
#ifndef NM_ENGINE_IOV_H
#define NM_ENGINE_IOV_H

#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "base/compiler.h"
#include "base/user_copy.h"

static inline uint64_t nm_iov_total(const struct iovec *iov, size_t nr_iov)
{
	uint64_t total = 0;

	for (size_t i = 0; i < nr_iov; i++)
		total += iov[i].iov_len;
	return total;
}

/* A position in a list of buffers. */
struct nm_cursor {
	size_t index;
	size_t offset; /* in iov[index] */
};

/*
 * The next LEN bytes at the cursor as at most NR_IOV pieces, and step over them. The list must hold
 * LEN bytes from the cursor on. Returns the number of pieces written.
 */
static inline unsigned int nm_cursor_take(struct nm_cursor *cursor, const struct iovec *iov,
					  size_t nr_iov, uint64_t len, struct iovec *ret_pieces)
{
	unsigned int nr = 0;

	while (len > 0 && cursor->index < nr_iov) {
		const struct iovec *v = &iov[cursor->index];
		size_t n = v->iov_len - cursor->offset;

		if (n > len)
			n = len;
		if (n > 0) {
			ret_pieces[nr].iov_base = (char *)v->iov_base + cursor->offset;
			ret_pieces[nr++].iov_len = n;
		}
		cursor->offset += n;
		len -= n;
		if (cursor->offset == v->iov_len) {
			cursor->index++;
			cursor->offset = 0;
		}
	}
	return nr;
}

/* Where byte OFFSET of the buffers is. */
static inline struct nm_cursor nm_cursor_at(const struct iovec *iov, size_t nr_iov, uint64_t offset)
{
	struct nm_cursor cursor = {0, 0};

	while (cursor.index < nr_iov && offset >= iov[cursor.index].iov_len)
		offset -= iov[cursor.index++].iov_len;
	cursor.offset = (size_t)offset;
	return cursor;
}

/*
 * Copy LEN bytes into the buffers at the cursor and step over them. There must be room. 0, or the
 * first error of a device, with the rest copied all the same.
 */
static inline int nm_cursor_fill(struct nm_cursor *cursor, const struct iovec *iov, size_t nr_iov,
				 const void *bytes, uint64_t len)
{
	const char *from = bytes;
	int err = 0;

	while (len > 0 && cursor->index < nr_iov) {
		const struct iovec *v = &iov[cursor->index];
		size_t n = v->iov_len - cursor->offset;

		if (n > len)
			n = len;
		if (n > 0) {
			int ret = nm_user_put((char *)v->iov_base + cursor->offset, from, n);

			if (nm_unlikely(ret < 0) && !err)
				err = ret;
		}
		from += n;
		cursor->offset += n;
		len -= n;
		if (cursor->offset == v->iov_len) {
			cursor->index++;
			cursor->offset = 0;
		}
	}
	return err;
}

/* Copy the first LEN bytes of the buffers to BYTES, or from it. There must be as many. As above. */
static inline int nm_iov_gather(void *bytes, const struct iovec *iov, size_t nr_iov, uint64_t len)
{
	char *to = bytes;
	int err = 0;

	for (size_t i = 0; i < nr_iov && len > 0; i++) {
		size_t n = iov[i].iov_len < len ? iov[i].iov_len : len;

		if (n > 0 && nm_unlikely(nm_is_device(iov[i].iov_base))) {
			int ret = nm_device_get(to, iov[i].iov_base, n);

			if (ret < 0 && !err)
				err = ret;
		} else if (n > 0) {
			memcpy(to, iov[i].iov_base, n);
		}
		to += n;
		len -= n;
	}
	return err;
}

static inline int nm_iov_scatter(const struct iovec *iov, size_t nr_iov, const void *bytes,
				 uint64_t len)
{
	struct nm_cursor cursor = {0, 0};

	if (nm_likely(nr_iov == 1))
		return len > 0 ? nm_user_put(iov[0].iov_base, bytes, len) : 0;
	return nm_cursor_fill(&cursor, iov, nr_iov, bytes, len);
}

#endif
