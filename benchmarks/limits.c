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
 * streamed   the same with stores that pass by the writer's cache
 * cma_read   the reader's kernel copies out of the writer's memory (process_vm_readv)
 * cma_both   the reader's kernel copies one half, the writer's kernel the other
 *
 * Output: see mpi/sampling.h. Times are per message (cacheline: per half round trip). With -T the
 * program takes turns instead (mpi/turns.h); there pools of any footprint can be asked for:
 * two_copy@2M, streamed@256K.
 */
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "limits.h"
#include "mpi/sampling.h"
#include "mpi/turns.h"

#define SAMPLE_SECONDS 300e-6
#define BATCH_MAX (1 << 20)
#define NEAR_NS 150 /* a shared last-level cache answers in 50 to 100 ns, another one in 200 up */

struct options {
	int cores[2];
	double seconds;
	bool waits;	   /* each message until it has arrived, one at a time */
	const char *turns; /* directory */
};

static const char *const names[NR_LIMITS] = {"cacheline", "slots",    "memcpy",	  "one_copy",
					     "two_copy",  "streamed", "cma_read", "cma_both"};

static const char usage[] =
	"usage: limits [-a CORE] [-b CORE] [-t SECONDS] [-w] [-T DIR]\n"
	"  -a, -b CORE  the two cores (default: the first two this process may use)\n"
	"  -t SECONDS   time per point (default 0.05)\n"
	"  -w           one message at a time, until it has arrived (default: a stream of them)\n"
	"  -T DIR       measure by turns, told by pipes in DIR\n"
	"Example: limits -a 0 -b 1 -t 0.02\n";

static bool waits_for_arrival;
static int wake[2]; /* a pipe to the second process: what it sleeps on */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The second process: does its half of what the first one orders, for ever. */
__attribute__((noreturn)) static void serve(struct side *side)
{
	struct shared *s = side->shared;
	uint32_t seen = 0;
	char byte;

	for (;;) {
		while (atomic_load_explicit(&s->order, memory_order_acquire) == seen)
			pause_cpu();
		seen++;
		limit_run(side, &s->test, s->batch);
		atomic_store_explicit(&s->finished, seen, memory_order_release);
		if (s->test.limit == LIMIT_REST && read(wake[0], &byte, 1) != 1)
			_exit(0);
	}
}

static double order(struct side *side, const struct limit_test *test, int batch)
{
	struct shared *s = side->shared;
	uint32_t number = s->order + 1;
	double start, took;

	s->test = *test;
	s->batch = batch;
	/* Words that both write are begun anew before the other one looks at them. */
	if (batch == 0)
		limit_run(side, test, 0);
	start = now();
	atomic_store_explicit(&s->order, number, memory_order_release);
	if (batch)
		limit_run(side, test, batch);
	took = now() - start;
	while (atomic_load_explicit(&s->finished, memory_order_acquire) != number)
		pause_cpu();
	return waits_for_arrival ? now() - start : took;
}

/* The quickest of three, so that one interruption does not make every batch too short. */
static double quickest_order(struct side *side, const struct limit_test *test, int batch)
{
	double best = order(side, test, batch), next;
	int i;

	for (i = 0; i < 2; i++) {
		next = order(side, test, batch);
		best = next < best ? next : best;
	}
	return best;
}

static bool is_small(enum limit limit)
{
	return limit == LIMIT_CACHELINE || limit == LIMIT_SLOTS;
}

static int sample(struct side *side, const struct limit_test *test, double seconds,
		  struct samples *ret_samples)
{
	int batch = 1, per = test->limit == LIMIT_CACHELINE ? 2 : 1;
	double start;

	order(side, test, 0);
	while ((!waits_for_arrival || is_small(test->limit)) &&
	       quickest_order(side, test, batch) < SAMPLE_SECONDS / 2 && batch < BATCH_MAX)
		batch *= 2;
	ret_samples->nr = 0;
	start = now();
	while ((now() - start < seconds || ret_samples->nr < 16) && ret_samples->nr < SAMPLES_MAX)
		samples_add(ret_samples, order(side, test, batch) / batch / per);
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

static void measure(struct side *side, enum limit limit, double seconds)
{
	static struct samples samples;
	struct limit_test test = {limit, 0, POOL_BYTES};
	bool small = is_small(limit);
	int batch;

	printf("# table %s\n"
	       "size_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us time_p98_us "
	       "messages rate_p50_Mps bandwidth_p50_MBps\n",
	       names[limit]);
	for (test.size = small ? 8 : 4096; test.size <= (small ? 8 : COPY_MAX); test.size *= 2) {
		batch = sample(side, &test, seconds, &samples);
		print_row(test.size, batch, &samples);
		if (limit == LIMIT_CACHELINE) {
			double ns = samples_percentile(&samples, 25) * 1e9;

			printf("# placement %s half_rtt_p25_ns=%.1f near_below_ns=%d\n",
			       ns < NEAR_NS ? "near" : "far", ns, NEAR_NS);
		}
	}
	printf("# end %s\n", names[limit]);
	fflush(stdout);
}

/* Why this limit cannot be measured here, or NULL. */
static const char *why_absent(struct side *side, enum limit limit)
{
	struct limit_test test = {limit, 8192, POOL_BYTES};
	int error;

	if (limit == LIMIT_STREAMED && !limit_can_stream())
		return "this processor has no such stores";
	if (limit != LIMIT_CMA && limit != LIMIT_CMA_BOTH)
		return NULL;
	side->shared->cma_error = 0;
	order(side, &test, 0);
	order(side, &test, 1);
	error = side->shared->cma_error;
	return error ? strerror(error) : NULL;
}

/* NAME or NAME@FOOTPRINT. Returns 0 or -EINVAL. */
static int test_parse(const struct turn_test *from, struct limit_test *ret_test)
{
	struct limit_test test = {NR_LIMITS, from->size, POOL_BYTES};
	size_t length = strcspn(from->name, "@");
	uint64_t bytes;
	int i;

	for (i = 0; i < NR_LIMITS; i++)
		if (strlen(names[i]) == length && !strncmp(names[i], from->name, length))
			test.limit = (enum limit)i;
	if (from->name[length]) {
		if (size_parse(from->name + length + 1, &bytes) || bytes < 4096 || bytes > POOL_MAX)
			return -EINVAL;
		test.footprint = bytes;
	}
	if (test.limit == NR_LIMITS || test.size < (is_small(test.limit) ? 1 : 4096) ||
	    test.size > COPY_MAX || test.size % (is_small(test.limit) ? 1 : 64))
		return -EINVAL;
	*ret_test = test;
	return 0;
}

/* As many as the MPI program has under way: its figures are held against these. */
static int turn_batch(const struct limit_test *test)
{
	if (test->limit == LIMIT_CACHELINE)
		return 50;
	if (test->limit == LIMIT_SLOTS)
		return 256;
	return test->size <= 65536 ? 16 : test->size <= (1 << 20) ? 8 : 4;
}

static int take_test(struct side *side, struct turns *turns, const struct turn_test *asked)
{
	struct limit_test test;
	int i, nr, batch, per, ret = test_parse(asked, &test);

	if (ret)
		return ret;
	if (why_absent(side, test.limit))
		return 0;
	batch = turn_batch(&test);
	per = test.limit == LIMIT_CACHELINE ? 2 * batch : batch;
	order(side, &test, 0);
	order(side, &test, batch);
	nr = turns_samples(turns, order(side, &test, batch));
	for (i = 0; !ret && i < nr; i++)
		ret = turns_add(turns, asked, order(side, &test, batch) / per);
	return ret;
}

/* Both processes sleep between turns: others measure on these cores meanwhile. */
static int take_turns(struct side *side, const char *dir)
{
	static const struct limit_test rest = {LIMIT_REST, 0, 0};
	struct turns turns;
	int i, ret = turns_open(&turns, dir, 0);

	order(side, &rest, 0);
	while (!ret && (ret = turns_next(&turns)) > 0) {
		ret = write(wake[1], "", 1) == 1 ? 0 : -errno;
		for (i = 0; !ret && i < turns.now.nr_tests; i++)
			ret = take_test(side, &turns, &turns.now.tests[i]);
		order(side, &rest, 0);
		if (!ret)
			ret = turns_done(&turns);
	}
	if (ret)
		fprintf(stderr, "limits: turns in %s: %s\n", dir, strerror(-ret));
	else
		turns_print(&turns);
	turns_close(&turns);
	return ret;
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
	/* The other side copies out of, or into, this one. */
	shared->remote[!writer] = (uint64_t)(uintptr_t)side->buffer;
	shared->pid[!writer] = getpid();
	return 0;
}

static void partner_died(int number)
{
	static const char text[] = "limits: the second process died\n";

	(void)number;
	_exit(write(STDERR_FILENO, text, sizeof(text) - 1) < 0 ? 2 : 1);
}

static int run_first(struct shared *shared, const struct options *options)
{
	struct side side = {0};
	const char *why;
	int limit, ret = 0;

	if (pin(options->cores[0]) || side_init(&side, shared, true))
		return 1;
	printf("# nearmetal-bench 1 limits\n# cores %d %d\n", options->cores[0], options->cores[1]);
	/* The second process has set itself up when it answers. */
	order(&side, &(struct limit_test){LIMIT_CACHELINE, 8, 0}, 0);
	for (limit = LIMIT_CACHELINE; limit < NR_LIMITS; limit++) {
		why = why_absent(&side, (enum limit)limit);
		if (why)
			printf("# absent %s %s\n", names[limit], why);
		else if (!options->turns)
			measure(&side, (enum limit)limit, options->seconds);
	}
	if (options->turns)
		ret = take_turns(&side, options->turns);
	if (!ret)
		printf("# done limits\n");
	return ret != 0;
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

static int options_parse(int argc, char **argv, struct options *options)
{
	int option, ret = 0;
	double number;

	opterr = 0;
	while (!ret && (option = getopt(argc, argv, "a:b:t:wT:")) != -1) {
		if (option == 't') {
			ret = number_parse(optarg, 0, 3600, &options->seconds);
		} else if (option == 'T') {
			options->turns = optarg;
		} else if (option == 'w') {
			options->waits = true;
		} else if (option == 'a' || option == 'b') {
			ret = number_parse(optarg, 0, CPU_SETSIZE - 1, &number);
			options->cores[option == 'b'] = ret ? -1 : (int)number;
		} else {
			ret = -EINVAL;
		}
	}
	return ret || optind != argc ? -EINVAL : choose_cores(options->cores);
}

int main(int argc, char **argv)
{
	struct options options = {{-1, -1}, 0.05, false, NULL};
	struct shared *shared;
	struct side second = {0};
	pid_t child;
	int ret = options_parse(argc, argv, &options);

	if (ret == -ENODEV) {
		fputs("limits: two cores are needed, this process may use one\n", stderr);
		return 1;
	}
	if (ret || options.cores[0] == options.cores[1]) {
		fputs(usage, stderr);
		return 2;
	}
	waits_for_arrival = options.waits;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (shared == MAP_FAILED || pipe(wake)) {
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
		close(wake[1]);
		if (pin(options.cores[1]) || side_init(&second, shared, false))
			_exit(1);
		serve(&second);
	}
	ret = run_first(shared, &options);
	signal(SIGCHLD, SIG_DFL);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return ret;
}
