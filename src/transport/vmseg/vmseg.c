/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel between virtual machines of one host. Rings, pool, credits and checks are those of
 * shm.c, with windows in a segment (vmseg/attach.h). Neighbours are other kernels, so all data goes
 * in packets, and an expired lease is a death. A window does not outlive its owner for long, so
 * closing waits until peers have taken everything.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/params.h"
#include "transport/vmseg/home.h"

/* Calls of progress to skip while there is no source. */
#define PAUSE_WITHOUT_SOURCES 64

static unsigned int segment_progress(struct nm_transport *transport)
{
	unsigned int done = nm_shm_progress(transport);

	if (!nm_shm_of(transport)->nr_sources) {
		transport->pause = PAUSE_WITHOUT_SOURCES;
		if (nm_unlikely(nm_sessions_is_away(nm_shm_of(transport)->sessions)))
			nm_home_look(nm_shm_of(transport));
	}
	return done;
}

/* No kernel wakes the sleepers of another one. New sessions come from a thread of this one. */
static bool segment_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	struct shm_transport *shm = nm_shm_of(transport);

	return nm_shm_prepare_sleep(shm, doorbells) && !shm->nr_sources && !shm->nr_unsettled;
}

/* After the end another endpoint may reuse the window's bytes: only taken packets are safe. */
static bool segment_drained(struct nm_link *base)
{
	const struct shm_session *s = nm_shm_session_of(base);
	const struct nm_ring_writer *writer = &s->link.writer;

	/* Partner: nm_ring_return_credits() of the reader. */
	return s->base.state != NM_SESSION_UP || s->is_left || s->base.out.is_lost ||
	       atomic_load_explicit(&writer->feedback->consumed, memory_order_acquire) ==
		       writer->position;
}

static unsigned int count_untaken(const struct shm_transport *shm)
{
	unsigned int nr = 0;

	nm_shm_for_each(s, shm) nr += nm_shm_has_link(s) && !segment_drained(&s->link.base);
	return nr;
}

/*
 * Read arrivals without the engine. During destroy() it must get no call from this transport,
 * because its records may name links of freed transports.
 */
static void discard_arrivals(struct shm_transport *shm)
{
	struct nm_session *session;
	enum nm_session_event event;
	struct nm_packet pkt;
	const void *payload;

	/* Late callers may be closing too: their packets are read, and a peer's end needs no work. */
	while ((session = nm_sessions_next_event(shm->sessions, &event)))
		if (event == NM_SESSION_SOURCE && session->state == NM_SESSION_UP)
			nm_shm_add_reader(shm, nm_shm_from(session));
	for (uint32_t i = 0; i < shm->nr_sources; i++) {
		struct nm_ring_reader *reader = &shm->readers[i];

		nm_shm_resume(shm, shm->sources[i]);
		/* At most one lap: other peers must be served and the time is limited. */
		for (uint32_t n = 0; n <= reader->mask; n++) {
			if (nm_ring_peek(reader, shm->bounce, &pkt, &payload) <= 0)
				break;
			nm_ring_release(reader);
		}
		nm_ring_return_credits(reader);
	}
}

static void segment_destroy(struct nm_transport *transport)
{
	struct shm_transport *shm;
	unsigned int nr = 0;

	if (!transport)
		return;
	shm = nm_shm_of(transport);
	/* Others may be closing too, and wait until this endpoint takes their packets. */
	while (shm->sessions && (nr = count_untaken(shm)) &&
	       nm_clock_ns() < transport->close_by_ns) {
		discard_arrivals(shm);
		sched_yield();
	}
	NM_FAULT("segment-all-taken");
	if (nr)
		nm_info("segment channel closed before %u peers had read everything", nr);
	nm_shm_destroy(transport);
}

static int open_segment(struct shm_transport *shm, struct nm_identity *who, const void *arg,
			struct nm_reason *ret_reason)
{
	const struct nm_vmseg_config *segment = arg;
	struct nm_sessions_config config = {
		.dir = segment->all,
		.peer_lease_ms = (uint32_t)nm_params()->segment_lease_ms,
		.move_ms = (uint32_t)nm_params()->move_ms,
	};
	int err;

	shm->home = calloc(1, sizeof(*shm->home));
	if (!shm->home) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	snprintf(shm->home->path, sizeof(shm->home->path), "%s", nm_params()->segment);
	err = nm_home_open(shm, segment, who->id, ret_reason);
	if (err)
		return err;
	nm_identity_set_part(who, segment->token, segment->part);
	config.who = *who;
	/* It may hold old data of a neighbour, and only a lease shows the neighbour's end. */
	shm->is_wary = true;
	config.segment = shm->segment;
	config.claim = shm->claim;
	return nm_shm_furnish(shm, &config, ret_reason);
}

static int vmseg_create(const struct nm_sink *sink, struct nm_address *address,
			struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	static const struct nm_transport_ops ops = {
		.connect = nm_shm_connect,
		.send = nm_shm_send,
		.drained = segment_drained,
		.describe = nm_shm_describe,
		.check_alive = nm_transport_unchecked,
		.sleep = segment_sleep,
		.wake = nm_transport_unwoken,
		.progress = segment_progress,
		.destroy = segment_destroy,
	};
	static const struct shm_flavor flavor = {
		.kind = &nm_vmseg_kind,
		.ops = &ops,
		.open = open_segment,
	};
	const struct nm_params *params = nm_params();
	struct nm_vmseg_config config;
	int err = params ? nm_vmseg_config_load(params->segment, &config, ret_reason) : 0;

	if (err == -ENOENT)
		return err;
	if (!err)
		err = nm_shm_create(&flavor, &config, sink, &address->who, ret_transport,
				    ret_reason);
	if (err)
		nm_log_once(NM_LOG_WARN,
			    "no memory shared with other machines, slower channels are used: %s",
			    ret_reason->text);
	else
		nm_reason_set(ret_reason, "described by %.80s", params->segment);
	return err;
}

const struct nm_transport_kind nm_vmseg_kind = {
	.channel = NM_CHANNEL_VMSEG,
	.rank = 30,
	.flags = NM_TRANSPORT_OPTIONAL | NM_TRANSPORT_WATCHES,
	.create = vmseg_create,
};
