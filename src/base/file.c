/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"

ssize_t nm_file_read(int fd, char *bytes, size_t room)
{
	size_t len = 0;
	ssize_t got;

	while (len < room) {
		got = read(fd, bytes + len, room - len);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			return (ssize_t)len;
		len += (size_t)got;
	}
	return -EFBIG;
}

bool nm_file_fits(uint64_t size)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
	       size <= limit.rlim_cur;
}
