/* SPDX-License-Identifier: Apache-2.0 */
/* The memory shared with other virtual machines, as this machine finds it. */
#include <errno.h>
#include <stdio.h>

#include "base/params.h"
#include "tools/info.h"
#include "vmseg/attach.h"

static struct nm_vmseg_facts found;
static struct nm_reason words;
static int result;

void nm_info_vmseg_find(void)
{
	struct nm_vmseg *segment = NULL;
	struct nm_vmseg_config config;

	result = nm_vmseg_config_load(nm_params()->segment, &config, &words);
	if (!result)
		result = nm_vmseg_attach(&config, &segment, &words);
	if (result)
		return;
	found = *nm_vmseg_facts(segment);
	nm_reason_set(&words, "part %u of %u, %llu bytes; %s", found.part, found.nr_parts,
		      (unsigned long long)found.part_size, found.mapping.text);
	nm_vmseg_detach(segment);
}

void nm_info_vmseg_json(struct nm_json *json)
{
	nm_json_open(json, "segment", '{');
	nm_json_bool(json, "usable", !result);
	nm_json_text(json, "reason", words.text);
	if (!result) {
		nm_json_number(json, "part", found.part);
		nm_json_number(json, "nr_parts", found.nr_parts);
		nm_json_number(json, "part_size", found.part_size);
		nm_json_text(json, "integrity", found.enforced ? "enforced" : "by convention");
		nm_json_text(json, "integrity_reason", found.integrity_why.text);
		nm_json_text(json, "mapping", found.mapping.text);
	}
	nm_json_close(json, '}');
}

void nm_info_vmseg_text(void)
{
	printf("  segment            %-3s %s\n", result ? "no" : "yes", words.text);
	if (!result)
		printf("  its integrity      %-3s %s: %s\n", "",
		       found.enforced ? "enforced" : "by convention", found.integrity_why.text);
}
