/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that one process writes and others may only read: a memfd that its owner maps read-write
 * and then seals. From then on the kernel refuses every process, the owner included, a new writable
 * mapping, a write, a truncation and a hole.
 */
#ifndef NM_BASE_MEMFD_H
#define NM_BASE_MEMFD_H

#include <stdint.h>
#include <sys/stat.h>

#include "base/reason.h"

/* A memfd that can be sealed. The descriptor, or -errno. */
int nm_memfd_create(const char *name);
/* 0 or -errno. The owner's mapping stays writable. */
int nm_memfd_seal(int fd);
/*
 * Check that FD, which came from another process, is such a memfd of this user, before anything
 * else is read of it. WHAT names it in the reason: "window". 0, or -errno with a reason: -EPERM: it
 * is not.
 */
int nm_memfd_check(int fd, const char *what, struct stat *ret_stat, struct nm_reason *ret_reason);

#endif
