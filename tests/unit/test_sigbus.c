/* SPDX-License-Identifier: Apache-2.0 */
/* Files that shrink under a reader: zeros instead of the end of the program. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "shm/sigbus.h"

#define PAGE 4096

static char *map_file(size_t len, int *ret_fd)
{
	char path[512];
	char *bytes;

	snprintf(path, sizeof(path), "%s/file", nm_test_dir());
	*ret_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	NM_CHECK(*ret_fd >= 0);
	NM_CHECK_EQ(ftruncate(*ret_fd, (off_t)len), 0);
	bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	NM_CHECK(bytes != MAP_FAILED);
	memset(bytes, 'x', len);
	return bytes;
}

NM_TEST(truncated_file_reads_as_zeros)
{
	struct sigaction before, now;
	struct nm_sigbus_guard guard = {0};
	volatile char *bytes;
	int fd;

	NM_CHECK_EQ(sigaction(SIGBUS, NULL, &before), 0);
	bytes = map_file(4 * PAGE, &fd);
	guard.start = (uintptr_t)bytes;
	guard.len = 4 * PAGE;
	NM_CHECK_EQ(nm_sigbus_guard(&guard), 0);
	NM_CHECK_EQ(ftruncate(fd, PAGE), 0);
	NM_CHECK_EQ(bytes[PAGE - 1], 'x');
	NM_CHECK(!atomic_load(&guard.lost));
	errno = 77;
	NM_CHECK_EQ(bytes[3 * PAGE + 5], 0);
	NM_CHECK_EQ(errno, 77);
	NM_CHECK(atomic_load(&guard.lost));
	NM_CHECK_EQ(bytes[PAGE], 0);
	NM_CHECK_EQ(bytes[0], 'x');
	nm_sigbus_unguard(&guard);
	NM_CHECK_EQ(sigaction(SIGBUS, NULL, &now), 0);
	NM_CHECK(now.sa_handler == before.sa_handler);
	munmap((void *)(uintptr_t)bytes, 4 * PAGE);
	close(fd);
}

static sigjmp_buf back;
static volatile unsigned int nr_own;

static void own_handler(int number)
{
	(void)number;
	nr_own++;
	siglongjmp(back, 1);
}

NM_TEST(faults_elsewhere_go_to_the_programs_own_handler)
{
	struct sigaction own = {.sa_handler = own_handler}, now;
	struct nm_sigbus_guard guard = {0};
	volatile char *bytes;
	int fd;

	NM_CHECK_EQ(sigaction(SIGBUS, &own, NULL), 0);
	bytes = map_file(4 * PAGE, &fd);
	guard.start = (uintptr_t)bytes;
	guard.len = 2 * PAGE;
	NM_CHECK_EQ(nm_sigbus_guard(&guard), 0);
	NM_CHECK_EQ(ftruncate(fd, 0), 0);
	NM_CHECK_EQ(bytes[0], 0);
	NM_CHECK_EQ(nr_own, 0);
	if (!sigsetjmp(back, 1))
		NM_CHECK_EQ(bytes[3 * PAGE], 1); /* not reached: this page is nobody's */
	NM_CHECK_EQ(nr_own, 1);
	nm_sigbus_unguard(&guard);
	NM_CHECK_EQ(sigaction(SIGBUS, NULL, &now), 0);
	NM_CHECK(now.sa_handler == own_handler);
	munmap((void *)(uintptr_t)bytes, 4 * PAGE);
	close(fd);
}

static void fault_unguarded(void *arg)
{
	struct sigaction usual = {.sa_handler = SIG_DFL};
	struct nm_sigbus_guard guard = {.start = PAGE, .len = PAGE};
	volatile char *bytes;
	int fd;

	(void)arg;
	/* A sanitizer's handler would turn the signal into a report. */
	sigaction(SIGBUS, &usual, NULL);
	bytes = map_file(PAGE, &fd);
	NM_CHECK_EQ(nm_sigbus_guard(&guard), 0);
	NM_CHECK_EQ(ftruncate(fd, 0), 0);
	bytes[0]++;
}

NM_TEST(faults_without_a_handler_end_the_program)
{
	nm_test_join(nm_test_fork(fault_unguarded, NULL), SIGBUS);
}

NM_TEST(too_many_guards_are_refused)
{
	static struct nm_sigbus_guard guards[NM_SIGBUS_MAX_GUARDS + 1];
	unsigned int i;

	for (i = 0; i < NM_SIGBUS_MAX_GUARDS; i++) {
		guards[i].start = (i + 1) * PAGE;
		guards[i].len = PAGE;
		NM_CHECK_EQ(nm_sigbus_guard(&guards[i]), 0);
	}
	NM_CHECK_EQ(nm_sigbus_guard(&guards[i]), -ENOSPC);
	for (i = 0; i < NM_SIGBUS_MAX_GUARDS; i++)
		nm_sigbus_unguard(&guards[i]);
}
