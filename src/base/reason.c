/* SPDX-License-Identifier: Apache-2.0 */
#include "base/reason.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

void nm_reason_set(struct nm_reason *reason, const char *fmt, ...)
{
	int saved_errno = errno;
	va_list args;

	if (!reason)
		return;
	va_start(args, fmt);
	vsnprintf(reason->text, sizeof(reason->text), fmt, args);
	va_end(args);
	errno = saved_errno;
}
