/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread of a domain that moves channels while the program computes (NEARMETAL_MOVE_THREAD, see
 * docs/design/migration.md). It sleeps until a transport has something to report, which happens
 * when a machine is asked to leave its segment, and then makes progress until the move is over. It
 * calls nothing of the program. All progress is under the domain's lock, so the lock is needed even
 * if the program has promised FI_THREAD_DOMAIN.
 *
 * At exit() the thread ends before the destructors of libraries run. A forked child has none.
 */
#ifndef NM_PROVIDER_MOVER_H
#define NM_PROVIDER_MOVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nm_engine;
struct nm_lock;

struct nm_mover {
	/* Filled by the owner; all else is zero. */
	struct nm_lock *lock;
	/* Engine I of the domain; NULL: there are no more. Under the lock. */
	struct nm_engine *(*engine)(void *arg, size_t i);
	void *arg;
	/* ours */
	pthread_t thread;
	_Atomic uint32_t doorbell;
	_Atomic bool is_stopping;
	bool is_running;       /* under the lock */
	bool is_forked;	       /* the engines are the parent's: no thread drives them here */
	struct nm_mover *next; /* of all that run */
};

/* NEARMETAL_MOVE_THREAD is on. */
bool nm_mover_is_wanted(void);
/* There are other engines. Under the lock. Starts the thread if it is wanted and does not run. */
void nm_mover_look(struct nm_mover *mover);
/* End the thread, if it runs. Without the lock; no other call for MOVER runs or follows. */
void nm_mover_stop(struct nm_mover *mover);
/* In a forked child: the thread is not here. */
void nm_mover_forget(struct nm_mover *mover);

#endif
