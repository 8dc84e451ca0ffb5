/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/guest.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"

#define IN_GUEST "/usr/lib/nearmetal/task"
#define LOOK_NS 200000000L
#define END_S 5
#define CONSOLE_BYTES 65536
#define TAIL_LINES 12
/* What ssh exits with where it is the one that failed. */
#define SSH_FAILED 255

/*
 * What Slurm and users send to tasks. ssh must not die of it: Slurm may send it to every process.
 */
static const struct {
	int number;
	const char *name;
} signals[] = {
	{SIGHUP, "HUP"},   {SIGINT, "INT"},   {SIGQUIT, "QUIT"},     {SIGUSR1, "USR1"},
	{SIGUSR2, "USR2"}, {SIGTERM, "TERM"}, {SIGALRM, "ALRM"},     {SIGXCPU, "XCPU"},
	{SIGTSTP, "TSTP"}, {SIGCONT, "CONT"}, {SIGVTALRM, "VTALRM"}, {SIGURG, "URG"},
};

static const char *signal_name(int number)
{
	for (size_t i = 0; i < NM_ARRAY_SIZE(signals); i++)
		if (signals[i].number == number)
			return signals[i].name;
	return NULL;
}

static bool begins(const char *text, const char *with)
{
	return !strncmp(text, with, strlen(with));
}

/* Copy up to the end of the line what can be printed. */
static void copy_line(const char *text, size_t len, char *ret_line, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < len && text[i] != '\n' && used + 1 < size; i++)
		if (isprint((unsigned char)text[i]))
			ret_line[used++] = text[i];
	ret_line[used] = '\0';
}

enum nm_spank_boot nm_spank_guest_boot(const char *machine, const char *text, size_t len,
				       struct nm_reason *ret_reason)
{
	char ready[NM_SPANK_MACHINE_LEN + 32], failed[NM_SPANK_MACHINE_LEN + 32], line[160];
	/* A machine that has not read its name. */
	static const char nameless[] = "nearmetal: failed ?: ";
	const char *end;

	snprintf(ready, sizeof(ready), "nearmetal: ready %s ", machine);
	snprintf(failed, sizeof(failed), "nearmetal: failed %s: ", machine);
	for (; (end = memchr(text, '\n', len)); len -= (size_t)(end + 1 - text), text = end + 1) {
		const char *why;

		copy_line(text, (size_t)(end - text), line, sizeof(line));
		if (strstr(line, ready))
			return NM_SPANK_READY;
		why = strstr(line, failed);
		why = why ? why + strlen(failed) : strstr(line, nameless);
		why = why && begins(why, nameless) ? why + strlen(nameless) : why;
		why = why ? why : strstr(line, "Kernel panic");
		if (why) {
			nm_reason_set(ret_reason, "%s", why);
			return NM_SPANK_FAILED;
		}
	}
	return NM_SPANK_BOOTS;
}

enum nm_spank_boot nm_spank_guest_console(const char *machine, int fd, struct nm_reason *ret_reason)
{
	enum nm_spank_boot boot = NM_SPANK_BOOTS;
	static char text[CONSOLE_BYTES];
	size_t used = 0;
	ssize_t got;

	while (boot == NM_SPANK_BOOTS && (got = read(fd, text + used, sizeof(text) - used)) > 0) {
		used += (size_t)got;
		boot = nm_spank_guest_boot(machine, text, used, ret_reason);
		/* The half that stays has the line in it that is cut here. */
		if (used == sizeof(text)) {
			used /= 2;
			memcpy(text, text + used, used);
		}
	}
	return boot;
}

/* Between single quotes, as sh reads it back. */
static void quote(const char *text, FILE *out)
{
	putc('\'', out);
	for (; *text; text++)
		if (*text == '\'')
			fputs("'\\''", out);
		else
			putc(*text, out);
	putc('\'', out);
}

/* What means something on the node only. */
static bool is_of_the_node(const char *variable)
{
	static const char *const names[] = {
		"PMI_",
		"PMI2_",
		"PMIX_",
		"NEARMETAL_RUNDIR=",
		"SLURM_PMI",
		"XDG_RUNTIME_DIR=",
		"DBUS_SESSION_BUS_ADDRESS=",
		"SSH_",
	};

	for (size_t i = 0; i < NM_ARRAY_SIZE(names); i++)
		if (begins(variable, names[i]))
			return true;
	return false;
}

static bool is_set(char **envp, const char *name)
{
	size_t len = strlen(name);

	for (; *envp; envp++)
		if (!strncmp(*envp, name, len) && (*envp)[len] == '=')
			return true;
	return false;
}

int nm_spank_guest_script(const struct nm_spank_guest_task *task, FILE *out,
			  struct nm_reason *ret_reason)
{
	for (char **variable = task->envp; *variable; variable++)
		if (task->nr_tasks > 1 &&
		    (begins(*variable, "PMI_FD=") || begins(*variable, "PMIX_RANK="))) {
			nm_reason_set(
				ret_reason,
				"Slurm's PMI does not reach into virtual machines: say --mpi=none, and start MPI programs by 'srun -N1 -n1 mpirun' in them");
			return -EINVAL;
		}
	fputs("rm -f \"$0\"\ncd ", out);
	quote(task->cwd, out);
	fputs(" 2>/dev/null || {\n\tprintf 'nearmetal: no %s in this virtual machine: going to "
	      "/tmp\\n' ",
	      out);
	quote(task->cwd, out);
	fputs(" >&2\n\tcd /tmp\n}\nexec env --", out);
	for (char **variable = task->envp; *variable; variable++)
		if (strchr(*variable, '=') && !is_of_the_node(*variable)) {
			fputs(" \\\n", out);
			quote(*variable, out);
		}
	for (unsigned int i = 0; i < task->extra->nr; i++)
		if (!is_set(task->envp, task->extra->names[i])) {
			fprintf(out, " \\\n%s=", task->extra->names[i]);
			quote(task->extra->values[i], out);
		}
	fputs(" \\\n", out);
	/*
	 * It would be taken for a variable. A shell is no rule: it drops variables with odd names.
	 */
	if (task->argv[0] && strchr(task->argv[0], '='))
		fputs("sh -c 'exec \"$0\" \"$@\"'", out);
	for (char **argument = task->argv; *argument; argument++) {
		putc(' ', out);
		quote(*argument, out);
	}
	putc('\n', out);
	return 0;
}

static void say(const struct nm_spank_guest_task *task, const char *fmt, ...) NM_PRINTF(2, 3);
static void say(const struct nm_spank_guest_task *task, const char *fmt, ...)
{
	struct nm_reason line;
	va_list args;

	va_start(args, fmt);
	nm_reason_vset(&line, fmt, args);
	va_end(args);
	task->say(line.text);
}

static int open_console(const char *machine)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), NM_SPANK_MACHINES "/%s.console", machine);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static enum nm_spank_boot judge_console(const char *machine, struct nm_reason *ret_reason)
{
	enum nm_spank_boot boot;
	int fd = open_console(machine);

	if (fd < 0)
		return NM_SPANK_BOOTS;
	boot = nm_spank_guest_console(machine, fd, ret_reason);
	close(fd);
	return boot;
}

/* The last bytes of the console; returns how many. */
static size_t read_console(const char *machine, char *ret_text)
{
	ssize_t got;
	off_t size;
	int fd = open_console(machine);

	if (fd < 0)
		return 0;
	size = lseek(fd, 0, SEEK_END);
	got = pread(fd, ret_text, CONSOLE_BYTES, size > CONSOLE_BYTES ? size - CONSOLE_BYTES : 0);
	close(fd);
	return got < 0 ? 0 : (size_t)got;
}

static bool is_alive(const char *machine)
{
	char path[PATH_MAX], text[16];
	ssize_t got;
	long pid;
	int fd;

	snprintf(path, sizeof(path), NM_SPANK_MACHINES "/%s.pid", machine);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[got < 0 ? 0 : got] = '\0';
	pid = strtol(text, NULL, 10);
	return pid > 1 && (!kill((pid_t)pid, 0) || errno == EPERM);
}

bool nm_spank_guest_was_killed(const char *events)
{
	static const char killed[] = "\noom_kill ";
	const char *count = strstr(events, killed);

	return count && strtol(count + strlen(killed), NULL, 10) > 0;
}

/*
 * What to add to the end of a machine: "", unless the kernel has killed one of this node for its
 * memory.
 */
static const char *for_its_memory(void)
{
	char text[1024];
	int fd = open(NM_SPANK_MACHINES "/events", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	text[got < 0 ? 0 : got] = '\0';
	if (!nm_spank_guest_was_killed(text))
		return "";
	return ": out of memory: those of this node took more than the job has there, see --mem";
}

static void say_tail(const struct nm_spank_guest_task *task, const char *text, size_t len)
{
	const char *at = text + len;
	char line[160];

	for (int lines = 0; at > text && lines <= TAIL_LINES; at--)
		lines += at[-1] == '\n';
	for (const char *end; (end = memchr(at, '\n', (size_t)(text + len - at))); at = end + 1) {
		copy_line(at, (size_t)(end - at), line, sizeof(line));
		if (line[0])
			say(task, "  | %s", line);
	}
}

/* A signal that arrived while nothing runs that could be sent it. */
static void __attribute__((noreturn)) die_of(int signum)
{
	sigset_t one;

	signal(signum, SIG_DFL);
	raise(signum);
	sigemptyset(&one);
	sigaddset(&one, signum);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	_exit(128 + signum);
}

static const char *kind_of(const struct nm_spank_guest_task *task)
{
	return task->in_cloud ? "server" : "virtual machine";
}

/* Why there is no process of a machine any more; that of a server only stands for it. */
static const char *why_dead(const struct nm_spank_guest_task *task, enum nm_spank_boot boot)
{
	if (task->in_cloud)
		return "its keeper on this node was killed";
	return boot == NM_SPANK_READY ? "it has ended" : "it ended during the boot";
}

static void wait_for_machine(const struct nm_spank_guest_task *task, const sigset_t *all)
{
	static const struct timespec pause = {.tv_nsec = LOOK_NS};
	static char text[CONSOLE_BYTES];
	struct nm_reason reason;
	struct timespec now, began;

	clock_gettime(CLOCK_MONOTONIC, &began);
	for (;;) {
		bool alive = is_alive(task->machine);
		enum nm_spank_boot boot = judge_console(task->machine, &reason);
		int signum;

		if (boot == NM_SPANK_READY && alive)
			return;
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (!alive)
			nm_reason_set(&reason, "%s%s", why_dead(task, boot), for_its_memory());
		else if (boot == NM_SPANK_BOOTS && !task->in_cloud &&
			 now.tv_sec - began.tv_sec > NM_SPANK_BOOT_S)
			nm_reason_set(&reason, "not ready after %d s", NM_SPANK_BOOT_S);
		else if (boot != NM_SPANK_FAILED)
			goto again;
		say(task, "%s %s does not run: %s", kind_of(task), task->machine, reason.text);
		say_tail(task, text, read_console(task->machine, text));
		_exit(1);
again:
		signum = sigtimedwait(all, NULL, &pause);
		if (signum > 0 && signum != SIGCHLD && signum != SIGCONT && signum != SIGURG)
			die_of(signum);
	}
}

/* STREAMS: what it gets as standard input and output; -1: ours. */
static pid_t start_ssh(char *const argv[], const int streams[2])
{
	static char *const environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", NULL};
	sigset_t blocked;
	pid_t pid = fork();

	if (pid)
		return pid;
	/* Not ignored: the ssh that is a second session has handlers of its own. */
	sigemptyset(&blocked);
	for (size_t i = 0; i < NM_ARRAY_SIZE(signals); i++)
		sigaddset(&blocked, signals[i].number);
	for (int i = 0; i < 2; i++)
		if (streams[i] >= 0)
			dup2(streams[i], i);
	sigprocmask(SIG_SETMASK, &blocked, NULL);
	execve("/usr/bin/ssh", argv, environment);
	dprintf(STDERR_FILENO, "nearmetal: /usr/bin/ssh: %s\n", strerror(errno));
	_exit(127);
}

struct sessions {
	pid_t run, control;
	int words; /* to control */
};

/* Wait for the word that control writes when it is there. */
static bool is_there(int fd)
{
	char byte;
	ssize_t got;

	do
		got = read(fd, &byte, 1);
	while (got < 0 && errno == EINTR);
	return got == 1;
}

/* All of it; a pipe takes less at once, and ssh may end before it has read the rest. */
static int send_all(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t sent = write(fd, text, len);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return -errno;
		text += sent;
		len -= (size_t)sent;
	}
	return 0;
}

struct script {
	char *text;
	size_t len;
};

static int start_sessions(const struct nm_spank_guest_task *task, const char *id,
			  const struct script *script, struct sessions *ret_sessions)
{
	static const char config[] = NM_SPANK_MACHINES "/ssh_config";
	char *machine = (char *)task->machine, socket[PATH_MAX], len[24];
	char *control[] = {"ssh", "-F",	    (char *)config, "-M",	"-S", socket, machine,
			   "--",  IN_GUEST, "control",	    (char *)id, len,  NULL};
	/*
	 * In the place of sshd's shell, which a signal for the task would kill, and lose its end.
	 */
	char *run[] = {"ssh", "-F",   (char *)config, "-S",  socket,	 "-T", machine,
		       "--",  "exec", IN_GUEST,	      "run", (char *)id, NULL};
	int words[2], answers[2];

	if (isatty(STDIN_FILENO))
		run[5] = "-tt";
	snprintf(socket, sizeof(socket), NM_SPANK_JOB "/ssh.%s", id);
	snprintf(len, sizeof(len), "%zu", script->len);
	if (pipe2(words, O_CLOEXEC) < 0 || pipe2(answers, O_CLOEXEC) < 0)
		return -errno;
	ret_sessions->words = words[1];
	ret_sessions->control = start_ssh(control, (int[]){words[0], answers[1]});
	close(words[0]);
	close(answers[1]);
	if (ret_sessions->control < 0)
		return -errno;
	if (send_all(words[1], script->text, script->len) || !is_there(answers[0]))
		return -ECONNRESET;
	ret_sessions->run = start_ssh(run, (int[]){-1, -1});
	return ret_sessions->run < 0 ? -errno : 0;
}

/* Send signals on until the task has ended, or its machine; returns how, as ssh says the latter. */
static int stand_for_task(const char *machine, const struct sessions *sessions, const sigset_t *all)
{
	static const struct timespec look = {.tv_sec = 1};
	int status;

	for (;;) {
		int signum = sigtimedwait(all, NULL, &look);
		const char *name = signum > 0 ? signal_name(signum) : NULL;

		if (name)
			dprintf(sessions->words, "%s\n", name);
		if (signum == SIGCHLD && waitpid(sessions->run, &status, WNOHANG) == sessions->run)
			return status;
		if (signum < 0 && errno == EAGAIN && !is_alive(machine)) {
			/* ssh itself gives a silent machine minutes. */
			kill(sessions->run, SIGKILL);
			kill(sessions->control, SIGKILL);
			waitpid(sessions->run, &status, 0);
			return W_EXITCODE(SSH_FAILED, 0);
		}
	}
}

/* The end of its input ends control; it is not waited for for ever. */
static void end_control(const struct sessions *sessions)
{
	static const struct timespec limit = {.tv_sec = END_S};
	sigset_t child;

	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	close(sessions->words);
	while (waitpid(sessions->control, NULL, WNOHANG) == 0)
		if (sigtimedwait(&child, NULL, &limit) < 0 && errno == EAGAIN)
			kill(sessions->control, SIGKILL);
}

static int make_script(const struct nm_spank_guest_task *task, struct script *ret_script,
		       struct nm_reason *ret_reason)
{
	FILE *out = open_memstream(&ret_script->text, &ret_script->len);
	int err = out ? nm_spank_guest_script(task, out, ret_reason) : 0;

	if ((!out || fclose(out)) && !err) {
		nm_reason_set(ret_reason, "no memory for the task");
		err = -ENOMEM;
	}
	return err;
}

void nm_spank_guest_run(const struct nm_spank_guest_task *task)
{
	char id[32];
	struct script script;
	struct sessions sessions = {.words = -1};
	struct nm_reason reason;
	sigset_t all;
	int status, err;

	snprintf(id, sizeof(id), "%" PRIu32 ".%d", task->step, task->number);
	/* proctrack/linuxproc sends no signal to a process with the name of slurmstepd. */
	prctl(PR_SET_NAME, "nm-task");
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGPIPE, SIG_IGN);
	if (make_script(task, &script, &reason)) {
		task->say(reason.text);
		_exit(1);
	}
	/* Slurm's own descriptors: it waits for the end of some. */
	if (syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0) < 0)
		for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
			close(fd);
	wait_for_machine(task, &all);
	err = start_sessions(task, id, &script, &sessions);
	if (err) {
		say(task, "%s %s does not accept the task: %s", kind_of(task), task->machine,
		    strerror(-err));
		_exit(1);
	}
	status = stand_for_task(task->machine, &sessions, &all);
	end_control(&sessions);
	if (WIFEXITED(status) && WEXITSTATUS(status) == SSH_FAILED && !is_alive(task->machine))
		say(task, "%s %s %s while the task ran%s", kind_of(task), task->machine,
		    task->in_cloud ? "lost its keeper on this node" : "ended", for_its_memory());
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}
