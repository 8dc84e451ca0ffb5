/* SPDX-License-Identifier: Apache-2.0 */
/* What the callers of one part may take of an endpoint's lanes, memory and descriptors. */
#include "connect/share.h"

#include <errno.h>
#include <sys/resource.h>

#include "base/arith.h"
#include "connect/exchange.h"

/* Exchanges of one part that are not complete. */
#define MAX_STRANGERS 64
/* Each has two descriptors; the strangers of a part may hold an eighth of all. */
#define DESCRIPTORS_PER_STRANGER 16

static bool is_active(const struct nm_share_part *part)
{
	return part->nr_endpoints || part->nr_lanes;
}

static uint32_t fair_share(const struct nm_share *share)
{
	uint32_t nr_active = 0;

	for (uint32_t i = 0; i < share->nr_parts; i++)
		nr_active += is_active(&share->parts[i]);
	return share->nr_lanes / (nr_active ? nr_active : 1);
}

/* Lanes that are kept for the callers of PART. */
static uint32_t due_to(const struct nm_share *share, uint32_t part, uint32_t fair)
{
	return (uint32_t)nm_min_u64(fair, share->parts[part].nr_endpoints);
}

bool nm_share_allows(const struct nm_share *share, uint32_t part)
{
	uint32_t fair = fair_share(share), nr_used = 0, nr_kept = 0;

	if (share->parts[part].nr_lanes >= share->nr_slots)
		return false;
	for (uint32_t i = 0; i < share->nr_parts; i++) {
		uint32_t due = due_to(share, i, fair), has = share->parts[i].nr_lanes;

		nr_used += has;
		nr_kept += i != part && due > has ? due - has : 0;
	}
	if (share->parts[part].nr_lanes < due_to(share, part, fair))
		nr_kept = 0;
	return nr_used + nr_kept < share->nr_lanes;
}

/*
 * A caller that hung up holds its lane until the endpoint's thread takes it back. No lane is kept for
 * the own machine's endpoints, which come over another channel, if there is one.
 */
static void count(const struct nm_sessions *sessions, uint32_t own_part, struct nm_share *share)
{
	struct nm_vmseg_peer peer;
	uint64_t cursor = 0;

	while (nm_vmseg_next(nm_vmseg_wire_of(sessions)->segment, &cursor, &peer))
		share->parts[peer.address.part].nr_endpoints +=
			peer.state == NM_VMSEG_RUN && peer.address.part != own_part;
	for (const struct nm_handshake *handshake = sessions->handshakes; handshake;
	     handshake = handshake->next)
		if (handshake->role == NM_ROLE_READER && handshake->has_lane)
			share->parts[handshake->part].nr_lanes++;
}

int nm_share_check(const struct nm_sessions *sessions, uint32_t part, bool is_new,
		   struct nm_reason *ret_reason)
{
	struct nm_vmseg_wire *wire = nm_vmseg_wire_of(sessions);
	const struct nm_vmseg_facts *facts = nm_vmseg_facts(wire->segment);
	struct nm_share share = {
		.nr_parts = facts->nr_parts,
		.nr_lanes = sessions->config.window->geometry.nr_lanes,
		.nr_slots = facts->nr_slots,
	};

	if (is_new && wire->nr_met[part] >= NM_SHARE_MAX_MET) {
		nm_reason_set(ret_reason, "it has met %u endpoints of part %u, and meets no more",
			      wire->nr_met[part], part);
		return -ENOSPC;
	}
	count(sessions, facts->part, &share);
	if (!nm_share_allows(&share, part)) {
		nm_reason_set(ret_reason,
			      "part %u has %u of the %u lanes of %.60s, and the rest is for "
			      "others: raise NEARMETAL_SEGMENT_LANES",
			      part, share.parts[part].nr_lanes, share.nr_lanes,
			      sessions->label.text);
		return -ENOSPC;
	}
	wire->nr_met[part] += is_new;
	return 0;
}

unsigned int nm_share_strangers(void)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

	getrlimit(RLIMIT_NOFILE, &limit);
	return (unsigned int)nm_min_u64(MAX_STRANGERS, limit.rlim_cur / DESCRIPTORS_PER_STRANGER);
}
