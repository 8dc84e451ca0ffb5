/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of nearmetal-info. Each prints to stdout and returns the exit status. */
#ifndef NM_TOOLS_INFO_H
#define NM_TOOLS_INFO_H

#include <stdbool.h>

#include "tools/json.h"

/* What this machine offers and what is set, for a person or as JSON. */
int nm_info_facts(bool json);
/* Parts of nm_info_facts(): this machine as a tuning file names it, and the file in force. */
void nm_info_tuning_json(struct nm_json *json);
void nm_info_tuning_words(void);
/* Parts of nm_info_facts(): the memory shared with other virtual machines. Find first. */
void nm_info_find_segment(void);
void nm_info_segment_json(struct nm_json *json);
void nm_info_segment_words(void);
/* What the C code and other programs agree on: layout, knobs, addresses. Always JSON. */
int nm_info_abi(void);
/* Meet the endpoints whose addresses come in on stdin, one JSON line each. */
int nm_info_meet(void);

#endif
