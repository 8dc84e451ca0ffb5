/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency, message rate and bandwidth of tagged messages over the public libfabric interface: what
 * is left of a channel's speed above the provider and below any MPI. Output: mpi/sampling.h.
 * With -T it takes turns (mpi/turns.h): pingpong and uniband of any size.
 */
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric_job.h"
#include "mpi/sampling.h"
#include "mpi/turns.h"

#define WINDOW 64
#define TAG 1
#define TAG_DONE 2
#define TAG_PLAN 3
static const int percents[] = {2, 25, 50, 75, 98};
#define NR_PERCENTS (sizeof(percents) / sizeof(percents[0]))

struct pingpong {
	struct job job;
	struct samples samples;
	char *out, *in;
	int nr_samples;
	bool writes; /* each message before it is sent */
	int nr_written;
	size_t inject;
};

static fi_addr_t other(const struct pingpong *p)
{
	return p->job.main.peers[1 - p->job.rank];
}

/* Returns whether a completion will follow. */
static bool post_send(struct pingpong *p, size_t size, uint64_t tag)
{
	struct job *job = &p->job;

	if (size <= p->inject) {
		JOB_RETRY(job, &job->main, fi_tinject(job->main.ep, p->out, size, other(p), tag));
		return false;
	}
	if (p->writes)
		memset(p->out, p->nr_written++, size);
	JOB_RETRY(job, &job->main, fi_tsend(job->main.ep, p->out, size, NULL, other(p), tag, NULL));
	return true;
}

static void post_receive(struct pingpong *p, size_t size, uint64_t tag)
{
	struct job *job = &p->job;

	JOB_RETRY(job, &job->main,
		  fi_trecv(job->main.ep, p->in, size, NULL, other(p), tag, 0, NULL));
}

/* As job_wait(), without giving the processor away: the provider does that when it pays. */
static void spin(struct job *job, struct fid_cq *cq, int nr)
{
	struct fi_cq_tagged_entry entries[WINDOW];
	ssize_t rc;

	while (nr > 0) {
		rc = fi_cq_read(cq, entries, (size_t)(nr < WINDOW ? nr : WINDOW));
		if (rc > 0)
			nr -= (int)rc;
		else if (rc != -FI_EAGAIN)
			job_check(job, rc, "fi_cq_read");
	}
}

static void round_trips(struct pingpong *p, size_t size, int nr)
{
	struct job *job = &p->job;
	int i;

	for (i = 0; i < nr; i++) {
		bool completes;

		post_receive(p, size, TAG);
		if (job->rank == 0) {
			completes = post_send(p, size, TAG);
			spin(job, job->main.rx_cq, 1);
		} else {
			spin(job, job->main.rx_cq, 1);
			completes = post_send(p, size, TAG);
		}
		if (completes)
			spin(job, job->main.tx_cq, 1);
	}
}

/* A window of messages one way, then one small answer. */
static void window(struct pingpong *p, size_t size, int nr)
{
	struct job *job = &p->job;
	int i, completing = 0;

	if (job->rank == 0) {
		post_receive(p, 0, TAG_DONE);
		for (i = 0; i < nr; i++)
			completing += post_send(p, size, TAG);
		spin(job, job->main.rx_cq, 1);
		spin(job, job->main.tx_cq, completing);
		return;
	}
	for (i = 0; i < nr; i++)
		post_receive(p, size, TAG);
	spin(job, job->main.rx_cq, nr);
	post_send(p, 0, TAG_DONE);
}

static void print_row(const struct pingpong *p, size_t size, int batch, double scale)
{
	size_t i;

	printf("%zu %d %d", size, p->samples.nr, batch);
	for (i = 0; i < NR_PERCENTS; i++)
		printf(" %.4f", samples_percentile(&p->samples, percents[i]) * scale);
}

static int batch_of(size_t size, bool windowed)
{
	if (windowed)
		return size <= 65536 ? WINDOW : size <= (1 << 20) ? 8 : 2;
	return size <= 16384 ? 50 : size <= (1 << 20) ? 5 : 2;
}

/* As benchmarks/mpi/mpi_samples.c has it. */
static int window_of(size_t size)
{
	return size <= 4096 ? WINDOW : size <= 65536 ? 16 : size <= (1 << 20) ? 8 : 4;
}

static void measure(struct pingpong *p, size_t size, bool windowed)
{
	int batch = batch_of(size, windowed), i;
	double median;

	p->samples.nr = 0;
	/* The first tenth warms up: connections, pages, pools. */
	for (i = -p->nr_samples / 10; i < p->nr_samples; i++) {
		uint64_t start = job_now_ns();

		if (windowed)
			window(p, size, batch);
		else
			round_trips(p, size, batch);
		if (i >= 0)
			samples_add(&p->samples, (double)(job_now_ns() - start) /
							 (windowed ? 1.0 : 2.0) / batch * 1e-9);
	}
	if (p->job.rank)
		return;
	samples_sort(&p->samples);
	median = samples_percentile(&p->samples, 50);
	print_row(p, size, batch, 1e6);
	printf(" 1 %.6f %.2f\n", 1e-6 / median, (double)size / median * 1e-6);
	fflush(stdout);
}

static void table(struct pingpong *p, const char *name, bool windowed, size_t max)
{
	size_t size;

	if (!p->job.rank) {
		printf("# table %s\nsize_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us "
		       "time_p98_us messages rate_p50_Mps bandwidth_p50_MBps\n",
		       name);
	}
	for (size = 8; size <= max; size *= 2)
		measure(p, size, windowed);
	if (!p->job.rank)
		printf("# end %s\n", name);
}

static double timed(struct pingpong *p, size_t size, bool windowed, int batch)
{
	uint64_t start = job_now_ns();

	if (windowed)
		window(p, size, batch);
	else
		round_trips(p, size, batch);
	return (double)(job_now_ns() - start) / (windowed ? 1.0 : 2.0) / batch * 1e-9;
}

/* Rank 0 tells how many samples it wants. */
static int agree(struct pingpong *p, int nr)
{
	if (p->job.rank) {
		post_receive(p, sizeof(nr), TAG_PLAN);
		spin(&p->job, p->job.main.rx_cq, 1);
		memcpy(&nr, p->in, sizeof(nr));
		return nr;
	}
	memcpy(p->out, &nr, sizeof(nr));
	if (post_send(p, sizeof(nr), TAG_PLAN))
		spin(&p->job, p->job.main.tx_cq, 1);
	return nr;
}

static void take_test(struct pingpong *p, struct turns *turns, const struct turn_test *test,
		      uint64_t max)
{
	bool windowed = !strcmp(test->name, "uniband");
	int i, nr, batch = windowed ? window_of(test->size) : 50;
	double spent;

	if ((!windowed && strcmp(test->name, "pingpong")) || test->size > max)
		job_fail(&p->job, "no test %s of %llu bytes", test->name,
			 (unsigned long long)test->size);
	timed(p, test->size, windowed, batch);
	spent = timed(p, test->size, windowed, batch) * batch * (windowed ? 1 : 2);
	nr = agree(p, turns_samples(turns, spent));
	for (i = 0; i < nr; i++) {
		spent = timed(p, test->size, windowed, batch);
		if (!p->job.rank && turns_add(turns, test, spent))
			job_fail(&p->job, "no memory for samples");
	}
}

static void take_turns(struct pingpong *p, const char *dir, uint64_t max)
{
	struct turns turns;
	int i, ret = turns_open(&turns, dir, p->job.rank);

	alarm(0); /* whoever gives the turns has the patience */
	while (!ret && (ret = turns_next(&turns)) > 0) {
		for (i = 0; i < turns.now.nr_tests; i++)
			take_test(p, &turns, &turns.now.tests[i], max);
		ret = turns_done(&turns);
	}
	if (ret)
		job_fail(&p->job, "turns in %s: %s", dir, strerror(-ret));
	if (!p->job.rank)
		turns_print(&turns);
	turns_close(&turns);
}

/* To one of the cores this process may use. */
static void pin(const struct pingpong *p)
{
	cpu_set_t may, mine;
	int core = 0, left;

	if (sched_getaffinity(0, sizeof(may), &may))
		job_fail(&p->job, "has no cores");
	for (left = p->job.rank % CPU_COUNT(&may); !CPU_ISSET(core, &may) || left-- > 0; core++)
		;
	CPU_ZERO(&mine);
	CPU_SET(core, &mine);
	if (sched_setaffinity(0, sizeof(mine), &mine))
		job_fail(&p->job, "cannot be pinned to core %d", core);
}

static void usage(FILE *to)
{
	fprintf(to,
		"usage: fabric_pingpong [-r RANK -d DIR] [-p PROVIDER] [-t SAMPLES] [-b] [-f] [-x BYTES] "
		"[-w SECONDS] [-T DIR] [-s BYTES]\n"
		"  -r RANK -d DIR  be this rank of two that are started one by one\n"
		"  -p PROVIDER     libfabric provider (default nearmetal)\n"
		"  -t SAMPLES      per size (default 200)\n"
		"  -b              pin the two to the first and second core that they may use\n"
		"  -f              write each message before it is sent, within its time\n"
		"  -x BYTES        largest message (default 4M)\n"
		"  -T DIR          measure by turns, told by pipes in DIR\n"
		"  -s BYTES        shift all that follows in the heap by about so much\n"
		"  -w SECONDS      patience of the watchdog (default 300)\n"
		"Example: FI_PROVIDER_PATH=build/c/src/provider fabric_pingpong\n");
}

int main(int argc, char **argv)
{
	struct job_options options = {
		.nr_ranks = 2,
		.rank = -1,
		.provider = "nearmetal",
		.patience_s = 300,
		.caps = FI_TAGGED,
	};
	static struct pingpong p = {.nr_samples = 200};
	uint64_t max = 4 << 20, shift = 0;
	void *before_all;
	bool pinned = false;
	const char *turns = NULL;
	int option;

	while ((option = getopt(argc, argv, JOB_OPTIONS "t:bfx:T:s:h")) != -1) {
		if (job_option(&options, option, optarg))
			continue;
		if (option == 't')
			p.nr_samples = atoi(optarg);
		else if (option == 'T')
			turns = optarg;
		else if (option == 'b')
			pinned = true;
		else if (option == 'f')
			p.writes = true;
		else if ((option != 'x' || size_parse(optarg, &max)) &&
			 (option != 's' || size_parse(optarg, &shift))) {
			usage(option == 'h' ? stdout : stderr);
			return option == 'h' ? 0 : 2;
		}
	}
	if (p.nr_samples < 1 || p.nr_samples > SAMPLES_MAX || max < 8) {
		usage(stderr);
		return 2;
	}
	before_all = malloc(shift);
	job_start(&p.job, &options);
	p.job.phase = "pingpong";
	if (pinned)
		pin(&p);
	p.inject = p.job.info->tx_attr->inject_size;
	p.out = calloc(1, max);
	p.in = calloc(1, max);
	if (!p.job.rank)
		job_print_head(&p.job, "fabric_pingpong");
	if (turns) {
		take_turns(&p, turns, max);
	} else {
		table(&p, "fabric_pingpong", false, max);
		table(&p, "fabric_stream", true, max);
	}
	job_stop(&p.job);
	free(before_all);
	if (!p.job.rank)
		printf("# done fabric_pingpong\n");
	return 0;
}
