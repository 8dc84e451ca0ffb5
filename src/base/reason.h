/* SPDX-License-Identifier: Apache-2.0 */
/* Why a choice or a refusal was made, in words a person can act on. */
#ifndef NM_BASE_REASON_H
#define NM_BASE_REASON_H

#include "base/compiler.h"

/* Always NUL-terminated; longer texts are cut. */
struct nm_reason {
	char text[192];
};

/* REASON may be NULL: nobody wants to know. Keeps errno. */
void nm_reason_set(struct nm_reason *reason, const char *fmt, ...) NM_PRINTF(2, 3);

#endif
