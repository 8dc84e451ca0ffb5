/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/json.h"

#include <inttypes.h>

/* Every byte that is not printable ASCII is escaped: the input may be any file name. */
static void write_string(struct nm_json *json, const char *text)
{
	const unsigned char *p;

	fputc('"', json->out);
	for (p = (const unsigned char *)text; *p; p++) {
		if (*p == '"' || *p == '\\')
			fprintf(json->out, "\\%c", *p);
		else if (*p < 0x20 || *p > 0x7e)
			fprintf(json->out, "\\u%04x", *p);
		else
			fputc(*p, json->out);
	}
	fputc('"', json->out);
}

static void begin(struct nm_json *json, const char *key)
{
	if (json->need_comma)
		fputs(", ", json->out);
	json->need_comma = true;
	if (key) {
		write_string(json, key);
		fputs(": ", json->out);
	}
}

void nm_json_open(struct nm_json *json, const char *key, char bracket)
{
	begin(json, key);
	fputc(bracket, json->out);
	json->need_comma = false;
}

void nm_json_close(struct nm_json *json, char bracket)
{
	fputc(bracket, json->out);
	json->need_comma = true;
}

void nm_json_text(struct nm_json *json, const char *key, const char *value)
{
	begin(json, key);
	write_string(json, value);
}

void nm_json_number(struct nm_json *json, const char *key, uint64_t value)
{
	begin(json, key);
	fprintf(json->out, "%" PRIu64, value);
}

void nm_json_bool(struct nm_json *json, const char *key, bool value)
{
	begin(json, key);
	fputs(value ? "true" : "false", json->out);
}
