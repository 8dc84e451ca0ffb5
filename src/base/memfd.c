/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SEALS (F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int nm_memfd_create(const char *name)
{
	/* Kernels before 6.3 do not know MFD_NOEXEC_SEAL; some later ones require it. */
	int fd = memfd_create(name, MFD_ALLOW_SEALING | MFD_CLOEXEC | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_ALLOW_SEALING | MFD_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int nm_memfd_seal(int fd)
{
	return fcntl(fd, F_ADD_SEALS, SEALS) < 0 ? -errno : 0;
}

int nm_memfd_check(int fd, const char *what, struct stat *ret_stat, struct nm_reason *ret_reason)
{
	/* First, and only a memfd has seals: a file system that a hostile process serves answers
	 * questions about its files when it likes. */
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs fs;
	struct stat st;

	if (seals < 0 && errno == EINVAL) {
		nm_reason_set(ret_reason, "its %s is not a memfd", what);
		return -EPERM;
	}
	if (seals < 0 || fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0) {
		nm_reason_set(ret_reason, "cannot examine its %s: %s", what, strerror(errno));
		return -errno;
	}
	/* Reading a huge page may fail; only memfds of tmpfs are safe. */
	if (fs.f_type != TMPFS_MAGIC || !S_ISREG(st.st_mode)) {
		nm_reason_set(ret_reason, "its %s is not a memfd", what);
		return -EPERM;
	}
	if ((seals & SEALS) != SEALS) {
		nm_reason_set(
			ret_reason,
			"its %s is not sealed (seals 0x%x): others could truncate or write it",
			what, (unsigned int)seals);
		return -EPERM;
	}
	/* The kernel shows the pages of a file only to its user (mincore()). */
	if (st.st_uid != geteuid()) {
		nm_reason_set(ret_reason, "its %s belongs to user %u, this process to user %u",
			      what, st.st_uid, geteuid());
		return -EPERM;
	}
	*ret_stat = st;
	return 0;
}
