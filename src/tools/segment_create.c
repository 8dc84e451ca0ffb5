/* SPDX-License-Identifier: Apache-2.0 */
/* Making a segment: complete under its name, or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/arith.h"
#include "tools/segment_tool.h"
#include "vmseg/check.h"

static int take_token(const char *text, uint8_t ret_token[NM_VMSEG_TOKEN_LEN])
{
	static const char hint[] = "give 32 hexadecimal digits, not all of them 0, or leave it out";
	char line[128];

	if (!text) {
		if (getrandom(ret_token, NM_VMSEG_TOKEN_LEN, 0) != NM_VMSEG_TOKEN_LEN)
			return segment_failed(NULL, "no random numbers: %s", strerror(errno));
		return 0;
	}
	if (!strcmp(text, "-")) {
		if (!fgets(line, sizeof(line), stdin))
			return segment_failed(hint, "standard input holds no token");
		line[strcspn(line, "\r\n")] = '\0';
		text = line;
	}
	if (!nm_vmseg_token_parse(text, strlen(text), ret_token))
		return segment_failed(hint, "the token is not valid");
	return 0;
}

static uint64_t next_power_of_two(uint64_t n)
{
	uint64_t power = 1;

	while (power < n)
		power <<= 1;
	return power;
}

static int write_host_page(int fd, uint64_t lead, const struct nm_vmseg_host *host)
{
	/* Mapped: files on huge pages cannot be written in another way. */
	void *page =
		mmap(NULL, NM_VMSEG_ALIGN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)lead);

	if (page == MAP_FAILED)
		return -errno;
	memcpy(page, host, sizeof(*host));
	munmap(page, NM_VMSEG_ALIGN);
	return fsync(fd) < 0 ? -errno : 0;
}

static int fill(int fd, const struct segment_order *order, const struct nm_vmseg_host *host)
{
	/* The size of a BAR is a power of two; what lies behind the parts takes no memory. */
	uint64_t used = order->lead + host->size;
	int err;

	if (ftruncate(fd, (off_t)next_power_of_two(used)) < 0)
		return -errno;
	/* A machine that touches memory the host has not got would be killed. */
	do {
		err = posix_fallocate(fd, 0, (off_t)used);
	} while (err == EINTR);
	return err ? -err : write_host_page(fd, order->lead, host);
}

/* A file without a name, next to its future place: a process that dies leaves nothing. */
static int open_nameless(const char *path)
{
	char *copy = strdup(path);
	int fd, err;

	if (!copy)
		return -ENOMEM;
	fd = open(dirname(copy), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	err = -errno;
	free(copy);
	return fd < 0 ? err : fd;
}

/* Never over an existing file: a process may have mapped it. */
static int make(const struct segment_order *order, const struct nm_vmseg_host *host)
{
	char self[32];
	int fd, err;

	/* Only to say so before the memory is taken; linkat() is what counts. */
	if (access(order->path, F_OK) == 0)
		return -EEXIST;
	fd = open_nameless(order->path);
	if (fd < 0)
		return fd;
	err = fill(fd, order, host);
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (!err && linkat(AT_FDCWD, self, AT_FDCWD, order->path, AT_SYMLINK_FOLLOW) < 0)
		err = -errno;
	close(fd);
	return err;
}

int segment_create(const struct segment_order *order)
{
	uint8_t token[NM_VMSEG_TOKEN_LEN];
	char text[2 * NM_VMSEG_TOKEN_LEN + 1];
	struct nm_vmseg_host host;
	struct nm_reason why;
	int err;

	if (take_token(order->token_text, token))
		return 1;
	if (nm_vmseg_host_init((uint32_t)nm_min_u64(order->nr_parts, UINT32_MAX), order->part_size,
			       token, &host, &why))
		return segment_failed(NULL, "%s", why.text);
	err = make(order, &host);
	if (err)
		return segment_failed(
			err == -EEXIST ? "machines may use it: end them and remove it, or give "
					 "another name" :
			err == -ENOSPC ? "free some, or give --part-size a smaller size" :
			err == -ENOENT ? "create its directory first, mode 0700" :
			err == -EOPNOTSUPP ?
					 "give a place on tmpfs, hugetlbfs, ext4, xfs or btrfs" :
					 NULL,
			"cannot create %s: %s", order->path, strerror(-err));
	segment_format_token(token, text);
	printf("%s: %u parts of %llu bytes, token %s\n", order->path, host.nr_parts,
	       (unsigned long long)host.part_size, text);
	return fflush(stdout) ? 1 : 0;
}
