/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What blocking costs: rank 1 waits in fi_cq_sread() for messages that rank 0 sends now and then.
 * Prints how long a message takes from before its send to after the wait, and how much of a
 * processor the waiting takes. Output: mpi/sampling.h.
 */
#include "fabric_job.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "mpi/sampling.h"

#define TAG 1
#define PATIENCE_MS 20000
#define COMPUTE_NS 500000

struct wait {
	struct job job;
	struct samples latency;
	double nr, interval_ms;
};

/* Timers that end at about the same time end together: ours would wake the other rank. */
static void compute(uint64_t ns)
{
	uint64_t until = job_now_ns() + ns;

	while (job_now_ns() < until)
		;
}

static void send_now_and_then(struct wait *w)
{
	struct timespec pause = {
		.tv_sec = (time_t)(w->interval_ms / 1000),
		.tv_nsec = (long)((uint64_t)(w->interval_ms * 1e6) % UINT64_C(1000000000)),
	};
	struct job *job = &w->job;
	uint64_t random = 1;

	for (int i = 0; i < (int)w->nr; i++) {
		uint64_t now;

		nanosleep(&pause, NULL);
		compute(job_random(&random) % COMPUTE_NS);
		now = job_now_ns();
		JOB_RETRY(job, &job->main,
			  fi_tinject(job->main.ep, &now, sizeof(now), job->main.peers[1], TAG));
	}
}

static double processor_us(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void receive(struct wait *w)
{
	double processor = processor_us(), wall;
	uint64_t start = job_now_ns(), sent;
	struct fi_cq_tagged_entry entry;
	struct job *job = &w->job;

	for (int i = 0; i < (int)w->nr; i++) {
		JOB_RETRY(job, &job->main,
			  fi_trecv(job->main.ep, &sent, sizeof(sent), NULL, job->main.peers[0], TAG,
				   0, NULL));
		job_check(job, fi_cq_sread(job->main.rx_cq, &entry, 1, NULL, PATIENCE_MS),
			  "fi_cq_sread");
		samples_add(&w->latency, (double)(job_now_ns() - sent) / 1e3);
	}
	wall = (double)(job_now_ns() - start) / 1e3;
	processor = processor_us() - processor;
	samples_sort(&w->latency);
	printf("nearmetal-bench 1 fabric_wait\n# interval_ms %g\n# table wait\n"
	       "samples latency_p2_us latency_p50_us latency_p98_us processor_percent\n"
	       "%d %.2f %.2f %.2f %.3f\n# end wait\n# done fabric_wait\n",
	       w->interval_ms, w->latency.nr, samples_percentile(&w->latency, 2),
	       samples_percentile(&w->latency, 50), samples_percentile(&w->latency, 98),
	       processor / wall * 100);
}

int main(int argc, char **argv)
{
	struct job_options options = {
		.nr_ranks = 2,
		.rank = -1,
		.provider = "nearmetal",
		.patience_s = 120,
	};
	struct wait w = {.nr = 500, .interval_ms = 10};
	int option;

	while ((option = getopt(argc, argv, JOB_OPTIONS "n:i:h")) != -1) {
		bool ok = option == 'n' ? !number_parse(optarg, 1, SAMPLES_MAX, &w.nr) :
			  option == 'i' ? !number_parse(optarg, 0, 10000, &w.interval_ms) :
					  job_option(&options, option, optarg);

		if (!ok) {
			fprintf(option == 'h' ? stdout : stderr,
				"usage: fabric_wait [-n MESSAGES] [-i MILLISECONDS] [-r RANK -d DIR] "
				"[-p PROVIDER] [-w SECONDS]\n"
				"Rank 1 blocks until the next message comes.\n"
				"Example: fabric_wait -n 200 -i 20\n");
			return option == 'h' ? 0 : 2;
		}
	}
	job_start(&w.job, &options);
	if (w.job.rank == 1)
		receive(&w);
	else
		send_now_and_then(&w);
	job_barrier(&w.job);
	job_stop(&w.job);
	return 0;
}
