/* SPDX-License-Identifier: Apache-2.0 */
#include "heap_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memfd.h"
#include "harness.h"

struct heap_fixture heap;

__attribute__((visibility("default"))) nm_heap_face_fn nearmetal_heap_1;
int nearmetal_heap_1(struct nm_heap_face *ret_face)
{
	if (!heap.base)
		return -ENOTSUP;
	*ret_face = heap.face;
	return 0;
}

void heap_create(size_t size)
{
	int fd = nm_memfd_create("heap");
	struct stat st;

	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(ftruncate(fd, (off_t)size), 0);
	heap.base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NM_CHECK(heap.base != MAP_FAILED);
	NM_CHECK_EQ(nm_memfd_seal(fd), 0);
	NM_CHECK_EQ(fstat(fd, &st), 0);
	heap.size = size;
	heap.face = (struct nm_heap_face){
		.fd = fd,
		.base = (uintptr_t)heap.base,
		.size = size,
		.device = st.st_dev,
		.inode = st.st_ino,
	};
}

void heap_destroy(void)
{
	NM_CHECK_EQ(munmap(heap.base, heap.size), 0);
	close(heap.face.fd);
	heap.base = NULL;
}

int heap_forge(size_t size, unsigned int seals)
{
	int fd = memfd_create("forged", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(ftruncate(fd, (off_t)size), 0);
	NM_CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}
