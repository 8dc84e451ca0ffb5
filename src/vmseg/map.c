/* SPDX-License-Identifier: Apache-2.0 */
#include "vmseg/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/arith.h"
#include "shm/foreign.h"
#include "vmseg/check.h"

#define WRITE_COMBINED_SUFFIX "_wc"

static int fail(struct nm_reason *ret_reason, const char *path, const char *what, int err)
{
	nm_reason_set(ret_reason, "cannot %s %s: %s", what, path, strerror(-err));
	return err;
}

/* A device has no length of its own; the DAX driver reports it in sysfs. */
static int dax_length(dev_t device, uint64_t *ret_len)
{
	unsigned long long len = 0;
	char path[96];
	FILE *file;
	int nr;

	snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/size", major(device), minor(device));
	file = fopen(path, "re");
	if (!file)
		return -errno;
	nr = fscanf(file, "%llu", &len);
	fclose(file);
	*ret_len = len;
	return nr == 1 ? 0 : -EINVAL;
}

static int check_name(const char *path, struct nm_reason *ret_reason)
{
	char *real = realpath(path, NULL);
	size_t len;
	int err = 0;

	if (!real)
		return fail(ret_reason, path, "find", -errno);
	len = strlen(real);
	if (len > strlen(WRITE_COMBINED_SUFFIX) &&
	    !strcmp(real + len - strlen(WRITE_COMBINED_SUFFIX), WRITE_COMBINED_SUFFIX)) {
		nm_reason_set(ret_reason,
			      "%s is write-combined memory, where neighbours see stores in any "
			      "order: use resource2, or virtio-pmem or nvdimm (DAX)",
			      path);
		err = -ENOTSUP;
	}
	free(real);
	return err;
}

static int find_length(int fd, const char *path, uint64_t *ret_len, struct nm_reason *ret_reason)
{
	struct stat st;
	int err = 0;

	if (fstat(fd, &st) < 0)
		return fail(ret_reason, path, "look at", -errno);
	if (S_ISREG(st.st_mode))
		*ret_len = (uint64_t)st.st_size;
	else if (S_ISCHR(st.st_mode))
		err = dax_length(st.st_rdev, ret_len);
	else
		err = -EINVAL;
	if (err)
		nm_reason_set(ret_reason, "%s is neither a file nor a DAX device", path);
	return err;
}

int nm_vmseg_map(const char *path, bool writable, uint64_t offset, uint64_t len,
		 struct nm_vmseg_map *ret_map, struct nm_reason *ret_reason)
{
	struct nm_vmseg_map map = {0};
	uint64_t end;
	int fd, err;

	err = check_name(path, ret_reason);
	if (err)
		return err;
	fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return fail(ret_reason, path, "open", -errno);
	err = find_length(fd, path, &map.file_len, ret_reason);
	if (err)
		goto out;
	map.len = len ? len : nm_min_u64(map.file_len, 2 * NM_VMSEG_MAX_SIZE);
	if (!map.len || !nm_add_u64(offset, map.len, &end) || end > map.file_len) {
		err = -EBADMSG;
		nm_reason_set(ret_reason, "%s has only %llu bytes", path,
			      (unsigned long long)map.file_len);
		goto out;
	}
	map.base = mmap(NULL, map.len, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
			fd, (off_t)offset);
	if (map.base == MAP_FAILED)
		err = fail(ret_reason, path, "map", -errno);
	else
		*ret_map = map;
out:
	close(fd);
	return err;
}

void nm_vmseg_unmap(struct nm_vmseg_map *map)
{
	if (map->base)
		munmap(map->base, map->len);
	map->base = NULL;
}

int nm_vmseg_find_host(const struct nm_vmseg_map *map, bool leads, struct nm_vmseg_host *ret_host,
		       uint64_t *ret_offset, struct nm_reason *ret_reason)
{
	const uint64_t places[] = {0, NM_VMSEG_ALIGN};
	struct nm_vmseg_host host;
	int err = -EBADMSG;

	if (map->len < NM_VMSEG_HOST_SIZE) {
		nm_reason_set(ret_reason, "%llu bytes do not hold a segment",
			      (unsigned long long)map->len);
		return -EBADMSG;
	}
	for (int i = 0; i < (leads ? 2 : 1); i++) {
		if (places[i] + NM_VMSEG_HOST_SIZE > map->len)
			break;
		nm_copy_words(&host, (const char *)map->base + places[i], sizeof(host));
		if (i && host.magic != NM_VMSEG_HOST_MAGIC)
			break;
		err = nm_vmseg_host_check(&host, map->len - places[i], ret_reason);
		if (err)
			continue;
		*ret_host = host;
		*ret_offset = places[i];
		return 0;
	}
	return err;
}
