/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSHMEM between all pairs of PEs: put, get, atomics, a wait and barriers; each value is checked. */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

#define WORDS 65536

static long table[WORDS], counter, flag, swapped;

static void check(int is_right, const char *what)
{
	if (is_right)
		return;
	fprintf(stderr, "PE %d: wrong after %s\n", shmem_my_pe(), what);
	shmem_global_exit(1);
}

static long value(int from, int to, long i)
{
	return from * 1000003L + to * 101L + i;
}

int main(void)
{
	static long words[WORDS];
	long *heap;
	int me, all, next, previous;

	shmem_init();
	me = shmem_my_pe();
	all = shmem_n_pes();
	next = (me + 1) % all;
	previous = (me + all - 1) % all;
	heap = shmem_malloc(sizeof(long) * WORDS);
	check(heap != NULL, "malloc");

	for (long len = 1; len <= WORDS; len *= 4) {
		for (long i = 0; i < len; i++)
			words[i] = value(me, next, i + len);
		shmem_long_put(table, words, (size_t)len, next);
		shmem_long_put(heap, words, (size_t)len, next);
		shmem_barrier_all();
		for (long i = 0; i < len; i++)
			check(table[i] == value(previous, me, i + len) && heap[i] == table[i],
			      "put");
		shmem_barrier_all();
		shmem_long_get(words, heap, (size_t)len, next);
		for (long i = 0; i < len; i++)
			check(words[i] == value(me, next, i + len), "get");
		shmem_barrier_all();
	}

	/* Every PE adds to the counter of every PE. */
	for (int pe = 0; pe < all; pe++)
		for (int i = 0; i < 100; i++)
			shmem_long_atomic_add(&counter, me + 1, pe);
	shmem_barrier_all();
	check(counter == 100L * all * (all + 1) / 2, "atomic add");
	check(shmem_long_atomic_fetch(&counter, next) == counter, "atomic fetch");
	shmem_barrier_all();
	check(shmem_long_atomic_fetch_inc(&counter, next) == 100L * all * (all + 1) / 2,
	      "fetch and increment");
	/* One wins. */
	if (shmem_long_atomic_compare_swap(&swapped, 0, me + 1, 0) == 0)
		shmem_long_atomic_add(&swapped, 1000, 0);
	shmem_barrier_all();
	if (me == 0)
		check(swapped > 1000 && swapped <= 1000 + all, "compare and swap");

	shmem_long_p(&flag, me + 7L, next);
	shmem_long_wait_until(&flag, SHMEM_CMP_EQ, previous + 7L);
	shmem_barrier_all();
	if (me == 0)
		printf("OpenSHMEM OK: %d PEs\n", all);
	shmem_free(heap);
	shmem_finalize();
	return 0;
}
