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

static unsigned int nr_published;

static void published(void *arg)
{
	NM_CHECK(arg == &nr_published);
	nr_published++;
}

static struct nm_engine *publishing_engine(const char *stats_ms)
{
	struct nm_engine_config config = {.publish = published, .publish_arg = &nr_published};
	struct nm_engine *engine;

	setenv("NEARMETAL_STATS_MS", stats_ms, 1);
	NM_CHECK_EQ(nm_engine_create(&config, &engine), 0);
	return engine;
}

NM_TEST(what_is_known_is_published_now_and_then)
{
	struct nm_engine *engine = publishing_engine("40");

	yields_in(engine, 64);
	NM_CHECK_EQ(nr_published, 1);
	yields_in(engine, 64);
	NM_CHECK(nr_published <= 2);
	nm_test_sleep_ms(50);
	nr_published = 0;
	yields_in(engine, 64);
	NM_CHECK_EQ(nr_published, 1);
	nm_engine_destroy(engine);
}

/* Who sleeps between its calls makes few of them. */
NM_TEST(who_sleeps_looks_at_the_clock_in_its_next_call)
{
	struct nm_engine *engine = publishing_engine("1");
	struct nm_doorbells doorbells = {0};

	yields_in(engine, 5);
	for (unsigned int i = 1; i <= 3; i++) {
		NM_CHECK(nm_engine_sleep(engine, &doorbells));
		nm_test_sleep_ms(3);
		nm_engine_wake(engine);
		yields_in(engine, 1);
		NM_CHECK_EQ(nr_published, i);
	}
	nm_engine_destroy(engine);
}

NM_TEST(nothing_is_published_without_an_interval)
{
	struct nm_engine *engine = publishing_engine("0");

	yields_in(engine, 1000);
	NM_CHECK_EQ(nr_published, 0);
	nm_engine_destroy(engine);
}
