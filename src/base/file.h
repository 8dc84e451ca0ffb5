/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of settings, with a size limit; and the limit of the process for files. */
#ifndef NM_BASE_FILE_H
#define NM_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * All that FD holds from where it stands: how many bytes, less than ROOM; -EFBIG when there are
 * ROOM or more, else -errno. BYTES past the answer, or all of them after a failure, are undefined.
 */
ssize_t nm_file_read(int fd, char *bytes, size_t room);

/*
 * True if this process may write files of SIZE bytes (ulimit -f). The kernel ends a process that
 * tries to write more, by SIGXFSZ, so ask first.
 */
bool nm_file_fits(uint64_t size);

#endif
