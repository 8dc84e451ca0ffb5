/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of a move: docs/design/migration.md has them in words, and the model of the protocol,
 * tests/python/moving_tables.py, as it explores them.
 */
#include "base/compiler.h"
#include "engine/move.h"

static const char *const way_names[NM_NR_WAYS] = {
	"network", "joining", "memory", "leaving", "counting", "paused", "ended",
};

static const char *const way_event_names[NM_NR_WAY_EVENTS] = {
	"met", "said", "quiesced", "lost", "counted", "pause", "resumed", "down",
};

static const struct nm_move_step way_steps[] = {
	{NM_WAY_NETWORK, NM_WAY_MET, NM_WAY_JOINING},
	{NM_WAY_NETWORK, NM_WAY_PAUSE, NM_WAY_PAUSED},
	{NM_WAY_NETWORK, NM_WAY_DOWN, NM_WAY_ENDED},
	{NM_WAY_JOINING, NM_WAY_SAID, NM_WAY_MEMORY},
	{NM_WAY_JOINING, NM_WAY_QUIESCED, NM_WAY_NETWORK},
	{NM_WAY_JOINING, NM_WAY_LOST, NM_WAY_LEAVING},
	{NM_WAY_JOINING, NM_WAY_COUNTED, NM_WAY_NETWORK},
	{NM_WAY_JOINING, NM_WAY_DOWN, NM_WAY_ENDED},
	{NM_WAY_MEMORY, NM_WAY_QUIESCED, NM_WAY_LEAVING},
	{NM_WAY_MEMORY, NM_WAY_LOST, NM_WAY_LEAVING},
	{NM_WAY_MEMORY, NM_WAY_COUNTED, NM_WAY_NETWORK},
	{NM_WAY_MEMORY, NM_WAY_DOWN, NM_WAY_ENDED},
	{NM_WAY_LEAVING, NM_WAY_SAID, NM_WAY_COUNTING},
	{NM_WAY_LEAVING, NM_WAY_COUNTED, NM_WAY_NETWORK},
	{NM_WAY_LEAVING, NM_WAY_DOWN, NM_WAY_ENDED},
	{NM_WAY_COUNTING, NM_WAY_COUNTED, NM_WAY_NETWORK},
	{NM_WAY_COUNTING, NM_WAY_DOWN, NM_WAY_ENDED},
	{NM_WAY_PAUSED, NM_WAY_RESUMED, NM_WAY_NETWORK},
	{NM_WAY_PAUSED, NM_WAY_DOWN, NM_WAY_ENDED},
};

static const char *const place_names[NM_NR_PLACES] = {
	"run", "quiesce", "frozen", "pausing", "away", "stopped",
};

static const char *const order_names[NM_NR_ORDERS] = {
	"ask", "acknowledge", "pause", "cut", "arrive", "give up", "stop",
};

static const struct nm_move_step place_steps[] = {
	{NM_PLACE_RUN, NM_ORDER_ASK, NM_PLACE_QUIESCE},
	{NM_PLACE_RUN, NM_ORDER_STOP, NM_PLACE_STOPPED},
	{NM_PLACE_QUIESCE, NM_ORDER_ACKNOWLEDGE, NM_PLACE_FROZEN},
	{NM_PLACE_QUIESCE, NM_ORDER_GIVE_UP, NM_PLACE_RUN},
	{NM_PLACE_QUIESCE, NM_ORDER_STOP, NM_PLACE_STOPPED},
	{NM_PLACE_FROZEN, NM_ORDER_PAUSE, NM_PLACE_PAUSING},
	{NM_PLACE_FROZEN, NM_ORDER_GIVE_UP, NM_PLACE_RUN},
	{NM_PLACE_PAUSING, NM_ORDER_CUT, NM_PLACE_AWAY},
	{NM_PLACE_AWAY, NM_ORDER_ARRIVE, NM_PLACE_RUN},
	{NM_PLACE_STOPPED, NM_ORDER_ARRIVE, NM_PLACE_RUN},
};

const struct nm_move_table nm_ways = {
	.states = way_names,
	.events = way_event_names,
	.steps = way_steps,
	.nr_steps = NM_ARRAY_SIZE(way_steps),
};

const struct nm_move_table nm_places = {
	.states = place_names,
	.events = order_names,
	.steps = place_steps,
	.nr_steps = NM_ARRAY_SIZE(place_steps),
};

int nm_move_next(const struct nm_move_table *table, unsigned int state, unsigned int event)
{
	for (unsigned int i = 0; i < table->nr_steps; i++)
		if (table->steps[i].state == state && table->steps[i].event == event)
			return table->steps[i].next;
	return -1;
}
