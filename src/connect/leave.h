/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an endpoint does in a segment while its machine, or the machine of a neighbour, is asked to
 * leave (docs/design/migration.md). No handshake begins with it. Endpoints of sessions that stand
 * get a report, and end them. An endpoint without sessions and handshakes answers the request: its
 * slot becomes FROZEN, and it writes nothing until its machine stays after all.
 *
 * A neighbour can store any state at any time. It decides about its own sessions only.
 *
 * All functions need sessions->lock.
 */
#ifndef NM_CONNECT_LEAVE_H
#define NM_CONNECT_LEAVE_H

#include "connect/exchange.h"

/*
 * 0; -EHOSTUNREACH with a reason: the own machine or that of PART is asked to leave, so no
 * handshake begins.
 */
int nm_leave_check(const struct nm_vmseg_wire *wire, uint32_t part, struct nm_reason *ret_reason);
/* True if the own slot is FROZEN. */
bool nm_leave_is_away(const struct nm_vmseg_wire *wire);
/*
 * Leave if the own machine is asked to and nothing stands; come back if it stays. Repairs a slot
 * that another process has set to FROZEN.
 */
void nm_leave_follow(struct nm_sessions *sessions);
/* True if this endpoint has left, and nothing stands that could bring it back. */
bool nm_leave_is_over(const struct nm_sessions *sessions);
/* Report the sessions whose peers can be called again to the endpoint. */
void nm_leave_return(struct nm_sessions *sessions, uint64_t now_ns);
/*
 * Look at the two machines of EXCHANGE, whose peer's slot is in STATE. Reports a change to the
 * endpoint, and a request to leave until it has an end, at most once a second. Asks a peer in
 * FROZEN nothing. Ends a call that the peer did not answer yet, and a session that a peer in FROZEN
 * has ended: then true.
 */
bool nm_leave_look(struct nm_sessions *sessions, struct nm_exchange *exchange,
		   enum nm_vmseg_state state, uint64_t now_ns);

/*
 * Lost peers that may live: find those that have ended since, as the segment shows, and report LOST
 * for them.
 */
void nm_leave_look_at_absent(struct nm_sessions *sessions);

#endif
