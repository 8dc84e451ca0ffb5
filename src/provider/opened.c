/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fabrics and domains that are open. A program that names one in its hints wants to go on with
 * it; the handle may as well be another provider's, or stale, so it is looked up and not looked at.
 */
#include <pthread.h>

#include "provider/provider.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nm_opened *all;

void nm_opened_add(struct nm_opened *opened, const struct fid *fid)
{
	opened->fid = fid;
	pthread_mutex_lock(&mutex);
	opened->next = all;
	all = opened;
	pthread_mutex_unlock(&mutex);
}

void nm_opened_remove(struct nm_opened *opened)
{
	struct nm_opened **at;

	pthread_mutex_lock(&mutex);
	for (at = &all; *at; at = &(*at)->next) {
		if (*at == opened) {
			*at = opened->next;
			break;
		}
	}
	pthread_mutex_unlock(&mutex);
}

bool nm_opened_has(const struct fid *fid)
{
	const struct nm_opened *opened;

	pthread_mutex_lock(&mutex);
	for (opened = all; opened && opened->fid != fid; opened = opened->next)
		;
	pthread_mutex_unlock(&mutex);
	return opened;
}
