/* SPDX-License-Identifier: Apache-2.0 */
/* Why a choice or a refusal was made, in words a person can act on. */
#ifndef NM_BASE_REASON_H
#define NM_BASE_REASON_H

#include <stdarg.h>

#include "base/compiler.h"

/* Always NUL-terminated; what is longer is cut, and ends in "...". */
struct nm_reason {
	char text[192];
};

/* REASON may be NULL: no reason is wanted. Keeps errno. */
void nm_reason_set(struct nm_reason *reason, const char *fmt, ...) NM_PRINTF(2, 3);
void nm_reason_vset(struct nm_reason *reason, const char *fmt, va_list args) NM_PRINTF(2, 0);
/* Add to what it says. */
void nm_reason_add(struct nm_reason *reason, const char *fmt, ...) NM_PRINTF(2, 3);

#endif
