/* SPDX-License-Identifier: Apache-2.0 */
/* The proof of direct copies (cma_proof.h) inside a handshake. */
#include <sched.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/session_private.h"

/* Each role uses a lane once. */
static uint32_t slot_of(const struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	uint32_t lane = nm_handshake_direction(handshake)->own_lane;

	return handshake->role == NM_ROLE_WRITER ?
		       lane :
		       sessions->config.window->geometry.nr_lanes + lane;
}

void nm_handshake_offer_cma(const struct nm_sessions *sessions, struct nm_handshake *handshake,
			    struct nm_greeting *greeting)
{
	uint32_t slot = slot_of(sessions, handshake);

	nm_cma_offer_init(&sessions->cma, slot, handshake->cma_challenge, &greeting->cma);
	/* The owner has the caller's offer already. */
	if (handshake->role == NM_ROLE_READER)
		nm_cma_answer(&sessions->cma, slot, &handshake->cma_offer);
}

void nm_handshake_take_offer(const struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting)
{
	struct nm_cma_facts *facts = &handshake->cma_facts;

	handshake->cma_offer = greeting->cma;
	facts->knows_pid_ns = sessions->pid_ns_inode && greeting->pid_ns_inode;
	facts->same_pid_ns = facts->knows_pid_ns &&
			     greeting->pid_ns_inode == sessions->pid_ns_inode &&
			     greeting->pid_ns_device == sessions->pid_ns_device;
	if (handshake->role == NM_ROLE_WRITER)
		nm_cma_answer(&sessions->cma, slot_of(sessions, handshake), &handshake->cma_offer);
}

void nm_handshake_reach(const struct nm_sessions *sessions, struct nm_handshake *handshake)
{
	struct nm_direction *direction = nm_handshake_direction(handshake);

	handshake->cma_reached =
		nm_cma_reach(&sessions->cma, &handshake->cma_facts, &handshake->cma_offer,
			     handshake->cma_challenge, &direction->cma_target, &direction->cma_why);
}

bool nm_handshake_hear(const struct nm_sessions *sessions, struct nm_handshake *handshake,
		       const struct nm_step *step)
{
	struct nm_reason *why = &nm_handshake_direction(handshake)->cma_why;

	if (step->value != 1)
		nm_reason_set(why, "it reports: %.170s", step->words);
	else if (!nm_cma_was_reached(&sessions->cma, slot_of(sessions, handshake),
				     handshake->cma_challenge))
		nm_reason_set(why, "it reports a write that is not in this process's memory");
	else
		return true;
	return false;
}

/* The count of the caller on HANDSHAKE if it is in the middle of a copy, else 0. */
static uint64_t copying(const struct nm_handshake *handshake)
{
	uint64_t reaching;

	/* A peer that was not reached from here has no proof of this memory, so it copies nothing. */
	if (!handshake->is_proven || !handshake->cma_reached || !handshake->session ||
	    handshake->state == NM_HANDSHAKE_LOST)
		return 0;
	/* Partners: shm_reach() and shm_leave() of the caller. */
	reaching = atomic_load_explicit(
		&handshake->session->window.lanes[handshake->session->in.peer_lane].reaching,
		memory_order_seq_cst);
	return reaching % 2 ? reaching : 0;
}

/* True if a copy that was under way still runs. FIRST: note which copies are under way. */
static bool any_copying(struct nm_sessions *sessions, bool first)
{
	struct nm_handshake *handshake;
	bool any = false;

	pthread_mutex_lock(&sessions->lock);
	for (handshake = sessions->handshakes; handshake; handshake = handshake->next) {
		if (first)
			handshake->awaited = copying(handshake);
		any |= handshake->awaited && copying(handshake) == handshake->awaited;
	}
	pthread_mutex_unlock(&sessions->lock);
	return any;
}

void nm_sessions_await_copies(struct nm_sessions *sessions, uint32_t timeout_ms)
{
	uint64_t deadline;

	/* Without a pad no peer can copy. */
	if (!sessions->cma.pad || !any_copying(sessions, true))
		return;
	deadline = nm_clock_ns() + timeout_ms * NM_NS_PER_MS;
	while (any_copying(sessions, false)) {
		sched_yield();
		if (nm_clock_ns() < deadline)
			continue;
		nm_warn("a peer does not end a copy from or to this process (is it stopped?): "
			"direct copies by peers are off now");
		pthread_mutex_lock(&sessions->lock);
		nm_cma_place_fini(&sessions->cma);
		nm_reason_set(&sessions->cma.why, "a peer did not end a copy");
		pthread_mutex_unlock(&sessions->lock);
		return;
	}
}
