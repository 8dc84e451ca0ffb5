/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Correctness of a provider with reliable datagrams, over the public libfabric interface: messages,
 * matching, remote memory, atomics, queues, counters, vectors, endpoints. Says "traffic OK" and
 * exits 0, or "FAILED rank N CASE: why" and exits 1.
 */
#include "traffic.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct traffic_case *const families[] = {
	traffic_messages, traffic_matching, traffic_remote, traffic_objects, traffic_threads,
};

static void usage(FILE *to)
{
	fprintf(to,
		"usage: fabric_traffic [-n RANKS] [-r RANK -d DIR] [-p PROVIDER] [-c CASE]... [-m "
		"MESSAGES] [-s SEED]\n"
		"                      [-w SECONDS] [-L] [-l]\n"
		"  -n RANKS     processes of the job (default 2); forked here without -r\n"
		"  -r RANK      be this rank of a job whose ranks are started one by one\n"
		"  -d DIR       directory that all ranks share, for addresses; new for each job\n"
		"  -p PROVIDER  libfabric provider (default nearmetal)\n"
		"  -c CASE      only this case; may be repeated\n"
		"  -m MESSAGES  of the random case (default 4000)\n"
		"  -s SEED      of the random case (default 1)\n"
		"  -w SECONDS   patience of the watchdog (default 120)\n"
		"  -L           also a message past 2 GiB (needs 5 GB of memory)\n"
		"  -l           list the cases\n"
		"Example: FI_PROVIDER_PATH=build/c/src/provider fabric_traffic -c tagged -c rma\n");
}

static void list_cases(void)
{
	const struct traffic_case *c;
	size_t i;

	for (i = 0; i < sizeof(families) / sizeof(families[0]); i++)
		for (c = families[i]; c->name; c++)
			printf("%s\n", c->name);
}

#define WANTED_MAX 32

static bool is_wanted(const char *name, const char *const *wanted, int nr_wanted)
{
	int i;

	for (i = 0; i < nr_wanted; i++)
		if (!strcmp(wanted[i], name))
			return true;
	return !nr_wanted;
}

static int run_cases(struct traffic *traffic, const char *const *wanted, int nr_wanted)
{
	const struct traffic_case *c;
	int nr = 0;
	size_t i;

	for (i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		for (c = families[i]; c->name; c++) {
			if (!is_wanted(c->name, wanted, nr_wanted))
				continue;
			traffic->job.phase = c->name;
			c->run(traffic);
			traffic->job.phase = "between cases";
			job_barrier(&traffic->job);
			if (!traffic->job.rank)
				printf("case %s\n", c->name);
			nr++;
		}
	}
	return nr;
}

int main(int argc, char **argv)
{
	struct job_options options = {
		.nr_ranks = 2,
		.rank = -1,
		.provider = "nearmetal",
		.patience_s = 120,
	};
	struct traffic traffic = {.seed = 1, .nr_random = 4000};
	const char *wanted[WANTED_MAX];
	int nr_wanted = 0, option, nr;

	while ((option = getopt(argc, argv, JOB_OPTIONS "n:c:m:s:Llh")) != -1) {
		switch (option) {
		case 'n':
			options.nr_ranks = atoi(optarg);
			break;
		case 'c':
			if (nr_wanted < WANTED_MAX)
				wanted[nr_wanted++] = optarg;
			break;
		case 'm':
			traffic.nr_random = atoi(optarg);
			break;
		case 's':
			traffic.seed = strtoull(optarg, NULL, 0);
			break;
		case 'L':
			traffic.huge = true;
			break;
		case 'l':
			list_cases();
			return 0;
		default:
			if (job_option(&options, option, optarg))
				break;
			usage(option == 'h' ? stdout : stderr);
			return option == 'h' ? 0 : 2;
		}
	}
	job_start(&traffic.job, &options);
	nr = run_cases(&traffic, wanted, nr_wanted);
	job_stop(&traffic.job);
	if (!traffic.job.rank)
		printf("traffic OK: %d cases, %d ranks, provider %s, libfabric %u.%u\n", nr,
		       options.nr_ranks, options.provider, FI_MAJOR(fi_version()),
		       FI_MINOR(fi_version()));
	return nr ? 0 : 2;
}
