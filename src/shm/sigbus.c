/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/sigbus.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all but the handler */
static struct nm_sigbus_guard *_Atomic guards[NM_SIGBUS_MAX_GUARDS];
static unsigned int nr_guards;
static struct sigaction before; /* written only while the handler is not installed */
static uintptr_t page;

static struct nm_sigbus_guard *find(uintptr_t address)
{
	for (unsigned int i = 0; i < NM_SIGBUS_MAX_GUARDS; i++) {
		/* Partner: nm_sigbus_guard(). A handler may only make system calls and loads. */
		struct nm_sigbus_guard *guard =
			atomic_load_explicit(&guards[i], memory_order_acquire);

		if (guard && address - guard->start < guard->len)
			return guard;
	}
	return NULL;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
	struct sigaction usual = {.sa_handler = SIG_DFL};

	if (before.sa_flags & SA_SIGINFO) {
		before.sa_sigaction(number, info, context);
	} else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
		before.sa_handler(number);
	} else {
		/* After the return the same fault happens again and ends the program. */
		sigaction(SIGBUS, &usual, NULL);
		if (info->si_code <= 0)
			raise(number);
	}
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;
	struct nm_sigbus_guard *guard = info->si_code > 0 ? find(at) : NULL;
	int saved = errno;

	if (guard &&
	    mmap((void *)(at & ~(page - 1)), page, PROT_READ | (guard->writable ? PROT_WRITE : 0),
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
		atomic_store_explicit(&guard->lost, true, memory_order_release);
	else
		pass_on(number, info, context);
	errno = saved;
}

static int install(void)
{
	struct sigaction ours = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	page = (uintptr_t)sysconf(_SC_PAGESIZE);
	sigemptyset(&ours.sa_mask);
	if (sigaction(SIGBUS, NULL, &before) < 0 || sigaction(SIGBUS, &ours, NULL) < 0)
		return -errno;
	return 0;
}

static void uninstall(void)
{
	struct sigaction now;

	if (sigaction(SIGBUS, NULL, &now) == 0 && now.sa_flags & SA_SIGINFO &&
	    now.sa_sigaction == on_sigbus)
		sigaction(SIGBUS, &before, NULL);
}

int nm_sigbus_guard(struct nm_sigbus_guard *guard)
{
	int err = -ENOSPC;

	atomic_store(&guard->lost, false);
	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < NM_SIGBUS_MAX_GUARDS && err == -ENOSPC; i++) {
		if (guards[i])
			continue;
		err = nr_guards ? 0 : install();
		if (err)
			break;
		nr_guards++;
		/* Partner: find() in the handler. */
		atomic_store_explicit(&guards[i], guard, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return err;
}

void nm_sigbus_unguard(struct nm_sigbus_guard *guard)
{
	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < NM_SIGBUS_MAX_GUARDS; i++) {
		if (guards[i] != guard)
			continue;
		atomic_store_explicit(&guards[i], NULL, memory_order_release);
		if (--nr_guards == 0)
			uninstall();
	}
	pthread_mutex_unlock(&lock);
}
