/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock file of a VM's part. With it the VM's processes agree on slots and on room for windows.
 * It is in the memory of the VM (in /run, so it is empty after a boot), never in the segment:
 * another VM could hold or damage a lock there.
 *
 * Uses the kernel's locks on open file descriptions. Byte 0 guards the slot table. The owner of
 * slot n holds byte 1 + n for life, and any death releases it. A child of fork() closes its copies,
 * or it would keep its parent's slots in use.
 */
#ifndef NM_VMSEG_LOCK_H
#define NM_VMSEG_LOCK_H

#include <pthread.h>

#include "base/fork.h"
#include "vmseg/attach.h"

#define NM_VMSEG_RECORD_MAGIC UINT64_C(0x316b636f6c6d6d6e) /* "nmmlock1" */

/* The common record of the VM's processes. */
struct nm_vmseg_record {
	uint64_t magic;
	uint8_t token[NM_VMSEG_TOKEN_LEN]; /* of the segment */
	uint64_t part_generation;	   /* 0: the part was never prepared */
	uint32_t is_measured;		   /* 1: the mapping was measured and is good */
	uint32_t integrity;		   /* enum nm_vmseg_promise, from a test */
	struct nm_reason mapping, integrity_why;
};

struct nm_vmseg_lock {
	int fd; /* -1 in a forked child */
	pthread_mutex_t mutex;
	bool held[NM_VMSEG_MAX_SLOTS]; /* by this description, which never sees its own locks */
	struct nm_fork_watch fork_watch;
};

/* 0 or -errno with a reason. */
int nm_vmseg_lock_open(const char *path, struct nm_vmseg_lock *ret_lock,
		       struct nm_reason *ret_reason);
/* Gives up every slot. */
void nm_vmseg_lock_close(struct nm_vmseg_lock *lock);

/*
 * Take the slot table for this thread. WAIT_MS 0: do not wait. 0; -EBUSY: another thread or process
 * holds it, with a reason; -EBADF in a forked child; -errno.
 */
int nm_vmseg_lock_take(struct nm_vmseg_lock *lock, unsigned int wait_ms,
		       struct nm_reason *ret_reason);
void nm_vmseg_lock_give(struct nm_vmseg_lock *lock);

/* All functions below: only while the slot table is taken. */

/* Read the record; all zero if the file is empty. 0; -EBADMSG: another kind of file; -errno. */
int nm_vmseg_record_read(struct nm_vmseg_lock *lock, struct nm_vmseg_record *ret_record,
			 struct nm_reason *ret_reason);
int nm_vmseg_record_write(struct nm_vmseg_lock *lock, struct nm_vmseg_record *record,
			  struct nm_reason *ret_reason);
/* Own slot SLOT for life. 0; -EBUSY: it has an owner; -errno. */
int nm_vmseg_lock_hold(struct nm_vmseg_lock *lock, uint32_t slot);
void nm_vmseg_lock_drop(struct nm_vmseg_lock *lock, uint32_t slot);
/* True if any process, also this one, owns SLOT. True in doubt. */
bool nm_vmseg_lock_is_held(struct nm_vmseg_lock *lock, uint32_t slot);

#endif
