/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>

#define THREAD_STACK (256 * 1024)

int nm_thread_start(pthread_t *ret_thread, const char *name, bool uses_segment,
		    void *(*run)(void *), void *arg)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	sigfillset(&all);
	if (uses_segment)
		sigdelset(&all, SIGBUS);
	/* The thread inherits this mask. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(ret_thread, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (err)
		return -err;
	pthread_setname_np(*ret_thread, name);
	return 0;
}
