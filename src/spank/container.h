/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Into the container of a job on this node. The launcher made it and left in the job's directory,
 * which root alone may write:
 *
 *	holder		"PID TICKS": its process 1, and when that started, in ticks since boot
 *	request		what it was made for, in one line
 *	partition	the partition of the job; empty: not known
 *	environment	NAME=VALUE lines for the tasks
 *	machines	the virtual machines that tasks run in, by name, one in a line; where there are any
 *	refusal		in place of holder: why the job gets nothing on this node
 *
 * Entering has two halves, because of the order in which slurmstepd works: as root, before the task
 * is put into the job's cgroups, namespaces are joined; as the user, when it is in them, a child is
 * made, which is the first to be in the PID namespace.
 */
#ifndef NM_SPANK_CONTAINER_H
#define NM_SPANK_CONTAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "spank/options.h"

#define NM_SPANK_STATE "/run/nearmetal/slurm"
#define NM_SPANK_ENVIRONMENT_MAX 16384
/* What an environment may hold: names and values within one line each. */
#define NM_SPANK_MAX_VARIABLES 64

struct nm_spank_environment {
	unsigned int nr;
	char *names[NM_SPANK_MAX_VARIABLES];
	char *values[NM_SPANK_MAX_VARIABLES];
	char bytes[NM_SPANK_ENVIRONMENT_MAX + 1];
};

#define NM_SPANK_PARTITION_LEN 256

/* Read the partition of the job. False: there is no container, or it does not say. */
bool nm_spank_container_partition(const char *directory, char ret_name[NM_SPANK_PARTITION_LEN]);

/* Read why the launcher made nothing. False: it did not refuse. */
bool nm_spank_container_refusal(const char *directory, struct nm_reason *ret_reason);

#define NM_SPANK_MACHINE_LEN 64

/*
 * The name of the machine that the task NUMBER of NR on this node runs in: blocks of tasks that are
 * alike in size, in the order of the machines. Returns 0, or -errno with a reason.
 */
int nm_spank_container_machine(const char *directory, uint32_t number, uint32_t nr,
			       char ret_name[NM_SPANK_MACHINE_LEN], struct nm_reason *ret_reason);

/*
 * Join the namespaces (mount, IPC, UTS, network; PID for children) of the container in DIRECTORY,
 * which must have been made for REQUEST, and read its environment. The working directory is lost.
 * Needs root. Returns 0, or -errno with a reason; -ENOENT: there is no container; -EPERM: the
 * launcher refused the job, in these words. After any other failure the process may be in some of
 * the namespaces: it must not go on.
 */
int nm_spank_container_enter(const char *directory, const struct nm_spank_request *request,
			     struct nm_spank_environment *ret_environment,
			     struct nm_reason *ret_reason);

/* Split the bytes into variables. Returns 0, or -EINVAL. */
int nm_spank_environment_split(struct nm_spank_environment *environment);

/*
 * Continue in a child, the only one that is in the PID namespace. The process itself stays outside
 * until the child ends, and then ends the same way, by exit code or signal; it holds no descriptor
 * open. FORWARD: forward the signals that processes send it; otherwise a signal to it reaches the
 * child too, as a terminal and a process of their group always do. Returns 0 in the child; -errno
 * with a reason when there is none.
 */
int nm_spank_container_continue(bool forward, struct nm_reason *ret_reason);

#endif
