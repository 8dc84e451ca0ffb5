/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts `nearmetal slurm launch` and `nearmetal slurm reclaim`, which make and remove the
 * containers of a job on this node, from Slurm's prolog and epilog.
 */
#ifndef NM_SPANK_LAUNCHER_H
#define NM_SPANK_LAUNCHER_H

#include <stdint.h>
#include <sys/types.h>

#include "spank/options.h"

/* Takes one line of what the program said, without its newline. */
typedef void (*nm_spank_say_fn)(const char *line);

/*
 * Run PROGRAM with ARGV (ARGV[0] is the program's name; NULL ends it) and nothing of our
 * environment but NODE and where Slurm's settings are, wait for its end, and hand on what it
 * writes. Returns its exit code; 127: it cannot be started; 128 + N: it died of signal N.
 */
int nm_spank_run(const char *program, char *const argv[], const char *node, nm_spank_say_fn say);

/* Arguments of the launcher about a job on this node, in addition to its options. */
struct nm_spank_place {
	uint32_t job;
	uid_t uid;
	const char *node;      /* as Slurm knows it */
	const char *partition; /* NULL: not known */
	const char *nodes;     /* all of the job's, as Slurm writes them */
	const char *key;       /* the file from which the keys of virtual machines are derived */
	const char *cloud;     /* the file with the settings of servers */
};

int nm_spank_launch(const char *program, const struct nm_spank_place *place,
		    const struct nm_spank_request *request, nm_spank_say_fn say);
int nm_spank_reclaim(const char *program, uint32_t job, const char *node, nm_spank_say_fn say);

#endif
