/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /etc/nearmetal/slurm.toml: what the site gives to jobs that do not ask, and what it allows at most.
 * The plugin is its only reader: on the machine where jobs are submitted, and again on every node.
 *
 * A small part of TOML: tables [defaults], [limits], [profiles.NAME] and [partitions.NAME]; keys
 * with a string in double quotes and without backslashes; comments. Sizes are strings such as "64M".
 */
#ifndef NM_SPANK_CONFIG_H
#define NM_SPANK_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/reason.h"

#define NM_SPANK_MAX_PROFILES 16
#define NM_SPANK_MAX_PARTITIONS 16
#define NM_SPANK_WORD_MAX 32
#define NM_SPANK_CONFIG_MAX_BYTES 65536

enum nm_spank_node { NM_SPANK_NONE, NM_SPANK_CONTAINER };

/* What users may give, and a partition forbid. */
enum nm_spank_option {
	NM_SPANK_OPTION_NODE,
	NM_SPANK_OPTION_SEGMENT,
	NM_SPANK_OPTION_PROFILE,
	NM_SPANK_NR_OPTIONS,
};

/* One bit per member of nm_spank_settings that has been said. */
enum nm_spank_said {
	NM_SPANK_SAID_NODE = 1,
	NM_SPANK_SAID_SEGMENT = 2,
	NM_SPANK_SAID_SCRATCH = 4,
	NM_SPANK_SAID_MPI = 8,
	NM_SPANK_SAID_CHANNELS = 16,
};

struct nm_spank_settings {
	unsigned int said;
	enum nm_spank_node node;
	uint64_t segment_bytes;
	uint64_t scratch_bytes;
	char mpi[NM_SPANK_WORD_MAX];
	char channels[NM_SPANK_WORD_MAX];
};

/* What is narrower in one partition of Slurm than elsewhere. */
struct nm_spank_partition {
	char name[NM_SPANK_WORD_MAX];
	unsigned int forbidden;	    /* a bit per option */
	uint64_t max_segment_bytes; /* 0: as elsewhere */
};

struct nm_spank_config {
	struct nm_spank_settings defaults;
	uint64_t max_segment_bytes;
	unsigned int nr_profiles;
	struct {
		char name[NM_SPANK_WORD_MAX];
		struct nm_spank_settings settings;
	} profiles[NM_SPANK_MAX_PROFILES];
	unsigned int nr_partitions;
	struct nm_spank_partition partitions[NM_SPANK_MAX_PARTITIONS];
};

/* What holds where there is no file. */
void nm_spank_config_init(struct nm_spank_config *ret_config);

/* Returns 0, or -EINVAL with a reason that names the line. */
int nm_spank_config_parse(const char *text, size_t len, struct nm_spank_config *ret_config,
			  struct nm_reason *ret_reason);

/*
 * Read PATH. No file there: the built-in settings. Returns 0, or -errno with a reason that names
 * file and line.
 */
int nm_spank_config_load(const char *path, struct nm_spank_config *ret_config,
			 struct nm_reason *ret_reason);

/* "none" or "container" into *ret_node. False: it is neither. */
bool nm_spank_node_parse(const char *word, enum nm_spank_node *ret_node);
const char *nm_spank_node_name(enum nm_spank_node node);

/* A size in whole bytes that a tmpfs may have. False: it is none. */
bool nm_spank_size_parse(const char *text, uint64_t *ret_bytes);

#endif
