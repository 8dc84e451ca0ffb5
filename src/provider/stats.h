/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint's statistics file: created when it is enabled, rewritten while it runs and when it is
 * closed. How `nearmetal top` looks into a running job, and how a launcher proves afterwards which
 * way its traffic went.
 *
 * It lies in NEARMETAL_STATS_DIR and stays there; without that knob in the rundir, where
 * its owner removes it at close, and the next endpoint of the user those of processes that died.
 * Nothing that goes wrong with it concerns the endpoint: one line in the log, and no file.
 */
#ifndef NM_PROVIDER_STATS_H
#define NM_PROVIDER_STATS_H

#include <stdbool.h>

#include "engine/engine.h"

struct nm_stats;

/* NULL: there is no file, and the log says why. Makes system calls. */
struct nm_stats *nm_stats_open(const struct nm_identity *who);
/* Write what the engine knows now. One system call, O(peers); the engine's lock is held. */
void nm_stats_publish(struct nm_stats *stats, struct nm_engine *engine);
/* The last time: the endpoint is closed, or the process ends with it open. NULL-safe. */
void nm_stats_close(struct nm_stats *stats, struct nm_engine *engine);

#endif
