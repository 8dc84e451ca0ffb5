/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `nearmetal tune` has measured on this machine: the rates that select.c starts from. A small
 * text file, one thing per line, words separated by single spaces:
 *
 *   nearmetal-tuning 1            the format
 *   cpu TEXT                      model name as /proc/cpuinfo has it
 *   kernel TEXT                   release
 *   cache LEVEL BYTES             of the first core; 2 and 3 where there are some
 *   date TEXT
 *   placement near|far            what follows was seen with the cores placed so; near goes first
 *   rate CLASS LOAD PROTOCOL MB/s CLASS: 64K 256K 1M more; LOAD: lone stream; PROTOCOL: pool past
 *                                 pull both
 *   evidence TEXT                 what the rates were made from; not looked at
 *   end                           the last line; without it the file is cut off
 *
 * A file that is not exactly so is refused as a whole, in words with the line.
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
/* 0 is "not measured"; beyond this no memory is copied. */
#define NM_TUNING_MBPS_MAX 10000000

struct nm_tuning_machine {
	char cpu[NM_TUNING_TEXT_MAX];
	char kernel[NM_TUNING_TEXT_MAX];
	uint64_t caches[4]; /* bytes, by level; 0: not known */
};

struct nm_tuning {
	struct nm_tuning_machine machine;
	char date[NM_TUNING_TEXT_MAX];
	bool is_near; /* where the rates were measured */
	uint32_t rates[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS][NM_NR_PROTOCOLS]; /* MB/s */
};

/* Read LEN bytes, which need not end with NUL. Pure. 0, or -EBADMSG with "line N: ...". */
int nm_tuning_parse(const char *text, size_t len, struct nm_tuning *ret_tuning,
		    struct nm_reason *ret_reason);
/* Was it measured on this machine? 0, or -ESTALE with what differs. Pure. */
int nm_tuning_check(const struct nm_tuning *tuning, const struct nm_tuning_machine *here,
		    struct nm_reason *ret_reason);
/* What this machine is. What cannot be found out stays empty, and fits everything. */
void nm_tuning_find_machine(struct nm_tuning_machine *ret_machine);
/*
 * Read, parse and check PATH. 0; -ENOENT: no such file; else -errno, all with a reason. The file
 * may be anything: at most NM_TUNING_MAX_BYTES are read, and a pipe is not waited for.
 */
int nm_tuning_load(const char *path, const struct nm_tuning_machine *here,
		   struct nm_tuning *ret_tuning, struct nm_reason *ret_reason);
/*
 * The file that counts here: the knob's, or the first there is. 0 and its path; -ENOENT: none, and
 * none was named; -EBADF: the named one is not there; else -errno with the path and a reason.
 */
int nm_tuning_find(const struct nm_params *params, const struct nm_tuning_machine *here,
		   char ret_path[NM_TUNING_PATH_MAX], struct nm_tuning *ret_tuning,
		   struct nm_reason *ret_reason);
/* The words of the file for a class of sizes, a load and a protocol; "" for EAGER. */
const char *nm_tuning_class_name(int class);
const char *nm_tuning_load_name(int load);
const char *nm_tuning_protocol_name(int protocol);

#endif
