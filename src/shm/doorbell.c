/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/doorbell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

/* The nap if the kernel cannot wait for doorbells. */
#define BLIND_NAP_NS (50 * NM_NS_PER_US)

void nm_doorbell_wake(const _Atomic uint32_t *word)
{
	/* Not FUTEX_PRIVATE: the kernel finds sleepers by the file of the word. */
	(void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	NM_FAULT("doorbell-woken");
}

void nm_doorbell_ring(_Atomic uint32_t *word)
{
	NM_FAULT("doorbell-before");
	/* Partner: nm_doorbells_add(). */
	atomic_fetch_add_explicit(word, 1, memory_order_release);
	NM_FAULT("doorbell-counted");
	nm_doorbell_wake(word);
}

static struct timespec to_timespec(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / NM_NS_PER_S),
				 .tv_nsec = (long)(ns % NM_NS_PER_S)};
}

static void nap(uint64_t ns)
{
	struct timespec time = to_timespec(ns);

	nanosleep(&time, NULL);
}

/* Kernels before 5.16 lack this call, and container filters may refuse it. */
static _Atomic bool is_refused;

bool nm_doorbells_are_refused(void)
{
	return atomic_load_explicit(&is_refused, memory_order_relaxed);
}

bool nm_doorbells_wait(const struct nm_doorbells *doorbells, uint64_t timeout_ns)
{
	struct futex_waitv words[NM_DOORBELLS_MAX];
	struct timespec until;

	if (doorbells->rung)
		return true;
	if (doorbells->nr == 0) {
		nap(timeout_ns);
		return false;
	}
	if (nm_doorbells_are_refused()) {
		nap(nm_min_u64(timeout_ns, BLIND_NAP_NS));
		return false;
	}
	for (unsigned int i = 0; i < doorbells->nr; i++)
		words[i] = (struct futex_waitv){
			.val = doorbells->doorbells[i].seen,
			.uaddr = (uintptr_t)doorbells->doorbells[i].word,
			.flags = FUTEX_32,
		};
	NM_FAULT("doorbell-sleep");
	until = to_timespec(nm_clock_ns() + timeout_ns);
	if (syscall(SYS_futex_waitv, words, doorbells->nr, 0, &until, CLOCK_MONOTONIC) >= 0 ||
	    errno == EAGAIN)
		return true;
	/* EFAULT: another thread unmapped the window of a dead peer. */
	if (errno == ETIMEDOUT || errno == EINTR || errno == EFAULT)
		return false;
	if (errno == ENOMEM) {
		nap(nm_min_u64(timeout_ns, BLIND_NAP_NS));
		return false;
	}
	if (!atomic_exchange_explicit(&is_refused, true, memory_order_relaxed))
		nm_info("blocking calls poll every 50 us instead of sleeping for a message: "
			"futex_waitv: %s",
			strerror(errno));
	return false;
}
