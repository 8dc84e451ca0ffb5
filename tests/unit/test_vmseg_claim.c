/* SPDX-License-Identifier: Apache-2.0 */
/* Slots and room: claimed, found by neighbours, left in order and by death. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "vmseg_fixture.h"

#define PART (4 * SEGMENT_MIB)

static const uint8_t *id_of(char name)
{
	static uint8_t id[8];

	memset(id, 0, sizeof(id));
	id[0] = (uint8_t)name;
	id[1] = 'i';
	id[2] = 'd';
	return id;
}

NM_TEST(a_neighbour_finds_the_slot_and_its_window)
{
	struct nm_foreign_window window;
	struct nm_vmseg_claim *claim;
	struct nm_vmseg_peer peer;
	enum nm_vmseg_state state;
	struct nm_vmseg *a, *b;
	struct nm_window own;
	uint64_t beats, beats2;
	struct nm_reason why;

	segment_file(2, PART);
	a = segment_attach(0);
	b = segment_attach(1);
	NM_CHECK_EQ(segment_find(b, id_of('a'), &peer), -ENOENT);
	claim = segment_open(a, 'a', &own);
	NM_CHECK_EQ(segment_find(b, id_of('a'), &peer), 0);
	NM_CHECK_EQ(peer.address.part, 0);
	NM_CHECK_EQ(peer.state, NM_VMSEG_RUN);
	NM_CHECK(nm_vmseg_address_equal(&peer.address, nm_vmseg_own_address(claim)));
	NM_CHECK_EQ(nm_vmseg_view(b, &peer, &window, &why), 0);
	NM_CHECK(!memcmp(window.id, id_of('a'), 6));
	NM_CHECK_EQ(nm_foreign_state(&window), NM_WINDOW_RUN);
	NM_CHECK_EQ(nm_window_reserve_ring(&own, 1, &why), 0);
	nm_window_ring(&own, 1)->head.tag = 77;
	own.pool[5] = 9;
	NM_CHECK_EQ(nm_foreign_ring(&window, 1)->head.tag, 77);
	NM_CHECK_EQ(window.pool[5], 9);
	NM_CHECK_EQ(nm_vmseg_look(b, &peer.address, &state, &beats), 0);
	nm_vmseg_beat(claim);
	NM_CHECK_EQ(nm_vmseg_look(b, &peer.address, &state, &beats2), 0);
	NM_CHECK_EQ(beats2, beats + 1);
	NM_CHECK_EQ(state, NM_VMSEG_RUN);
	nm_vmseg_set_state(claim, NM_VMSEG_QUIESCE);
	NM_CHECK_EQ(nm_vmseg_look(b, &peer.address, &state, &beats), 0);
	NM_CHECK_EQ(state, NM_VMSEG_QUIESCE);
	NM_CHECK_EQ(segment_find(b, id_of('a'), &peer), -ENOENT);
	nm_window_destroy(&own);
	nm_vmseg_release(claim);
	NM_CHECK_EQ(nm_vmseg_look(b, &peer.address, &state, &beats), 0);
	NM_CHECK_EQ(state, NM_VMSEG_GONE);
	/* what it had published is there still */
	NM_CHECK_EQ(nm_foreign_ring(&window, 1)->head.tag, 77);
	nm_window_detach(&window);
	peer.address.part = 9;
	NM_CHECK_EQ(nm_vmseg_look(b, &peer.address, &state, &beats), -EINVAL);
	peer.address.part = 1;
	NM_CHECK_EQ(nm_vmseg_look(b, &peer.address, &state, &beats), -ESTALE);
	nm_vmseg_detach(a);
	nm_vmseg_detach(b);
}

NM_TEST(claims_do_not_overlap_and_end_in_words)
{
	struct nm_vmseg_claim *claims[64];
	struct nm_vmseg_peer peers[64];
	unsigned int nr = 0, nr_peers = 0;
	struct nm_geometry geometry;
	struct nm_vmseg *a, *also;
	struct nm_reason why = {""};
	uint64_t cursor = 0;
	int err = 0;

	segment_file(2, 16 * SEGMENT_MIB);
	a = segment_attach(0);
	also = segment_attach(0);
	geometry = segment_geometry(a);
	while (nr < NM_ARRAY_SIZE(claims)) {
		/* two processes of one machine, in turns */
		err = nm_vmseg_claim(nr % 2 ? also : a, id_of('x'), geometry.size, &claims[nr],
				     &why);
		if (err)
			break;
		nm_vmseg_set_state(claims[nr++], NM_VMSEG_RUN);
	}
	NM_CHECK_EQ(err, -ENOSPC);
	NM_CHECK_HAS(why.text, "use larger parts");
	NM_CHECK(nr >= 8);
	while (nm_vmseg_next(also, &cursor, &peers[nr_peers]))
		nr_peers++;
	NM_CHECK_EQ(nr_peers, nr);
	for (unsigned int i = 0; i < nr; i++)
		for (unsigned int j = 0; j < i; j++)
			NM_CHECK(peers[i].window_off >=
					 peers[j].window_off + peers[j].window_size ||
				 peers[j].window_off >= peers[i].window_off + peers[i].window_size);
	NM_CHECK_EQ(nm_vmseg_claim(a, id_of('x'), 64 * SEGMENT_MIB, &claims[63], &why), -ENOSPC);
	NM_CHECK_HAS(why.text, "never fits");
	for (unsigned int i = 0; i < nr; i++)
		nm_vmseg_release(claims[i]);
	nm_vmseg_detach(a);
	nm_vmseg_detach(also);
}

NM_TEST(room_is_given_again_after_the_grace_and_zeroed)
{
	struct nm_vmseg_claim *first, *second;
	struct nm_vmseg_address before;
	enum nm_vmseg_state state;
	struct nm_geometry geometry;
	struct nm_vmseg *a, *b;
	struct nm_window window;
	struct nm_reason why;
	uint64_t beats;

	segment_file(2, PART);
	a = segment_attach(0);
	b = segment_attach(1);
	NM_CHECK_EQ(nm_vmseg_geometry(a, 1, 4, 16, 4096, 3 * SEGMENT_MIB, &geometry, &why), 0);
	NM_CHECK_EQ(nm_vmseg_claim(a, id_of('a'), geometry.size, &first, &why), 0);
	NM_CHECK_EQ(nm_vmseg_open(first, &geometry, &window, &why), 0);
	memset(window.pool, 'x', 4096);
	before = *nm_vmseg_own_address(first);
	nm_vmseg_release(first);
	/* there is room for one only: this waits until the first has rested */
	NM_CHECK_EQ(nm_vmseg_claim(a, id_of('b'), geometry.size, &second, &why), 0);
	NM_CHECK(!nm_vmseg_address_equal(&before, nm_vmseg_own_address(second)));
	NM_CHECK_EQ(nm_vmseg_open(second, &geometry, &window, &why), 0);
	for (int i = 0; i < 4096; i++)
		NM_CHECK_EQ(window.pool[i], 0);
	if (before.slot == nm_vmseg_own_address(second)->slot)
		NM_CHECK_EQ(nm_vmseg_look(b, &before, &state, &beats), -ESTALE);
	nm_vmseg_release(second);
	nm_vmseg_detach(a);
	nm_vmseg_detach(b);
}

static void live_until_killed(void *arg)
{
	struct nm_vmseg *segment = segment_attach(0);

	(void)arg;
	segment_open(segment, 'k', NULL);
	for (;;)
		pause();
}

static void await(struct nm_vmseg *segment, char name)
{
	struct nm_vmseg_peer peer;

	while (segment_find(segment, id_of(name), &peer))
		nm_test_sleep_ms(1);
}

NM_TEST(a_killed_sibling_is_buried)
{
	struct nm_vmseg_peer peer;
	enum nm_vmseg_state state;
	struct nm_vmseg *a, *b;
	uint64_t beats;
	pid_t child;

	segment_file(2, PART);
	child = nm_test_fork(live_until_killed, NULL);
	a = segment_attach(0);
	b = segment_attach(1);
	await(a, 'k');
	NM_CHECK_EQ(segment_find(b, id_of('k'), &peer), 0);
	NM_CHECK_EQ(nm_vmseg_bury(a), 0);
	/* another machine has no say in it */
	NM_CHECK_EQ(nm_vmseg_bury(b), 0);
	kill(child, SIGKILL);
	nm_test_join(child, SIGKILL);
	NM_CHECK_EQ(nm_vmseg_look(b, &peer.address, &state, &beats), 0);
	NM_CHECK_EQ(state, NM_VMSEG_RUN);
	NM_CHECK_EQ(nm_vmseg_bury(a), 1);
	NM_CHECK_EQ(nm_vmseg_look(b, &peer.address, &state, &beats), 0);
	NM_CHECK_EQ(state, NM_VMSEG_GONE);
	NM_CHECK_EQ(nm_vmseg_bury(a), 0);
	nm_vmseg_detach(a);
	nm_vmseg_detach(b);
}

NM_TEST(a_forked_child_does_not_keep_its_parents_slot)
{
	struct nm_vmseg *a, *also;
	struct nm_vmseg_claim *claim;
	int pipes[2];
	pid_t child;
	char byte;

	segment_file(1, PART);
	NM_CHECK_EQ(pipe(pipes), 0);
	child = fork();
	NM_CHECK(child >= 0);
	if (child == 0) {
		pid_t grandchild;

		a = segment_attach(0);
		claim = segment_open(a, 'f', NULL);
		grandchild = fork();
		if (grandchild == 0) {
			/* forgets; and lives on */
			nm_vmseg_release(claim);
			nm_vmseg_detach(a);
			close(pipes[1]);
			for (;;)
				pause();
		}
		if (write(pipes[1], &grandchild, sizeof(grandchild)) != sizeof(grandchild))
			_exit(1);
		for (;;)
			pause();
	}
	close(pipes[1]);
	{
		pid_t grandchild = 0;

		NM_CHECK_EQ(read(pipes[0], &grandchild, sizeof(grandchild)), sizeof(grandchild));
		also = segment_attach(0);
		await(also, 'f');
		kill(child, SIGKILL);
		NM_CHECK_EQ(waitpid(child, NULL, 0), child);
		/* the grandchild closes its copies in the handler of fork(), soon after it began */
		NM_CHECK_EQ(read(pipes[0], &byte, 1), 0);
		NM_CHECK_EQ(nm_vmseg_bury(also), 1);
		kill(grandchild, SIGKILL);
	}
	close(pipes[0]);
	nm_vmseg_detach(also);
}

NM_TEST(a_machine_that_boots_anew_is_another_one)
{
	struct nm_vmseg_peer before, peer;
	struct nm_vmseg_claim *claim;
	enum nm_vmseg_state state;
	struct nm_vmseg *a, *b;
	uint64_t beats;
	pid_t child;

	segment_file(2, PART);
	child = nm_test_fork(live_until_killed, NULL);
	b = segment_attach(1);
	await(b, 'k');
	NM_CHECK_EQ(segment_find(b, id_of('k'), &before), 0);
	/* power off: nothing is said to anybody, and /run is empty afterwards */
	kill(child, SIGKILL);
	nm_test_join(child, SIGKILL);
	NM_CHECK_EQ(unlink(segment_config(0).lock), 0);
	NM_CHECK_EQ(nm_vmseg_look(b, &before.address, &state, &beats), 0);
	NM_CHECK_EQ(state, NM_VMSEG_RUN);
	a = segment_attach(0);
	claim = segment_open(a, 'k', NULL);
	NM_CHECK_EQ(nm_vmseg_look(b, &before.address, &state, &beats), -ESTALE);
	NM_CHECK_EQ(segment_find(b, id_of('k'), &peer), 0);
	NM_CHECK(peer.address.part_generation != before.address.part_generation);
	nm_vmseg_release(claim);
	nm_vmseg_detach(a);
	nm_vmseg_detach(b);
}

static void beat_until_killed(void *arg)
{
	struct nm_vmseg *segment = segment_attach(0);
	struct nm_vmseg_claim *claim = segment_open(segment, 'k', NULL);

	(void)arg;
	for (;;) {
		nm_vmseg_beat(claim);
		nm_test_sleep_ms(5);
	}
}

NM_TEST(containers_with_lock_files_of_their_own_are_told)
{
	struct nm_vmseg_config config;
	struct nm_vmseg_claim *claim;
	struct nm_vmseg_peer peer;
	struct nm_vmseg *a;
	struct nm_reason why;
	pid_t child;

	segment_file(1, PART);
	config = segment_config(0);
	/* what another container sees that does not share /run/nearmetal */
	strcat(config.lock, "-other");
	/* First, because no lock keeps apart the two that try out the part. */
	NM_CHECK_EQ(nm_vmseg_attach(&config, &a, &why), 0);
	child = nm_test_fork(beat_until_killed, NULL);
	await(a, 'k');
	NM_CHECK_EQ(nm_vmseg_claim(a, id_of('a'), segment_geometry(a).size, &claim, &why), -EBUSY);
	NM_CHECK_HAS(why.text, "into every container of this machine");
	NM_CHECK_EQ(segment_find(a, id_of('k'), &peer), 0);
	kill(child, SIGKILL);
	nm_test_join(child, SIGKILL);
	/* nobody lives there any more: it may be taken */
	NM_CHECK_EQ(nm_vmseg_claim(a, id_of('a'), segment_geometry(a).size, &claim, &why), 0);
	nm_vmseg_release(claim);
	nm_vmseg_detach(a);
}

NM_TEST(a_table_that_was_overwritten_while_in_use_is_told)
{
	const uint64_t at = segment_part_offset(0, PART);
	struct nm_vmseg_claim *first, *second;
	struct nm_vmseg *a;
	struct nm_vmseg_shape shape;
	struct nm_reason why;
	uint64_t word = ~UINT64_C(0);

	segment_file(1, PART);
	nm_vmseg_shape_init(PART, &shape);
	a = segment_attach(0);
	first = segment_open(a, 'a', NULL);
	segment_poke(at + shape.slots_off + 8, &word, sizeof(word)); /* its window_off */
	NM_CHECK_EQ(nm_vmseg_claim(a, id_of('b'), segment_geometry(a).size, &second, &why),
		    -EBADMSG);
	NM_CHECK_HAS(why.text, "slot 0 of this machine's part was overwritten");
	segment_poke(at, &word, sizeof(word)); /* the magic number */
	NM_CHECK_EQ(nm_vmseg_claim(a, id_of('b'), segment_geometry(a).size, &second, &why),
		    -EBADMSG);
	NM_CHECK_HAS(why.text, "overwritten while in use");
	/* when all have ended the next one finds everything in order */
	nm_vmseg_release(first);
	NM_CHECK_EQ(nm_vmseg_claim(a, id_of('b'), segment_geometry(a).size, &second, &why), 0);
	nm_vmseg_release(second);
	nm_vmseg_detach(a);
}

/* Comes and goes until it is killed, wherever that happens. */
static void come_and_go(void *arg)
{
	struct nm_vmseg *segment = segment_attach(0);
	struct nm_geometry geometry = segment_geometry(segment);
	struct nm_vmseg_claim *claim;
	struct nm_window window;
	struct nm_reason why;

	(void)arg;
	for (;;) {
		if (nm_vmseg_claim(segment, id_of('g'), geometry.size, &claim, &why))
			continue;
		if (nm_vmseg_open(claim, &geometry, &window, &why))
			_exit(1);
		nm_vmseg_beat(claim);
		nm_vmseg_release(claim);
	}
}

NM_TEST_WITHIN(whoever_dies_anywhere_leaves_nothing_locked, 100)
{
	struct nm_vmseg *a;
	uint64_t seed = 5;

	segment_file(1, 16 * SEGMENT_MIB);
	for (int round = 0; round < 12; round++) {
		pid_t children[3];
		struct nm_vmseg_claim *claim;
		struct nm_geometry geometry;
		struct nm_vmseg_peer peer;
		struct nm_reason why = {""};
		uint64_t cursor = 0;
		int err;

		for (int i = 0; i < 3; i++)
			children[i] = nm_test_fork(come_and_go, NULL);
		nm_test_sleep_ms((unsigned int)(nm_test_random(&seed) % 60));
		for (int i = 0; i < 3; i++) {
			kill(children[i], SIGKILL);
			nm_test_join(children[i], SIGKILL);
		}
		a = segment_attach(0);
		geometry = segment_geometry(a);
		err = nm_vmseg_claim(a, id_of('a'), geometry.size, &claim, &why);
		if (err)
			nm_test_fail(__FILE__, __LINE__, "round %d: %s", round, why.text);
		while (nm_vmseg_next(a, &cursor, &peer))
			NM_CHECK_EQ(peer.state, NM_VMSEG_GONE);
		nm_vmseg_release(claim);
		nm_vmseg_detach(a);
	}
}
