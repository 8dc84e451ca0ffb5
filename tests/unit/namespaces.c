/* SPDX-License-Identifier: Apache-2.0 */
#include "namespaces.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	NM_CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

void enter_user_namespace(void)
{
	unsigned int uid = geteuid(), gid = getegid();
	char map[64];

	NM_CHECK_EQ(unshare(CLONE_NEWUSER), 0);
	write_file("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "%u %u 1", uid, uid);
	write_file("/proc/self/uid_map", map);
	snprintf(map, sizeof(map), "%u %u 1", gid, gid);
	write_file("/proc/self/gid_map", map);
}

bool user_namespaces_work(void)
{
	pid_t child = fork();
	int status;

	if (child == 0)
		_exit(unshare(CLONE_NEWUSER) != 0);
	waitpid(child, &status, 0);
	return status == 0;
}

void enter_pid_namespace(void)
{
	int status, flags = CLONE_NEWPID;
	pid_t child;

	if (geteuid() != 0)
		flags |= CLONE_NEWUSER;
	NM_CHECK_EQ(unshare(flags), 0);
	child = fork();
	NM_CHECK(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		NM_CHECK_EQ(getpid(), 1);
		return;
	}
	waitpid(child, &status, 0);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

bool pid_namespaces_work(void)
{
	return geteuid() == 0 || user_namespaces_work();
}
