/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One lock per domain. It serialises everything that touches the domain's engines, queues, vectors
 * and regions, because queues are shared by endpoints and regions by all of them. When the program
 * promised FI_THREAD_DOMAIN the lock is never taken: the promise is the lock.
 */
#ifndef NM_PROVIDER_LOCK_H
#define NM_PROVIDER_LOCK_H

#include <pthread.h>
#include <stdbool.h>

struct nm_lock {
	pthread_mutex_t mutex;
	bool needed; /* never changes after the domain is open */
};

static inline int nm_lock_init(struct nm_lock *lock, bool needed)
{
	lock->needed = needed;
	return -pthread_mutex_init(&lock->mutex, NULL);
}

static inline void nm_lock_fini(struct nm_lock *lock)
{
	pthread_mutex_destroy(&lock->mutex);
}

static inline void nm_lock_take(struct nm_lock *lock)
{
	if (lock->needed)
		pthread_mutex_lock(&lock->mutex);
}

static inline void nm_lock_give(struct nm_lock *lock)
{
	if (lock->needed)
		pthread_mutex_unlock(&lock->mutex);
}

#endif
