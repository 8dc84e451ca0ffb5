/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
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
