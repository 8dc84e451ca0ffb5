/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON to a stream, with commas in the right places. Nothing else. */
#ifndef NM_TOOLS_JSON_H
#define NM_TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct nm_json {
	FILE *out;
	bool need_comma;
};

/* KEY is NULL inside a list and at the top. */
void nm_json_open(struct nm_json *json, const char *key, char bracket);
void nm_json_close(struct nm_json *json, char bracket);
void nm_json_text(struct nm_json *json, const char *key, const char *value);
void nm_json_number(struct nm_json *json, const char *key, uint64_t value);
void nm_json_bool(struct nm_json *json, const char *key, bool value);

#endif
