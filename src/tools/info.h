/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of nearmetal-info. Each prints to stdout and returns the exit status. */
#ifndef NM_TOOLS_INFO_H
#define NM_TOOLS_INFO_H

#include <stdbool.h>

#include "tools/json.h"

/* Abilities and settings of this machine, as text or as JSON. */
int nm_info_machine(bool json);
/* Parts of nm_info_machine(): the name of this machine in a tuning file, and the
 * file in use. */
void nm_info_tuning_json(struct nm_json *json);
void nm_info_tuning_text(void);
/* Parts of nm_info_machine(): the memory shared with other virtual machines. Find first. */
void nm_info_vmseg_find(void);
void nm_info_vmseg_json(struct nm_json *json);
void nm_info_vmseg_text(void);
/* The contract between the C code and other programs: layout, knobs, addresses. Always JSON. */
int nm_info_abi(void);
/* Connect to each address that stdin has; print its channel as one line of JSON. */
int nm_info_probe(void);

#endif
