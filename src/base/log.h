/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One log sink for all C code: stderr by default, libfabric's log when the provider sets it.
 * The function that turns a failed system call or a bad byte into an error logs it once, with
 * nouns and ids. Nothing on the small-message path logs. Thread-safe.
 */
#ifndef NM_BASE_LOG_H
#define NM_BASE_LOG_H

#include "base/compiler.h"

enum nm_log_level { NM_LOG_ERROR, NM_LOG_WARN, NM_LOG_INFO, NM_LOG_DEBUG };

typedef void (*nm_log_sink_fn)(enum nm_log_level level, const char *line);

/* Additional sink (libfabric's); NULL removes it. stderr is written according to NEARMETAL_LOG. */
void nm_log_set_sink(nm_log_sink_fn sink);
void nm_log_set_level(enum nm_log_level level);
enum nm_log_level nm_log_get_level(void);

void nm_log(enum nm_log_level level, const char *fmt, ...) NM_PRINTF(2, 3) NM_COLD;
/* As nm_log, but at most once per process and call site: for fallbacks worth saying loudly once. */
#define nm_log_once(level, ...)                                                                    \
	do {                                                                                       \
		static _Atomic int said_;                                                          \
		if (!__atomic_exchange_n((int *)&said_, 1, __ATOMIC_RELAXED))                      \
			nm_log(level, __VA_ARGS__);                                                \
	} while (0)

#define nm_error(...) nm_log(NM_LOG_ERROR, __VA_ARGS__)
#define nm_warn(...) nm_log(NM_LOG_WARN, __VA_ARGS__)
#define nm_info(...) nm_log(NM_LOG_INFO, __VA_ARGS__)
#define nm_debug(...) nm_log(NM_LOG_DEBUG, __VA_ARGS__)

#endif
