/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States change through one setter each (nm_peer_set_state(), nm_request_set_state()), which knows
 * the possible transitions. Builds for tests abort on an impossible one; others pay nothing.
 */
#ifndef NM_ENGINE_STATE_H
#define NM_ENGINE_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* A row of a table of transitions: the states that may follow. */
#define NM_STATE(state) (1U << (state))

static inline bool nm_state_may_follow(const uint32_t *table, unsigned int from, unsigned int to)
{
	return table[from] >> to & 1;
}

static inline void nm_state_check(const uint32_t *table, unsigned int from, unsigned int to)
{
#ifdef NM_CHECK_STATES
	if (!nm_state_may_follow(table, from, to))
		abort();
#else
	(void)table;
	(void)from;
	(void)to;
#endif
}

#endif
