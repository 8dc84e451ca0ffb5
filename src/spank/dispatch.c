/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Slurm calls. Three places, by context: the user's terminal, where options are checked; the
 * prolog and epilog of a node, where containers are made and removed; a task, which enters one.
 *
 * A wrong wish of a user must fail the job and leave the node in service, so a prolog that meets
 * one says nothing against the node: the task says it to the user. A prolog that cannot make a
 * container fails, and Slurm drains the node.
 */
#include <stdint.h>
#include <sys/types.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/reason.h"
#include "spank/config.h"
#include "spank/container.h"
#include "spank/guest.h"
#include "spank/launcher.h"
#include "spank/options.h"

SPANK_PLUGIN(nearmetal, 1)

#define CONFIG "/etc/nearmetal/slurm.toml"
#define LAUNCHER "/usr/bin/nearmetal"

static struct nm_spank_options options;
static struct nm_spank_config config;
static struct nm_reason config_reason;
static bool config_is_good;
static const char *config_path = CONFIG;
static const char *launcher = LAUNCHER;

/* Of this task. */
static struct nm_reason refusal;
static bool refused, contained;
static char machine[NM_SPANK_MACHINE_LEN]; /* in which it runs; "": in none */
static bool in_cloud;			   /* the machine is a server of a cloud */
static char directory[PATH_MAX];
static struct nm_spank_environment environment;

static int take(int val, const char *argument, int remote)
{
	struct nm_reason reason;

	(void)remote;
	if (!nm_spank_options_take(&options, (enum nm_spank_option)val, argument, &reason))
		return 0;
	/* On a node the task says it, where the user sees it. */
	if (spank_context() == S_CTX_REMOTE) {
		refusal = reason;
		refused = true;
		return 0;
	}
	slurm_error("nearmetal: %s", reason.text);
	return -1;
}

static struct spank_option slurm_option(enum nm_spank_option option)
{
	const struct nm_spank_option_info *info = &nm_spank_option_infos[option];

	return (struct spank_option){
		.name = info->name,
		.arginfo = info->arginfo,
		.usage = info->usage,
		.has_arg = 1,
		.val = (int)option,
		.cb = take,
	};
}

static int read_arguments(int ac, char *argv[])
{
	for (int i = 0; i < ac; i++) {
		if (!strncmp(argv[i], "config=", 7) && argv[i][7] == '/') {
			config_path = argv[i] + 7;
		} else if (!strncmp(argv[i], "launcher=", 9) && argv[i][9] == '/') {
			launcher = argv[i] + 9;
		} else {
			slurm_error("nearmetal: plugstack.conf: '%s' is neither config=/PATH nor "
				    "launcher=/PATH",
				    argv[i]);
			return -1;
		}
	}
	return 0;
}

static int prepare(int ac, char *argv[])
{
	if (read_arguments(ac, argv))
		return -1;
	config_is_good = nm_spank_config_load(config_path, &config, &config_reason) == 0;
	if (!config_is_good)
		slurm_error("nearmetal: %s", config_reason.text);
	return 0;
}

int slurm_spank_init(spank_t sp, int ac, char *argv[])
{
	spank_context_t context = spank_context();

	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return 0;
	if (prepare(ac, argv))
		return -1;
	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++) {
		struct spank_option option = slurm_option((enum nm_spank_option)i);

		if (spank_option_register(sp, &option) != ESPANK_SUCCESS) {
			slurm_error("nearmetal: cannot register --%s", option.name);
			return -1;
		}
	}
	return 0;
}

static bool any_given(void)
{
	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++)
		if (options.given[i])
			return true;
	return false;
}

/* What this job gets, or the reason why it gets nothing. PARTITIONS: as for nm_spank_resolve(). */
static int resolve(const char *partitions, struct nm_spank_request *ret_request,
		   struct nm_reason *ret_reason)
{
	if (config_is_good)
		return nm_spank_resolve(&options, &config, partitions, ret_request, ret_reason);
	if (any_given()) {
		*ret_reason = config_reason;
		return -EINVAL;
	}
	*ret_request = (struct nm_spank_request){.node = NM_SPANK_NONE};
	return 0;
}

/*
 * Where a job that is being submitted may run; NULL: not known, and only the nodes will check.
 * Slurm does not report it to SPANK plugins. But srun, sbatch and salloc have read arguments,
 * variables and script by now, and offer what they found to plugins of another kind, cli_filter, by
 * a function; it is looked up, for a release may come without it.
 */
static const char *partitions_asked_for(void)
{
	typedef char *(*get_fn)(void *opt, const char *name);
	get_fn get = (get_fn)dlsym(RTLD_DEFAULT, "slurm_option_get");
	void *opt = dlsym(RTLD_DEFAULT, "opt");
	const char *found = get && opt ? get(opt, "partition") : NULL;

	/* A step has the partition of its allocation. */
	if (!found && spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID"))
		found = getenv("SLURM_JOB_PARTITION");
	return found;
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char *argv[])
{
	struct nm_spank_request request;
	struct nm_reason reason;

	(void)sp;
	(void)ac;
	(void)argv;
	if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_ALLOCATOR)
		return 0;
	if (!resolve(partitions_asked_for(), &request, &reason))
		return 0;
	slurm_error("nearmetal: %s", reason.text);
	return -1;
}

static void say(const char *line)
{
	slurm_info("nearmetal: %s", line);
}

static const char *node_name(void)
{
	const char *name = getenv("SLURMD_NODENAME");

	return name ? name : "";
}

/*
 * All nodes of the job, in a prolog. "": unknown; a guess would create machines that miss each
 * other.
 */
static const char *job_nodes(void)
{
	const char *nodes = getenv("SLURM_NODELIST");

	nodes = nodes ? nodes : getenv("SLURM_JOB_NODELIST");
	return nodes ? nodes : "";
}

static void job_directory(uint32_t job)
{
	snprintf(directory, sizeof(directory), NM_SPANK_STATE "/job-%u", job);
}

/* Beside the settings, and as they alike on all nodes. */
static void beside_settings(const char *name, char ret_path[PATH_MAX])
{
	int len = (int)(strrchr(config_path, '/') - config_path);

	snprintf(ret_path, PATH_MAX, "%.*s/%s", len, config_path, name);
}

int slurm_spank_job_prolog(spank_t sp, int ac, char *argv[])
{
	const char *partition = getenv("SLURM_JOB_PARTITION");
	struct nm_spank_request request;
	char key[PATH_MAX], cloud[PATH_MAX];
	struct nm_reason reason;
	uint32_t job;
	uid_t uid;
	int code;

	/* Slurm does not call slurm_spank_init() before a prolog or an epilog. */
	if (prepare(ac, argv))
		return -1;
	if (spank_get_item(sp, S_JOB_ID, &job) || spank_get_item(sp, S_JOB_UID, &uid)) {
		slurm_error("nearmetal: Slurm does not report job and user");
		return -1;
	}
	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++) {
		struct spank_option option = slurm_option((enum nm_spank_option)i);
		char *argument = NULL;

		if (spank_option_getopt(sp, &option, &argument) == ESPANK_SUCCESS &&
		    nm_spank_options_take(&options, (enum nm_spank_option)i, argument, &reason)) {
			slurm_info("nearmetal: job %u: %s", job, reason.text);
			return 0;
		}
	}
	if (!config_is_good && any_given())
		return -1;
	if (resolve(partition, &request, &reason)) {
		slurm_info("nearmetal: job %u: %s", job, reason.text);
		return 0;
	}
	if (request.node == NM_SPANK_NONE)
		return 0;
	/* Its steps would be believed, and no rule was looked at. */
	if (config.nr_partitions && !(partition && *partition)) {
		slurm_error("nearmetal: job %u: slurmd does not report its partition", job);
		return -1;
	}
	beside_settings("slurm.key", key);
	beside_settings("slurm-openstack.yaml", cloud);
	code = nm_spank_launch(launcher,
			       &(struct nm_spank_place){.job = job,
							.uid = uid,
							.node = node_name(),
							.partition = partition,
							.nodes = job_nodes(),
							.key = key,
							.cloud = cloud},
			       &request, say);
	if (code)
		slurm_error("nearmetal: job %u: no container: %s slurm launch ended with %d", job,
			    launcher, code);
	return code ? -1 : 0;
}

int slurm_spank_job_epilog(spank_t sp, int ac, char *argv[])
{
	struct stat st;
	uint32_t job;
	int code;

	if (read_arguments(ac, argv) || spank_get_item(sp, S_JOB_ID, &job))
		return -1;
	job_directory(job);
	if (lstat(directory, &st) < 0 && errno == ENOENT)
		return 0;
	code = nm_spank_reclaim(launcher, job, node_name(), say);
	if (code)
		slurm_error("nearmetal: job %u: not reclaimed: %s slurm reclaim ended with %d", job,
			    launcher, code);
	return code ? -1 : 0;
}

static void refuse_unless_reason(int err)
{
	refused = refused || err;
}

/* The arguments of the launcher; without a launch, the settings of the job. */
static bool find_partition(spank_t sp, char ret_name[NM_SPANK_PARTITION_LEN])
{
	return nm_spank_container_partition(directory, ret_name) ||
	       spank_getenv(sp, "SLURM_JOB_PARTITION", ret_name, NM_SPANK_PARTITION_LEN) ==
		       ESPANK_SUCCESS;
}

static bool stays_outside(spank_t sp)
{
	uint32_t step;

	return !spank_get_item(sp, S_JOB_STEPID, &step) &&
	       (step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP);
}

/*
 * Whether Slurm signals every process of a step. proctrack/cgroup, which most sites have, kills all
 * of them but sends other signals to the children of slurmstepd alone. What is set is read where
 * slurmstepd itself has it.
 */
static bool slurm_signals_all(void)
{
	const slurm_conf_t *conf = dlsym(RTLD_DEFAULT, "slurm_conf");
	const char *tracker = conf ? conf->proctrack_type : NULL;

	return tracker && (strstr(tracker, "linuxproc") || strstr(tracker, "pgid"));
}

static int find_machine(spank_t sp)
{
	uint32_t nr;
	int number;

	if (spank_get_item(sp, S_TASK_ID, &number) ||
	    spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &nr)) {
		nm_reason_set(&refusal, "Slurm does not report the number of the task");
		return -EINVAL;
	}
	return nm_spank_container_machine(directory, (uint32_t)number, nr, machine, &refusal);
}

int slurm_spank_task_init_privileged(spank_t sp, int ac, char *argv[])
{
	char cwd[PATH_MAX], partition[NM_SPANK_PARTITION_LEN];
	struct nm_spank_request request;
	uint32_t job;

	(void)ac;
	(void)argv;
	if (spank_get_item(sp, S_JOB_ID, &job))
		return -1;
	job_directory(job);
	if (refused ||
	    resolve(find_partition(sp, partition) ? partition : NULL, &request, &refusal)) {
		refused = true;
		return 0;
	}
	if (request.node == NM_SPANK_NONE)
		return 0;
	if (nm_spank_container_refusal(directory, &refusal)) {
		refused = true;
		return 0;
	}
	if (nm_spank_has_machines(request.node)) {
		in_cloud = request.node == NM_SPANK_OPENSTACK;
		/* A script starts steps, which machines cannot: it stays on the node. */
		if (stays_outside(sp))
			return 0;
		refuse_unless_reason(find_machine(sp));
		if (refused)
			return 0;
	}
	if (!getcwd(cwd, sizeof(cwd)))
		memcpy(cwd, "/tmp", sizeof("/tmp"));
	refuse_unless_reason(nm_spank_container_enter(directory, &request, &environment, &refusal));
	contained = !refused;
	/* The task goes there as its user, who may see directories that root may not. */
	memcpy(directory, cwd, sizeof(directory));
	return 0;
}

static void say_in_terminal(const char *line)
{
	slurm_error("nearmetal: %s", line);
}

/* Does not return but with an error: the task goes on in the machine. */
static int go_into_machine(spank_t sp)
{
	struct nm_spank_guest_task task = {.machine = machine,
					   .cwd = directory,
					   .extra = &environment,
					   .in_cloud = in_cloud,
					   .say = say_in_terminal};
	int argc;

	if (spank_get_item(sp, S_JOB_STEPID, &task.step) ||
	    spank_get_item(sp, S_TASK_ID, &task.number) ||
	    spank_get_item(sp, S_JOB_ARGV, &argc, &task.argv) ||
	    spank_get_item(sp, S_JOB_ENV, &task.envp) ||
	    spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &task.nr_tasks)) {
		slurm_error("nearmetal: Slurm does not report the program of the task");
		return -1;
	}
	nm_spank_guest_run(&task);
}

static void change_directory(void)
{
	if (!chdir(directory))
		return;
	slurm_error("nearmetal: no %s in the container of the job (%s): going to /tmp", directory,
		    strerror(errno));
	if (chdir("/tmp"))
		slurm_error("nearmetal: /tmp: %s", strerror(errno));
}

int slurm_spank_task_init(spank_t sp, int ac, char *argv[])
{
	uint32_t step = 0;

	(void)ac;
	(void)argv;
	if (refused) {
		slurm_error("nearmetal: %s", refusal.text);
		return -1;
	}
	if (!contained)
		return 0;
	/* 'scancel --batch' signals only the one process that Slurm knows. */
	spank_get_item(sp, S_JOB_STEPID, &step);
	if (nm_spank_container_continue(step == SLURM_BATCH_SCRIPT || !slurm_signals_all(),
					&refusal)) {
		slurm_error("nearmetal: %s", refusal.text);
		return -1;
	}
	if (machine[0])
		return go_into_machine(sp);
	change_directory();
	for (unsigned int i = 0; i < environment.nr; i++) {
		/* Where its neighbours are is not the user's choice; the rest is. */
		int overwrite = !strcmp(environment.names[i], "NEARMETAL_RUNDIR");

		spank_setenv(sp, environment.names[i], environment.values[i], overwrite);
	}
	return 0;
}
