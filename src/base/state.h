/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States change through one setter each (for example nm_session_set_state()) over a table
 * of the states that may follow each state. Builds for tests abort on an impossible transition.
 */
#ifndef NM_BASE_STATE_H
#define NM_BASE_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define NM_STATE(state) (1U << (state))

static inline bool nm_state_may_follow(const uint32_t *table, unsigned int from, unsigned int to)
{
	return table[from] >> to & 1;
}

#ifdef NM_CHECK_STATES
#define nm_state_check(table, from, to) (nm_state_may_follow(table, from, to) ? (void)0 : abort())
#else
#define nm_state_check(table, from, to) ((void)0)
#endif

#endif
