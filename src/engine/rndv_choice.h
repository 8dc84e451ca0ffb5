/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How incoming transfers of a peer are made, and what that achieved: feeds transport/select.h with
 * facts and with the rates of what has ended.
 *
 * What is chosen and timed is not one transfer but a *sample* of them: from when the first one is
 * asked for until none is under way. Transfers of one sample overlap, so their single times say
 * nothing, and a mixture of protocols even less. All of a sample go the same way, and its bytes
 * over its time are one observation.
 *
 * A read of the sender's heap costs the sender, too: it takes lines out of a private cache to which
 * the sender then writes its next message. A stream contains that. A single message does not. So if
 * it could be read in the heap and fits into such a cache, its time lasts until the next message.
 * After a long pause that says nothing, and the heap is taken for the slower way.
 */
#ifndef NM_ENGINE_RNDV_CHOICE_H
#define NM_ENGINE_RNDV_CHOICE_H

#include "engine/internal.h"

struct nm_sample {
	struct nm_select_verdict verdict;
	uint64_t started_ns;
	uint64_t ended_ns;    /* if is_due */
	uint64_t bytes;	      /* that have come */
	uint32_t nr, nr_peak; /* transfers in all, and at once */
	bool mixed;	      /* not all went the same way: nothing to learn */
	bool in_heap;	      /* its first transfer could be read in the sender's heap */
	bool is_due;	      /* it is over, but its time lasts until the next message */
};

/* Of one peer; made with its first large message. */
struct nm_rndv_choice {
	struct nm_select_state states[2]; /* of messages elsewhere, and of those in the heap */
	struct nm_sample sample;
	uint32_t nr_incoming; /* transfers under way */
	bool streams;	      /* the last sample was more than one transfer */
	enum nm_protocol last[NM_SELECT_NR_CLASSES][NM_SELECT_NR_LOADS]; /* as last logged */
	struct nm_rndv_choice_facts facts;
};

/* A transfer into R begins: pick its protocol (r->verdict). Reads the clock once a sample. */
void nm_rndv_choice_begin(const struct nm_engine *engine, struct nm_request *r);
/* All its bytes are here. */
void nm_rndv_choice_end(const struct nm_engine *engine, struct nm_request *r);
/* What was tried without packets failed: the rest comes in packets. ERR: -errno. */
void nm_rndv_choice_fell_back(struct nm_request *r, int err) NM_COLD;
/* A put or get that was begun directly at PEER failed: it is asked for the whole. ERR: -errno. */
void nm_rndv_choice_access_fell_back(struct nm_peer *peer, bool is_read, int err) NM_COLD;
/* None of the peer's transfers is under way any more, however they ended. */
void nm_rndv_choice_reset(struct nm_peer *peer);

#endif
