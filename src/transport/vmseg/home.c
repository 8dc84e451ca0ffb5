/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/vmseg/home.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/params.h"

/* Between two looks at the description. */
#define LOOK_NS (100 * NM_NS_PER_MS)
/* After a failure to attach, which may map all of the segment, and its lines in the log. */
#define RETRY_NS NM_NS_PER_S
#define FAILURE_LINES 4

/* Endpoints that a part has room for if nothing says more. */
#define USUAL_ENDPOINTS 8

/* How many endpoints share the part: the knob, or the guest unit's number, which is never small. */
static uint32_t nr_endpoints(const struct nm_vmseg_config *config)
{
	uint32_t nr = (uint32_t)nm_params()->segment_endpoints;

	return nr ? nr : (uint32_t)nm_max_u64(config->endpoints, USUAL_ENDPOINTS);
}

/* The own slot with its window, which neighbours may find from now on. */
static int open_window(struct shm_transport *shm, const struct nm_vmseg_config *config,
		       const uint8_t id[6], struct nm_reason *ret_reason)
{
	const struct nm_params *params = nm_params();
	struct nm_geometry geometry;
	int err;

	err = nm_vmseg_geometry(shm->segment, nr_endpoints(config), (uint32_t)params->segment_lanes,
				(uint32_t)params->ring_slots, (uint32_t)params->chunk_size,
				params->pool_size, &geometry, ret_reason);
	if (err)
		return err;
	err = nm_vmseg_claim(shm->segment, id, geometry.size, &shm->claim, ret_reason);
	return err ? err : nm_vmseg_open(shm->claim, &geometry, &shm->window, ret_reason);
}

/* Nothing of the segment stays in this process: no mapping, no descriptor, no lock of the slot. */
static void give_up(struct shm_transport *shm)
{
	nm_window_destroy(&shm->window);
	nm_vmseg_release(shm->claim);
	shm->claim = NULL;
	nm_vmseg_detach(shm->segment);
	shm->segment = NULL;
}

int nm_home_open(struct shm_transport *shm, const struct nm_vmseg_config *config,
		 const uint8_t id[6], struct nm_reason *ret_reason)
{
	int err = nm_vmseg_attach(config, &shm->segment, ret_reason);

	if (!err)
		err = open_window(shm, config, id, ret_reason);
	if (err)
		give_up(shm);
	else
		shm->home->config = *config;
	return err;
}

/* A description of this segment and this part, in the same files. */
static bool is_same(const struct nm_vmseg_config *a, const struct nm_vmseg_config *b)
{
	return a->part == b->part && a->device == b->device &&
	       !memcmp(a->token, b->token, sizeof(a->token)) && !strcmp(a->own, b->own) &&
	       !strcmp(a->all, b->all) && !strcmp(a->lock, b->lock);
}

static void leave_home(struct shm_transport *shm)
{
	if (!nm_sessions_pause(shm->sessions))
		return;
	/* No link and no source uses the pool and the window. */
	nm_pool_fini(&shm->pool);
	give_up(shm);
	NM_FAULT("segment-given-up");
	nm_info("the segment was given up: its description %.200s was taken away", shm->home->path);
}

static int furnish(struct shm_transport *shm, struct nm_reason *ret_reason)
{
	const struct nm_geometry *geometry = &shm->window.geometry;
	const struct nm_sessions_config config = {
		.dir = shm->home->config.all,
		.segment = shm->segment,
		.claim = shm->claim,
		.window = &shm->window,
	};
	int err = nm_shm_furnish_window(shm, ret_reason);

	if (err)
		return err;
	err = nm_sessions_resume(shm->sessions, &config, ret_reason);
	if (err)
		nm_pool_fini(&shm->pool);
	else
		nm_info("a segment was found: part %u of %.200s, with %u lanes",
			shm->home->config.part, shm->home->config.all, geometry->nr_lanes);
	return err;
}

static void find_home(struct shm_transport *shm, const struct nm_vmseg_config *config,
		      uint64_t now_ns)
{
	const struct nm_identity *who = nm_sessions_who(shm->sessions);
	uint8_t home[NM_HOME_LEN];
	struct nm_reason why;
	int err;

	err = nm_home_open(shm, config, who->id, &why);
	if (!err) {
		NM_FAULT("segment-found");
		err = furnish(shm, &why);
		if (err)
			give_up(shm);
	}
	if (err) {
		shm->home->look_ns = now_ns + RETRY_NS;
		/* The description usually comes before the machine is told that it stays. */
		if (shm->home->nr_lines++ < FAILURE_LINES)
			nm_log(err == -EBUSY ? NM_LOG_INFO : NM_LOG_WARN,
			       "the segment of %.200s cannot be used yet: %s", shm->home->path,
			       why.text);
		return;
	}
	nm_home_name(config->token, config->part, home);
	if (shm->base.sink.homed)
		shm->base.sink.homed(&shm->base, home);
}

void nm_home_look(struct shm_transport *shm)
{
	uint64_t now_ns = nm_clock_ns();
	struct nm_vmseg_config config;
	int err;

	if (now_ns < shm->home->look_ns)
		return;
	shm->home->look_ns = now_ns + LOOK_NS;
	err = nm_vmseg_config_load(shm->home->path, &config, NULL);
	if (shm->segment && (err == -ENOENT || (!err && !is_same(&config, &shm->home->config)))) {
		leave_home(shm);
		return;
	}
	if (shm->segment || err)
		return;
	config.tries = &shm->home->tries;
	find_home(shm, &config, now_ns);
}
