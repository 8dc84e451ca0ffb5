/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DELAY_NS 20000000

static const char *armed_name;
static enum nm_fault_action armed_action;
static _Atomic unsigned int left; /* times to come by before it happens */
static _Atomic uint32_t *counts;

void nm_fault_arm(const char *name, enum nm_fault_action action, unsigned int nth)
{
	armed_name = name;
	armed_action = action;
	left = nth;
}

void nm_fault_count(_Atomic uint32_t *seen)
{
	counts = seen;
}

void nm_fault_hit(const struct nm_fault_point *const *place)
{
	const struct timespec delay = {0, DELAY_NS};

	if (counts)
		atomic_fetch_add(&counts[place - __start_nm_faults], 1);
	if (armed_action == NM_FAULT_NONE || strcmp((*place)->name, armed_name) ||
	    atomic_fetch_sub(&left, 1) != 1)
		return;
	switch (armed_action) {
	case NM_FAULT_KILL:
		kill(getpid(), SIGKILL);
		break;
	case NM_FAULT_STOP:
		kill(getpid(), SIGSTOP);
		break;
	case NM_FAULT_DELAY:
		nanosleep(&delay, NULL);
		break;
	case NM_FAULT_NONE:
		break;
	}
}
