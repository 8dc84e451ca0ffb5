/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UCX face without UCX: addresses and packets of hostile peers, order and waiting of messages,
 * and ends of peers. The peer is an endpoint under the face, which can send any packet.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport_fixture.h"
#include "ucx/face.h"

static struct node *peer;
static struct nm_ucx_iface *face;
static unsigned int nr_arrived, nr_lost;
static size_t last_len;
static uint8_t last[NM_UCX_MESSAGE_MAX];

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

static void progress(void)
{
	struct nm_transport *t = face->transports[0];

	face->in_progress = true;
	t->ops->progress(t);
	face->in_progress = false;
	nm_ucx_peers_progress(face);
	nm_ucx_eps_progress(face);
}

#define UNTIL(condition)                                                                           \
	while (!(condition)) {                                                                     \
		progress();                                                                        \
		node_progress(peer);                                                               \
	}

static void start(void)
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
	face->max_bcopy = face->transports[0]->max_payload;
	face->outgoing = malloc(face->max_bcopy);
	face->arrived = malloc(NM_UCX_MESSAGE_MAX);
	for (unsigned int i = 0; i < UCT_AM_ID_MAX; i++)
		face->base.am[i] = (uct_am_handler_t){take, face, 0};
	named = (struct nm_peer *)peer;
	NM_CHECK_EQ(node_reach(peer->transport, &face->address, named, &peer->link, &why), 0);
}

static void finish(void)
{
	face->transports[0]->ops->destroy(face->transports[0]);
	nm_ucx_peers_free(face);
	free(face->outgoing);
	free(face->arrived);
	free(face);
	if (peer)
		node_destroy(peer);
}

static int send_raw(uint8_t op, uint8_t flags, uint64_t tag, uint64_t data, uint32_t len)
{
	static uint8_t bytes[NM_UCX_MESSAGE_MAX];
	const struct nm_packet packet = {op, flags, len, tag, data};
	const struct iovec iov = {bytes, len};

	fill_bytes(bytes, len, 5);
	return peer->transport->ops->send(peer->link, &packet, &iov, 1);
}

static struct nm_peer *face_peer(void)
{
	return nm_ucx_peer_get(face, &peer->address.who);
}

static ucs_status_t create_ep(struct nm_identity who, uint32_t max_message, uct_ep_h *ret_ep)
{
	const struct nm_ucx_address address = {NM_UCX_ADDRESS_VERSION, 0, who, max_message};
	const uct_ep_params_t params = {
		.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR,
		.iface = &face->base.super,
		.iface_addr = (const uct_iface_addr_t *)&address,
	};

	return nm_ucx_ep_create(&params, ret_ep);
}

static struct nm_ucx_ep *connect_ep(void)
{
	uct_ep_h ep;

	NM_CHECK_EQ(create_ep(peer->address.who, face->max_bcopy, &ep), UCS_OK);
	UNTIL(face_peer()->state == NM_UCX_PEER_UP && peer->nr_up);
	return nm_ucx_ep_of(ep);
}

NM_TEST(addresses_are_checked)
{
	struct nm_ucx_address address = {NM_UCX_ADDRESS_VERSION, 0, {{1, 2, 3}, {4}}, 32768};
	struct nm_ucx_address parsed;

	NM_CHECK(nm_ucx_address_parse(&address, sizeof(address), &parsed));
	NM_CHECK(nm_identity_equal(&parsed.who, &address.who));
	NM_CHECK_EQ(parsed.max_message, 32768);
	NM_CHECK(!nm_ucx_address_parse(NULL, sizeof(address), &parsed));
	NM_CHECK(!nm_ucx_address_parse(&address, sizeof(address) - 1, &parsed));
	NM_CHECK(!nm_ucx_address_parse(&address, NM_ADDRESS_LEN, &parsed));
	address.zero = 1;
	NM_CHECK(!nm_ucx_address_parse(&address, sizeof(address), &parsed));
	/* The first bytes of an address of the other face. */
	address = (struct nm_ucx_address){NM_ADDRESS_VERSION, 0, address.who, 32768};
	NM_CHECK(!nm_ucx_address_parse(&address, sizeof(address), &parsed));
	address = (struct nm_ucx_address){.version = NM_UCX_ADDRESS_VERSION};
	NM_CHECK(!nm_ucx_address_parse(&address, sizeof(address), &parsed));
}

NM_TEST(messages_arrive_whole)
{
	uint64_t header = 0;

	start();
	NM_CHECK_EQ(send_raw(3, NM_UCX_SHORT, 77, 0, 200), 0);
	UNTIL(nr_arrived == 1);
	NM_CHECK_EQ(last_len, 208);
	memcpy(&header, last, sizeof(header));
	NM_CHECK_EQ(header, 77);
	NM_CHECK(bytes_match(last + sizeof(header), 200, 5));
	NM_CHECK_EQ(send_raw(31, NM_UCX_BCOPY, 0, 0, 30000), 0);
	UNTIL(nr_arrived == 2);
	NM_CHECK_EQ(last_len, 30000);
	NM_CHECK(bytes_match(last, 30000, 5));
	NM_CHECK_EQ(send_raw(0, NM_UCX_BCOPY, 0, 0, 0), 0);
	UNTIL(nr_arrived == 3);
	NM_CHECK_EQ(last_len, 0);
	finish();
}

/* After a good message, one that no correct peer sends; then another good one. */
static void expect_refused(uint8_t op, uint8_t flags, uint64_t tag, uint64_t data, uint32_t len)
{
	struct nm_ucx_ep *ep;

	nr_arrived = nr_lost = 0;
	start();
	face->max_bcopy = 1000;
	ep = connect_ep();
	NM_CHECK_EQ(send_raw(3, NM_UCX_SHORT, 1, 0, 8), 0);
	NM_CHECK_EQ(send_raw(op, flags, tag, data, len), 0);
	NM_CHECK_EQ(send_raw(3, NM_UCX_SHORT, 2, 0, 8), 0);
	UNTIL(nr_lost == 1);
	NM_CHECK_EQ(nr_arrived, 1);
	NM_CHECK_EQ(face_peer()->state, NM_UCX_PEER_DOWN);
	NM_CHECK_EQ(face_peer()->err, -EBADMSG);
	NM_CHECK_EQ(nm_ucx_ep_am_short(&ep->super, 1, 0, "x", 1), UCS_ERR_CONNECTION_RESET);
	nm_ucx_ep_destroy(&ep->super);
	finish();
}

NM_TEST(hostile_messages_end_their_sender)
{
	expect_refused(UCT_AM_ID_MAX, NM_UCX_BCOPY, 0, 0, 8);
	expect_refused(3, NM_UCX_SHORT, 0, 1, 8);
	expect_refused(3, NM_UCX_BCOPY, 1, 0, 8);
	expect_refused(3, 0, 0, 0, 8);
	expect_refused(1, NM_UCX_BCOPY + 1, 0, 0, 8);
	/* UCX copies it into memory for messages of at most max_bcopy. */
	expect_refused(3, NM_UCX_BCOPY, 0, 0, 1001);
	expect_refused(3, NM_UCX_SHORT, 1, 0, 993);
}

NM_TEST(only_interfaces_with_messages_of_one_length_meet)
{
	const uint32_t others[] = {0, 4096, UINT32_MAX};
	uct_ep_h ep;

	start();
	for (unsigned int i = 0; i < 3; i++)
		NM_CHECK_EQ(create_ep(peer->address.who, others[i], &ep), UCS_ERR_UNREACHABLE);
	ep = &connect_ep()->super;
	nm_ucx_ep_destroy(ep);
	finish();
}

NM_TEST(a_peer_that_cannot_be_reached_is_reported_to_each_endpoint)
{
	const struct nm_identity nobody = {{9, 9, 9}, {9}};
	uct_ep_h early, late;

	nr_lost = 0;
	start();
	/* A callback of UCX asks for an endpoint, and then UCX asks outside of it. */
	face->in_progress = true;
	NM_CHECK_EQ(create_ep(nobody, face->max_bcopy, &early), UCS_OK);
	face->in_progress = false;
	NM_CHECK_EQ(create_ep(nobody, face->max_bcopy, &late), UCS_ERR_UNREACHABLE);
	progress();
	NM_CHECK_EQ(nr_lost, 1);
	NM_CHECK_EQ(nm_ucx_ep_am_short(early, 1, 0, "x", 1), UCS_ERR_CONNECTION_RESET);
	nm_ucx_ep_destroy(early);
	finish();
}

static unsigned int nr_packed;

static size_t pack(void *to, void *arg)
{
	nr_packed++;
	fill_bytes(to, 1000, *(const uint64_t *)arg);
	return 1000;
}

/* The peer expects message after message. */
static void check_order(struct node *node, const struct nm_packet *packet, const uint8_t *payload)
{
	NM_CHECK_EQ(packet->flags, NM_UCX_BCOPY);
	NM_CHECK_EQ(packet->len, 1000);
	NM_CHECK(bytes_match(payload, 1000, node->nr_packets));
}

static struct nm_ucx_ep *pending_ep;
static uint64_t next_message;

static ucs_status_t send_pending(uct_pending_req_t *request)
{
	ssize_t len = nm_ucx_ep_am_bcopy(&pending_ep->super, 2, pack, &next_message, 0);

	(void)request;
	if (len < 0)
		return (ucs_status_t)len;
	next_message++;
	return UCS_OK;
}

NM_TEST(what_finds_no_room_leaves_once_and_in_order)
{
	uct_pending_req_t requests[2] = {{.func = send_pending}, {.func = send_pending}};
	uint64_t i = 1;

	start();
	pending_ep = connect_ep();
	peer->check = check_order;
	/* Until the bytes of one message are kept, because there is no room for them. */
	for (; !face_peer()->held; i++)
		NM_CHECK_EQ(nm_ucx_ep_am_bcopy(&pending_ep->super, 2, pack, &i, 0), 1000);
	next_message = i;
	NM_CHECK(i > 10);
	NM_CHECK_EQ(nm_ucx_ep_am_short(&pending_ep->super, 2, 0, "x", 1), UCS_ERR_NO_RESOURCE);
	NM_CHECK_EQ(nm_ucx_ep_am_bcopy(&pending_ep->super, 2, pack, &i, 0), UCS_ERR_NO_RESOURCE);
	NM_CHECK_EQ(nm_ucx_ep_flush(&pending_ep->super, 0, NULL), UCS_ERR_NO_RESOURCE);
	for (unsigned int n = 0; n < 2; n++)
		NM_CHECK_EQ(nm_ucx_ep_pending_add(&pending_ep->super, &requests[n], 0), UCS_OK);
	UNTIL(peer->nr_packets == next_message - 1 && nm_list_empty(&pending_ep->pending));
	NM_CHECK_EQ(next_message, i + 2);
	NM_CHECK_EQ(nr_packed, i + 1);
	NM_CHECK_EQ(nm_ucx_ep_flush(&pending_ep->super, 0, NULL), UCS_OK);
	nm_ucx_ep_destroy(&pending_ep->super);
	finish();
}

static ucs_status_t destroy_own(uct_pending_req_t *request)
{
	(void)request;
	nm_ucx_ep_destroy(&pending_ep->super);
	pending_ep = NULL;
	return next_message ? UCS_ERR_NO_RESOURCE : UCS_OK;
}

NM_TEST(a_pending_request_may_destroy_its_endpoint)
{
	uct_pending_req_t request = {.func = destroy_own};

	start();
	for (next_message = 0; next_message < 2; next_message++) {
		pending_ep = connect_ep();
		NM_CHECK_EQ(nm_ucx_ep_pending_add(&pending_ep->super, &request, 0), UCS_OK);
		progress();
		NM_CHECK(!pending_ep && nm_list_empty(&face->waiting));
		NM_CHECK(nm_list_empty(&face_peer()->eps));
	}
	finish();
}

static unsigned int nr_purged;

static void purge(uct_pending_req_t *request, void *arg)
{
	NM_CHECK(request && arg == &nr_purged);
	nr_purged++;
}

NM_TEST(a_peer_that_closed_is_lost_to_those_who_ask)
{
	uct_pending_req_t request = {.func = send_pending};
	struct nm_ucx_ep *ep;

	start();
	ep = pending_ep = connect_ep();
	node_destroy(peer);
	peer = NULL;
	while (ep->peer->state != NM_UCX_PEER_DOWN)
		progress();
	NM_CHECK_EQ(ep->peer->err, 0);
	progress();
	NM_CHECK_EQ(nr_lost, 0);
	NM_CHECK_EQ(nm_ucx_ep_flush(&ep->super, 0, NULL), UCS_OK);
	NM_CHECK_EQ(nm_ucx_ep_check(&ep->super, 0, NULL), UCS_OK);
	progress();
	NM_CHECK_EQ(nr_lost, 1);
	NM_CHECK_EQ(nm_ucx_ep_check(&ep->super, 0, NULL), UCS_OK);
	progress();
	NM_CHECK_EQ(nr_lost, 1);
	NM_CHECK_EQ(nm_ucx_ep_pending_add(&ep->super, &request, 0), UCS_OK);
	nm_ucx_ep_pending_purge(&ep->super, purge, &nr_purged);
	NM_CHECK_EQ(nr_purged, 1);
	nm_ucx_ep_destroy(&ep->super);
	finish();
}

/* The statistics file in the rundir, as it is now. */
struct file {
	struct nm_stats_head head;
	struct nm_stats_peer peer;
	struct nm_stats_tail tail;
};

static struct file read_stats(void)
{
	const uint8_t *id = face->address.who.id;
	struct file file = {0};
	char path[256];
	FILE *stream;

	snprintf(path, sizeof(path), "%s/%02x%02x%02x%02x%02x%02x.stats", nm_test_dir(), id[0],
		 id[1], id[2], id[3], id[4], id[5]);
	stream = fopen(path, "re");
	NM_CHECK(stream && fread(&file, sizeof(file), 1, stream) == 1);
	fclose(stream);
	NM_CHECK_EQ(file.tail.sum, nm_stats_sum(&file, offsetof(struct file, tail.sum)));
	return file;
}

NM_TEST(the_statistics_file_has_each_message)
{
	const struct nm_stats_traffic *traffic;
	struct nm_ucx_ep *ep;
	struct file file;

	nr_arrived = nr_lost = 0;
	start();
	nm_ucx_count_open(face);
	ep = connect_ep();
	NM_CHECK_EQ(nm_ucx_ep_am_short(&ep->super, 1, 7, "12345", 5), UCS_OK);
	NM_CHECK_EQ(send_raw(3, NM_UCX_SHORT, 77, 0, 200), 0);
	NM_CHECK_EQ(send_raw(3, NM_UCX_BCOPY, 0, 0, 3000), 0);
	UNTIL(nr_arrived == 2);
	nm_ucx_count_look(face);
	file = read_stats();
	NM_CHECK_EQ(file.head.face, NM_STATS_UCX);
	NM_CHECK_EQ(file.head.nr_peers, 1);
	NM_CHECK_EQ(file.peer.channel, NM_CHANNEL_SHM);
	NM_CHECK(!file.peer.down && *file.peer.label && *file.peer.reason);
	traffic = &file.peer.by_channel[NM_CHANNEL_SHM];
	NM_CHECK_EQ(traffic->sent_messages, 1);
	NM_CHECK_EQ(traffic->sent_bytes, 13);
	NM_CHECK_EQ(traffic->received_messages, 2);
	NM_CHECK_EQ(traffic->received_bytes, 3208);
	/* A peer that breaks the rules: written before UCX, which may end the process, learns of it. */
	NM_CHECK_EQ(send_raw(3, 0, 0, 0, 8), 0);
	UNTIL(nr_lost == 1);
	file = read_stats();
	NM_CHECK(file.peer.down);
	NM_CHECK(strstr(file.peer.down_reason, "no active message"));
	NM_CHECK_EQ(file.peer.by_channel[NM_CHANNEL_SHM].received_messages, 2);
	nm_ucx_ep_destroy(&ep->super);
	nm_ucx_count_close(face);
	finish();
}
