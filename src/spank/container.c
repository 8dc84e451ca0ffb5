/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/container.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"

static const struct {
	const char *name;
	int type;
} namespaces[5] = {
	{"ipc", CLONE_NEWIPC},
	{"uts", CLONE_NEWUTS},
	{"pid", CLONE_NEWPID},
	/* The node's own, unless there are virtual machines. */
	{"net", CLONE_NEWNET},
	/* Last: the paths of the others are looked up in the old one. */
	{"mnt", CLONE_NEWNS},
};

/* Returns the length, or -errno; the text is terminated. */
static ssize_t read_file(const char *directory, const char *name, char *ret_text, size_t len)
{
	char path[256];
	ssize_t got;
	int fd, err;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) >= sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	got = read(fd, ret_text, len);
	err = errno;
	close(fd);
	if (got < 0)
		return -err;
	if ((size_t)got == len)
		return -EFBIG;
	ret_text[got] = '\0';
	return got;
}

/* When PID started, in ticks since boot; 0: there is no such process. */
static unsigned long long start_ticks(pid_t pid)
{
	char directory[32], text[1024], *at;
	unsigned long long ticks = 0;

	snprintf(directory, sizeof(directory), "/proc/%d", pid);
	if (read_file(directory, "stat", text, sizeof(text)) < 0)
		return 0;
	/* The name of the program may hold anything; the fields begin behind its last bracket. */
	at = strrchr(text, ')');
	for (int field = 0; at && field < 20; field++)
		at = strchr(at + 1, ' ');
	if (at)
		ticks = strtoull(at, NULL, 10);
	return ticks;
}

static int no_container(const char *what, int err, struct nm_reason *ret_reason)
{
	nm_reason_set(
		ret_reason,
		"this node has no container of the job (%s: %s); was the allocation created without --nm-node?",
		what, strerror(-err));
	return -ENOENT;
}

bool nm_spank_container_partition(const char *directory, char ret_name[NM_SPANK_PARTITION_LEN])
{
	char name[NM_SPANK_PARTITION_LEN];

	if (read_file(directory, "partition", name, sizeof(name)) < 0)
		return false;
	name[strcspn(name, "\n")] = '\0';
	if (!name[0])
		return false;
	memcpy(ret_name, name, sizeof(name));
	return true;
}

bool nm_spank_container_refusal(const char *directory, struct nm_reason *ret_reason)
{
	char text[sizeof(ret_reason->text)];
	ssize_t len = read_file(directory, "refusal", text, sizeof(text));

	if (len < 0)
		return false;
	text[strcspn(text, "\n")] = '\0';
	nm_reason_set(ret_reason, "%s", text);
	return true;
}

int nm_spank_container_machine(const char *directory, uint32_t number, uint32_t nr,
			       char ret_name[NM_SPANK_MACHINE_LEN], struct nm_reason *ret_reason)
{
	char text[16384] = "", *line = text, *end;
	uint64_t nr_machines = 0, index;
	ssize_t len = read_file(directory, "machines", text, sizeof(text));

	if (len < 0)
		return no_container("machines", (int)len, ret_reason);
	for (ssize_t i = 0; i < len; i++)
		nr_machines += text[i] == '\n';
	if (!nr_machines || number >= nr)
		return no_container("machines", -EINVAL, ret_reason);
	index = nr < nr_machines ? number : number * nr_machines / nr;
	while (index--)
		line = strchr(line, '\n') + 1;
	end = strchr(line, '\n');
	if (end == line || end - line >= NM_SPANK_MACHINE_LEN)
		return no_container("machines", -EINVAL, ret_reason);
	*end = '\0';
	memcpy(ret_name, line, (size_t)(end - line) + 1);
	return 0;
}

static int check_request(const char *directory, const struct nm_spank_request *request,
			 struct nm_reason *ret_reason)
{
	char made[NM_SPANK_REQUEST_LEN + 1], asked[NM_SPANK_REQUEST_LEN];
	ssize_t len = read_file(directory, "request", made, sizeof(made));

	if (len < 0)
		return no_container("request", (int)len, ret_reason);
	made[strcspn(made, "\n")] = '\0';
	nm_spank_request_format(request, asked);
	if (!strcmp(made, asked))
		return 0;
	nm_reason_set(
		ret_reason,
		"the --nm options of the step differ from those of the allocation, whose containers exist already: leave them out");
	return -EINVAL;
}

int nm_spank_environment_split(struct nm_spank_environment *environment)
{
	char *line = environment->bytes, *end, *equals;

	environment->nr = 0;
	for (; *line; line = end + 1) {
		end = strchr(line, '\n');
		equals = strchr(line, '=');
		if (!end || !equals || equals > end || equals == line ||
		    environment->nr == NM_SPANK_MAX_VARIABLES)
			return -EINVAL;
		*end = *equals = '\0';
		environment->names[environment->nr] = line;
		environment->values[environment->nr++] = equals + 1;
	}
	return 0;
}

static int read_environment(const char *directory, struct nm_spank_environment *ret_environment,
			    struct nm_reason *ret_reason)
{
	ssize_t len = read_file(directory, "environment", ret_environment->bytes,
				sizeof(ret_environment->bytes));

	if (len < 0)
		return no_container("environment", (int)len, ret_reason);
	if (nm_spank_environment_split(ret_environment)) {
		nm_reason_set(ret_reason, "%.80s/environment is not NAME=VALUE lines", directory);
		return -EINVAL;
	}
	return 0;
}

static int open_namespaces(pid_t pid, int ret_fds[NM_ARRAY_SIZE(namespaces)])
{
	char path[48];

	for (size_t i = 0; i < NM_ARRAY_SIZE(namespaces); i++) {
		snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, namespaces[i].name);
		ret_fds[i] = open(path, O_RDONLY | O_CLOEXEC);
		if (ret_fds[i] < 0)
			return -errno;
	}
	return 0;
}

static void close_namespaces(const int fds[NM_ARRAY_SIZE(namespaces)])
{
	for (size_t i = 0; i < NM_ARRAY_SIZE(namespaces); i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static int join(const int fds[NM_ARRAY_SIZE(namespaces)], struct nm_reason *ret_reason)
{
	for (size_t i = 0; i < NM_ARRAY_SIZE(namespaces); i++)
		if (setns(fds[i], namespaces[i].type) < 0) {
			int err = -errno;

			nm_reason_set(ret_reason, "cannot enter the %s namespace of the job: %s",
				      namespaces[i].name, strerror(-err));
			return err;
		}
	return 0;
}

static bool parse_holder(const char *text, pid_t *ret_pid, unsigned long long *ret_ticks)
{
	unsigned long long ticks;
	char *end;
	long pid;

	errno = 0;
	pid = strtol(text, &end, 10);
	if (errno || pid <= 1 || pid > INT_MAX || *end != ' ')
		return false;
	ticks = strtoull(end + 1, &end, 10);
	if (errno || !ticks || (*end && *end != '\n'))
		return false;
	*ret_pid = (pid_t)pid;
	*ret_ticks = ticks;
	return true;
}

int nm_spank_container_enter(const char *directory, const struct nm_spank_request *request,
			     struct nm_spank_environment *ret_environment,
			     struct nm_reason *ret_reason)
{
	int fds[NM_ARRAY_SIZE(namespaces)] = {-1, -1, -1, -1, -1}, err;
	unsigned long long ticks;
	char holder[64];
	ssize_t len;
	pid_t pid;

	if (nm_spank_container_refusal(directory, ret_reason))
		return -EPERM;
	len = read_file(directory, "holder", holder, sizeof(holder));
	if (len < 0)
		return no_container("holder", (int)len, ret_reason);
	if (!parse_holder(holder, &pid, &ticks))
		return no_container("holder", -EINVAL, ret_reason);
	err = check_request(directory, request, ret_reason);
	if (!err)
		err = read_environment(directory, ret_environment, ret_reason);
	if (err)
		return err;
	err = open_namespaces(pid, fds);
	if (err)
		err = no_container("its process 1", err, ret_reason);
	else if (start_ticks(pid) != ticks)
		/* Looked at when the namespaces are held: they are those of this very process. */
		err = no_container("its process 1", -ESRCH, ret_reason);
	else
		err = join(fds, ret_reason);
	close_namespaces(fds);
	return err;
}

/* Slurm shall see the end of the child as that of the task it started. */
static void __attribute__((noreturn)) end_as(int status)
{
	struct rlimit none = {0, 0};
	sigset_t one;
	int signum;

	if (WIFEXITED(status))
		_exit(WEXITSTATUS(status));
	signum = WTERMSIG(status);
	/* The core, if any, is the child's. */
	setrlimit(RLIMIT_CORE, &none);
	signal(signum, SIG_DFL);
	sigemptyset(&one);
	sigaddset(&one, signum);
	raise(signum);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	_exit(128 + signum);
}

/*
 * Whether the signal of SENDER did not reach the child as well. Slurm is the parent. A process
 * inside can name us by our process group alone, in which the child is too; one that has ended may
 * have been inside.
 */
static bool is_for_us_alone(pid_t sender)
{
	pid_t group;

	if (sender == getppid())
		return true;
	group = getpgid(sender);
	return group > 0 && group != getpgrp();
}

static void __attribute__((noreturn)) stay_outside(pid_t child, bool forward, const sigset_t *all)
{
	int status = 0;

	prctl(PR_SET_NAME, "nm-outside");
	/* End of file and broken pipes concern the child and its partner only. */
	if (syscall(SYS_close_range, 0, ~0U, 0) < 0)
		for (int fd = 0; fd < 1024; fd++)
			close(fd);
	for (;;) {
		siginfo_t info;
		int signum = sigwaitinfo(all, &info);

		if (signum < 0)
			continue;
		if (signum != SIGCHLD) {
			if (forward && info.si_code <= 0 && is_for_us_alone(info.si_pid))
				kill(child, signum);
			continue;
		}
		/* A stopped child is no ended one. */
		if (waitpid(child, &status, WNOHANG) == child)
			end_as(status);
	}
}

int nm_spank_container_continue(bool forward, struct nm_reason *ret_reason)
{
	sigset_t all, before;
	pid_t child;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	/* An ignored SIGCHLD would have the kernel throw the exit code away. */
	signal(SIGCHLD, SIG_DFL);
	child = fork();
	if (child < 0) {
		int err = -errno;

		sigprocmask(SIG_SETMASK, &before, NULL);
		nm_reason_set(ret_reason, "cannot start a process in the container of the job: %s",
			      strerror(-err));
		return err;
	}
	if (child > 0)
		stay_outside(child, forward, &all);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return 0;
}
