/* SPDX-License-Identifier: Apache-2.0 */
/* Sending messages: eager at once, large ones by an envelope that the receiver answers. */
#include <errno.h>

#include "engine/internal.h"
#include "engine/rndv_gpudirect.h"
#include "engine/unexpected.h"
#include "transport/select.h"

/* Flags of a message that needs an answer. */
#define ANSWERED (NM_DELIVERY_COMPLETE | NM_MATCH_COMPLETE)
/* After so much to a peer it is heard whether it can hold more; a message counts as its bytes and
 * the block that it takes there at least. */
#define LISTEN_BYTES (1U << 20)

int nm_send_ready(struct nm_engine *engine, struct nm_peer *peer)
{
	if (peer->state != NM_PEER_CONNECTED) {
		int err = nm_peer_connect(engine, peer);

		if (err < 0)
			return err;
	}
	/* Answers go first, or a program that only sends would starve them. */
	if (!nm_list_empty(&peer->control)) {
		nm_peer_push(engine, peer);
		if (peer->state != NM_PEER_CONNECTED)
			return peer->state == NM_PEER_MOVING ? -EAGAIN : -ECONNRESET;
		if (!nm_list_empty(&peer->control))
			return -EAGAIN;
	}
	return 0;
}

static inline bool ready(const struct nm_peer *peer)
{
	return peer->state == NM_PEER_CONNECTED && peer->nr_control == 0;
}

static NM_COLD int refused(struct nm_engine *engine, struct nm_peer *peer, int err)
{
	if (err != -EPIPE)
		return err;
	nm_peer_link_broken(engine, peer);
	return -EAGAIN;
}

int nm_send_envelope(struct nm_engine *engine, struct nm_peer *peer, const struct nm_packet *packet,
		     const struct iovec *iov, unsigned int nr_iov)
{
	int err;

	if (nm_unlikely(!ready(peer))) {
		err = nm_send_ready(engine, peer);
		if (err < 0)
			return err;
	}
	err = peer->send(peer->link, packet, iov, nr_iov);
	return nm_likely(err == 0) ? 0 : refused(engine, peer, err);
}

/* A message that is answered: large, or with a completion that waits for the receiver. */
static int send_answered(struct nm_engine *engine, const struct nm_message *m,
			 struct nm_packet *packet, uint64_t size, bool eager)
{
	struct nm_peer *peer = m->peer;
	struct nm_request *r = nm_request_alloc(&engine->requests, NM_REQUEST_SEND);
	struct iovec iov[NM_IOV_MAX + 1];
	struct nm_wire_id id;
	struct nm_wire_rts rts;
	struct nm_wire_span spans[NM_SHARE_SPANS];
	int err;

	if (!r)
		return -EAGAIN;
	r->flags = m->flags;
	r->context = m->context;
	r->peer = peer;
	r->size = size;
	r->packet_flags = packet->flags;
	r->nr_iov = m->nr_iov;
	for (size_t i = 0; i < m->nr_iov; i++)
		r->iov[i] = iov[i + 1] = m->iov[i];
	if (eager) {
		id.id = nm_request_id(r);
		iov[0] = (struct iovec){&id, sizeof(id)};
		packet->op = NM_OP_EAGER;
		packet->len = (uint32_t)(size + sizeof(id));
		nm_request_set_state(r, NM_REQUEST_WAIT_ACK);
		err = nm_send_envelope(engine, peer, packet, iov, (unsigned int)m->nr_iov + 1);
	} else {
		unsigned int nr = nm_rndv_cma_offer(peer, r, spans);

		rts = (struct nm_wire_rts){.size = size, .sender_id = nm_request_id(r)};
		iov[0] = (struct iovec){&rts, sizeof(rts)};
		iov[1] = (struct iovec){spans, nr * sizeof(*spans)};
		packet->op = NM_OP_RTS;
		packet->len = (uint32_t)(sizeof(rts) + iov[1].iov_len);
		if (nr > 0)
			packet->flags |= (uint8_t)(NM_PKT_MEMORY | (nr - 1) << NM_PKT_NR_SHIFT);
		if (nm_unlikely(peer->link->transport->gpudirect) && nm_gpudirect_offer(peer, r))
			packet->flags |= NM_PKT_DIRECT;
		r->packet_flags = packet->flags;
		nm_request_set_state(r, NM_REQUEST_WAIT_CTS);
		err = nm_send_envelope(engine, peer, packet, iov, nr > 0 ? 2 : 1);
	}
	if (err < 0)
		nm_request_free(&engine->requests, r);
	else
		nm_list_append(&peer->requests, &r->peer_node);
	return err;
}

static bool goes_eager(const struct nm_peer *peer, uint64_t size, uint64_t flags)
{
	/* An injected buffer is the caller's again on return: it has to go with the envelope. */
	if (flags & NM_INJECT)
		return true;
	return nm_select_eager(size, peer->eager_max);
}

/* A message whose completion says that it needs nothing of this process any more. */
static NM_COLD int send_leaving(struct nm_engine *engine, const struct nm_message *m,
				const struct nm_packet *packet)
{
	struct nm_request *r = nm_request_alloc(&engine->requests, NM_REQUEST_SEND);
	int err;

	if (!r)
		return -EAGAIN;
	r->flags = m->flags;
	r->context = m->context;
	r->peer = m->peer;
	err = m->peer->send(m->peer->link, packet, m->iov, (unsigned int)m->nr_iov);
	if (err < 0) {
		nm_request_free(&engine->requests, r);
		return refused(engine, m->peer, err);
	}
	nm_peer_leave(engine, m->peer, r);
	return 0;
}

/* IS_DEVICE: a constant. The message may lie on a device. */
static inline __attribute__((always_inline)) int
try_send_any(struct nm_engine *engine, const struct nm_message *m, uint64_t size, bool is_device)
{
	struct nm_message staged;
	struct iovec piece;
	struct nm_peer *peer = m->peer;
	struct nm_packet packet = {
		.op = NM_OP_EAGER,
		.flags = (uint8_t)((m->flags & NM_TAGGED ? NM_PKT_TAGGED : 0) |
				   (m->flags & NM_REMOTE_CQ_DATA ? NM_PKT_DATA : 0)),
		.tag = m->tag,
		.data = m->data,
	};
	bool eager;
	int err;

	if (nm_unlikely(!ready(peer))) {
		err = nm_send_ready(engine, peer);
		if (err < 0)
			return err;
	}
	if (m->flags & ANSWERED)
		packet.flags |= NM_PKT_ACK;
	eager = goes_eager(peer, size, m->flags);
	if (eager && size + sizeof(struct nm_wire_id) > peer->max_payload) {
		if (m->flags & NM_INJECT)
			return -EMSGSIZE;
		eager = false;
	}
	if (is_device && eager) {
		err = nm_stage_message(engine, m->iov, m->nr_iov, size, &piece);
		if (err < 0)
			return err;
		staged = *m;
		staged.iov = &piece;
		staged.nr_iov = 1;
		m = &staged;
	}
	if (nm_unlikely(!eager || packet.flags & NM_PKT_ACK)) {
		err = send_answered(engine, m, &packet, size, eager);
	} else if (nm_unlikely(m->flags & NM_TRANSMIT_COMPLETE)) {
		packet.len = (uint32_t)size;
		err = send_leaving(engine, m, &packet);
	} else {
		packet.len = (uint32_t)size;
		err = peer->send(peer->link, &packet, m->iov, (unsigned int)m->nr_iov);
		if (nm_unlikely(err < 0))
			return refused(engine, peer, err);
		nm_complete_transmit(engine, NM_SEND | (m->flags & (NM_TAGGED | NM_MSG)), m->flags,
				     m->context, 0);
	}
	if (err < 0)
		return err;
	peer->sent_messages++;
	peer->sent_bytes += size;
	/* A program may send for long and never look for what comes back. */
	peer->unheard += (uint32_t)size + NM_UNEXPECTED_BLOCK;
	if (nm_unlikely(peer->unheard >= LISTEN_BYTES)) {
		peer->unheard = 0;
		nm_engine_help(engine);
	}
	return 0;
}

static int try_send(struct nm_engine *engine, const struct nm_message *m, uint64_t size)
{
	return try_send_any(engine, m, size, false);
}

static NM_COLD int try_send_device(struct nm_engine *engine, const struct nm_message *m,
				   uint64_t size)
{
	return try_send_any(engine, m, size, true);
}

/*
 * The link is full, or not there, or the message is not small: the general way knows what to do.
 * All it needs is in the packet, so that nm_engine_inject() keeps nothing else over its call.
 */
static NM_SLOW_HALF int inject_slowly(struct nm_peer *peer, const struct nm_packet *packet,
				      const struct iovec *iov)
{
	const struct nm_message message = {
		.iov = iov,
		.nr_iov = 1,
		.peer = peer,
		.tag = packet->tag,
		.data = packet->data,
		.flags = NM_INJECT | (packet->flags & NM_PKT_TAGGED ? NM_TAGGED : NM_MSG) |
			 (packet->flags & NM_PKT_DATA ? NM_REMOTE_CQ_DATA : 0),
	};

	return nm_engine_send(peer->engine, &message);
}

int nm_engine_inject(struct nm_peer *peer, const void *buffer, size_t len, uint64_t tag,
		     uint64_t data, uint64_t flags)
{
	const struct iovec iov = {.iov_base = (void *)(uintptr_t)buffer, .iov_len = len};
	const struct nm_packet packet = {
		.op = NM_OP_EAGER,
		.flags = (uint8_t)((flags & NM_TAGGED ? NM_PKT_TAGGED : 0) |
				   (flags & NM_REMOTE_CQ_DATA ? NM_PKT_DATA : 0)),
		.len = (uint32_t)len,
		.tag = tag,
		.data = data,
	};
	struct nm_counter *counter;

	if (nm_unlikely(!ready(peer) || len > peer->eager_max ||
			peer->send(peer->link, &packet, &iov, 1) != 0))
		return inject_slowly(peer, &packet, &iov);
	peer->sent_messages++;
	peer->sent_bytes += packet.len;
	counter = peer->engine->queues.send;
	if (counter)
		counter->value++;
	return 0;
}

int nm_engine_send(struct nm_engine *engine, const struct nm_message *message)
{
	uint64_t size;
	int err;

	if (nm_unlikely(message->nr_iov > NM_IOV_MAX || !message->peer))
		return -EINVAL;
	size = nm_iov_total(message->iov, message->nr_iov);
	err = try_send(engine, message, size);
	if (nm_unlikely(err == -EAGAIN)) {
		nm_send_stalled(engine, message->peer);
		err = try_send(engine, message, size);
	}
	return err;
}

int nm_engine_send_device(struct nm_engine *engine, const struct nm_message *message)
{
	uint64_t size;
	int err;

	if (message->nr_iov > NM_IOV_MAX || !message->peer)
		return -EINVAL;
	size = nm_iov_total(message->iov, message->nr_iov);
	err = try_send_device(engine, message, size);
	if (err == -EAGAIN) {
		nm_send_stalled(engine, message->peer);
		err = try_send_device(engine, message, size);
	}
	return err;
}
