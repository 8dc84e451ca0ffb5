/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NEARMETAL_ON_LOSS: what follows when operations fail because a peer was lost. Always their error
 * completions; an MPI that ignores these would return wrong data as success and send it to other
 * ranks, so its process ends instead, before it can send anything more.
 */
#ifndef NM_PROVIDER_ON_LOSS_H
#define NM_PROVIDER_ON_LOSS_H

#include "engine/engine.h"

/* Exit code of a process that ends for this reason. Not one of a shell, a signal or sysexits.h. */
#define NM_ON_LOSS_EXIT 97

/*
 * The reason to end the process, or NULL: error completions are enough. KNOB: auto, abort or error.
 * VERSION: what MPI_Get_library_version() of the MPI in this process says; "": there is none.
 */
const char *nm_on_loss_reason(const char *knob, const char *version);
/* The same for this process. Decided at the first call. */
const char *nm_on_loss_here(void);

/* Ends the process; for nm_engine_config, with the reason as REASON. Does not return. */
void nm_on_loss_end(void *reason, const struct nm_lost *lost) NM_COLD;

#endif
