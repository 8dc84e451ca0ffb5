/* SPDX-License-Identifier: Apache-2.0 */
/* The states of a machine that is to leave the segment: who sets them, and what they allow. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "vmseg_fixture.h"

#define PART (4 * SEGMENT_MIB)

static void poke_part_state(uint32_t part, uint32_t state)
{
	segment_poke(segment_part_offset(part, PART) + offsetof(struct nm_vmseg_part, state),
		     &state, sizeof(state));
}

static uint32_t peek_epoch(const struct nm_vmseg_config *config)
{
	struct nm_vmseg_part header;
	FILE *file = fopen(config->all, "re");

	NM_CHECK(file && fseek(file, (long)segment_part_offset(config->part, PART), SEEK_SET) == 0);
	NM_CHECK_EQ(fread(&header, sizeof(header), 1, file), 1);
	fclose(file);
	return atomic_load(&header.epoch);
}

static struct nm_vmseg_peer look(struct nm_vmseg *segment, const struct nm_vmseg_claim *claim)
{
	struct nm_vmseg_peer peer = {.address = *nm_vmseg_own_address(claim)};

	NM_CHECK_EQ(nm_vmseg_look(segment, &peer.address, &peer.state, &peer.heartbeat), 0);
	return peer;
}

NM_TEST(a_machine_is_asked_leaves_and_stays)
{
	const struct nm_vmseg_config config = segment_config(0);
	struct nm_vmseg_peer before, after;
	struct nm_vmseg_claim *claim;
	struct nm_vmseg *a, *b;
	struct nm_reason why;

	segment_file(2, PART);
	a = segment_attach(0);
	b = segment_attach(1);
	claim = segment_open(a, 'a', NULL);
	NM_CHECK_EQ(nm_vmseg_part_state(b, 0), NM_VMSEG_RUN);
	/* The way to frozen is by quiesce. */
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_FROZEN, &why), -EINVAL);
	NM_CHECK_HAS(why.text,
		     "part 0 is in state run, and frozen may not follow: ask with quiesce");
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), 0);
	NM_CHECK_EQ(nm_vmseg_part_state(b, 0), NM_VMSEG_QUIESCE);
	NM_CHECK_EQ(nm_vmseg_part_state(b, 1), NM_VMSEG_RUN);
	NM_CHECK_EQ(peek_epoch(&config), 1);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), 0);
	NM_CHECK_EQ(peek_epoch(&config), 1);
	/* An endpoint that has not left yet: its heart beats. */
	before = look(b, claim);
	nm_vmseg_beat(claim);
	NM_CHECK_EQ(look(b, claim).heartbeat, before.heartbeat + 1);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_FROZEN, &why), -EBUSY);
	NM_CHECK_HAS(why.text, "1 endpoints of this machine still use the segment; the first is in "
			       "slot 0, in state run");
	nm_vmseg_set_state(claim, NM_VMSEG_QUIESCE);
	nm_vmseg_beat(claim);
	NM_CHECK_EQ(look(b, claim).heartbeat, before.heartbeat + 2);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_FROZEN, &why), -EBUSY);
	NM_CHECK_HAS(why.text, "in state quiesce");
	/* One that has: nothing moves any more. */
	nm_vmseg_leave(claim);
	before = look(b, claim);
	NM_CHECK_EQ(before.state, NM_VMSEG_FROZEN);
	nm_vmseg_beat(claim);
	NM_CHECK_EQ(look(b, claim).heartbeat, before.heartbeat);
	NM_CHECK_EQ(nm_vmseg_return(claim), -EBUSY);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_FROZEN, &why), 0);
	NM_CHECK_EQ(nm_vmseg_part_state(b, 0), NM_VMSEG_FROZEN);
	NM_CHECK_EQ(nm_vmseg_return(claim), -EBUSY);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "begin again with run");
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_RUN, &why), 0);
	NM_CHECK_EQ(peek_epoch(&config), 3);
	/* The lock file: in between it could be asked again. */
	NM_CHECK_EQ(nm_vmseg_return(claim), 0);
	after = look(b, claim);
	NM_CHECK_EQ(after.state, NM_VMSEG_RUN);
	NM_CHECK_EQ(after.heartbeat, before.heartbeat + 1);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_GONE, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "cannot be asked for state gone");
	nm_vmseg_release(claim);
	nm_vmseg_detach(a);
	nm_vmseg_detach(b);
}

NM_TEST(no_endpoint_is_added_while_the_machine_is_asked)
{
	struct nm_vmseg_claim *claim;
	struct nm_geometry geometry;
	struct nm_vmseg *a;
	struct nm_reason why;

	segment_file(2, PART);
	/* Before any endpoint made the part. */
	a = segment_attach(0);
	geometry = segment_geometry(a);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), 0);
	NM_CHECK_EQ(nm_vmseg_claim(a, (const uint8_t *)"abcdef", geometry.size, &claim, &why),
		    -EBUSY);
	NM_CHECK_HAS(why.text, "asked to leave the segment (its part is in state quiesce)");
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_FROZEN, &why), 0);
	NM_CHECK_EQ(nm_vmseg_claim(a, (const uint8_t *)"abcdef", geometry.size, &claim, &why),
		    -EBUSY);
	NM_CHECK_HAS(why.text, "in state frozen");
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_RUN, &why), 0);
	claim = segment_open(a, 'a', NULL);
	nm_vmseg_release(claim);
	nm_vmseg_detach(a);
}

NM_TEST(a_boot_takes_the_request_back)
{
	struct nm_vmseg_claim *claim;
	struct nm_vmseg *a;
	struct nm_reason why;

	segment_file(1, PART);
	a = segment_attach(0);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), 0);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_FROZEN, &why), 0);
	nm_vmseg_detach(a);
	NM_CHECK_EQ(unlink(segment_config(0).lock), 0);
	a = segment_attach(0);
	claim = segment_open(a, 'a', NULL);
	NM_CHECK_EQ(nm_vmseg_part_state(a, 0), NM_VMSEG_RUN);
	nm_vmseg_release(claim);
	nm_vmseg_detach(a);
}

/* A container with a lock file of its own made the part anew: the slot belongs to another one. */
NM_TEST(who_lost_its_slot_leaves_it_alone)
{
	struct nm_vmseg_claim *claim, *other;
	struct nm_vmseg_peer before, after;
	struct nm_vmseg *a, *b;
	struct nm_reason why;

	segment_file(1, PART);
	a = segment_attach(0);
	claim = segment_open(a, 'a', NULL);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), 0);
	nm_vmseg_leave(claim);
	NM_CHECK_EQ(unlink(segment_config(0).lock), 0);
	b = segment_attach(0);
	other = segment_open(b, 'b', NULL);
	NM_CHECK_EQ(nm_vmseg_own_address(other)->slot, nm_vmseg_own_address(claim)->slot);
	before = look(b, other);
	NM_CHECK_EQ(before.state, NM_VMSEG_RUN);
	nm_vmseg_beat(claim);
	nm_vmseg_leave(claim);
	NM_CHECK_EQ(nm_vmseg_return(claim), -ESTALE);
	after = look(b, other);
	NM_CHECK_EQ(after.state, NM_VMSEG_RUN);
	NM_CHECK_EQ(after.heartbeat, before.heartbeat);
	nm_vmseg_leave(other);
	NM_CHECK_EQ(nm_vmseg_return(claim), -ESTALE);
	NM_CHECK_EQ(look(b, other).state, NM_VMSEG_FROZEN);
	nm_vmseg_release(claim);
	nm_vmseg_release(other);
	nm_vmseg_detach(a);
	nm_vmseg_detach(b);
}

static void live_until_killed(void *arg)
{
	(void)arg;
	segment_open(segment_attach(0), 'k', NULL);
	for (;;)
		pause();
}

NM_TEST(the_dead_do_not_keep_a_machine)
{
	struct nm_vmseg_peer peer;
	struct nm_vmseg *a;
	struct nm_reason why;
	uint64_t cursor = 0;
	pid_t child;

	segment_file(1, PART);
	child = nm_test_fork(live_until_killed, NULL);
	a = segment_attach(0);
	while (segment_find(a, (const uint8_t *)"kid\0\0\0", &peer))
		nm_test_sleep_ms(1);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), 0);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_FROZEN, &why), -EBUSY);
	kill(child, SIGKILL);
	nm_test_join(child, SIGKILL);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_FROZEN, &why), 0);
	NM_CHECK(nm_vmseg_next(a, &cursor, &peer));
	NM_CHECK_EQ(peer.state, NM_VMSEG_GONE);
	nm_vmseg_detach(a);
}

/* A neighbour may store anything; a stray write in the own part is repaired by `run`. */
NM_TEST(any_number_may_stand_where_a_state_is_due)
{
	struct nm_vmseg_claim *claim;
	struct nm_vmseg *a, *b;
	uint64_t random = 3;
	struct nm_reason why;

	segment_file(2, PART);
	a = segment_attach(0);
	b = segment_attach(1);
	claim = segment_open(a, 'a', NULL);
	for (uint32_t i = 0; i < 2000; i++) {
		uint32_t state = i < 300 ? i : (uint32_t)nm_test_random(&random) | 0x100;
		bool asks = state == NM_VMSEG_QUIESCE || state == NM_VMSEG_FROZEN;

		poke_part_state(0, state);
		NM_CHECK_EQ(nm_vmseg_part_state(b, 0), asks ? state : NM_VMSEG_RUN);
	}
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "part 0 is in state ?, and quiesce may not follow");
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_RUN, &why), 0);
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), 0);
	nm_vmseg_release(claim);
	nm_vmseg_detach(a);
	nm_vmseg_detach(b);
}

NM_TEST(a_part_that_another_release_uses_is_left_alone)
{
	struct nm_vmseg_claim *claim, *second;
	struct nm_geometry geometry;
	const uint32_t none = 0;
	struct nm_reason why;
	struct nm_vmseg *a;

	segment_file(1, PART);
	a = segment_attach(0);
	geometry = segment_geometry(a);
	claim = segment_open(a, 'a', NULL);
	segment_poke(segment_part_offset(0, PART) + offsetof(struct nm_vmseg_part, features), &none,
		     sizeof(none));
	NM_CHECK_EQ(nm_vmseg_claim(a, (const uint8_t *)"abcdef", geometry.size, &second, &why),
		    -EPROTONOSUPPORT);
	NM_CHECK_HAS(why.text, "features 0x0, not version 1 and 0x1: use one release");
	NM_CHECK_EQ(nm_vmseg_ask(a, NM_VMSEG_QUIESCE, &why), -EPROTONOSUPPORT);
	nm_vmseg_release(claim);
	/* When they have ended, the part is made again. */
	claim = segment_open(a, 'a', NULL);
	nm_vmseg_release(claim);
	nm_vmseg_detach(a);
}

NM_TEST(parts_of_other_releases_are_refused)
{
	const uint32_t features[] = {0, 2, NM_VMSEG_FEATURES | 2, UINT32_MAX};
	struct nm_vmseg_part part = {
		.magic = NM_VMSEG_PART_MAGIC, .version = NM_VMSEG_VERSION, .generation = 7};
	struct nm_vmseg_shape shape;
	struct nm_reason why;

	nm_vmseg_shape_init(PART, &shape);
	part.nr_slots = shape.nr_slots;
	part.nr_cells = shape.nr_cells;
	part.slots_off = shape.slots_off;
	part.cells_off = shape.cells_off;
	part.space_off = shape.space_off;
	part.features = NM_VMSEG_FEATURES;
	NM_CHECK_EQ(nm_vmseg_part_check(&part, 0, PART, &shape, &why), 0);
	for (size_t i = 0; i < NM_ARRAY_SIZE(features); i++) {
		part.features = features[i];
		NM_CHECK_EQ(nm_vmseg_part_check(&part, 0, PART, &shape, &why), -EPROTONOSUPPORT);
		NM_CHECK_HAS(why.text, "use one release of nearmetal in all virtual machines");
	}
}
