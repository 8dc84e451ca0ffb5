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
#define NM_SPANK_SHARES_MAX 192
#define NM_SPANK_CONFIG_MAX_BYTES 65536

enum nm_spank_node { NM_SPANK_NONE, NM_SPANK_CONTAINER, NM_SPANK_VM, NM_SPANK_OPENSTACK };

/* What users may give, and a partition forbid. */
enum nm_spank_option {
	NM_SPANK_OPTION_NODE,
	NM_SPANK_OPTION_SEGMENT,
	NM_SPANK_OPTION_PROFILE,
	NM_SPANK_OPTION_VF,
	NM_SPANK_OPTION_IMAGE,
	NM_SPANK_OPTION_VMS,
	NM_SPANK_OPTION_VCPUS,
	NM_SPANK_OPTION_MEMORY,
	NM_SPANK_NR_OPTIONS,
};

/* One bit per member of nm_spank_settings that has been said. */
enum nm_spank_said {
	NM_SPANK_SAID_NODE = 1,
	NM_SPANK_SAID_SEGMENT = 2,
	NM_SPANK_SAID_SCRATCH = 4,
	NM_SPANK_SAID_MPI = 8,
	NM_SPANK_SAID_CHANNELS = 16,
	NM_SPANK_SAID_IMAGE = 32,
	NM_SPANK_SAID_VMS = 64,
	NM_SPANK_SAID_VCPUS = 128,
	NM_SPANK_SAID_MEMORY = 256,
	NM_SPANK_SAID_SHARES = 512,
	NM_SPANK_SAID_ACCEL = 1024,
	NM_SPANK_SAID_VF = 2048,
};

/* The virtual machines of a job on one node, all alike. */
struct nm_spank_machines {
	char image[NM_SPANK_WORD_MAX];
	uint64_t nr;	/* on each node; or servers of the job */
	uint64_t vcpus; /* of each */
	uint64_t memory_bytes;
	char shares[NM_SPANK_SHARES_MAX]; /* directories that they see, with ':' between */
	char accel[NM_SPANK_WORD_MAX];
};

struct nm_spank_settings {
	unsigned int said;
	enum nm_spank_node node;
	uint64_t segment_bytes;
	uint64_t scratch_bytes;
	char mpi[NM_SPANK_WORD_MAX];
	char channels[NM_SPANK_WORD_MAX];
	unsigned int nr_vfs;
	struct nm_spank_machines machines;
};

/* The most that users may ask for. */
struct nm_spank_limits {
	uint64_t segment_bytes;
	uint64_t vms;	  /* 0: the site gives no virtual machines */
	uint64_t servers; /* of a job; 0: the site gives no servers of a cloud */
	uint64_t vcpus;
	uint64_t memory_bytes;
	unsigned int vfs; /* of a job on each node */
};

/* What is narrower in one partition of Slurm than elsewhere. */
struct nm_spank_partition {
	char name[NM_SPANK_WORD_MAX];
	unsigned int forbidden;	    /* a bit per option */
	uint64_t max_segment_bytes; /* 0: as elsewhere */
	bool limits_vfs;
	unsigned int max_vfs;
};

struct nm_spank_config {
	struct nm_spank_settings defaults;
	struct nm_spank_limits limits;
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

/* "none", "container", "vm" or "openstack" into *ret_node. False: it is none of them. */
bool nm_spank_node_parse(const char *word, enum nm_spank_node *ret_node);
const char *nm_spank_node_name(enum nm_spank_node node);

/* Whether tasks run in machines, of the node or of a cloud. */
static inline bool nm_spank_has_machines(enum nm_spank_node node)
{
	return node == NM_SPANK_VM || node == NM_SPANK_OPENSTACK;
}

/* A number of VFs. False: it is none. */
bool nm_spank_vfs_parse(const char *text, unsigned int *ret_nr);

/* A size in whole bytes that a tmpfs may have. False: it is none. */
bool nm_spank_size_parse(const char *text, uint64_t *ret_bytes);

/* What virtual machines may be given. False: it is nothing of the kind. */
bool nm_spank_count_parse(const char *text, uint64_t *ret_count);
bool nm_spank_memory_parse(const char *text, uint64_t *ret_bytes);
bool nm_spank_is_name(const char *word);

#endif
