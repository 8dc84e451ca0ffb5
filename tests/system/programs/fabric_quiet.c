/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what a small message must not cost: system calls, allocations, locks, looks at the clock.
 * Two endpoints of one process send to each other by turns, driven by one thread, so every call is
 * made here and none is due to waiting. Prints one line; judges nothing.
 *
 * System calls are caught by syscall user dispatch, which stops a thread at each of them: one per
 * round is counted, then carried out. The rest is counted by functions of the same name as the C
 * library's, which a program's libraries find first.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "endpoint.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif
#define ALLOW 0
#define BLOCK 1
#define EXIT_SKIP 77
#define WARM_UP 2000
#define SIZE_MAX_SMALL 2048
#define TAG 7

struct counts {
	unsigned long syscalls, allocations, locks, clocks;
};

static struct counts counts;
static __thread bool counting; /* service threads may do what they like */
static volatile char selector = ALLOW;

/* In the program's symbol table, where the provider finds it before the C library's. */
#define SEEN __attribute__((visibility("default")))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t nr, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *memory);

SEEN void *malloc(size_t size)
{
	counts.allocations += counting;
	return __libc_malloc(size);
}

SEEN void *calloc(size_t nr, size_t size)
{
	counts.allocations += counting;
	return __libc_calloc(nr, size);
}

SEEN void *realloc(void *old, size_t size)
{
	counts.allocations += counting;
	return __libc_realloc(old, size);
}

SEEN void free(void *memory)
{
	counts.allocations += counting;
	__libc_free(memory);
}

static int (*real_lock)(pthread_mutex_t *mutex);
static int (*real_clock)(clockid_t clock, struct timespec *now);

static void *find(const char *name)
{
	void *function = dlsym(RTLD_NEXT, name);

	if (!function)
		abort();
	return function;
}

SEEN int pthread_mutex_lock(pthread_mutex_t *mutex)
{
	counts.locks += counting;
	if (!real_lock)
		real_lock = (int (*)(pthread_mutex_t *))find("pthread_mutex_lock");
	return real_lock(mutex);
}

SEEN int clock_gettime(clockid_t clock, struct timespec *now)
{
	counts.clocks += counting;
	if (!real_clock)
		real_clock = (int (*)(clockid_t, struct timespec *))find("clock_gettime");
	return real_clock(clock, now);
}

/* Leaves the thread unwatched until the next round: its return is a system call too. */
static void on_syscall(int signal, siginfo_t *info, void *context)
{
	greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
	long result;

	(void)signal;
	selector = ALLOW;
	counts.syscalls++;
	result = syscall(info->si_syscall, r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10],
			 r[REG_R8], r[REG_R9]);
	r[REG_RAX] = result < 0 ? -errno : result;
}

static int watch_syscalls(void)
{
	struct sigaction action = {.sa_sigaction = on_syscall, .sa_flags = SA_SIGINFO};

	if (sigaction(SIGSYS, &action, NULL))
		return -errno;
	return prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector) ? -errno :
											  0;
}

static void fail(const char *what, long rc)
{
	counting = false;
	selector = ALLOW;
	fprintf(stderr, "fabric_quiet: %s: %s\n", what, fi_strerror((int)-rc));
	exit(1);
}

static unsigned long nr_calls;

static void take(struct endpoint *e, struct fi_cq_tagged_entry *ret_entry)
{
	ssize_t rc;

	do {
		rc = fi_cq_read(e->cq, ret_entry, 1);
		nr_calls++;
	} while (rc == -FI_EAGAIN);
	if (rc != 1)
		fail("fi_cq_read", rc);
}

/* Before peers have met, a call may want to be repeated, with progress; not while we count. */
static void tinject(struct endpoint *from, const void *bytes, size_t size, fi_addr_t there)
{
	ssize_t rc;

	while ((rc = fi_tinject(from->ep, bytes, size, there, TAG)) == -FI_EAGAIN && !counting) {
		rc = fi_cq_read(from->cq, NULL, 0);
		if (rc < 0 && rc != -FI_EAGAIN)
			fail("fi_cq_read", rc);
	}
	if (rc)
		fail("fi_tinject", rc);
}

/* One message each way of sending, SIZE bytes. */
static void messages(struct endpoint *from, struct endpoint *to, fi_addr_t there, fi_addr_t here,
		     size_t size)
{
	static char out[SIZE_MAX_SMALL], in[SIZE_MAX_SMALL];
	size_t inject = from->info->tx_attr->inject_size;
	struct fi_cq_tagged_entry entry;
	ssize_t rc;

	rc = fi_trecv(to->ep, in, size, NULL, here, TAG, 0, NULL);
	if (rc)
		fail("fi_trecv", rc);
	tinject(from, out, size < inject ? size : inject, there);
	take(to, &entry);
	rc = fi_recv(to->ep, in, size, NULL, FI_ADDR_UNSPEC, NULL);
	if (!rc)
		rc = fi_send(from->ep, out, size, NULL, there, NULL);
	if (rc)
		fail("fi_send", rc);
	take(from, &entry);
	take(to, &entry);
	if (entry.len != size)
		fail("a message of another size", -FI_EIO);
}

/* A third endpoint, at which a thread sleeps until a message comes. */
static struct endpoint sleeper;
static fi_addr_t to_sleeper;

static void *sleep_until_rung(void *unused)
{
	struct fi_cq_tagged_entry entry;
	ssize_t rc;

	(void)unused;
	rc = fi_trecv(sleeper.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, TAG, 0, NULL);
	if (!rc)
		rc = fi_cq_sread(sleeper.cq, &entry, 1, NULL, -1);
	if (rc != 1)
		fail("fi_cq_sread", rc);
	return NULL;
}

/* A second is time enough to fall asleep, on a crowded machine too. */
static pthread_t let_sleep(struct endpoint *from)
{
	static const struct timespec second = {1, 0};
	struct fi_cq_tagged_entry entry;
	pthread_t thread;

	if (fi_av_insert(from->av, sleeper.address, 1, &to_sleeper, 0, NULL) != 1 ||
	    fi_trecv(sleeper.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, TAG, 0, NULL))
		fail("cannot meet the sleeper", -FI_EIO);
	tinject(from, NULL, 0, to_sleeper);
	take(&sleeper, &entry);
	if (pthread_create(&thread, NULL, sleep_until_rung, NULL))
		fail("pthread_create", -FI_EAGAIN);
	nanosleep(&second, NULL);
	return thread;
}

/* Does once what must not happen, to show that it is seen. */
static void slip(const char *which, struct endpoint *from)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static void *volatile kept; /* or the compiler would leave it out */

	(void)kept;
	if (!strcmp(which, "ring") && fi_tinject(from->ep, NULL, 0, to_sleeper, TAG))
		fail("fi_tinject", -FI_EIO);
	if (!strcmp(which, "syscall"))
		getppid();
	if (!strcmp(which, "allocation"))
		kept = malloc(1);
	if (!strcmp(which, "lock")) {
		pthread_mutex_lock(&mutex);
		pthread_mutex_unlock(&mutex);
	}
}

static void rounds(struct endpoint *a, struct endpoint *b, unsigned long nr, const char *which)
{
	static const size_t sizes[] = {0, 8, 40, 64, 208, 1024, SIZE_MAX_SMALL};
	fi_addr_t to_a, to_b;

	if (fi_av_insert(a->av, b->address, 1, &to_b, 0, NULL) != 1 ||
	    fi_av_insert(b->av, a->address, 1, &to_a, 0, NULL) != 1)
		fail("fi_av_insert", -FI_EINVAL);
	for (unsigned long i = 0; i < WARM_UP + nr; i++) {
		size_t size = sizes[i % (sizeof(sizes) / sizeof(sizes[0]))];

		counting = i >= WARM_UP;
		selector = counting ? BLOCK : ALLOW;
		if (i == WARM_UP)
			nr_calls = 0;
		messages(a, b, to_b, to_a, size);
		messages(b, a, to_a, to_b, size);
		if (counting && i == WARM_UP + nr / 2)
			slip(which, a);
	}
	counting = false;
	selector = ALLOW;
}

int main(int argc, char **argv)
{
	unsigned long nr = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000;
	const char *which = argc > 2 ? argv[2] : "";
	enum fi_threading threading = strcmp(which, "safe") ? FI_THREAD_DOMAIN : FI_THREAD_SAFE;
	struct endpoint a, b;
	pthread_t thread = 0;
	int err;

	err = endpoint_open(&a, threading);
	if (!err)
		err = endpoint_open(&b, threading);
	if (err)
		fail("cannot open an endpoint", err);
	if (!strcmp(which, "ring")) {
		err = endpoint_open(&sleeper, FI_THREAD_DOMAIN);
		if (err)
			fail("cannot open an endpoint", err);
		thread = let_sleep(&a);
	}
	err = watch_syscalls();
	if (err) {
		fprintf(stderr, "fabric_quiet: no syscall user dispatch: %s\n", strerror(-err));
		return EXIT_SKIP;
	}
	rounds(&a, &b, nr, which);
	printf("messages %lu reads %lu syscalls %lu allocations %lu locks %lu clocks %lu\n", 4 * nr,
	       nr_calls, counts.syscalls, counts.allocations, counts.locks, counts.clocks);
	if (thread)
		pthread_join(thread, NULL);
	endpoint_close(&sleeper);
	err = endpoint_close(&b);
	return err || endpoint_close(&a) ? 1 : 0;
}
