/* SPDX-License-Identifier: Apache-2.0 */
/* Queues in every format, counters, vectors, options, names, and the life of objects. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "traffic.h"

/* Only what was asked for completes. */
static void case_selective(struct traffic *t)
{
	struct job *job = &t->job;
	struct job_ep ep;
	char byte = 1;
	struct iovec iov = {&byte, 1};
	struct fi_msg_tagged msg = {.msg_iov = &iov, .iov_count = 1, .tag = 3, .context = &msg};

	memset(&ep, 0, sizeof(ep));
	job_ep_open(job, &ep, FI_CQ_FORMAT_TAGGED, FI_SELECTIVE_COMPLETION);
	job_ep_connect(job, &ep);
	if (job->rank == 0) {
		msg.addr = ep.peers[1];
		JOB_RETRY(job, &ep, fi_tsend(ep.ep, &byte, 1, NULL, ep.peers[1], 3, NULL));
		JOB_RETRY(job, &ep, fi_tsendmsg(ep.ep, &msg, 0));
		job_expect_nothing(job, ep.tx_cq, 20);
		JOB_RETRY(job, &ep, fi_tsendmsg(ep.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		EXPECT(t, job_wait(job, ep.tx_cq).op_context == &msg);
		job_expect_nothing(job, ep.tx_cq, 10);
	} else if (job->rank == 1) {
		int i;

		for (i = 0; i < 3; i++) {
			JOB_RETRY(job, &ep,
				  fi_trecv(ep.ep, &byte, 1, NULL, FI_ADDR_UNSPEC, 3, 0, NULL));
			job_wait(job, ep.rx_cq);
		}
	}
	job_barrier(job);
	job_ep_close(job, &ep);
}

static void one_format(struct traffic *t, enum fi_cq_format format, size_t entry_size)
{
	struct job *job = &t->job;
	char raw[4 * sizeof(struct fi_cq_tagged_entry)], in[3][8], out[8] = "message";
	struct job_ep ep;
	size_t i;

	memset(&ep, 0, sizeof(ep));
	job_ep_open(job, &ep, format, 0);
	job_ep_connect(job, &ep);
	if (job->rank == 0) {
		for (i = 0; i < 3; i++)
			JOB_RETRY(job, &ep,
				  fi_tinjectdata(ep.ep, out, i + 1, 100 + i, ep.peers[1], 50 + i));
	} else if (job->rank == 1) {
		size_t got = 0;

		for (i = 0; i < 3; i++)
			JOB_RETRY(job, &ep,
				  fi_trecv(ep.ep, in[i], 8, NULL, ep.peers[0], 50 + i, 0, in[i]));
		while (got < 3) {
			ssize_t rc = fi_cq_read(ep.rx_cq, raw + got * entry_size, 3 - got);

			EXPECT(t, rc > 0 || rc == -FI_EAGAIN);
			got += rc > 0 ? (size_t)rc : 0;
		}
		for (i = 0; i < 3; i++) {
			struct fi_cq_tagged_entry entry = {0};

			memcpy(&entry, raw + i * entry_size, entry_size);
			EXPECT(t, entry.op_context == in[i]);
			if (format >= FI_CQ_FORMAT_MSG)
				EXPECT(t, entry.len == i + 1 && entry.flags & FI_TAGGED);
			if (format >= FI_CQ_FORMAT_DATA)
				EXPECT(t, entry.data == 100 + i);
			if (format >= FI_CQ_FORMAT_TAGGED)
				EXPECT(t, entry.tag == 50 + i);
		}
	}
	job_barrier(job);
	job_ep_close(job, &ep);
}

static void case_formats(struct traffic *t)
{
	one_format(t, FI_CQ_FORMAT_CONTEXT, sizeof(struct fi_cq_entry));
	one_format(t, FI_CQ_FORMAT_MSG, sizeof(struct fi_cq_msg_entry));
	one_format(t, FI_CQ_FORMAT_DATA, sizeof(struct fi_cq_data_entry));
	one_format(t, FI_CQ_FORMAT_TAGGED, sizeof(struct fi_cq_tagged_entry));
}

/* A blocking read ends with the message, with the time, or with a signal. */
static void case_blocking_read(struct traffic *t)
{
	struct job *job = &t->job;
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_entry entry;
	struct fid_cq *cq, *in_set;
	uint64_t start;

	job_check(job, fi_cq_open(job->domain, &attr, &cq, NULL), "fi_cq_open");
	start = job_now_ns();
	EXPECT(t, fi_cq_sread(cq, &entry, 1, NULL, 50) == -FI_EAGAIN);
	EXPECT(t, job_now_ns() - start >= UINT64_C(50000000));
	job_check(job, fi_cq_signal(cq), "fi_cq_signal");
	EXPECT(t, fi_cq_sread(cq, &entry, 1, NULL, -1) == -FI_EAGAIN);
	attr.wait_obj = FI_WAIT_SET;
	EXPECT(t, fi_cq_open(job->domain, &attr, &in_set, NULL) == -FI_ENOSYS);
	job_check(job, fi_close(&cq->fid), "fi_close");
}

static struct fid_cntr *open_counter(struct job *job, struct fid_ep *ep, uint64_t what)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	struct fid_cntr *cntr;

	job_check(job, fi_cntr_open(job->domain, &attr, &cntr, NULL), "fi_cntr_open");
	job_check(job, fi_ep_bind(ep, &cntr->fid, what), "fi_ep_bind counter");
	return cntr;
}

#define COUNTED 25

static void count_rank_0(struct traffic *t, struct job_ep *ep, struct fid_cntr *sends,
			 struct fid_cntr *writes, struct fid_cntr *reads)
{
	struct job *job = &t->job;
	uint64_t word = 9;
	int i;

	for (i = 0; i < COUNTED; i++) {
		JOB_RETRY(job, ep, fi_tinject(ep->ep, &word, 8, ep->peers[1], 4));
		JOB_RETRY(job, ep, fi_write(ep->ep, &word, 8, NULL, ep->peers[1], 0, 5, NULL));
	}
	job_check(job, fi_cntr_wait(sends, COUNTED, 10000), "fi_cntr_wait sends");
	job_check(job, fi_cntr_wait(writes, COUNTED, 10000), "fi_cntr_wait writes");
	JOB_RETRY(job, ep, fi_read(ep->ep, &word, 8, NULL, ep->peers[1], 0, 5, NULL));
	job_check(job, fi_cntr_wait(reads, 1, 10000), "fi_cntr_wait reads");
	EXPECT(t, fi_cntr_read(sends) == COUNTED && fi_cntr_readerr(sends) == 0);
	job_check(job, fi_cntr_add(sends, 5), "fi_cntr_add");
	EXPECT(t, fi_cntr_read(sends) == COUNTED + 5);
	job_check(job, fi_cntr_set(sends, 1), "fi_cntr_set");
	EXPECT(t, fi_cntr_read(sends) == 1);
	EXPECT(t, fi_cntr_wait(sends, 2, 20) == -FI_ETIMEDOUT);
	JOB_RETRY(job, ep, fi_tinject(ep->ep, &word, 8, ep->peers[1], 6));
}

static void count_rank_1(struct traffic *t, struct job_ep *ep, struct fid_cntr *receives)
{
	struct job *job = &t->job;
	char in[COUNTED + 1][8];
	int i;

	for (i = 0; i < COUNTED; i++)
		JOB_RETRY(job, ep, fi_trecv(ep->ep, in[i], 8, NULL, FI_ADDR_UNSPEC, 4, 0, NULL));
	job_check(job, fi_cntr_wait(receives, COUNTED, 10000), "fi_cntr_wait receives");
	JOB_RETRY(job, ep, fi_trecv(ep->ep, in[COUNTED], 8, NULL, FI_ADDR_UNSPEC, 6, 0, NULL));
	job_check(job, fi_cntr_wait(receives, COUNTED + 1, 10000), "fi_cntr_wait receives");
}

static void case_counters(struct traffic *t)
{
	struct job *job = &t->job;
	struct fid_cntr *sends, *receives, *writes, *reads;
	struct job_ep ep;
	uint64_t word = 0;
	struct fid_mr *mr;

	memset(&ep, 0, sizeof(ep));
	job_check(job, fi_endpoint(job->domain, job->info, &ep.ep, NULL), "fi_endpoint");
	job_check(job, fi_ep_bind(ep.ep, &job->av->fid, 0), "fi_ep_bind");
	sends = open_counter(job, ep.ep, FI_SEND);
	receives = open_counter(job, ep.ep, FI_RECV);
	reads = open_counter(job, ep.ep, FI_READ);
	/* Queues too, because the helpers drive progress by them; nothing is written to them. */
	job_check(job, fi_cq_open(job->domain, &(struct fi_cq_attr){0}, &ep.tx_cq, NULL), "cq");
	job_check(job, fi_cq_open(job->domain, &(struct fi_cq_attr){0}, &ep.rx_cq, NULL), "cq");
	job_check(job, fi_ep_bind(ep.ep, &ep.tx_cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION),
		  "fi_ep_bind");
	job_check(job, fi_ep_bind(ep.ep, &ep.rx_cq->fid, FI_RECV | FI_SELECTIVE_COMPLETION),
		  "fi_ep_bind");
	job_check(job, fi_enable(ep.ep), "fi_enable");
	/* Sandia OpenSHMEM adds counters to an enabled endpoint. */
	writes = open_counter(job, ep.ep, FI_WRITE);
	job_ep_connect(job, &ep);
	job_check(job,
		  fi_mr_reg(job->domain, &word, 8, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0, &mr,
			    NULL),
		  "fi_mr_reg");
	job_barrier(job);
	if (job->rank == 0)
		count_rank_0(t, &ep, sends, writes, reads);
	else if (job->rank == 1)
		count_rank_1(t, &ep, receives);
	job_barrier(job);
	EXPECT(t, fi_close(&sends->fid) == -FI_EBUSY);
	job_check(job, fi_close(&mr->fid), "fi_close region");
	job_ep_close(job, &ep);
	job_check(job, fi_close(&sends->fid), "fi_close");
	job_check(job, fi_close(&receives->fid), "fi_close");
	job_check(job, fi_close(&writes->fid), "fi_close");
	job_check(job, fi_close(&reads->fid), "fi_close");
}

/* Two endpoints on one queue and one vector; they also talk to each other. */
static void case_shared_queue(struct traffic *t)
{
	struct job *job = &t->job;
	struct fid_ep *eps[2];
	struct fid_cq *cq;
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED};
	char names[2][JOB_NAME_MAX], in[2];
	fi_addr_t to[2];
	int i;

	job_check(job, fi_cq_open(job->domain, &attr, &cq, NULL), "fi_cq_open");
	for (i = 0; i < 2; i++) {
		size_t len = JOB_NAME_MAX;

		job_check(job, fi_endpoint(job->domain, job->info, &eps[i], NULL), "fi_endpoint");
		job_check(job, fi_ep_bind(eps[i], &job->av->fid, 0), "fi_ep_bind");
		job_check(job, fi_ep_bind(eps[i], &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
		job_check(job, fi_enable(eps[i]), "fi_enable");
		job_check(job, fi_getname(&eps[i]->fid, names[i], &len), "fi_getname");
		EXPECT(t, fi_av_insert(job->av, names[i], 1, &to[i], 0, NULL) == 1);
	}
	for (i = 0; i < 2; i++) {
		ssize_t rc;

		job_check(job, fi_trecv(eps[i], &in[i], 1, NULL, to[1 - i], 1, 0, &in[i]),
			  "fi_trecv");
		while ((rc = fi_tinject(eps[1 - i], "y", 1, to[i], 1)) == -FI_EAGAIN)
			fi_cq_read(cq, NULL, 0);
		job_check(job, rc, "fi_tinject");
		EXPECT(t, job_wait(job, cq).op_context == &in[i]);
	}
	EXPECT(t, fi_close(&cq->fid) == -FI_EBUSY);
	EXPECT(t, fi_av_remove(job->av, to, 2, 0) == 0);
	for (i = 0; i < 2; i++)
		job_check(job, fi_close(&eps[i]->fid), "fi_close");
	job_check(job, fi_close(&cq->fid), "fi_close");
}

static void case_vector(struct traffic *t)
{
	struct job *job = &t->job;
	char name[JOB_NAME_MAX], again[JOB_NAME_MAX], text[128], bad[JOB_NAME_MAX] = {0};
	size_t len = sizeof(name), room = 5;
	struct fi_av_attr attr = {.type = FI_AV_MAP};
	struct fid_av *av;
	fi_addr_t addr[3];
	int errors[1];

	job_check(job, fi_getname(&job->main.ep->fid, name, &len), "fi_getname");
	EXPECT(t, fi_getname(&job->main.ep->fid, text, &room) == -FI_ETOOSMALL && room == len);
	job_check(job, fi_av_open(job->domain, &attr, &av, NULL), "fi_av_open");
	EXPECT(t, fi_av_insert(av, name, 1, &addr[0], 0, NULL) == 1);
	room = sizeof(again);
	EXPECT(t, fi_av_lookup(av, addr[0], again, &room) == 0 && room == len);
	EXPECT(t, !memcmp(name, again, len));
	room = sizeof(text);
	EXPECT(t, fi_av_straddr(av, name, text, &room) == text && strlen(text) > 4);
	/* Bytes that are no address are refused, alone. */
	EXPECT(t, fi_av_insert(av, bad, 1, &addr[1], FI_SYNC_ERR, errors) == 0);
	EXPECT(t, addr[1] == FI_ADDR_NOTAVAIL && errors[0] == FI_EINVAL);
	EXPECT(t, fi_av_remove(av, addr, 1, 0) == 0);
	EXPECT(t, fi_av_lookup(av, addr[0], again, &room) == -FI_EINVAL);
	EXPECT(t, fi_av_remove(av, addr, 1, 0) == -FI_EINVAL);
	EXPECT(t, fi_av_insert(av, name, 1, &addr[2], 0, NULL) == 1);
	EXPECT(t, fi_av_insertsvc(av, "localhost", "1", &addr[2], 0, NULL) == -FI_ENOSYS);
	job_check(job, fi_close(&av->fid), "fi_close");
	/* The endpoint's own vector knows nothing of this one, and is in use. */
	EXPECT(t, fi_close(&job->av->fid) == -FI_EBUSY);
	EXPECT(t, fi_tinject(job->main.ep, "z", 1, 1 << 20, 1) == -FI_EINVAL);
}

/* A message of somebody who is not in the vector has no source; once inserted it has. */
static void case_unknown_source(struct traffic *t)
{
	struct job *job = &t->job;
	struct fi_cq_tagged_entry entry;
	char name[JOB_NAME_MAX] = {0}, all[JOB_RANKS_MAX][JOB_NAME_MAX], in;
	size_t len = sizeof(name);
	fi_addr_t source, to;
	ssize_t rc;
	int i;

	job_check(job, fi_getname(&job->main.ep->fid, name, &len), "fi_getname");
	job_exchange(job, name, sizeof(name), all);
	if (job->rank == 1) {
		fi_addr_t stranger = job->main.peers[0];

		EXPECT(t, fi_av_remove(job->av, &stranger, 1, 0) == 0);
	}
	job_barrier(job);
	for (i = 0; traffic_is_pair(t) && i < 2; i++) {
		if (job->rank == 0) {
			JOB_RETRY(job, &job->main,
				  fi_tinject(job->main.ep, "u", 1, traffic_other(t), 60));
		} else {
			if (i == 1) {
				EXPECT(t, fi_av_insert(job->av, all[0], 1, &to, 0, NULL) == 1);
				job->main.peers[0] = to;
			}
			JOB_RETRY(
				job, &job->main,
				fi_trecv(job->main.ep, &in, 1, NULL, FI_ADDR_UNSPEC, 60, 0, NULL));
			while ((rc = fi_cq_readfrom(job->main.rx_cq, &entry, 1, &source)) ==
			       -FI_EAGAIN)
				sched_yield();
			EXPECT(t, rc == 1);
			EXPECT(t, source == (i ? job->main.peers[0] : FI_ADDR_NOTAVAIL));
		}
	}
}

static void case_options(struct traffic *t)
{
	struct job *job = &t->job;
	size_t value = 12345, got = 0, len = sizeof(got), small = 2;
	struct fid_ep *ep, *alias;
	struct fid *fid = &job->main.ep->fid;

	job_check(job,
		  fi_setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, sizeof(value)),
		  "fi_setopt");
	job_check(job, fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &got, &len),
		  "fi_getopt");
	EXPECT(t, got == value);
	EXPECT(t, fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &got, &small) ==
			  -FI_ETOOSMALL);
	EXPECT(t, fi_setopt(fid, FI_OPT_ENDPOINT, 9999, &value, sizeof(value)) == -FI_ENOPROTOOPT);
	EXPECT(t, fi_ep_alias(job->main.ep, &alias, 0) == -FI_ENOSYS);
	/* An endpoint is of no use before it has a vector and queues. */
	job_check(job, fi_endpoint(job->domain, job->info, &ep, NULL), "fi_endpoint");
	EXPECT(t, fi_enable(ep) == -FI_ENOAV);
	EXPECT(t, fi_tinject(ep, "q", 1, 0, 0) == -FI_EOPBADSTATE);
	job_check(job, fi_ep_bind(ep, &job->av->fid, 0), "fi_ep_bind");
	EXPECT(t, fi_enable(ep) == -FI_ENOCQ);
	EXPECT(t, fi_close(&job->domain->fid) == -FI_EBUSY);
	EXPECT(t, fi_close(&job->fabric->fid) == -FI_EBUSY);
	job_check(job, fi_close(&ep->fid), "fi_close");
	EXPECT(t, fi_enable(job->main.ep) == -FI_EOPBADSTATE);
}

const struct traffic_case traffic_objects[] = {
	{"selective", case_selective},
	{"formats", case_formats},
	{"blocking_read", case_blocking_read},
	{"counters", case_counters},
	{"shared_queue", case_shared_queue},
	{"vector", case_vector},
	{"unknown_source", case_unknown_source},
	{"options", case_options},
	{NULL, NULL},
};
