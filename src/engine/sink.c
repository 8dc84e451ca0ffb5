/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of transports: sources come and go, packets arrive. All of it is foreign. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"
#include "engine/unexpected.h"

static uint32_t bit_of(const struct nm_transport *transport)
{
	return 1U << transport->kind->channel;
}

/* PEER is here on a channel, other than FROM, that proved who it is and will notice its end. */
static bool is_met_beside(const struct nm_transport *from, const struct nm_peer *peer)
{
	const struct nm_engine *engine = from->sink.engine;

	/* A greeting of one that is down is refused, which its sender hears. */
	if (peer->state == NM_PEER_DOWN)
		return false;
	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		const struct nm_transport *t = engine->polled[i];

		if (t != from && t->kind->flags & NM_TRANSPORT_WATCHES &&
		    (peer->source_channels & bit_of(t) ||
		     (peer->link && peer->link->transport == t)))
			return true;
	}
	return false;
}

bool nm_sink_known(struct nm_transport *from, const struct nm_identity *who,
		   struct nm_address *ret_address)
{
	struct nm_engine *engine = from->sink.engine;
	const struct nm_engine_config *config = &engine->config;
	const struct nm_peer *peer;

	if (config->resolve && config->resolve(config->resolve_arg, who, ret_address) != UINT64_MAX)
		return true;
	/* A peer that this endpoint has sent to, or was told to receive from. */
	peer = nm_peer_table_find(&engine->peers, who);
	if (!peer || (!peer->address.inner_len && !is_met_beside(from, peer)))
		return false;
	*ret_address = peer->address;
	return true;
}

/*
 * WHO has proved its identity on FROM. If a transport that believes first claims has or had a source
 * of that name, at an address that the program has not given, it was another process.
 */
static void put_out_impostors(const struct nm_transport *from, const struct nm_identity *who)
{
	const struct nm_address proven = {.version = NM_ADDRESS_VERSION, .who = *who};
	struct nm_engine *engine = from->sink.engine;
	struct nm_peer *peer = nm_peer_table_find(&engine->peers, who);

	if (!peer || !nm_peer_is_source(peer) || from->learn)
		return;
	for (unsigned int i = 0; i < engine->nr_polled; i++) {
		struct nm_transport *t = engine->polled[i];

		if ((peer->source_channels & bit_of(t) || peer->receives_on == t->kind->channel) &&
		    t->learn && !t->learn(t, &proven))
			nm_peer_disown(engine, peer, t);
	}
}

struct nm_peer *nm_sink_source_up(struct nm_transport *from, const struct nm_identity *who,
				  const struct nm_peer_label *label)
{
	struct nm_engine *engine = from->sink.engine;
	struct nm_address address;
	struct nm_peer *peer;
	bool is_new;

	put_out_impostors(from, who);
	peer = nm_peer_table_get(&engine->peers, who, &is_new);
	if (!peer) {
		nm_error("no memory for a new peer");
		return NULL;
	}
	if (peer->state == NM_PEER_DOWN)
		return NULL; /* an identity is used once; a second use is invalid */
	if (label) {
		struct nm_peer_diag *diag = nm_peer_diag(peer);

		diag->label = *label;
		diag->label.text[sizeof(diag->label.text) - 1] = '\0';
	}
	peer->engine = engine;
	if (!peer->source_channels || (from->move && !peer->received_messages))
		nm_peer_receives_on(peer, from->kind->channel);
	peer->source_channels |= bit_of(from);
	if (nm_peer_is_unlisted(peer) && engine->config.resolve)
		nm_peer_set_index(
			peer, engine->config.resolve(engine->config.resolve_arg, who, &address));
	peer->was_known |= !nm_peer_is_unlisted(peer);
	if (nm_peer_is_unlisted(peer))
		engine->nr_unresolved++;
	nm_move_introduce(engine, peer);
	return peer;
}

/* A whole message whose sender waits for an answer: its id comes before the bytes. */
static void on_eager_answered(const struct nm_incoming *in)
{
	const struct nm_packet *pkt = in->pkt;
	struct nm_wire_id id;
	struct nm_arrival a = {
		.source = in->peer,
		.tag = pkt->flags & NM_PKT_TAGGED ? pkt->tag : 0,
		.data = pkt->data,
		.flags = pkt->flags,
	};

	if (pkt->len < sizeof(id)) {
		nm_violation(in, "it sent a message without its id");
		return;
	}
	memcpy(&id, in->payload, sizeof(id));
	a.sender_id = id.id;
	a.size = pkt->len - sizeof(id);
	a.payload = (const char *)in->payload + sizeof(id);
	nm_recv_arrive(in->engine, &a);
}

static int place_of(const void *wire, unsigned int nr, uint64_t size,
		    struct nm_span ret_spans[NM_SHARE_SPANS])
{
	return nm_unlikely(nr > NM_SPANS_MAX) ? nm_rndv_cma_share(wire, ret_spans) :
						nm_rndv_cma_spans(wire, nr, size, ret_spans);
}

static void on_rts(const struct nm_incoming *in)
{
	const struct nm_packet *pkt = in->pkt;
	unsigned int nr = pkt->flags & NM_PKT_MEMORY ? NM_PKT_NR(pkt->flags) : 0;
	struct nm_span spans[NM_SHARE_SPANS];
	struct nm_wire_rts rts;
	struct nm_arrival a;

	if (nm_unlikely(pkt->len != sizeof(rts) + nr * sizeof(struct nm_wire_span))) {
		if (nr == 0 || pkt->len != sizeof(rts) + sizeof(spans)) {
			nm_violation(in, "it sent an envelope of %u bytes", pkt->len);
			return;
		}
		nr = NM_SHARE_SPANS;
	}
	memcpy(&rts, in->payload, sizeof(rts));
	if (nr > 0 && place_of((const char *)in->payload + sizeof(rts), nr, rts.size, spans) < 0) {
		nm_violation(in, "its message has an invalid place");
		return;
	}
	a = (struct nm_arrival){
		.source = in->peer,
		.tag = pkt->flags & NM_PKT_TAGGED ? pkt->tag : 0,
		.data = pkt->data,
		.size = rts.size,
		.sender_id = rts.sender_id,
		.flags = pkt->flags,
		.payload = spans,
		.nr_spans = nr,
		.rendezvous = true,
	};
	nm_recv_arrive(in->engine, &a);
}

/* Out of line: the short way of most messages needs none of it. */
static NM_SLOW_HALF void deliver_any(const struct nm_incoming *in)
{
	static void (*const handlers[NM_NR_OPS])(const struct nm_incoming *in) = {
		[NM_OP_EAGER] = on_eager_answered,
		[NM_OP_RTS] = on_rts,
		[NM_OP_CTS] = nm_rndv_cts,
		[NM_OP_DATA] = nm_rndv_data,
		[NM_OP_ACK] = nm_rndv_ack,
		[NM_OP_WRITE] = nm_rma_on_write,
		[NM_OP_WRITE_RTS] = nm_rma_on_write_rts,
		[NM_OP_READ] = nm_rma_on_read,
		[NM_OP_ATOMIC] = nm_atomic_on_request,
		[NM_OP_RESULT] = nm_atomic_on_result,
		[NM_OP_SWITCH] = nm_failover_on_switch,
		[NM_OP_PLACED] = nm_rndv_cma_placed,
		[NM_OP_PACE] = nm_unexpected_on_pace,
		[NM_OP_MOVE] = nm_move_on_move,
		[NM_OP_MOVED] = nm_move_on_moved,
		[NM_OP_HOME] = nm_move_on_home,
	};
	uint8_t op = in->pkt->op;

	if (op < NM_NR_OPS && handlers[op])
		handlers[op](in);
	else
		nm_violation(in, "it sent a packet of unknown kind %u", op);
}

void nm_sink_deliver(struct nm_transport *from, struct nm_peer *source, const struct nm_packet *pkt,
		     const void *payload)
{
	struct nm_engine *engine = from->sink.engine;

	if (nm_unlikely(source->state == NM_PEER_DOWN))
		return;
	/* Answers that a peer awaits still leave: also those that wait for the end of a move. */
	if (nm_unlikely(engine->closing && pkt->op != NM_OP_PLACED && pkt->op != NM_OP_MOVE &&
			pkt->op != NM_OP_MOVED))
		return;
	/* Before the table: it would cost every small message a jump more. */
	if (nm_likely(pkt->op == NM_OP_EAGER && !(pkt->flags & NM_PKT_ACK)))
		nm_recv_eager(engine, source, pkt, payload);
	else
		deliver_any(&(struct nm_incoming){from, engine, source, pkt, payload});
}

void nm_sink_source_down(struct nm_transport *from, struct nm_peer *source, int err,
			 const struct nm_reason *why)
{
	struct nm_engine *engine = from->sink.engine;
	char text[sizeof(why->text)];

	if (nm_unlikely(source->move) &&
	    nm_move_net_ended(source, from, err, why ? why->text : "it has ended"))
		return;
	source->source_channels &= ~bit_of(from);
	if (err == 0 && source->source_channels) {
		/*
		 * The peer sends on another channel too and has not closed it: packets may still
		 * come from there. Only the link over this channel is gone.
		 */
		if (source->link && source->link->transport == from)
			nm_peer_link_lost(engine, source);
		return;
	}
	memcpy(text, why ? why->text : "", why ? sizeof(text) : 1);
	text[sizeof(text) - 1] = '\0';
	nm_peer_down(engine, source, err, text);
}
