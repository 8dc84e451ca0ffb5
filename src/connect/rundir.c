/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/log.h"

#define LISTEN_BACKLOG 1024
#define MAX_REAPED_ENTRIES 8192
/* Together a second. */
#define LOCK_TRIES 200
#define LOCK_PAUSE_NS 5000000

/* The default rundir is here; any user may take its name first. */
#define DEFAULT_PLACE "/dev/shm"
/* A spare one has a name that no other user can guess: random digits. */
#define SALT_DIGITS 8
#define SETTLE_NS 20000000

static int dir_failed(struct nm_reason *ret_reason, const char *path, const char *what, int err)
{
	const char *remedy = err == -EMFILE || err == -ENFILE ?
				     "raise the limit of descriptors (ulimit -n)" :
				     "set NEARMETAL_RUNDIR to a directory of your own";

	nm_reason_set(ret_reason, "rundir %.80s: %s: %s; %s", path, what, strerror(-err), remedy);
	return err;
}

static int check_owner(const struct nm_rundir *dir, struct nm_reason *ret_reason)
{
	struct stat st;

	if (fstat(dir->fd, &st) < 0)
		return dir_failed(ret_reason, dir->path, "cannot examine it", -errno);
	if (st.st_uid != geteuid()) {
		nm_reason_set(ret_reason,
			      "rundir %.80s belongs to user %u, not %u: set NEARMETAL_RUNDIR to "
			      "a directory of your own",
			      dir->path, st.st_uid, geteuid());
		return -EPERM;
	}
	if (st.st_mode & (S_IWGRP | S_IWOTH)) {
		nm_reason_set(ret_reason,
			      "rundir %.80s may be written by others (mode %04o): chmod 700 it",
			      dir->path, st.st_mode & 07777);
		return -EPERM;
	}
	return 0;
}

static int open_at(struct nm_rundir *dir, struct nm_reason *ret_reason)
{
	int err;

	if (mkdir(dir->path, 0700) < 0 && errno != EEXIST && errno != EROFS)
		return dir_failed(ret_reason, dir->path, "cannot create it", -errno);
	dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir->fd < 0)
		return dir_failed(ret_reason, dir->path, "cannot open it", -errno);
	err = check_owner(dir, ret_reason);
	if (err)
		nm_rundir_close(dir);
	return err;
}

/* True if NAME in the directory PLACE is a directory that only this user can have made. */
static bool is_spare(const char *place, const char *name)
{
	char prefix[32], path[NM_RUNDIR_PATH_MAX];
	size_t len = (size_t)snprintf(prefix, sizeof(prefix), "nearmetal-%u.", geteuid());
	struct stat st;

	if (strncmp(name, prefix, len) || strspn(name + len, "0123456789abcdef") != SALT_DIGITS ||
	    name[len + SALT_DIGITS] ||
	    snprintf(path, sizeof(path), "%s/%s", place, name) >= (int)sizeof(path))
		return false;
	return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & (S_IWGRP | S_IWOTH));
}

/* The first spare rundir of this user, in the order of names. False: there is none. */
static bool find_spare(const char *place, struct nm_rundir *dir)
{
	char first[NAME_MAX + 1] = "";
	DIR *stream = opendir(place);
	struct dirent *entry;

	while (stream && (entry = readdir(stream)))
		if ((!*first || strcmp(entry->d_name, first) < 0) && is_spare(place, entry->d_name))
			snprintf(first, sizeof(first), "%s", entry->d_name);
	if (stream)
		closedir(stream);
	return *first && snprintf(dir->path, sizeof(dir->path), "%s/%s", place, first) <
				 (int)sizeof(dir->path);
}

/* Find the user whose file has the name of the default rundir. False: there is no such file. */
static bool find_user(const char *path, uid_t *ret_uid)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return false;
	*ret_uid = st.st_uid;
	return true;
}

/*
 * Choose between the default rundir and a spare one. All processes of the user make the same
 * choice, as no other user can remove or rename a directory of this user there. Returns true if
 * there is no choice: another user has the name, and no spare one exists.
 */
static bool choose(const char *place, struct nm_rundir *dir, uid_t *ret_owner)
{
	char path[sizeof(dir->path)];
	bool is_there;

	*ret_owner = geteuid();
	snprintf(path, sizeof(path), "%.200s/nearmetal-%u", place, geteuid());
	is_there = find_user(path, ret_owner);
	if ((!is_there || *ret_owner != geteuid()) && find_spare(place, dir))
		return false;
	memcpy(dir->path, path, sizeof(path));
	return is_there && *ret_owner != geteuid();
}

/*
 * Let one process after the other make a spare rundir. Another user may hold this lock for long, so
 * it is only awaited for a while. Returns a descriptor whose close releases it, or -1.
 */
static int lock_place(const char *place)
{
	const struct timespec pause = {0, LOCK_PAUSE_NS};
	int fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (int i = 0; fd >= 0 && i < LOCK_TRIES && flock(fd, LOCK_EX | LOCK_NB) < 0; i++)
		nanosleep(&pause, NULL);
	return fd;
}

static int make_spare(const char *place, struct nm_reason *ret_reason)
{
	const struct timespec settle = {0, SETTLE_NS};
	char path[NM_RUNDIR_PATH_MAX];
	uint32_t salt = 0;

	if (getrandom(&salt, sizeof(salt), 0) < 0)
		return -errno;
	snprintf(path, sizeof(path), "%.200s/nearmetal-%u.%08x", place, geteuid(), salt);
	if (mkdir(path, 0700) < 0)
		return dir_failed(ret_reason, path, "cannot create it", -errno);
	/* Without the lock others may make one too; each then takes the first of all. */
	nanosleep(&settle, NULL);
	return 0;
}

int nm_rundir_open_default(const char *place, struct nm_rundir *ret_dir,
			   struct nm_reason *ret_reason)
{
	struct nm_rundir dir = {.fd = -1};
	int err, tries = 0, lock;
	uid_t owner;

	/* Twice, because another user may take the name in between. */
	do {
		err = 0;
		if (choose(place, &dir, &owner)) {
			lock = lock_place(place);
			if (choose(place, &dir, &owner))
				err = make_spare(place, ret_reason);
			choose(place, &dir, &owner);
			if (lock >= 0)
				close(lock);
		}
		if (!err)
			err = open_at(&dir, ret_reason);
	} while (err && !tries++);
	if (err)
		return err;
	if (owner != geteuid())
		nm_log_once(NM_LOG_WARN,
			    "user %u has taken the name %.80s/nearmetal-%u: the rundir is %.80s",
			    owner, place, geteuid(), dir.path);
	*ret_dir = dir;
	return 0;
}

int nm_rundir_open(const char *path, struct nm_rundir *ret_dir, struct nm_reason *ret_reason)
{
	struct nm_rundir dir = {.fd = -1};
	int err;

	if (!*path)
		return nm_rundir_open_default(DEFAULT_PLACE, ret_dir, ret_reason);
	snprintf(dir.path, sizeof(dir.path), "%s", path);
	err = open_at(&dir, ret_reason);
	if (!err)
		*ret_dir = dir;
	return err;
}

void nm_rundir_find(const char *path, char ret_path[NM_RUNDIR_PATH_MAX])
{
	struct nm_rundir dir = {.fd = -1};
	uid_t owner;

	if (*path)
		snprintf(dir.path, sizeof(dir.path), "%s", path);
	else
		choose(DEFAULT_PLACE, &dir, &owner);
	memcpy(ret_path, dir.path, sizeof(dir.path));
}

void nm_rundir_close(struct nm_rundir *dir)
{
	if (dir->fd >= 0)
		close(dir->fd);
	dir->fd = -1;
}

uint64_t nm_rundir_number(const struct nm_rundir *dir)
{
	static const uint8_t key[NM_SIPHASH_KEY_LEN] = "nearmetal rundi";
	uint64_t words[4] = {0};
	struct statx st;

	/* File systems without a time of creation leave it 0. */
	if (statx(dir->fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &st) == 0) {
		words[0] = (uint64_t)st.stx_dev_major << 32 | st.stx_dev_minor;
		words[1] = st.stx_ino;
		if (st.stx_mask & STATX_BTIME) {
			words[2] = (uint64_t)st.stx_btime.tv_sec;
			words[3] = st.stx_btime.tv_nsec;
		}
	}
	return nm_siphash(key, words, sizeof(words));
}

void nm_socket_name(const uint8_t id[6], char ret_name[NM_SOCKET_NAME_LEN])
{
	snprintf(ret_name, NM_SOCKET_NAME_LEN, "%02x%02x%02x%02x%02x%02x", id[0], id[1], id[2],
		 id[3], id[4], id[5]);
}

socklen_t nm_rundir_address(const struct nm_rundir *dir, const char *name,
			    struct sockaddr_un *ret_address)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char path[sizeof(dir->path) + NM_SOCKET_NAME_LEN + 2];
	int len = snprintf(path, sizeof(path), "%s/%s", dir->path, name);

	/* Socket addresses are limited to 107 bytes; the directory's descriptor makes one short. */
	if ((size_t)len >= sizeof(address.sun_path))
		len = snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dir->fd, name);
	memcpy(address.sun_path, path, (size_t)len + 1);
	*ret_address = address;
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)len + 1);
}

/* Bind under a name that no endpoint looks for. */
static int bind_hidden(const struct nm_rundir *dir, int fd, const char *name,
		       char ret_hidden[NM_SOCKET_NAME_LEN])
{
	struct sockaddr_un address;
	socklen_t len;
	uint32_t salt = 0;

	if (getrandom(&salt, sizeof(salt), 0) < 0)
		return -errno;
	snprintf(ret_hidden, NM_SOCKET_NAME_LEN, ".%.12s.%08x", name, salt);
	len = nm_rundir_address(dir, ret_hidden, &address);
	return bind(fd, (struct sockaddr *)&address, len) < 0 ? -errno : 0;
}

/* A directory is not replaced by a socket, so it changes places with it. */
static int replace(const struct nm_rundir *dir, const char *hidden, const char *name)
{
	if (renameat(dir->fd, hidden, dir->fd, name) == 0 ||
	    (errno == EISDIR && renameat2(dir->fd, hidden, dir->fd, name, RENAME_EXCHANGE) == 0))
		return 0;
	return -errno;
}

/* rename() replaces; link() does not: a socket that is there already stays. */
static int show(const struct nm_rundir *dir, const char *hidden, const char *name, bool by_force)
{
	int err = 0;

	NM_FAULT("name-hidden");
	if (by_force)
		err = replace(dir, hidden, name);
	else if (linkat(dir->fd, hidden, dir->fd, name, 0) < 0)
		err = errno == EEXIST ? -EADDRINUSE : -errno;
	NM_FAULT("name-shown");
	if (unlinkat(dir->fd, hidden, 0) < 0 && errno == EISDIR)
		unlinkat(dir->fd, hidden, AT_REMOVEDIR);
	return err;
}

int nm_rundir_listen(const struct nm_rundir *dir, const char *name, bool by_force,
		     struct nm_reason *ret_reason)
{
	char hidden[NM_SOCKET_NAME_LEN];
	int fd, err;

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return dir_failed(ret_reason, dir->path, "cannot create a socket", -errno);
	err = bind_hidden(dir, fd, name, hidden);
	if (err) {
		dir_failed(ret_reason, dir->path, "cannot bind a socket in it", err);
		goto err_close;
	}
	if (fchmodat(dir->fd, hidden, 0600, 0) < 0 || listen(fd, LISTEN_BACKLOG) < 0) {
		err = dir_failed(ret_reason, dir->path, "cannot listen in it", -errno);
		unlinkat(dir->fd, hidden, 0);
		goto err_close;
	}
	err = show(dir, hidden, name, by_force);
	if (err) {
		dir_failed(ret_reason, dir->path, "cannot listen under the endpoint's name", err);
		goto err_close;
	}
	return fd;

err_close:
	close(fd);
	return err;
}

static bool old_socket(const struct nm_rundir *dir, const char *name, unsigned int min_age_s)
{
	struct stat st;

	return fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode) &&
	       st.st_mtime + (time_t)min_age_s <= time(NULL);
}

/* A refused connection is proof: the kernel has no socket behind the name. */
static bool is_abandoned(const struct nm_rundir *dir, const char *name)
{
	struct sockaddr_un address;
	socklen_t len = nm_rundir_address(dir, name, &address);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool refused;

	if (fd < 0)
		return false;
	refused = connect(fd, (struct sockaddr *)&address, len) < 0 && errno == ECONNREFUSED;
	close(fd);
	return refused;
}

bool nm_rundir_bury(const struct nm_rundir *dir, const char *name)
{
	/* Any age is old enough: the caller knows that the process has died. */
	if (!old_socket(dir, name, 0))
		return true;
	if (!is_abandoned(dir, name))
		return false;
	unlinkat(dir->fd, name, 0);
	return true;
}

/* True for twelve hexadecimal digits, alone or hidden by bind_hidden(): a socket of nearmetal. */
static bool is_ours(const char *name)
{
	static const char digits[] = "0123456789abcdef";
	bool hidden = name[0] == '.';

	name += hidden;
	if (strspn(name, digits) != 12)
		return false;
	name += 12;
	if (!hidden)
		return *name == '\0';
	return *name == '.' && strspn(name + 1, digits) == 8 && name[9] == '\0';
}

unsigned int nm_rundir_reap(const struct nm_rundir *dir, unsigned int min_age_s)
{
	unsigned int nr_seen = 0, nr_reaped = 0;
	struct dirent *entry;
	int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);

	if (!stream) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	while ((entry = readdir(stream)) && nr_seen++ < MAX_REAPED_ENTRIES) {
		if (!is_ours(entry->d_name) || !old_socket(dir, entry->d_name, min_age_s) ||
		    !is_abandoned(dir, entry->d_name))
			continue;
		if (unlinkat(dir->fd, entry->d_name, 0) == 0)
			nr_reaped++;
	}
	closedir(stream);
	if (nr_reaped)
		nm_info("removed %u sockets of processes that have died from %s", nr_reaped,
			dir->path);
	return nr_reaped;
}
