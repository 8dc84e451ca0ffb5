/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of srun, sbatch and salloc: what they are called, what a user may write, and what a
 * job gets in the end. Free of Slurm's types. Texts come from users: on a node they have passed
 * through the environment of a job, which is unchecked.
 */
#ifndef NM_SPANK_OPTIONS_H
#define NM_SPANK_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "spank/config.h"

/* As Slurm wants them: not const, and a usage of at most 75 bytes with the name. */
struct nm_spank_option_info {
	char *name;
	char *arginfo;
	char *usage;
};
extern struct nm_spank_option_info nm_spank_option_infos[NM_SPANK_NR_OPTIONS];

struct nm_spank_options {
	bool given[NM_SPANK_NR_OPTIONS];
	enum nm_spank_node node;
	uint64_t segment_bytes;
	char profile[NM_SPANK_WORD_MAX];
	unsigned int nr_vfs;
	char image[NM_SPANK_WORD_MAX];
	uint64_t vms, vcpus, memory_bytes;
};

/*
 * Take the argument of one option; the last of several counts. Returns 0, or -EINVAL with a reason
 * that names the option and what it may be.
 */
int nm_spank_options_take(struct nm_spank_options *options, enum nm_spank_option option,
			  const char *argument, struct nm_reason *ret_reason);

/* What the job gets: options before profile before defaults, within the limits of its partition. */
struct nm_spank_request {
	enum nm_spank_node node;
	uint64_t segment_bytes;
	uint64_t scratch_bytes;
	char mpi[NM_SPANK_WORD_MAX];
	char channels[NM_SPANK_WORD_MAX];
	unsigned int nr_vfs;		   /* 0 with machines */
	struct nm_spank_machines machines; /* if nm_spank_has_machines() */
};

/*
 * PARTITIONS: where the job runs or may run, names with commas between; NULL: not known, then
 * their rules are not applied. Returns 0, or -EINVAL with a reason for the user.
 */
int nm_spank_resolve(const struct nm_spank_options *options, const struct nm_spank_config *config,
		     const char *partitions, struct nm_spank_request *ret_request,
		     struct nm_reason *ret_reason);

#define NM_SPANK_REQUEST_LEN 512

/* The request in one line: alike exactly when the requests are. */
void nm_spank_request_format(const struct nm_spank_request *request,
			     char ret_text[NM_SPANK_REQUEST_LEN]);

#endif
