/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large messages that a device copies by itself from and to the parts of two machines, one of which
 * leaves the segment meanwhile: from then on no copy goes into or out of the memory that is left.
 */
#include "engine/internal.h"
#include "transport/shm/shm_private.h"
#include "vmseg_nodes.h"
/* The last one: its nodes `a` and `b` would be hidden by parameters of the others. */
#include "device_fixture.h"

/* Transfers 0 and 1 go from A to B, 2 and 3 from B to A. */
enum { NR_EACH = 2, PART_OF_B = 1 };

/* What one of the two sends from, and where the other one reads it. */
struct side {
	struct near_node *node, *other;
	const struct nm_pool *pool;
	const char *view;
	unsigned int nr_checks; /* after its way was left */
};

static struct shm_transport *memory_of(const struct near_node *node)
{
	return nm_shm_of(node->engine->transports[NM_CHANNEL_VMSEG]);
}

static struct side side_of(struct near_node *node, struct near_node *other)
{
	struct nm_session *session =
		nm_sessions_find(memory_of(other)->sessions, &node->address.who);

	NM_CHECK(session != NULL);
	return (struct side){
		.node = node,
		.other = other,
		.pool = &memory_of(node)->pool,
		.view = (const char *)session->window.pool,
	};
}

static unsigned int nr_going_in(const void *base, const struct nm_pool *pool)
{
	unsigned int nr = 0;

	for (int i = 1; i < 64; i++)
		nr += going[i].host && (uintptr_t)going[i].host - (uintptr_t)base <
					       (size_t)pool->nr_chunks * pool->chunk_size;
	return nr;
}

static void begin_transfers(void)
{
	plug();
	a = near_create_on(0, true);
	b = near_create_on(PART_OF_B, true);
	near_link(a, b);
	near_link(b, a);
	for (unsigned int i = 0; i < 2 * NR_EACH; i++) {
		struct near_node *from = i < NR_EACH ? a : b, *to = i < NR_EACH ? b : a;

		write_pattern(i * LEN, LEN, i);
		post(to, from, false, at((4 + i) * LEN), LEN);
		post(from, to, true, at(i * LEN), LEN);
	}
}

/* The writer has left: its device writes no place, and once the reader has, too, nothing is read. */
static void check_side(struct side *s)
{
	if (near_peer(s->node, s->other)->way == NM_WAY_MEMORY)
		return;
	s->nr_checks++;
	NM_CHECK_EQ(nr_going_in(s->pool->base, s->pool), 0);
	if (near_peer(s->node, s->other)->way == NM_WAY_NETWORK)
		NM_CHECK_EQ(nr_going_in(s->view, s->pool), 0);
}

static void move_amid(bool net_is_slow)
{
	unsigned int nr_left = 4 * NR_EACH, nr_seen = 0, round = 0;
	bool is_asked = false, is_frozen = false;
	struct side sides[2];

	begin_transfers();
	sides[0] = side_of(a, b);
	sides[1] = side_of(b, a);
	near_hold_net(a, net_is_slow);
	while (nr_left || !is_frozen) {
		near_step(a, b, NULL);
		nr_left -= nr_completed(a) + nr_completed(b);
		/* Both devices write places and read them. */
		for (unsigned int i = 0; i < 2 && !is_asked; i++)
			nr_seen |= (nr_going_in(sides[i].pool->base, sides[i].pool) > 0) << i |
				   (nr_going_in(sides[i].view, sides[i].pool) > 0) << (2 + i);
		if (!is_asked && nr_seen == 15) {
			NM_CHECK_EQ(machine_ask(PART_OF_B, NM_VMSEG_QUIESCE), 0);
			is_asked = true;
		}
		check_side(&sides[0]);
		check_side(&sides[1]);
		if (++round % 64 == 0)
			near_hold_net(a, false);
		if (is_asked && !is_frozen)
			is_frozen = machine_ask(PART_OF_B, NM_VMSEG_FROZEN) == 0;
		NM_CHECK(is_asked || nr_left);
	}
	for (unsigned int i = 0; i < 2 * NR_EACH; i++)
		check_pattern((4 + i) * LEN, LEN, i);
	for (unsigned int i = 0; i < 2; i++) {
		NM_CHECK(sides[i].nr_checks > 0);
		NM_CHECK_EQ(sides[i].pool->nr_free, sides[i].pool->nr_chunks);
		NM_CHECK(!near_facts(sides[i].node, sides[i].other).down);
	}
	close_both();
}

NM_TEST_WITHIN(a_machine_leaves_amid_copies_of_devices, 120)
{
	move_amid(false);
}

NM_TEST_WITHIN(a_machine_leaves_amid_copies_of_devices_on_a_slow_network, 120)
{
	move_amid(true);
}
