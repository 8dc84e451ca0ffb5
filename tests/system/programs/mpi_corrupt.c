// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into an MPI program: spoils one message, so that a test can see whether the program
 * notices. SPOIL says how (flip, shorten, retag, drop, twice, hang), SPOIL_AT which of the process's
 * non-blocking sends of at least two contiguous bytes.
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int nr_sends;

static int is_due(int count, MPI_Datatype type)
{
	const char *at = getenv("SPOIL_AT");

	return at && type == MPI_BYTE && count >= 2 && ++nr_sends == atoi(at);
}

int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
	      MPI_Request *request)
{
	const char *how = getenv("SPOIL");

	if (!how || !is_due(count, type))
		return PMPI_Isend(buffer, count, type, dest, tag, comm, request);
	if (!strcmp(how, "flip"))
		((char *)(size_t)buffer)[count / 2] ^= 1;
	else if (!strcmp(how, "shorten"))
		count--;
	else if (!strcmp(how, "retag"))
		tag = tag ? 0 : 1;
	else if (!strcmp(how, "twice"))
		PMPI_Send(buffer, count, type, dest, tag, comm);
	while (!strcmp(how, "hang"))
		pause();
	if (strcmp(how, "drop"))
		return PMPI_Isend(buffer, count, type, dest, tag, comm, request);
	*request = MPI_REQUEST_NULL;
	return MPI_SUCCESS;
}
