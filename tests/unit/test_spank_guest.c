/* SPDX-License-Identifier: Apache-2.0 */
/* What a machine's console says, and what a task becomes on its way into a machine. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "spank/guest.h"

static enum nm_spank_boot judge(const char *text, struct nm_reason *ret_reason)
{
	return nm_spank_guest_boot("n1-vm0", text, strlen(text), ret_reason);
}

NM_TEST(a_console_says_what_became_of_its_machine)
{
	struct nm_reason why;

	NM_CHECK_EQ(judge("", &why), NM_SPANK_BOOTS);
	NM_CHECK_EQ(judge("hello\nnearmetal: ready n1-vm0 after", &why), NM_SPANK_BOOTS);
	NM_CHECK_EQ(judge("nearmetal: ready n1-vm01 after 3 s\n", &why), NM_SPANK_BOOTS);
	NM_CHECK_EQ(judge("x\n\x1b[0mnearmetal: ready n1-vm0 after 3 s\r\n", &why), NM_SPANK_READY);
	NM_CHECK_EQ(judge("nearmetal: failed n1-vm0: no \x1b[2Jseed\nmore", &why), NM_SPANK_FAILED);
	NM_CHECK_STR(why.text, "no [2Jseed");
	NM_CHECK_EQ(judge("nearmetal: failed ?: no disk\n", &why), NM_SPANK_FAILED);
	NM_CHECK_STR(why.text, "no disk");
	NM_CHECK_EQ(judge("[ 1.0] Kernel panic - not syncing\n", &why), NM_SPANK_FAILED);
	NM_CHECK_STR(why.text, "Kernel panic - not syncing");
	NM_CHECK_EQ(judge("nearmetal: failed n2-vm0: other\n", &why), NM_SPANK_BOOTS);
}

/* What becomes of a console with so many bytes before and behind its one word. */
static enum nm_spank_boot judge_long(size_t before, const char *word, size_t behind)
{
	struct nm_reason why;
	enum nm_spank_boot boot;
	char path[256];
	FILE *console;

	snprintf(path, sizeof(path), "%s/console", nm_test_dir());
	console = fopen(path, "w+e");
	for (size_t i = 1; i <= before; i++)
		putc(i % 80 && i < before ? 'x' : '\n', console);
	fputs(word, console);
	for (size_t i = 1; i <= behind; i++)
		putc(i % 80 ? 'y' : '\n', console);
	fflush(console);
	rewind(console);
	boot = nm_spank_guest_console("n1-vm0", fileno(console), &why);
	fclose(console);
	return boot;
}

NM_TEST(a_machine_that_became_ready_long_ago_is_ready)
{
	static const char ready[] = "nearmetal: ready n1-vm0 after 3 s\n";

	NM_CHECK_EQ(judge_long(0, "", 0), NM_SPANK_BOOTS);
	NM_CHECK_EQ(judge_long(100, ready, 300000), NM_SPANK_READY);
	NM_CHECK_EQ(judge_long(300000, ready, 300000), NM_SPANK_READY);
	NM_CHECK_EQ(judge_long(300000, "nearmetal: failed n1-vm0: x\n", 300000), NM_SPANK_FAILED);
	NM_CHECK_EQ(judge_long(300000, "", 0), NM_SPANK_BOOTS);
	/* Across every place where what is read may end. */
	for (size_t before = 65536 - sizeof(ready); before < 65536 + 2; before++)
		NM_CHECK_EQ(judge_long(before, ready, 70000), NM_SPANK_READY);
}

NM_TEST(a_control_group_says_who_was_killed_for_memory)
{
	NM_CHECK(!nm_spank_guest_was_killed(""));
	NM_CHECK(!nm_spank_guest_was_killed("low 0\noom 3\noom_kill 0\noom_group_kill 1\n"));
	NM_CHECK(nm_spank_guest_was_killed("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"));
	NM_CHECK(!nm_spank_guest_was_killed("oom_kill_disable 1\nunder_oom 1\noom_kill 0\n"));
	NM_CHECK(nm_spank_guest_was_killed("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"));
}

static struct nm_spank_environment extra;

/* What the script of a task prints when sh runs it; returns its exit code. */
static int run(char **argv, char **envp, const char *cwd, char *ret_said, size_t len)
{
	struct nm_spank_guest_task task = {
		.cwd = cwd, .argv = argv, .envp = envp, .extra = &extra, .nr_tasks = 1};
	char path[256], command[300];
	struct nm_reason why;
	FILE *out, *said;
	size_t got;

	snprintf(path, sizeof(path), "%s/script", nm_test_dir());
	out = fopen(path, "we");
	NM_CHECK_EQ(nm_spank_guest_script(&task, out, &why), 0);
	fclose(out);
	snprintf(command, sizeof(command), "env -i sh %s 2>&1", path);
	said = popen(command, "re");
	got = fread(ret_said, 1, len - 1, said);
	ret_said[got] = '\0';
	NM_CHECK(access(path, F_OK) < 0);
	return WEXITSTATUS(pclose(said));
}

NM_TEST(a_task_arrives_as_it_was)
{
	char *argv[] = {"printf", "%s|", "a b", "it's", "$(reboot)", "new\nline", "", "\\", NULL};
	char *show[] = {"sh", "-c", "pwd; echo \"$A\"; unset PWD OLDPWD; env", NULL};
	char *envp[] = {
		"A=x 'y' \"z\" $(w)\n2",       "PMI_RANK=0", "SSH_AUTH_SOCK=/x", "not a variable",
		"NEARMETAL_RUNDIR=/elsewhere", NULL};
	char *none[] = {NULL}, *odd[] = {"a=b", NULL};
	char *env[] = {"env", NULL}, *names[] = {"-i=x", "BASH_FUNC_f%%=() { :; }", NULL};
	char said[512];

	extra.nr = 0;
	NM_CHECK_EQ(run(argv, none, "/", said, sizeof(said)), 0);
	NM_CHECK_STR(said, "a b|it's|$(reboot)|new\nline||\\|");
	NM_CHECK_EQ(run(show, envp, "/usr", said, sizeof(said)), 0);
	NM_CHECK_STR(said, "/usr\nx 'y' \"z\" $(w)\n2\nA=x 'y' \"z\" $(w)\n2\n");
	/* A program whose name looks like a variable is still a program. */
	NM_CHECK_EQ(run(odd, none, "/", said, sizeof(said)), 127);
	NM_CHECK_HAS(said, "a=b");
	/* And a variable is one, whatever it is called. */
	NM_CHECK_EQ(run(env, names, "/", said, sizeof(said)), 0);
	NM_CHECK_HAS(said, "-i=x\nBASH_FUNC_f%%=() { :; }\n");
}

NM_TEST(what_the_site_sets_gives_way_to_the_user)
{
	char *show[] = {"sh", "-c", "echo $NEARMETAL_CHANNELS $B", NULL};
	char *none[] = {NULL}, *own[] = {"NEARMETAL_CHANNELS=net", NULL};
	char said[512];

	snprintf(extra.bytes, sizeof(extra.bytes), "NEARMETAL_CHANNELS=self,segment\nB=1 2\n");
	NM_CHECK_EQ(nm_spank_environment_split(&extra), 0);
	NM_CHECK_EQ(run(show, none, "/", said, sizeof(said)), 0);
	NM_CHECK_STR(said, "self,segment 1 2\n");
	NM_CHECK_EQ(run(show, own, "/", said, sizeof(said)), 0);
	NM_CHECK_STR(said, "net 1 2\n");
}

NM_TEST(a_directory_that_the_machine_lacks_is_told)
{
	char *argv[] = {"pwd", NULL}, *none[] = {NULL};
	char said[512];

	extra.nr = 0;
	NM_CHECK_EQ(run(argv, none, "/no/such 'place'", said, sizeof(said)), 0);
	NM_CHECK_STR(said, "nearmetal: no /no/such 'place' in this virtual machine: going to /tmp\n"
			   "/tmp\n");
}

NM_TEST(ranks_that_slurm_would_join_are_refused)
{
	char *argv[] = {"true", NULL}, *ranks[] = {"A=b", "PMIX_RANK=0", NULL};
	struct nm_spank_guest_task task = {
		.cwd = "/", .argv = argv, .envp = ranks, .extra = &extra, .nr_tasks = 2};
	struct nm_reason why;
	FILE *out = fopen("/dev/null", "we");

	extra.nr = 0;
	NM_CHECK_EQ(nm_spank_guest_script(&task, out, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "--mpi=none");
	task.nr_tasks = 1;
	NM_CHECK_EQ(nm_spank_guest_script(&task, out, &why), 0);
	fclose(out);
}
