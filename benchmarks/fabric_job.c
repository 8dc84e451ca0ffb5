/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric_job.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t job_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void job_fail(const struct job *job, const char *fmt, ...)
{
	va_list args;

	printf("FAILED rank %d %s: ", job->rank, job->phase ? job->phase : "start");
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

void job_check(const struct job *job, long rc, const char *what)
{
	if (rc < 0)
		job_fail(job, "%s: %s (%ld)", what, fi_strerror((int)-rc), rc);
}

bool job_option(struct job_options *options, int option, const char *value)
{
	switch (option) {
	case 'r':
		options->rank = atoi(value);
		return true;
	case 'd':
		options->dir = value;
		return true;
	case 'p':
		options->provider = value;
		return true;
	case 'w':
		options->patience_s = atoi(value);
		return true;
	default:
		return false;
	}
}

/* Signal handlers have no argument. */
static const struct job *watched;

static void on_alarm(int signal)
{
	(void)signal;
	job_fail(watched, "hangs");
}

static void file_name(const struct job *job, int rank, char *ret_name, size_t room)
{
	snprintf(ret_name, room, "%s/%d.%d", job->options.dir, job->meetings, rank);
}

static void leave_file(const struct job *job, const void *bytes, size_t len)
{
	char name[512], temporary[520];
	FILE *file;

	file_name(job, job->rank, name, sizeof(name));
	snprintf(temporary, sizeof(temporary), "%s.new", name);
	file = fopen(temporary, "wb");
	if (!file || fwrite(bytes, 1, len, file) != len || fclose(file) || rename(temporary, name))
		job_fail(job, "%s: %s", name, strerror(errno));
}

/* A rank that waits for others must go on serving them: they may wait for it. */
static void keep_moving(struct job *job)
{
	int i;

	for (i = 0; i < JOB_EPS_MAX; i++)
		if (job->connected[i])
			job_progress(job, job->connected[i]);
}

static void take_file(struct job *job, int rank, void *bytes, size_t len)
{
	const struct timespec nap = {.tv_nsec = 200000};
	char name[512];
	FILE *file;

	file_name(job, rank, name, sizeof(name));
	while (!(file = fopen(name, "rb"))) {
		if (errno != ENOENT)
			job_fail(job, "%s: %s", name, strerror(errno));
		keep_moving(job);
		nanosleep(&nap, NULL);
	}
	if (fread(bytes, 1, len, file) != len)
		job_fail(job, "%s: too short", name);
	fclose(file);
}

void job_exchange(struct job *job, const void *mine, size_t len, void *ret_all)
{
	int rank;

	leave_file(job, mine, len);
	for (rank = 0; rank < job->nr_ranks; rank++)
		take_file(job, rank, (char *)ret_all + (size_t)rank * len, len);
	job->meetings++;
}

void job_barrier(struct job *job)
{
	char mine = 0, all[JOB_RANKS_MAX];

	job_exchange(job, &mine, 1, all);
}

static struct fi_info *get_info(struct job *job)
{
	struct fi_info *hints = fi_allocinfo(), *info;

	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = job->options.caps ? job->options.caps :
					  FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV |
						  FI_DIRECTED_RECV | FI_SOURCE;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->av_type = FI_AV_TABLE;
	if (hints->caps & FI_HMEM)
		hints->domain_attr->mr_mode = FI_MR_HMEM;
	hints->fabric_attr->prov_name = strdup(job->options.provider);
	job_check(job, fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info), "fi_getinfo");
	fi_freeinfo(hints);
	return info;
}

void job_ep_connect(struct job *job, struct job_ep *ep)
{
	char mine[JOB_NAME_MAX] = {0}, all[JOB_RANKS_MAX][JOB_NAME_MAX];
	size_t len = sizeof(mine);
	int rank, i;

	job_check(job, fi_getname(&ep->ep->fid, mine, &len), "fi_getname");
	job_exchange(job, mine, sizeof(mine), all);
	for (rank = 0; rank < job->nr_ranks; rank++)
		if (fi_av_insert(job->av, all[rank], 1, &ep->peers[rank], 0, NULL) != 1)
			job_fail(job, "the address of rank %d cannot be inserted", rank);
	for (i = 0; i < JOB_EPS_MAX; i++) {
		if (!job->connected[i]) {
			job->connected[i] = ep;
			return;
		}
	}
	job_fail(job, "more than %d endpoints", JOB_EPS_MAX);
}

void job_ep_open(struct job *job, struct job_ep *ep, enum fi_cq_format format, uint64_t flags)
{
	struct fi_cq_attr attr = {.format = format, .wait_obj = FI_WAIT_NONE};

	job_check(job, fi_endpoint(job->domain, job->info, &ep->ep, NULL), "fi_endpoint");
	job_check(job, fi_cq_open(job->domain, &attr, &ep->tx_cq, NULL), "fi_cq_open");
	job_check(job, fi_cq_open(job->domain, &attr, &ep->rx_cq, NULL), "fi_cq_open");
	job_check(job, fi_ep_bind(ep->ep, &job->av->fid, 0), "fi_ep_bind av");
	job_check(job, fi_ep_bind(ep->ep, &ep->tx_cq->fid, FI_TRANSMIT | flags), "fi_ep_bind cq");
	job_check(job, fi_ep_bind(ep->ep, &ep->rx_cq->fid, FI_RECV), "fi_ep_bind cq");
	job_check(job, fi_enable(ep->ep), "fi_enable");
}

void job_ep_close(struct job *job, struct job_ep *ep)
{
	int i;

	for (i = 0; i < JOB_EPS_MAX; i++)
		if (job->connected[i] == ep)
			job->connected[i] = NULL;
	job_check(job, fi_close(&ep->ep->fid), "fi_close endpoint");
	job_check(job, fi_close(&ep->tx_cq->fid), "fi_close queue");
	job_check(job, fi_close(&ep->rx_cq->fid), "fi_close queue");
}

static void run_rank(struct job *job)
{
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};

	watched = job;
	setvbuf(stdout, NULL, _IOLBF, 0); /* a rank that is ended has said what it did */
	signal(SIGALRM, on_alarm);
	alarm((unsigned int)job->options.patience_s);
	job->info = get_info(job);
	job_check(job, fi_fabric(job->info->fabric_attr, &job->fabric, NULL), "fi_fabric");
	job_check(job, fi_domain(job->fabric, job->info, &job->domain, NULL), "fi_domain");
	job_check(job, fi_av_open(job->domain, &av_attr, &job->av, NULL), "fi_av_open");
	job_ep_open(job, &job->main, FI_CQ_FORMAT_TAGGED, 0);
	job_ep_connect(job, &job->main);
}

static void remove_directory(const char *dir, int meetings_max, int nr_ranks)
{
	char name[512];
	int i, rank;

	for (i = 0; i < meetings_max; i++)
		for (rank = 0; rank < nr_ranks; rank++) {
			snprintf(name, sizeof(name), "%s/%d.%d", dir, i, rank);
			unlink(name);
			snprintf(name, sizeof(name), "%s/%d.%d.new", dir, i, rank);
			unlink(name);
		}
	rmdir(dir);
}

#define MEETINGS_MAX 4096

static int wait_for_ranks(int nr_ranks, const pid_t *pids, int dies)
{
	int worst = 0, status, code, i, left;
	pid_t pid;

	for (left = nr_ranks; left > 0; left--) {
		pid = wait(&status);
		if (pid < 0)
			break;
		code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		if (dies && pid == pids[dies] && WIFSIGNALED(status))
			code = 0;
		/* One that failed leaves the others waiting for it. */
		if (code && !worst)
			for (i = 0; i < nr_ranks; i++)
				if (pids[i] != pid)
					kill(pids[i], SIGTERM);
		if (!worst)
			worst = code;
	}
	return worst;
}

static void fork_ranks(struct job *job)
{
	static char dir[] = "/tmp/fabric-job-XXXXXX";
	pid_t pids[JOB_RANKS_MAX];
	int rank, worst;

	if (!job->options.dir) {
		if (!mkdtemp(dir))
			job_fail(job, "%s: %s", dir, strerror(errno));
		job->options.dir = dir;
	}
	for (rank = 0; rank < job->nr_ranks; rank++) {
		fflush(stdout);
		pids[rank] = fork();
		if (pids[rank] < 0)
			job_fail(job, "fork: %s", strerror(errno));
		if (!pids[rank]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			job->rank = rank;
			return;
		}
	}
	worst = wait_for_ranks(job->nr_ranks, pids, job->options.dies);
	if (job->options.dir == dir)
		remove_directory(dir, MEETINGS_MAX, job->nr_ranks);
	exit(worst);
}

void job_start(struct job *job, const struct job_options *options)
{
	memset(job, 0, sizeof(*job));
	job->options = *options;
	job->nr_ranks = options->nr_ranks;
	job->rank = options->rank;
	if (job->nr_ranks < 1 || job->nr_ranks > JOB_RANKS_MAX || job->rank >= job->nr_ranks ||
	    (job->rank >= 0 && !options->dir)) {
		fprintf(stderr, "1 to %d ranks; -r needs -d\n", JOB_RANKS_MAX);
		exit(2);
	}
	if (job->rank < 0)
		fork_ranks(job);
	run_rank(job);
}

void job_print_head(const struct job *job, const char *program)
{
	printf("# nearmetal-bench 1 %s\n# provider %s\n# libfabric %u.%u\n", program,
	       job->options.provider, FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
}

void job_stop(struct job *job)
{
	job->phase = "stop";
	job_barrier(job);
	job_ep_close(job, &job->main);
	job_check(job, fi_close(&job->av->fid), "fi_close vector");
	job_check(job, fi_close(&job->domain->fid), "fi_close domain");
	job_check(job, fi_close(&job->fabric->fid), "fi_close fabric");
	fi_freeinfo(job->info);
}

void job_progress(struct job *job, struct job_ep *ep)
{
	ssize_t rc;

	/* Reading no entries drives progress and takes nothing. */
	rc = fi_cq_read(ep->rx_cq, NULL, 0);
	if (rc < 0 && rc != -FI_EAGAIN && rc != -FI_EAVAIL)
		job_check(job, rc, "fi_cq_read");
	rc = fi_cq_read(ep->tx_cq, NULL, 0);
	if (rc < 0 && rc != -FI_EAGAIN && rc != -FI_EAVAIL)
		job_check(job, rc, "fi_cq_read");
}

struct fi_cq_tagged_entry job_wait(struct job *job, struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entry = {0};
	struct fi_cq_err_entry error = {0};
	ssize_t rc;

	while ((rc = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		sched_yield();
	if (rc == -FI_EAVAIL) {
		fi_cq_readerr(cq, &error, 0);
		job_fail(job, "unexpected error completion: %s", fi_strerror(error.err));
	}
	job_check(job, rc, "fi_cq_read");
	return entry;
}

struct fi_cq_err_entry job_wait_error(struct job *job, struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = {0};
	ssize_t rc;

	while ((rc = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		sched_yield();
	if (rc != -FI_EAVAIL)
		job_fail(job, "an error completion was expected, fi_cq_read gave %zd", rc);
	if (fi_cq_readerr(cq, &error, 0) != 1)
		job_fail(job, "the error completion cannot be read");
	return error;
}

void job_expect_nothing(struct job *job, struct fid_cq *cq, int ms)
{
	uint64_t end = job_now_ns() + (uint64_t)ms * UINT64_C(1000000);
	struct fi_cq_tagged_entry entry;
	ssize_t rc;

	do {
		rc = fi_cq_read(cq, &entry, 1);
		if (rc != -FI_EAGAIN)
			job_fail(job, "no completion was expected, fi_cq_read gave %zd", rc);
		sched_yield();
	} while (job_now_ns() < end);
}

/* Without a period that a piece of a message could have as its length. */
static unsigned char pattern(size_t i, uint64_t seed)
{
	return (unsigned char)(i * 131 + (i >> 8) * 7 + (i >> 16) * 13 + (i >> 24) * 17 +
			       seed * 29);
}

void job_fill(void *bytes, size_t len, uint64_t seed)
{
	unsigned char *b = bytes;

	for (size_t i = 0; i < len; i++)
		b[i] = pattern(i, seed);
}

size_t job_verify(const void *bytes, size_t len, uint64_t seed)
{
	const unsigned char *b = bytes;

	for (size_t i = 0; i < len; i++)
		if (b[i] != pattern(i, seed))
			return i;
	return len;
}
