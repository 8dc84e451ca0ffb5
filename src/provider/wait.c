/* SPDX-License-Identifier: Apache-2.0 */
#include "provider/wait.h"

#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <rdma/fi_errno.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/params.h"
#include "provider/provider.h"

/* Waking up costs 14 to 44 us: not before so much was spent on polling. */
#define SPIN_NS (200 * NM_NS_PER_US)
/* Length of a sleep where no doorbell rings. */
#define MOMENT_NS (50 * NM_NS_PER_US)

bool nm_wait_offered(enum fi_wait_obj wait_obj)
{
	return wait_obj == FI_WAIT_NONE || wait_obj == FI_WAIT_UNSPEC || wait_obj == FI_WAIT_FD ||
	       wait_obj == FI_WAIT_YIELD;
}

int nm_wait_open(unsigned int value, int *ret_fd)
{
	int fd = eventfd(value, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

void nm_wait_raise(int fd)
{
	/* Full after 2^64 - 2 unread events; it stays readable then. */
	if (fd >= 0)
		(void)eventfd_write(fd, 1);
}

void nm_wait_lower(int fd)
{
	eventfd_t events;

	if (fd >= 0)
		(void)eventfd_read(fd, &events);
}

int nm_wait_control(enum fi_wait_obj wait_obj, int fd, int command, void *arg)
{
	switch (command) {
	case FI_GETWAIT:
		if (wait_obj != FI_WAIT_FD)
			return -FI_ENODATA;
		*(int *)arg = fd;
		return 0;
	case FI_GETWAITOBJ:
		*(enum fi_wait_obj *)arg = wait_obj;
		return 0;
	default:
		return -FI_ENOSYS;
	}
}

void nm_nap_begin(struct nm_nap *nap)
{
	nap->busy_ns = nm_clock_ns();
}

static bool has_come(const struct nm_nap *nap)
{
	if (nap->queue)
		return !nm_cqueue_empty(nap->queue);
	return nap->counter->value >= nap->value || nap->counter->errors != nap->errors;
}

/* Is there work that only a polling thread does? */
static bool has_work(const struct nm_domain *domain)
{
	for (size_t i = 0; i < domain->eps.nr; i++)
		if (nm_engine_has_work(domain->eps.eps[i]->engine))
			return true;
	return false;
}

NM_COLD void nm_naps_look(struct nm_lock *lock)
{
	for (struct nm_nap *nap = lock->nappers; nap; nap = nap->next) {
		if (nap->is_rung || (!has_come(nap) && !(nap->is_long && has_work(nap->domain))))
			continue;
		nap->is_rung = true;
		nm_doorbell_ring(&nap->doorbell);
	}
}

/*
 * Have DOORBELLS ring for everything of the domain that might bring something: a queue's
 * completions come by any of it. Returns how long to sleep at most.
 */
static uint64_t fall_asleep(struct nm_nap *nap, struct nm_doorbells *doorbells)
{
	struct nm_domain *domain = nap->domain;
	bool is_heard = true;

	nm_lock_take(&domain->lock);
	nap->is_rung = false;
	nm_doorbells_add(doorbells, &nap->doorbell);
	nap->next = domain->lock.nappers;
	domain->lock.nappers = nap;
	for (size_t i = 0; i < domain->eps.nr; i++)
		is_heard &= nm_engine_sleep(domain->eps.eps[i]->engine, doorbells);
	nap->is_long = is_heard;
	nm_lock_give(&domain->lock);
	return is_heard ? nm_params()->sleep_ms * NM_NS_PER_MS : MOMENT_NS;
}

static void wake_up(struct nm_nap *nap)
{
	struct nm_domain *domain = nap->domain;
	struct nm_nap **place = &domain->lock.nappers;

	nm_lock_take(&domain->lock);
	while (*place != nap)
		place = &(*place)->next;
	*place = nap->next;
	for (size_t i = 0; i < domain->eps.nr && !domain->lock.nappers; i++)
		nm_engine_wake(domain->eps.eps[i]->engine);
	nm_lock_give(&domain->lock);
}

void nm_nap_take(struct nm_nap *nap, uint64_t left_ns)
{
	bool may_ring = nm_params()->sleep_ms && !nm_doorbells_are_refused(), is_woken;
	uint64_t sleep_ns = MOMENT_NS;
	struct nm_doorbells doorbells;

	if (nm_clock_ns() - nap->busy_ns < SPIN_NS) {
		sched_yield();
		return;
	}
	doorbells.nr = 0;
	doorbells.rung = false;
	if (nap->signal) {
		nm_doorbells_add(&doorbells, nap->signal);
		doorbells.rung = doorbells.doorbells[0].seen != 0;
	}
	if (may_ring)
		sleep_ns = fall_asleep(nap, &doorbells);
	is_woken = nm_doorbells_wait(&doorbells, nm_min_u64(sleep_ns, left_ns));
	if (may_ring)
		wake_up(nap);
	if (is_woken)
		nm_nap_begin(nap);
}

int nm_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	int i;

	(void)fabric;
	for (i = 0; i < count; i++)
		if (fids[i]->fclass == FI_CLASS_CQ || fids[i]->fclass == FI_CLASS_CNTR)
			return -FI_EAGAIN;
	return 0;
}
