/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/rndv_gpudirect.h"

#include <errno.h>
#include <string.h>

#include "base/device.h"
#include "base/log.h"

/* Shorter pieces are not worth a transfer of their own. */
#define LEN_MIN 4096

#define NO_WORD UINT64_MAX

static const struct nm_gpudirect_ops *ops_of(const struct nm_engine *engine)
{
	const struct nm_transport *net = nm_network(engine);

	return net ? net->gpudirect : NULL;
}

/* The bytes of R from OFFSET on up to END, if they are one piece of a device. */
static bool piece_of(const struct nm_request *r, uint64_t offset, uint64_t end,
		     struct iovec *ret_piece)
{
	struct nm_cursor cursor = nm_cursor_at(r->iov, r->nr_iov, offset);
	struct iovec pieces[NM_IOV_MAX];

	if (end - offset < LEN_MIN ||
	    nm_cursor_take(&cursor, r->iov, r->nr_iov, end - offset, pieces) != 1)
		return false;
	*ret_piece = pieces[0];
	return nm_is_device(pieces[0].iov_base);
}

static bool is_there(const struct iovec *piece)
{
	return nm_device_is_there(piece->iov_base, piece->iov_len);
}

bool nm_gpudirect_offer(const struct nm_peer *peer, const struct nm_request *r)
{
	const struct nm_gpudirect_ops *ops = peer->link->transport->gpudirect;
	struct iovec piece;

	return ops && piece_of(r, 0, r->size, &piece) && ops->reaches(peer->link, &piece);
}

bool nm_gpudirect_ask(struct nm_engine *engine, struct nm_request *r)
{
	const struct nm_link *link = r->peer->link;
	const struct nm_gpudirect_ops *ops = link ? link->transport->gpudirect : NULL;
	struct {
		struct nm_wire_cts cts;
		struct nm_wire_tag tag;
	} payload = {.cts = {.offset = r->done, .len = r->accepted - r->done}};
	const struct nm_packet packet = {
		.op = NM_OP_CTS,
		.len = sizeof(payload),
		.tag = r->remote_id,
		.data = nm_request_id(r),
	};
	struct iovec piece;

	if (!ops || r->kind != NM_REQUEST_RECV || r->peer->state != NM_PEER_CONNECTED ||
	    !piece_of(r, r->done, r->accepted, &piece) ||
	    ops->expect(r->peer->link, &piece, nm_request_id(r), &payload.tag.tag) < 0)
		return false;
	nm_request_set_state(r, NM_REQUEST_DIRECT);
	r->expects = true;
	r->placed = NO_WORD;
	nm_peer_post(engine, r->peer, &packet, &payload);
	return true;
}

/* What this endpoint sent, or not, is over. */
static void say_placed(struct nm_engine *engine, const struct nm_request *r, uint64_t len)
{
	const struct nm_packet packet = {.op = NM_OP_PLACED, .tag = r->remote_id, .data = len};

	nm_peer_post(engine, r->peer, &packet, NULL);
}

bool nm_gpudirect_send(const struct nm_incoming *in, struct nm_request *r)
{
	const struct nm_link *link = in->peer->link;
	const struct nm_gpudirect_ops *ops = link ? link->transport->gpudirect : NULL;
	struct nm_wire_cts cts;
	struct nm_wire_tag tag;
	struct iovec piece;

	if (in->pkt->flags || r->kind != NM_REQUEST_SEND || !(r->packet_flags & NM_PKT_DIRECT))
		return false;
	memcpy(&cts, in->payload, sizeof(cts));
	memcpy(&tag, (const char *)in->payload + sizeof(cts), sizeof(tag));
	if (cts.len == 0 || cts.offset > r->size || cts.len > r->size - cts.offset)
		return false;
	r->done = cts.offset;
	r->accepted = cts.offset + cts.len;
	r->remote_id = in->pkt->data;
	if (!ops || !piece_of(r, r->done, r->accepted, &piece) ||
	    ops->send(in->peer->link, &piece, tag.tag, nm_request_id(r)) < 0)
		say_placed(in->engine, r, 0);
	else
		nm_request_set_state(r, NM_REQUEST_DIRECT);
	return true;
}

/* Both sides have done their part, or the packets have to. */
static void settle(struct nm_engine *engine, struct nm_request *r)
{
	struct iovec piece;

	if (r->expects || r->placed == NO_WORD)
		return;
	if (r->copy_error || r->placed < r->accepted - r->done) {
		nm_info("%llu bytes for a device come through host memory, because its network "
			"adapter did not get them: %s",
			(unsigned long long)(r->accepted - r->done),
			r->copy_error ? strerror(-r->copy_error) :
					"the sender could not send them");
		r->packet_flags &= (uint8_t)~NM_PKT_DIRECT;
		r->copy_error = 0;
		r->placed = 0;
		nm_rndv_ask(engine, r);
		return;
	}
	/* Its program may have freed what the adapter wrote to. */
	if (piece_of(r, r->done, r->accepted, &piece) && !is_there(&piece))
		r->error = EFAULT;
	r->done = r->accepted;
	r->packet_flags |= NM_PKT_ACK; /* the sender waits for it in any case */
	nm_rndv_finish_incoming(engine, r);
}

bool nm_gpudirect_placed(const struct nm_incoming *in, struct nm_request *r)
{
	if (r->kind != NM_REQUEST_RECV || r->placed != NO_WORD ||
	    in->pkt->data > r->accepted - r->done)
		return false;
	r->placed = in->pkt->data;
	if (r->expects && r->placed < r->accepted - r->done) {
		ops_of(in->engine)->cancel(nm_network(in->engine), nm_request_id(r), r->placed > 0);
		r->expects = false;
	}
	settle(in->engine, r);
	return true;
}

/* The transport is done with the memory of R. */
static void ended(struct nm_engine *engine, struct nm_request *r, int err)
{
	struct iovec piece;

	if (r->kind == NM_REQUEST_RECV) {
		r->expects = false;
		r->copy_error = err;
		settle(engine, r);
		return;
	}
	nm_request_set_state(r, NM_REQUEST_WAIT_CTS); /* or the ACK that ends it */
	r->offered = true;
	if (!err && piece_of(r, r->done, r->accepted, &piece) && !is_there(&piece))
		err = -EFAULT;
	/* After an error the peer has some of them, or none. */
	say_placed(engine, r, err ? 1 : r->accepted - r->done);
}

void nm_sink_gpudirect_done(struct nm_transport *from, struct nm_peer *peer, uint64_t request,
			    int err)
{
	struct nm_engine *engine = from->sink.engine;
	struct nm_request *r = nm_request_find(&engine->requests, request, peer);

	if (r && r->state == NM_REQUEST_DIRECT && !engine->closing)
		ended(engine, r, err);
}

/* Is the transport at work on R? */
static bool is_begun(const struct nm_request *r)
{
	return r->state == NM_REQUEST_DIRECT && (r->kind == NM_REQUEST_SEND || r->expects);
}

static void end_of_peer(struct nm_engine *engine, struct nm_peer *peer, bool is_due)
{
	nm_list_for_each(node, &peer->requests) {
		struct nm_request *r = nm_container_of(node, struct nm_request, peer_node);

		if (!is_begun(r))
			continue;
		ops_of(engine)->cancel(nm_network(engine), nm_request_id(r), is_due);
		r->expects = false;
	}
}

void nm_gpudirect_end(struct nm_engine *engine, struct nm_peer *peer)
{
	if (!ops_of(engine))
		return;
	if (peer) {
		end_of_peer(engine, peer, false);
		return;
	}
	for (size_t i = 0; i <= engine->peers.mask; i++)
		if (engine->peers.slots[i])
			end_of_peer(engine, engine->peers.slots[i], true);
}

/* Does the transport use a part of MEMORY for R? */
static bool is_in(const struct nm_request *r, const struct iovec *memory)
{
	const char *first = memory->iov_base;
	struct iovec piece;

	if (!is_begun(r) || !piece_of(r, r->done, r->accepted, &piece))
		return false;
	return (const char *)piece.iov_base < first + memory->iov_len &&
	       first < (const char *)piece.iov_base + piece.iov_len;
}

static void leave_memory(struct nm_engine *engine, struct nm_peer *peer, const struct iovec *memory)
{
	nm_list_for_each_safe(node, &peer->requests) {
		struct nm_request *r = nm_container_of(node, struct nm_request, peer_node);

		if (!is_in(r, memory))
			continue;
		ops_of(engine)->cancel(nm_network(engine), nm_request_id(r), true);
		ended(engine, r, -EFAULT);
	}
}

void nm_engine_leave_memory(struct nm_engine *engine, const struct iovec *memory)
{
	const struct nm_gpudirect_ops *ops = ops_of(engine);

	for (size_t i = 0; ops && i <= engine->peers.mask; i++)
		if (engine->peers.slots[i])
			leave_memory(engine, engine->peers.slots[i], memory);
	if (ops)
		ops->forget(nm_network(engine), memory);
}
