/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine is to a tuning file, and which one counts. */
#include "transport/tuning.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/info.h"
#include "tools/json.h"

struct found {
	struct nm_tuning_machine here;
	struct nm_tuning tuning;
	struct nm_reason words;
	char path[NM_TUNING_PATH_MAX];
	bool usable;
};

static void find(struct found *ret_found)
{
	int err;

	memset(ret_found, 0, sizeof(*ret_found));
	nm_tuning_find_machine(&ret_found->here);
	err = nm_tuning_find(nm_params(), &ret_found->here, ret_found->path, &ret_found->tuning,
			     &ret_found->words);
	ret_found->usable = !err;
	if (!err)
		nm_reason_set(&ret_found->words, "measured %s with the cores %s",
			      ret_found->tuning.date, ret_found->tuning.is_near ? "near" : "far");
}

static void print_rates(struct nm_json *json, const struct nm_tuning *tuning)
{
	for (int c = 0; c < NM_SELECT_NR_CLASSES; c++)
		for (int l = 0; l < NM_SELECT_NR_LOADS; l++)
			for (int p = 0; p < NM_NR_PROTOCOLS; p++) {
				if (!tuning->rates[c][l][p])
					continue;
				nm_json_open(json, NULL, '{');
				nm_json_text(json, "class", nm_tuning_class_name(c));
				nm_json_text(json, "load", nm_tuning_load_name(l));
				nm_json_text(json, "protocol", nm_tuning_protocol_name(p));
				nm_json_number(json, "mbps", tuning->rates[c][l][p]);
				nm_json_close(json, '}');
			}
}

void nm_info_tuning_json(struct nm_json *json)
{
	struct found found;
	char level[2] = "1";

	find(&found);
	nm_json_open(json, "machine", '{');
	nm_json_text(json, "cpu", found.here.cpu);
	nm_json_text(json, "kernel", found.here.kernel);
	nm_json_open(json, "caches", '{');
	for (; level[0] <= '3'; level[0]++)
		nm_json_number(json, level, found.here.caches[level[0] - '0']);
	nm_json_close(json, '}');
	nm_json_close(json, '}');
	nm_json_open(json, "tuning", '{');
	nm_json_text(json, "path", found.path);
	nm_json_bool(json, "usable", found.usable);
	nm_json_text(json, "reason", found.words.text);
	nm_json_open(json, "rates", '[');
	if (found.usable)
		print_rates(json, &found.tuning);
	nm_json_close(json, ']');
	nm_json_close(json, '}');
}

void nm_info_tuning_text(void)
{
	struct found found;

	find(&found);
	printf("\ntuning (nearmetal tune)\n  %s%s%s\n", found.path, found.path[0] ? ": " : "",
	       found.words.text);
}
