/* SPDX-License-Identifier: Apache-2.0 */
#include "homes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"
#include "engine/protocol.h"

struct machine machines[MOVING_MAX];

void start(unsigned int nr)
{
	moving_create(nr);
	for (unsigned int i = 0; i < nr; i++)
		machines[i] = (struct machine){.part = i};
	segment_use(1);
	segment_file(MACHINES, MACHINE_SIZE);
	segment_use(0);
}

struct shm_transport *shm_of(unsigned int i)
{
	return nm_shm_of(moving_node(i)->engine->transports[NM_CHANNEL_VMSEG]);
}

int ask(unsigned int i, enum nm_vmseg_state state)
{
	int err;

	segment_use(machines[i].segment);
	err = machine_ask(machines[i].part, state);
	segment_use(0);
	return err;
}

unsigned int count_mapped(unsigned int segment)
{
	char line[512], name[128];
	unsigned int nr = 0;
	FILE *maps = fopen("/proc/self/maps", "re");

	snprintf(name, sizeof(name), segment ? "%s/segment-%u\n" : "%s/segment\n", nm_test_dir(),
		 segment);
	NM_CHECK(maps != NULL);
	while (fgets(line, sizeof(line), maps))
		nr += strstr(line, name) != NULL;
	fclose(maps);
	return nr;
}

void begin_to_leave(unsigned int i)
{
	NM_CHECK_EQ(ask(i, NM_VMSEG_QUIESCE), 0);
	machines[i].place = ASKED;
}

bool is_gone(unsigned int i)
{
	int err = machines[i].place == ASKED ? ask(i, NM_VMSEG_FROZEN) : 0;

	NM_CHECK(!err || err == -EBUSY);
	if (err)
		return false;
	if (machines[i].place == ASKED)
		near_hide_description(moving_node(i));
	machines[i].place = AWAY;
	return !shm_of(i)->segment;
}

void arrive(unsigned int i, unsigned int segment, unsigned int part)
{
	struct nm_vmseg *guest_unit;
	struct nm_reason why;

	machines[i] = (struct machine){.segment = segment, .part = part};
	segment_use(segment);
	near_describe(moving_node(i), part);
	/* Another machine had the part before, or none. */
	guest_unit = segment_attach(part);
	NM_CHECK_EQ(nm_vmseg_ask(guest_unit, NM_VMSEG_RUN, &why), 0);
	nm_vmseg_detach(guest_unit);
	segment_use(0);
}

void check_sound(unsigned int a, unsigned int b)
{
	struct nm_peer_facts facts = near_facts(moving_node(a), moving_node(b));

	NM_CHECK_EQ(facts.nr_quarantines, 0);
	NM_CHECK(!facts.down);
}

void step(unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		nm_engine_progress(moving_node(i)->engine);
	nm_test_sleep_ms(1);
}

void leave_at_once(unsigned int i, unsigned int nr)
{
	begin_to_leave(i);
	while (!is_gone(i))
		step(nr);
}

void say_home(uint64_t home, uint64_t opening)
{
	const struct nm_packet packet = {.op = NM_OP_HOME, .tag = home, .data = opening};

	moving_forge(0, 1, NM_CHANNEL_NET, &packet, NULL);
}
