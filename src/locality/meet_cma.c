/* SPDX-License-Identifier: Apache-2.0 */
/* Where the proof of direct copies (probe_cma.h) has its place in a meeting. */
#include "locality/meet_private.h"

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
