/* SPDX-License-Identifier: Apache-2.0 */
/* The states of the own part for a machine that is to be moved (docs/design/migration.md). */
#include <errno.h>
#include <stdio.h>

#include "tools/segment_tool.h"
#include "vmseg/attach.h"
#include "vmseg/check.h"

#define EXIT_NOT_YET 4

const char *segment_state_words(uint32_t state)
{
	switch (state) {
	case NM_VMSEG_QUIESCE:
		return "quiesce (asked to leave the segment)";
	case NM_VMSEG_FROZEN:
		return "frozen (has left the segment)";
	default:
		return nm_vmseg_state_name(state);
	}
}

int segment_ask(const char *config_path, enum nm_vmseg_state state)
{
	struct nm_vmseg_config config;
	struct nm_vmseg *segment;
	struct nm_reason why;
	int err;

	if (nm_vmseg_config_load(config_path, &config, &why))
		return segment_failed("in a guest, give /run/nearmetal/segment.conf", "%s",
				      why.text);
	err = nm_vmseg_attach(&config, &segment, &why);
	if (err)
		return segment_failed(NULL, "%s", why.text);
	err = nm_vmseg_ask(segment, state, &why);
	nm_vmseg_detach(segment);
	if (!err) {
		printf("part %u: %s\n", config.part, segment_state_words(state));
		return fflush(stdout) ? 1 : 0;
	}
	if (err == -EBUSY) {
		segment_failed("try again when they have left, or give up with `run`", "%s",
			       why.text);
		return EXIT_NOT_YET;
	}
	return segment_failed(err == -EAGAIN ? "try again" : NULL, "%s", why.text);
}
