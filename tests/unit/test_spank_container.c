/* SPDX-License-Identifier: Apache-2.0 */
/* What the plugin reads of a container, and how it stands in for a task that is inside. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "spank/container.h"
#include "spank/launcher.h"

static struct nm_spank_environment environment;
static const struct nm_spank_request request = {.node = NM_SPANK_CONTAINER};

static void put(const char *name, const char *text)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", nm_test_dir(), name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	NM_CHECK_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void refused(int err, const char *words)
{
	struct nm_reason why;

	NM_CHECK_EQ(nm_spank_container_enter(nm_test_dir(), &request, &environment, &why), err);
	NM_CHECK_HAS(why.text, words);
}

NM_TEST(a_container_that_is_not_there_is_refused_in_words)
{
	char made[NM_SPANK_REQUEST_LEN];
	static const char *const holders[] = {"", "x", "1 5", "-3 5", "77", "99999999999999999 5"};

	refused(-ENOENT, "was the allocation created without --nm-node?");
	for (size_t i = 0; i < sizeof(holders) / sizeof(holders[0]); i++) {
		put("holder", holders[i]);
		refused(-ENOENT, "this node has no container of the job (holder:");
	}
	put("holder", "4194304 5\n");
	refused(-ENOENT, "(request:");
	put("request", "node=container segment=1\n");
	refused(-EINVAL, "differ from those of the allocation");
	nm_spank_request_format(&request, made);
	put("request", made);
	refused(-ENOENT, "(environment:");
	put("environment", "no variable\n");
	refused(-EINVAL, "is not NAME=VALUE lines");
	put("environment", "A=b\n");
	/* Larger than any pid. */
	refused(-ENOENT, "(its process 1:");
}

NM_TEST(a_refusal_on_record_is_told_as_it_is)
{
	put("refusal", "2 VFs are wanted on this node and none could be had\n");
	refused(-EPERM, "2 VFs are wanted on this node and none could be had");
	put("holder", "4194304 5\n");
	refused(-EPERM, "2 VFs are wanted");
}

NM_TEST(a_pid_that_is_somebody_elses_by_now_is_refused)
{
	char text[NM_SPANK_REQUEST_LEN];

	snprintf(text, sizeof(text), "%d 1\n", getpid());
	put("holder", text);
	nm_spank_request_format(&request, text);
	put("request", text);
	put("environment", "");
	refused(-ENOENT, "(its process 1:");
}

NM_TEST(tasks_are_spread_over_machines_in_blocks)
{
	static const struct {
		uint32_t number, nr;
		const char *machine;
	} cases[] = {
		{0, 1, "one"},	 {0, 2, "one"}, {1, 2, "two"}, {0, 3, "one"}, {1, 3, "two"},
		{2, 3, "three"}, {0, 7, "one"}, {2, 7, "one"}, {3, 7, "two"}, {6, 7, "three"},
	};
	char name[NM_SPANK_MACHINE_LEN];
	struct nm_reason why;

	NM_CHECK_EQ(nm_spank_container_machine(nm_test_dir(), 0, 1, name, &why), -ENOENT);
	put("machines", "");
	NM_CHECK_EQ(nm_spank_container_machine(nm_test_dir(), 0, 1, name, &why), -ENOENT);
	put("machines", "one\ntwo\nthree\n");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		NM_CHECK_EQ(nm_spank_container_machine(nm_test_dir(), cases[i].number, cases[i].nr,
						       name, &why),
			    0);
		NM_CHECK_STR(name, cases[i].machine);
	}
	NM_CHECK_EQ(nm_spank_container_machine(nm_test_dir(), 3, 3, name, &why), -ENOENT);
	put("machines", "\n\n");
	NM_CHECK_EQ(nm_spank_container_machine(nm_test_dir(), 0, 1, name, &why), -ENOENT);
}

NM_TEST(what_the_launcher_refused_is_told)
{
	struct nm_reason why;

	NM_CHECK(!nm_spank_container_refusal(nm_test_dir(), &why));
	put("refusal", "too large\nand more\n");
	NM_CHECK(nm_spank_container_refusal(nm_test_dir(), &why));
	NM_CHECK_STR(why.text, "too large");
}

static int split(const char *text)
{
	snprintf(environment.bytes, sizeof(environment.bytes), "%s", text);
	return nm_spank_environment_split(&environment);
}

NM_TEST(the_partition_is_the_one_on_record)
{
	char name[NM_SPANK_PARTITION_LEN] = "untouched", long_name[2 * NM_SPANK_PARTITION_LEN];

	NM_CHECK(!nm_spank_container_partition(nm_test_dir(), name));
	put("partition", "");
	NM_CHECK(!nm_spank_container_partition(nm_test_dir(), name));
	put("partition", "\n");
	NM_CHECK(!nm_spank_container_partition(nm_test_dir(), name));
	NM_CHECK_STR(name, "untouched");
	put("partition", "small\n");
	NM_CHECK(nm_spank_container_partition(nm_test_dir(), name));
	NM_CHECK_STR(name, "small");
	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	put("partition", long_name);
	NM_CHECK(!nm_spank_container_partition(nm_test_dir(), name));
	NM_CHECK_STR(name, "small");
}

NM_TEST(an_environment_is_lines_of_names_and_values)
{
	char text[NM_SPANK_MAX_VARIABLES * 4 + 8] = "";

	NM_CHECK_EQ(split("A=b=c\nD=\n"), 0);
	NM_CHECK_EQ(environment.nr, 2);
	NM_CHECK_STR(environment.names[0], "A");
	NM_CHECK_STR(environment.values[0], "b=c");
	NM_CHECK_STR(environment.names[1], "D");
	NM_CHECK_STR(environment.values[1], "");
	NM_CHECK_EQ(split(""), 0);
	NM_CHECK_EQ(environment.nr, 0);
	NM_CHECK_EQ(split("A=b"), -EINVAL);
	NM_CHECK_EQ(split("=b\n"), -EINVAL);
	NM_CHECK_EQ(split("A\nB=c\n"), -EINVAL);
	NM_CHECK_EQ(split("\n"), -EINVAL);
	for (int i = 0; i <= NM_SPANK_MAX_VARIABLES; i++)
		strcat(text, "A=b\n");
	NM_CHECK_EQ(split(text), -EINVAL);
}

static void end_by_code(void *arg)
{
	struct nm_reason why;

	NM_CHECK_EQ(nm_spank_container_continue(false, &why), 0);
	_exit(*(int *)arg);
}

static void end_by_signal(void *arg)
{
	struct nm_reason why;

	NM_CHECK_EQ(nm_spank_container_continue(false, &why), 0);
	raise(*(int *)arg);
}

NM_TEST(the_one_outside_ends_as_the_one_inside)
{
	int code = 7, kill_signal = SIGKILL, term = SIGTERM;

	nm_test_join(nm_test_fork(end_by_code, &code), 7 << 8);
	nm_test_join(nm_test_fork(end_by_signal, &kill_signal), SIGKILL);
	nm_test_join(nm_test_fork(end_by_signal, &term), SIGTERM);
}

struct forwarding {
	bool forward, of_group;
	int ready, go;
};

static volatile sig_atomic_t nr_signals;

static void count(int signum)
{
	(void)signum;
	nr_signals++;
}

/* Exits with the number of signals it has got when it is told to look. */
static void count_signals(void *arg)
{
	const struct forwarding *told = arg;
	struct nm_reason why;
	char byte;

	signal(SIGUSR1, count);
	NM_CHECK_EQ(setpgid(0, 0), 0);
	NM_CHECK_EQ(nm_spank_container_continue(told->forward, &why), 0);
	if (told->of_group)
		kill(0, SIGUSR1);
	NM_CHECK_EQ(write(told->ready, "", 1), 1);
	while (read(told->go, &byte, 1) < 0)
		continue;
	_exit((int)nr_signals);
}

enum sender { PARENT, STRANGER, GROUP };

/* No parent of who it signals. It is there until that has looked. */
static void be_stranger(void *arg)
{
	setpgid(0, 0);
	kill(*(pid_t *)arg, SIGUSR1);
	pause();
}

static void signal_outside(bool forward, enum sender sender, int expected)
{
	int ready[2], go[2];
	struct forwarding told = {.forward = forward, .of_group = sender == GROUP};
	char byte;
	pid_t pid, stranger = 0;

	NM_CHECK_EQ(pipe2(ready, O_CLOEXEC) | pipe2(go, O_CLOEXEC), 0);
	told.ready = ready[1];
	told.go = go[0];
	pid = nm_test_fork(count_signals, &told);
	NM_CHECK_EQ(read(ready[0], &byte, 1), 1);
	if (sender == PARENT)
		NM_CHECK_EQ(kill(pid, SIGUSR1), 0);
	if (sender == STRANGER)
		stranger = nm_test_fork(be_stranger, &pid);
	/* It has sent the signal on, if it does, when it has taken the second one. */
	nm_test_sleep_ms(200);
	NM_CHECK_EQ(write(go[1], "", 1), 1);
	nm_test_join(pid, expected << 8);
	if (stranger) {
		kill(stranger, SIGKILL);
		nm_test_join(stranger, SIGKILL);
	}
	close(ready[0]);
	close(ready[1]);
	close(go[0]);
	close(go[1]);
}

NM_TEST(signals_are_sent_on_only_where_nobody_else_sends_them)
{
	signal_outside(true, PARENT, 1);
	signal_outside(false, PARENT, 0);
	signal_outside(true, STRANGER, 1);
	signal_outside(true, GROUP, 1);
}

static char said[4096];

static void hear(const char *line)
{
	size_t used = strlen(said);

	snprintf(said + used, sizeof(said) - used, "%s|", line);
}

static int run_shell(const char *script)
{
	char *const argv[] = {"sh", "-c", (char *)script, NULL};

	said[0] = '\0';
	return nm_spank_run("/bin/sh", argv, "n1", hear);
}

NM_TEST(a_program_is_heard_line_by_line_and_told_nothing_else)
{
	setenv("NEARMETAL_TEST", "secret", 1);
	NM_CHECK_EQ(run_shell("echo one; echo two >&2; printf three; exit 3"), 3);
	NM_CHECK_STR(said, "one|two|three|");
	NM_CHECK_EQ(run_shell("echo $SLURMD_NODENAME $NEARMETAL_TEST"), 0);
	NM_CHECK_STR(said, "n1|");
	NM_CHECK_EQ(run_shell("kill -9 $$"), 128 + SIGKILL);
	NM_CHECK_EQ(run_shell("printf '%2000s' x"), 0);
	NM_CHECK_EQ(strlen(said), 2000 + 4);
	said[0] = '\0';
	NM_CHECK_EQ(
		nm_spank_run("/nowhere/nearmetal", (char *const[]){"nearmetal", NULL}, "n1", hear),
		127);
	NM_CHECK_HAS(said, "cannot start /nowhere/nearmetal: No such file");
}
