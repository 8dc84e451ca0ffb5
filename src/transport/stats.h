/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint's statistics file: created when it is opened, rewritten while it runs and when it is
 * closed. How `nearmetal top` looks into a running job, and how a launcher proves afterwards which
 * way its traffic went.
 *
 * It lies in NEARMETAL_STATS_DIR and stays there; without that knob in the rundir, where
 * its owner removes it at close, and the next endpoint of the user those of processes that died.
 * Nothing that goes wrong with it concerns the endpoint: one line in the log, and no file.
 */
#ifndef NM_TRANSPORT_STATS_H
#define NM_TRANSPORT_STATS_H

#include <stdbool.h>

#include "transport/stats_layout.h"
#include "transport/transport.h"

struct nm_stats;

/* NULL: there is no file, and the log says why. Makes system calls. */
struct nm_stats *nm_stats_open(const struct nm_identity *who, enum nm_stats_face face);

/* The caller's part of one writing: calls nm_stats_add() for each peer and fills in the rest. */
typedef void nm_stats_collect(void *arg, struct nm_stats *stats);

/*
 * One more peer: zeroed, with the way to it, the label and the reason. FACTS: of its link; if
 * IS_CONNECTED is false, only label and reason are valid. NULL: it finds no room, which is counted.
 * The result is valid until the next call.
 */
struct nm_stats_peer *nm_stats_add(struct nm_stats *stats, const struct nm_identity *who,
				   const struct nm_link_facts *facts, bool is_connected);
void nm_stats_text(char *to, size_t room, const char *from);

/*
 * Write what COLLECT adds now. One system call, O(peers). Nothing else uses the peers meanwhile.
 * NULL-safe, as is the next one.
 */
void nm_stats_publish(struct nm_stats *stats, nm_stats_collect *collect, void *arg);
/* The last time: the endpoint is closed, or the process ends with it open. */
void nm_stats_close(struct nm_stats *stats, nm_stats_collect *collect, void *arg);

#endif
