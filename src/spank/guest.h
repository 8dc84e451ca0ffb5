/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task in a machine of its job: a virtual machine of the node, or a server of a cloud. The process
 * that Slurm started stays on the node, in the network that reaches the machine, and stands for the
 * task: it waits until the machine is up, has two ssh sessions over one connection, and ends as the
 * task does.
 *
 *	run	the task, with the streams that Slurm gave
 *	control	takes what the task is, as a script for sh, and then names of signals for it; its
 *		end, for any cause, kills the task
 *
 * Arguments and environment of users stand on no command line.
 */
#ifndef NM_SPANK_GUEST_H
#define NM_SPANK_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/reason.h"
#include "spank/container.h"

/* As the launcher makes them (nearmetal/slurm/machines.py). */
#define NM_SPANK_MACHINES "/run/nearmetal/vm"
#define NM_SPANK_JOB "/run/nearmetal/job"
/* An emulated machine on a busy node takes a minute; one that takes this long never comes. */
#define NM_SPANK_BOOT_S 600

struct nm_spank_guest_task {
	const char *machine; /* its name */
	uint32_t step;
	int number; /* among the tasks of the step on this node */
	uint32_t nr_tasks;
	const char *cwd;
	char **argv, **envp;
	const struct nm_spank_environment *extra;
	bool in_cloud;		       /* it is a server; what makes it says when it gives up */
	void (*say)(const char *line); /* where the user sees it */
};

/* Run it, in the namespaces of the job and as its user, and end as it does. */
void nm_spank_guest_run(const struct nm_spank_guest_task *task) __attribute__((noreturn));

/* A machine's console, of which the guest may write anything. */
enum nm_spank_boot { NM_SPANK_BOOTS, NM_SPANK_READY, NM_SPANK_FAILED };

/*
 * What the console of MACHINE says, TEXT of LEN bytes. A line without its end is not judged.
 * RET_REASON is set when it has failed; only what can be printed is in it.
 */
enum nm_spank_boot nm_spank_guest_boot(const char *machine, const char *text, size_t len,
				       struct nm_reason *ret_reason);

/*
 * The same of all that is to be read from FD, however long ago it became ready: a kernel that
 * speaks later, of memory that ran out in a task, must not hide it.
 */
enum nm_spank_boot nm_spank_guest_console(const char *machine, int fd,
					  struct nm_reason *ret_reason);

/*
 * Whether EVENTS, a control group's memory.events or, of version 1, its memory.oom_control, shows
 * that the kernel has killed for memory there.
 */
bool nm_spank_guest_was_killed(const char *events);

/*
 * Write the task as a script for sh. Returns 0, or -EINVAL with a reason: it is one rank of several
 * that Slurm's PMI is to join, which does not reach into a machine.
 */
int nm_spank_guest_script(const struct nm_spank_guest_task *task, FILE *out,
			  struct nm_reason *ret_reason);

#endif
