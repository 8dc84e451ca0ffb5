/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UCX face without UCX: addresses and packets of hostile peers, order and waiting of messages,
 * and ends of peers. The peer is an endpoint under the face, which can send any packet.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ucx_fixture.h"

static int send_raw(uint8_t op, uint8_t flags, uint64_t tag, uint64_t data, uint32_t len)
{
	static uint8_t bytes[NM_UCX_MESSAGE_MAX];
	const struct nm_packet packet = {op, flags, len, tag, data};
	const struct iovec iov = {bytes, len};

	fill_bytes(bytes, len, 5);
	return peer->transport->ops->send(peer->link, &packet, &iov, 1);
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
	NM_CHECK_EQ(send_raw(31, NM_UCX_BCOPY, 0, 0, 16384), 0);
	UNTIL(nr_arrived == 2);
	NM_CHECK_EQ(last_len, 16384);
	NM_CHECK(bytes_match(last, 16384, 5));
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

static struct nm_packet sent_packet;
static uint8_t sent_bytes[NM_UCX_MESSAGE_MAX];

static void keep_packet(struct node *node, const struct nm_packet *packet, const uint8_t *payload)
{
	(void)node;
	sent_packet = *packet;
	memcpy(sent_bytes, payload, packet->len);
}

/* The pieces have LENS bytes, which are the bytes of one message. */
static void expect_pieces(struct nm_ucx_ep *ep, unsigned int nr, const size_t *lens)
{
	uint8_t bytes[256];
	size_t total = 0, header;
	uct_iov_t iov[4];

	fill_bytes(bytes, sizeof(bytes), 3);
	for (unsigned int i = 0; i < nr; i++) {
		iov[i] = (uct_iov_t){bytes + total, lens[i], NULL, 0, 1};
		total += lens[i];
	}
	peer->nr_packets = 0;
	NM_CHECK_EQ(nm_ucx_ep_am_short_iov(&ep->super, 9, iov, nr), UCS_OK);
	UNTIL(peer->nr_packets == 1);
	header = total >= sizeof(uint64_t) ? sizeof(uint64_t) : 0;
	NM_CHECK_EQ(sent_packet.op, 9);
	NM_CHECK_EQ(sent_packet.flags, header ? NM_UCX_SHORT : NM_UCX_BCOPY);
	NM_CHECK_EQ(sent_packet.len, total - header);
	NM_CHECK(header ? !memcmp(&sent_packet.tag, bytes, header) : !sent_packet.tag);
	NM_CHECK(!memcmp(sent_bytes, bytes + header, total - header));
}

NM_TEST(pieces_of_a_short_message_become_one_packet)
{
	static uint8_t bytes[117];
	uct_iov_t iov[2] = {{bytes, 100, NULL, 0, 1}, {bytes, 117, NULL, 0, 1}};
	struct nm_ucx_ep *ep;

	start();
	ep = connect_ep();
	peer->check = keep_packet;
	expect_pieces(ep, 2, (size_t[]){8, 40});
	expect_pieces(ep, 2, (size_t[]){8, 0});
	expect_pieces(ep, 1, (size_t[]){8});
	expect_pieces(ep, 3, (size_t[]){5, 0, 100});
	expect_pieces(ep, 4, (size_t[]){8, 16, 1, 191});
	expect_pieces(ep, 1, (size_t[]){7});
	expect_pieces(ep, 1, (size_t[]){0});
	NM_CHECK_EQ(nm_ucx_ep_am_short_iov(&ep->super, 9, iov, 2), UCS_ERR_INVALID_PARAM);
	iov[0].length = 8;
	iov[1].length = 209;
	NM_CHECK_EQ(nm_ucx_ep_am_short_iov(&ep->super, 9, iov, 2), UCS_ERR_INVALID_PARAM);
	iov[1].length = SIZE_MAX;
	NM_CHECK_EQ(nm_ucx_ep_am_short_iov(&ep->super, 9, iov, 2), UCS_ERR_INVALID_PARAM);
	NM_CHECK_EQ(nm_ucx_ep_am_short_iov(&ep->super, UCT_AM_ID_MAX, iov, 1),
		    UCS_ERR_INVALID_PARAM);
	nm_ucx_ep_destroy(&ep->super);
	finish();
}

/* A header and pieces, of which some are empty. */
static void expect_gathered(struct nm_ucx_ep *ep, size_t header_len, size_t len)
{
	static uint8_t bytes[NM_UCX_MESSAGE_MAX];
	const uct_iov_t iov[4] = {{bytes + header_len, len, NULL, 0, 1},
				  {NULL, 0, NULL, 0, 1},
				  {NULL, 5, NULL, 0, 0},
				  {bytes + header_len + len, 3, NULL, 0, 1}};
	size_t total = header_len + len + 3;

	fill_bytes(bytes, (uint32_t)total, 3);
	peer->nr_packets = 0;
	NM_CHECK_EQ(
		nm_ucx_ep_am_zcopy(&ep->super, 9, bytes, (unsigned int)header_len, iov, 4, 0, NULL),
		UCS_OK);
	/* The bytes are the caller's again. */
	memset(bytes, 0, sizeof(bytes));
	UNTIL(peer->nr_packets == 1);
	NM_CHECK_EQ(sent_packet.op, 9);
	NM_CHECK_EQ(sent_packet.flags, NM_UCX_BCOPY);
	NM_CHECK_EQ(sent_packet.len, total);
	NM_CHECK(bytes_match(sent_bytes, (uint32_t)total, 3));
}

NM_TEST(pieces_of_a_long_message_are_gathered_at_once)
{
	const struct nm_place_ops *place;
	uct_iov_t iov[2] = {{NULL, SIZE_MAX, NULL, 0, 1}, {NULL, 2, NULL, 0, 1}};
	struct nm_ucx_ep *ep;
	ucs_status_t status;
	uint8_t byte = 1;

	start();
	ep = connect_ep();
	peer->check = keep_packet;
	place = face->transports[0]->place;
	for (unsigned int i = 0; i < 2; i++) {
		expect_gathered(ep, 0, 0);
		expect_gathered(ep, 16, 1000);
		expect_gathered(ep, 8, face->max_bcopy - 8 - 3);
		face->transports[0]->place = i ? place : NULL;
	}
	NM_CHECK_EQ(nm_ucx_ep_am_zcopy(&ep->super, 9, NULL, 0, iov, 2, 0, NULL),
		    UCS_ERR_INVALID_PARAM);
	iov[0].length = face->max_bcopy;
	NM_CHECK_EQ(nm_ucx_ep_am_zcopy(&ep->super, 9, &byte, 1, iov, 1, 0, NULL),
		    UCS_ERR_INVALID_PARAM);
	NM_CHECK_EQ(nm_ucx_ep_am_zcopy(&ep->super, UCT_AM_ID_MAX, &byte, 1, NULL, 0, 0, NULL),
		    UCS_ERR_INVALID_PARAM);
	peer->check = NULL;
	while ((status = nm_ucx_ep_am_zcopy(&ep->super, 9, &byte, 1, NULL, 0, 0, NULL)) == UCS_OK)
		;
	NM_CHECK_EQ(status, UCS_ERR_NO_RESOURCE);
	NM_CHECK(!face_peer()->held);
	nm_ucx_ep_destroy(&ep->super);
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

/* Messages until there is no room; then two that wait. All arrive in order, each packed once. */
static void fill_the_link(bool is_packed_before)
{
	uct_pending_req_t requests[2] = {{.func = send_pending}, {.func = send_pending}};
	uint64_t i = 1;
	ssize_t len;

	start();
	pending_ep = connect_ep();
	peer->check = check_order;
	nr_packed = 0;
	if (is_packed_before)
		face->transports[0]->place = NULL;
	while ((len = nm_ucx_ep_am_bcopy(&pending_ep->super, 2, pack, &i, 0)) == 1000)
		i++;
	NM_CHECK_EQ(len, UCS_ERR_NO_RESOURCE);
	NM_CHECK_EQ(face_peer()->held != NULL, is_packed_before);
	next_message = i;
	NM_CHECK(i > 10);
	NM_CHECK_EQ(nr_packed, i - 1);
	NM_CHECK(face_peer()->nr_stalls > 0);
	for (unsigned int n = 0; n < 2; n++)
		NM_CHECK_EQ(nm_ucx_ep_pending_add(&pending_ep->super, &requests[n], 0), UCS_OK);
	NM_CHECK_EQ(nm_ucx_ep_am_short(&pending_ep->super, 2, 0, "x", 1), UCS_ERR_NO_RESOURCE);
	NM_CHECK_EQ(nm_ucx_ep_flush(&pending_ep->super, 0, NULL), UCS_ERR_NO_RESOURCE);
	if (is_packed_before)
		NM_CHECK_EQ(nm_ucx_iface_flush(&face->base.super, 0, NULL), UCS_INPROGRESS);
	UNTIL(peer->nr_packets == next_message - 1 && nm_list_empty(&pending_ep->pending));
	NM_CHECK_EQ(next_message, i + 2);
	NM_CHECK_EQ(nr_packed, i + 1);
	NM_CHECK_EQ(nm_ucx_ep_flush(&pending_ep->super, 0, NULL), UCS_OK);
	NM_CHECK_EQ(nm_ucx_iface_flush(&face->base.super, 0, NULL), UCS_OK);
	nm_ucx_ep_destroy(&pending_ep->super);
	finish();
}

NM_TEST(what_finds_no_room_is_not_packed)
{
	fill_the_link(false);
}

NM_TEST(what_was_packed_before_leaves_first)
{
	fill_the_link(true);
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

/* It closes normally, and the face has seen it. */
static void close_peer(const struct nm_peer *there)
{
	node_destroy(peer);
	peer = NULL;
	while (there->state != NM_UCX_PEER_DOWN)
		progress();
	NM_CHECK_EQ(there->err, 0);
}

NM_TEST(a_peer_that_closed_is_lost_to_those_who_ask)
{
	uct_pending_req_t request = {.func = send_pending};
	struct nm_ucx_ep *ep;

	start();
	ep = pending_ep = connect_ep();
	close_peer(ep->peer);
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

/* The close is seen after the call: UCX asks again only after its keepalive interval. */
NM_TEST(a_peer_that_closes_after_a_check_is_lost)
{
	struct nm_ucx_ep *ep;

	start();
	ep = connect_ep();
	nr_lost = 0;
	NM_CHECK_EQ(nm_ucx_ep_check(&ep->super, 0, NULL), UCS_OK);
	close_peer(ep->peer);
	progress();
	NM_CHECK_EQ(nr_lost, 1);
	nm_ucx_ep_destroy(&ep->super);
	finish();
}

NM_TEST(only_the_endpoint_of_a_check_learns_of_a_normal_close)
{
	struct nm_ucx_ep *checked, *other;
	uct_ep_h gone;

	start();
	checked = connect_ep();
	other = connect_ep();
	gone = &connect_ep()->super;
	nr_lost = 0;
	NM_CHECK_EQ(nm_ucx_ep_check(gone, 0, NULL), UCS_OK);
	nm_ucx_ep_destroy(gone);
	NM_CHECK_EQ(nm_ucx_ep_check(&checked->super, 0, NULL), UCS_OK);
	close_peer(checked->peer);
	progress();
	NM_CHECK_EQ(nr_lost, 1);
	NM_CHECK(checked->is_reported && !other->is_reported);
	NM_CHECK_EQ(nm_ucx_ep_check(&other->super, 0, NULL), UCS_OK);
	progress();
	NM_CHECK_EQ(nr_lost, 2);
	nm_ucx_ep_destroy(&checked->super);
	nm_ucx_ep_destroy(&other->super);
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

NM_TEST(a_forked_child_leaves_the_statistics_of_its_parent)
{
	struct nm_ucx_ep *ep;
	struct file file;
	int status;
	pid_t pid;

	start();
	nm_ucx_count_open(face);
	ep = connect_ep();
	nm_ucx_count_look(face);
	pid = fork();
	if (!pid) {
		face_peer()->received[NM_CHANNEL_SHM].messages = 99;
		face->published_ns = 0;
		nm_ucx_count_look(face);
		nm_ucx_count_loss(face);
		nm_ucx_count_close(face);
		_exit(0);
	}
	NM_CHECK_EQ(waitpid(pid, &status, 0), pid);
	NM_CHECK_EQ(status, 0);
	file = read_stats();
	NM_CHECK_EQ(file.head.state, NM_STATS_RUNNING);
	NM_CHECK_EQ(file.head.pid, (uint32_t)getpid());
	NM_CHECK_EQ(file.peer.by_channel[NM_CHANNEL_SHM].received_messages, 0);
	nm_ucx_ep_destroy(&ep->super);
	nm_ucx_count_close(face);
	finish();
}
