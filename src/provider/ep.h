/* SPDX-License-Identifier: Apache-2.0 */
/* The two halves of the endpoint: ep.c its life, ep_ops.c its calls. */
#ifndef NM_PROVIDER_EP_H
#define NM_PROVIDER_EP_H

#include "provider/provider.h"
#include "transport/stats.h"

/* Room below which a multi-receive buffer is given back, until the program says otherwise. */
#define NM_MIN_MULTI_RECV 64

/*
 * Create the engine and its channels. Returns 0; -FI_ENOAV, -FI_ENOCQ: something is not bound;
 * -FI_EOPBADSTATE: enabled already; -errno when no allowed channel can be used.
 */
int nm_ep_enable(struct nm_ep *ep);
/* Close in order: peers learn of it, what they have not taken yet is waited for (close_ms). */
int nm_ep_close(struct fid *fid);
/* Tell ENGINE the queues and counters that are bound to the endpoint. */
void nm_ep_bind_queues(struct nm_ep *ep, struct nm_engine *engine);
/* A nm_stats_collect of ENGINE, whose lock is held. */
void nm_ep_collect_stats(void *engine, struct nm_stats *stats);
/* Put the ops tables in. */
void nm_ep_set_ops(struct nm_ep *ep);

#endif
