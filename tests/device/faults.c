/* SPDX-License-Identifier: Apache-2.0 */
/* What a program can do wrong with device memory, and what a driver can. */
#include "matrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void wrong_pointers(struct matrix *m)
{
	struct fid_ep *ep = m->job.main.ep;
	fi_addr_t other = m->job.main.peers[m->job.nr_ranks - 1];
	void *desc = fi_mr_desc(m->device_mr), *second;
	char here[64], *page = aligned_alloc(4096, 4096);
	struct fid_mr *mr;
	void *context;

	m->job.phase = "wrong pointers";
	EXPECT(m, region(m, here, sizeof(here), KEY_OTHER, &mr) == -FI_EINVAL);
	gpu_pin(page, 4096);
	EXPECT(m, region(m, page, 4096, KEY_OTHER, &mr) == -FI_EINVAL);
	gpu_unpin(page);
	free(page);
	EXPECT(m, region(m, m->device, m->largest + (4 << 20), KEY_OTHER, &mr) == -FI_EINVAL);
	EXPECT(m, region(m, NULL, SIZE_MAX, KEY_OTHER, &mr) == -FI_EINVAL);
	EXPECT(m, fi_send(ep, here, sizeof(here), desc, other, NULL) == -FI_EFAULT);
	EXPECT(m, fi_recv(ep, here, sizeof(here), desc, other, NULL) == -FI_EFAULT);
	EXPECT(m, fi_write(ep, here, sizeof(here), desc, other, 0, KEY_HOST, NULL) == -FI_EFAULT);
	EXPECT(m, fi_read(ep, here, sizeof(here), desc, other, 0, KEY_HOST, NULL) == -FI_EFAULT);
	EXPECT(m, fi_atomic(ep, here, 1, desc, other, 0, KEY_HOST, FI_UINT64, FI_SUM, NULL) ==
			  -FI_EFAULT);
	EXPECT(m, fi_send(ep, here, sizeof(here), here, other, NULL) == -FI_EINVAL);
	EXPECT(m, fi_send(ep, here, sizeof(here), (void *)60, other, NULL) == -FI_EINVAL);
	m->nr_cases += 12;
	if (!gpu_has_contexts)
		return;
	/* A second context of the GPU, while buffers of the first one are registered. */
	context = gpu_other_context();
	second = gpu_alloc(4096);
	EXPECT(m, region(m, second, 4096, KEY_OTHER, &mr) == -FI_EINVAL);
	gpu_destroy_context(context);
	m->nr_cases++;
}

/* Registered, then freed: an eager send, a send in flight, a put into it. */
void freed_buffers(struct matrix *m)
{
	const bool is_origin = m->job.rank == 0;
	const fi_addr_t other = m->job.main.peers[1];
	const bool by_handle = is_by_handle(m);
	const size_t len = 1 << 20;
	struct fid_ep *ep = m->job.main.ep;
	struct fi_cq_tagged_entry entry;
	struct fid_mr *mr = NULL;
	void *memory;
	int err;

	m->job.phase = "freed buffers";
	if (m->job.nr_ranks != 2)
		return;
	memory = gpu_alloc(len);
	EXPECT(m, region(m, memory, len, KEY_OTHER, &mr) == 0);
	job_barrier(&m->job);
	/* The envelope is out, no byte has been read. */
	if (is_origin)
		JOB_RETRY(&m->job, &m->job.main,
			  fi_send(ep, memory, len, fi_mr_desc(mr), other, NULL));
	if (is_origin)
		gpu_free(memory);
	job_barrier(&m->job);
	if (!is_origin) {
		JOB_RETRY(&m->job, &m->job.main,
			  fi_recv(ep, memory, len, fi_mr_desc(mr), m->job.main.peers[0], NULL));
		take(m, m->job.main.rx_cq, &entry, &err);
		/* By handle it may still be read, because the driver keeps its block. */
		EXPECT(m, err == FI_EIO || (!err && by_handle));
		gpu_free(memory);
	} else {
		EXPECT(m, take(m, m->job.main.tx_cq, &entry, &err) == FI_EFAULT);
		EXPECT(m, fi_send(ep, memory, 8, fi_mr_desc(mr), other, NULL) == -FI_EFAULT);
	}
	job_barrier(&m->job);
	/* Rank 1's is gone, too: small and large puts and gets, and an atomic. */
	for (size_t n = 8; is_origin && n <= len; n *= len / 8) {
		JOB_RETRY(&m->job, &m->job.main,
			  fi_write(ep, m->host, n, NULL, other, 0, KEY_OTHER, NULL));
		EXPECT(m, take(m, m->job.main.tx_cq, &entry, &err) == FI_EIO);
		JOB_RETRY(&m->job, &m->job.main,
			  fi_read(ep, m->host, n, NULL, other, 0, KEY_OTHER, NULL));
		EXPECT(m, take(m, m->job.main.tx_cq, &entry, &err) == FI_EIO);
	}
	if (is_origin) {
		JOB_RETRY(&m->job, &m->job.main,
			  fi_atomic(ep, m->host, 1, NULL, other, 0, KEY_OTHER, FI_UINT64, FI_SUM,
				    NULL));
		EXPECT(m, take(m, m->job.main.tx_cq, &entry, &err) == FI_EIO);
	}
	job_barrier(&m->job);
	/* All goes on. */
	job_check(&m->job, fi_close(&mr->fid), "fi_close region");
	expect_right(m, SEND, 100000, true, true);
	m->nr_cases += 8;
}

/*
 * While copies of a message go on, rank BREAKS frees the buffer, or closes its region. Only the
 * stand-in shows when they go on.
 */
static void break_in_flight(struct matrix *m, int breaks, bool closes)
{
	const bool is_origin = m->job.rank == 0;
	const size_t len = 3000000;
	struct fid_ep *ep = m->job.main.ep;
	struct fi_cq_tagged_entry entry;
	struct fid_mr *mr;
	void *memory = gpu_alloc(len);
	int err;

	EXPECT(m, region(m, memory, len, KEY_OTHER, &mr) == 0);
	gpu_overlap();
	if (is_origin)
		JOB_RETRY(&m->job, &m->job.main,
			  fi_send(ep, memory, len, fi_mr_desc(mr), m->job.main.peers[1], NULL));
	else
		job_check(&m->job,
			  fi_recv(ep, memory, len, fi_mr_desc(mr), m->job.main.peers[0], NULL),
			  "fi_recv");
	while (m->job.rank == breaks && gpu_overlap() == 0)
		job_progress(&m->job, &m->job.main);
	if (m->job.rank == breaks && closes)
		job_check(&m->job, fi_close(&mr->fid), "fi_close region");
	else if (m->job.rank == breaks)
		gpu_free(memory);
	take(m, is_origin ? m->job.main.tx_cq : m->job.main.rx_cq, &entry, &err);
	if (m->job.rank == breaks)
		EXPECT(m, err == FI_EFAULT);
	else
		EXPECT(m, is_origin || err == FI_EIO);
	job_barrier(&m->job);
	if (m->job.rank != breaks || !closes)
		job_check(&m->job, fi_close(&mr->fid), "fi_close region");
	if (m->job.rank != breaks || closes)
		gpu_free(memory);
	expect_right(m, SEND, 2500000, true, true);
	m->nr_cases++;
}

/* Of two regions over one buffer, rank CLOSES closes the first in flight: nothing is lost. */
static void close_one_in_flight(struct matrix *m, int closes)
{
	const bool is_origin = m->job.rank == 0;
	const size_t len = 3000000;
	struct fid_ep *ep = m->job.main.ep;
	struct fi_cq_tagged_entry entry;
	struct fid_mr *first, *second;
	void *memory = gpu_alloc(len);
	int err;

	EXPECT(m, region(m, memory, len, KEY_OTHER, &first) == 0);
	EXPECT(m, region(m, memory, len, KEY_OTHER + 1, &second) == 0);
	job_fill(m->scratch, len, is_origin ? 5 : 6);
	gpu_put(memory, m->scratch, len);
	job_barrier(&m->job);
	gpu_overlap();
	if (is_origin)
		JOB_RETRY(&m->job, &m->job.main,
			  fi_send(ep, memory, len, fi_mr_desc(first), m->job.main.peers[1], NULL));
	else
		job_check(&m->job,
			  fi_recv(ep, memory, len, fi_mr_desc(first), m->job.main.peers[0], NULL),
			  "fi_recv");
	while (m->job.rank == closes && gpu_overlap() == 0)
		job_progress(&m->job, &m->job.main);
	job_check(&m->job, fi_close(&first->fid), "fi_close region");
	/* Since the call before it: no copy goes on, and none has begun. */
	gpu_overlap();
	EXPECT(m, gpu_overlap() == 0);
	take(m, is_origin ? m->job.main.tx_cq : m->job.main.rx_cq, &entry, &err);
	EXPECT(m, err == 0);
	gpu_get(m->scratch, memory, len);
	EXPECT(m, job_verify(m->scratch, len, 5) == len);
	job_barrier(&m->job);
	job_check(&m->job, fi_close(&second->fid), "fi_close region");
	gpu_free(memory);
	m->nr_cases++;
}

void breaks_in_flight(struct matrix *m)
{
	m->job.phase = "breaks in flight";
	if (!gpu_overlap || m->job.nr_ranks != 2 || is_by_handle(m))
		return;
	for (int breaks = 0; breaks < 2; breaks++)
		for (int closes = 0; closes < 2; closes++)
			break_in_flight(m, breaks, closes);
	for (int closes = 0; closes < 2; closes++)
		close_one_in_flight(m, closes);
}

/* A send of the bytes that rank 1 has open, after rank 0 has reset its GPU under their region. */
static void send_what_has_gone(struct matrix *m)
{
	struct fid_ep *ep = m->job.main.ep;
	struct fi_cq_tagged_entry entry;
	int err;

	if (m->job.nr_ranks != 2)
		return;
	if (m->job.rank == 0) {
		JOB_RETRY(&m->job, &m->job.main,
			  fi_send(ep, m->device, 2500000, fi_mr_desc(m->device_mr),
				  m->job.main.peers[1], NULL));
		EXPECT(m, take(m, m->job.main.tx_cq, &entry, &err) == FI_EFAULT);
	} else {
		JOB_RETRY(&m->job, &m->job.main,
			  fi_recv(ep, m->host, 2500000, NULL, m->job.main.peers[0], NULL));
		EXPECT(m, take(m, m->job.main.rx_cq, &entry, &err) == FI_EIO);
	}
	job_barrier(&m->job);
	m->nr_cases++;
}

/* Both processes reset the GPU between their regions, then one under its region. */
void resets(struct matrix *m)
{
	m->job.phase = "resets";
	if (!gpu_has_resets)
		return;
	close_device(m);
	job_barrier(&m->job);
	gpu_reset();
	open_device(m);
	expect_right(m, SEND, 1000, true, false);
	expect_right(m, SEND, 2500000, true, true);
	expect_right(m, PUT, 100000, true, false);
	job_barrier(&m->job);
	if (m->job.rank == 0)
		gpu_reset();
	send_what_has_gone(m);
	if (m->job.rank == 0) {
		struct fid_mr *mr, *old = m->device_mr;

		m->device = gpu_alloc(m->largest + ROOM);
		/* Its context is another one. */
		EXPECT(m, !gpu_has_contexts || region(m, m->device, m->largest + ROOM, KEY_OTHER,
						      &mr) == -FI_EINVAL);
		gpu_free(m->device);
		job_check(&m->job, fi_close(&old->fid), "fi_close region");
		open_device(m);
	}
	job_barrier(&m->job);
	expect_right(m, SEND, 2500000, true, true);
	expect_right(m, SEND, 2500000, false, true);
	expect_right(m, PUT, 2500000, true, true);
	m->nr_cases++;
}

/*
 * ---- every call of the driver fails once ----
 *
 * A large message repeats its calls for each block, in no fixed number: a sample of those is enough.
 */
enum { EACH = 60, STRIDE = 7 };

void failures(struct matrix *m)
{
	static const size_t lens[] = {8, 1000, 20000, 1300000};
	unsigned int nr = 0, nr_injected = 0, before;

	m->job.phase = "failures";
	for (int fails = 0; fails < m->job.nr_ranks; fails++)
		for (int op = 0; op < NR_MOVES; op++) {
			before = nr_injected;
			for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
				for (unsigned int fail = 1;; fail += fail < EACH ? 1 : STRIDE) {
					struct outcome o;
					if (op == INJECT && lens[i] > 1024)
						break;
					/* So that no process has opened it before. */
					close_device(m);
					open_device(m);
					o = move(m, (enum op)op, lens[i], true, true, fails, fail);
					nr++;
					nr_injected += o.calls >= fail;
					/* No error is silent. */
					if (!o.call && !o.origin && !o.target && !o.is_right)
						job_fail(&m->job,
							 "%s of %zu bytes, call %u of rank %d: "
							 "silent",
							 op_names[op], lens[i], fail, fails);
					if (o.calls < fail)
						break;
				}
			/* Else no call of the driver failed in this operation. */
			EXPECT(m, nr_injected > before);
		}
	/* All goes on. */
	moves(m);
	m->nr_cases += nr;
	if (m->job.rank == 0)
		printf("%u moves, %u of them with a failed call\n", nr, nr_injected);
}
