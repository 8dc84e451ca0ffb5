/* SPDX-License-Identifier: Apache-2.0 */
/* Open and close a channel through windows; also the flavor with sealed memfds. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/log.h"
#include "base/params.h"
#include "connect/rundir.h"
#include "transport/shm/shm_private.h"

int nm_shm_furnish_window(struct shm_transport *shm, struct nm_reason *ret_reason)
{
	const struct nm_geometry *geometry = &shm->window.geometry;
	int err = -ENOMEM;

	free(shm->sources);
	free(shm->readers);
	shm->sources = calloc(geometry->nr_lanes, sizeof(*shm->sources));
	shm->readers = aligned_alloc(NM_CACHE_LINE, geometry->nr_lanes * sizeof(*shm->readers));
	if (shm->sources && shm->readers)
		err = nm_pool_init(&shm->pool, shm->window.pool, geometry->chunk_size,
				   geometry->nr_chunks);
	if (err)
		nm_reason_set(ret_reason, "out of memory");
	return err;
}

int nm_shm_furnish(struct shm_transport *shm, struct nm_sessions_config *config,
		   struct nm_reason *ret_reason)
{
	const struct nm_params *params = nm_params();
	int err;

	shm->bounce = malloc(NM_RING_INLINE_LIMIT);
	if (!shm->bounce) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = nm_shm_furnish_window(shm, ret_reason);
	if (err)
		return err;
	config->window = &shm->window;
	config->session_size = sizeof(struct shm_session);
	config->connect_ms = (uint32_t)params->connect_ms;
	config->lease_ms = (uint32_t)params->lease_ms;
	config->features = shm->checked ? NM_FEATURE_CHECKSUM : 0;
	err = nm_sessions_create(config, &shm->sessions, ret_reason);
	if (!err) {
		shm->events = nm_sessions_event_word(shm->sessions);
		shm->event_doorbell = nm_sessions_event_doorbell(shm->sessions);
	}
	return err;
}

void nm_shm_destroy(struct nm_transport *transport)
{
	struct shm_transport *shm;

	if (!transport)
		return;
	shm = nm_shm_of(transport);
	nm_sessions_destroy(shm->sessions);
	nm_pool_fini(&shm->pool);
	nm_window_destroy(&shm->window);
	nm_vmseg_release(shm->claim);
	nm_vmseg_detach(shm->segment);
	free(shm->home);
	free(shm->bounce);
	free(shm->checked);
	free(shm->sources);
	free(shm->readers);
	free(shm);
}

/* The part is needed before the segment is opened: it belongs to the identity. */
static void add_part(struct nm_identity *who)
{
	struct nm_vmseg_config segment;

	if (!nm_vmseg_config_load(nm_params()->segment, &segment, NULL))
		nm_identity_set_part(who, segment.token, segment.part);
}

static int open_sealed(struct shm_transport *shm, struct nm_identity *who, const void *arg,
		       struct nm_reason *ret_reason)
{
	const struct nm_params *params = nm_params();
	struct nm_sessions_config config = {.dir = params->rundir,
					    .cma = !strcmp(params->cma, "auto")};
	struct nm_geometry geometry;
	int err;

	(void)arg;
	err = nm_geometry_init((uint32_t)params->max_local_peers, (uint32_t)params->ring_slots,
			       (uint32_t)params->chunk_size, params->pool_size, &geometry);
	if (err) {
		nm_reason_set(ret_reason, "the settings of the window do not fit together");
		return err;
	}
	err = nm_window_create(&geometry, who->id, &shm->window, ret_reason);
	if (err)
		return err;
	add_part(who);
	config.who = *who;
	err = nm_shm_furnish(shm, &config, ret_reason);
	if (!err)
		*who = *nm_sessions_who(shm->sessions);
	return err;
}

int nm_shm_create(const struct shm_flavor *flavor, const void *arg, const struct nm_sink *sink,
		  struct nm_identity *who, struct nm_transport **ret_transport,
		  struct nm_reason *ret_reason)
{
	const struct nm_params *params = nm_params();
	struct shm_transport *shm;
	int err = 0;

	if (!params) {
		nm_reason_set(ret_reason, "the environment is not valid");
		return -EINVAL;
	}
	shm = calloc(1, sizeof(*shm));
	if (!shm) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	shm->window.fd = -1;
	shm->ops = *flavor->ops;
	shm->base.kind = flavor->kind;
	shm->base.ops = &shm->ops;
	shm->base.copy = flavor->copy;
	shm->base.quarantine = &nm_shm_quarantine_ops;
	shm->base.place = &nm_shm_place_ops;
	shm->base.move = &nm_shm_move_ops;
	shm->base.sink = *sink;
	shm->base.max_payload = (uint32_t)params->chunk_size;
	shm->base.eager_max = (uint32_t)nm_min_u64(params->shm_eager_max, params->chunk_size);
	if (!strcmp(params->checksum, "on")) {
		shm->ops.send = nm_shm_send_checked;
		shm->base.place = NULL;
		err = nm_shm_init_checks(shm, ret_reason);
	}
	if (!err)
		err = flavor->open(shm, who, arg, ret_reason);
	if (err) {
		nm_shm_destroy(&shm->base);
		return err;
	}
	*ret_transport = &shm->base;
	return 0;
}

static void say_opened(struct nm_reason *ret_reason)
{
	const struct nm_params *params = nm_params();
	char path[NM_RUNDIR_PATH_MAX];

	nm_rundir_find(params->rundir, path);
	nm_reason_set(ret_reason, "through %.80s, CMA %.10s", path, params->cma);
}

static int shm_create(const struct nm_sink *sink, struct nm_address *address,
		      struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	static const struct nm_transport_ops ops = {
		.connect = nm_shm_connect,
		.send = nm_shm_send,
		.drained = nm_shm_drained,
		.describe = nm_shm_describe,
		.check_alive = nm_transport_unchecked,
		.sleep = nm_shm_sleep,
		.wake = nm_shm_wake,
		.progress = nm_shm_progress,
		.destroy = nm_shm_destroy,
	};
	static const struct shm_flavor flavor = {
		.kind = &nm_shm_kind,
		.ops = &ops,
		.copy = &nm_shm_copy_ops,
		.open = open_sealed,
	};
	int err = nm_shm_create(&flavor, NULL, sink, &address->who, ret_transport, ret_reason);

	if (err)
		nm_log_once(NM_LOG_WARN, "no shared memory, slower channels are used: %s",
			    ret_reason->text);
	else
		say_opened(ret_reason);
	return err;
}

const struct nm_transport_kind nm_shm_kind = {
	.channel = NM_CHANNEL_SHM,
	.rank = 20,
	.flags = NM_TRANSPORT_WATCHES,
	.create = shm_create,
};
