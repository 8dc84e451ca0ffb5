/* SPDX-License-Identifier: Apache-2.0 */
/* What transports tell the engine: sources come and go, packets arrive. All of it is foreign. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "engine/hold.h"
#include "engine/internal.h"

/* The channel that is speaking, as a bit. */
static uint32_t polled_bit(const struct nm_engine *engine)
{
	return engine->polled_now ? 1U << engine->polled_now->ops->channel : 0;
}

struct nm_peer *nm_sink_source_up(void *engine_, const struct nm_identity *who,
				  const struct nm_peer_label *label)
{
	struct nm_engine *engine = engine_;
	struct nm_peer *peer;
	bool is_new;

	peer = nm_peer_table_get(&engine->peers, who, &is_new);
	if (!peer) {
		nm_error("no memory for a new peer");
		return NULL;
	}
	if (peer->state == NM_PEER_DOWN)
		return NULL; /* an identity is used once; whoever brings it back is not sound */
	if (label) {
		struct nm_peer_story *story = nm_peer_story(peer);

		story->label = *label;
		story->label.text[sizeof(story->label.text) - 1] = '\0';
	}
	peer->engine = engine;
	peer->is_source = true;
	if (engine->polled_now && !peer->source_channels)
		nm_peer_receives_on(peer, engine->polled_now->ops->channel);
	peer->source_channels |= polled_bit(engine);
	peer->is_watched = engine->polled_now && !engine->polled_now->ops->check_alive;
	if (peer->index == UINT64_MAX && engine->config.resolve)
		peer->index = engine->config.resolve(engine->config.resolve_arg, who);
	if (peer->index == UINT64_MAX)
		engine->nr_unresolved++;
	return peer;
}

/* A whole message whose sender waits for an answer: its id comes before the bytes. */
static void on_eager_answered(struct nm_engine *engine, struct nm_peer *peer,
			      const struct nm_packet *pkt, const void *payload)
{
	struct nm_wire_id id;
	struct nm_arrival a = {
		.source = peer,
		.tag = pkt->flags & NM_PKT_TAGGED ? pkt->tag : 0,
		.data = pkt->data,
		.flags = pkt->flags,
	};

	if (pkt->len < sizeof(id)) {
		nm_peer_violation(engine, peer, "it sent a message without its id");
		return;
	}
	memcpy(&id, payload, sizeof(id));
	a.sender_id = id.id;
	a.size = pkt->len - sizeof(id);
	a.payload = (const char *)payload + sizeof(id);
	nm_recv_arrive(engine, &a);
}

static void on_rts(struct nm_engine *engine, struct nm_peer *peer, const struct nm_packet *pkt,
		   const void *payload)
{
	unsigned int nr = pkt->flags & NM_PKT_MEMORY ? NM_PKT_NR(pkt->flags) : 0;
	struct nm_span spans[NM_SPANS_MAX];
	struct nm_wire_rts rts;
	struct nm_arrival a;

	if (pkt->len != sizeof(rts) + nr * sizeof(struct nm_wire_span)) {
		nm_peer_violation(engine, peer, "it sent an envelope of %u bytes", pkt->len);
		return;
	}
	memcpy(&rts, payload, sizeof(rts));
	if (nr > 0 &&
	    nm_direct_spans((const char *)payload + sizeof(rts), nr, rts.size, spans) < 0) {
		nm_peer_violation(engine, peer, "its message lies at no sound place");
		return;
	}
	a = (struct nm_arrival){
		.source = peer,
		.tag = pkt->flags & NM_PKT_TAGGED ? pkt->tag : 0,
		.data = pkt->data,
		.size = rts.size,
		.sender_id = rts.sender_id,
		.flags = pkt->flags,
		.payload = spans,
		.nr_spans = nr,
		.rendezvous = true,
	};
	nm_recv_arrive(engine, &a);
}

void nm_sink_deliver(void *engine_, struct nm_peer *source, const struct nm_packet *pkt,
		     const void *payload)
{
	struct nm_engine *engine = engine_;

	if (nm_unlikely(source->state == NM_PEER_DOWN))
		return;
	if (nm_unlikely(engine->closing)) {
		if (pkt->op == NM_OP_PLACED)
			nm_direct_placed(engine, source, pkt);
		return;
	}
	/* Before the switch: its table would cost every small message a jump more. */
	if (nm_likely(pkt->op == NM_OP_EAGER && !(pkt->flags & NM_PKT_ACK))) {
		nm_recv_eager(engine, source, pkt, payload);
		return;
	}
	switch ((enum nm_op)pkt->op) {
	case NM_OP_EAGER:
		on_eager_answered(engine, source, pkt, payload);
		return;
	case NM_OP_RTS:
		on_rts(engine, source, pkt, payload);
		return;
	case NM_OP_CTS:
		nm_transfer_cts(engine, source, pkt, payload);
		return;
	case NM_OP_DATA:
		nm_transfer_data(engine, source, pkt, payload);
		return;
	case NM_OP_ACK:
		nm_transfer_ack(engine, source, pkt);
		return;
	case NM_OP_WRITE:
		nm_rma_on_write(engine, source, pkt, payload);
		return;
	case NM_OP_WRITE_RTS:
		nm_rma_on_write_rts(engine, source, pkt, payload);
		return;
	case NM_OP_READ:
		nm_rma_on_read(engine, source, pkt, payload);
		return;
	case NM_OP_ATOMIC:
		nm_atomic_on_request(engine, source, pkt, payload);
		return;
	case NM_OP_RESULT:
		nm_atomic_on_result(engine, source, pkt, payload);
		return;
	case NM_OP_SWITCH:
		nm_move_on_switch(engine, source, pkt);
		return;
	case NM_OP_PLACED:
		nm_direct_placed(engine, source, pkt);
		return;
	case NM_OP_PACE:
		nm_hold_on_pace(engine, source, pkt);
		return;
	case NM_NR_OPS:
		break;
	}
	nm_peer_violation(engine, source, "it sent a packet of unknown kind %u", pkt->op);
}

void nm_sink_source_down(void *engine_, struct nm_peer *source, int err,
			 const struct nm_reason *why)
{
	struct nm_engine *engine = engine_;
	char text[sizeof(why->text)];

	source->source_channels &= ~polled_bit(engine);
	if (err == 0 && source->source_channels) {
		/*
		 * It spoke to us on another channel too, where it has not said goodbye yet: what it
		 * had sent there is still to come. Only the way to it over this one is gone.
		 */
		if (source->link && source->link->transport == engine->polled_now)
			nm_peer_link_lost(engine, source);
		return;
	}
	memcpy(text, why ? why->text : "", why ? sizeof(text) : 1);
	text[sizeof(text) - 1] = '\0';
	nm_peer_down(engine, source, err, text);
}
