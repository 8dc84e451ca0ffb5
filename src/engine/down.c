/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a peer. Operations that wait for it complete with an error: an MPI then ends with an
 * error instead of hanging. Nothing here sends.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"
#include "engine/recv.h"
#include "engine/rndv_choice.h"
#include "engine/rndv_gpudirect.h"

void nm_peer_drop_queue(struct nm_engine *engine, struct nm_peer *peer)
{
	nm_list_for_each_safe(node, &peer->control) {
		struct nm_control *c = nm_container_of(node, struct nm_control, node);

		nm_list_remove(node);
		nm_buffer_free(&engine->buffers, c, sizeof(*c) + c->packet.len);
	}
	peer->nr_control = 0;
	peer->control_bytes = 0;
	/* The requests themselves are in peer->requests too and end with these. */
	while (!nm_list_empty(&peer->streams))
		nm_list_remove(peer->streams.next);
	nm_list_remove(&peer->active_node);
}

void nm_peer_link_lost(struct nm_engine *engine, struct nm_peer *peer)
{
	if (peer->state != NM_PEER_CONNECTED && (peer->state != NM_PEER_MOVING || peer->failover))
		return;
	/*
	 * What it sent before may still arrive; source_down() comes after that and ends the rest.
	 */
	nm_peer_set_state(peer, NM_PEER_LINK_LOST);
	nm_peer_drop_queue(engine, peer);
}

void nm_peer_link_broken(struct nm_engine *engine, struct nm_peer *peer)
{
	(void)engine;
	if (peer->state != NM_PEER_CONNECTED)
		return;
	/* What waits is kept: it may go another way. */
	nm_peer_set_state(peer, NM_PEER_MOVING);
	nm_list_remove(&peer->active_node);
}

void nm_peer_fail_requests(struct nm_engine *engine, struct nm_peer *peer)
{
	nm_stages_end(engine, peer);
	nm_gpudirect_end(engine, peer);
	while (!nm_list_empty(&peer->requests)) {
		struct nm_request *r = nm_list_first(&peer->requests, struct nm_request, peer_node);

		if (r->kind == NM_REQUEST_RECV)
			nm_recv_finish(engine, r, ECONNRESET);
		else
			nm_request_complete(engine, r, ECONNRESET);
	}
	peer->nr_leaving = 0;
	nm_rndv_choice_reset(peer); /* it may go on, on another channel */
}

/* End the posted receives that name PEER, or all that take any source. */
static void fail_posted(struct nm_engine *engine, struct nm_match *match, struct nm_peer *peer)
{
	nm_list_for_each_safe(node, &match->posted_all) {
		struct nm_posted *p = nm_container_of(node, struct nm_posted, all_node);
		struct nm_request *r = nm_container_of(p, struct nm_request, posted);

		if (p->source != peer)
			continue;
		/* Multi-receive buffers wait for no particular peer; they stay. */
		if (!peer && r->kind == NM_REQUEST_MULTI_RECV)
			continue;
		nm_recv_fail_posted(engine, r, ECONNRESET);
	}
}

static void log_end(const struct nm_peer *peer, int err)
{
	const struct nm_peer_diag *diag = peer->diag;
	const char *label = diag && diag->label.text[0] ? diag->label.text : "not met";

	nm_log(err ? NM_LOG_ERROR : NM_LOG_INFO, "peer " NM_WHO_FORMAT " (%s) %s: %s",
	       NM_WHO(&peer->who), label, err ? "is lost" : "closed",
	       diag && diag->down.text[0] ? diag->down.text : "no reason given");
}

bool nm_report_lost(struct nm_engine *engine, const struct nm_peer *peer,
		    const struct nm_failed *before)
{
	static const struct nm_peer_diag nothing;
	const struct nm_peer_diag *diag = peer->diag ? peer->diag : &nothing;
	const struct nm_failed *now = &engine->failed;
	const struct nm_lost lost = {
		.who = peer->who,
		.label = diag->label.text,
		.reason = peer->state == NM_PEER_DOWN ? diag->down.text : diag->quarantine.text,
		.failed =
			{
				.receives = now->receives - before->receives,
				.sends = now->sends - before->sends,
				.accesses = now->accesses - before->accesses,
			},
	};

	bool any = lost.failed.receives | lost.failed.sends | lost.failed.accesses;

	if ((any || !nm_peer_is_unlisted(peer)) && engine->config.lost && !engine->closing) {
		if (engine->config.publish)
			engine->config.publish(engine->config.publish_arg);
		engine->config.lost(engine->config.lost_arg, &lost);
	}
	return any;
}

/*
 * True if the program never gave the address of PEER and no receive took a message from it. Every
 * process that sees the rundir or reaches the port can become such a peer, so its end must not end
 * receives from any source.
 */
static bool is_stranger(const struct nm_engine *engine, const struct nm_peer *peer)
{
	struct nm_address address;

	return !peer->was_known && !peer->received_messages && !peer->sent_messages &&
	       engine->config.resolve &&
	       engine->config.resolve(engine->config.resolve_arg, &peer->who, &address) ==
		       UINT64_MAX;
}

void nm_peer_fail_receives(struct nm_engine *engine, struct nm_peer *peer)
{
	uint64_t receives = engine->failed.receives;

	if (is_stranger(engine, peer))
		return;

	fail_posted(engine, &engine->matches[0], peer);
	fail_posted(engine, &engine->matches[1], peer);
	fail_posted(engine, &engine->matches[0], NULL);
	fail_posted(engine, &engine->matches[1], NULL);
	/* Else the next receive that would wait says it. */
	if (engine->failed.receives == receives) {
		engine->crash_untold = peer;
		peer->loss = NM_LOSS_UNREPORTED;
	}
}

void nm_peer_down(struct nm_engine *engine, struct nm_peer *peer, int err, const char *why)
{
	const struct nm_failed before = engine->failed;

	if (peer->state != NM_PEER_DOWN) {
		nm_peer_set_state(peer, NM_PEER_DOWN);
		nm_reason_set(&nm_peer_diag(peer)->down, "%s", why);
		log_end(peer, err);
		nm_failover_end(peer);
		nm_move_end(peer, NM_WAY_DOWN);
		nm_peer_drop_queue(engine, peer);
		nm_recv_forget(engine, peer);
		nm_peer_fail_requests(engine, peer);
		fail_posted(engine, &engine->matches[0], peer);
		fail_posted(engine, &engine->matches[1], peer);
	}
	if (err == 0 || peer->loss == NM_LOSS_CRASHED)
		return;
	peer->loss = NM_LOSS_CRASHED;
	if (is_stranger(engine, peer))
		return;
	fail_posted(engine, &engine->matches[0], NULL);
	fail_posted(engine, &engine->matches[1], NULL);
	if (!nm_report_lost(engine, peer, &before))
		engine->crash_untold = peer; /* the next receive that would wait will say it */
}

void nm_peer_disown(struct nm_engine *engine, struct nm_peer *peer, const struct nm_transport *from)
{
	uint64_t unique = (uintptr_t)peer;

	peer->source_channels &= ~(1U << from->kind->channel);
	if (peer->source_channels)
		return;
	nm_peer_down(engine, peer, 0, "another process had taken its name");
	nm_recv_discard(engine, peer);
	nm_peer_set_index(peer, UINT64_MAX);
	/* It keeps its slot in the table: the search for those after it goes on there. */
	memset(&peer->who, 0, sizeof(peer->who));
	memcpy(peer->who.place, &unique, sizeof(unique));
}

void nm_violation(const struct nm_incoming *in, const char *fmt, ...)
{
	const struct nm_quarantine_ops *quarantine = in->from->quarantine;
	struct nm_reason why;
	va_list args;

	va_start(args, fmt);
	nm_reason_vset(&why, fmt, args);
	va_end(args);
	/* If the peer can spoil the bytes of the channel, the channel is not to be trusted. */
	if (quarantine && !in->peer->failover)
		quarantine->cast_out(in->from, &in->peer->who, why.text);
	else
		nm_peer_down(in->engine, in->peer, -EBADMSG, why.text);
}
