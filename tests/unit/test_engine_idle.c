/* SPDX-License-Identifier: Apache-2.0 */
/* Polling without result: the processor is given to whoever else wants it. */
#include <sched.h>
#include <stdlib.h>

#include "traffic.h"

static unsigned int nr_yields;

/* Takes the place of the C library's. */
int sched_yield(void)
{
	nr_yields++;
	return 0;
}

static unsigned int yields_in(struct nm_engine *engine, unsigned int calls)
{
	nr_yields = 0;
	while (calls-- > 0)
		NM_CHECK_EQ(nm_engine_progress(engine), 0);
	return nr_yields;
}

NM_TEST(idle_polling_yields_and_work_stops_it)
{
	struct mesh *mesh;
	struct nm_engine *engine;
	char in[1];

	setenv("NEARMETAL_SPIN_US", "0", 1);
	mesh = mesh_create(NULL);
	engine = mesh_node(mesh, 0)->engine;
	/* The clock is not looked at in every call, and nobody yields before. */
	NM_CHECK_EQ(yields_in(engine, 63), 0);
	NM_CHECK_EQ(yields_in(engine, 10), 10);
	recv_from(mesh, 0, NULL, in, 1, 1, 0, NM_TAGGED, NULL);
	send_to(mesh, 0, 0, "x", 1, 1, NM_TAGGED, NULL);
	NM_CHECK(nm_engine_progress(engine) > 0);
	NM_CHECK_EQ(yields_in(engine, 63), 0);
	NM_CHECK_EQ(yields_in(engine, 10), 10);
	mesh_destroy(mesh);
}
