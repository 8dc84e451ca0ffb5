/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of settings, with a size limit. */
#ifndef NM_BASE_FILE_H
#define NM_BASE_FILE_H

#include <stddef.h>
#include <sys/types.h>

/*
 * All that FD holds from where it stands: how many bytes, less than ROOM; -EFBIG when there are
 * ROOM or more, else -errno. BYTES past the answer, or all of them after a failure, are undefined.
 */
ssize_t nm_file_read(int fd, char *bytes, size_t room);

#endif
