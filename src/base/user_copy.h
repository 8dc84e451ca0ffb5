/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies into a user's buffer, which may be memory of a device (device.h). Copies out of one are
 * plain: engine/stage.h has brought the bytes of a device to the host before.
 *
 * One way around it: a message of a few bytes into one buffer (nm_recv_eager()) is copied without
 * asking. So a receive into memory of a device is always given as a list of at least two pieces, of
 * which one may be empty.
 */
#ifndef NM_BASE_USER_COPY_H
#define NM_BASE_USER_COPY_H

#include <string.h>
#include <sys/uio.h>

#include "base/copy.h"
#include "base/device.h"

/* Like nm_copy(USER, FROM, LEN). 0, or an error of nm_device_put(). */
static inline int nm_user_put(void *user, const void *from, size_t len)
{
	if (nm_unlikely(nm_is_device(user)))
		return nm_device_put(user, from, len);
	nm_copy(user, from, len);
	return 0;
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
