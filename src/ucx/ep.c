/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints of UCX: sending to one peer, and what waits for room. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/log.h"
#include "ucx/face.h"

static struct nm_ucx_iface *iface_of(const struct nm_ucx_ep *ep)
{
	return nm_ucx_iface_of(ep->super.iface);
}

static struct nm_ucx_pending *pending_of(uct_pending_req_t *request)
{
	return (struct nm_ucx_pending *)request;
}

static uct_pending_req_t *first_pending(struct nm_ucx_ep *ep)
{
	struct nm_ucx_pending *pending = nm_list_first(&ep->pending, struct nm_ucx_pending, node);

	nm_list_remove(&pending->node);
	return (uct_pending_req_t *)pending;
}

ucs_status_t nm_ucx_ep_create(const uct_ep_params_t *params, uct_ep_h *ret_ep)
{
	struct nm_ucx_iface *iface = nm_ucx_iface_of(params->iface);
	size_t len = params->field_mask & UCT_EP_PARAM_FIELD_IFACE_ADDR_LENGTH ?
			     params->iface_addr_length :
			     sizeof(struct nm_ucx_address);
	struct nm_ucx_address address;
	struct nm_reason why;
	struct nm_ucx_ep *ep;
	int err;

	if (!(params->field_mask & UCT_EP_PARAM_FIELD_IFACE_ADDR) ||
	    !nm_ucx_address_parse(params->iface_addr, len, &address)) {
		nm_error("ucx: an endpoint needs the address of an interface of this transport");
		return UCS_ERR_INVALID_ADDR;
	}
	if (!nm_ucx_address_fits(iface, &address, &why)) {
		nm_error("ucx: peer " NM_WHO_FORMAT " cannot be reached: %s", NM_WHO(&address.who),
			 why.text);
		return UCS_ERR_UNREACHABLE;
	}
	ep = calloc(1, sizeof(*ep));
	if (!ep)
		return UCS_ERR_NO_MEMORY;
	ep->super.iface = &iface->base.super;
	ep->peer = nm_ucx_peer_get(iface, &address.who);
	if (!ep->peer) {
		free(ep);
		return UCS_ERR_NO_MEMORY;
	}
	nm_list_init(&ep->pending);
	nm_list_init(&ep->waiting);
	err = iface->in_progress ? -EAGAIN : nm_ucx_peer_connect(ep->peer);
	if (err == -EAGAIN) {
		nm_ucx_peer_begin(ep->peer);
	} else if (err) {
		nm_error("ucx: peer " NM_WHO_FORMAT " cannot be reached: %s", NM_WHO(&address.who),
			 ep->peer->why.text);
		free(ep);
		return UCS_ERR_UNREACHABLE;
	}
	nm_list_append(&ep->peer->eps, &ep->node);
	*ret_ep = &ep->super;
	return UCS_OK;
}

void nm_ucx_ep_destroy(uct_ep_h base)
{
	struct nm_ucx_ep *ep = nm_ucx_ep_of(base);

	if (!nm_list_empty(&ep->pending))
		nm_warn("ucx: an endpoint was destroyed before its pending requests ended");
	nm_list_remove(&ep->node);
	nm_list_remove(&ep->waiting);
	/* While a request of its own runs, dispatch() needs it. */
	ep->is_destroyed = ep->is_dispatching;
	if (!ep->is_destroyed)
		free(ep);
}

/* ---- Sending ---- */

/* Pending requests go first, and bytes that UCX has packed before all others. */
static bool is_blocked(const struct nm_ucx_ep *ep)
{
	return ep->peer->held || (!nm_list_empty(&ep->pending) && !ep->is_dispatching);
}

/* In UCX's log, like the faults that libuct finds in the calls of a program. */
static NM_COLD ucs_status_t wrong_call(uint8_t id, size_t len, size_t max_len)
{
	if (id >= UCT_AM_ID_MAX)
		ucs_error("nearmetal: %u is no active message id: they end at %u", id,
			  (unsigned int)UCT_AM_ID_MAX - 1);
	else
		ucs_error("nearmetal: a message has a length of %zu bytes, more than %zu", len,
			  max_len);
	return UCS_ERR_INVALID_PARAM;
}

/* One packet, whose message is HEADER and LEN bytes. */
static inline ucs_status_t send_short(struct nm_ucx_ep *ep, uint8_t id, uint64_t header,
				      const void *payload, size_t len)
{
	const struct nm_packet packet = {
		.op = id,
		.flags = NM_UCX_SHORT,
		.len = (uint32_t)len,
		.tag = header,
	};

	if (nm_unlikely(is_blocked(ep)))
		return UCS_ERR_NO_RESOURCE;
	if (nm_unlikely(id >= UCT_AM_ID_MAX || len > iface_of(ep)->max_short - sizeof(header)))
		return wrong_call(id, len + sizeof(header), iface_of(ep)->max_short);
	return nm_ucx_peer_send(ep->peer, &packet, payload);
}

ucs_status_t nm_ucx_ep_am_short(uct_ep_h base, uint8_t id, uint64_t header, const void *payload,
				unsigned int len)
{
	return send_short(nm_ucx_ep_of(base), id, header, payload, len);
}

/* Like libuct, which has no strides. */
static size_t length_of(const uct_iov_t *iov)
{
	return iov->length * iov->count;
}

/* Any pieces: they become one in `outgoing`. */
static ucs_status_t send_pieces(struct nm_ucx_ep *ep, uint8_t id, const uct_iov_t *iov, size_t nr)
{
	struct nm_packet packet = {.op = id, .flags = NM_UCX_BCOPY};
	struct nm_ucx_iface *iface = iface_of(ep);
	uint8_t *to = iface->outgoing;
	uint64_t header;

	for (size_t i = 0; i < nr; i++) {
		size_t len = length_of(&iov[i]);

		if (len > iface->max_short - packet.len)
			return wrong_call(0, packet.len + len, iface->max_short);
		if (len)
			memcpy(to + packet.len, iov[i].buffer, len);
		packet.len += (uint32_t)len;
	}
	if (packet.len >= sizeof(header)) {
		memcpy(&header, to, sizeof(header));
		return send_short(ep, id, header, to + sizeof(header), packet.len - sizeof(header));
	}
	if (is_blocked(ep))
		return UCS_ERR_NO_RESOURCE;
	if (id >= UCT_AM_ID_MAX)
		return wrong_call(id, 0, 0);
	return nm_ucx_peer_send(ep->peer, &packet, to);
}

ucs_status_t nm_ucx_ep_am_short_iov(uct_ep_h base, uint8_t id, const uct_iov_t *iov, size_t nr)
{
	struct nm_ucx_ep *ep = nm_ucx_ep_of(base);
	uint64_t header;

	/* What ucp_am_send_nbx() passes: its header of 8 bytes, and the message. */
	if (nm_unlikely(nr != 2 || length_of(iov) != sizeof(header)))
		return send_pieces(ep, id, iov, nr);
	memcpy(&header, iov->buffer, sizeof(header));
	return send_short(ep, id, header, iov[1].buffer, length_of(&iov[1]));
}

static NM_COLD bool hold(struct nm_peer *peer, const struct nm_packet *packet, const void *payload)
{
	struct nm_ucx_held *held = malloc(sizeof(*held) + packet->len);

	if (!held)
		return false;
	held->packet = *packet;
	memcpy(held->bytes, payload, packet->len);
	peer->held = held;
	nm_list_append(&peer->iface->holding, &peer->node);
	return true;
}

/* For channels without places, and for UCX's log of messages, which reads the bytes. */
static NM_COLD ssize_t pack_and_send(struct nm_peer *peer, struct nm_packet *packet,
				     uct_pack_callback_t pack, void *arg)
{
	struct nm_ucx_iface *iface = peer->iface;
	size_t len = pack(iface->outgoing, arg);

	/* UCX has written beyond the buffer already: there is no way to go on. */
	if (len > iface->max_bcopy)
		abort();
	packet->len = (uint32_t)len;
	if (nm_ucx_peer_send(peer, packet, iface->outgoing) != UCS_OK &&
	    !hold(peer, packet, iface->outgoing))
		return UCS_ERR_NO_MEMORY;
	return (ssize_t)len;
}

ssize_t nm_ucx_ep_am_bcopy(uct_ep_h base, uint8_t id, uct_pack_callback_t pack, void *arg,
			   unsigned int flags)
{
	struct nm_packet packet = {.op = id, .flags = NM_UCX_BCOPY};
	struct nm_ucx_ep *ep = nm_ucx_ep_of(base);
	struct nm_peer *peer = ep->peer;
	const struct nm_place_ops *place;

	(void)flags;
	if (nm_unlikely(peer->state == NM_UCX_PEER_DOWN))
		return UCS_ERR_CONNECTION_RESET;
	if (nm_unlikely(is_blocked(ep) || peer->state != NM_UCX_PEER_UP))
		return UCS_ERR_NO_RESOURCE;
	if (nm_unlikely(id >= UCT_AM_ID_MAX))
		return wrong_call(id, 0, 0);
	place = peer->link->transport->place;
	if (nm_unlikely(!place || ucs_log_is_enabled(UCS_LOG_LEVEL_TRACE_DATA)))
		return pack_and_send(peer, &packet, pack, arg);
	if (nm_unlikely(
		    place->send_filled(peer->link, &packet, peer->iface->max_bcopy, pack, arg))) {
		peer->nr_stalls++;
		return UCS_ERR_NO_RESOURCE;
	}
	nm_ucx_peer_sent(peer, &packet);
	return packet.len;
}

struct gathered {
	const void *header;
	size_t header_len;
	const uct_iov_t *iov;
	size_t nr;
};

/* A pack callback: HEADER and the pieces. */
static size_t gather(void *to, void *arg)
{
	const struct gathered *from = arg;
	uint8_t *at = to;

	if (from->header_len)
		memcpy(at, from->header, from->header_len);
	at += from->header_len;
	for (size_t i = 0; i < from->nr; i++) {
		size_t len = length_of(&from->iov[i]);

		if (len)
			nm_copy(at, from->iov[i].buffer, len);
		at += len;
	}
	return (size_t)(at - (uint8_t *)to);
}

ucs_status_t nm_ucx_ep_am_zcopy(uct_ep_h base, uint8_t id, const void *header,
				unsigned int header_len, const uct_iov_t *iov, size_t nr,
				unsigned int flags, uct_completion_t *comp)
{
	struct gathered from = {header, header_len, iov, nr};
	const size_t max = iface_of(nm_ucx_ep_of(base))->max_bcopy;
	size_t total = header_len;
	ssize_t len;

	(void)comp;
	for (size_t i = 0; i < nr && total <= max; i++)
		total = length_of(&iov[i]) > max ? SIZE_MAX : total + length_of(&iov[i]);
	if (nm_unlikely(total > max))
		return wrong_call(id, total, max);
	len = nm_ucx_ep_am_bcopy(base, id, gather, &from, flags);
	return len < 0 ? (ucs_status_t)len : UCS_OK;
}

/* ---- Waiting ---- */

ucs_status_t nm_ucx_ep_pending_add(uct_ep_h base, uct_pending_req_t *request, unsigned int flags)
{
	struct nm_ucx_ep *ep = nm_ucx_ep_of(base);

	(void)flags;
	nm_list_append(&ep->pending, &pending_of(request)->node);
	if (nm_list_empty(&ep->waiting))
		nm_list_append(&iface_of(ep)->waiting, &ep->waiting);
	/* It was lost while nothing was pending. */
	if (ep->peer->state == NM_UCX_PEER_DOWN && !ep->is_reported)
		nm_ucx_peer_report(ep->peer);
	return UCS_OK;
}

void nm_ucx_ep_pending_purge(uct_ep_h base, uct_pending_purge_callback_t cb, void *arg)
{
	struct nm_ucx_ep *ep = nm_ucx_ep_of(base);

	nm_list_remove(&ep->waiting);
	while (!nm_list_empty(&ep->pending)) {
		uct_pending_req_t *request = first_pending(ep);

		if (cb)
			cb(request, arg);
	}
}

/* Run pending requests of EP in order until one finds no room, or destroys EP. */
static unsigned int dispatch(struct nm_ucx_ep *ep)
{
	unsigned int nr = 0;

	while (!nm_list_empty(&ep->pending)) {
		uct_pending_req_t *request = first_pending(ep);
		ucs_status_t status;

		ep->is_dispatching = true;
		status = request->func(request);
		ep->is_dispatching = false;
		nr += status == UCS_OK || status == UCS_INPROGRESS;
		if (nm_unlikely(ep->is_destroyed)) {
			free(ep);
			return nr;
		}
		if (status != UCS_OK) {
			/* To the front: prepended to the first, or alone. */
			nm_list_append(ep->pending.next, &pending_of(request)->node);
			break;
		}
	}
	if (nm_list_empty(&ep->pending))
		nm_list_remove(&ep->waiting);
	return nr;
}

unsigned int nm_ucx_eps_progress(struct nm_ucx_iface *iface)
{
	struct nm_list round;
	unsigned int nr = 0;

	if (nm_likely(nm_list_empty(&iface->waiting)))
		return 0;
	/* Each one once; the callbacks may add some. */
	nm_list_init(&round);
	while (!nm_list_empty(&iface->waiting)) {
		struct nm_list *node = iface->waiting.next;

		nm_list_remove(node);
		nm_list_append(&round, node);
	}
	while (!nm_list_empty(&round)) {
		struct nm_ucx_ep *ep = nm_list_first(&round, struct nm_ucx_ep, waiting);

		nm_list_remove(&ep->waiting);
		nm_list_append(&iface->waiting, &ep->waiting);
		if (ep->peer->state != NM_UCX_PEER_CONNECTING && !ep->peer->held)
			nr += dispatch(ep);
	}
	return nr;
}

/* ---- Order and liveness ---- */

ucs_status_t nm_ucx_ep_flush(uct_ep_h base, unsigned int flags, uct_completion_t *comp)
{
	struct nm_ucx_ep *ep = nm_ucx_ep_of(base);

	(void)flags;
	(void)comp;
	/* What a link took is in the peer's reach; a lost peer gets nothing more. */
	if (ep->peer->state == NM_UCX_PEER_DOWN)
		return UCS_OK;
	if (is_blocked(ep) || ep->peer->state != NM_UCX_PEER_UP)
		return UCS_ERR_NO_RESOURCE;
	return UCS_OK;
}

ucs_status_t nm_ucx_iface_flush(uct_iface_h base, unsigned int flags, uct_completion_t *comp)
{
	(void)flags;
	(void)comp;
	return nm_list_empty(&nm_ucx_iface_of(base)->holding) ? UCS_OK : UCS_INPROGRESS;
}

ucs_status_t nm_ucx_ep_fence(uct_ep_h base, unsigned int flags)
{
	/* Packets of one link arrive in order. */
	(void)base;
	(void)flags;
	return UCS_OK;
}

ucs_status_t nm_ucx_ep_check(uct_ep_h base, unsigned int flags, uct_completion_t *comp)
{
	struct nm_ucx_ep *ep = nm_ucx_ep_of(base);
	struct nm_peer *peer = ep->peer;

	(void)flags;
	(void)comp;
	ep->is_watched = true;
	if (peer->state == NM_UCX_PEER_UP)
		peer->link->transport->ops->check_alive(peer->link);
	if (peer->state == NM_UCX_PEER_DOWN && !ep->is_reported)
		nm_ucx_peer_report(peer);
	return UCS_OK;
}

int nm_ucx_ep_is_connected(uct_ep_h base, const uct_ep_is_connected_params_t *params)
{
	return nm_ucx_peer_is_at(nm_ucx_ep_of(base)->peer, params);
}
