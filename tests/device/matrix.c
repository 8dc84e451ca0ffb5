/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory over the public libfabric interface, on the machine's GPU or on the stand-in: every
 * operation in every size, with each side on the host or on the device, from rank 0 to rank 1 and to
 * itself; what a program can do wrong; with -f, the failure of every call of the driver at every
 * step (stand-in only).
 *
 *   device_matrix -n 2 [-r RANK -d DIR] [-m LARGEST] [-f]
 *   device_matrix -x    FI_HMEM is not offered
 */
#include "matrix.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATOMICS_MAX 128 /* elements of one atomic */

const char *const op_names[] = {
	"send", "send in pieces", "send with data", "inject", "tagged", "delivery complete", "put",
	"get"};

char *memory_of(const struct matrix *m, bool on_device)
{
	return on_device ? m->device : m->host;
}

void *desc_of(const struct matrix *m, bool on_device)
{
	return fi_mr_desc(on_device ? m->device_mr : m->host_mr);
}

static void write_bytes(struct matrix *m, bool on_device, size_t len, uint64_t seed)
{
	job_fill(m->scratch, len, seed);
	if (on_device)
		gpu_put(m->device, m->scratch, len);
	else
		memcpy(m->host, m->scratch, len);
}

static bool has_bytes(struct matrix *m, bool on_device, size_t len, uint64_t seed)
{
	if (on_device)
		gpu_get(m->scratch, m->device, len);
	else
		memcpy(m->scratch, m->host, len);
	return job_verify(m->scratch, len, seed) == len;
}

int take(struct matrix *m, struct fid_cq *cq, struct fi_cq_tagged_entry *ret_entry, int *ret_err)
{
	struct fi_cq_err_entry error = {0};
	ssize_t rc;

	*ret_err = 0;
	while ((rc = fi_cq_read(cq, ret_entry, 1)) == -FI_EAGAIN) {
		job_progress(&m->job, &m->job.main);
		sched_yield();
	}
	if (rc == 1)
		return 0;
	EXPECT(m, rc == -FI_EAVAIL && fi_cq_readerr(cq, &error, 0) == 1);
	*ret_err = error.err;
	return error.err;
}

static ssize_t start_send(struct matrix *m, enum op op, bool on_device, size_t len, fi_addr_t to)
{
	struct fid_ep *ep = m->job.main.ep;
	char *bytes = memory_of(m, on_device);
	void *desc = desc_of(m, on_device), *descs[3] = {desc, NULL, desc};
	/* A piece of the host in between, which is empty, and the last byte alone. */
	struct iovec iov[3] = {{bytes, len - 1}, {m->scratch, 0}, {bytes + len - 1, 1}};
	struct fi_msg_tagged msg = {
		.msg_iov = iov,
		.desc = descs,
		.iov_count = 3,
		.addr = to,
		.tag = 5,
	};

	switch (op) {
	case SEND:
		return fi_send(ep, bytes, len, desc, to, NULL);
	case SEND_PIECES:
		return fi_sendv(ep, iov, descs, 3, to, NULL);
	case SEND_DATA:
		return fi_senddata(ep, bytes, len, desc, 77, to, NULL);
	case INJECT:
		return fi_inject(ep, bytes, len, to);
	case TAGGED:
		return fi_tsend(ep, bytes, len, desc, to, 5, NULL);
	case SYNCHRONOUS:
		return fi_tsendmsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE);
	case PUT:
		return fi_write(ep, bytes, len, desc, to, 0, m->seed & 1 ? KEY_DEVICE : KEY_HOST,
				NULL);
	case GET:
		return fi_read(ep, bytes, len, desc, to, 0, m->seed & 1 ? KEY_DEVICE : KEY_HOST,
			       NULL);
	case NR_MOVES:
		break;
	}
	return -FI_EINVAL;
}

static bool is_tagged(enum op op)
{
	return op == TAGGED || op == SYNCHRONOUS;
}

static void post_recv(struct matrix *m, enum op op, bool on_device, size_t len, fi_addr_t from)
{
	struct fid_ep *ep = m->job.main.ep;
	char *bytes = memory_of(m, on_device);
	void *desc = desc_of(m, on_device), *descs[2] = {desc, desc};
	struct iovec iov[2] = {{bytes, len / 2}, {bytes + len / 2, len - len / 2}};
	struct fi_msg_tagged msg = {
		.msg_iov = iov, .desc = descs, .iov_count = 2, .addr = from, .tag = 5};

	if (op == SYNCHRONOUS)
		job_check(&m->job, fi_trecvmsg(ep, &msg, FI_COMPLETION), "fi_trecvmsg");
	else if (is_tagged(op))
		job_check(&m->job, fi_trecv(ep, bytes, len, desc, from, 5, 0, NULL), "fi_trecv");
	else if (op == SEND_PIECES)
		job_check(&m->job, fi_recvv(ep, iov, descs, 2, from, NULL), "fi_recvv");
	else
		job_check(&m->job, fi_recv(ep, bytes, len, desc, from, NULL), "fi_recv");
}

struct outcome move(struct matrix *m, enum op op, size_t len, bool from, bool to, int fails,
		    unsigned int fail)
{
	const bool is_message = op < PUT;
	const bool is_origin = m->job.rank == 0, is_target = m->job.rank == m->job.nr_ranks - 1;
	const bool holds = op == GET ? is_target : is_origin;
	const bool gets = op == GET ? is_origin : is_target;
	const fi_addr_t other = m->job.main.peers[is_origin ? m->job.nr_ranks - 1 : 0];
	struct outcome mine = {0}, all[JOB_RANKS_MAX] = {{0}};
	struct fi_cq_tagged_entry entry = {0};

	/* The region of the other side: its place is in the seed. */
	m->seed = m->seed / 2 * 2 + 2 + (op == GET ? from : to);
	if (gets && !(holds && from == to))
		write_bytes(m, to, len, 1);
	if (holds)
		write_bytes(m, from, len, m->seed);
	if (is_target && is_message)
		post_recv(m, op, to, len, other);
	/* Before the barrier, which drives progress: the bytes of the origin may arrive in it. */
	if (m->has_no_context)
		gpu_no_context();
	if (fail && m->job.rank == fails)
		gpu_fail(fail);
	job_barrier(&m->job);
	if (is_origin) {
		ssize_t rc;

		while ((rc = start_send(m, op, op == GET ? to : from, len, other)) == -FI_EAGAIN)
			job_progress(&m->job, &m->job.main);
		mine.call = (int)-rc;
		/* The receive is not left alone. */
		if (mine.call && is_message && is_tagged(op))
			JOB_RETRY(&m->job, &m->job.main,
				  fi_tinject(m->job.main.ep, m->scratch, 0, other, 5));
		else if (mine.call && is_message)
			JOB_RETRY(&m->job, &m->job.main,
				  fi_inject(m->job.main.ep, m->scratch, 0, other));
	}
	if (is_target && is_message)
		take(m, m->job.main.rx_cq, &entry, &mine.target);
	if (is_target && is_message && !mine.target && entry.len == len) {
		EXPECT(m, !(op == SEND_DATA) == !(entry.flags & FI_REMOTE_CQ_DATA));
		EXPECT(m, op != SEND_DATA || entry.data == 77);
	}
	if (is_origin && !mine.call && op != INJECT)
		take(m, m->job.main.tx_cq, &entry, &mine.origin);
	job_barrier(&m->job);
	if (fail && m->job.rank == fails) {
		mine.calls = gpu_calls();
		gpu_fail(0);
	}
	if (m->has_no_context)
		gpu_primary();
	if (gets)
		mine.is_right = has_bytes(m, to, len, m->seed);
	job_exchange(&m->job, &mine, sizeof(mine), all);
	return (struct outcome){
		.call = all[0].call,
		.origin = all[0].origin,
		.target = all[m->job.nr_ranks - 1].target,
		.is_right = all[op == GET ? 0 : m->job.nr_ranks - 1].is_right,
		.calls = all[fails].calls,
	};
}

void expect_right(struct matrix *m, enum op op, size_t len, bool from, bool to)
{
	struct outcome o;

	/* To itself both sides would be the same buffer. */
	if (m->job.nr_ranks == 1 && from == to)
		return;
	o = move(m, op, len, from, to, 0, 0);
	if (o.call || o.origin || o.target || !o.is_right)
		job_fail(&m->job, "%s of %zu bytes from %s to %s: call %d origin %d target %d, %s",
			 op_names[op], len, from ? "device" : "host", to ? "device" : "host",
			 o.call, o.origin, o.target, o.is_right ? "right" : "wrong bytes");
	m->nr_cases++;
}

void moves(struct matrix *m)
{
	static const size_t lens[] = {1,      2,       8,	40,	  41,	    208,      209,
				      1000,   1024,    1025,	4096,	  16384,    16385,    65537,
				      300001, 1 << 20, 3000001, 16 << 20, 64 << 20, 256 << 20};

	m->job.phase = "moves";
	for (int op = 0; op < NR_MOVES; op++)
		for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
			for (int sides = 0; sides < 4; sides++)
				if (lens[i] <= m->largest && (op != INJECT || lens[i] <= 1024))
					expect_right(m, (enum op)op, lens[i], sides & 1, sides & 2);
}

bool is_by_handle(const struct matrix *m)
{
	const char *channels = getenv("NEARMETAL_CHANNELS");

	return gpu_overlap && m->job.nr_ranks == 2 && channels && !strcmp(channels, "shm") &&
	       !getenv("NEARMETAL_CMA");
}

/* While one block is sent or filled, another is copied, at both ranks. */
static void overlaps(struct matrix *m)
{
	m->job.phase = "overlaps";
	if (!gpu_overlap || m->job.nr_ranks != 2 || is_by_handle(m) || getenv("NM_EXPECT_DIRECT"))
		return;
	gpu_overlap();
	for (int sides = 1; sides < 4; sides++) {
		expect_right(m, SEND, 2500000, sides & 1, sides & 2);
		EXPECT(m, gpu_overlap() >= 2 || !(m->job.rank == 0 ? sides & 1 : sides & 2));
	}
}

/* The sender looks at nothing for longer than the network's time limit (run.sh), and lives. */
static void computes(struct matrix *m)
{
	const size_t len = 100000;
	struct fi_cq_tagged_entry entry;
	int err;

	job_barrier(&m->job);
	if (m->job.rank == 0) {
		JOB_RETRY(&m->job, &m->job.main,
			  fi_send(m->job.main.ep, m->device, len, fi_mr_desc(m->device_mr),
				  m->job.main.peers[1], NULL));
		sleep(4);
		EXPECT(m, take(m, m->job.main.tx_cq, &entry, &err) == 0);
	} else {
		job_check(&m->job,
			  fi_recv(m->job.main.ep, m->device, len, fi_mr_desc(m->device_mr),
				  m->job.main.peers[0], NULL),
			  "fi_recv");
		EXPECT(m, take(m, m->job.main.rx_cq, &entry, &err) == 0);
	}
	job_barrier(&m->job);
	gpu_direct();
	m->nr_cases++;
}

/* Large messages from device to device, and no others, go past the host if both ranks can that. */
static void direct(struct matrix *m)
{
	const bool reaches = getenv("NM_EXPECT_DIRECT");

	m->job.phase = "direct";
	if (!gpu_direct || m->job.nr_ranks != 2)
		return;
	gpu_direct();
	for (int sides = 0; sides < 4; sides++)
		for (size_t len = 1000; len <= 2500000; len *= 50) {
			expect_right(m, TAGGED, len, sides & 1, sides & 2);
			EXPECT(m, gpu_direct() == (reaches && sides == 3 && len > 16384));
		}
	if (reaches)
		computes(m);
}

/* The thread that calls the provider need not be one that uses the GPU. */
static void without_context(struct matrix *m)
{
	m->job.phase = "without a context";
	m->has_no_context = true;
	for (int sides = 1; sides < 4; sides++) {
		expect_right(m, SEND, 1000, sides & 1, sides & 2);
		expect_right(m, SEND, 2500000, sides & 1, sides & 2);
	}
	m->has_no_context = false;
}

/* ---- atomics ---- */

static void set_words(struct matrix *m, bool on_device, size_t at, size_t nr, uint64_t first)
{
	uint64_t words[ATOMICS_MAX];

	for (size_t i = 0; i < nr; i++)
		words[i] = first + i;
	if (on_device)
		gpu_put(m->device + at, words, nr * 8);
	else
		memcpy(m->host + at, words, nr * 8);
}

static void expect_words(struct matrix *m, bool on_device, size_t at, size_t nr, uint64_t first,
			 uint64_t step)
{
	uint64_t words[ATOMICS_MAX];

	if (on_device)
		gpu_get(words, m->device + at, nr * 8);
	else
		memcpy(words, m->host + at, nr * 8);
	for (size_t i = 0; i < nr; i++)
		EXPECT(m, words[i] == first + i * step);
}

/* At the origin: the operand lies at 0, the comparand at 1024, the result at 2048. */
static void one_atomic(struct matrix *m, int kind, size_t nr, bool here, bool there)
{
	const bool is_origin = m->job.rank == 0, is_target = m->job.rank == m->job.nr_ranks - 1;
	const fi_addr_t to = m->job.main.peers[m->job.nr_ranks - 1];
	const size_t at = 4096; /* of the target's words */
	char *bytes = memory_of(m, here);
	void *desc = desc_of(m, here);
	struct fid_ep *ep = m->job.main.ep;
	uint64_t key = there ? KEY_DEVICE : KEY_HOST;

	if (is_target)
		set_words(m, there, at, nr, 1000);
	if (is_origin) {
		set_words(m, here, 0, nr, 7);
		set_words(m, here, 1024, nr, 1000);
		set_words(m, here, 2048, nr, 0);
	}
	job_barrier(&m->job);
	if (is_origin && kind == 0)
		JOB_RETRY(&m->job, &m->job.main,
			  fi_atomic(ep, bytes, nr, desc, to, at, key, FI_UINT64, FI_SUM, NULL));
	else if (is_origin && kind == 1)
		JOB_RETRY(&m->job, &m->job.main,
			  fi_fetch_atomic(ep, bytes, nr, desc, bytes + 2048, desc, to, at, key,
					  FI_UINT64, FI_SUM, NULL));
	else if (is_origin && kind == 2)
		JOB_RETRY(&m->job, &m->job.main,
			  fi_compare_atomic(ep, bytes, nr, desc, bytes + 1024, desc, bytes + 2048,
					    desc, to, at, key, FI_UINT64, FI_CSWAP, NULL));
	else if (is_origin)
		JOB_RETRY(&m->job, &m->job.main,
			  fi_inject_atomic(ep, bytes, nr, to, at, key, FI_UINT64, FI_SUM));
	if (is_origin && kind < 3)
		job_wait(&m->job, m->job.main.tx_cq);
	/* What has no completion is known to be done by the next that has one. */
	if (is_origin && kind == 3) {
		JOB_RETRY(&m->job, &m->job.main,
			  fi_fetch_atomic(ep, NULL, nr, NULL, bytes + 2048, desc, to, at, key,
					  FI_UINT64, FI_ATOMIC_READ, NULL));
		job_wait(&m->job, m->job.main.tx_cq);
	}
	job_barrier(&m->job);
	if (is_target && kind == 2)
		expect_words(m, there, at, nr, 7, 1);
	else if (is_target)
		expect_words(m, there, at, nr, 1007, 2);
	if (is_origin && kind == 3)
		expect_words(m, here, 2048, nr, 1007, 2);
	else if (is_origin && kind > 0)
		expect_words(m, here, 2048, nr, 1000, 1);
	job_barrier(&m->job);
	m->nr_cases++;
}

static void atomics(struct matrix *m)
{
	static const size_t counts[] = {1, 3, ATOMICS_MAX};

	m->job.phase = "atomics";
	for (int kind = 0; kind < 4; kind++)
		for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
			for (int sides = 0; sides < 4; sides++)
				one_atomic(m, kind, counts[i], sides & 1, sides & 2);
}

int region(struct matrix *m, void *base, size_t len, uint64_t key, struct fid_mr **ret_mr)
{
	struct iovec iov = {base, len};
	struct fi_mr_attr attr = {
		.mr_iov = &iov,
		.iov_count = 1,
		.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
		.requested_key = key,
		.iface = (enum fi_hmem_iface)gpu_number,
	};

	return fi_mr_regattr(m->job.domain, &attr, 0, ret_mr);
}

void open_device(struct matrix *m)
{
	m->device = gpu_alloc(m->largest + ROOM);
	job_check(&m->job, region(m, m->device, m->largest + ROOM, KEY_DEVICE, &m->device_mr),
		  "fi_mr_regattr");
}

void close_device(struct matrix *m)
{
	job_check(&m->job, fi_close(&m->device_mr->fid), "fi_close region");
	gpu_free(m->device);
}

static void open_memory(struct matrix *m)
{
	size_t room = m->largest + ROOM;

	if (!gpu_open())
		job_fail(&m->job, "no GPU, and no stand-in in LD_LIBRARY_PATH");
	m->scratch = malloc(room);
	m->host = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
	memset(m->host, 0, room);
	memset(m->scratch, 0, room);
	job_check(
		&m->job,
		fi_mr_reg(m->job.domain, m->host, room,
			  FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
			  0, KEY_HOST, 0, &m->host_mr, NULL),
		"fi_mr_reg");
	open_device(m);
	EXPECT(m, !fi_mr_desc(m->host_mr) && fi_mr_desc(m->device_mr));
	job_barrier(&m->job);
}

static void close_memory(struct matrix *m)
{
	job_barrier(&m->job);
	job_check(&m->job, fi_close(&m->host_mr->fid), "fi_close region");
	close_device(m);
	free(m->host);
	free(m->scratch);
}

/* What fi_getinfo() answers to a program with device memory and these bits of mr_mode. */
static int offer(int mr_mode)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	int rc;

	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED | FI_HMEM;
	hints->domain_attr->mr_mode = mr_mode;
	hints->fabric_attr->prov_name = strdup("nearmetal");
	rc = fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info);
	if (!rc && (!(info->caps & FI_HMEM) || !(info->domain_attr->mr_mode & FI_MR_HMEM)))
		rc = -1;
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return rc;
}

static void offers(struct matrix *m)
{
	m->job.phase = "offers";
	EXPECT(m, offer(FI_MR_HMEM) == 0);
	EXPECT(m, offer(0) == -FI_ENODATA);
	m->nr_cases += 2;
}

int main(int argc, char **argv)
{
	static struct matrix m = {.largest = 3000001};
	struct job_options options = {
		.nr_ranks = 2,
		.rank = -1,
		.provider = "nearmetal",
		.patience_s = 1200,
		.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_HMEM,
	};
	bool fails = false;
	int option;

	while ((option = getopt(argc, argv, JOB_OPTIONS "n:m:fx")) >= 0) {
		if (option == 'n')
			options.nr_ranks = atoi(optarg);
		else if (option == 'm')
			m.largest = strtoull(optarg, NULL, 0);
		else if (option == 'f')
			fails = true;
		else if (option == 'x')
			return offer(FI_MR_HMEM) == -FI_ENODATA ? 0 : 1;
		else if (!job_option(&options, option, optarg))
			return 2;
	}
	job_start(&m.job, &options);
	open_memory(&m);
	if (fails && gpu_fail) {
		failures(&m);
	} else {
		offers(&m);
		moves(&m);
		overlaps(&m);
		direct(&m);
		without_context(&m);
		atomics(&m);
		wrong_pointers(&m);
		freed_buffers(&m);
		breaks_in_flight(&m);
		resets(&m);
	}
	close_memory(&m);
	if (m.job.rank == 0)
		printf("device OK: %u cases\n", m.nr_cases);
	job_stop(&m.job);
	return 0;
}
