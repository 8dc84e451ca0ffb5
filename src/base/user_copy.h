/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every copy from or to a user's buffer goes through here, so that memory of devices (device.h) can
 * be plugged in without a protocol or a channel knowing of it. Between our own buffers memcpy() is
 * right, and a user's buffer is never handed to it.
 *
 * One way around it: a message of a few bytes in one buffer (nm_ring_write_slot(), nm_recv_eager())
 * is copied without asking. So memory of a device is always given in a list of at least two pieces,
 * of which one may be empty.
 */
#ifndef NM_BASE_USER_COPY_H
#define NM_BASE_USER_COPY_H

#include <string.h>
#include <sys/uio.h>

#include "base/copy.h"
#include "base/device.h"

typedef void (*nm_copy_fn)(void *to, const void *from, size_t len);

/* Like memcpy(TO, USER, LEN). */
static inline void nm_user_get(void *to, const void *user, size_t len)
{
	if (nm_unlikely(nm_is_device(user)))
		nm_device_get(to, user, len);
	else
		memcpy(to, user, len);
}

/* The same with COPY of base/copy.h, when it is the host's. */
static inline void nm_user_get_by(nm_copy_fn copy, void *to, const void *user, size_t len)
{
	if (nm_unlikely(nm_is_device(user)))
		nm_device_get(to, user, len);
	else
		copy(to, user, len);
}

/* Like nm_copy(USER, FROM, LEN). */
static inline void nm_user_put(void *user, const void *from, size_t len)
{
	if (nm_unlikely(nm_is_device(user)))
		nm_device_put(user, from, len);
	else
		nm_copy(user, from, len);
}

/* May the kernel, or we ourselves, use these buffers in place? */
static inline bool nm_user_is_host(const struct iovec *iov, size_t nr_iov)
{
	for (size_t i = 0; i < nr_iov; i++)
		if (nm_is_device(iov[i].iov_base))
			return false;
	return true;
}

#endif
