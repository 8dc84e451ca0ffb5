/* SPDX-License-Identifier: Apache-2.0 */
/* The guest unit's file: what is taken is within its limits, and every refusal names a line. */
#include <stdlib.h>
#include <string.h>

#include "target.h"
#include "vmseg/attach.h"

static void expect(bool condition)
{
	if (!condition)
		abort();
}

static void expect_path(const char *path, bool may_be_empty)
{
	expect(memchr(path, 0, NM_VMSEG_PATH_MAX) != NULL);
	expect(path[0] == '/' || (may_be_empty && !path[0]));
	for (; *path; path++)
		expect((unsigned char)*path >= 0x20);
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct nm_vmseg_config config;
	struct nm_reason why = {""};

	if (nm_vmseg_config_parse((const char *)bytes, len, &config, &why)) {
		expect(!strncmp(why.text, "line ", 5));
		return;
	}
	expect(config.device == NM_VMSEG_DAX || config.device == NM_VMSEG_IVSHMEM);
	expect_path(config.own, config.device == NM_VMSEG_DAX);
	expect_path(config.all, false);
	expect_path(config.lock, false);
	expect(config.part < NM_VMSEG_MAX_PARTS);
	expect(config.numa >= -1 && config.vcpu_numa >= -1);
}
