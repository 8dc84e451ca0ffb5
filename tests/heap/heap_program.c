/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run with LD_PRELOAD=libnearmetal-heap.so: the functions of malloc(3), and what fork() means, from
 * the point of view of a program that knows nothing of the heap. `--time`: what a fork() costs.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/heap_face.h"
#include "early_fork.h"

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not true: %s (errno %d)\n", __FILE__, __LINE__,    \
				#condition, errno);                                                \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

#define LARGE ((size_t)1 << 20)
#define SMALL ((size_t)1000)

extern char **environ;
static struct nm_heap_face face;
static void *of_constructor;

/* The values of pointers that the compiler must not follow. */
static void *volatile sink;

static int show(struct nm_heap_face *ret_face)
{
	void *found = dlsym(RTLD_DEFAULT, NM_HEAP_FACE);
	nm_heap_face_fn *function;

	CHECK(found);
	memcpy(&function, &found, sizeof(function));
	return function(ret_face);
}

static int in_heap(const void *bytes)
{
	return (uintptr_t)bytes - face.base < face.size;
}

/* Before main(), and maybe before the library's own constructor. */
__attribute__((constructor)) static void construct(void)
{
	of_constructor = malloc(LARGE);
	CHECK(of_constructor);
	memset(of_constructor, 5, LARGE);
}

static void test_sizes(void)
{
	char *small = malloc(SMALL), *large = malloc(LARGE), *least = malloc(65536),
	     *less = malloc(65535);

	CHECK(small && !in_heap(small) && !in_heap(less));
	CHECK(large && in_heap(large) && in_heap(least));
	CHECK(malloc_usable_size(large) == LARGE && malloc_usable_size(least) == 65536);
	CHECK(malloc_usable_size(small) >= SMALL && malloc_usable_size(NULL) == 0);
	memset(large, 1, LARGE);
	free(small);
	free(least);
	free(less);
	free(large);
	free(NULL);
	free(of_constructor);
	/* The same place again. */
	sink = malloc(LARGE);
	CHECK(in_heap(sink));
	free(sink);
}

static void test_zeros(void)
{
	for (int round = 0; round < 3; round++) {
		char *bytes = calloc(LARGE / 8 + 1, 8);

		CHECK(in_heap(bytes));
		for (size_t i = 0; i < LARGE + 8; i++)
			CHECK(bytes[i] == 0);
		memset(bytes, 0xff, LARGE + 8);
		free(bytes);
	}
}

static void test_wrong_sizes(void)
{
	volatile size_t most = SIZE_MAX, half = SIZE_MAX / 2;
	void *bytes = (void *)1;

	errno = 0;
	CHECK(!malloc(most) && errno == ENOMEM);
	CHECK(!malloc(half + 1) && !calloc(half, 3) && !realloc(NULL, most));
	errno = 0;
	CHECK(!reallocarray(NULL, half, 3) && errno == ENOMEM);
	CHECK(posix_memalign(&bytes, 24, LARGE) == EINVAL && bytes == (void *)1);
	CHECK(posix_memalign(&bytes, 0, LARGE) == EINVAL);
	CHECK(posix_memalign(&bytes, 4096, most) == ENOMEM);
	CHECK(!aligned_alloc(4096, half + 1) && !memalign(4096, most - 4096));
	CHECK(!valloc(most) && !pvalloc(most - 1));
}

static void test_alignment(void)
{
	for (size_t align = sizeof(void *); align <= ((size_t)8 << 20); align *= 2) {
		void *bytes = NULL, *other = aligned_alloc(align, LARGE), *third;

		CHECK(posix_memalign(&bytes, align, LARGE + 3) == 0);
		CHECK(in_heap(bytes) == (align <= (size_t)2 << 20));
		CHECK((uintptr_t)bytes % align == 0 && (uintptr_t)other % align == 0);
		third = memalign(align, SMALL);
		CHECK((uintptr_t)third % align == 0 && !in_heap(third));
		memset(bytes, 1, LARGE + 3);
		free(bytes);
		free(other);
		free(third);
	}
	sink = valloc(LARGE);
	CHECK((uintptr_t)sink % 4096 == 0 && in_heap(sink));
	free(sink);
	sink = pvalloc(LARGE + 1);
	CHECK((uintptr_t)sink % 4096 == 0 && malloc_usable_size(sink) == LARGE + 4096);
	free(sink);
}

static void expect(const char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		CHECK(bytes[i] == (char)(i * 7));
}

static void test_realloc(void)
{
	static const size_t sizes[] = {10, 70000, 3 * LARGE, 65536, 65535, 200000,
				       5,  LARGE, LARGE + 1, 90000, 100,   8 * LARGE};
	char *bytes = NULL, *behind;
	size_t len = 0;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		bytes = realloc(bytes, sizes[i]);
		CHECK(bytes && in_heap(bytes) == (sizes[i] >= 65536));
		expect(bytes, len < sizes[i] ? len : sizes[i]);
		len = sizes[i];
		for (size_t j = 0; j < len; j++)
			bytes[j] = (char)(j * 7);
		/* It cannot always grow in place. */
		behind = malloc(LARGE);
		if (i % 2)
			free(behind);
	}
	/* What does not fit stays as it is. */
	CHECK(!realloc(bytes, (size_t)1 << 62));
	expect(bytes, len);
	CHECK(realloc(bytes, 0) == NULL);
}

static void test_full(void)
{
	static void *all[4096];
	size_t nr = 0;

	while (nr < 4096 && (all[nr] = malloc((size_t)32 << 20)) && in_heap(all[nr]))
		nr++;
	CHECK(nr > 4 && nr < 4096 && all[nr]);
	/* An ordinary one, and back again when there is room. */
	free(all[nr]);
	free(all[0]);
	all[0] = malloc((size_t)20 << 20);
	CHECK(in_heap(all[0]));
	while (nr > 0)
		free(all[--nr]);
}

static void *churn(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;
	char *mine[16] = {NULL};
	size_t lens[16] = {0};

	for (int i = 0; i < 4000; i++) {
		unsigned int slot = (unsigned int)rand_r(&seed) % 16;

		if (mine[slot]) {
			CHECK(mine[slot][0] == (char)slot &&
			      mine[slot][lens[slot] - 1] == (char)(uintptr_t)arg);
			free(mine[slot]);
		}
		lens[slot] = 1000 + (size_t)rand_r(&seed) % 300000;
		mine[slot] = malloc(lens[slot]);
		mine[slot][0] = (char)slot;
		mine[slot][lens[slot] - 1] = (char)(uintptr_t)arg;
	}
	for (int i = 0; i < 16; i++)
		free(mine[i]);
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[4];

	for (uintptr_t i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, churn, (void *)(i + 1)));
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

static int wait_for(pid_t child)
{
	int status = -1;

	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	return status;
}

/* The child sees what was there, and neither sees what the other writes. */
static void fork_and_write(char *bytes)
{
	int to_child[2], to_parent[2];
	struct nm_heap_face other;
	char c;
	pid_t child;

	CHECK(!pipe2(to_child, O_CLOEXEC) && !pipe2(to_parent, O_CLOEXEC));
	memset(bytes, 'p', LARGE);
	child = fork();
	if (child == 0) {
		CHECK(bytes[0] == 'p' && bytes[LARGE - 1] == 'p');
		memset(bytes, 'c', LARGE / 2);
		CHECK(write(to_parent[1], "w", 1) == 1 && read(to_child[0], &c, 1) == 1);
		CHECK(bytes[0] == 'c' && bytes[LARGE - 1] == 'p');
		CHECK(show(&other) == -ENOTSUP);
		free(bytes);
		bytes = calloc(1, LARGE);
		CHECK(in_heap(bytes) && bytes[0] == 0 && bytes[LARGE / 2 - 1] == 0);
		child = fork();
		if (child == 0)
			_exit(bytes[0]);
		_exit(wait_for(child) != 0);
	}
	CHECK(read(to_parent[0], &c, 1) == 1);
	CHECK(bytes[0] == 'p' && bytes[LARGE - 1] == 'p');
	memset(bytes, 'q', LARGE);
	CHECK(write(to_child[1], "w", 1) == 1);
	CHECK(wait_for(child) == 0);
	CHECK(bytes[0] == 'q');
	for (int i = 0; i < 2; i++) {
		close(to_child[i]);
		close(to_parent[i]);
	}
}

static void test_fork(void)
{
	char *bytes = malloc(LARGE), *untouched = malloc(64 * LARGE);
	pid_t child;

	fork_and_write(bytes);
	/* Maybe there was something before. */
	child = fork();
	if (child == 0)
		_exit((unsigned char)untouched[5 * LARGE]);
	CHECK(WEXITSTATUS(wait_for(child)) == (unsigned char)untouched[5 * LARGE]);
	CHECK(show(&face) == 0);
	free(untouched);
	free(bytes);
}

/* Handlers that another library registered before ours could. */
static void test_early_handlers(void)
{
	char *bytes = memset(malloc(LARGE), 'a', LARGE);
	pid_t child;

	early_fork_use(bytes);
	child = fork();
	if (child == 0)
		_exit(bytes[0] != 'b' || bytes[1] != 'b' || bytes[2] != 'a');
	early_fork_use(NULL);
	CHECK(wait_for(child) == 0);
	CHECK(bytes[0] == 'b' && bytes[1] == 'a');
	free(bytes);
}

static int fails_reads;

/* For the library, too. */
__attribute__((visibility("default"))) ssize_t pread64(int fd, void *bytes, size_t len,
						       off64_t offset)
{
	if (fails_reads) {
		errno = EIO;
		return -1;
	}
	return syscall(SYS_pread64, fd, bytes, len, offset);
}

/* A child never sees zeros in place of bytes that could not be read. */
static void test_unreadable(void)
{
	volatile char *bytes = memset(malloc(LARGE), 'a', LARGE);
	char *untouched = malloc(64 * LARGE);
	int status, saved = dup(STDERR_FILENO), quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
	pid_t child;

	fails_reads = 1;
	dup2(quiet, STDERR_FILENO);
	child = fork();
	dup2(saved, STDERR_FILENO);
	if (child == 0)
		_exit(bytes[LARGE - 1] != 'a');
	fails_reads = 0;
	status = wait_for(child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	CHECK(bytes[LARGE - 1] == 'a');
	close(saved);
	close(quiet);
	free(untouched);
	free((void *)bytes);
}

static void *fork_there(void *arg)
{
	for (int i = 0; i < 20; i++)
		fork_and_write(arg);
	return NULL;
}

/* While other threads allocate. */
static void test_fork_in_threads(void)
{
	char *one = malloc(LARGE), *two = malloc(LARGE);
	pthread_t threads[4];

	CHECK(!pthread_create(&threads[0], NULL, fork_there, one));
	CHECK(!pthread_create(&threads[1], NULL, fork_there, two));
	CHECK(!pthread_create(&threads[2], NULL, churn, (void *)3));
	CHECK(!pthread_create(&threads[3], NULL, churn, (void *)4));
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	free(one);
	free(two);
}

static void test_exec(void)
{
	char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)"exit 7", NULL};
	char line[32] = "";
	pid_t child;
	FILE *pipe;

	sink = memset(malloc(LARGE), 1, LARGE);
	CHECK(WEXITSTATUS(system("exit 5")) == 5);
	pipe = popen("echo from there", "r");
	CHECK(pipe && fgets(line, sizeof(line), pipe) && !strcmp(line, "from there\n"));
	CHECK(pclose(pipe) == 0);
	CHECK(!posix_spawn(&child, argv[0], NULL, NULL, argv, environ));
	CHECK(WEXITSTATUS(wait_for(child)) == 7);
	child = vfork();
	if (child == 0) {
		execv(argv[0], argv);
		_exit(1);
	}
	CHECK(WEXITSTATUS(wait_for(child)) == 7);
	child = fork();
	if (child == 0) {
		execv(argv[0], argv);
		_exit(1);
	}
	CHECK(WEXITSTATUS(wait_for(child)) == 7);
	CHECK(*(char *)sink == 1);
	free(sink);
}

/* A child without the handlers has nothing there, so it cannot write the parent's memory. */
static void test_raw_child(void)
{
	volatile char *bytes = memset(malloc(LARGE), 1, LARGE);
	int status;
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (child == 0) {
		bytes[0] = 2;
		syscall(SYS_exit_group, 0);
	}
	status = wait_for(child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	CHECK(bytes[0] == 1);
	free((void *)bytes);
}

/* Some programs close every descriptor, and the number is another file's then. */
static void test_closed_descriptor(void)
{
	char *bytes = malloc(LARGE);
	struct nm_heap_face other;
	int saved = dup(face.fd);

	CHECK(saved >= 0);
	close(face.fd);
	CHECK(open("/dev/null", O_RDONLY | O_CLOEXEC) == face.fd);
	CHECK(show(&other) == -ENOTSUP);
	fork_and_write(bytes);
	CHECK(dup3(saved, face.fd, O_CLOEXEC) == face.fd);
	close(saved);
	CHECK(show(&other) == 0);
	free(bytes);
}

static void free_twice(char *bytes)
{
	free(bytes);
	free(bytes);
}

static void free_middle(char *bytes)
{
	free(bytes + 4096);
}

static void expect_abort(void (*wrong)(char *bytes))
{
	int status, quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
	pid_t child = fork();

	if (child == 0) {
		dup2(quiet, STDERR_FILENO);
		wrong(malloc(LARGE));
		_exit(0);
	}
	status = wait_for(child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	close(quiet);
}

static double fork_ms(void)
{
	struct timespec before, after;
	pid_t child;

	clock_gettime(CLOCK_MONOTONIC, &before);
	child = fork();
	if (child == 0)
		_exit(0);
	clock_gettime(CLOCK_MONOTONIC, &after);
	wait_for(child);
	return (double)(after.tv_sec - before.tv_sec) * 1e3 +
	       (double)(after.tv_nsec - before.tv_nsec) / 1e6;
}

static void time_forks(void)
{
	for (size_t mib = 0; mib <= 512; mib = mib ? mib * 8 : 1) {
		double best = 1e9, one;

		sink = malloc((mib << 20) + 1);
		memset(sink, 1, mib << 20);
		for (int i = 0; i < 9; i++) {
			one = fork_ms();
			best = one < best ? one : best;
		}
		printf("%zu MiB: fork() returns after %.2f ms\n", mib, best);
		free(sink);
	}
}

int main(int argc, char **argv)
{
	CHECK(dlsym(RTLD_DEFAULT, NM_HEAP_FACE));
	CHECK(show(&face) == 0);
	if (argc > 1 && !strcmp(argv[1], "--time")) {
		time_forks();
		return 0;
	}
	test_sizes();
	test_zeros();
	test_wrong_sizes();
	test_alignment();
	test_realloc();
	test_full();
	test_threads();
	test_fork();
	test_early_handlers();
	test_unreadable();
	test_fork_in_threads();
	test_exec();
	test_raw_child();
	test_closed_descriptor();
	expect_abort(free_twice);
	expect_abort(free_middle);
	puts("heap OK");
	return 0;
}
