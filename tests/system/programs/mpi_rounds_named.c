// SPDX-License-Identifier: Apache-2.0
/*
 * mpi_rounds.c, of which each rank shows its address to an attacker: in hexadecimal digits, in the
 * file address-RANK of its rundir. A program cannot ask its MPI for the address, so it looks for it
 * in its own memory: an address of version 2 that names a port on which this process listens.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "mpi_rounds.c"

enum { ADDRESS = 64, INNER_AT = 16, INNER_LEN = 22, FDS = 256 };

static int listens_at(const unsigned char *inner)
{
	struct sockaddr_in wanted, found;
	socklen_t len;

	memcpy(&wanted, inner, sizeof(wanted));
	for (int fd = 0; fd < FDS; fd++) {
		int listens = 0;

		len = sizeof(listens);
		if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens)
			continue;
		len = sizeof(found);
		if (!getsockname(fd, (struct sockaddr *)&found, &len) &&
		    found.sin_family == AF_INET && found.sin_port == wanted.sin_port)
			return 1;
	}
	return 0;
}

static int is_own_address(const unsigned char *at)
{
	static const unsigned char zeros[8], ipv4[2] = {AF_INET};

	return at[0] == 2 && at[1] == INNER_LEN && !memcmp(at + INNER_AT, ipv4, sizeof(ipv4)) &&
	       !memcmp(at + INNER_AT + 8, zeros, sizeof(zeros)) &&
	       memcmp(at + INNER_AT + 20, zeros, 2) && listens_at(at + INNER_AT);
}

static void write_address(int rank, const unsigned char *address)
{
	const char *rundir = getenv("NEARMETAL_RUNDIR");
	char path[4096], fresh[4096];
	FILE *file;

	snprintf(path, sizeof(path), "%s/address-%d", rundir ? rundir : ".", rank);
	snprintf(fresh, sizeof(fresh), "%s/fresh-%d", rundir ? rundir : ".", rank);
	file = fopen(fresh, "w");
	if (!file)
		return;
	for (int i = 0; i < ADDRESS; i++)
		fprintf(file, "%02x", address[i]);
	fclose(file);
	rename(fresh, path);
}

/* Memory is read by a system call: a mapping may have gone meanwhile. */
static int search(int rank, unsigned long begin, unsigned long end)
{
	static unsigned char bytes[(1 << 20) + ADDRESS];

	for (; begin < end; begin += 1 << 20) {
		size_t want = end - begin < sizeof(bytes) ? end - begin : sizeof(bytes);
		struct iovec local = {bytes, want}, remote = {(void *)begin, want};
		ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);

		for (ssize_t i = 0; i + ADDRESS <= got; i++) {
			if (!is_own_address(bytes + i))
				continue;
			write_address(rank, bytes + i);
			return 1;
		}
	}
	return 0;
}

int MPI_Init(int *argc, char ***argv)
{
	int err = PMPI_Init(argc, argv), rank;
	unsigned long begin, end;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx rw-p", &begin, &end) == 2 && strstr(line, " rw-p ") &&
		    end - begin < 256UL << 20 && search(rank, begin, end))
			break;
	if (maps)
		fclose(maps);
	return err;
}
