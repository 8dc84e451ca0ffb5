/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_LINE 512
#define EXIT_NOT_STARTED 127
#define EXIT_SIGNAL 128

static void __attribute__((noreturn))
start(const char *program, char *const argv[], const char *node, int output)
{
	char name[128], conf[PATH_MAX + 16];
	const char *given = getenv("SLURM_CONF");
	char *const environment[] = {
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"LC_ALL=C.UTF-8",
		name,
		given ? conf : NULL,
		NULL};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	snprintf(name, sizeof(name), "SLURMD_NODENAME=%s", node);
	snprintf(conf, sizeof(conf), "SLURM_CONF=%s", given ? given : "");
	if (null >= 0)
		dup2(null, STDIN_FILENO);
	dup2(output, STDOUT_FILENO);
	dup2(output, STDERR_FILENO);
	execve(program, argv, environment);
	dprintf(STDERR_FILENO, "cannot start %s: %s\n", program, strerror(errno));
	_exit(EXIT_NOT_STARTED);
}

/* Pass lines on until the program, and every process with its output, has closed it. */
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

/* Room for every argument of a launch. */
struct words {
	char *argv[48];
	size_t nr;
	char numbers[8][24];
	size_t nr_numbers;
};

static void add(struct words *words, const char *option, const char *value)
{
	words->argv[words->nr++] = (char *)option;
	words->argv[words->nr++] = (char *)value;
}

static void add_number(struct words *words, const char *option, uint64_t value)
{
	char *number = words->numbers[words->nr_numbers++];

	snprintf(number, sizeof(words->numbers[0]), "%" PRIu64, value);
	add(words, option, number);
}

static void add_machines(struct words *words, const struct nm_spank_place *place,
			 const struct nm_spank_machines *machines)
{
	add_number(words, "--vms", machines->nr);
	add_number(words, "--vcpus", machines->vcpus);
	add_number(words, "--memory", machines->memory_bytes);
	add(words, "--image", machines->image);
	add(words, "--shares", machines->shares);
	add(words, "--accel", machines->accel);
	add(words, "--nodes", place->nodes);
	add(words, "--key", place->key);
}

static void add_servers(struct words *words, const struct nm_spank_place *place,
			const struct nm_spank_machines *machines)
{
	add_number(words, "--servers", machines->nr);
	add(words, "--image", machines->image);
	add(words, "--nodes", place->nodes);
	add(words, "--cloud", place->cloud);
}

int nm_spank_launch(const char *program, const struct nm_spank_place *place,
		    const struct nm_spank_request *request, nm_spank_say_fn say)
{
	struct words words = {.argv = {"nearmetal", "slurm", "launch"}, .nr = 3};
	char text[NM_SPANK_REQUEST_LEN];

	nm_spank_request_format(request, text);
	add_number(&words, "--job", place->job);
	add_number(&words, "--uid", place->uid);
	add_number(&words, "--segment", request->segment_bytes);
	add_number(&words, "--scratch", request->scratch_bytes);
	add(&words, "--request", text);
	if (place->partition)
		add(&words, "--partition", place->partition);
	/* In a machine the image says whose settings tasks get. */
	if (request->mpi[0] && !nm_spank_has_machines(request->node))
		add(&words, "--mpi", request->mpi);
	if (request->channels[0])
		add(&words, "--channels", request->channels);
	if (request->nr_vfs)
		add_number(&words, "--vfs", request->nr_vfs);
	if (request->node == NM_SPANK_VM)
		add_machines(&words, place, &request->machines);
	if (request->node == NM_SPANK_OPENSTACK)
		add_servers(&words, place, &request->machines);
	return nm_spank_run(program, words.argv, place->node, say);
}

int nm_spank_reclaim(const char *program, uint32_t job, const char *node, nm_spank_say_fn say)
{
	char id[16];
	char *argv[] = {"nearmetal", "slurm", "reclaim", "--job", id, NULL};

	snprintf(id, sizeof(id), "%" PRIu32, job);
	return nm_spank_run(program, argv, node, say);
}
