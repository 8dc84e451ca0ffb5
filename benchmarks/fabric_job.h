/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fabric-level programs share: processes that find each other through a directory, one
 * endpoint each over the public libfabric interface, and calls that fail loudly. Nothing in it
 * knows nearmetal; -p runs the programs over any other provider with reliable datagrams.
 */
#ifndef NM_BENCHMARKS_FABRIC_JOB_H
#define NM_BENCHMARKS_FABRIC_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define JOB_RANKS_MAX 16
#define JOB_NAME_MAX 128
#define JOB_EPS_MAX 4

struct job_options {
	int nr_ranks;
	int rank;	 /* -1: fork all of them */
	const char *dir; /* where addresses are left; NULL: a temporary one, with fork only */
	const char *provider;
	int patience_s; /* a watchdog ends a job that hangs */
	int dies;	/* rank whose death by a signal is no failure; 0: none */
	uint64_t caps;	/* asked for; 0: everything */
};

/* An endpoint with what it is bound to. */
struct job_ep {
	struct fid_cq *tx_cq, *rx_cq;
	struct fid_ep *ep;
	fi_addr_t peers[JOB_RANKS_MAX];
};

struct job {
	struct job_options options;
	int rank, nr_ranks;
	const char *phase; /* for messages: what is being done */
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct job_ep main;		       /* FI_CQ_FORMAT_TAGGED, selective completion off */
	struct job_ep *connected[JOB_EPS_MAX]; /* kept moving while this rank waits for others */
	int meetings;			       /* exchanges so far: the names of files */
};

/* Prints "FAILED rank N PHASE: ..." and ends the process with code 1. */
void job_fail(const struct job *job, const char *fmt, ...)
	__attribute__((format(printf, 2, 3), noreturn));
/* Fails when RC is negative; WHAT is the call. */
void job_check(const struct job *job, long rc, const char *what);

/* The options that all programs have, for getopt(). */
#define JOB_OPTIONS "r:d:p:w:"
/* Takes one of them; false: it is another one. */
bool job_option(struct job_options *options, int option, const char *value);

/*
 * Parses nothing; forks when asked to. Returns in every process of the job with the endpoint open
 * and all addresses inserted. In the parent of forked ranks it does not return but exits with the
 * worst exit code of them.
 */
void job_start(struct job *job, const struct job_options *options);
/* The first lines of a log: the program, its provider and its libfabric. */
void job_print_head(const struct job *job, const char *program);
/* Closes everything; fails when something is still busy. */
void job_stop(struct job *job);

/* Opens one more endpoint on the domain. FORMAT of its queues; FLAGS to bind them with. */
void job_ep_open(struct job *job, struct job_ep *ep, enum fi_cq_format format, uint64_t flags);
void job_ep_close(struct job *job, struct job_ep *ep);
/* Every rank gives LEN bytes and gets those of all, in order of rank. */
void job_exchange(struct job *job, const void *mine, size_t len, void *ret_all);
/* As above, for addresses of EP: fills ep->peers. */
void job_ep_connect(struct job *job, struct job_ep *ep);

/* Calls FN until it does not say -FI_EAGAIN, driving both queues meanwhile. */
#define JOB_RETRY(job, ep_, call)                                                                  \
	do {                                                                                       \
		ssize_t rc_;                                                                       \
		while ((rc_ = (call)) == -FI_EAGAIN)                                               \
			job_progress(job, ep_);                                                    \
		job_check(job, rc_, #call);                                                        \
	} while (0)

/* Drives progress without taking a completion. */
void job_progress(struct job *job, struct job_ep *ep);
/* Waits for one completion of a queue and returns it; fails on an error completion. */
struct fi_cq_tagged_entry job_wait(struct job *job, struct fid_cq *cq);
/* Waits for one completion that must be an error. */
struct fi_cq_err_entry job_wait_error(struct job *job, struct fid_cq *cq);
/* Fails when a completion comes within MS milliseconds. */
void job_expect_nothing(struct job *job, struct fid_cq *cq, int ms);
/* All ranks are here. Through files: works whatever state the fabric is in. */
void job_barrier(struct job *job);

/* Bytes that tell who wrote them: filled and checked with the same seed. */
void job_fill(void *bytes, size_t len, uint64_t seed);
/* Offset of the first wrong byte, or LEN. */
size_t job_verify(const void *bytes, size_t len, uint64_t seed);

/* A small good generator: the same numbers on every machine. */
static inline uint64_t job_random(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint64_t job_now_ns(void);

#endif
