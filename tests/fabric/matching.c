/* SPDX-License-Identifier: Apache-2.0 */
/* Which message a receive gets: order, wildcards, sources, probing, claiming, cancelling, cutting. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

static void send_bytes(struct traffic *t, const void *bytes, size_t len, uint64_t tag)
{
	struct job *job = &t->job;

	JOB_RETRY(job, &job->main,
		  fi_tsend(job->main.ep, bytes, len, NULL, traffic_other(t), tag, NULL));
	job_wait(job, job->main.tx_cq);
}

#define ORDERED 500

/* Small and large messages of one sender match in the order they were sent. */
static void case_order(struct traffic *t)
{
	struct job *job = &t->job;
	char *bytes = malloc(200000);
	uint64_t state = t->seed;
	int i;

	for (i = 0; traffic_is_pair(t) && i < ORDERED; i++) {
		uint64_t r = job_random(&state);
		size_t len = r % 4 ? r % 300 : r % 200000;

		if (job->rank == 0) {
			job_fill(bytes, len, (uint64_t)i);
			JOB_RETRY(job, &job->main,
				  fi_tsenddata(job->main.ep, bytes, len, NULL, (uint64_t)i,
					       traffic_other(t), 5, NULL));
			job_wait(job, job->main.tx_cq);
		} else {
			struct fi_cq_tagged_entry entry;

			JOB_RETRY(job, &job->main,
				  fi_trecv(job->main.ep, bytes, 200000, NULL,
					   i % 2 ? FI_ADDR_UNSPEC : traffic_other(t), 5,
					   i % 3 ? 0 : ~UINT64_C(5), NULL));
			entry = job_wait(job, job->main.rx_cq);
			if (entry.data != (uint64_t)i)
				job_fail(job, "message %d overtaken by %d", i, (int)entry.data);
			EXPECT(t, entry.len == len);
			EXPECT(t, job_verify(bytes, len, (uint64_t)i) == len);
		}
	}
	free(bytes);
}

/* A receive for one source does not take another's message. */
static void case_directed(struct traffic *t)
{
	struct job *job = &t->job;
	char in_self, in_other, out = (char)job->rank;
	fi_addr_t me = job->main.peers[job->rank];
	fi_addr_t sources[2];
	struct fi_cq_tagged_entry entry;
	ssize_t rc;

	if (!traffic_is_pair(t))
		return;
	JOB_RETRY(job, &job->main, fi_trecv(job->main.ep, &in_self, 1, NULL, me, 7, 0, &in_self));
	JOB_RETRY(job, &job->main,
		  fi_trecv(job->main.ep, &in_other, 1, NULL, traffic_other(t), 7, 0, &in_other));
	JOB_RETRY(job, &job->main, fi_tinject(job->main.ep, &out, 1, traffic_other(t), 7));
	while ((rc = fi_cq_readfrom(job->main.rx_cq, &entry, 1, &sources[0])) == -FI_EAGAIN)
		sched_yield();
	EXPECT(t, rc == 1 && entry.op_context == &in_other);
	EXPECT(t, sources[0] == traffic_other(t));
	EXPECT(t, in_other == 1 - job->rank);
	JOB_RETRY(job, &job->main, fi_tinject(job->main.ep, &out, 1, me, 7));
	while ((rc = fi_cq_readfrom(job->main.rx_cq, &entry, 1, &sources[1])) == -FI_EAGAIN)
		sched_yield();
	EXPECT(t, rc == 1 && entry.op_context == &in_self && sources[1] == me);
}

static void look(struct traffic *t, uint64_t tag, uint64_t flags, void *context)
{
	struct fi_msg_tagged msg = {
		.addr = FI_ADDR_UNSPEC,
		.tag = tag,
		.context = context,
	};

	JOB_RETRY(&t->job, &t->job.main, fi_trecvmsg(t->job.main.ep, &msg, flags | FI_COMPLETION));
}

/* Looks until the message is there. */
static struct fi_cq_tagged_entry look_for(struct traffic *t, uint64_t tag, uint64_t flags,
					  void *context)
{
	struct job *job = &t->job;
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	ssize_t rc;

	for (;;) {
		look(t, tag, FI_PEEK | flags, context);
		while ((rc = fi_cq_read(job->main.rx_cq, &entry, 1)) == -FI_EAGAIN)
			sched_yield();
		if (rc == 1) {
			EXPECT(t, entry.op_context == context);
			return entry;
		}
		memset(&error, 0, sizeof(error));
		EXPECT(t, rc == -FI_EAVAIL && fi_cq_readerr(job->main.rx_cq, &error, 0) == 1);
		EXPECT(t, error.err == FI_ENOMSG && error.op_context == context);
	}
}

static void claim(struct traffic *t, char *bytes, size_t len, void *context)
{
	struct iovec iov = {bytes, len};
	struct fi_msg_tagged msg = {
		.msg_iov = &iov,
		.iov_count = 1,
		.addr = FI_ADDR_UNSPEC,
		.context = context,
	};

	JOB_RETRY(&t->job, &t->job.main,
		  fi_trecvmsg(t->job.main.ep, &msg, FI_CLAIM | FI_COMPLETION));
}

/* Eager and rendezvous alike: seen, set aside, received by context, thrown away. */
static void peek_size(struct traffic *t, size_t len)
{
	struct job *job = &t->job;
	char *bytes = malloc(len + 1);
	struct fi_cq_tagged_entry entry;
	int first, second, i;

	if (job->rank == 0) {
		/* Only small ones are sent thrice: a large one completes when it is received. */
		for (i = 0; i < (len <= 1024 ? 3 : 1); i++) {
			job_fill(bytes, len, (uint64_t)i);
			send_bytes(t, bytes, len, 20 + (uint64_t)i);
		}
		free(bytes);
		return;
	}
	look(t, 19, FI_PEEK, &first);
	EXPECT(t, job_wait_error(job, job->main.rx_cq).err == FI_ENOMSG);
	entry = look_for(t, 20, 0, &first);
	EXPECT(t, entry.len == len && entry.tag == 20);
	entry = look_for(t, 20, FI_CLAIM, &first);
	EXPECT(t, entry.len == len);
	/* Nobody else sees a claimed message. */
	look(t, 20, FI_PEEK, &second);
	EXPECT(t, job_wait_error(job, job->main.rx_cq).err == FI_ENOMSG);
	claim(t, bytes, len, &first);
	entry = job_wait(job, job->main.rx_cq);
	EXPECT(t, entry.op_context == &first && entry.len == len && entry.tag == 20);
	EXPECT(t, job_verify(bytes, len, 0) == len);
	if (len <= 1024) {
		entry = look_for(t, 21, FI_DISCARD, &first);
		EXPECT(t, entry.len == len);
		look(t, 21, FI_PEEK, &second);
		EXPECT(t, job_wait_error(job, job->main.rx_cq).err == FI_ENOMSG);
		entry = look_for(t, 22, FI_CLAIM, &second);
		look(t, 0, FI_CLAIM | FI_DISCARD, &second);
		EXPECT(t, job_wait(job, job->main.rx_cq).op_context == &second);
	}
	free(bytes);
}

static void case_peek(struct traffic *t)
{
	static const size_t lens[] = {0, 8, 1000, 100000};
	size_t i;

	for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		if (traffic_is_pair(t))
			peek_size(t, lens[i]);
		job_barrier(&t->job);
	}
}

#define CANCELLED 50

/* Exactly one completion for each receive, whether it was in time or not. */
static void case_cancel(struct traffic *t)
{
	struct job *job = &t->job;
	char in[CANCELLED];
	int context[CANCELLED], i, taken = 0, cancelled = 0;
	ssize_t rc;

	if (!traffic_is_pair(t)) {
		job_barrier(job);
		return;
	}
	for (i = 0; i < CANCELLED; i++)
		JOB_RETRY(job, &job->main,
			  fi_trecv(job->main.ep, &in[i], 1, NULL, FI_ADDR_UNSPEC, 30, 0,
				   &context[i]));
	for (i = 0; i < CANCELLED / 2; i++)
		JOB_RETRY(job, &job->main, fi_tinject(job->main.ep, "x", 1, traffic_other(t), 30));
	for (i = 0; i < CANCELLED; i++)
		fi_cancel(&job->main.ep->fid, &context[i]);
	while (taken + cancelled < CANCELLED) {
		struct fi_cq_err_entry error = {0};
		struct fi_cq_tagged_entry entry;

		rc = fi_cq_read(job->main.rx_cq, &entry, 1);
		taken += rc == 1;
		if (rc != -FI_EAVAIL)
			continue;
		EXPECT(t, fi_cq_readerr(job->main.rx_cq, &error, 0) == 1);
		EXPECT(t, error.err == FI_ECANCELED);
		cancelled++;
	}
	EXPECT(t, fi_cancel(&job->main.ep->fid, &context[0]) == -FI_ENOENT);
	job_barrier(job);
	/* What found no receive any more is still there. */
	for (i = taken; i < CANCELLED / 2; i++) {
		JOB_RETRY(job, &job->main,
			  fi_trecv(job->main.ep, in, 1, NULL, FI_ADDR_UNSPEC, 30, 0, NULL));
		job_wait(job, job->main.rx_cq);
	}
	job_expect_nothing(job, job->main.rx_cq, 20);
}

/* Longer than the buffer: an error that says how much is missing, and nothing written behind. */
static void case_truncation(struct traffic *t)
{
	static const size_t lens[] = {9, 100, 5000, 100000, 1 << 20};
	struct job *job = &t->job;
	char *bytes = malloc(1 << 20);
	size_t i, j;

	for (i = 0; traffic_is_pair(t) && i < sizeof(lens) / sizeof(lens[0]); i++) {
		if (job->rank == 0) {
			job_fill(bytes, lens[i], i);
			send_bytes(t, bytes, lens[i], 40 + i);
		} else {
			size_t room = lens[i] / 3;
			struct fi_cq_err_entry error;

			memset(bytes, 0xa5, 1 << 20);
			JOB_RETRY(job, &job->main,
				  fi_trecv(job->main.ep, bytes, room, NULL, FI_ADDR_UNSPEC, 40 + i,
					   0, bytes));
			error = job_wait_error(job, job->main.rx_cq);
			EXPECT(t, error.err == FI_ETRUNC && error.op_context == bytes);
			EXPECT(t, error.olen == lens[i] - room);
			EXPECT(t, job_verify(bytes, room, i) == room);
			for (j = room; j < room + 64; j++)
				EXPECT(t, (unsigned char)bytes[j] == 0xa5);
		}
	}
	free(bytes);
}

/* --- seeded random traffic: every rank to every rank, sizes log-uniform --- */

#define NR_TAGS 4
#define WINDOW 16
#define RANDOM_MAX ((size_t)1 << 20)

static size_t random_len(uint64_t *state)
{
	uint64_t r = job_random(state);
	int bits = (int)(r % 21);

	return bits ? (size_t)(job_random(state) % ((uint64_t)1 << bits)) : 0;
}

struct slot {
	char *bytes;
	bool busy;
	uint32_t order; /* of the receive posted in it; 0: none */
};

static struct slot *free_slot(struct slot *slots)
{
	int i;

	for (i = 0; i < WINDOW; i++)
		if (!slots[i].busy)
			return &slots[i];
	return NULL;
}

struct random_job {
	struct slot out[WINDOW], in[WINDOW];
	uint64_t out_state[JOB_RANKS_MAX];
	uint32_t sent[JOB_RANKS_MAX];
	/* Which receive took each message of each source. */
	uint32_t *taken_by[JOB_RANKS_MAX];
	uint32_t per_peer, all_sent, all_received, posted;
};

/* What the NR-th message from one rank to another is, is the same on both sides. */
static uint64_t pair_seed(const struct traffic *t, int from, int to)
{
	return t->seed * 1000003 + (uint64_t)from * 131 + (uint64_t)to;
}

static void random_send(struct traffic *t, struct random_job *r, uint64_t *dice)
{
	struct job *job = &t->job;
	int to = (int)(job_random(dice) % (uint64_t)job->nr_ranks);
	struct slot *slot = free_slot(r->out);
	uint64_t before, tag;
	ssize_t rc;
	size_t len;

	if (!slot || r->sent[to] == r->per_peer)
		return;
	before = r->out_state[to];
	len = random_len(&r->out_state[to]);
	tag = job_random(&r->out_state[to]) % NR_TAGS;
	job_fill(slot->bytes, len, r->sent[to]);
	rc = fi_tsenddata(job->main.ep, slot->bytes, len, NULL,
			  (uint64_t)job->rank << 32 | r->sent[to], job->main.peers[to], tag, slot);
	if (rc == -FI_EAGAIN) {
		r->out_state[to] = before;
		return;
	}
	job_check(job, rc, "fi_tsenddata");
	slot->busy = true;
	r->sent[to]++;
	r->all_sent++;
}

static void random_post(struct traffic *t, struct random_job *r)
{
	struct job *job = &t->job;
	struct slot *slot = free_slot(r->in);

	if (!slot || r->posted == r->per_peer * (uint32_t)job->nr_ranks)
		return;
	/* Any source and any tag: the messages of one source come in the order they were sent. */
	JOB_RETRY(job, &job->main,
		  fi_trecv(job->main.ep, slot->bytes, RANDOM_MAX, NULL, FI_ADDR_UNSPEC, 0,
			   UINT64_MAX, slot));
	slot->busy = true;
	slot->order = ++r->posted;
}

static void random_check(struct traffic *t, struct random_job *r,
			 const struct fi_cq_tagged_entry *entry)
{
	struct slot *slot = entry->op_context;
	uint32_t nr = (uint32_t)entry->data;
	int from = (int)(entry->data >> 32);
	uint64_t state = pair_seed(t, from, t->job.rank);
	uint32_t i;
	size_t len = 0;
	uint64_t tag = 0;

	EXPECT(t, from < t->job.nr_ranks && nr < r->per_peer);
	for (i = 0; i <= nr; i++) {
		len = random_len(&state);
		tag = job_random(&state) % NR_TAGS;
	}
	EXPECT(t, entry->len == len);
	EXPECT(t, entry->tag == tag);
	EXPECT(t, job_verify(slot->bytes, len, nr) == len);
	if (r->taken_by[from][nr])
		job_fail(&t->job, "message %u of rank %d came twice", nr, from);
	r->taken_by[from][nr] = slot->order;
	slot->busy = false;
	r->all_received++;
}

/*
 * A large message may complete after later small ones, but it took an earlier receive: all
 * receives were alike, so the messages of one source must have taken them in order.
 */
static void check_order(struct traffic *t, const struct random_job *r)
{
	uint32_t i;
	int from;

	for (from = 0; from < t->job.nr_ranks; from++)
		for (i = 1; i < r->per_peer; i++)
			if (r->taken_by[from][i] <= r->taken_by[from][i - 1])
				job_fail(&t->job, "message %u of rank %d overtook the one before",
					 i, from);
}

static void case_random(struct traffic *t)
{
	struct job *job = &t->job;
	struct random_job *r = calloc(1, sizeof(*r));
	uint64_t dice = t->seed + (uint64_t)job->rank;
	struct fi_cq_tagged_entry entry;
	uint32_t total;
	int i;

	r->per_peer = (uint32_t)(t->nr_random / (job->nr_ranks * job->nr_ranks)) + 1;
	total = r->per_peer * (uint32_t)job->nr_ranks;
	for (i = 0; i < WINDOW; i++) {
		r->out[i].bytes = malloc(RANDOM_MAX);
		r->in[i].bytes = malloc(RANDOM_MAX);
	}
	for (i = 0; i < job->nr_ranks; i++) {
		r->out_state[i] = pair_seed(t, job->rank, i);
		r->taken_by[i] = calloc(r->per_peer, sizeof(uint32_t));
	}
	while (r->all_sent < total || r->all_received < total) {
		random_send(t, r, &dice);
		random_post(t, r);
		while (fi_cq_read(job->main.tx_cq, &entry, 1) == 1)
			((struct slot *)entry.op_context)->busy = false;
		if (job_random(&dice) % 3 == 0)
			continue;
		if (fi_cq_read(job->main.rx_cq, &entry, 1) == 1)
			random_check(t, r, &entry);
	}
	for (i = 0; i < WINDOW; i++)
		while (r->out[i].busy) {
			entry = job_wait(job, job->main.tx_cq);
			((struct slot *)entry.op_context)->busy = false;
		}
	check_order(t, r);
	for (i = 0; i < WINDOW; i++) {
		free(r->out[i].bytes);
		free(r->in[i].bytes);
	}
	for (i = 0; i < job->nr_ranks; i++)
		free(r->taken_by[i]);
	free(r);
}

const struct traffic_case traffic_matching[] = {
	{"order", case_order},
	{"directed", case_directed},
	{"peek", case_peek},
	{"cancel", case_cancel},
	{"truncation", case_truncation},
	{"random", case_random},
	{NULL, NULL},
};
