/* SPDX-License-Identifier: Apache-2.0 */
/* Sending and receiving in every form: sizes, vectors, data, injection, multi-receive, floods. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

#define BIG ((size_t)8 << 20)
#define GUARD 64
#define DATA UINT64_C(0x1122334455667788)

static const size_t sizes[] = {
	0,     1,     7,     8,	    39,	    40,	    41,	    63,	     64,      200,     1000,
	1024,  1025,  2048,  4095,  4096,   8192,   16383,  16384,   16385,   20000,   32768,
	65535, 65536, 65537, 70000, 131072, 262144, 300001, 1 << 20, 3 << 20, 8 << 20,
};
#define NR_SIZES ((int)(sizeof(sizes) / sizeof(sizes[0])))

enum way { WAY_PLAIN, WAY_VECTOR, WAY_MESSAGE, WAY_DATA, WAY_INJECT, WAY_INJECT_DATA, NR_WAYS };

static bool way_has_data(enum way way)
{
	return way == WAY_DATA || way == WAY_INJECT_DATA || way == WAY_MESSAGE;
}

/* LEN bytes cut into four pieces of unequal length. */
static void cut(char *bytes, size_t len, struct iovec iov[4])
{
	size_t part = len / 7, at = 0;
	int i;

	for (i = 0; i < 4; i++) {
		size_t n = i == 3 ? len - at : part * (size_t)(i + 1) / 2;

		iov[i] = (struct iovec){.iov_base = bytes + at, .iov_len = n};
		at += n;
	}
}

static ssize_t send_tagged(struct traffic *t, enum way way, char *bytes, size_t len, uint64_t tag,
			   void *context)
{
	struct fid_ep *ep = t->job.main.ep;
	fi_addr_t to = traffic_other(t);
	struct iovec iov[4];
	struct fi_msg_tagged msg = {
		.msg_iov = iov,
		.iov_count = 4,
		.addr = to,
		.tag = tag,
		.data = DATA,
		.context = context,
	};

	cut(bytes, len, iov);
	switch (way) {
	case WAY_VECTOR:
		return fi_tsendv(ep, iov, NULL, 4, to, tag, context);
	case WAY_MESSAGE:
		return fi_tsendmsg(ep, &msg, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE);
	case WAY_DATA:
		return fi_tsenddata(ep, bytes, len, NULL, DATA, to, tag, context);
	case WAY_INJECT:
		return fi_tinject(ep, bytes, len, to, tag);
	case WAY_INJECT_DATA:
		return fi_tinjectdata(ep, bytes, len, DATA, to, tag);
	case WAY_PLAIN:
	case NR_WAYS:
		break;
	}
	return fi_tsend(ep, bytes, len, NULL, to, tag, context);
}

static ssize_t send_untagged(struct traffic *t, enum way way, char *bytes, size_t len,
			     void *context)
{
	struct fid_ep *ep = t->job.main.ep;
	fi_addr_t to = traffic_other(t);
	struct iovec iov[4];
	struct fi_msg msg = {
		.msg_iov = iov,
		.iov_count = 4,
		.addr = to,
		.data = DATA,
		.context = context,
	};

	cut(bytes, len, iov);
	switch (way) {
	case WAY_VECTOR:
		return fi_sendv(ep, iov, NULL, 4, to, context);
	case WAY_MESSAGE:
		return fi_sendmsg(ep, &msg, FI_REMOTE_CQ_DATA | FI_TRANSMIT_COMPLETE);
	case WAY_DATA:
		return fi_senddata(ep, bytes, len, NULL, DATA, to, context);
	case WAY_INJECT:
		return fi_inject(ep, bytes, len, to);
	case WAY_INJECT_DATA:
		return fi_injectdata(ep, bytes, len, DATA, to);
	case WAY_PLAIN:
	case NR_WAYS:
		break;
	}
	return fi_send(ep, bytes, len, NULL, to, context);
}

static bool way_completes(enum way way)
{
	return way != WAY_INJECT && way != WAY_INJECT_DATA;
}

static void check_received(struct traffic *t, const struct fi_cq_tagged_entry *entry,
			   const char *bytes, size_t len, uint64_t seed, enum way way, bool tagged)
{
	uint64_t kind = tagged ? FI_TAGGED : FI_MSG;
	size_t i;

	if (entry->len != len)
		job_fail(&t->job, "%zu bytes received, %zu expected", entry->len, len);
	i = job_verify(bytes, len, seed);
	if (i < len)
		job_fail(&t->job, "byte %zu of %zu is wrong (way %d)", i, len, (int)way);
	for (i = len; i < len + GUARD; i++)
		if ((unsigned char)bytes[i] != 0xa5)
			job_fail(&t->job, "byte %zu behind a message of %zu was written", i, len);
	EXPECT(t, (entry->flags & (FI_RECV | kind)) == (FI_RECV | kind));
	EXPECT(t, !(entry->flags & FI_REMOTE_CQ_DATA) == !way_has_data(way));
	EXPECT(t, !way_has_data(way) || entry->data == DATA);
	EXPECT(t, !tagged || entry->tag == seed);
}

/* Both directions one after the other; LATE: the receive is posted when the message is there. */
static void one_message(struct traffic *t, char *bytes, enum way way, size_t len, uint64_t seed,
			bool tagged, bool late, int from)
{
	struct job *job = &t->job;
	struct fi_cq_tagged_entry entry;
	int context;

	if (job->rank == from) {
		job_fill(bytes, len, seed);
		if (!late)
			job_wait(job, job->main.rx_cq);
		JOB_RETRY(job, &job->main,
			  tagged ? send_tagged(t, way, bytes, len, seed, &context) :
				   send_untagged(t, way, bytes, len, &context));
		if (way_completes(way)) {
			entry = job_wait(job, job->main.tx_cq);
			EXPECT(t, entry.op_context == &context);
		} else {
			memset(bytes, 0, len); /* an injected buffer is ours again */
		}
		/* The receiver tells when it has looked at the bytes. */
		job_wait(job, job->main.rx_cq);
		return;
	}
	memset(bytes, 0xa5, len + GUARD);
	if (late)
		for (int i = 0; i < 50; i++)
			job_progress(job, &job->main);
	JOB_RETRY(job, &job->main,
		  tagged ? fi_trecv(job->main.ep, bytes, len, NULL, traffic_other(t), seed, 0,
				    &context) :
			   fi_recv(job->main.ep, bytes, len, NULL, traffic_other(t), &context));
	if (!late)
		JOB_RETRY(job, &job->main,
			  fi_tinject(job->main.ep, NULL, 0, traffic_other(t), UINT64_MAX));
	entry = job_wait(job, job->main.rx_cq);
	EXPECT(t, entry.op_context == &context);
	check_received(t, &entry, bytes, len, seed, way, tagged);
	JOB_RETRY(job, &job->main,
		  fi_tinject(job->main.ep, NULL, 0, traffic_other(t), UINT64_MAX - 1));
}

/* The signals of the receiver: posted on the sender's side before each message. */
static void expect_signals(struct traffic *t, bool late)
{
	struct job *job = &t->job;

	if (!late)
		JOB_RETRY(job, &job->main,
			  fi_trecv(job->main.ep, NULL, 0, NULL, traffic_other(t), UINT64_MAX, 0,
				   NULL));
	JOB_RETRY(job, &job->main,
		  fi_trecv(job->main.ep, NULL, 0, NULL, traffic_other(t), UINT64_MAX - 1, 0, NULL));
}

static void all_sizes(struct traffic *t, bool tagged)
{
	char *bytes = malloc(BIG + GUARD);
	uint64_t seed = 1;
	int way, i, from;

	for (way = 0; traffic_is_pair(t) && way < NR_WAYS; way++)
		for (i = 0; i < NR_SIZES; i++)
			for (from = 0; from < 2; from++, seed++) {
				bool late = seed % 2;

				if (!way_completes((enum way)way) &&
				    sizes[i] > t->job.info->tx_attr->inject_size)
					continue;
				if (t->job.rank == from)
					expect_signals(t, late);
				one_message(t, bytes, (enum way)way, sizes[i], seed, tagged, late,
					    from);
			}
	free(bytes);
}

static void case_tagged(struct traffic *t)
{
	all_sizes(t, true);
}

static void case_untagged(struct traffic *t)
{
	all_sizes(t, false);
}

#define MULTI_SIZE 65536
#define MULTI_MESSAGES 400

/* Two buffers take turns; every message lies in one of them, and each is given back once. */
static void case_multi_recv(struct traffic *t)
{
	struct job *job = &t->job;
	char *buffers = malloc(2 * MULTI_SIZE), bytes[5000];
	uint64_t state = t->seed;
	size_t min = 5000;
	int i, released = 0;

	if (job->rank == 1) {
		struct iovec iov[2];
		struct fi_msg msg = {.iov_count = 1, .addr = FI_ADDR_UNSPEC};

		job_check(job,
			  fi_setopt(&job->main.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV,
				    &min, sizeof(min)),
			  "fi_setopt");
		for (i = 0; i < 2; i++) {
			iov[i] = (struct iovec){buffers + i * MULTI_SIZE, MULTI_SIZE};
			msg.msg_iov = &iov[i];
			msg.context = &iov[i];
			JOB_RETRY(job, &job->main,
				  fi_recvmsg(job->main.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
		}
		job_barrier(job);
		for (i = 0; i < MULTI_MESSAGES;) {
			struct fi_cq_tagged_entry entry = job_wait(job, job->main.rx_cq);

			if (entry.flags & FI_RECV && (entry.len || entry.buf)) {
				EXPECT(t, entry.len == job_random(&state) % sizeof(bytes));
				EXPECT(t,
				       job_verify(entry.buf, entry.len, (uint64_t)i) == entry.len);
				i++;
			}
			if (entry.flags & FI_MULTI_RECV) {
				released++;
				msg.msg_iov = entry.op_context;
				msg.context = entry.op_context;
				JOB_RETRY(job, &job->main,
					  fi_recvmsg(job->main.ep, &msg,
						     FI_MULTI_RECV | FI_COMPLETION));
			}
		}
		EXPECT(t, released > 0);
		/* Take both back: each answers once. */
		for (i = 0; i < 2; i++)
			job_check(job, fi_cancel(&job->main.ep->fid, &iov[i]), "fi_cancel");
		for (i = 0; i < 2; i++) {
			struct fi_cq_err_entry error = job_wait_error(job, job->main.rx_cq);

			EXPECT(t, error.err == FI_ECANCELED);
			EXPECT(t, error.flags & FI_MULTI_RECV);
		}
	} else {
		job_barrier(job);
		for (i = 0; job->rank == 0 && i < MULTI_MESSAGES; i++) {
			size_t len = job_random(&state) % sizeof(bytes);

			job_fill(bytes, len, (uint64_t)i);
			JOB_RETRY(job, &job->main,
				  fi_send(job->main.ep, bytes, len, NULL, traffic_other(t), NULL));
			job_wait(job, job->main.tx_cq);
		}
	}
	free(buffers);
}

#define FLOOD 3000

/* Everybody sends before anybody reads: what is refused is refused with -FI_EAGAIN, and never for
 * ever. */
static void case_flood(struct traffic *t)
{
	struct job *job = &t->job;
	static char out[FLOOD][64], in[FLOOD][64];
	static char big_out[40][100000], big_in[40][100000];
	int i;

	if (!traffic_is_pair(t))
		return;
	for (i = 0; i < FLOOD; i++) {
		job_fill(out[i], 64, (uint64_t)i);
		JOB_RETRY(job, &job->main,
			  fi_tsend(job->main.ep, out[i], 64, NULL, traffic_other(t), 1, NULL));
	}
	for (i = 0; i < 40; i++) {
		job_fill(big_out[i], sizeof(big_out[i]), (uint64_t)i);
		JOB_RETRY(job, &job->main,
			  fi_tsend(job->main.ep, big_out[i], sizeof(big_out[i]), NULL,
				   traffic_other(t), 2, NULL));
	}
	for (i = 0; i < FLOOD; i++)
		JOB_RETRY(job, &job->main,
			  fi_trecv(job->main.ep, in[i], 64, NULL, traffic_other(t), 1, 0, NULL));
	for (i = 0; i < 40; i++)
		JOB_RETRY(job, &job->main,
			  fi_trecv(job->main.ep, big_in[i], sizeof(big_in[i]), NULL,
				   traffic_other(t), 2, 0, NULL));
	for (i = 0; i < FLOOD + 40; i++)
		job_wait(job, job->main.rx_cq);
	for (i = 0; i < FLOOD + 40; i++)
		job_wait(job, job->main.tx_cq);
	for (i = 0; i < FLOOD; i++)
		EXPECT(t, job_verify(in[i], 64, (uint64_t)i) == 64);
	for (i = 0; i < 40; i++)
		EXPECT(t,
		       job_verify(big_in[i], sizeof(big_in[i]), (uint64_t)i) == sizeof(big_in[i]));
}

/* A rank is its own peer like any other. */
static void case_self(struct traffic *t)
{
	struct job *job = &t->job;
	fi_addr_t me = job->main.peers[job->rank];
	char *out = malloc(1 << 20), *in = malloc(1 << 20);
	size_t len;

	for (len = 1; len <= 1 << 20; len *= 8) {
		job_fill(out, len, len);
		JOB_RETRY(job, &job->main, fi_tsend(job->main.ep, out, len, NULL, me, len, NULL));
		JOB_RETRY(job, &job->main, fi_trecv(job->main.ep, in, len, NULL, me, len, 0, NULL));
		job_wait(job, job->main.rx_cq);
		job_wait(job, job->main.tx_cq);
		EXPECT(t, job_verify(in, len, len) == len);
	}
	free(out);
	free(in);
}

#define HUGE_LEN (((size_t)2 << 30) + 12345)

static void case_huge(struct traffic *t)
{
	struct job *job = &t->job;
	char *bytes;
	size_t i;

	if (!t->huge || !traffic_is_pair(t))
		return;
	bytes = malloc(HUGE_LEN);
	if (!bytes)
		job_fail(job, "no memory for a message past 2 GiB");
	if (job->rank == 0) {
		for (i = 0; i < HUGE_LEN; i += 4096)
			bytes[i] = (char)(i >> 12);
		bytes[HUGE_LEN - 1] = 77;
		JOB_RETRY(job, &job->main,
			  fi_tsend(job->main.ep, bytes, HUGE_LEN, NULL, traffic_other(t), 9, NULL));
		job_wait(job, job->main.tx_cq);
	} else {
		JOB_RETRY(job, &job->main,
			  fi_trecv(job->main.ep, bytes, HUGE_LEN, NULL, traffic_other(t), 9, 0,
				   NULL));
		EXPECT(t, job_wait(job, job->main.rx_cq).len == HUGE_LEN);
		for (i = 0; i < HUGE_LEN - 1; i += 4096)
			EXPECT(t, bytes[i] == (char)(i >> 12));
		EXPECT(t, bytes[HUGE_LEN - 1] == 77);
	}
	free(bytes);
}

const struct traffic_case traffic_messages[] = {
	{"tagged", case_tagged},
	{"untagged", case_untagged},
	{"multi_recv", case_multi_recv},
	{"flood", case_flood},
	{"self", case_self},
	{"huge", case_huge},
	{NULL, NULL},
};
