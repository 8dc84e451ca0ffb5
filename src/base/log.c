/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
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

/*
 * A library must not end the program because nothing reads its standard error any more. SIGPIPE goes
 * to the thread that writes, so it is blocked there and taken back, unless the program had one due.
 */
static void write_line(const char *line, size_t len)
{
	const struct timespec at_once = {0};
	sigset_t pipe, due, before;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	sigpending(&due);
	/* One write(2), so that lines of several processes do not mix. */
	if (write(STDERR_FILENO, line, len) < 0 && errno == EPIPE && !sigismember(&due, SIGPIPE))
		sigtimedwait(&pipe, NULL, &at_once);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
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
		write_line(line, len);
	}
	errno = saved_errno;
}
