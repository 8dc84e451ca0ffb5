// SPDX-License-Identifier: Apache-2.0
/*
 * What two cores can do without any software between them: the limits that figures of messages
 * are held against. Two processes, each pinned to a core, share one mapping.
 *
 * cacheline  half a round trip of one cache line that each side writes in turn
 * slots      messages of 8 bytes through a ring of 64-byte slots, one writer, one reader
 * memcpy     a copy within one process
 * one_copy   the reader copies out of shared memory that the writer has just filled
 * two_copy   a pipeline: copied into a shared pool of 4 MiB in turn, copied out of it
 * cma_read   the reader's kernel copies out of the writer's memory (process_vm_readv)
 *
 * Output: see mpi/sampling.h. Times are per message (cacheline: per half round trip).
 */
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mpi/sampling.h"

#define SAMPLE_SECONDS 300e-6
#define BATCH_MAX (1 << 20)
#define COPY_MAX ((size_t)4 << 20)
#define POOL_BYTES ((size_t)4 << 20)
#define CHUNK_BYTES ((size_t)32 << 10)
#define RING_SLOTS 256u
#define NEAR_NS 150 /* a shared last-level cache answers in 50 to 100 ns, another one in 200 up */
#define LINE __attribute__((aligned(64)))

enum limit {
	LIMIT_CACHELINE,
	LIMIT_SLOTS,
	LIMIT_MEMCPY,
	LIMIT_ONE_COPY,
	LIMIT_TWO_COPY,
	LIMIT_CMA
};

struct slot {
	_Atomic uint64_t sequence;
	uint64_t payload[7];
};

struct shared {
	LINE _Atomic uint32_t order; /* counts samples; odd and even alternate */
	enum limit limit;
	size_t size;
	int batch;
	LINE _Atomic uint32_t finished; /* by the second process */
	LINE _Atomic uint64_t ping;
	LINE _Atomic uint64_t pong;
	LINE _Atomic uint64_t consumed;
	LINE _Atomic uint64_t produced;
	LINE uint64_t remote; /* address of the first process's buffer */
	pid_t first_pid;
	_Atomic int cma_error;
	LINE struct slot ring[RING_SLOTS];
	char pool[POOL_BYTES] __attribute__((aligned(4096)));
};

struct side {
	struct shared *shared;
	bool writer;
	char *buffer, *other;		/* COPY_MAX each */
	uint64_t slots, chunks, rounds; /* counters that go on from sample to sample */
};

static const char usage[] =
	"usage: limits [-a CORE] [-b CORE] [-t SECONDS]\n"
	"  -a, -b CORE  the two cores (default: the first two this process may use)\n"
	"  -t SECONDS   time per point (default 0.05)\n"
	"Example: limits -a 0 -b 1 -t 0.02\n";

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline void wait_for(_Atomic uint64_t *word, uint64_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) < value)
		pause_cpu();
}

/* Each side writes its own line and reads the other's, in turn. */
static void run_cacheline(struct side *side, int batch)
{
	struct shared *s = side->shared;
	int i;

	for (i = 0; i < batch; i++) {
		uint64_t turn = ++side->rounds;

		if (side->writer) {
			atomic_store_explicit(&s->ping, turn, memory_order_release);
			while (atomic_load_explicit(&s->pong, memory_order_acquire) != turn)
				;
		} else {
			while (atomic_load_explicit(&s->ping, memory_order_acquire) != turn)
				;
			atomic_store_explicit(&s->pong, turn, memory_order_release);
		}
	}
}

static void run_slots(struct side *side, int batch)
{
	struct shared *s = side->shared;
	volatile uint64_t sink = 0;
	uint64_t credit = atomic_load_explicit(&s->consumed, memory_order_acquire) + RING_SLOTS;
	int i;

	for (i = 0; i < batch; i++) {
		uint64_t turn = ++side->slots;
		struct slot *slot = &s->ring[turn % RING_SLOTS];

		if (side->writer) {
			while (turn > credit)
				credit = atomic_load_explicit(&s->consumed, memory_order_acquire) +
					 RING_SLOTS;
			slot->payload[0] = turn;
			atomic_store_explicit(&slot->sequence, turn, memory_order_release);
		} else {
			while (atomic_load_explicit(&slot->sequence, memory_order_acquire) != turn)
				;
			sink += slot->payload[0];
			if (turn % (RING_SLOTS / 4) == 0)
				atomic_store_explicit(&s->consumed, turn, memory_order_release);
		}
	}
	if (!side->writer)
		atomic_store_explicit(&s->consumed, side->slots, memory_order_release);
	else
		wait_for(&s->consumed, side->slots);
}

static void run_memcpy(struct side *side, size_t size, int batch)
{
	int i;

	for (i = 0; side->writer && i < batch; i++) {
		memcpy(side->other, side->buffer, size);
		__asm__ volatile("" : : "r"(side->other) : "memory");
	}
}

/* The writer touches a line of the message, so that nothing can be skipped, and hands it over. */
static void run_handover(struct side *side, enum limit limit, size_t size, int batch)
{
	struct shared *s = side->shared;
	struct iovec local = {side->buffer, size}, remote = {(void *)(uintptr_t)s->remote, size};
	int i;

	for (i = 0; i < batch; i++) {
		uint64_t turn = ++side->rounds;

		if (side->writer) {
			(limit == LIMIT_CMA ? side->buffer : s->pool)[turn % size]++;
			atomic_store_explicit(&s->ping, turn, memory_order_release);
			wait_for(&s->pong, turn);
			continue;
		}
		wait_for(&s->ping, turn);
		if (limit == LIMIT_ONE_COPY)
			memcpy(side->buffer, s->pool, size);
		else if (process_vm_readv(s->first_pid, &local, 1, &remote, 1, 0) != (ssize_t)size)
			s->cma_error = errno ? errno : EIO;
		atomic_store_explicit(&s->pong, turn, memory_order_release);
	}
}

static void run_two_copy(struct side *side, size_t size, int batch)
{
	struct shared *s = side->shared;
	const uint64_t depth = POOL_BYTES / CHUNK_BYTES;
	int i;

	for (i = 0; i < batch; i++) {
		size_t at, chunk;

		for (at = 0; at < size; at += chunk) {
			char *place = s->pool + side->chunks % depth * CHUNK_BYTES;

			chunk = size - at < CHUNK_BYTES ? size - at : CHUNK_BYTES;
			side->chunks++;
			if (side->writer) {
				if (side->chunks > depth)
					wait_for(&s->consumed, side->chunks - depth);
				memcpy(place, side->buffer + at, chunk);
				atomic_store_explicit(&s->produced, side->chunks,
						      memory_order_release);
			} else {
				wait_for(&s->produced, side->chunks);
				memcpy(side->buffer + at, place, chunk);
				atomic_store_explicit(&s->consumed, side->chunks,
						      memory_order_release);
			}
		}
	}
	if (side->writer)
		wait_for(&s->consumed, side->chunks);
}

static void run_limit(struct side *side, enum limit limit, size_t size, int batch)
{
	switch (limit) {
	case LIMIT_CACHELINE:
		run_cacheline(side, batch);
		break;
	case LIMIT_SLOTS:
		run_slots(side, batch);
		break;
	case LIMIT_MEMCPY:
		run_memcpy(side, size, batch);
		break;
	case LIMIT_ONE_COPY:
	case LIMIT_CMA:
		run_handover(side, limit, size, batch);
		break;
	case LIMIT_TWO_COPY:
		run_two_copy(side, size, batch);
		break;
	}
}

/* The counters of slots and chunks share the words `consumed` and `produced`: start anew. */
static void begin_limit(struct side *side)
{
	side->slots = side->chunks = side->rounds = 0;
	if (!side->writer)
		return;
	side->shared->ping = side->shared->pong = 0;
	side->shared->consumed = side->shared->produced = 0;
	memset(side->shared->ring, 0, sizeof(side->shared->ring));
}

/* The second process: does its half of what the first one orders, for ever. */
__attribute__((noreturn)) static void serve(struct side *side)
{
	struct shared *s = side->shared;
	uint32_t seen = 0;
	enum limit limit = LIMIT_CACHELINE;

	for (;;) {
		while (atomic_load_explicit(&s->order, memory_order_acquire) == seen)
			pause_cpu();
		seen++;
		if (s->batch == 0 || s->limit != limit)
			begin_limit(side);
		limit = s->limit;
		run_limit(side, limit, s->size, s->batch);
		atomic_store_explicit(&s->finished, seen, memory_order_release);
	}
}

static double order(struct side *side, enum limit limit, size_t size, int batch)
{
	struct shared *s = side->shared;
	double start;
	uint32_t number = s->order + 1;

	if (batch == 0)
		begin_limit(side);
	s->limit = limit;
	s->size = size;
	s->batch = batch;
	start = now();
	atomic_store_explicit(&s->order, number, memory_order_release);
	run_limit(side, limit, size, batch);
	start = now() - start;
	while (atomic_load_explicit(&s->finished, memory_order_acquire) != number)
		pause_cpu();
	return start;
}

/* The quickest of three, so that one interruption does not make every batch too short. */
static double quickest_order(struct side *side, enum limit limit, size_t size, int batch)
{
	double best = order(side, limit, size, batch), next;
	int i;

	for (i = 0; i < 2; i++) {
		next = order(side, limit, size, batch);
		best = next < best ? next : best;
	}
	return best;
}

static int sample(struct side *side, enum limit limit, size_t size, double seconds,
		  struct samples *ret_samples)
{
	int batch = 1, per = limit == LIMIT_CACHELINE ? 2 : 1;
	double start;

	order(side, limit, size, 0);
	while (quickest_order(side, limit, size, batch) < SAMPLE_SECONDS / 2 && batch < BATCH_MAX)
		batch *= 2;
	ret_samples->nr = 0;
	start = now();
	while ((now() - start < seconds || ret_samples->nr < 16) && ret_samples->nr < SAMPLES_MAX)
		samples_add(ret_samples, order(side, limit, size, batch) / batch / per);
	samples_sort(ret_samples);
	return batch;
}

static void print_row(size_t size, int batch, const struct samples *samples)
{
	static const int percents[] = {2, 25, 50, 75, 98};
	double median = samples_percentile(samples, 50);
	size_t i;

	printf("%zu %d %d", size, samples->nr, batch);
	for (i = 0; i < sizeof(percents) / sizeof(percents[0]); i++)
		printf(" %.4f", samples_percentile(samples, percents[i]) * 1e6);
	printf(" 1 %.6f %.2f\n", 1e-6 / median, (double)size / median * 1e-6);
}

static void measure(struct side *side, enum limit limit, const char *name, double seconds)
{
	static struct samples samples;
	bool small = limit == LIMIT_CACHELINE || limit == LIMIT_SLOTS;
	size_t size;
	int batch;

	printf("# table %s\n"
	       "size_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us time_p98_us "
	       "messages rate_p50_Mps bandwidth_p50_MBps\n",
	       name);
	for (size = small ? 8 : 4096; size <= (small ? 8 : COPY_MAX); size *= 2) {
		batch = sample(side, limit, size, seconds, &samples);
		print_row(size, batch, &samples);
		if (limit == LIMIT_CACHELINE) {
			double ns = samples_percentile(&samples, 25) * 1e9;

			printf("# placement %s half_rtt_p25_ns=%.1f near_below_ns=%d\n",
			       ns < NEAR_NS ? "near" : "far", ns, NEAR_NS);
		}
	}
	printf("# end %s\n", name);
	fflush(stdout);
}

static bool cma_works(struct side *side)
{
	order(side, LIMIT_CMA, 4096, 0);
	order(side, LIMIT_CMA, 4096, 1);
	if (side->shared->cma_error)
		printf("# absent cma_read %s\n", strerror(side->shared->cma_error));
	return !side->shared->cma_error;
}

static int pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		fprintf(stderr, "limits: cannot run on core %d: %s\n", core, strerror(errno));
		return -errno;
	}
	return 0;
}

/* Memory of this side: everything is touched before it is timed. */
static int side_init(struct side *side, struct shared *shared, bool writer)
{
	side->shared = shared;
	side->writer = writer;
	if (posix_memalign((void **)&side->buffer, 4096, COPY_MAX) ||
	    posix_memalign((void **)&side->other, 4096, COPY_MAX))
		return -ENOMEM;
	memset(side->buffer, 1, COPY_MAX);
	memset(side->other, 2, COPY_MAX);
	return 0;
}

static void partner_died(int number)
{
	static const char text[] = "limits: the second process died\n";

	(void)number;
	_exit(write(STDERR_FILENO, text, sizeof(text) - 1) < 0 ? 2 : 1);
}

static int run_first(struct shared *shared, const int cores[2], double seconds)
{
	static const char *const names[] = {"cacheline", "slots",    "memcpy",
					    "one_copy",	 "two_copy", "cma_read"};
	struct side side = {0};
	int limit;

	if (pin(cores[0]) || side_init(&side, shared, true))
		return 1;
	shared->remote = (uint64_t)(uintptr_t)side.buffer;
	shared->first_pid = getpid();
	printf("# nearmetal-bench 1 limits\n# cores %d %d\n", cores[0], cores[1]);
	for (limit = LIMIT_CACHELINE; limit <= LIMIT_CMA; limit++)
		if (limit != LIMIT_CMA || cma_works(&side))
			measure(&side, (enum limit)limit, names[limit], seconds);
	printf("# done limits\n");
	return 0;
}

/* Two cores this process may use, where the caller named none. */
static int choose_cores(int cores[2])
{
	cpu_set_t set;
	int core, nr = 0;

	if (cores[0] >= 0 && cores[1] >= 0)
		return 0;
	if (cores[0] >= 0 || cores[1] >= 0 || sched_getaffinity(0, sizeof(set), &set))
		return -EINVAL;
	for (core = 0; core < CPU_SETSIZE && nr < 2; core++)
		if (CPU_ISSET(core, &set))
			cores[nr++] = core;
	return nr == 2 ? 0 : -ENODEV;
}

static int options_parse(int argc, char **argv, int cores[2], double *ret_seconds)
{
	int option, ret = 0;
	double number;

	opterr = 0;
	while (!ret && (option = getopt(argc, argv, "a:b:t:")) != -1) {
		if (option == 't') {
			ret = number_parse(optarg, 0, 3600, ret_seconds);
		} else if (option == 'a' || option == 'b') {
			ret = number_parse(optarg, 0, CPU_SETSIZE - 1, &number);
			cores[option == 'b'] = ret ? -1 : (int)number;
		} else {
			ret = -EINVAL;
		}
	}
	return ret || optind != argc ? -EINVAL : choose_cores(cores);
}

int main(int argc, char **argv)
{
	int cores[2] = {-1, -1}, ret;
	double seconds = 0.05;
	struct shared *shared;
	struct side second = {0};
	pid_t child;

	ret = options_parse(argc, argv, cores, &seconds);
	if (ret == -ENODEV) {
		fputs("limits: two cores are needed, this process may use one\n", stderr);
		return 1;
	}
	if (ret || cores[0] == cores[1]) {
		fputs(usage, stderr);
		return 2;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (shared == MAP_FAILED) {
		perror("limits: no shared memory");
		return 1;
	}
	signal(SIGCHLD, partner_died);
	child = fork();
	if (child < 0) {
		perror("limits: fork");
		return 1;
	}
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (pin(cores[1]) || side_init(&second, shared, false))
			_exit(1);
		serve(&second);
	}
	ret = run_first(shared, cores, seconds);
	signal(SIGCHLD, SIG_DFL);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return ret;
}
