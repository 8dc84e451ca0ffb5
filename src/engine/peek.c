/* SPDX-License-Identifier: Apache-2.0 */
/* Looking for messages without receiving them: peek, claim, discard. */
#include <errno.h>

#include "engine/internal.h"
#include "engine/recv.h"

/* Drop a message that is in no queue; its sender does not wait for ever. */
static void message_discard(struct nm_engine *engine, struct nm_unexpected *m)
{
	if (m->rendezvous && !m->lost) {
		struct nm_wire_cts cts = {0};
		struct nm_packet packet = {
			.op = NM_OP_CTS,
			.flags = NM_PKT_LAST,
			.len = sizeof(cts),
			.tag = m->sender_id,
		};

		nm_peer_post(engine, m->source, &packet, &cts);
	}
	if (m->flags & NM_PKT_ACK && !m->lost)
		nm_rndv_send_ack(engine, m->source, m->sender_id, 0);
	nm_recv_message_free(engine, m);
}

static void drop_stored(struct nm_engine *engine, struct nm_peer *peer, bool all)
{
	for (unsigned int i = 0; i < 2; i++) {
		nm_list_for_each_safe(node, &peer->unexpected[i]) {
			struct nm_unexpected *m =
				nm_container_of(node, struct nm_unexpected, source_node);

			if (!all && !m->rendezvous)
				continue;
			nm_match_unstore(&engine->matches[i], m);
			nm_recv_message_free(engine, m);
		}
	}
}

void nm_recv_discard(struct nm_engine *engine, struct nm_peer *peer)
{
	drop_stored(engine, peer, true);
}

void nm_recv_forget(struct nm_engine *engine, struct nm_peer *peer)
{
	drop_stored(engine, peer, false);
	nm_list_for_each(node, &engine->claimed) {
		struct nm_unexpected *m = nm_container_of(node, struct nm_unexpected, all_node);

		if (m->source == peer && m->rendezvous)
			m->lost = true;
	}
}

void nm_recv_forget_answers(struct nm_engine *engine, struct nm_peer *peer)
{
	for (unsigned int i = 0; i < 2; i++)
		nm_list_for_each(node, &peer->unexpected[i])
			nm_container_of(node, struct nm_unexpected, source_node)->flags &=
				(uint8_t)~NM_PKT_ACK;
	nm_list_for_each(node, &engine->claimed) {
		struct nm_unexpected *m = nm_container_of(node, struct nm_unexpected, all_node);

		if (m->source == peer)
			m->flags &= (uint8_t)~NM_PKT_ACK;
	}
}

static void peek_done(struct nm_engine *engine, const struct nm_message *m,
		      const struct nm_unexpected *found, int err)
{
	struct nm_recv_done done = {
		.context = m->context,
		.posted_flags = m->flags | NM_PEEK,
		.tag = m->tag,
		.source = m->peer,
		.err = err,
	};

	if (found) {
		done.len = found->size;
		done.tag = found->tag;
		done.data = found->data;
		done.source = found->source;
		done.extra_flags = nm_recv_flags(found->flags);
	}
	nm_complete_recv(engine, &done);
}

int nm_recv_peek(struct nm_engine *engine, const struct nm_message *m)
{
	struct nm_match *match = nm_match_of(engine, m->flags & NM_TAGGED);
	bool tagged = m->flags & NM_TAGGED;
	struct nm_unexpected *found;

	/* The message may be at the door. */
	nm_engine_progress(engine);
	found = nm_match_find_unexpected(match, m->peer, tagged ? m->tag : 0,
					 tagged ? m->ignore : UINT64_MAX);
	if (!found) {
		peek_done(engine, m, NULL, ENOMSG);
		return 0;
	}
	peek_done(engine, m, found, 0);
	if (m->flags & (NM_CLAIM | NM_DISCARD))
		nm_match_unstore(match, found);
	if (m->flags & NM_CLAIM) {
		found->context = m->context;
		nm_list_append(&engine->claimed, &found->all_node);
	} else if (m->flags & NM_DISCARD) {
		message_discard(engine, found);
	}
	return 0;
}

static struct nm_unexpected *claimed_find(struct nm_engine *engine, const void *context)
{
	nm_list_for_each(node, &engine->claimed) {
		struct nm_unexpected *m = nm_container_of(node, struct nm_unexpected, all_node);

		if (m->context == context)
			return m;
	}
	return NULL;
}

int nm_recv_claim(struct nm_engine *engine, const struct nm_message *m)
{
	struct nm_unexpected *found = claimed_find(engine, m->context);
	struct nm_arrival a;
	struct nm_request *r;

	if (!found)
		return -EINVAL;
	if (found->lost || m->flags & NM_DISCARD) {
		const struct nm_failed before = engine->failed;

		nm_list_remove(&found->all_node);
		peek_done(engine, m, found, found->lost ? ECONNRESET : 0);
		if (found->source->loss == NM_LOSS_CRASHED || found->source->nr_quarantines)
			nm_report_lost(engine, found->source, &before);
		message_discard(engine, found);
		return 0;
	}
	r = nm_recv_make(engine, m);
	if (!r)
		return -EAGAIN;
	nm_list_remove(&found->all_node);
	a = nm_recv_arrival_of(found);
	nm_recv_take(engine, r, &a);
	nm_recv_message_free(engine, found);
	return 0;
}
