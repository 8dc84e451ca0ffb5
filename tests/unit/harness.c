/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "far_node.h"

#define EXIT_SKIPPED 77
#define FAR_PATIENCE 20 /* emulated machines, and a round trip for each call */

static struct nm_test_case *first_case, **last_case = &first_case;
static char test_dir[PATH_MAX];

void nm_test_register(struct nm_test_case *test)
{
	*last_case = test;
	last_case = &test->next;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	(void)st;
	(void)type;
	(void)walk;
	return remove(path);
}

static void remove_test_dir(const char *path)
{
	nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

void nm_test_fail(const char *file, int line, const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	fflush(NULL);
	_exit(1);
}

void nm_test_skip(const char *reason)
{
	printf("skip: %s\n", reason);
	fflush(NULL);
	_exit(EXIT_SKIPPED);
}

void nm_test_check_str(const char *file, int line, const char *what, const char *actual,
		       const char *expected)
{
	if (!actual || strcmp(actual, expected))
		nm_test_fail(file, line, "%s is '%s', expected '%s'", what,
			     actual ? actual : "(null)", expected);
}

void nm_test_check_has(const char *file, int line, const char *what, const char *text,
		       const char *part)
{
	if (!text || !strstr(text, part))
		nm_test_fail(file, line, "%s is '%s', expected to contain '%s'", what,
			     text ? text : "(null)", part);
}

const char *nm_test_dir(void)
{
	return test_dir;
}

pid_t nm_test_fork(void (*fn)(void *arg), void *arg)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		nm_test_fail(__FILE__, __LINE__, "fork: %s", strerror(errno));
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn(arg);
		fflush(NULL);
		_exit(0);
	}
	return pid;
}

void nm_test_join(pid_t pid, int expected_status)
{
	int status = 0;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			nm_test_fail(__FILE__, __LINE__, "waitpid: %s", strerror(errno));
	if (status != expected_status)
		nm_test_fail(__FILE__, __LINE__, "child %d ended with status 0x%x, expected 0x%x",
			     (int)pid, (unsigned int)status, (unsigned int)expected_status);
}

void nm_test_stop(pid_t pid)
{
	int status;

	NM_CHECK_EQ(kill(pid, SIGSTOP), 0);
	NM_CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
	NM_CHECK(WIFSTOPPED(status));
}

uint32_t nm_test_next(void)
{
	char ledger[PATH_MAX + 8];
	off_t nr;
	int fd;

	snprintf(ledger, sizeof(ledger), "%s/next", test_dir);
	fd = open(ledger, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(write(fd, "", 1), 1);
	nr = lseek(fd, 0, SEEK_CUR);
	close(fd);
	return (uint32_t)nr - 1;
}

void nm_test_sleep_ms(unsigned int ms)
{
	struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

uint64_t nm_test_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static unsigned int count_entries(const char *path)
{
	unsigned int nr = 0;
	DIR *dir = opendir(path);

	if (!dir)
		nm_test_fail(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

unsigned int nm_test_count_fds(void)
{
	return count_entries("/proc/self/fd");
}

unsigned int nm_test_count_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned int nr = 0;
	char line[PATH_MAX + 128], perms[8];

	if (!maps)
		nm_test_fail(__FILE__, __LINE__, "/proc/self/maps: %s", strerror(errno));
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%*s %7s", perms) == 1 && perms[3] == 's')
			nr++;
	fclose(maps);
	return nr;
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#ifdef __SANITIZE_THREAD__
/* Cases fork while an endpoint's service thread runs; the children start threads of their own. */
const char *__tsan_default_options(void);

__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}
#endif

/*
 * How many threads there are, once no more than `expected` are left or a second has passed: a
 * thread that was joined is listed in /proc for a moment longer.
 */
static unsigned int count_threads(unsigned int expected)
{
	unsigned int nr;

	for (int wait_ms = 0; (nr = count_entries("/proc/self/task")) > expected; wait_ms++) {
		if (wait_ms == 1000)
			break;
		usleep(1000);
	}
	return nr;
}

#ifdef __SANITIZE_THREAD__
static void *do_nothing(void *arg)
{
	return arg;
}
#endif

/*
 * Counts the threads a case begins with. ThreadSanitizer starts one of its own with the first one
 * of the program, so under it the first one is started here.
 */
static unsigned int count_first_threads(void)
{
	unsigned int nr = count_entries("/proc/self/task");
#ifdef __SANITIZE_THREAD__
	pthread_t thread;

	if (!pthread_create(&thread, NULL, do_nothing, NULL))
		pthread_join(thread, NULL);
	return count_threads(nr + 1);
#else
	return nr;
#endif
}

static void run_case(const struct nm_test_case *test)
{
	unsigned int fds = nm_test_count_fds();
	unsigned int mappings = nm_test_count_mappings();
	unsigned int threads;

	threads = count_first_threads();
	test->run();
	if (nm_test_count_fds() != fds)
		nm_test_fail(test->name, 0, "left %d file descriptors open",
			     (int)nm_test_count_fds() - (int)fds);
	if (nm_test_count_mappings() != mappings)
		nm_test_fail(test->name, 0, "left %d shared mappings",
			     (int)nm_test_count_mappings() - (int)mappings);
	if (count_threads(threads) > threads)
		nm_test_fail(test->name, 0, "left a thread running");
	if (waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD)
		nm_test_fail(test->name, 0, "left a child process");
}

/* Seconds of processor that a process has used; its last value once it has ended. */
static time_t used_by(clockid_t clock, time_t last)
{
	struct timespec used;

	return clock_gettime(clock, &used) ? last : used.tv_sec;
}

/* The child leads a process group, so that a time-out ends its children too. */
static int wait_for_case(pid_t pid, unsigned int timeout_s)
{
	time_t stuck_s = timeout_s > NM_TEST_STUCK_S ? timeout_s : NM_TEST_STUCK_S;
	time_t used = 0, before = 0, moved = time(NULL);
	clockid_t clock;
	int status;

	if (clock_getcpuclockid(pid, &clock))
		clock = CLOCK_MONOTONIC;
	while (waitpid(pid, &status, WNOHANG) == 0) {
		used = used_by(clock, used);
		if (used != before)
			moved = time(NULL);
		before = used;
		if (used > (time_t)timeout_s || time(NULL) - moved > stuck_s) {
			kill(-pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -ETIMEDOUT;
		}
		nm_test_sleep_ms(2);
	}
	kill(-pid, SIGKILL);
	return status;
}

static bool report(const char *name, int status)
{
	if (status == -ETIMEDOUT)
		printf("not ok %s: timed out\n", name);
	else if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED)
		printf("skip %s\n", name);
	else if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		printf("ok %s\n", name);
	else if (WIFEXITED(status))
		printf("not ok %s: exit status %d\n", name, WEXITSTATUS(status));
	else
		printf("not ok %s: signal %d\n", name, WTERMSIG(status));
	fflush(stdout);
	return status != -ETIMEDOUT && WIFEXITED(status) &&
	       (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == EXIT_SKIPPED);
}

static bool run_forked(const struct nm_test_case *test)
{
	/* In memory: whoever writes to a mapped file waits while a disk takes its pages. */
	const char *tmp = getenv("TMPDIR");
	pid_t pid;
	int status;

	snprintf(test_dir, sizeof(test_dir), "%s/nearmetal-test-XXXXXX", tmp ? tmp : "/dev/shm");
	if (!mkdtemp(test_dir)) {
		printf("not ok %s: mkdtemp %s: %s\n", test->name, test_dir, strerror(errno));
		return false;
	}
	fflush(NULL);
	pid = fork();
	if (!pid) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run_case(test);
		/* exit, not _exit: a leak checker reports here. */
		exit(0);
	}
	if (pid < 0) {
		printf("not ok %s: fork: %s\n", test->name, strerror(errno));
		return false;
	}
	setpgid(pid, pid);
	status = wait_for_case(pid, test->timeout_s * (far_is_given() ? FAR_PATIENCE : 1));
	remove_test_dir(test_dir);
	return report(test->name, status);
}

static bool selected(const struct nm_test_case *test, int argc, char **argv)
{
	bool any = true;

	for (int i = 1; i < argc; i++) {
		if (strchr(argv[i], '='))
			continue;
		any = false;
		if (!strcmp(argv[i], test->name))
			return true;
	}
	return any;
}

static void set_knobs(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strchr(argv[i], '='))
			putenv(argv[i]);
}

/* Knobs of the caller's shell are not those of the tests. */
static void clear_knobs(void)
{
	char name[64];
	char **entry = environ;
	size_t len;

	while (*entry) {
		len = strcspn(*entry, "=");
		if (strncmp(*entry, "NEARMETAL_", 10) || len >= sizeof(name)) {
			entry++;
			continue;
		}
		memcpy(name, *entry, len);
		name[len] = '\0';
		unsetenv(name); /* the rest moves up */
	}
}

int main(int argc, char **argv)
{
	const struct nm_test_case *test;
	unsigned int ran = 0, failed = 0;

	if (!far_is_given())
		clear_knobs();
	set_knobs(argc, argv);
	for (test = first_case; test; test = test->next) {
		if (argc == 2 && !strcmp(argv[1], "--list")) {
			printf("%s\n", test->name);
			continue;
		}
		if (!selected(test, argc, argv))
			continue;
		ran++;
		failed += !run_forked(test);
	}
	if (argc == 2 && !strcmp(argv[1], "--list"))
		return 0;
	printf("%u of %u failed\n", failed, ran);
	return failed || !ran;
}
