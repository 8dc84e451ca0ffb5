/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning files: what is taken is within its limits, and every refusal names a line. */
#include <stdlib.h>
#include <string.h>

#include "target.h"
#include "transport/tuning.h"

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct nm_tuning tuning;
	struct nm_reason why = {""};
	bool any = false;

	if (nm_tuning_parse((const char *)bytes, len, &tuning, &why)) {
		if (strncmp(why.text, "line ", 5) != 0)
			abort();
		return;
	}
	for (int c = 0; c < NM_SELECT_NR_CLASSES; c++)
		for (int l = 0; l < NM_SELECT_NR_LOADS; l++)
			for (int p = 0; p < NM_NR_PROTOCOLS; p++) {
				if (tuning.rates[c][l][p] > NM_TUNING_MBPS_MAX)
					abort();
				any |= tuning.rates[c][l][p] != 0;
			}
	if (!any || !tuning.machine.cpu[0] || !memchr(tuning.date, 0, sizeof(tuning.date)))
		abort();
	(void)nm_tuning_check(&tuning, &tuning.machine, &why);
}
