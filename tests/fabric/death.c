/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to the others when a process is killed: rank 1 kills itself with SIGKILL in the
 * middle of something, and rank 0 must get an error completion for everything it waits for, soon.
 * No launcher watches, as one would kill rank 0 too before it could notice.
 */
#include "fabric_job.h"

#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BIG ((size_t)64 << 20)

struct death {
	struct job job;
	const char *when;
	char *bytes;
};

static bool is(const struct death *d, const char *when)
{
	return !strcmp(d->when, when);
}

/* So that the ranks know each other both ways before the end comes. */
static void shake_hands(struct death *d)
{
	struct job *job = &d->job;
	char byte = 0;

	JOB_RETRY(job, &job->main,
		  fi_tinject(job->main.ep, "h", 1, job->main.peers[1 - job->rank], 1));
	JOB_RETRY(
		job, &job->main,
		fi_trecv(job->main.ep, &byte, 1, NULL, job->main.peers[1 - job->rank], 1, 0, NULL));
	job_wait(job, job->main.rx_cq);
}

static void die(struct death *d)
{
	struct job *job = &d->job;
	int i;

	/* Sending: part of a large message has gone. Receiving: part of one has come. */
	if (is(d, "sending"))
		JOB_RETRY(job, &job->main,
			  fi_tsend(job->main.ep, d->bytes, BIG, NULL, job->main.peers[0], 2, NULL));
	if (is(d, "receiving"))
		JOB_RETRY(job, &job->main,
			  fi_trecv(job->main.ep, d->bytes, BIG, NULL, job->main.peers[0], 2, 0,
				   NULL));
	for (i = 0; i < 200; i++)
		job_progress(job, &job->main);
	raise(SIGKILL);
}

/* Rank 0 waits for something of rank 1 that will not come. */
static struct fid_cq *start_waiting(struct death *d)
{
	struct job *job = &d->job;

	if (is(d, "receiving")) {
		JOB_RETRY(job, &job->main,
			  fi_tsend(job->main.ep, d->bytes, BIG, NULL, job->main.peers[1], 2, NULL));
		return job->main.tx_cq;
	}
	JOB_RETRY(job, &job->main,
		  fi_trecv(job->main.ep, d->bytes, BIG, NULL,
			   is(d, "wildcard") ? FI_ADDR_UNSPEC : job->main.peers[1], 2, 0, NULL));
	return job->main.rx_cq;
}

static int survive(struct death *d)
{
	struct job *job = &d->job;
	struct fi_cq_err_entry error;
	struct fid_cq *cq;
	uint64_t start;
	ssize_t rc;

	cq = start_waiting(d);
	start = job_now_ns();
	error = job_wait_error(job, cq);
	printf("loss noticed after %llu ms: %s\n",
	       (unsigned long long)((job_now_ns() - start) / 1000000), fi_strerror(error.err));
	/* Whoever talks to it later gets an error too, at once or as a completion. */
	while ((rc = fi_tsend(job->main.ep, d->bytes, 1, NULL, job->main.peers[1], 3, NULL)) ==
	       -FI_EAGAIN)
		job_progress(job, &job->main);
	if (!rc && !job_wait_error(job, job->main.tx_cq).err)
		job_fail(job, "a send to a dead peer did not fail");
	job_ep_close(job, &job->main);
	printf("death OK\n");
	return 0;
}

int main(int argc, char **argv)
{
	struct job_options options = {
		.nr_ranks = 2,
		.rank = -1,
		.provider = "nearmetal",
		.patience_s = 30,
	};
	struct death d = {.when = "waiting"};
	int option;

	while ((option = getopt(argc, argv, JOB_OPTIONS "m:h")) != -1) {
		if (option == 'm') {
			d.when = optarg;
		} else if (!job_option(&options, option, optarg)) {
			fprintf(option == 'h' ? stdout : stderr,
				"usage: fabric_death [-m waiting|wildcard|sending|receiving] [-r RANK "
				"-d DIR] [-p PROVIDER] [-w SECONDS]\n"
				"Rank 1 kills itself; rank 0 says when it noticed.\n"
				"Example: fabric_death -m sending\n");
			return option == 'h' ? 0 : 2;
		}
	}
	options.dies = 1;
	job_start(&d.job, &options);
	d.job.phase = d.when;
	d.bytes = calloc(1, BIG);
	shake_hands(&d);
	job_barrier(&d.job);
	if (d.job.rank == 1)
		die(&d);
	return survive(&d);
}
