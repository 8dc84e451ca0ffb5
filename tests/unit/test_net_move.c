/* SPDX-License-Identifier: Apache-2.0 */
/* A machine leaves its segment amid a job and returns; the network is libfabric's (tcp, loopback). */
#include <stdlib.h>

#include "moving.h"

static bool is_asked, is_frozen;

static void leave(unsigned int round)
{
	int err;

	if (round == 40 && !is_asked) {
		NM_CHECK_EQ(machine_ask(1, NM_VMSEG_QUIESCE), 0);
		is_asked = true;
	}
	if (!is_asked || is_frozen || round % 50)
		return;
	err = machine_ask(1, NM_VMSEG_FROZEN);
	NM_CHECK(!err || err == -EBUSY);
	is_frozen = !err;
}

NM_TEST_WITHIN(a_machine_leaves_for_a_real_network, 120)
{
	/* Knobs are read before the fixture of the network sets it. */
	setenv("NEARMETAL_NET", "tcp", 1);
	moving_create(3);
	moving_talk(40, NULL);
	NM_CHECK_EQ(moving_channel(0, 1), NM_CHANNEL_VMSEG);
	while (!is_frozen)
		moving_talk(60, leave);
	moving_talk(40, NULL);
	for (unsigned int i = 0; i < 3; i += 2) {
		NM_CHECK_EQ(moving_channel(i, 1), NM_CHANNEL_NET);
		NM_CHECK_EQ(moving_channel(1, i), NM_CHANNEL_NET);
		NM_CHECK(moving_sent(i, 1, NM_CHANNEL_NET) > 0);
		NM_CHECK(moving_sent(i, 1, NM_CHANNEL_VMSEG) > 0);
	}
	NM_CHECK_EQ(moving_channel(0, 2), NM_CHANNEL_VMSEG);
	moving_destroy();
}

static bool is_near(void)
{
	bool is_near = true;

	for (unsigned int i = 0; i < 3; i += 2)
		is_near &= moving_channel(i, 1) == NM_CHANNEL_VMSEG &&
			   moving_channel(1, i) == NM_CHANNEL_VMSEG;
	return is_near;
}

NM_TEST_WITHIN(a_machine_comes_back_from_a_real_network, 120)
{
	setenv("NEARMETAL_NET", "tcp", 1);
	moving_create(3);
	moving_talk(40, NULL);
	for (int i = 0; i < 5; i++) {
		while (!is_frozen)
			moving_talk(60, leave);
		moving_talk(10, NULL);
		NM_CHECK_EQ(machine_ask(1, NM_VMSEG_RUN), 0);
		is_asked = is_frozen = false;
		while (!is_near())
			moving_talk(5, NULL);
	}
	for (unsigned int i = 0; i < 3; i += 2) {
		NM_CHECK_EQ(near_facts(moving_node(i), moving_node(1)).nr_moves, 10);
		NM_CHECK_EQ(near_facts(moving_node(1), moving_node(i)).nr_moves, 10);
	}
	moving_destroy();
}
