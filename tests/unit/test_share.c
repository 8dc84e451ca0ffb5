/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes of an endpoint in a segment: what each machine gets, whatever another one wants. */
#include "connect/share.h"

#include <sys/resource.h>

#include "harness.h"

#define LANES 64
#define SLOTS 48

/* PART takes lanes until it gets no more. Returns how many it has. */
static uint32_t take_all(struct nm_share *share, uint32_t part)
{
	while (nm_share_allows(share, part))
		share->parts[part].nr_lanes++;
	return share->parts[part].nr_lanes;
}

static struct nm_share share_of(uint32_t nr_parts)
{
	return (struct nm_share){.nr_parts = nr_parts, .nr_lanes = LANES, .nr_slots = SLOTS};
}

NM_TEST(an_endpoint_that_is_there_gets_its_lane)
{
	struct nm_share share = share_of(3);

	share.parts[0].nr_endpoints = 4;
	share.parts[1].nr_endpoints = 4;
	share.parts[2].nr_endpoints = 48; /* takes all that it can */
	NM_CHECK_EQ(take_all(&share, 2), SLOTS);
	NM_CHECK_EQ(take_all(&share, 0), LANES - SLOTS - 4);
	NM_CHECK_EQ(take_all(&share, 1), 4);
}

NM_TEST(no_machine_has_more_lanes_than_slots)
{
	struct nm_share share = share_of(2);

	share.nr_slots = 8;
	share.parts[0].nr_endpoints = 1;
	share.parts[1].nr_endpoints = 1024;
	NM_CHECK_EQ(take_all(&share, 1), 8);
}

NM_TEST(machines_of_different_size_use_all_lanes)
{
	struct nm_share share = share_of(8);

	share.parts[3].nr_endpoints = 40;
	share.parts[5].nr_endpoints = 24;
	NM_CHECK_EQ(take_all(&share, 3), 40);
	NM_CHECK_EQ(take_all(&share, 5), 24);
}

NM_TEST(claims_alone_keep_out_nobody)
{
	struct nm_share share = share_of(4);

	share.parts[0].nr_endpoints = 20;
	for (uint32_t i = 1; i < 4; i++)
		share.parts[i].nr_endpoints = 1024;
	NM_CHECK_EQ(take_all(&share, 0), LANES / 4);
	/* More parts than lanes: whoever comes first, and nobody more than its share for certain. */
	share = share_of(NM_VMSEG_MAX_PARTS);
	for (uint32_t i = 0; i < NM_VMSEG_MAX_PARTS; i++)
		share.parts[i].nr_endpoints = 1;
	NM_CHECK_EQ(take_all(&share, 0), SLOTS);
}

NM_TEST(strangers_leave_descriptors_to_the_program)
{
	struct rlimit limit;

	NM_CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = 160;
	NM_CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	/* Two descriptors each: an eighth of all. */
	NM_CHECK_EQ(2 * nm_share_strangers(), 160 / 8);
}
