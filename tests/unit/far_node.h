/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport on another machine, or in another container, that a test here uses as if it were its
 * own: so one suite over the transport contract tests a channel between two machines.
 *
 * Every operation is a request over TCP to a process there, which owns the real transport, and so
 * is everything that this transport tells its sink: an event, which waits for its answer. Events
 * and requests nest as the calls do; packets wait only where the node sends from within deliver().
 * What is tested goes this way only back to the test.
 *
 *   NM_TEST_OTHER=ADDRESS:PORT   where far_node listens; the cases make every second node there
 *   NM_TEST_RELATION=WORD        how near that is, where the channel alone does not say it
 *
 * The environment then says what the channels are to use, as in production: no knob is cleared.
 */
#ifndef NM_TEST_FAR_NODE_H
#define NM_TEST_FAR_NODE_H

#include "transport/transport.h"

/* Does the environment name another machine, and is the case's next node there? */
bool far_is_given(void);
bool far_is_next(void);
/* How near the nodes of a case are, in words: USUAL, unless the environment says otherwise. */
const char *far_relation(const char *usual);
/* A transport there, by the name of its channel. Fails the case when nobody answers. */
int far_create(const char *name, const struct nm_sink *sink, struct nm_address *address,
	       struct nm_transport **ret_transport, struct nm_reason *ret_reason);

#endif
