/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fork.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nm_fork_watch *watches;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	struct nm_fork_watch *watch;

	pthread_mutex_lock(&lock);
	for (watch = watches; watch; watch = watch->next)
		if (watch->before)
			watch->before(watch);
}

static void after_fork_parent(void)
{
	struct nm_fork_watch *watch;

	for (watch = watches; watch; watch = watch->next)
		if (watch->in_parent)
			watch->in_parent(watch);
	pthread_mutex_unlock(&lock);
}

static void after_fork_child(void)
{
	struct nm_fork_watch *watch;

	for (watch = watches; watch; watch = watch->next)
		if (watch->in_child)
			watch->in_child(watch);
	watches = NULL;
	pthread_mutex_unlock(&lock);
}

static void register_handlers(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void nm_fork_watch(struct nm_fork_watch *watch)
{
	pthread_once(&once, register_handlers);
	pthread_mutex_lock(&lock);
	watch->next = watches;
	watches = watch;
	pthread_mutex_unlock(&lock);
}

void nm_fork_unwatch(struct nm_fork_watch *watch)
{
	struct nm_fork_watch **place;

	pthread_mutex_lock(&lock);
	for (place = &watches; *place; place = &(*place)->next)
		if (*place == watch) {
			*place = watch->next;
			break;
		}
	pthread_mutex_unlock(&lock);
}
