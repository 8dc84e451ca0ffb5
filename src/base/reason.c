/* SPDX-License-Identifier: Apache-2.0 */
#include "base/reason.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CUT "..."

/* Write from USED on. */
static NM_PRINTF(3, 0) void put(struct nm_reason *reason, size_t used, const char *fmt,
				va_list args)
{
	const size_t room = sizeof(reason->text) - used;
	const size_t mark = sizeof(reason->text) - sizeof(CUT);
	int saved_errno = errno;
	int len = vsnprintf(reason->text + used, room, fmt, args);

	if (len >= 0 && (size_t)len >= room) {
		size_t at = mark;

		/* Not within a letter of several bytes. */
		while (at > 0 && ((unsigned char)reason->text[at] & 0xc0) == 0x80)
			at--;
		memcpy(reason->text + at, CUT, sizeof(CUT));
	}
	errno = saved_errno;
}

void nm_reason_vset(struct nm_reason *reason, const char *fmt, va_list args)
{
	if (reason)
		put(reason, 0, fmt, args);
}

void nm_reason_set(struct nm_reason *reason, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	nm_reason_vset(reason, fmt, args);
	va_end(args);
}

void nm_reason_add(struct nm_reason *reason, const char *fmt, ...)
{
	va_list args;

	if (!reason)
		return;
	va_start(args, fmt);
	put(reason, strlen(reason->text), fmt, args);
	va_end(args);
}
