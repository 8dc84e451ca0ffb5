/* SPDX-License-Identifier: Apache-2.0 */
/* Remote memory access and atomic operations, and what must be refused. */
#include <complex.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

#define KEY UINT64_C(0x77)
#define KEY_READ_ONLY UINT64_C(0x78)
#define KEY_ALL UINT64_C(0xfffffff79)
#define REGION ((size_t)2 << 20)

struct target {
	char *bytes;
	struct fid_mr *mr, *read_only, *all;
};

static void target_open(struct traffic *t, struct target *target)
{
	struct job *job = &t->job;
	const uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;

	target->bytes = calloc(1, REGION);
	job_check(
		job,
		fi_mr_reg(job->domain, target->bytes, REGION, access, 0, KEY, 0, &target->mr, NULL),
		"fi_mr_reg");
	job_check(job,
		  fi_mr_reg(job->domain, target->bytes, REGION, FI_REMOTE_READ, 0, KEY_READ_ONLY, 0,
			    &target->read_only, NULL),
		  "fi_mr_reg read only");
	job_check(job,
		  fi_mr_reg(job->domain, NULL, SIZE_MAX, access, 0, KEY_ALL, 0, &target->all, NULL),
		  "fi_mr_reg of all memory");
	job_barrier(job);
}

static void target_close(struct traffic *t, struct target *target)
{
	struct job *job = &t->job;

	job_barrier(job);
	job_check(job, fi_close(&target->mr->fid), "fi_close region");
	job_check(job, fi_close(&target->read_only->fid), "fi_close region");
	job_check(job, fi_close(&target->all->fid), "fi_close region");
	free(target->bytes);
}

/* The target keeps its queues moving until the other rank says that it is done. */
static void serve(struct traffic *t)
{
	struct job *job = &t->job;
	struct fi_cq_tagged_entry entry;

	JOB_RETRY(job, &job->main,
		  fi_trecv(job->main.ep, NULL, 0, NULL, traffic_other(t), 1000, 0, NULL));
	entry = job_wait(job, job->main.rx_cq);
	EXPECT(t, entry.tag == 1000);
}

static void release(struct traffic *t)
{
	JOB_RETRY(&t->job, &t->job.main,
		  fi_tinject(t->job.main.ep, NULL, 0, traffic_other(t), 1000));
}

static void write_and_read(struct traffic *t, size_t len, uint64_t at)
{
	struct job *job = &t->job;
	char *out = malloc(len + 1), *in = malloc(len + 1);
	struct iovec iov[2] = {{in, len / 3}, {in + len / 3, len - len / 3}};
	struct fi_rma_iov remote[2] = {
		{.addr = at, .len = len / 2, .key = KEY},
		{.addr = at + len / 2, .len = len - len / 2, .key = KEY},
	};
	struct fi_msg_rma msg = {
		.msg_iov = iov,
		.iov_count = 2,
		.addr = traffic_other(t),
		.rma_iov = remote,
		.rma_iov_count = 2,
		.context = in,
	};

	job_fill(out, len, len);
	JOB_RETRY(job, &job->main,
		  fi_write(job->main.ep, out, len, NULL, traffic_other(t), at, KEY, out));
	EXPECT(t, job_wait(job, job->main.tx_cq).op_context == out);
	memset(in, 0, len);
	JOB_RETRY(job, &job->main,
		  fi_read(job->main.ep, in, len, NULL, traffic_other(t), at, KEY, in));
	EXPECT(t, job_wait(job, job->main.tx_cq).op_context == in);
	EXPECT(t, job_verify(in, len, len) == len);
	memset(in, 0, len);
	JOB_RETRY(job, &job->main, fi_readmsg(job->main.ep, &msg, FI_COMPLETION));
	job_wait(job, job->main.tx_cq);
	EXPECT(t, job_verify(in, len, len) == len);
	free(out);
	free(in);
}

static void case_rma(struct traffic *t)
{
	static const size_t lens[] = {1, 8, 100, 1024, 4096, 20000, 65536, 300000, 1 << 20};
	struct job *job = &t->job;
	struct target target;
	uint64_t word = 42;
	size_t i;

	target_open(t, &target);
	if (job->rank == 0) {
		for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
			write_and_read(t, lens[i], i * 77);
		/* Injected, and with data: the other side sees it as a completion. */
		JOB_RETRY(job, &job->main,
			  fi_inject_write(job->main.ep, &word, sizeof(word), traffic_other(t), 0,
					  KEY));
		JOB_RETRY(job, &job->main,
			  fi_writedata(job->main.ep, &word, sizeof(word), NULL, 4711,
				       traffic_other(t), 8, KEY, NULL));
		job_wait(job, job->main.tx_cq);
	} else if (job->rank == 1) {
		struct fi_cq_tagged_entry entry = job_wait(job, job->main.rx_cq);

		EXPECT(t, entry.flags & FI_REMOTE_CQ_DATA && entry.data == 4711);
		EXPECT(t, !memcmp(target.bytes, &word, sizeof(word)));
		EXPECT(t, !memcmp(target.bytes + 8, &word, sizeof(word)));
	}
	target_close(t, &target);
}

/* A region of all memory is addressed by the target's own addresses. */
static void case_rma_all_memory(struct traffic *t)
{
	struct job *job = &t->job;
	uint64_t here = (uintptr_t)malloc(100), all[JOB_RANKS_MAX];
	char out[100];
	struct target target;

	target_open(t, &target);
	job_exchange(job, &here, sizeof(here), all);
	if (job->rank == 0) {
		job_fill(out, sizeof(out), 3);
		JOB_RETRY(job, &job->main,
			  fi_write(job->main.ep, out, sizeof(out), NULL, traffic_other(t), all[1],
				   KEY_ALL, NULL));
		job_wait(job, job->main.tx_cq);
		memset(out, 0, sizeof(out));
		JOB_RETRY(job, &job->main,
			  fi_read(job->main.ep, out, sizeof(out), NULL, traffic_other(t), all[1],
				  KEY_ALL, NULL));
		job_wait(job, job->main.tx_cq);
		EXPECT(t, job_verify(out, sizeof(out), 3) == sizeof(out));
		release(t);
	} else if (job->rank == 1) {
		serve(t);
		EXPECT(t, job_verify((void *)(uintptr_t)here, 100, 3) == 100);
	}
	target_close(t, &target);
	free((void *)(uintptr_t)here);
}

static void expect_refused(struct traffic *t, const char *what, uint64_t at, size_t len,
			   uint64_t key, bool write)
{
	static char bytes[4096];
	struct job *job = &t->job;
	struct fi_cq_err_entry error;

	JOB_RETRY(
		job, &job->main,
		write ? fi_write(job->main.ep, bytes, len, NULL, traffic_other(t), at, key, bytes) :
			fi_read(job->main.ep, bytes, len, NULL, traffic_other(t), at, key, bytes));
	error = job_wait_error(job, job->main.tx_cq);
	if (error.err != FI_EACCES && error.err != FI_ENOKEY && error.err != FI_EINVAL)
		job_fail(job, "%s: error %d", what, error.err);
	EXPECT(t, error.op_context == bytes);
}

/* The target refuses; the connection and what is right go on. */
static void case_rma_refused(struct traffic *t)
{
	struct target target;

	target_open(t, &target);
	if (t->job.rank == 0) {
		expect_refused(t, "no such key", 0, 8, 0x999, true);
		expect_refused(t, "behind the end", REGION - 4, 8, KEY, true);
		expect_refused(t, "address past 2^64", UINT64_MAX - 3, 8, KEY, false);
		expect_refused(t, "write to a read-only region", 0, 8, KEY_READ_ONLY, true);
		write_and_read(t, 1000, 0);
		release(t);
	} else if (t->job.rank == 1) {
		serve(t);
	}
	target_close(t, &target);
}

/* --- atomics: the same sums on both sides --- */

#define ROUNDS 200

static void atomic_sum(struct traffic *t, enum fi_datatype type, const void *one, uint64_t at)
{
	struct job *job = &t->job;
	size_t count;
	int i;

	job_check(job, fi_atomicvalid(job->main.ep, type, FI_SUM, &count), "fi_atomicvalid");
	EXPECT(t, count > 0);
	for (i = 0; i < ROUNDS; i++) {
		if (i % 2) {
			JOB_RETRY(job, &job->main,
				  fi_inject_atomic(job->main.ep, one, 1, job->main.peers[0], at,
						   KEY, type, FI_SUM));
			continue;
		}
		JOB_RETRY(job, &job->main,
			  fi_atomic(job->main.ep, one, 1, NULL, job->main.peers[0], at, KEY, type,
				    FI_SUM, NULL));
		job_wait(job, job->main.tx_cq);
	}
}

static void atomic_counters(struct traffic *t)
{
	const int32_t i32 = 1;
	const uint64_t u64 = 3;
	const double f64 = 0.5;
	const double complex c64 = 1 + 2 * I;

	atomic_sum(t, FI_INT32, &i32, 0);
	atomic_sum(t, FI_UINT64, &u64, 16);
	atomic_sum(t, FI_DOUBLE, &f64, 32);
	atomic_sum(t, FI_DOUBLE_COMPLEX, &c64, 48);
}

/* A lock made of compare-and-swap protects a counter that is read and written without atomics. */
static void atomic_lock(struct traffic *t)
{
	struct job *job = &t->job;
	const uint64_t zero = 0, one = 1;
	uint64_t before, value;
	int i;

	for (i = 0; i < 20; i++) {
		do {
			JOB_RETRY(job, &job->main,
				  fi_compare_atomic(job->main.ep, &one, 1, NULL, &zero, NULL,
						    &before, NULL, job->main.peers[0], 128, KEY,
						    FI_UINT64, FI_CSWAP, NULL));
			job_wait(job, job->main.tx_cq);
		} while (before);
		JOB_RETRY(
			job, &job->main,
			fi_read(job->main.ep, &value, 8, NULL, job->main.peers[0], 136, KEY, NULL));
		job_wait(job, job->main.tx_cq);
		value++;
		JOB_RETRY(job, &job->main,
			  fi_write(job->main.ep, &value, 8, NULL, job->main.peers[0], 136, KEY,
				   NULL));
		job_wait(job, job->main.tx_cq);
		JOB_RETRY(job, &job->main,
			  fi_atomic(job->main.ep, &zero, 1, NULL, job->main.peers[0], 128, KEY,
				    FI_UINT64, FI_ATOMIC_WRITE, NULL));
		job_wait(job, job->main.tx_cq);
	}
}

static void check_counters(struct traffic *t, const char *bytes)
{
	int nr = t->job.nr_ranks;
	int32_t i32;
	uint64_t u64;
	double f64;
	double complex c64;

	memcpy(&i32, bytes, sizeof(i32));
	memcpy(&u64, bytes + 16, sizeof(u64));
	memcpy(&f64, bytes + 32, sizeof(f64));
	memcpy(&c64, bytes + 48, sizeof(c64));
	EXPECT(t, i32 == ROUNDS * nr);
	EXPECT(t, u64 == (uint64_t)(3 * ROUNDS * nr));
	EXPECT(t, f64 > 0.5 * ROUNDS * nr - 0.1 && f64 < 0.5 * ROUNDS * nr + 0.1);
	EXPECT(t, creal(c64) > ROUNDS * nr - 0.1 && cimag(c64) > 2 * ROUNDS * nr - 0.1);
	memcpy(&u64, bytes + 136, sizeof(u64));
	EXPECT(t, u64 == (uint64_t)(20 * nr));
}

/* Tickets of fetch-and-add: everybody's are different and none is missing. */
static void atomic_tickets(struct traffic *t)
{
	struct job *job = &t->job;
	uint64_t one = 1, ticket, last = 0, seen = 0;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		JOB_RETRY(job, &job->main,
			  fi_fetch_atomic(job->main.ep, &one, 1, NULL, &ticket, NULL,
					  job->main.peers[0], 200, KEY, FI_UINT64, FI_SUM, NULL));
		job_wait(job, job->main.tx_cq);
		EXPECT(t, !seen || ticket > last);
		EXPECT(t, ticket < (uint64_t)(ROUNDS * job->nr_ranks));
		last = ticket;
		seen = 1;
	}
	JOB_RETRY(job, &job->main,
		  fi_fetch_atomic(job->main.ep, NULL, 1, NULL, &ticket, NULL, job->main.peers[0],
				  200, KEY, FI_UINT64, FI_ATOMIC_READ, NULL));
	job_wait(job, job->main.tx_cq);
	EXPECT(t, ticket > last);
}

static void case_atomic(struct traffic *t)
{
	struct fi_atomic_attr attr = {0};
	struct job *job = &t->job;
	struct target target;
	uint64_t word = 0;

	target_open(t, &target);
	EXPECT(t, !fi_query_atomic(job->domain, FI_DOUBLE, FI_SUM, &attr, 0));
	EXPECT(t, attr.size == sizeof(double) && attr.count > 0);
	EXPECT(t, fi_query_atomic(job->domain, FI_DOUBLE, FI_BOR, &attr, 0) == -FI_EOPNOTSUPP);
	EXPECT(t, fi_query_atomic(job->domain, FI_INT64, FI_CSWAP, &attr, 0) == -FI_EOPNOTSUPP);
	EXPECT(t, !fi_query_atomic(job->domain, FI_INT64, FI_CSWAP, &attr, FI_COMPARE_ATOMIC));
	atomic_counters(t);
	atomic_lock(t);
	atomic_tickets(t);
	/* Messages tell the target's rank to go on serving until everybody is through. */
	if (job->rank == 0) {
		int i;

		for (i = 1; i < job->nr_ranks; i++) {
			JOB_RETRY(job, &job->main,
				  fi_trecv(job->main.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 1001, 0,
					   NULL));
			job_wait(job, job->main.rx_cq);
		}
		check_counters(t, target.bytes);
	} else {
		/* A fetch behind all updates: what it returns proves that they were done. */
		JOB_RETRY(job, &job->main,
			  fi_fetch_atomic(job->main.ep, NULL, 1, NULL, &word, NULL,
					  job->main.peers[0], 0, KEY, FI_UINT64, FI_ATOMIC_READ,
					  NULL));
		job_wait(job, job->main.tx_cq);
		JOB_RETRY(job, &job->main,
			  fi_tinject(job->main.ep, NULL, 0, job->main.peers[0], 1001));
	}
	target_close(t, &target);
}

const struct traffic_case traffic_remote[] = {
	{"rma", case_rma},
	{"rma_all_memory", case_rma_all_memory},
	{"rma_refused", case_rma_refused},
	{"atomic", case_atomic},
	{NULL, NULL},
};
