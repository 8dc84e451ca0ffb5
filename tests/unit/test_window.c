/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: nobody but the owner can write, and nothing that is not a sound window is mapped. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "harness.h"
#include "shm/window.h"

static const uint8_t id[6] = {1, 2, 3, 4, 5, 6};

static struct nm_window create_window(void)
{
	struct nm_reason why = {""};
	struct nm_geometry geometry;
	struct nm_window window;

	NM_CHECK_EQ(nm_geometry_init(8, 64, 4096, 1 << 20, &geometry), 0);
	if (nm_window_create(&geometry, id, &window, &why))
		nm_test_fail(__FILE__, __LINE__, "create: %s", why.text);
	return window;
}

NM_TEST(owner_writes_and_neighbour_reads)
{
	struct nm_window window = create_window();
	struct nm_foreign_window foreign;
	struct nm_reason why;

	NM_CHECK_EQ(nm_window_attach(window.fd, &foreign, &why), 0);
	NM_CHECK_EQ(foreign.geometry.nr_lanes, 8);
	NM_CHECK_EQ(foreign.geometry.nr_chunks, 256);
	NM_CHECK(!memcmp(foreign.id, id, 6));
	NM_CHECK_EQ(nm_foreign_state(&foreign), NM_WINDOW_INIT);
	nm_window_set_state(&window, NM_WINDOW_RUN);
	NM_CHECK_EQ(nm_foreign_state(&foreign), NM_WINDOW_RUN);
	NM_CHECK_EQ(nm_window_reserve_ring(&window, 7, &why), 0);
	nm_window_ring(&window, 7)[63].head.tag = 42;
	NM_CHECK_EQ(nm_foreign_ring(&foreign, 7)[63].head.tag, 42);
	memset(window.pool, 0x5a, 1 << 20);
	NM_CHECK_EQ(foreign.pool[(1 << 20) - 1], 0x5a);
	/* The bytes outlive their owner as long as a neighbour maps them. */
	nm_window_destroy(&window);
	NM_CHECK_EQ(foreign.pool[(1 << 20) - 1], 0x5a);
	nm_window_detach(&foreign);
	nm_window_detach(&foreign);
	nm_window_detach(NULL);
}

/* Every way to a write that a process which was handed the descriptor could try. */
NM_TEST(neighbour_cannot_write)
{
	struct nm_window window = create_window();
	struct nm_foreign_window foreign;
	struct nm_reason why;
	char path[64];
	int reopened;
	void *map;

	NM_CHECK_EQ(nm_window_attach(window.fd, &foreign, &why), 0);
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, window.fd, 0);
	NM_CHECK(map == MAP_FAILED && errno == EPERM);
	NM_CHECK(mprotect((void *)(uintptr_t)foreign.header, 4096, PROT_READ | PROT_WRITE) < 0);
	NM_CHECK_EQ(errno, EACCES);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", window.fd);
	reopened = open(path, O_RDWR | O_CLOEXEC);
	if (reopened >= 0) {
		map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reopened, 0);
		NM_CHECK(map == MAP_FAILED);
		NM_CHECK(pwrite(reopened, "x", 1, 0) < 0);
		close(reopened);
	}
	NM_CHECK(pwrite(window.fd, "x", 1, 0) < 0);
	NM_CHECK(write(window.fd, "x", 1) < 0);
	NM_CHECK(ftruncate(window.fd, 0) < 0);
	NM_CHECK(ftruncate(window.fd, 1 << 30) < 0);
	NM_CHECK(fallocate(window.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0);
	NM_CHECK(fcntl(window.fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
	NM_CHECK(madvise((void *)(uintptr_t)foreign.header, 4096, MADV_REMOVE) < 0);
	/* Not even the owner takes a page back from its readers. */
	NM_CHECK(madvise(window.header, 4096, MADV_REMOVE) < 0);
	NM_CHECK_EQ(foreign.header->magic, NM_LAYOUT_MAGIC);
	/* While the owner goes on. */
	window.header->reserved3[0] = 7;
	NM_CHECK_EQ(foreign.header->reserved3[0], 7);
	nm_window_detach(&foreign);
	nm_window_destroy(&window);
}

static void expect_refused(int fd, int err, const char *words)
{
	unsigned int mappings = nm_test_count_mappings();
	struct nm_foreign_window foreign = {0};
	struct nm_reason why = {""};

	NM_CHECK_EQ(nm_window_attach(fd, &foreign, &why), err);
	NM_CHECK_HAS(why.text, words);
	NM_CHECK(foreign.header == NULL);
	NM_CHECK_EQ(nm_test_count_mappings(), mappings);
}

/* A sealed memfd of SIZE bytes with HEADER at its beginning. */
static int forge(const struct nm_window_header *header, uint64_t size, unsigned int seals)
{
	int fd = memfd_create("forged", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(ftruncate(fd, (off_t)size), 0);
	if (header)
		NM_CHECK(pwrite(fd, header, size < sizeof(*header) ? size : sizeof(*header), 0) >=
			 0);
	NM_CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE)

static struct nm_window_header sound_header(void)
{
	struct nm_window window = create_window();
	struct nm_window_header header = *window.header;

	nm_window_destroy(&window);
	return header;
}

static void expect_forged_refused(const struct nm_window_header *header, uint64_t size,
				  unsigned int seals, int err, const char *words)
{
	int fd = forge(header, size, seals);

	expect_refused(fd, err, words);
	close(fd);
}

NM_TEST(files_that_are_no_windows_are_refused)
{
	struct nm_window_header header = sound_header();
	char path[256];
	int fds[2], fd;

	expect_refused(-1, -EBADF, "cannot examine");
	NM_CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
	expect_refused(fds[0], -EPERM, "not a memfd");
	close(fds[0]);
	close(fds[1]);
	snprintf(path, sizeof(path), "%s/file", nm_test_dir());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	NM_CHECK_EQ(ftruncate(fd, 1 << 20), 0);
	expect_refused(fd, -EPERM, "");
	close(fd);
	fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	expect_refused(fd, -EPERM, "not a memfd");
	close(fd);
	expect_forged_refused(&header, header.geometry.size, 0, -EPERM, "not sealed");
	expect_forged_refused(&header, header.geometry.size,
			      F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL, -EPERM, "not sealed");
	expect_forged_refused(&header, header.geometry.size,
			      ALL_SEALS & ~(unsigned int)F_SEAL_SHRINK, -EPERM, "not sealed");
	expect_forged_refused(&header, header.geometry.size, ALL_SEALS & ~(unsigned int)F_SEAL_SEAL,
			      -EPERM, "not sealed");
	expect_forged_refused(NULL, 0, ALL_SEALS, -EBADMSG, "truncated");
	expect_forged_refused(&header, 100, ALL_SEALS, -EBADMSG, "truncated");
	expect_forged_refused(&header, 4096, ALL_SEALS, -EBADMSG, "not as long");
	expect_forged_refused(NULL, header.geometry.size, ALL_SEALS, -EBADMSG, "no magic");
}

static void refuse_a_pipe_unseen(void *arg)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstatfs, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog filter = {NM_ARRAY_SIZE(rules), rules};

	NM_CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0)
		nm_test_skip("no seccomp filters");
	expect_refused(*(const int *)arg, -EPERM, "not a memfd");
}

/* The file system of a descriptor may be a hostile process, which need not answer. */
NM_TEST(file_systems_of_strangers_are_not_asked)
{
	int fds[2];

	NM_CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
	nm_test_join(nm_test_fork(refuse_a_pipe_unseen, fds), 0);
	close(fds[0]);
	close(fds[1]);
}

NM_TEST(other_layout_versions_refuse_each_other_in_words)
{
	struct nm_window_header header = sound_header();

	header.version = NM_LAYOUT_VERSION + 1;
	expect_forged_refused(&header, header.geometry.size, ALL_SEALS, -EPROTONOSUPPORT,
			      "layout version 5");
	header.version = NM_LAYOUT_VERSION;
	header.features = 4;
	expect_forged_refused(&header, header.geometry.size, ALL_SEALS, -EPROTONOSUPPORT,
			      "features 0x4");
}

/* One field at a time, to values that would lead a reader astray. */
NM_TEST(forged_geometry_is_refused)
{
	const struct nm_window_header sound = sound_header();
	static const uint64_t values[] = {0,	      1,	  3,
					  63,	      4095,	  1 << 13,
					  1 << 20,    UINT32_MAX, UINT32_MAX - 63,
					  (1u << 31), UINT64_MAX, UINT64_MAX - 63};
	struct nm_window_header header;
	struct nm_geometry geometry;
	size_t i, field;

	NM_CHECK_EQ(nm_window_header_check(&sound, sound.geometry.size, &geometry, NULL), 0);
	for (i = 0; i < NM_ARRAY_SIZE(values); i++)
		for (field = 0; field < 8; field++) {
			header = sound;
			switch (field) {
			case 0:
				header.geometry.nr_lanes = (uint32_t)values[i] + 4097;
				break;
			case 1:
				header.geometry.ring_slots = (uint32_t)values[i] | 1;
				break;
			case 2:
				header.geometry.chunk_size = (uint32_t)values[i] | 1;
				break;
			case 3:
				header.geometry.nr_chunks = (uint32_t)values[i] + 257;
				break;
			case 4:
				header.geometry.lanes_off = (uint32_t)values[i] | 1;
				break;
			case 5:
				header.geometry.rings_off = (uint32_t)values[i] | 1;
				break;
			case 6:
				header.geometry.pool_off = values[i] | 1;
				break;
			case 7:
				header.geometry.size = values[i];
				break;
			}
			/* Some sums wrap to sound values; those are the sound header itself. */
			if (!memcmp(&header, &sound, sizeof(sound)))
				continue;
			if (field == 0 && header.geometry.nr_lanes >= 1 &&
			    header.geometry.nr_lanes <= 8)
				continue;
			if (field == 3 && header.geometry.nr_chunks >= 1 &&
			    header.geometry.nr_chunks <= 256)
				continue;
			if (!nm_window_header_check(&header, sound.geometry.size, &geometry, NULL))
				nm_test_fail(__FILE__, __LINE__, "field %zu value %zu was accepted",
					     field, i);
		}
	/* In order, but reaching past the end. */
	header = sound;
	header.geometry.pool_off = sound.geometry.size - 64;
	NM_CHECK_EQ(nm_window_header_check(&header, sound.geometry.size, &geometry, NULL),
		    -EBADMSG);
	header = sound;
	header.geometry.rings_off = sound.geometry.lanes_off;
	NM_CHECK_EQ(nm_window_header_check(&header, sound.geometry.size, &geometry, NULL),
		    -EBADMSG);
}

NM_TEST(geometry_limits)
{
	struct nm_geometry g;

	NM_CHECK_EQ(nm_geometry_init(0, 64, 4096, 1 << 20, &g), -EINVAL);
	NM_CHECK_EQ(nm_geometry_init(4097, 64, 4096, 1 << 20, &g), -EINVAL);
	NM_CHECK_EQ(nm_geometry_init(1, 65, 4096, 1 << 20, &g), -EINVAL);
	NM_CHECK_EQ(nm_geometry_init(1, 64, 4095, 1 << 20, &g), -EINVAL);
	NM_CHECK_EQ(nm_geometry_init(1, 64, 65536, 65535, &g), -EINVAL);
	NM_CHECK_EQ(nm_geometry_init(4096, 4096, 65536, NM_MAX_POOL_SIZE, &g), 0);
	NM_CHECK(g.rings_off >= g.lanes_off + 4096 * sizeof(struct nm_lane));
	NM_CHECK(g.pool_off >= g.rings_off + UINT64_C(4096) * 4096 * 64);
	NM_CHECK_EQ(g.size, g.pool_off + NM_MAX_POOL_SIZE);
	NM_CHECK_EQ(nm_geometry_init(1, 16, 4096, 10000, &g), 0);
	NM_CHECK_EQ(g.nr_chunks, 2);
}
