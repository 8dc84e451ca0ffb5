/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shm transport alone, between two processes in PID, IPC and network namespaces of their own
 * (as far as this user may make them), each pinned to a core: latency, message rate, bandwidth, as
 * percentiles of many short samples, beside the limit: the raw cache-line ping-pong of the same two
 * cores and a plain memcpy.
 *
 *	transport_pingpong [SAMPLES [CORE CORE]]
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/transport.h"

#define MAX_SAMPLES 20000
#define ROUND_TRIPS 50
#define BURST 512
#define BULK (1 << 20)
#define SPINS_BEFORE_YIELD 20000

/* What the two processes share besides their windows: the start, and the raw ping-pong. */
struct shared {
	_Atomic uint64_t ball[2] NM_ALIGNED(NM_CACHE_LINE);
	_Atomic uint64_t other NM_ALIGNED(NM_CACHE_LINE);
	struct nm_address address[2] NM_ALIGNED(NM_CACHE_LINE);
	_Atomic int ready NM_ALIGNED(NM_CACHE_LINE);
	bool isolated;
};

struct endpoint {
	struct nm_transport *transport;
	struct nm_link *link;
	uint64_t nr_received;
	uint64_t bytes_received;
	uint8_t *buffer; /* where payloads are copied to */
	uint64_t first_word;
};

static struct shared *shared;
static double samples[MAX_SAMPLES];

static void die(const char *what, const char *why)
{
	fprintf(stderr, "transport_pingpong: %s: %s\n", what, why);
	exit(1);
}

static struct nm_peer *source_up(struct nm_transport *from, const struct nm_identity *who,
				 const struct nm_peer_label *label)
{
	(void)who;
	(void)label;
	return from->sink.engine;
}

static void deliver(struct nm_transport *from, struct nm_peer *source, const struct nm_packet *pkt,
		    const void *payload)
{
	struct endpoint *endpoint = from->sink.engine;

	(void)source;
	if (pkt->len <= sizeof(endpoint->first_word))
		memcpy(&endpoint->first_word, payload, pkt->len);
	else
		memcpy(endpoint->buffer + endpoint->bytes_received % BULK, payload, pkt->len);
	endpoint->bytes_received += pkt->len;
	endpoint->nr_received++;
}

static void source_down(struct nm_transport *from, struct nm_peer *source, int err,
			const struct nm_reason *why)
{
	(void)from;
	(void)source;
	if (err)
		die("the other side is gone", why->text);
}

/* Others may be on this core as well. */
static void progress(struct endpoint *endpoint, unsigned int *idle)
{
	if (endpoint->transport->ops->progress(endpoint->transport))
		*idle = 0;
	else if (++*idle > SPINS_BEFORE_YIELD)
		sched_yield();
}

static void send_one(struct endpoint *endpoint, const void *bytes, uint32_t len)
{
	struct iovec iov = {(void *)(uintptr_t)bytes, len};
	struct nm_packet pkt = {.op = 1, .len = len, .tag = 1};
	unsigned int idle = 0;
	int err;

	while ((err = endpoint->transport->ops->send(endpoint->link, &pkt, &iov, 1)) == -EAGAIN)
		progress(endpoint, &idle);
	if (err)
		die("send", strerror(-err));
}

static void await(struct endpoint *endpoint, uint64_t nr)
{
	unsigned int idle = 0;

	while (endpoint->nr_received < nr)
		progress(endpoint, &idle);
}

/* Both sides run the same samples in lock step; the first one times them. */
static double ping_pong(struct endpoint *endpoint, int me, uint32_t len)
{
	uint64_t seen = endpoint->nr_received, start = nm_clock_ns();
	int i;

	for (i = 0; i < ROUND_TRIPS; i++) {
		if (me == 0)
			send_one(endpoint, endpoint->buffer, len);
		await(endpoint, ++seen);
		if (me == 1)
			send_one(endpoint, endpoint->buffer, len);
	}
	return (double)(nm_clock_ns() - start) / ROUND_TRIPS / 2;
}

/* NR packets of LEN bytes one way, one answer. Bytes or messages per ns. */
static double stream(struct endpoint *endpoint, int me, uint32_t len, uint32_t nr, uint8_t *source)
{
	uint64_t seen = endpoint->nr_received, start = nm_clock_ns();
	uint32_t i;

	if (me == 0) {
		for (i = 0; i < nr; i++)
			send_one(endpoint, source + (uint64_t)i * len % BULK, len);
		await(endpoint, seen + 1);
	} else {
		await(endpoint, seen + nr);
		send_one(endpoint, source, 8);
		endpoint->bytes_received = 0;
	}
	return (double)nr / (double)(nm_clock_ns() - start);
}

static double raw_ping_pong(int me)
{
	_Atomic uint64_t *mine = me ? &shared->other : &shared->ball[0];
	_Atomic uint64_t *theirs = me ? &shared->ball[0] : &shared->other;
	uint64_t value = atomic_load(mine), start = nm_clock_ns();
	int i;

	for (i = 0; i < ROUND_TRIPS; i++) {
		value++;
		if (me == 0)
			atomic_store_explicit(mine, value, memory_order_release);
		while (atomic_load_explicit(theirs, memory_order_acquire) != value)
			;
		if (me == 1)
			atomic_store_explicit(mine, value, memory_order_release);
	}
	return (double)(nm_clock_ns() - start) / ROUND_TRIPS / 2;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* BEST is the quiet end: the 2nd percentile of times, the 98th of rates. */
static void print_row(const char *name, const char *unit, int nr, bool higher_is_better)
{
	qsort(samples, (size_t)nr, sizeof(samples[0]), compare);
	printf("%-34s %-8s best %9.2f  median %9.2f  worst decile %9.2f\n", name, unit,
	       samples[higher_is_better ? nr * 98 / 100 : nr * 2 / 100], samples[nr / 2],
	       samples[higher_is_better ? nr / 10 : nr * 9 / 10]);
	fflush(stdout);
}

static void run(struct endpoint *endpoint, int me, int nr)
{
	static const uint32_t sizes[] = {0, 8, 40, 64, 256, 1024, 4096, 16384, 32768};
	uint8_t *source = malloc(BULK), *copy = malloc(BULK);
	uint64_t start;
	char name[64];
	size_t s;
	int i;

	if (!source || !copy)
		die("malloc", strerror(ENOMEM));
	memset(source, 1, BULK);
	memset(copy, 2, BULK);
	for (i = 0; i < nr; i++)
		samples[i] = raw_ping_pong(me);
	if (!me)
		print_row("cache-line ping-pong, half", "ns", nr, false);
	for (s = 0; s < NM_ARRAY_SIZE(sizes); s++) {
		for (i = 0; i < nr; i++)
			samples[i] = ping_pong(endpoint, me, sizes[s]);
		snprintf(name, sizeof(name), "half round trip, %u B", sizes[s]);
		if (!me)
			print_row(name, "ns", nr, false);
	}
	for (s = 0; s < 3; s++) {
		static const uint32_t rate_sizes[] = {8, 64, 1024};

		for (i = 0; i < nr; i++)
			samples[i] = stream(endpoint, me, rate_sizes[s], BURST, source) * 1e3;
		snprintf(name, sizeof(name), "message rate, %u B", rate_sizes[s]);
		if (!me)
			print_row(name, "Mmsg/s", nr, true);
	}
	for (i = 0; i < nr / 10; i++) {
		start = nm_clock_ns();
		memcpy(copy, source, BULK);
		samples[i] = BULK / (double)(nm_clock_ns() - start);
	}
	if (!me)
		print_row("plain memcpy, 1 MiB", "GB/s", nr / 10, true);
	for (s = 0; s < 4; s++) {
		static const uint32_t bulk_sizes[] = {4096, 8192, 16384, 32768};
		uint32_t len = bulk_sizes[s];

		for (i = 0; i < nr; i++)
			samples[i] = len * stream(endpoint, me, len, BULK / len, source);
		snprintf(name, sizeof(name), "1 MiB in packets of %u B", len);
		if (!me)
			print_row(name, "GB/s", nr, true);
	}
	free(source);
	free(copy);
}

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof(set), &set) < 0)
		fprintf(stderr, "cannot pin to core %d: %s\n", core, strerror(errno));
}

static void barrier(int nr)
{
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < nr)
		sched_yield();
}

static int endpoint_main(int me, int core, int nr)
{
	struct endpoint endpoint = {0};
	struct nm_sink sink = {
		.engine = &endpoint,
		.source_up = source_up,
		.deliver = deliver,
		.source_down = source_down,
	};
	struct nm_address *mine = &shared->address[me];
	struct nm_reason why = {""};
	struct nm_link *link;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(300);
	pin(core);
	endpoint.buffer = malloc(2 * BULK);
	if (!endpoint.buffer)
		die("malloc", strerror(ENOMEM));
	memset(endpoint.buffer, 3, 2 * BULK);
	mine->version = NM_ADDRESS_VERSION;
	if (nm_identity_create(&mine->who) ||
	    nm_shm_kind.create(&sink, mine, &endpoint.transport, &why))
		die("create", why.text);
	barrier(2);
	if (endpoint.transport->ops->connect(endpoint.transport, &shared->address[!me],
					     (struct nm_peer *)&endpoint, &link, &why))
		die("connect", why.text);
	endpoint.link = link;
	barrier(4);
	if (!me)
		printf("%s, cores %s: %s\n",
		       shared->isolated ? "two sets of namespaces" : "one set of namespaces",
		       "pinned", why.text);
	run(&endpoint, me, nr);
	barrier(6);
	endpoint.transport->ops->destroy(endpoint.transport);
	free(endpoint.buffer);
	return 0;
}

/* A PID namespace begins with the next child. */
static int isolated_main(int me, int core, int nr)
{
	int status;
	pid_t pid;

	shared->isolated = unshare(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET) == 0;
	pid = fork();
	if (pid == 0)
		exit(endpoint_main(me, core, nr));
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
	int nr = argc > 1 ? atoi(argv[1]) : 2000, i, status, failed = 0;
	int cores[2] = {argc > 3 ? atoi(argv[2]) : 0, argc > 3 ? atoi(argv[3]) : 1};
	char dir[] = "/tmp/nearmetal-pingpong-XXXXXX";

	if (nr < 50 || nr > MAX_SAMPLES)
		die("usage", "transport_pingpong [SAMPLES 50..20000 [CORE CORE]]");
	if (!mkdtemp(dir) || setenv("NEARMETAL_RUNDIR", dir, 1))
		die("mkdtemp", strerror(errno));
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		die("mmap", strerror(errno));
	for (i = 0; i < 2; i++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			exit(isolated_main(i, cores[i], nr));
		}
	while (wait(&status) > 0)
		failed |= status;
	rmdir(dir);
	return failed != 0;
}
