/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One lock per domain. It serialises everything that touches the domain's engines, queues, vectors
 * and regions, because queues are shared by endpoints and regions by all of them. When the program
 * promised FI_THREAD_DOMAIN the lock is never taken: the promise is the lock, unless a thread of the
 * provider works beside the program (mover.h).
 */
#ifndef NM_PROVIDER_LOCK_H
#define NM_PROVIDER_LOCK_H

#include <pthread.h>
#include <stdbool.h>

#include "base/compiler.h"

struct nm_nap;

struct nm_lock {
	pthread_mutex_t mutex;
	bool needed;		/* never changes after the domain is open */
	struct nm_nap *nappers; /* calls that sleep meanwhile (wait.h) */
};

/* Under the lock: wake those for which another thread has brought what they wait for (wait.c). */
void nm_naps_look(struct nm_lock *lock);

static inline int nm_lock_init(struct nm_lock *lock, bool needed)
{
	lock->needed = needed;
	lock->nappers = NULL;
	return -pthread_mutex_init(&lock->mutex, NULL);
}

static inline void nm_lock_fini(struct nm_lock *lock)
{
	pthread_mutex_destroy(&lock->mutex);
}

/* In a forked child: the threads that held it or slept are in the parent. */
static inline void nm_lock_forget(struct nm_lock *lock)
{
	lock->nappers = NULL;
	if (lock->needed)
		pthread_mutex_init(&lock->mutex, NULL);
}

static inline void nm_lock_take(struct nm_lock *lock)
{
	if (lock->needed)
		pthread_mutex_lock(&lock->mutex);
}

static inline void nm_lock_give(struct nm_lock *lock)
{
	if (!lock->needed)
		return;
	if (nm_unlikely(lock->nappers != NULL))
		nm_naps_look(lock);
	pthread_mutex_unlock(&lock->mutex);
}

#endif
