/* SPDX-License-Identifier: Apache-2.0 */
#include "ucx_fixture.h"

#include <stdlib.h>
#include <string.h>

struct node *peer;
struct nm_ucx_iface *face;
unsigned int nr_arrived, nr_lost;
size_t last_len;
uint8_t last[NM_UCX_MESSAGE_MAX];

/* libuct's: it calls the error handler of the interface. */
ucs_status_t uct_iface_handle_ep_err(uct_iface_h iface, uct_ep_h ep, ucs_status_t status)
{
	NM_CHECK(iface == &face->base.super && ep->iface == iface);
	NM_CHECK_EQ(status, UCS_ERR_CONNECTION_RESET);
	nr_lost++;
	return UCS_OK;
}

static ucs_status_t take(void *arg, void *data, size_t len, unsigned int flags)
{
	NM_CHECK(arg == face && flags == 0);
	nr_arrived++;
	last_len = len;
	memcpy(last, data, len);
	return UCS_OK;
}

void progress(void)
{
	struct nm_transport *t = face->transports[0];

	face->in_progress = true;
	t->ops->progress(t);
	face->in_progress = false;
	if (face->is_armed)
		nm_ucx_wake_up(face, true);
	nm_ucx_peers_progress(face);
	nm_ucx_eps_progress(face);
}

void start(void)
{
	struct nm_reason why;
	struct nm_peer *named;

	peer = node_create(&shm_fixture);
	face = calloc(1, sizeof(*face));
	nm_ucx_peers_init(face);
	face->address.version = NM_ADDRESS_VERSION;
	face->max_short = 216;
	NM_CHECK_EQ(nm_identity_create(&face->address.who), 0);
	NM_CHECK_EQ(nm_shm_kind.create(&face->sink, &face->address, &face->transports[0], &why), 0);
	face->nr_transports = 1;
	face->max_bcopy = face->transports[0]->max_payload / 2;
	face->outgoing = malloc(face->max_bcopy);
	face->arrived = malloc(NM_UCX_MESSAGE_MAX);
	for (unsigned int i = 0; i < UCT_AM_ID_MAX; i++)
		face->base.am[i] = (uct_am_handler_t){take, face, 0};
	named = (struct nm_peer *)peer;
	NM_CHECK_EQ(node_reach(peer->transport, &face->address, named, &peer->link, &why), 0);
}

void finish(void)
{
	nm_ucx_wake_free(face);
	face->transports[0]->ops->destroy(face->transports[0]);
	nm_ucx_peers_free(face);
	free(face->outgoing);
	free(face->arrived);
	free(face);
	if (peer)
		node_destroy(peer);
}

struct nm_peer *face_peer(void)
{
	return nm_ucx_peer_get(face, &peer->address.who);
}

ucs_status_t create_ep(struct nm_identity who, uint32_t max_message, uct_ep_h *ret_ep)
{
	const struct nm_ucx_address address = {NM_UCX_ADDRESS_VERSION, 0, who, max_message};
	const uct_ep_params_t params = {
		.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR,
		.iface = &face->base.super,
		.iface_addr = (const uct_iface_addr_t *)&address,
	};

	return nm_ucx_ep_create(&params, ret_ep);
}

struct nm_ucx_ep *connect_ep(void)
{
	uct_ep_h ep;

	NM_CHECK_EQ(create_ep(peer->address.who, face->max_bcopy, &ep), UCS_OK);
	UNTIL(face_peer()->state == NM_UCX_PEER_UP && peer->nr_up);
	return nm_ucx_ep_of(ep);
}
