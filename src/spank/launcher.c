/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_LINE 512
#define EXIT_NOT_STARTED 127
#define EXIT_SIGNAL 128

static void __attribute__((noreturn))
start(const char *program, char *const argv[], const char *node, int output)
{
	char name[128];
	char *const environment[] = {
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"LC_ALL=C.UTF-8", name, NULL};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	snprintf(name, sizeof(name), "SLURMD_NODENAME=%s", node);
	if (null >= 0)
		dup2(null, STDIN_FILENO);
	dup2(output, STDOUT_FILENO);
	dup2(output, STDERR_FILENO);
	execve(program, argv, environment);
	dprintf(STDERR_FILENO, "cannot start %s: %s\n", program, strerror(errno));
	_exit(EXIT_NOT_STARTED);
}

/* Hand on lines until the program, and whoever else has its output, closes it. */
static void relay(int fd, nm_spank_say_fn say)
{
	char line[MAX_LINE], *end;
	size_t used = 0;
	ssize_t got;

	while ((got = read(fd, line + used, sizeof(line) - 1 - used)) != 0) {
		if (got < 0) {
			if (errno == EINTR)
				continue;
			break;
		}
		used += (size_t)got;
		line[used] = '\0';
		while ((end = memchr(line, '\n', used)) || used == sizeof(line) - 1) {
			size_t len = end ? (size_t)(end - line) + 1 : used;

			if (end)
				*end = '\0';
			say(line);
			used -= len;
			memmove(line, line + len, used + 1);
		}
	}
	if (used)
		say(line);
}

int nm_spank_run(const char *program, char *const argv[], const char *node, nm_spank_say_fn say)
{
	int fds[2], status;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return EXIT_NOT_STARTED;
	pid = fork();
	if (pid == 0)
		start(program, argv, node, fds[1]);
	close(fds[1]);
	if (pid < 0) {
		close(fds[0]);
		return EXIT_NOT_STARTED;
	}
	relay(fds[0], say);
	close(fds[0]);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return EXIT_NOT_STARTED;
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_SIGNAL + WTERMSIG(status);
}

int nm_spank_launch(const char *program, uint32_t job, uid_t uid, const char *node,
		    const char *partition, const struct nm_spank_request *request,
		    nm_spank_say_fn say)
{
	char id[16], user[16], segment[24], scratch[24], text[NM_SPANK_REQUEST_LEN];
	char *argv[24] = {"nearmetal", "slurm", "launch",    "--job", id,	   "--uid", user,
			  "--segment", segment, "--scratch", scratch, "--request", text};
	size_t nr = 13;

	snprintf(id, sizeof(id), "%" PRIu32, job);
	snprintf(user, sizeof(user), "%u", uid);
	snprintf(segment, sizeof(segment), "%" PRIu64, request->segment_bytes);
	snprintf(scratch, sizeof(scratch), "%" PRIu64, request->scratch_bytes);
	nm_spank_request_format(request, text);
	if (partition) {
		argv[nr++] = "--partition";
		argv[nr++] = (char *)partition;
	}
	if (request->mpi[0]) {
		argv[nr++] = "--mpi";
		argv[nr++] = (char *)request->mpi;
	}
	if (request->channels[0]) {
		argv[nr++] = "--channels";
		argv[nr++] = (char *)request->channels;
	}
	return nm_spank_run(program, argv, node, say);
}

int nm_spank_reclaim(const char *program, uint32_t job, const char *node, nm_spank_say_fn say)
{
	char id[16];
	char *argv[] = {"nearmetal", "slurm", "reclaim", "--job", id, NULL};

	snprintf(id, sizeof(id), "%" PRIu32, job);
	return nm_spank_run(program, argv, node, say);
}
