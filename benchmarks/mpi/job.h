/* SPDX-License-Identifier: Apache-2.0 */
/* What the MPI programs share: who runs where, failing loudly, the head and the end of the output. */
#ifndef NM_BENCH_JOB_H
#define NM_BENCH_JOB_H

#include <mpi.h>
#include <sched.h>
#include <stdarg.h>
#include <unistd.h>

#include "sampling.h"

#define JOB_PLACE_MAX 128

struct job {
	int rank;
	int nr_ranks;
};

/* One line on stderr, then the end of the whole job. */
__attribute__((noreturn, format(printf, 2, 3))) static inline void job_fail(const struct job *job,
									    const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "FAILED rank %d: %s\n", job->rank, text);
	fflush(stderr);
	MPI_Abort(MPI_COMM_WORLD, 1);
	_exit(1);
}

/* Asked for help: rank 0 prints USAGE and the job ends well. Collective. */
static inline void job_help(int argc, char **argv, const char *usage)
{
	int rank;

	if (argc != 2 || (strcmp(argv[1], "-h") && strcmp(argv[1], "--help")))
		return;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (!rank)
		fputs(usage, stdout);
	MPI_Finalize();
	exit(0);
}

/* "host cpus 0,2": where this process runs. */
static inline void job_place(char ret_place[JOB_PLACE_MAX])
{
	char host[64] = "?";
	cpu_set_t set;
	int cpu, used;

	gethostname(host, sizeof(host) - 1);
	used = snprintf(ret_place, JOB_PLACE_MAX, "%s cpus", host);
	if (sched_getaffinity(0, sizeof(set), &set))
		return;
	for (cpu = 0; cpu < CPU_SETSIZE && used < JOB_PLACE_MAX - 8; cpu++)
		if (CPU_ISSET(cpu, &set))
			used += snprintf(ret_place + used, (size_t)(JOB_PLACE_MAX - used), "%c%d",
					 ret_place[used - 1] == 's' ? ' ' : ',', cpu);
}

/* Prints "# host RANK PLACE" for every rank, on rank 0. Collective. */
static inline void job_print_places(const struct job *job)
{
	char place[JOB_PLACE_MAX];
	char *all = job->rank ? NULL : malloc((size_t)job->nr_ranks * JOB_PLACE_MAX);
	int i;

	memset(place, 0, sizeof(place));
	job_place(place);
	MPI_Gather(place, JOB_PLACE_MAX, MPI_CHAR, all, JOB_PLACE_MAX, MPI_CHAR, 0, MPI_COMM_WORLD);
	for (i = 0; all && i < job->nr_ranks; i++)
		printf("# host %d %s\n", i, all + (size_t)i * JOB_PLACE_MAX);
	free(all);
}

/* Prints the head of the output on rank 0. Collective. */
static inline void job_begin(const struct job *job, const char *program)
{
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;

	MPI_Get_library_version(library, &length);
	library[strcspn(library, "\n")] = '\0';
	if (!job->rank)
		printf("# nearmetal-bench 1 %s\n# ranks %d\n# library %s\n", program, job->nr_ranks,
		       library);
	job_print_places(job);
}

static inline void job_end(const struct job *job, const char *program)
{
	if (!job->rank) {
		printf("# done %s\n", program);
		fflush(stdout);
	}
}

#endif
