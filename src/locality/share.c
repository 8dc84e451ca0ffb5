/* SPDX-License-Identifier: Apache-2.0 */
#include "locality/share.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/params.h"
#include "locality/keeper.h"
#include "locality/message.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define BLOCK_SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)
/* What each step of a conversation may take; one that takes longer is the last. */
#define PATIENCE_MS 1000

struct nm_share {
	char path[NM_PARAM_TEXT_MAX];
	struct nm_segment_dir dir;
	bool is_open;
	bool is_alone; /* there is nobody to share with, or nobody to be trusted */
	struct nm_keeper *keeper;
};

struct nm_share *nm_share_create(const char *dir)
{
	struct nm_share *share = calloc(1, sizeof(*share));

	if (!share)
		return NULL;
	strncpy(share->path, dir, sizeof(share->path) - 1);
	share->dir.fd = -1;
	return share;
}

void nm_share_destroy(struct nm_share *share)
{
	if (!share)
		return;
	nm_keeper_stop(share->keeper);
	nm_segment_dir_close(&share->dir);
	free(share);
}

struct nm_digest nm_digest_of(const void *bytes, size_t len)
{
	const uint8_t *at = bytes;
	struct nm_digest d = {{len, ~(uint64_t)len}};
	uint64_t word;
	size_t n;

	for (; len; len -= n, at += n) {
		n = len < sizeof(word) ? len : sizeof(word);
		word = 0;
		memcpy(&word, at, n);
		d.words[0] = (d.words[0] ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		d.words[0] ^= d.words[0] >> 29;
		d.words[1] = (d.words[1] + word) * UINT64_C(0xbf58476d1ce4e5b9);
		d.words[1] ^= d.words[1] >> 32;
	}
	return d;
}

bool nm_share_is_same_user(int fd)
{
	struct ucred credentials;
	socklen_t len = sizeof(credentials);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &len) == 0 &&
	       credentials.uid == geteuid();
}

static int check_file(int fd, size_t len, struct nm_reason *ret_reason)
{
	struct statfs fs;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 || seals < 0 || fs.f_type != TMPFS_MAGIC ||
	    !S_ISREG(st.st_mode)) {
		nm_reason_set(ret_reason, "a block that is not a memfd");
		return -EPERM;
	}
	if ((seals & BLOCK_SEALS) != BLOCK_SEALS) {
		nm_reason_set(ret_reason, "a block that is not sealed (seals 0x%x)",
			      (unsigned int)seals);
		return -EPERM;
	}
	if (st.st_size != (off_t)len) {
		nm_reason_set(ret_reason, "a block of %lld bytes for one of %zu",
			      (long long)st.st_size, len);
		return -EBADMSG;
	}
	return 0;
}

int nm_block_map(int fd, size_t len, struct nm_block *ret_block, struct nm_reason *ret_reason)
{
	void *bytes;
	int err = check_file(fd, len, ret_reason);

	if (err)
		return err;
	bytes = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	if (bytes == MAP_FAILED) {
		err = -errno;
		nm_reason_set(ret_reason, "cannot map a block: %s", strerror(-err));
		return err;
	}
	*ret_block = (struct nm_block){.bytes = bytes, .len = len};
	return 0;
}

void nm_block_fini(struct nm_block *block)
{
	if (block->bytes)
		munmap((void *)(uintptr_t)block->bytes, block->len);
	*block = (struct nm_block){0};
}

static int write_all(int fd, const uint8_t *bytes, size_t len)
{
	ssize_t done;

	/* write() says when memory is out; a store into a mapping would end in SIGBUS. */
	for (; len; bytes += done, len -= (size_t)done) {
		done = write(fd, bytes, len);
		if (done < 0 && errno != EINTR)
			return -errno;
		done = done < 0 ? 0 : done;
	}
	return 0;
}

/* A memfd with BYTES that nobody can change any more. Returns it or -errno. */
static int make_file(const void *bytes, size_t len)
{
	unsigned int flags = MFD_ALLOW_SEALING | MFD_CLOEXEC;
	int fd = memfd_create("nearmetal-block", flags | MFD_NOEXEC_SEAL), err;

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("nearmetal-block", flags);
	if (fd < 0)
		return -errno;
	err = write_all(fd, bytes, len);
	if (!err && fcntl(fd, F_ADD_SEALS, BLOCK_SEALS) < 0)
		err = -errno;
	if (err) {
		close(fd);
		return err;
	}
	return fd;
}

/* Connect to the keeper. Returns the socket or -errno; -ECONNREFUSED: there is none. */
static int call_keeper(struct nm_share *share)
{
	const struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
	struct sockaddr_un address;
	socklen_t len = nm_segment_dir_address(&share->dir, NM_KEEPER_NAME, &address);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&address, len) < 0)
		err = errno == ENOENT ? -ECONNREFUSED : -errno;
	else
		err = nm_share_is_same_user(fd) ? 0 : -EPERM;
	if (err) {
		close(fd);
		return err;
	}
	return fd;
}

/* One conversation. *ret_fd: the block that the keeper has. 0; -ENOENT: it has none; -errno. */
static int ask_keeper(struct nm_share *share, enum nm_keeper_kind kind,
		      const struct nm_digest *digest, size_t len, int pass_fd, int *ret_fd)
{
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_keeper_message message;
	struct pollfd poller;
	int fd = call_keeper(share), got, err;

	*ret_fd = -1;
	if (fd < 0)
		return fd;
	nm_keeper_message_init(&message, kind, digest, len);
	err = nm_message_send(fd, &message, sizeof(message), pass_fd);
	poller = (struct pollfd){.fd = fd, .events = POLLIN};
	if (!err && poll(&poller, 1, PATIENCE_MS) <= 0)
		err = -ETIMEDOUT;
	got = err ? err : nm_message_receive(fd, bytes, ret_fd);
	close(fd);
	/* A hangup: it has just ended. */
	if (got <= 0)
		return got && got != -EPIPE ? got : -ECONNREFUSED;
	err = nm_keeper_message_parse(bytes, (size_t)got, &message);
	if (!err && message.kind == NM_KEEPER_HAVE && *ret_fd >= 0)
		return 0;
	if (*ret_fd >= 0)
		close(*ret_fd);
	*ret_fd = -1;
	return !err && message.kind == NM_KEEPER_NONE ? -ENOENT : -EBADMSG;
}

static void give_up(struct nm_share *share, const char *why)
{
	nm_info("addresses are not shared with neighbours: %s", why);
	share->is_alone = true;
}

/* Somebody has to keep. 0, or -EADDRINUSE when somebody else was faster. */
static int become_keeper(struct nm_share *share)
{
	struct nm_reason why = {""};
	int err;

	nm_segment_dir_bury(&share->dir, NM_KEEPER_NAME);
	/* An older keeper of ours that does not answer any more is no use. */
	nm_keeper_stop(share->keeper);
	share->keeper = NULL;
	err = nm_keeper_start(&share->dir, &share->keeper, &why);
	if (err && err != -EADDRINUSE)
		give_up(share, why.text);
	return err;
}

static void converse(struct nm_share *share, enum nm_keeper_kind kind,
		     const struct nm_digest *digest, size_t len, int pass_fd, int *ret_fd)
{
	int err = ask_keeper(share, kind, digest, len, pass_fd, ret_fd);

	if (err == -ECONNREFUSED) {
		err = become_keeper(share);
		if (!err || err == -EADDRINUSE)
			err = ask_keeper(share, kind, digest, len, pass_fd, ret_fd);
	}
	if (err && err != -ENOENT && !share->is_alone)
		give_up(share, strerror(-err));
}

/* The block on FD, if it is what was asked for; FD is closed. */
static bool take_found(struct nm_share *share, int fd, const void *bytes, size_t len,
		       struct nm_block *ret_block)
{
	struct nm_reason why = {"another block than its digest says"};
	struct nm_block block = {0};
	bool good = nm_block_map(fd, len, &block, &why) == 0 && block.bytes;

	close(fd);
	if (good && memcmp(block.bytes, bytes, len)) {
		nm_block_fini(&block);
		good = false;
	}
	if (!good) {
		give_up(share, why.text);
		return false;
	}
	*ret_block = block;
	ret_block->is_found = ret_block->is_kept = true;
	return true;
}

static void open_dir(struct nm_share *share)
{
	struct nm_reason why = {""};

	if (share->is_open)
		return;
	share->is_open = true;
	if (nm_segment_dir_open(share->path, &share->dir, &why))
		give_up(share, why.text);
}

static bool same_file(int a, int b)
{
	struct stat one, other;

	return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
	       one.st_ino == other.st_ino;
}

/* Make the block, and let the others have it, unless somebody was faster. */
static int make_block(struct nm_share *share, const struct nm_digest *digest, const void *bytes,
		      size_t len, struct nm_block *ret_block)
{
	int fd = make_file(bytes, len), found = -1, err;
	struct nm_block block;
	bool kept = false;

	if (fd < 0)
		return fd;
	if (!share->is_alone)
		converse(share, NM_KEEPER_GIVE, digest, len, fd, &found);
	if (found >= 0 && !same_file(fd, found)) {
		if (take_found(share, found, bytes, len, ret_block)) {
			close(fd);
			return 0;
		}
	} else if (found >= 0) {
		kept = true;
		close(found);
	}
	err = nm_block_map(fd, len, &block, NULL);
	close(fd);
	if (err)
		return err;
	block.is_kept = kept;
	*ret_block = block;
	return 0;
}

int nm_share_block(struct nm_share *share, const void *bytes, size_t len,
		   struct nm_block *ret_block)
{
	struct nm_digest digest;
	int found = -1;

	if (!len || len > NM_BLOCK_MAX)
		return -EINVAL;
	digest = nm_digest_of(bytes, len);
	open_dir(share);
	if (!share->is_alone)
		converse(share, NM_KEEPER_WANT, &digest, len, -1, &found);
	if (found >= 0 && take_found(share, found, bytes, len, ret_block))
		return 0;
	return make_block(share, &digest, bytes, len, ret_block);
}
