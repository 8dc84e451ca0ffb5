/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency and bandwidth of one put or get at a time over the public libfabric interface, while the
 * target polls its queue. With NEARMETAL_CMA=off the target serves them: what direct access is worth
 * to a target that waits; to one that computes it is worth everything. Output: mpi/sampling.h.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric_job.h"
#include "mpi/sampling.h"

#define KEY 5
#define ACCESS (FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE)
static const int percents[] = {2, 25, 50, 75, 98};
#define NR_PERCENTS (sizeof(percents) / sizeof(percents[0]))

struct access {
	struct job job;
	struct samples samples;
	char *window, *local;
	int nr_samples;
};

static void once(struct access *a, size_t size, bool is_read)
{
	struct job *job = &a->job;
	struct fi_cq_tagged_entry entry;
	ssize_t rc;

	if (is_read)
		JOB_RETRY(job, &job->main,
			  fi_read(job->main.ep, a->local, size, NULL, job->main.peers[1], 0, KEY,
				  NULL));
	else
		JOB_RETRY(job, &job->main,
			  fi_write(job->main.ep, a->local, size, NULL, job->main.peers[1], 0, KEY,
				   NULL));
	while ((rc = fi_cq_read(job->main.tx_cq, &entry, 1)) == -FI_EAGAIN)
		;
	job_check(job, rc, "fi_cq_read");
}

static void measure(struct access *a, size_t size, bool is_read)
{
	int batch = size <= 16384 ? 50 : size <= (1 << 20) ? 5 : 2;
	double median;

	a->samples.nr = 0;
	for (int i = -a->nr_samples / 10; i < a->nr_samples; i++) {
		uint64_t start = job_now_ns();

		for (int j = 0; j < batch; j++)
			once(a, size, is_read);
		if (i >= 0)
			samples_add(&a->samples, (double)(job_now_ns() - start) / batch * 1e-9);
	}
	samples_sort(&a->samples);
	median = samples_percentile(&a->samples, 50);
	printf("%zu %d %d", size, a->samples.nr, batch);
	for (size_t i = 0; i < NR_PERCENTS; i++)
		printf(" %.4f", samples_percentile(&a->samples, percents[i]) * 1e6);
	printf(" 1 %.6f %.2f\n", 1e-6 / median, (double)size / median * 1e-6);
	fflush(stdout);
}

static void table(struct access *a, const char *name, bool is_read, size_t max)
{
	printf("# table %s\nsize_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us "
	       "time_p98_us messages rate_p50_Mps bandwidth_p50_MBps\n",
	       name);
	for (size_t size = 8; size <= max; size *= 2)
		measure(a, size, is_read);
	printf("# end %s\n", name);
}

/* Keeps its queue moving, as a target that has to serve must. */
static void be_target(struct access *a)
{
	struct job *job = &a->job;
	struct fi_cq_tagged_entry entry;

	JOB_RETRY(job, &job->main,
		  fi_trecv(job->main.ep, NULL, 0, NULL, job->main.peers[0], 1, 0, NULL));
	while (fi_cq_read(job->main.rx_cq, &entry, 1) == -FI_EAGAIN)
		;
}

static void be_initiator(struct access *a, size_t max)
{
	struct job *job = &a->job;

	printf("# nearmetal-bench 1 fabric_access\n# provider %s\n", job->options.provider);
	table(a, "put", false, max);
	table(a, "get", true, max);
	printf("# done fabric_access\n");
	fflush(stdout);
	JOB_RETRY(job, &job->main,
		  fi_tsend(job->main.ep, NULL, 0, NULL, job->main.peers[1], 1, NULL));
	job_wait(job, job->main.tx_cq);
}

int main(int argc, char **argv)
{
	struct job_options options = {
		.nr_ranks = 2, .rank = -1, .provider = "nearmetal", .patience_s = 120};
	static struct access a = {.nr_samples = 200};
	size_t max = 4 << 20;
	struct fid_mr *mr;
	int option;

	while ((option = getopt(argc, argv, JOB_OPTIONS "n:h")) != -1) {
		if (option == 'n') {
			a.nr_samples = atoi(optarg);
		} else if (!job_option(&options, option, optarg)) {
			fprintf(option == 'h' ? stdout : stderr,
				"usage: fabric_access [-n SAMPLES] [-r RANK -d DIR] [-p PROVIDER] [-w "
				"SECONDS]\nExample: NEARMETAL_CMA=off fabric_access -n 500\n");
			return option == 'h' ? 0 : 2;
		}
	}
	job_start(&a.job, &options);
	a.window = malloc(max);
	a.local = malloc(max);
	memset(a.window, 1, max);
	memset(a.local, 2, max);
	job_check(&a.job, fi_mr_reg(a.job.domain, a.window, max, ACCESS, 0, KEY, 0, &mr, NULL),
		  "fi_mr_reg");
	job_barrier(&a.job);
	if (a.job.rank)
		be_target(&a);
	else
		be_initiator(&a, max);
	job_barrier(&a.job);
	job_check(&a.job, fi_close(&mr->fid), "fi_close");
	free(a.window);
	free(a.local);
	job_stop(&a.job);
	return 0;
}
