/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile peers against the UCX face: the input is a script of addresses and packets from two peers,
 * of ends, and of calls of UCX. Nothing may crash, leak or be written out of place; UCX never gets a
 * message longer than its pools, and each end of a peer once per endpoint.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "target.h"
#include "ucx/face.h"

#define PEERS 2
#define ENDPOINTS 4
#define MAX_MESSAGE 4096

static const uint8_t *at, *end;

static uint8_t next(void)
{
	return at < end ? *at++ : 0;
}

static struct nm_ucx_iface *face;
static struct nm_transport transport;
static struct nm_link links[PEERS];
static struct nm_peer *sources[PEERS];
static bool is_gone[PEERS], is_blocked;
static uint8_t answer;
static struct nm_ucx_ep *eps[ENDPOINTS];
static uct_pending_req_t requests[ENDPOINTS];
static bool is_pending[ENDPOINTS], is_told[ENDPOINTS];

static struct nm_identity identity(unsigned int peer)
{
	return (struct nm_identity){{(uint8_t)(1 + peer)}, {7}};
}

static int fake_connect(struct nm_transport *t, const struct nm_address *address,
			struct nm_peer *peer, struct nm_link **ret_link,
			struct nm_reason *ret_reason)
{
	unsigned int i = (address->who.id[0] - 1u) % PEERS;

	nm_reason_set(ret_reason, "the script says so");
	if (face->in_progress)
		abort();
	if (is_gone[i] || answer % 3 == 0)
		return -EHOSTUNREACH;
	if (answer % 3 == 1)
		return -EAGAIN;
	links[i] = (struct nm_link){.transport = t, .peer = peer};
	*ret_link = &links[i];
	return 0;
}

static int fake_send(struct nm_link *link, const struct nm_packet *packet, const struct iovec *iov,
		     unsigned int nr_iov)
{
	if (packet->len > MAX_MESSAGE || nr_iov != 1 || iov->iov_len != packet->len)
		abort();
	if (is_gone[link - links])
		return -EPIPE;
	return is_blocked ? -EAGAIN : 0;
}

static int fake_send_filled(struct nm_link *link, struct nm_packet *packet, uint32_t room,
			    size_t (*fill)(void *to, void *arg), void *arg)
{
	uint8_t *place;

	if (room != MAX_MESSAGE)
		abort();
	if (is_gone[link - links])
		return -EPIPE;
	if (is_blocked)
		return -EAGAIN;
	place = malloc(room);
	packet->len = (uint32_t)fill(place, arg);
	free(place);
	return 0;
}

static const struct nm_place_ops fake_place = {.send_filled = fake_send_filled};
static const struct nm_transport_ops fake_ops = {.connect = fake_connect, .send = fake_send};
static const struct nm_transport_kind fake_kind = {.channel = NM_CHANNEL_SHM};

/* libuct's. */
ucs_status_t uct_iface_handle_ep_err(uct_iface_h iface, uct_ep_h ep, ucs_status_t status)
{
	(void)iface;
	(void)status;
	for (unsigned int i = 0; i < ENDPOINTS; i++) {
		if (!eps[i] || &eps[i]->super != ep)
			continue;
		if (is_told[i])
			abort();
		is_told[i] = true;
		/* UCX may destroy it there. */
		if (next() % 2 && !is_pending[i]) {
			nm_ucx_ep_destroy(ep);
			eps[i] = NULL;
		}
	}
	return UCS_OK;
}

static void create(unsigned int i, bool in_callback)
{
	struct nm_ucx_address address = {NM_UCX_ADDRESS_VERSION, 0, identity(next() % PEERS),
					 MAX_MESSAGE};
	const uct_ep_params_t params = {
		.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR,
		.iface = &face->base.super,
		.iface_addr = (const uct_iface_addr_t *)&address,
	};
	uint8_t wrong = next();
	uct_ep_h ep;

	if (wrong > 200)
		((uint8_t *)&address)[wrong % sizeof(address)] ^= next();
	/* A peer that does not exist is none of the script's. */
	if (address.who.id[0] < 1 || address.who.id[0] > PEERS || eps[i])
		return;
	face->in_progress = in_callback;
	if (nm_ucx_ep_create(&params, &ep) == UCS_OK) {
		eps[i] = nm_ucx_ep_of(ep);
		is_told[i] = false;
	}
	face->in_progress = false;
}

static ucs_status_t take(void *arg, void *data, size_t len, unsigned int flags)
{
	uint8_t *pool = malloc(MAX_MESSAGE);

	(void)arg;
	if (flags || !face->in_progress)
		abort();
	/* As UCX keeps an unexpected message. */
	memcpy(pool, data, len);
	free(pool);
	return UCS_OK;
}

static size_t pack(void *to, void *arg)
{
	memset(to, 1, *(size_t *)arg);
	return *(size_t *)arg;
}

static ucs_status_t run_pending(uct_pending_req_t *request)
{
	unsigned int i = (unsigned int)(request - requests);
	ucs_status_t status = nm_ucx_ep_am_short(&eps[i]->super, 1, 2, "x", 1);

	is_pending[i] = status != UCS_OK;
	return status;
}

static void purged(uct_pending_req_t *request, void *arg)
{
	(void)arg;
	is_pending[request - requests] = false;
}

/* Lengths that are too much are refused, and no byte is read. */
static void send_pieces(uct_ep_h ep, size_t len)
{
	static uint8_t bytes[MAX_MESSAGE];
	const uct_iov_t iov[2] = {{bytes, len, NULL, 0, 1},
				  {bytes, next() > 240 ? SIZE_MAX : next(), NULL, 0, 1}};
	unsigned int header_len = next();
	uint8_t id = next();

	nm_ucx_ep_am_zcopy(ep, id, bytes, header_len, iov, id % 3u, 0, NULL);
}

static void call(unsigned int i, uint8_t what)
{
	uct_ep_h ep = eps[i] ? &eps[i]->super : NULL;
	size_t len = next() * 16u;

	if (!ep)
		return;
	if (what % 5 == 0 && what > 127) {
		const uct_iov_t iov[2] = {{"12345678", what % 9u, NULL, 0, 1},
					  {"12345678", len % 9, NULL, 0, 1}};

		nm_ucx_ep_am_short_iov(ep, next(), iov, 1 + what % 2u);
	} else if (what % 5 == 0) {
		nm_ucx_ep_am_short(ep, next(), 1, "12345678", len % 9);
	} else if (what % 5 == 1 && what > 127) {
		send_pieces(ep, len);
	} else if (what % 5 == 1) {
		nm_ucx_ep_am_bcopy(ep, next(), pack, &len, 0);
	} else if (what % 5 == 2 && !is_pending[i]) {
		requests[i].func = run_pending;
		is_pending[i] = true;
		nm_ucx_ep_pending_add(ep, &requests[i], 0);
	} else if (what % 5 == 3) {
		nm_ucx_ep_flush(ep, 0, NULL);
	} else {
		nm_ucx_ep_pending_purge(ep, purged, NULL);
		nm_ucx_ep_destroy(ep);
		eps[i] = NULL;
	}
}

static void deliver(unsigned int i)
{
	struct nm_packet packet = {.op = next() % 40, .flags = next()};
	uint8_t *payload;
	size_t left;

	packet.flags = packet.flags < 240 ? NM_UCX_SHORT + packet.flags % 2 : packet.flags;
	packet.len = next() * (next() % 40u + 1);
	packet.tag = packet.flags == NM_UCX_SHORT ? 1 : next() > 240;
	packet.data = next() > 240;
	if (!sources[i])
		return;
	left = (size_t)(end - at) < packet.len ? (size_t)(end - at) : packet.len;
	payload = calloc(1, packet.len + !packet.len);
	memcpy(payload, at, left);
	at += left;
	face->sink.deliver(&transport, sources[i], &packet, payload);
	free(payload);
}

static void peer_acts(unsigned int i, uint8_t what)
{
	const struct nm_identity who = identity(i);
	const struct nm_reason why = {"the script says so"};
	const struct nm_peer_label label = {"a hostile peer"};
	struct nm_peer *known = sources[i] ? sources[i] : links[i].peer;

	face->in_progress = true;
	if (what % 8 == 0 && !is_gone[i] && !sources[i]) {
		sources[i] = face->sink.source_up(&transport, &who, &label);
	} else if (what % 8 == 1 && known && !is_gone[i]) {
		is_gone[i] = true;
		face->sink.source_down(&transport, known, next() % 2 ? -ECONNRESET : 0, &why);
		sources[i] = NULL;
	} else {
		deliver(i);
	}
	face->in_progress = false;
}

static void start(void)
{
	face = calloc(1, sizeof(*face));
	nm_ucx_peers_init(face);
	face->address.who = identity(PEERS);
	face->max_bcopy = face->max_short = MAX_MESSAGE;
	face->outgoing = malloc(MAX_MESSAGE);
	face->arrived = malloc(MAX_MESSAGE);
	for (unsigned int i = 0; i < UCT_AM_ID_MAX; i++)
		face->base.am[i] = (uct_am_handler_t){take, face, 0};
	transport = (struct nm_transport){.kind = &fake_kind,
					  .ops = &fake_ops,
					  .sink = face->sink,
					  .max_payload = MAX_MESSAGE};
	face->transports[0] = &transport;
	face->nr_transports = 1;
	memset(links, 0, sizeof(links));
	memset(sources, 0, sizeof(sources));
	memset(is_gone, 0, sizeof(is_gone));
	memset(is_pending, 0, sizeof(is_pending));
	is_blocked = false;
	answer = 2;
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	at = bytes;
	end = bytes + len;
	start();
	while (at < end) {
		uint8_t what = next();
		unsigned int i = what >> 4;

		switch (what % 8) {
		case 0:
			create(i % ENDPOINTS, next() % 2);
			break;
		case 1:
		case 2:
			call(i % ENDPOINTS, next());
			break;
		case 3:
			is_blocked = next() % 2;
			break;
		case 4:
			answer = next();
			face->has_copies = answer & 64;
			transport.place = answer & 128 ? &fake_place : NULL;
			break;
		case 5:
			nm_ucx_peers_progress(face);
			nm_ucx_eps_progress(face);
			break;
		default:
			peer_acts(i % PEERS, next());
			break;
		}
	}
	for (unsigned int i = 0; i < ENDPOINTS; i++)
		if (eps[i])
			call(i, 4);
	nm_ucx_peers_free(face);
	free(face->outgoing);
	free(face->arrived);
	free(face);
}
