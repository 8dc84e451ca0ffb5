/* SPDX-License-Identifier: Apache-2.0 */
#include "vmseg/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/file.h"

#define TABLE_BYTE 0
#define SLOT_BYTE(slot) (1 + (off_t)(slot))
#define RETRY_NS 500000

/* The parent's description stays open, so this does not unlock anything. */
static void after_fork_child(struct nm_fork_watch *watch)
{
	struct nm_vmseg_lock *lock = nm_container_of(watch, struct nm_vmseg_lock, fork_watch);

	close(lock->fd);
	lock->fd = -1;
}

int nm_vmseg_lock_open(const char *path, struct nm_vmseg_lock *ret_lock,
		       struct nm_reason *ret_reason)
{
	/* O_NOFOLLOW, because the file is written to. */
	int fd =
		open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
	struct stat st;
	int err;

	if (fd < 0 || fstat(fd, &st) < 0) {
		err = -errno;
		nm_reason_set(ret_reason, "cannot open the lock file %s: %s", path,
			      strerror(errno));
		goto err_close;
	}
	if (!S_ISREG(st.st_mode)) {
		err = -EPERM;
		nm_reason_set(ret_reason, "the lock file %s is not a file", path);
		goto err_close;
	}
	memset(ret_lock, 0, sizeof(*ret_lock));
	ret_lock->fd = fd;
	pthread_mutex_init(&ret_lock->mutex, NULL);
	ret_lock->fork_watch = (struct nm_fork_watch){.in_child = after_fork_child};
	nm_fork_watch(&ret_lock->fork_watch);
	return 0;

err_close:
	if (fd >= 0)
		close(fd);
	return err;
}

void nm_vmseg_lock_close(struct nm_vmseg_lock *lock)
{
	nm_fork_unwatch(&lock->fork_watch);
	if (lock->fd >= 0)
		close(lock->fd);
	lock->fd = -1;
	pthread_mutex_destroy(&lock->mutex);
}

static int set_lock(int fd, off_t byte, short type)
{
	struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	while (fcntl(fd, F_OFD_SETLK, &range) < 0)
		if (errno != EINTR)
			return errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
	return 0;
}

int nm_vmseg_lock_take(struct nm_vmseg_lock *lock, unsigned int wait_ms,
		       struct nm_reason *ret_reason)
{
	uint64_t deadline = nm_clock_ns() + wait_ms * NM_NS_PER_MS;
	const struct timespec pause = {.tv_nsec = RETRY_NS};
	int err;

	if (lock->fd < 0)
		return -EBADF;
	if (wait_ms)
		pthread_mutex_lock(&lock->mutex);
	else if (pthread_mutex_trylock(&lock->mutex)) {
		nm_reason_set(ret_reason, "another thread uses the lock file of the segment");
		return -EBUSY;
	}
	while ((err = set_lock(lock->fd, TABLE_BYTE, F_WRLCK)) == -EBUSY && wait_ms &&
	       nm_clock_ns() < deadline)
		nanosleep(&pause, NULL);
	if (!err)
		return 0;
	pthread_mutex_unlock(&lock->mutex);
	nm_reason_set(ret_reason, "the lock file of the segment: %s",
		      err != -EBUSY ? strerror(-err) :
		      wait_ms	    ? "a process has held it for seconds (is one stopped?)" :
				      "a process holds it");
	return err;
}

void nm_vmseg_lock_give(struct nm_vmseg_lock *lock)
{
	/* A child that was forked meanwhile has nothing to unlock. */
	if (lock->fd >= 0)
		set_lock(lock->fd, TABLE_BYTE, F_UNLCK);
	pthread_mutex_unlock(&lock->mutex);
}

int nm_vmseg_record_read(struct nm_vmseg_lock *lock, struct nm_vmseg_record *ret_record,
			 struct nm_reason *ret_reason)
{
	struct nm_vmseg_record record = {0};
	ssize_t got = pread(lock->fd, &record, sizeof(record), 0);
	int err = got < 0 ? -errno : 0;

	if (got > 0 && (got != (ssize_t)sizeof(record) || record.magic != NM_VMSEG_RECORD_MAGIC))
		err = -EBADMSG;
	if (err) {
		nm_reason_set(ret_reason, "the lock file of the segment: %s",
			      err == -EBADMSG ? "it is another kind of file; use another path or "
						"remove it" :
						strerror(-err));
		return err;
	}
	record.mapping.text[sizeof(record.mapping.text) - 1] = '\0';
	record.integrity_why.text[sizeof(record.integrity_why.text) - 1] = '\0';
	*ret_record = record;
	return 0;
}

int nm_vmseg_record_write(struct nm_vmseg_lock *lock, struct nm_vmseg_record *record,
			  struct nm_reason *ret_reason)
{
	ssize_t put;

	record->magic = NM_VMSEG_RECORD_MAGIC;
	if (!nm_file_fits(sizeof(*record))) {
		nm_reason_set(ret_reason, "no files may be written (ulimit -f)");
		return -EFBIG;
	}
	put = pwrite(lock->fd, record, sizeof(*record), 0);
	if (put == (ssize_t)sizeof(*record))
		return 0;
	nm_reason_set(ret_reason, "cannot write the lock file of the segment: %s",
		      put < 0 ? strerror(errno) : "no space");
	return put < 0 ? -errno : -ENOSPC;
}

int nm_vmseg_lock_hold(struct nm_vmseg_lock *lock, uint32_t slot)
{
	int err = lock->held[slot] ? -EBUSY : set_lock(lock->fd, SLOT_BYTE(slot), F_WRLCK);

	if (!err)
		lock->held[slot] = true;
	return err;
}

void nm_vmseg_lock_drop(struct nm_vmseg_lock *lock, uint32_t slot)
{
	if (!lock->held[slot])
		return;
	lock->held[slot] = false;
	if (lock->fd >= 0)
		set_lock(lock->fd, SLOT_BYTE(slot), F_UNLCK);
}

bool nm_vmseg_lock_is_held(struct nm_vmseg_lock *lock, uint32_t slot)
{
	struct flock range = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SLOT_BYTE(slot), .l_len = 1};

	if (lock->held[slot])
		return true;
	return fcntl(lock->fd, F_OFD_GETLK, &range) < 0 || range.l_type != F_UNLCK;
}
