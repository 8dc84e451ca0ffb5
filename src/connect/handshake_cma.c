/* SPDX-License-Identifier: Apache-2.0 */
/* Where the proof of direct copies (cma_proof.h) has its place in a meeting. */
#include <sched.h>

#include "base/clock.h"
#include "base/log.h"
#include "connect/session_private.h"

/* A lane is in use once in each role. */
static uint32_t slot_of(const struct nm_meet *meet, const struct nm_meeting *meeting)
{
	uint32_t lane = meeting->encounter.own_lane;

	return meeting->encounter.role == NM_ROLE_WRITER ?
		       lane :
		       meet->config.window->geometry.nr_lanes + lane;
}

void nm_meeting_offer_cma(const struct nm_meet *meet, struct nm_meeting *meeting,
			  struct nm_greeting *greeting)
{
	uint32_t slot = slot_of(meet, meeting);

	nm_cma_offer_init(&meet->cma, slot, meeting->cma_challenge, &greeting->cma);
	/* The owner has the visitor's offer already. */
	if (meeting->encounter.role == NM_ROLE_READER)
		nm_cma_answer(&meet->cma, slot, &meeting->cma_offer);
}

void nm_meeting_take_offer(const struct nm_meet *meet, struct nm_meeting *meeting,
			   const struct nm_greeting *greeting)
{
	struct nm_cma_facts *facts = &meeting->cma_facts;

	meeting->cma_offer = greeting->cma;
	facts->knows_pid_ns = meet->pid_ns_inode && greeting->pid_ns_inode;
	facts->same_pid_ns = facts->knows_pid_ns && greeting->pid_ns_inode == meet->pid_ns_inode &&
			     greeting->pid_ns_device == meet->pid_ns_device;
	if (meeting->encounter.role == NM_ROLE_WRITER)
		nm_cma_answer(&meet->cma, slot_of(meet, meeting), &meeting->cma_offer);
}

void nm_meeting_reach(const struct nm_meet *meet, struct nm_meeting *meeting)
{
	meeting->cma_reached = nm_cma_reach(&meet->cma, &meeting->cma_facts, &meeting->cma_offer,
					    meeting->cma_challenge, &meeting->encounter.cma_target,
					    &meeting->encounter.cma_why);
}

bool nm_meeting_hear(const struct nm_meet *meet, struct nm_meeting *meeting,
		     const struct nm_step *step)
{
	if (step->reached != 1)
		nm_reason_set(&meeting->encounter.cma_why, "it says of me: %.170s", step->words);
	else if (!nm_cma_was_reached(&meet->cma, slot_of(meet, meeting), meeting->cma_challenge))
		nm_reason_set(&meeting->encounter.cma_why,
			      "what it says it has written into my memory is not there");
	else
		return true;
	return false;
}

/* Is the other side of MEETING, a visitor, in the midst of a copy? Its count then, else 0. */
static uint64_t copying(const struct nm_meeting *meeting)
{
	const struct nm_encounter *encounter = &meeting->encounter;
	uint64_t reaching;

	if (encounter->role != NM_ROLE_READER || !meeting->neighbour ||
	    meeting->state == NM_MEETING_LOST)
		return 0;
	/* Partners: nm_shm_reach() and nm_shm_leave() of the visitor. */
	reaching = atomic_load_explicit(&encounter->window->lanes[encounter->peer_lane].reaching,
					memory_order_seq_cst);
	return reaching % 2 ? reaching : 0;
}

/* Are any that were at it still at it? FIRST: note who is. */
static bool any_copying(struct nm_meet *meet, bool first)
{
	struct nm_meeting *meeting;
	bool any = false;

	pthread_mutex_lock(&meet->lock);
	for (meeting = meet->meetings; meeting; meeting = meeting->next) {
		if (first)
			meeting->awaited = copying(meeting);
		any |= meeting->awaited && copying(meeting) == meeting->awaited;
	}
	pthread_mutex_unlock(&meet->lock);
	return any;
}

void nm_meet_await_copies(struct nm_meet *meet, uint32_t timeout_ms)
{
	uint64_t deadline;

	/* Nobody gets anywhere without it. */
	if (!meet->cma.pad || !any_copying(meet, true))
		return;
	deadline = nm_clock_ns() + timeout_ms * NM_NS_PER_MS;
	while (any_copying(meet, false)) {
		sched_yield();
		if (nm_clock_ns() < deadline)
			continue;
		nm_warn("a neighbour does not end a copy from or to my memory (is it stopped?): "
			"no more copies by neighbours");
		pthread_mutex_lock(&meet->lock);
		nm_cma_place_fini(&meet->cma);
		nm_reason_set(&meet->cma.why, "a neighbour did not end a copy");
		pthread_mutex_unlock(&meet->lock);
		return;
	}
}
