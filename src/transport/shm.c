/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel through shared windows: boxes and pool chunks of peers that have been met
 * (locality/meet.h). Sending writes my own window, receiving reads the peer's; no system call,
 * allocation, lock or log on either way.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/copy.h"
#include "base/log.h"
#include "base/params.h"
#include "locality/meet.h"
#include "shm/box.h"
#include "shm/pool.h"
#include "transport/transport.h"

/* Packets per source and progress() call, so that every source and transport gets its turn. */
#define SHM_BATCH 32

enum peer_state {
	PEER_UP,
	PEER_CLOSING,  /* hung up: what it had sent is still being delivered */
	PEER_CAST_OUT, /* did what no sound peer does: nothing more is taken from it */
	PEER_DOWN,
};

struct shm_link;

/* Another endpoint, in either or both directions. */
struct shm_peer {
	struct shm_peer *next;
	struct nm_identity who;
	struct nm_peer_label label;
	struct nm_peer *cookie;
	struct shm_link *link;	     /* me -> peer */
	struct nm_encounter *source; /* peer -> me */
	uint32_t source_index;
	enum peer_state state;
	int err; /* from CLOSING on */
	struct nm_reason why;
};

struct shm_link {
	struct nm_link base;
	struct nm_box_writer writer;
	struct nm_pool_user chunks;
	bool down;
	struct shm_peer *peer;
	struct nm_encounter *encounter;
	struct nm_link_facts facts;
	struct shm_link *next;
};

struct shm_transport {
	struct nm_transport base;
	const nm_meet_word *events;
	struct nm_box_reader *readers; /* of active sources; nr_lanes of them fit */
	struct shm_peer **sources;     /* whose reader it is */
	uint32_t nr_sources;
	uint32_t nr_ending; /* peers between UP and DOWN */
	uint8_t *bounce;
	struct nm_pool pool;
	struct shm_link *links;
	struct shm_peer *peers;
	struct nm_meet *meet;
	struct nm_window window;
};

static struct shm_transport *shm_of(struct nm_transport *transport)
{
	return nm_container_of(transport, struct shm_transport, base);
}

static struct shm_link *link_of(struct nm_link *link)
{
	return nm_container_of(link, struct shm_link, base);
}

static struct shm_peer *find_peer(struct shm_transport *shm, const struct nm_identity *who)
{
	struct shm_peer *peer;

	for (peer = shm->peers; peer; peer = peer->next)
		if (nm_identity_equal(&peer->who, who))
			break;
	return peer;
}

static struct shm_peer *find_or_add_peer(struct shm_transport *shm, const struct nm_identity *who)
{
	struct shm_peer *peer = find_peer(shm, who);

	if (peer)
		return peer;
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->who = *who;
	peer->next = shm->peers;
	shm->peers = peer;
	return peer;
}

static void begin_end(struct shm_transport *shm, struct shm_peer *peer, enum peer_state state,
		      int err, const struct nm_reason *why)
{
	if (peer->state != PEER_UP)
		return;
	peer->state = state;
	peer->err = err;
	peer->why = *why;
	if (peer->link)
		peer->link->down = true;
	shm->nr_ending++;
}

/* The peer broke the rules of the shared bytes. */
static NM_COLD void cast_out(struct shm_transport *shm, struct shm_peer *peer, const char *what)
{
	struct nm_reason why;

	nm_reason_set(&why, "%s wrote what no sound peer writes: %s", peer->label.text, what);
	if (peer->state == PEER_UP)
		nm_error("%s; its connection is closed", why.text);
	begin_end(shm, peer, PEER_CAST_OUT, -EBADMSG, &why);
}

static void init_link(struct shm_transport *shm, struct shm_link *link,
		      const struct nm_encounter *encounter)
{
	struct nm_link_facts *facts = &link->facts;

	nm_box_writer_init(&link->writer, nm_window_box(&shm->window, encounter->own_lane),
			   shm->window.geometry.box_slots,
			   &encounter->window->lanes[encounter->peer_lane], encounter->start,
			   (uint32_t)nm_params()->inline_max);
	facts->relation = encounter->relation;
	facts->channel = NM_CHANNEL_SHM;
	facts->integrity = NM_INTEGRITY_ENFORCED;
	facts->label = encounter->label;
	nm_reason_set(&facts->reason, "met in each other's sealed window by way of %.100s (%s)",
		      nm_meet_path(shm->meet),
		      encounter->relation == NM_RELATION_NODE ? "one PID namespace" :
								"another PID namespace");
}

/* Is there a reason not to try? */
static int check_peer(const struct shm_peer *peer, struct nm_reason *ret_reason)
{
	if (peer && peer->state != PEER_UP) {
		nm_reason_set(ret_reason, "it is gone: %.150s", peer->why.text);
		return -EHOSTUNREACH;
	}
	if (peer && peer->link) {
		nm_reason_set(ret_reason, "a link to it exists already");
		return -EISCONN;
	}
	return 0;
}

static int shm_connect(struct nm_transport *transport, const struct nm_address *address,
		       struct nm_peer *cookie, struct nm_link **ret_link,
		       struct nm_reason *ret_reason)
{
	struct shm_transport *shm = shm_of(transport);
	struct shm_link *link;
	struct shm_peer *peer;
	int err;

	err = check_peer(find_peer(shm, &address->who), ret_reason);
	if (err)
		return err;
	link = calloc(1, sizeof(*link));
	if (!link) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = nm_meet_visit(shm->meet, &address->who, &link->encounter, ret_reason);
	if (err)
		goto err_free;
	/* Only now: peers that are not near leave nothing behind. */
	peer = find_or_add_peer(shm, &address->who);
	if (!peer) {
		nm_reason_set(ret_reason, "out of memory");
		nm_meet_leave(shm->meet, link->encounter, -ENOMEM, ret_reason);
		err = -ENOMEM;
		goto err_free;
	}
	if (!shm->links)
		nm_window_warm(&shm->window);
	init_link(shm, link, link->encounter);
	link->base.transport = transport;
	link->base.peer = cookie;
	link->peer = peer;
	link->encounter->cookie = peer;
	link->next = shm->links;
	shm->links = link;
	peer->label = link->encounter->label;
	peer->cookie = cookie;
	peer->link = link;
	*ret_link = &link->base;
	nm_reason_set(ret_reason, "%s", link->facts.reason.text);
	return 0;

err_free:
	free(link);
	return err;
}

/* Take back the chunks that the peer of LINK says it has read. */
static int reclaim(struct shm_transport *shm, struct shm_link *link)
{
	/* Partner: nm_box_release() of the reader. */
	uint64_t freed =
		atomic_load_explicit(&link->writer.feedback->chunks_freed, memory_order_acquire);

	return nm_pool_reclaim(&shm->pool, &link->chunks, freed);
}

static __attribute__((noinline)) int take_chunk_slowly(struct shm_transport *shm,
						       struct shm_link *link, uint32_t len,
						       uint32_t *ret_index, uint32_t *ret_offset)
{
	struct shm_link *other;

	for (other = shm->links; other; other = other->next)
		if (other->chunks.nr_held && !other->down && reclaim(shm, other))
			cast_out(shm, other->peer, "its count of chunks");
	if (link->down)
		return -EPIPE;
	return nm_pool_take(&shm->pool, &link->chunks, len, ret_index, ret_offset);
}

static int take_chunk(struct shm_transport *shm, struct shm_link *link, uint32_t len,
		      uint32_t *ret_index, uint32_t *ret_offset)
{
	/* Looking at the peer's counter costs a cache miss: only when chunks run low. */
	if (shm->pool.nr_free <= shm->pool.nr_chunks / 2 && nm_unlikely(reclaim(shm, link)))
		return -EBADMSG;
	if (nm_likely(!nm_pool_take(&shm->pool, &link->chunks, len, ret_index, ret_offset)))
		return 0;
	return take_chunk_slowly(shm, link, len, ret_index, ret_offset);
}

static int send_chunk(struct shm_transport *shm, struct shm_link *link, const struct nm_packet *pkt,
		      const struct iovec *iov, unsigned int nr_iov)
{
	void (*copy)(void *, const void *, size_t) =
		link->base.past_cache ? nm_copy_past_cache : nm_copy_bulk;
	uint32_t index, offset;
	unsigned int i;
	uint8_t *to;
	int err;

	err = nm_box_check_room(&link->writer);
	if (nm_unlikely(err))
		return err;
	err = take_chunk(shm, link, pkt->len, &index, &offset);
	if (nm_unlikely(err))
		return err;
	to = nm_pool_bytes(&shm->pool, index, offset);
	for (i = 0; i < nr_iov; i++) {
		if (iov[i].iov_len)
			copy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	nm_box_write_chunk(&link->writer, pkt, index, offset);
	return 0;
}

static int shm_send(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
		    unsigned int nr_iov)
{
	struct shm_transport *shm = shm_of(base->transport);
	struct shm_link *link = link_of(base);
	int err;

	if (nm_unlikely(link->down))
		return -EPIPE;
	if (nm_likely(pkt->len <= link->writer.inline_max))
		err = nm_box_write_inline(&link->writer, pkt, iov, nr_iov);
	else
		err = send_chunk(shm, link, pkt, iov, nr_iov);
	if (nm_unlikely(err == -EBADMSG)) {
		cast_out(shm, link->peer, "its count of what it has read");
		err = -EPIPE;
	}
	return err;
}

static bool shm_drained(struct nm_link *link)
{
	/* What was sent is published, and a window outlives its owner while it is mapped. */
	(void)link;
	return true;
}

static void shm_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	*ret_facts = nm_container_of(link, const struct shm_link, base)->facts;
}

static NM_COLD void add_source(struct shm_transport *shm, struct nm_encounter *encounter)
{
	const struct nm_foreign_window *window = encounter->window;
	struct shm_peer *peer = find_or_add_peer(shm, &encounter->who);
	struct nm_reason why = {"it does not take messages from me"};
	struct nm_peer *cookie;

	if (!peer || peer->state != PEER_UP || peer->source) {
		nm_meet_leave(shm->meet, encounter, -ECONNREFUSED, &why);
		return;
	}
	cookie =
		shm->base.sink.source_up(shm->base.sink.engine, &encounter->who, &encounter->label);
	if (!cookie) {
		nm_meet_leave(shm->meet, encounter, -ECONNREFUSED, &why);
		return;
	}
	peer->cookie = cookie;
	peer->label = encounter->label;
	peer->source = encounter;
	peer->source_index = shm->nr_sources;
	encounter->cookie = peer;
	shm->sources[shm->nr_sources] = peer;
	nm_box_reader_init(&shm->readers[shm->nr_sources++],
			   nm_foreign_box(window, encounter->peer_lane), window->geometry.box_slots,
			   window->pool, window->geometry.chunk_size, window->geometry.nr_chunks,
			   &shm->window.lanes[encounter->own_lane], encounter->start);
}

static NM_COLD void take_events(struct shm_transport *shm)
{
	struct nm_encounter *encounter;
	enum nm_meet_event_kind kind;

	while ((encounter = nm_meet_next_event(shm->meet, &kind)))
		if (kind == NM_MEET_SOURCE)
			add_source(shm, encounter);
		else
			begin_end(shm, encounter->cookie, PEER_CLOSING, encounter->err,
				  &encounter->why);
}

static void remove_source(struct shm_transport *shm, struct shm_peer *peer)
{
	uint32_t last = --shm->nr_sources;

	shm->readers[peer->source_index] = shm->readers[last];
	shm->sources[peer->source_index] = shm->sources[last];
	shm->sources[peer->source_index]->source_index = peer->source_index;
}

/* Nothing more is to be delivered: give everything back, then tell the engine. */
static NM_COLD void end_peer(struct shm_transport *shm, struct shm_peer *peer)
{
	const struct nm_reason *words = peer->state == PEER_CAST_OUT ? &peer->why : NULL;
	struct shm_link *link = peer->link;

	if (peer->source) {
		remove_source(shm, peer);
		nm_meet_leave(shm->meet, peer->source, peer->err, words);
		peer->source = NULL;
	}
	if (link) {
		nm_pool_reclaim_all(&shm->pool, &link->chunks);
		nm_meet_stream_ended(shm->meet, link->encounter->own_lane, link->writer.position);
		nm_meet_leave(shm->meet, link->encounter, peer->err, words);
		link->encounter = NULL;
	}
	peer->state = PEER_DOWN;
	shm->nr_ending--;
	shm->base.sink.source_down(shm->base.sink.engine, peer->cookie, peer->err, &peer->why);
}

static NM_COLD void end_peers(struct shm_transport *shm)
{
	struct shm_peer *peer;

	for (peer = shm->peers; peer; peer = peer->next)
		if (peer->state == PEER_CAST_OUT ||
		    (peer->state == PEER_CLOSING &&
		     (!peer->source || !nm_box_ready(&shm->readers[peer->source_index]))))
			end_peer(shm, peer);
}

/* Deliver what source I has sent, at most a batch. */
static unsigned int drain(struct shm_transport *shm, uint32_t i)
{
	struct nm_box_reader *reader = &shm->readers[i];
	struct nm_peer *cookie = shm->sources[i]->cookie;
	struct nm_packet pkt;
	unsigned int done = 0;
	const void *payload;
	int got;

	while (done < SHM_BATCH) {
		got = nm_box_peek(reader, shm->bounce, &pkt, &payload);
		if (got <= 0) {
			if (nm_unlikely(got < 0))
				cast_out(shm, shm->sources[i], "a slot of its box");
			break;
		}
		shm->base.sink.deliver(shm->base.sink.engine, cookie, &pkt, payload);
		nm_box_release(reader);
		done++;
	}
	return done;
}

static unsigned int shm_progress(struct nm_transport *transport)
{
	struct shm_transport *shm = shm_of(transport);
	unsigned int done = 0;
	uint32_t i;

	/* Partner: nm_meet_push_event(); taking the events acquires what they speak of. */
	if (nm_unlikely(atomic_load_explicit(shm->events, memory_order_relaxed) != NULL))
		take_events(shm);
	for (i = 0; i < shm->nr_sources; i++) {
		if (nm_box_ready(&shm->readers[i]) && shm->sources[i]->state <= PEER_CLOSING)
			done += drain(shm, i);
		else
			nm_box_return_credits(&shm->readers[i]);
	}
	if (nm_unlikely(shm->nr_ending))
		end_peers(shm);
	return done;
}

static void free_lists(struct shm_transport *shm)
{
	struct shm_link *link, *next_link;
	struct shm_peer *peer, *next_peer;

	for (link = shm->links; link; link = next_link) {
		next_link = link->next;
		free(link);
	}
	for (peer = shm->peers; peer; peer = next_peer) {
		next_peer = peer->next;
		free(peer);
	}
}

static void shm_destroy(struct nm_transport *transport)
{
	struct shm_transport *shm;

	if (!transport)
		return;
	shm = shm_of(transport);
	nm_meet_destroy(shm->meet);
	free_lists(shm);
	nm_pool_fini(&shm->pool);
	nm_window_destroy(&shm->window);
	free(shm->bounce);
	free(shm->sources);
	free(shm->readers);
	free(shm);
}

static const struct nm_transport_ops shm_ops;

static int create_parts(struct shm_transport *shm, const struct nm_params *params,
			const struct nm_identity *who, struct nm_reason *ret_reason)
{
	struct nm_meet_config config = {
		.dir = params->segment_dir,
		.who = *who,
		.window = &shm->window,
		.connect_ms = (uint32_t)params->connect_ms,
		.lease_ms = (uint32_t)params->lease_ms,
	};
	struct nm_geometry geometry;
	int err;

	err = nm_geometry_init((uint32_t)params->max_local_peers, (uint32_t)params->box_slots,
			       (uint32_t)params->chunk_size, params->pool_size, &geometry);
	if (err) {
		nm_reason_set(ret_reason, "the knobs of the window do not fit together");
		return err;
	}
	shm->bounce = malloc(NM_BOX_INLINE_LIMIT);
	shm->sources = calloc(geometry.nr_lanes, sizeof(*shm->sources));
	shm->readers = aligned_alloc(NM_CACHE_LINE, geometry.nr_lanes * sizeof(*shm->readers));
	if (!shm->bounce || !shm->sources || !shm->readers) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	err = nm_window_create(&geometry, who->id, who->token, &shm->window, ret_reason);
	if (err)
		return err;
	err = nm_pool_init(&shm->pool, shm->window.pool, geometry.chunk_size, geometry.nr_chunks);
	if (err) {
		nm_reason_set(ret_reason, "out of memory");
		return err;
	}
	err = nm_meet_create(&config, &shm->meet, ret_reason);
	if (!err)
		shm->events = nm_meet_event_word(shm->meet);
	return err;
}

int nm_shm_create(const struct nm_sink *sink, const struct nm_identity *who,
		  struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	const struct nm_params *params = nm_params();
	struct shm_transport *shm;
	int err;

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
	shm->base.ops = &shm_ops;
	shm->base.sink = *sink;
	shm->base.max_payload = (uint32_t)params->chunk_size;
	shm->base.eager_max = (uint32_t)nm_min_u64(params->shm_eager_max, params->chunk_size);
	err = create_parts(shm, params, who, ret_reason);
	if (err) {
		nm_log_once(NM_LOG_WARN, "no shared memory, slower channels are used: %s",
			    ret_reason->text);
		shm_destroy(&shm->base);
		return err;
	}
	*ret_transport = &shm->base;
	return 0;
}

static const struct nm_transport_ops shm_ops = {
	.name = "shm",
	.channel = NM_CHANNEL_SHM,
	.connect = shm_connect,
	.send = shm_send,
	.drained = shm_drained,
	.describe = shm_describe,
	.progress = shm_progress,
	.destroy = shm_destroy,
};
