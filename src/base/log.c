/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int log_level = NM_LOG_WARN;
static _Atomic(nm_log_sink_fn) log_sink;

static const char *const level_names[] = {
	[NM_LOG_ERROR] = "error",
	[NM_LOG_WARN] = "warning",
	[NM_LOG_INFO] = "info",
	[NM_LOG_DEBUG] = "debug",
};

void nm_log_set_sink(nm_log_sink_fn sink)
{
	atomic_store(&log_sink, sink);
}

void nm_log_set_level(enum nm_log_level level)
{
	atomic_store(&log_level, level);
}

enum nm_log_level nm_log_get_level(void)
{
	return (enum nm_log_level)atomic_load(&log_level);
}

/* Peers choose some of the words that end up here (labels, reasons): a line stays one line. */
static void make_printable(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
}

void nm_log(enum nm_log_level level, const char *fmt, ...)
{
	nm_log_sink_fn sink = atomic_load(&log_sink);
	int saved_errno = errno;
	char line[600];
	int prefix;
	va_list args;
	size_t len;

	if ((int)level > atomic_load(&log_level) && !sink)
		return;
	prefix = snprintf(line, sizeof(line), "nearmetal: %s: ", level_names[level]);
	va_start(args, fmt);
	vsnprintf(line + prefix, sizeof(line) - (size_t)prefix - 1, fmt, args);
	va_end(args);
	make_printable(line);
	if (sink)
		sink(level, line + prefix);
	if ((int)level <= atomic_load(&log_level)) {
		len = strlen(line);
		line[len++] = '\n';
		/* One write(2), so that lines of several processes do not mix. */
		if (write(STDERR_FILENO, line, len) < 0)
			errno = saved_errno; /* no place left to report it */
	}
	errno = saved_errno;
}
