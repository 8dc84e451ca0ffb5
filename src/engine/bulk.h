/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How incoming transfers of a peer are made, and what that achieved: feeds transport/select.h with
 * facts and with the rates of what has ended.
 */
#ifndef NM_ENGINE_BULK_H
#define NM_ENGINE_BULK_H

#include "engine/internal.h"

/* Of one peer; made with its first large message. */
struct nm_bulk {
	struct nm_select_state state;
	uint32_t nr_incoming; /* transfers under way */
	uint64_t ended_ns;    /* the last one did */
	/* ended under `booked`, and not learnt yet: short ones count together */
	struct nm_select_verdict booked;
	uint64_t bytes, ns;
	enum nm_protocol last[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS]; /* that was told */
	struct nm_bulk_facts facts;
};

/* A transfer into R begins: pick its protocol (r->verdict). Reads the clock. */
void nm_bulk_begin(const struct nm_engine *engine, struct nm_request *r);
/* All its bytes are here. */
void nm_bulk_end(const struct nm_engine *engine, struct nm_request *r);
/* What was tried without packets failed: the rest comes in packets. ERR: -errno. */
void nm_bulk_fell_back(struct nm_request *r, int err) NM_COLD;

#endif
