/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measurements of `nearmetal tune` on this machine: the initial rates for select.c. A small
 * text file, one thing per line, words separated by single spaces:
 *
 *   nearmetal-tuning 1            the format
 *   cpu TEXT                      model name from /proc/cpuinfo
 *   kernel TEXT                   release
 *   cache LEVEL BYTES             of the first core; 2 and 3 if they exist
 *   date TEXT
 *   placement near|far            placement of the cores for the next lines; near goes first
 *   rate CLASS LOAD PROTOCOL MB/s CLASS: 64K 256K 1M more; LOAD: lone stream; PROTOCOL: pool past
 *                                 pull both
 *   evidence TEXT                 origin of the rates; ignored
 *   end                           the last line; without it the file is incomplete
 *
 * A file with any deviation is refused as a whole, with a reason that names the line.
 */
#ifndef NM_TRANSPORT_TUNING_H
#define NM_TRANSPORT_TUNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/params.h"
#include "base/reason.h"
#include "transport/select.h"

#define NM_TUNING_VERSION 1
#define NM_TUNING_MAX_BYTES 65536
#define NM_TUNING_TEXT_MAX 128
#define NM_TUNING_PATH_MAX 512
/* 0 means "not measured"; no memory copy is faster than this. */
#define NM_TUNING_MBPS_MAX 10000000

struct nm_tuning_machine {
	char cpu[NM_TUNING_TEXT_MAX];
	char kernel[NM_TUNING_TEXT_MAX];
	uint64_t caches[4]; /* bytes, by level; 0: unknown */
};

struct nm_tuning {
	struct nm_tuning_machine machine;
	char date[NM_TUNING_TEXT_MAX];
	bool is_near; /* placement of the measurement */
	uint32_t rates[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS][NM_NR_PROTOCOLS]; /* MB/s */
};

/* Parse LEN bytes, which need not end with NUL. Pure. 0, or -EBADMSG with "line N: ...". */
int nm_tuning_parse(const char *text, size_t len, struct nm_tuning *ret_tuning,
		    struct nm_reason *ret_reason);
/* Check that it was measured on this machine. 0, or -ESTALE with the difference. Pure. */
int nm_tuning_check(const struct nm_tuning *tuning, const struct nm_tuning_machine *here,
		    struct nm_reason *ret_reason);
/* Describe this machine. Unknown values stay empty and match everything. */
void nm_tuning_find_machine(struct nm_tuning_machine *ret_machine);
/*
 * Read, parse and check PATH. 0; -ENOENT: no such file; else -errno, all with a reason. The file
 * may be anything: reads at most NM_TUNING_MAX_BYTES, and never waits for a pipe.
 */
int nm_tuning_load(const char *path, const struct nm_tuning_machine *here,
		   struct nm_tuning *ret_tuning, struct nm_reason *ret_reason);
/*
 * Find the file to use: the knob's, or the first that exists. 0 and its path; -ENOENT: none, and
 * the knob is not set; -EBADF: the knob's file is missing; else -errno with path and reason.
 */
int nm_tuning_find(const struct nm_params *params, const struct nm_tuning_machine *here,
		   char ret_path[NM_TUNING_PATH_MAX], struct nm_tuning *ret_tuning,
		   struct nm_reason *ret_reason);
/* The names in the file for a class of sizes, a load and a protocol; "" for EAGER. */
const char *nm_tuning_class_name(int class);
const char *nm_tuning_load_name(int load);
const char *nm_tuning_protocol_name(int protocol);

#endif
