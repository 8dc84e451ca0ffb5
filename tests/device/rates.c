/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from each kind of memory to each, beside the copies of the driver. */
#include "matrix.h"

#include <stdio.h>

static double rate_of(struct matrix *m, size_t len, bool from, bool to)
{
	const bool is_origin = m->job.rank == 0;
	const int nr = len >= 64 << 20 ? 10 : len >= 1 << 20 ? 40 : 200;
	uint64_t start = 0;

	for (int i = -2; i < nr; i++) {
		if (i == 0)
			start = job_now_ns();
		if (is_origin) {
			JOB_RETRY(&m->job, &m->job.main,
				  fi_tsend(m->job.main.ep, memory_of(m, from), len,
					   desc_of(m, from), m->job.main.peers[1], 5, NULL));
			job_wait(&m->job, m->job.main.tx_cq);
			JOB_RETRY(&m->job, &m->job.main,
				  fi_trecv(m->job.main.ep, m->scratch, 0, NULL,
					   m->job.main.peers[1], 6, 0, NULL));
			job_wait(&m->job, m->job.main.rx_cq);
		} else {
			JOB_RETRY(&m->job, &m->job.main,
				  fi_trecv(m->job.main.ep, memory_of(m, to), len, desc_of(m, to),
					   m->job.main.peers[0], 5, 0, NULL));
			job_wait(&m->job, m->job.main.rx_cq);
			JOB_RETRY(
				&m->job, &m->job.main,
				fi_tinject(m->job.main.ep, m->scratch, 0, m->job.main.peers[0], 6));
		}
	}
	return (double)(job_now_ns() - start) / nr;
}

static void limit(struct matrix *m, const char *name, void *to, const void *from,
		  void (*copy)(void *to, const void *from, size_t len))
{
	for (size_t len = 1 << 20; len <= m->largest; len *= 4) {
		uint64_t start = 0;

		for (int i = -2; i < 20; i++) {
			if (i == 0)
				start = job_now_ns();
			copy(to, from, len);
		}
		printf("limit %s %zu %.1f us %.2f GB/s\n", name, len,
		       (double)(job_now_ns() - start) / 20e3,
		       (double)len * 20 / (double)(job_now_ns() - start));
	}
}

void rates(struct matrix *m)
{
	static const char *const names[] = {"H H", "D H", "H D", "D D"};

	m->job.phase = "rates";
	if (m->job.rank == 0) {
		void *second = gpu_alloc(m->largest);

		gpu_pin(m->host, m->largest);
		limit(m, "pinned H2D", m->device, m->host, gpu_put);
		limit(m, "pinned D2H", m->host, m->device, gpu_get);
		limit(m, "D2D", second, m->device, gpu_copy);
		gpu_unpin(m->host);
		gpu_free(second);
	}
	job_barrier(&m->job);
	for (int sides = 0; sides < 4; sides++)
		for (size_t len = 4; len <= m->largest; len *= 4) {
			double ns = rate_of(m, len, sides & 1, sides & 2);

			if (m->job.rank == 0)
				printf("rate %s %zu %.2f us %.3f GB/s\n", names[sides], len,
				       ns / 1e3, (double)len / ns);
		}
}
