/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the peer's window shows of a link. Only the peer can write it, while a socket may belong to
 * another process: one that replaced the peer's socket in the rundir, and passes on what it likes.
 */
#include <string.h>

#include "connect/session_private.h"

unsigned int nm_handshake_step(const struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	const struct nm_lane *lane =
		&handshake->session->window.lanes[nm_handshake_direction(handshake)->peer_lane];
	bool is_writer = handshake->role == NM_ROLE_WRITER;
	unsigned int step;

	/* Partner: nm_handshake_show(). The next use of the lane resets the step before the rest. */
	step = atomic_load_explicit(is_writer ? &lane->reader_step : &lane->writer_step,
				    memory_order_acquire);
	if (step == NM_LANE_IDLE ||
	    atomic_load_explicit(is_writer ? &lane->reader_proof : &lane->writer_proof,
				 memory_order_acquire) != handshake->challenge ||
	    memcmp(is_writer ? lane->reader_for : lane->writer_for, &sessions->config.who,
		   NM_LANE_WHO) != 0)
		return NM_LANE_ENDED;
	return step;
}

bool nm_handshake_proven(const struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	unsigned int step = nm_handshake_step(sessions, handshake);

	return step == NM_LANE_SHOWN || step == NM_LANE_AGREED;
}

enum nm_sight nm_handshake_look(const struct nm_sessions *sessions, struct nm_handshake *handshake,
				int *ret_err)
{
	const struct nm_foreign_window *window = &handshake->session->window;
	unsigned int life, step;

	/* In a segment the wire holds a lease, and only the peer's machine writes its letters. */
	if (sessions->config.segment)
		return NM_SIGHT_UNKNOWN;
	if (nm_foreign_state(window) == NM_WINDOW_GONE)
		return NM_SIGHT_CLOSED;
	/* Partner: the kernel, at the end of the peer's service thread. */
	life = atomic_load_explicit(&window->header->life, memory_order_acquire);
	if (life & FUTEX_OWNER_DIED)
		return NM_SIGHT_DIED;
	step = nm_handshake_step(sessions, handshake);
	if (step & NM_LANE_ENDED) {
		*ret_err = -(int)(step & NM_LANE_ERRNO);
		return NM_SIGHT_ENDED;
	}
	return life ? NM_SIGHT_OPEN : NM_SIGHT_UNKNOWN;
}

bool nm_handshake_has_gone(const struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	int err;

	/* UNKNOWN: the socket is all there is. */
	return handshake->state == NM_HANDSHAKE_AWAIT_GO &&
	       nm_handshake_look(sessions, handshake, &err) != NM_SIGHT_UNKNOWN &&
	       nm_handshake_step(sessions, handshake) == NM_LANE_AGREED;
}

/* True if there is something that the socket has not reported for a whole beat. */
static bool is_news(const struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	enum nm_sight sight;
	int err;

	if (handshake->state != NM_HANDSHAKE_UP && handshake->state != NM_HANDSHAKE_AWAIT_GO)
		return false;
	sight = nm_handshake_look(sessions, handshake, &err);
	if (sight == NM_SIGHT_UNKNOWN ||
	    (sight == NM_SIGHT_OPEN && !nm_handshake_has_gone(sessions, handshake)))
		return false;
	/* Mostly the socket reports it at once, and with words. */
	return handshake->fd < 0 || handshake->nr_looks++ > 0;
}

void nm_sessions_look(struct nm_sessions *sessions)
{
	struct nm_handshake *handshake;

	for (handshake = sessions->handshakes; handshake; handshake = handshake->next) {
		if (!is_news(sessions, handshake))
			continue;
		if (handshake->state == NM_HANDSHAKE_UP) {
			nm_handshake_lost(sessions, handshake);
		} else if (nm_handshake_has_gone(sessions, handshake)) {
			handshake->go_is_due = true;
			nm_handshake_up(sessions, handshake);
		} else {
			nm_handshake_close(sessions, handshake);
		}
	}
}
