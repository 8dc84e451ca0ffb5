/* SPDX-License-Identifier: Apache-2.0 */
/* FI_THREAD_SAFE: several threads send, receive, probe and poll one endpoint at once. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

#define NR_THREADS 3 /* senders, and as many receivers */
#define NR_MESSAGES 300
#define LEN_MAX 40000

struct threads {
	struct traffic *traffic;
	struct job job; /* with a domain of its own */
	struct job_ep ep;
	fi_addr_t to;
};

struct worker {
	struct threads *threads;
	pthread_t thread;
	uint64_t tag;
};

static size_t length_of(uint64_t tag, int i)
{
	uint64_t state = tag * 1000 + (uint64_t)i;

	return (size_t)(job_random(&state) % (i % 8 ? 200 : LEN_MAX));
}

/* Completions of a shared queue may be anybody's: each message has a flag that whoever reads its
 * completion sets. */
static void poll_once(struct threads *t, struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entry;
	ssize_t rc = fi_cq_read(cq, &entry, 1);

	if (rc == 1)
		__atomic_store_n((int *)entry.op_context, 1, __ATOMIC_RELEASE);
	else if (rc != -FI_EAGAIN)
		job_check(&t->job, rc, "fi_cq_read");
}

static void await(struct threads *t, struct fid_cq *cq, int *done)
{
	while (!__atomic_load_n(done, __ATOMIC_ACQUIRE)) {
		poll_once(t, cq);
		sched_yield();
	}
}

static void *send_all(void *arg)
{
	struct worker *w = arg;
	struct threads *t = w->threads;
	char *bytes = malloc(LEN_MAX);
	int i;

	for (i = 0; i < NR_MESSAGES; i++) {
		size_t len = length_of(w->tag, i);
		int done = 0;
		ssize_t rc;

		job_fill(bytes, len, w->tag + (uint64_t)i);
		while ((rc = fi_tsend(t->ep.ep, bytes, len, NULL, t->to, w->tag, &done)) ==
		       -FI_EAGAIN)
			poll_once(t, t->ep.tx_cq);
		job_check(&t->job, rc, "fi_tsend");
		await(t, t->ep.tx_cq, &done);
	}
	free(bytes);
	return NULL;
}

static void *receive_all(void *arg)
{
	struct worker *w = arg;
	struct threads *t = w->threads;
	char *bytes = malloc(LEN_MAX);
	int i;

	for (i = 0; i < NR_MESSAGES; i++) {
		size_t len = length_of(w->tag, i);
		int done = 0;
		ssize_t rc;

		while ((rc = fi_trecv(t->ep.ep, bytes, LEN_MAX, NULL, FI_ADDR_UNSPEC, w->tag, 0,
				      &done)) == -FI_EAGAIN)
			poll_once(t, t->ep.rx_cq);
		job_check(&t->job, rc, "fi_trecv");
		await(t, t->ep.rx_cq, &done);
		if (job_verify(bytes, len, w->tag + (uint64_t)i) != len)
			job_fail(&t->job, "message %d of thread %d is wrong", i, (int)w->tag);
	}
	free(bytes);
	return NULL;
}

static void open_domain(struct threads *t)
{
	struct fi_av_attr attr = {.type = FI_AV_TABLE};

	t->job.info = fi_dupinfo(t->traffic->job.info);
	t->job.info->domain_attr->threading = FI_THREAD_SAFE;
	memset(t->job.connected, 0, sizeof(t->job.connected));
	job_check(&t->job, fi_domain(t->job.fabric, t->job.info, &t->job.domain, NULL),
		  "fi_domain");
	job_check(&t->job, fi_av_open(t->job.domain, &attr, &t->job.av, NULL), "fi_av_open");
	job_ep_open(&t->job, &t->ep, FI_CQ_FORMAT_TAGGED, 0);
	job_ep_connect(&t->job, &t->ep);
	t->to = t->ep.peers[(t->job.rank + 1) % t->job.nr_ranks];
}

static void run_workers(struct threads *t)
{
	struct worker workers[2 * NR_THREADS];
	int i;

	for (i = 0; i < 2 * NR_THREADS; i++) {
		workers[i] = (struct worker){.threads = t, .tag = (uint64_t)(i / 2)};
		if (pthread_create(&workers[i].thread, NULL, i % 2 ? send_all : receive_all,
				   &workers[i]))
			job_fail(&t->job, "no thread");
	}
	for (i = 0; i < 2 * NR_THREADS; i++)
		pthread_join(workers[i].thread, NULL);
}

static void case_threads(struct traffic *traffic)
{
	struct threads *t = calloc(1, sizeof(*t));

	t->traffic = traffic;
	t->job = traffic->job;
	open_domain(t);
	run_workers(t);
	job_barrier(&t->job);
	job_ep_close(&t->job, &t->ep);
	job_check(&t->job, fi_close(&t->job.av->fid), "fi_close vector");
	job_check(&t->job, fi_close(&t->job.domain->fid), "fi_close domain");
	fi_freeinfo(t->job.info);
	traffic->job.meetings = t->job.meetings;
	free(t);
}

const struct traffic_case traffic_threads[] = {
	{"threads", case_threads},
	{NULL, NULL},
};
