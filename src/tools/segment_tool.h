/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of nearmetal-segment. Each prints and returns the exit status. */
#ifndef NM_TOOLS_SEGMENT_TOOL_H
#define NM_TOOLS_SEGMENT_TOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "vmseg/layout.h"

struct segment_order {
	const char *path;
	uint64_t nr_parts, part_size;
	uint64_t lead;		/* bytes before the host page */
	const char *token_text; /* NULL: a random one; "-": a line of standard input */
};

int segment_create(const struct segment_order *order);
/* Print the seed's lines of a machine whose two devices these are. */
int segment_find(const char *own_path, const char *all_path);
int segment_show(const char *path, bool json);
/* Set the state of the own part, as CONFIG_PATH describes it. 4: endpoints have not left yet. */
int segment_ask(const char *config_path, enum nm_vmseg_state state);
/* The state of a part: its name, and its meaning if a machine is to leave. */
const char *segment_state_words(uint32_t state);

/* "nearmetal-segment: WHAT" and, where there is one, a line with what to do. Returns 1. */
int segment_failed(const char *hint, const char *fmt, ...)
	__attribute__((format(printf, 2, 3), cold));
/* 32 hexadecimal digits. */
void segment_format_token(const uint8_t token[NM_VMSEG_TOKEN_LEN],
			  char ret_text[2 * NM_VMSEG_TOKEN_LEN + 1]);

#endif
