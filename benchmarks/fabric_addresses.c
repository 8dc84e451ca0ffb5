/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an address vector costs: private memory of a process, and time. Every process inserts the same addresses, all of them at once, and looks a
 * part of them up again. Works over any provider whose addresses are nearmetal's or sockaddrs.
 * Output: mpi/sampling.h. size_B: of the inner address; private_kB: RssAnon of a process, all of it;
 * vector_kB: by how much the insertions made it grow; of kB 1000 bytes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include "connect/address.h"

#define BATCH 4096
#define NR_LOOKED_UP 10000
#define PROCESSES_MAX 64

/* What a process found out; in memory that its parent sees. */
struct result {
	uint64_t before, after; /* RssAnon in bytes */
	uint64_t wall_ns, cpu_ns;
	bool good;
};

struct settings {
	const char *provider;
	uint64_t nr;
	unsigned int nr_processes;
	int family;
	int start, leave; /* pipes */
};

static void fail(const char *what, int err)
{
	fprintf(stderr, "FAILED %s: %s\n", what, fi_strerror(err < 0 ? -err : err));
	exit(1);
}

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A line "NAME: value kB" of /proc/self/status, in bytes. */
static uint64_t status_bytes(const char *name)
{
	FILE *file = fopen("/proc/self/status", "re");
	unsigned long long value = 0;
	char line[256];

	if (!file)
		fail("/proc/self/status", errno);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			value = strtoull(line + strlen(name), NULL, 10);
	fclose(file);
	return value * 1024;
}

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* The inner address of process N: every process on a host of its own, the worst case. */
static size_t make_inner(int family, uint64_t n, void *ret_inner)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(20000)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(20000)};
	uint64_t words[2] = {mix(n + 1), mix(~n)};

	if (family == AF_INET) {
		in.sin_addr.s_addr = htonl((uint32_t)(0x0a000001 + n));
		in.sin_port = (in_port_t)words[0];
		memcpy(ret_inner, &in, sizeof(in));
		return sizeof(in);
	}
	memcpy(&in6.sin6_addr, words, sizeof(words));
	in6.sin6_addr.s6_addr[0] = 0x20;
	in6.sin6_port = (in_port_t)(words[0] >> 48);
	memcpy(ret_inner, &in6, sizeof(in6));
	return sizeof(in6);
}

static size_t make_address(const struct settings *s, uint64_t n, uint8_t *ret_bytes)
{
	struct nm_address address = {.version = NM_ADDRESS_VERSION};
	uint64_t id = mix(3 * n + 1), token = mix(3 * n + 2);
	uint32_t protocol = 1;
	size_t len;

	if (strcmp(s->provider, "nearmetal"))
		return make_inner(s->family, n, ret_bytes);
	memcpy(address.who.id, &id, sizeof(address.who.id));
	memcpy(address.who.place, &token, sizeof(address.who.place));
	len = make_inner(s->family, n, address.inner);
	memcpy(address.inner + len, &protocol, sizeof(protocol));
	address.inner_len = (uint8_t)(len + sizeof(protocol));
	memcpy(ret_bytes, &address, sizeof(address));
	return sizeof(address);
}

struct fabric {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
};

static void open_fabric(const struct settings *s, struct fabric *f)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr attr = {.type = FI_AV_TABLE, .count = s->nr};
	int err;

	if (!hints)
		fail("fi_allocinfo", ENOMEM);
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup(s->provider);
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->mode = ~0ULL;
	if (strcmp(s->provider, "nearmetal"))
		hints->addr_format = s->family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
	err = fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &f->info);
	if (err)
		fail("fi_getinfo (is FI_PROVIDER_PATH set?)", err);
	err = fi_fabric(f->info->fabric_attr, &f->fabric, NULL);
	if (!err)
		err = fi_domain(f->fabric, f->info, &f->domain, NULL);
	if (!err)
		err = fi_av_open(f->domain, &attr, &f->av, NULL);
	if (err)
		fail("opening an address vector", err);
	fi_freeinfo(hints);
}

static void insert_all(const struct settings *s, struct fabric *f, struct result *result)
{
	static uint8_t batch[BATCH * NM_ADDRESS_LEN];
	static fi_addr_t indices[BATCH];
	uint64_t n = 0, wall, cpu;
	size_t len = 0, nr;

	while (n < s->nr) {
		for (nr = 0; nr < BATCH && n + nr < s->nr; nr++)
			len = make_address(s, n + nr, batch + nr * len);
		wall = now_ns(CLOCK_MONOTONIC);
		cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
		if (fi_av_insert(f->av, batch, nr, indices, 0, NULL) != (int)nr)
			fail("fi_av_insert", FI_EOTHER);
		result->cpu_ns += now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
		result->wall_ns += now_ns(CLOCK_MONOTONIC) - wall;
		if (indices[0] != n || indices[nr - 1] != n + nr - 1)
			fail("indices of a table run on", FI_EOTHER);
		n += nr;
	}
}

static void look_up(const struct settings *s, struct fabric *f)
{
	uint8_t expected[NM_ADDRESS_LEN], got[NM_ADDRESS_LEN];
	uint64_t i, n;

	for (i = 0; i < NR_LOOKED_UP; i++) {
		size_t room = sizeof(got), len;

		n = mix(i) % s->nr;
		len = make_address(s, n, expected);
		if (fi_av_lookup(f->av, n, got, &room) || room != len || memcmp(got, expected, len))
			fail("an address looked up is the one inserted", FI_EOTHER);
	}
}

static void run_process(const struct settings *s, struct result *result)
{
	struct fabric f = {0};
	char byte;

	open_fabric(s, &f);
	if (read(s->start, &byte, 1) < 0) /* the end of the pipe: all are there */
		fail("read", errno);
	result->before = status_bytes("RssAnon:");
	insert_all(s, &f, result);
	result->after = status_bytes("RssAnon:");
	look_up(s, &f);
	result->good = true;
	if (read(s->leave, &byte, 1) < 0)
		fail("read", errno);
	fi_close(&f.av->fid);
	fi_close(&f.domain->fid);
	fi_close(&f.fabric->fid);
	fi_freeinfo(f.info);
	exit(0);
}

/* The figures of one family; of several runs the quickest, on a machine that others use too. */
struct figures {
	uint64_t rss_anon, grown, wall_ns, cpu_ns;
};

static void add_run(const struct settings *s, const struct result *results, struct figures *figures)
{
	struct figures run = {0};
	unsigned int i;

	for (i = 0; i < s->nr_processes; i++) {
		const struct result *r = &results[i];
		uint64_t grown = r->after - r->before;

		run.rss_anon = r->after > run.rss_anon ? r->after : run.rss_anon;
		run.grown = grown > run.grown ? grown : run.grown;
		run.wall_ns = r->wall_ns > run.wall_ns ? r->wall_ns : run.wall_ns;
		run.cpu_ns = r->cpu_ns > run.cpu_ns ? r->cpu_ns : run.cpu_ns;
	}
	if (run.rss_anon > figures->rss_anon)
		figures->rss_anon = run.rss_anon;
	if (run.grown > figures->grown)
		figures->grown = run.grown;
	if (!figures->wall_ns || run.wall_ns < figures->wall_ns)
		figures->wall_ns = run.wall_ns;
	if (!figures->cpu_ns || run.cpu_ns < figures->cpu_ns)
		figures->cpu_ns = run.cpu_ns;
}

static void report(const struct settings *s, const struct figures *f)
{
	size_t inner =
		s->family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

	printf("%zu %.3f %.3f %.1f %.1f %llu\n", inner, (double)f->wall_ns / 1e9,
	       (double)f->cpu_ns / 1e9, (double)f->rss_anon / 1e3, (double)f->grown / 1e3,
	       (unsigned long long)s->nr);
	fflush(stdout);
}

static void run_once(struct settings *s, struct figures *figures)
{
	struct result *results = mmap(NULL, s->nr_processes * sizeof(*results),
				      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int start[2], leave[2], status, bad = 0;
	unsigned int i;

	if (results == MAP_FAILED || pipe(start) || pipe(leave))
		fail("setting up", errno);
	s->start = start[0];
	s->leave = leave[0];
	for (i = 0; i < s->nr_processes; i++) {
		pid_t pid = fork();

		if (pid < 0)
			fail("fork", errno);
		if (pid == 0) {
			close(start[1]);
			close(leave[1]);
			run_process(s, &results[i]);
		}
	}
	close(start[1]);
	for (i = 0; i < s->nr_processes; i++)
		while (!*(volatile bool *)&results[i].good && waitpid(-1, &status, WNOHANG) <= 0)
			usleep(1000);
	close(leave[1]);
	while (waitpid(-1, &status, 0) > 0)
		bad |= status;
	for (i = 0; i < s->nr_processes; i++)
		bad |= !results[i].good;
	if (bad)
		exit(1);
	add_run(s, results, figures);
	close(start[0]);
	close(leave[0]);
	munmap(results, s->nr_processes * sizeof(*results));
}

static void run_family(struct settings *s, int family, unsigned int nr_runs)
{
	struct figures figures = {0};

	s->family = family;
	while (nr_runs--)
		run_once(s, &figures);
	report(s, &figures);
}

static char own_dir[] = "/dev/shm/nearmetal-addresses-XXXXXX";

static void remove_own_dir(void)
{
	rmdir(own_dir);
}

int main(int argc, char **argv)
{
	struct settings s = {.provider = "nearmetal", .nr = 1000000, .nr_processes = 2};
	unsigned int nr_runs = 3;
	int option;

	while ((option = getopt(argc, argv, "n:k:p:r:")) != -1) {
		if (option == 'n')
			s.nr = strtoull(optarg, NULL, 10);
		else if (option == 'k')
			s.nr_processes = (unsigned int)strtoul(optarg, NULL, 10);
		else if (option == 'p')
			s.provider = optarg;
		else if (option == 'r')
			nr_runs = (unsigned int)strtoul(optarg, NULL, 10);
		else
			s.nr = 0;
	}
	if (!s.nr || !nr_runs || !s.nr_processes || s.nr_processes > PROCESSES_MAX) {
		fprintf(stderr,
			"usage: fabric_addresses [-n ADDRESSES] [-k PROCESSES] [-p PROVIDER] [-r RUNS]\n"
			"  -n  addresses that every process inserts (1000000)\n"
			"  -k  processes of one node at once, 1 to %d (2)\n"
			"  -p  nearmetal, or a provider with socket addresses to compare with\n"
			"  -r  runs, of which the quickest counts (3)\n",
			PROCESSES_MAX);
		return 2;
	}
	if (!getenv("NEARMETAL_RUNDIR")) {
		if (!mkdtemp(own_dir) || setenv("NEARMETAL_RUNDIR", own_dir, 1))
			fail(own_dir, errno);
		atexit(remove_own_dir);
	}
	printf("# nearmetal-bench 1 fabric_addresses\n# provider %s\n# processes %u\n# runs %u\n"
	       "# table addresses\nsize_B insert_s insert_cpu_s private_kB vector_kB addresses\n",
	       s.provider, s.nr_processes, nr_runs);
	fflush(stdout);
	run_family(&s, AF_INET, nr_runs);
	run_family(&s, AF_INET6, nr_runs);
	printf("# end addresses\n# done fabric_addresses\n");
	return 0;
}
