/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: net_attacks LIBFABRIC DIRECTORY NAME,NAME...
 *        net_attacks --list
 *
 * Waits for files DIRECTORY/JOB/address-RANK, and attacks these ranks until DIRECTORY/stop exists.
 */
#include "net_attacks.h"

#include <dlfcn.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/host.h"

enum { LAST_S = 120, SEND_MS = 20, PAUSE_US = 200 };

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "net_attacks: %s: %s\n", what, why);
	exit(1);
}

uint64_t any_number(struct attacker *attacker)
{
	attacker->random = attacker->random * UINT64_C(6364136223846793005) + 1442695040888963407;
	return attacker->random ^ attacker->random >> 29;
}

void any_bytes(struct attacker *attacker, void *bytes, size_t len)
{
	uint8_t *at = bytes;

	while (len--)
		*at++ = (uint8_t)any_number(attacker);
}

static void take(struct attacker *attacker, struct in *in, size_t len)
{
	struct nm_net_header header;
	struct nm_reason why;

	if (nm_net_header_parse(in->bytes, len, IN_LEN, &header, &why) ||
	    header.kind != NM_NET_TOKEN)
		return;
	for (unsigned int i = 0; i < attacker->nr_ranks; i++) {
		if (!nm_identity_equal(&attacker->ranks[i].who, &header.source))
			continue;
		attacker->tokens[i] = header.data;
		attacker->has_token[i] = true;
	}
}

static void listen_again(struct attacker *attacker, struct in *in)
{
	if (fi_recv(attacker->inner.ep, in->bytes, IN_LEN, NULL, FI_ADDR_UNSPEC, &in->context))
		fail("receive", "refused");
}

void look(struct attacker *attacker)
{
	struct fi_cq_msg_entry entry;
	struct fi_cq_err_entry error;
	uint8_t *context;
	ssize_t nr;

	while ((nr = fi_cq_read(attacker->inner.cq, &entry, 1)) == 1 || nr == -FI_EAVAIL) {
		memset(&error, 0, sizeof(error));
		if (nr < 0 && fi_cq_readerr(attacker->inner.cq, &error, 0) != 1)
			return;
		context = nr < 0 ? error.op_context : entry.op_context;
		if (context >= (uint8_t *)attacker->in &&
		    context < (uint8_t *)(attacker->in + NR_IN)) {
			if (nr == 1)
				take(attacker, (struct in *)(void *)context, entry.len);
			listen_again(attacker, (struct in *)(void *)context);
		} else if (context) {
			((struct out *)(void *)context)->busy = false;
		}
	}
}

static struct out *free_out(struct attacker *attacker)
{
	for (unsigned int i = 0; i < NR_OUT; i++)
		if (!attacker->out[i].busy)
			return &attacker->out[i];
	return NULL;
}

void put(struct attacker *attacker, fi_addr_t to, const void *bytes, size_t len)
{
	uint64_t end = nm_clock_ns() + SEND_MS * NM_NS_PER_MS;
	struct out *out;

	do {
		look(attacker);
		out = free_out(attacker);
		if (!out)
			continue;
		memcpy(out->bytes, bytes, len);
		if (fi_send(attacker->inner.ep, out->bytes, len, NULL, to, &out->context) == 0) {
			out->busy = true;
			attacker->done++;
			return;
		}
	} while (nm_clock_ns() < end);
}

void attacker_open(struct attacker *attacker)
{
	struct nm_reason why = {""};

	if (nm_net_inner_open("tcp", 256, false, &attacker->inner, &why))
		fail("no inner endpoint", why.text);
	attacker->self = (struct nm_address){.version = NM_ADDRESS_VERSION};
	if (nm_identity_create(&attacker->self.who))
		fail("no identity", "no random numbers");
	attacker->self.inner_len = attacker->inner.name_len;
	memcpy(attacker->self.inner, attacker->inner.name, attacker->inner.name_len);
	for (unsigned int i = 0; i < NR_OUT; i++)
		attacker->out[i].busy = false;
	for (unsigned int i = 0; i < NR_IN; i++)
		listen_again(attacker, &attacker->in[i]);
	for (unsigned int i = 0; i < attacker->nr_ranks; i++) {
		attacker->has_token[i] = attacker->greeted[i] = false;
		fi_av_insert(attacker->inner.av, attacker->ranks[i].inner, 1, &attacker->at[i], 0,
			     NULL);
	}
}

void attacker_close(struct attacker *attacker)
{
	nm_net_inner_close(&attacker->inner);
}

static void find(void *library, const char *name, void *ret_function)
{
	void *symbol = dlsym(library, name);

	if (!symbol)
		fail(name, "not in libfabric");
	memcpy(ret_function, &symbol, sizeof(symbol));
}

static void open_libfabric(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);
	uint32_t (*version)(void);

	if (!library)
		fail(path, dlerror());
	find(library, "fi_version", &version);
	find(library, "fi_getinfo", &nm_host.getinfo);
	find(library, "fi_freeinfo", &nm_host.freeinfo);
	find(library, "fi_dupinfo", &nm_host.dupinfo);
	find(library, "fi_fabric", &nm_host.fabric);
	find(library, "fi_strerror", &nm_host.strerror);
	find(library, "fi_log_enabled", &nm_host.log_enabled);
	find(library, "fi_log", &nm_host.log);
	nm_host.version = version();
}

/* Read an address in hexadecimal digits. */
static bool read_address(const char *path, struct nm_address *ret_address)
{
	uint8_t bytes[NM_ADDRESS_LEN];
	FILE *file = fopen(path, "re");
	size_t nr = 0;

	if (!file)
		return false;
	while (nr < sizeof(bytes) && fscanf(file, "%2hhx", &bytes[nr]) == 1)
		nr++;
	fclose(file);
	return nr == sizeof(bytes) && !nm_address_parse(bytes, nr, ret_address);
}

static void look_for_ranks(struct attacker *attacker, const char *directory)
{
	char pattern[4096];
	glob_t found;

	snprintf(pattern, sizeof(pattern), "%s/*/address-*", directory);
	if (glob(pattern, 0, NULL, &found))
		return;
	for (size_t i = attacker->nr_ranks; i < found.gl_pathc && i < RANKS_MAX; i++) {
		if (!read_address(found.gl_pathv[i], &attacker->ranks[i]))
			break;
		attacker->nr_ranks++;
		fi_av_insert(attacker->inner.av, attacker->ranks[i].inner, 1, &attacker->at[i], 0,
			     NULL);
	}
	globfree(&found);
}

static void raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static const struct attack *find_attack(const char *name)
{
	for (unsigned int i = 0; i < nr_inner_attacks; i++)
		if (!strcmp(inner_attacks[i].name, name))
			return &inner_attacks[i];
	for (unsigned int i = 0; i < nr_socket_attacks; i++)
		if (!strcmp(socket_attacks[i].name, name))
			return &socket_attacks[i];
	fail(name, "no such attack");
	return NULL;
}

static void list(const struct attack *attacks, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		printf("%s: %s\n", attacks[i].name, attacks[i].words);
}

/* One step of each attack against each rank. */
static void attack_all(struct attacker *attacker, const struct attack **attacks, uint64_t *counts,
		       unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++) {
		uint64_t before = attacker->done;
		unsigned int victim = (unsigned int)(attacker->nr_steps % attacker->nr_ranks);
		unsigned int shift = 1 + (unsigned int)(attacker->nr_steps / attacker->nr_ranks) %
						 (attacker->nr_ranks - 1);

		attacks[i]->step(attacker, victim, (victim + shift) % attacker->nr_ranks);
		counts[i] += attacker->done - before;
	}
	attacker->nr_steps++;
}

int main(int argc, char **argv)
{
	static struct attacker attacker;
	const struct attack *attacks[64];
	uint64_t counts[64] = {0}, end;
	unsigned int nr = 0;
	char stop[4096];

	if (argc == 2 && !strcmp(argv[1], "--list")) {
		list(inner_attacks, nr_inner_attacks);
		list(socket_attacks, nr_socket_attacks);
		return 0;
	}
	if (argc != 4)
		fail("usage", "net_attacks LIBFABRIC DIRECTORY NAME,NAME...");
	for (char *name = strtok(argv[3], ","); name && nr < 64; name = strtok(NULL, ","))
		attacks[nr++] = find_attack(name);
	signal(SIGPIPE, SIG_IGN);
	raise_limit();
	snprintf(stop, sizeof(stop), "%s/stop", argv[2]);
	open_libfabric(argv[1]);
	attacker.out = calloc(NR_OUT, sizeof(*attacker.out));
	memset(attacker.held, -1, sizeof(attacker.held));
	attacker_open(&attacker);
	printf("ready\n");
	fflush(stdout);
	end = nm_clock_ns() + LAST_S * NM_NS_PER_S;
	while (nm_clock_ns() < end && access(stop, F_OK)) {
		if (attacker.nr_ranks < RANKS_MAX && attacker.nr_steps % 64 == 0)
			look_for_ranks(&attacker, argv[2]);
		if (attacker.nr_ranks > 1)
			attack_all(&attacker, attacks, counts, nr);
		usleep(PAUSE_US);
	}
	printf("{\"done\": %llu, \"ranks\": %u", (unsigned long long)attacker.done,
	       attacker.nr_ranks);
	for (unsigned int i = 0; i < nr; i++)
		printf(", \"%s\": %llu", attacks[i]->name, (unsigned long long)counts[i]);
	printf("}\n");
	fflush(stdout);
	_exit(0);
}
