/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer that sends what no sound peer sends. It loses its connection with a reason; what it made
 * others wait for ends with an error; everybody else goes on, and no byte lands where it should
 * not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/device.h"
#include "engine/atomic.h"
#include "engine/internal.h"
#include "engine/protocol.h"
#include "traffic.h"

enum { ROOM = 20000 };

struct seen {
	struct nm_reason reason;
	bool down;
};

static void see(void *arg, const struct nm_peer_facts *facts)
{
	struct seen *seen = arg;

	if (facts->down) {
		seen->down = true;
		seen->reason = facts->down_reason;
	}
}

static struct seen look(struct mesh *mesh)
{
	struct seen seen = {0};

	mesh_settle(mesh);
	nm_engine_visit_peers(mesh_node(mesh, 1)->engine, see, &seen);
	return seen;
}

/* One forged packet from node 0 ends it for node 1, for this reason. */
static void refused(struct nm_packet packet, const void *payload, const char *reason)
{
	struct mesh *mesh = mesh_create(NULL);
	struct seen seen;

	mesh_forge(mesh, 0, 1, &packet, payload);
	seen = look(mesh);
	NM_CHECK(seen.down);
	NM_CHECK_HAS(seen.reason.text, reason);
	/* Nothing that it sends later is looked at. */
	mesh_forge(mesh, 0, 1, &packet, payload);
	mesh_settle(mesh);
	mesh_destroy(mesh);
}

NM_TEST(unknown_packets)
{
	refused((struct nm_packet){.op = 0}, NULL, "unknown kind 0");
	refused((struct nm_packet){.op = NM_NR_OPS}, NULL, "unknown kind");
	refused((struct nm_packet){.op = 255}, NULL, "unknown kind 255");
}

NM_TEST(short_packets)
{
	char bytes[200] = {0};

	refused((struct nm_packet){.op = NM_OP_EAGER, .flags = NM_PKT_ACK, .len = 7}, bytes,
		"without its id");
	refused((struct nm_packet){.op = NM_OP_RTS, .len = 15}, bytes, "envelope of 15 bytes");
	refused((struct nm_packet){.op = NM_OP_RTS, .len = 17}, bytes, "envelope of 17 bytes");
	refused((struct nm_packet){.op = NM_OP_WRITE, .len = 23}, bytes, "do not add up");
	refused((struct nm_packet){.op = NM_OP_WRITE, .flags = 0xc0, .len = 95}, bytes,
		"do not add up");
	refused((struct nm_packet){.op = NM_OP_WRITE, .len = 25}, bytes, "do not add up");
	refused((struct nm_packet){.op = NM_OP_READ, .len = 23}, bytes, "no sense");
	refused((struct nm_packet){.op = NM_OP_WRITE_RTS, .len = 25}, bytes, "no sense");
	refused((struct nm_packet){.op = NM_OP_ATOMIC, .len = 7}, bytes, "do not add up");
	refused((struct nm_packet){.op = NM_OP_ATOMIC, .len = 32}, bytes, "do not add up");
}

NM_TEST(answers_to_nothing)
{
	char bytes[16] = {0};

	for (uint64_t id = 0; id < 3; id++) {
		uint64_t made_up = id << 32 | id;

		refused((struct nm_packet){.op = NM_OP_CTS, .len = 8, .tag = made_up}, bytes,
			"not offered");
		refused((struct nm_packet){.op = NM_OP_DATA, .len = 8, .tag = made_up}, bytes,
			"was not requested");
		refused((struct nm_packet){.op = NM_OP_ACK, .tag = made_up}, bytes, "was not made");
		refused((struct nm_packet){.op = NM_OP_RESULT, .len = 8, .tag = made_up}, bytes,
			"was not requested");
	}
}

NM_TEST(sizes_that_overflow)
{
	struct nm_wire_remote remote[2] = {{.len = UINT64_MAX}, {.len = 2}};
	struct {
		struct nm_wire_atomic head;
		struct nm_wire_remote remote;
		char bytes[8];
	} atomic = {.head = {.op = NM_SUM, .size = UINT32_MAX}, .remote = {.len = UINT32_MAX}};

	refused((struct nm_packet){.op = NM_OP_READ, .flags = 1 << NM_PKT_NR_SHIFT, .len = 48},
		remote, "no sense");
	refused((struct nm_packet){.op = NM_OP_WRITE, .flags = 1 << NM_PKT_NR_SHIFT, .len = 48},
		remote, "do not add up");
	refused((struct nm_packet){.op = NM_OP_ATOMIC, .len = sizeof(atomic)}, &atomic,
		"do not add up");
	atomic.head.size = 8;
	atomic.remote.len = 7;
	refused((struct nm_packet){.op = NM_OP_ATOMIC, .len = sizeof(atomic)}, &atomic,
		"do not add up");
}

/* Operations that we do not know may come from a newer release: an error for it, no end. */
NM_TEST(unknown_atomics_are_answered)
{
	struct {
		struct nm_wire_atomic head;
		struct nm_wire_remote remote;
		char bytes[8];
	} atomic = {.head = {.op = 200, .size = 8}, .remote = {.len = 8}};
	struct nm_packet packet = {.op = NM_OP_ATOMIC, .len = sizeof(atomic)};
	struct mesh *mesh = mesh_create(NULL);

	mesh_forge(mesh, 0, 1, &packet, &atomic);
	NM_CHECK(!look(mesh).down);
	mesh_destroy(mesh);
}

/* Node 1 waits for a rendezvous of node 0; returns the id that node 0 was told to send to. */
struct transfer {
	struct mesh *mesh;
	char *in;
	uint64_t id;
};

static struct transfer transfer_start(uint64_t size)
{
	struct transfer t = {.mesh = mesh_create(NULL), .in = calloc(1, ROOM)};
	struct nm_wire_rts rts = {.size = size, .sender_id = UINT64_C(1) << 32};
	struct nm_packet packet = {.op = NM_OP_RTS, .flags = NM_PKT_TAGGED, .len = sizeof(rts)};

	recv_from(t.mesh, 1, NULL, t.in, ROOM, 0, UINT64_MAX, TAGGED, t.in);
	/* Its answer would be refused by node 0, which did not send this. */
	mesh_block(t.mesh, 1, 0, true);
	mesh_forge(t.mesh, 0, 1, &packet, &rts);
	mesh_settle(t.mesh);
	NM_CHECK(!look(t.mesh).down);
	t.id = UINT64_C(1) << 32; /* the first request of its engine: index 0, generation 1 */
	return t;
}

static void transfer_ends(struct transfer *t, const char *reason)
{
	struct seen seen = look(t->mesh);
	struct nm_completion c;

	NM_CHECK(seen.down);
	NM_CHECK_HAS(seen.reason.text, reason);
	c = mesh_wait(t->mesh, 1);
	NM_CHECK_EQ(c.err, ECONNRESET);
	NM_CHECK(c.context == t->in);
	NM_CHECK(mesh_quiet(t->mesh, 1));
	mesh_destroy(t->mesh);
	free(t->in);
}

static void bad_piece(uint64_t size, uint64_t good, uint64_t offset, uint32_t len)
{
	struct transfer t = transfer_start(size);
	struct nm_packet packet = {.op = NM_OP_DATA, .tag = t.id};
	char *bytes = calloc(1, ROOM + 1);

	if (good > 0) {
		packet.len = (uint32_t)good;
		mesh_forge(t.mesh, 0, 1, &packet, bytes);
	}
	packet.data = offset;
	packet.len = len;
	mesh_forge(t.mesh, 0, 1, &packet, bytes);
	transfer_ends(&t, "were due");
	free(bytes);
}

NM_TEST(pieces_out_of_place)
{
	bad_piece(10000, 0, 1, 100);		    /* a gap */
	bad_piece(10000, 100, 0, 100);		    /* again */
	bad_piece(10000, 100, 99, 100);		    /* overlap */
	bad_piece(10000, 100, UINT64_MAX, 100);	    /* before the start */
	bad_piece(10000, 100, 100, 9901);	    /* past the end */
	bad_piece(10000, 100, 100, 0);		    /* nothing, for ever */
	bad_piece(UINT64_MAX, 100, 100, ROOM - 99); /* past the room of the receiver */
}

NM_TEST(a_message_that_ends_twice)
{
	struct transfer t = transfer_start(100);
	struct nm_packet packet = {.op = NM_OP_DATA, .tag = t.id, .len = 100};
	char bytes[100] = {0};

	mesh_forge(t.mesh, 0, 1, &packet, bytes);
	NM_CHECK_EQ(mesh_wait(t.mesh, 1).err, 0);
	mesh_forge(t.mesh, 0, 1, &packet, bytes);
	NM_CHECK(look(t.mesh).down);
	mesh_destroy(t.mesh);
	free(t.in);
}

/* A sender whose device failed ends its own message, once. */
NM_TEST(a_message_that_breaks_off)
{
	struct transfer t = transfer_start(10000);
	struct nm_packet packet = {.op = NM_OP_DATA, .tag = t.id, .len = 100};
	char bytes[100] = {0};

	mesh_forge(t.mesh, 0, 1, &packet, bytes);
	packet = (struct nm_packet){.op = NM_OP_ACK, .tag = t.id, .data = EFAULT};
	mesh_forge(t.mesh, 0, 1, &packet, NULL);
	NM_CHECK_EQ(mesh_wait(t.mesh, 1).err, EIO);
	NM_CHECK(!look(t.mesh).down);
	mesh_forge(t.mesh, 0, 1, &packet, NULL);
	NM_CHECK_HAS(look(t.mesh).reason.text, "was not made");
	mesh_destroy(t.mesh);
	free(t.in);
}

NM_TEST(a_message_that_breaks_off_without_an_error)
{
	struct transfer t = transfer_start(10000);
	struct nm_packet packet = {.op = NM_OP_ACK, .tag = t.id};

	mesh_forge(t.mesh, 0, 1, &packet, NULL);
	transfer_ends(&t, "was not made");
}

/* A handle on a device in place of addresses. */
struct shared_rts {
	struct nm_wire_rts rts;
	struct nm_device_share share;
};

NM_TEST(handles_that_make_no_sense)
{
	struct shared_rts wire = {.rts = {.size = 100000, .sender_id = 1}};
	struct nm_packet packet = {.op = NM_OP_RTS, .flags = NM_PKT_MEMORY, .len = sizeof(wire)};

	refused(packet, &wire, "invalid place");
	wire.share.number = NM_DEVICE_MAX + 1;
	refused(packet, &wire, "invalid place");
	wire.share.number = 5;
	wire.share.zero = 1;
	refused(packet, &wire, "invalid place");
	wire.share.zero = 0;
	packet.len--;
	refused(packet, &wire, "an envelope of");
	packet.len++;
	packet.flags = 0;
	refused(packet, &wire, "an envelope of");
}

/* Without an interface for it the message is requested in packets. */
NM_TEST(handles_of_no_device_here)
{
	struct shared_rts wire = {.rts = {.size = 100, .sender_id = 1}, .share = {.number = 5}};
	struct nm_packet packet = {
		.op = NM_OP_RTS, .flags = NM_PKT_MEMORY | NM_PKT_TAGGED, .len = sizeof(wire)};
	struct mesh *mesh = mesh_create(NULL);
	char in[100] = {0}, bytes[100];

	memset(bytes, 7, sizeof(bytes));
	mesh_block(mesh, 1, 0, true);
	mesh_forge(mesh, 0, 1, &packet, &wire);
	mesh_settle(mesh); /* the handle waits with the message */
	recv_from(mesh, 1, NULL, in, sizeof(in), 0, UINT64_MAX, TAGGED, in);
	packet = (struct nm_packet){.op = NM_OP_DATA, .tag = UINT64_C(1) << 32, .len = 100};
	mesh_forge(mesh, 0, 1, &packet, bytes);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
	NM_CHECK_EQ(in[99], 7);
	NM_CHECK(!look(mesh).down);
	mesh_destroy(mesh);
}

/* The id of somebody else's transfer is as good as none. */
NM_TEST(pieces_for_another_peer)
{
	struct mesh_options options = {.nr_nodes = 3};
	struct mesh *mesh = mesh_create(&options);
	char *out = calloc(1, ROOM), *in = calloc(1, ROOM);
	struct nm_packet packet = {.op = NM_OP_DATA, .tag = UINT64_C(1) << 32, .len = 100};

	recv_from(mesh, 1, mesh_peer(mesh, 1, 0), in, ROOM, 1, 0, TAGGED, in);
	send_to(mesh, 0, 1, out, ROOM, 1, NM_TAGGED, NULL);
	mesh_block(mesh, 1, 0, true); /* the transfer is agreed, and stands still */
	mesh_settle(mesh);
	memset(in, 7, ROOM);
	mesh_forge(mesh, 2, 1, &packet, out);
	NM_CHECK(look(mesh).down);
	NM_CHECK_EQ(in[0], 7);
	mesh_block(mesh, 1, 0, false);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
	free(out);
	free(in);
	mesh_destroy(mesh);
}

/* What is asked of a sender is checked against what it offered. */
static void bad_answer(struct nm_packet packet, const void *payload, size_t len, uint64_t flags)
{
	struct mesh *mesh = mesh_create(NULL);
	char *out = calloc(1, ROOM);
	struct nm_completion c;

	/* Node 1 sends, node 0 answers by forgery. */
	send_to(mesh, 1, 0, out, len, 1, TAGGED | flags, out);
	packet.tag = UINT64_C(1) << 32;
	mesh_forge(mesh, 0, 1, &packet, payload);
	NM_CHECK(look(mesh).down);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, ECONNRESET);
	NM_CHECK(c.context == out);
	NM_CHECK(mesh_quiet(mesh, 1));
	free(out);
	mesh_destroy(mesh);
}

NM_TEST(answers_that_do_not_fit)
{
	struct nm_wire_cts cts = {.len = ROOM + 1};
	struct nm_packet ask = {.op = NM_OP_CTS, .flags = NM_PKT_LAST, .len = sizeof(cts)};
	const struct {
		struct nm_wire_cts cts;
		struct nm_wire_tag tag;
	} tagged = {{.len = ROOM}, {7}};

	bad_answer(ask, &cts, ROOM, 0);
	cts.len = UINT64_MAX;
	bad_answer(ask, &cts, ROOM, 0);
	cts.offset = 2; /* the sum wraps to one */
	bad_answer(ask, &cts, ROOM, 0);
	cts = (struct nm_wire_cts){.offset = ROOM, .len = 1};
	bad_answer(ask, &cts, ROOM, 0);
	cts = (struct nm_wire_cts){.len = 10};
	ask.flags = 0; /* some now, some later: nobody sound does that */
	bad_answer(ask, &cts, ROOM, 0);
	ask.flags = NM_PKT_LAST;
	ask.len--;
	bad_answer(ask, &cts, ROOM, 0);
	ask.len++;
	/* With a tag, for bytes that no adapter reaches. */
	ask.flags = 0;
	ask.len = sizeof(tagged);
	bad_answer(ask, &tagged, ROOM, 0);
	ask.flags = NM_PKT_LAST;
	ask.len = sizeof(cts);
	bad_answer((struct nm_packet){.op = NM_OP_PLACED}, NULL, ROOM, 0);
	bad_answer(ask, &cts, 10, NM_DELIVERY_COMPLETE); /* it went with its envelope */
	bad_answer((struct nm_packet){.op = NM_OP_ACK}, NULL, ROOM, 0);
	bad_answer((struct nm_packet){.op = NM_OP_ACK, .data = 5}, NULL, 10, NM_DELIVERY_COMPLETE);
	bad_answer((struct nm_packet){.op = NM_OP_ACK, .data = UINT64_MAX}, NULL, 10,
		   NM_DELIVERY_COMPLETE);
	bad_answer((struct nm_packet){.op = NM_OP_ACK, .len = 1}, "x", 10, NM_DELIVERY_COMPLETE);
	bad_answer((struct nm_packet){.op = NM_OP_DATA, .len = 1}, "x", ROOM, 0);
	bad_answer((struct nm_packet){.op = NM_OP_RESULT, .len = 1}, "x", ROOM, 0);
}

/* It takes no answers and asks on and on: memory does not grow without end. */
NM_TEST(more_accesses_than_allowed)
{
	struct mesh *mesh = mesh_create(NULL);
	static char window[100];
	struct iovec iov = {window, sizeof(window)};
	struct nm_memory_attr attr = {.iov = &iov, .nr_iov = 1, .access = NM_REMOTE_READ};
	struct nm_memory_region *region;
	struct nm_wire_remote remote = {.len = sizeof(window)};
	struct nm_packet packet = {.op = NM_OP_READ, .len = sizeof(remote)};
	int sent = 0;

	NM_CHECK_EQ(nm_memory_register(mesh_node(mesh, 1)->memory, &attr, &region), 0);
	mesh_block(mesh, 1, 0, true);
	while (!look(mesh).down) {
		for (int i = 0; i < 500; i++, sent++)
			mesh_forge(mesh, 0, 1, &packet, &remote);
		NM_CHECK(sent < 10000);
	}
	mesh_destroy(mesh);
}

/* Answers that it does not take: as many as a sound peer can ask for wait, not as many as it likes. */
NM_TEST_WITHIN(more_answers_than_allowed, 60)
{
	struct mesh *mesh = mesh_create(NULL);
	struct nm_wire_remote remote = {.key = 12345};
	struct nm_packet put = {.op = NM_OP_WRITE, .len = sizeof(remote)};
	int sent = 0;

	mesh_block(mesh, 1, 0, true);
	while (!look(mesh).down) {
		for (int i = 0; i < 5000; i++, sent++)
			mesh_forge(mesh, 0, 1, &put, &remote);
		NM_CHECK(sent < 1000000);
	}
	NM_CHECK(sent > 250000);
	/* A block of 128 bytes each, no more than 32 MiB. */
	NM_CHECK(sent < (32 << 20) / 128 + 5000 + 1000);
	mesh_destroy(mesh);
}

/*
 * The peer that takes no answers goes down in the very call that was to answer a request. That
 * request ends once, and whoever else is there notices nothing.
 */
struct refuser {
	struct mesh *mesh;
	struct mesh_node *victim;
	char memory[100], in[100];
};

/* As much as may wait for one peer (peer.c), in blocks of the smallest size. */
enum { WAITING_MAX = 32 << 20, WAITING_BLOCK = 128 };

static struct refuser *refuser_create(void)
{
	struct mesh_options options = {.nr_nodes = 3};
	struct refuser *r = calloc(1, sizeof(*r));
	struct iovec iov = {r->memory, sizeof(r->memory)};
	struct nm_memory_attr attr = {
		.iov = &iov,
		.nr_iov = 1,
		.access = NM_REMOTE_READ | NM_REMOTE_WRITE,
	};
	struct nm_memory_region *region;

	r->mesh = mesh_create(&options);
	r->victim = mesh_node(r->mesh, 1);
	NM_CHECK_EQ(nm_memory_register(r->victim->memory, &attr, &region), 0);
	mesh_block(r->mesh, 1, 0, true);
	return r;
}

/* Puts to nowhere, until one answer more is one too many. */
static void refuser_fill(struct refuser *r)
{
	struct nm_wire_remote remote = {.key = 12345};
	struct nm_packet put = {.op = NM_OP_WRITE, .len = sizeof(remote)};
	const struct nm_peer *peer = mesh_peer(r->mesh, 1, 0);

	mesh_settle(r->mesh);
	for (uint64_t left = WAITING_MAX - peer->control_bytes; left > 0; left -= WAITING_BLOCK)
		mesh_forge(r->mesh, 0, 1, &put, &remote);
	NM_CHECK(!look(r->mesh).down);
	NM_CHECK_EQ(peer->control_bytes, WAITING_MAX);
}

/* The last packet, whose answer is the one too many. */
static void refuser_falls(struct refuser *r, const struct nm_packet *packet, const void *payload)
{
	struct seen seen;

	mesh_forge(r->mesh, 0, 1, packet, payload);
	seen = look(r->mesh);
	NM_CHECK(seen.down);
	NM_CHECK_HAS(seen.reason.text, "does not take answers");
}

static void refuser_destroy(struct refuser *r)
{
	char out[10], in[10] = {0};

	NM_CHECK(mesh_quiet(r->mesh, 1));
	NM_CHECK_EQ(mesh_peer(r->mesh, 1, 0)->nr_served, 0);
	NM_CHECK_EQ(r->victim->engine->requests.nr_used, 0);
	fill(out, sizeof(out), 1);
	NM_CHECK_EQ(
		recv_from(r->mesh, 1, mesh_peer(r->mesh, 1, 2), in, sizeof(in), 1, 0, TAGGED, in),
		0);
	NM_CHECK_EQ(send_to(r->mesh, 2, 1, out, sizeof(out), 1, NM_TAGGED, NULL), 0);
	NM_CHECK_EQ(mesh_wait(r->mesh, 1).err, 0);
	check_filled(in, sizeof(in), 1);
	NM_CHECK(mesh_quiet(r->mesh, 1));
	NM_CHECK_EQ(r->victim->engine->requests.nr_used, 0);
	mesh_destroy(r->mesh);
	free(r);
}

NM_TEST(the_answer_too_many_is_of_a_get)
{
	struct refuser *r = refuser_create();
	struct nm_wire_remote nothing = {0};
	struct nm_packet get = {.op = NM_OP_READ, .len = sizeof(nothing)};

	refuser_fill(r);
	refuser_falls(r, &get, &nothing);
	NM_CHECK_EQ(r->victim->remote_read.value, 1);
	refuser_destroy(r);
}

/* The victim has asked for the bytes with its first request: index 0, generation 1. */
static const struct nm_packet last_piece = {
	.op = NM_OP_DATA,
	.len = 100,
	.tag = UINT64_C(1) << 32,
};

NM_TEST(the_answer_too_many_is_of_a_put)
{
	struct refuser *r = refuser_create();
	struct nm_wire_remote remote = {.len = 100};
	struct nm_packet put = {.op = NM_OP_WRITE_RTS, .len = sizeof(remote)};
	char bytes[100];

	fill(bytes, sizeof(bytes), 1);
	mesh_forge(r->mesh, 0, 1, &put, &remote);
	refuser_fill(r);
	refuser_falls(r, &last_piece, bytes);
	NM_CHECK_EQ(r->victim->remote_write.value, 1);
	check_filled(r->memory, sizeof(r->memory), 1);
	refuser_destroy(r);
}

NM_TEST(the_answer_too_many_is_of_a_receive)
{
	struct refuser *r = refuser_create();
	struct nm_wire_rts rts = {.size = 100, .sender_id = UINT64_C(1) << 32};
	struct nm_packet envelope = {
		.op = NM_OP_RTS,
		.flags = NM_PKT_TAGGED | NM_PKT_ACK,
		.len = sizeof(rts),
	};
	struct nm_completion c;
	char bytes[100];

	fill(bytes, sizeof(bytes), 1);
	recv_from(r->mesh, 1, NULL, r->in, sizeof(r->in), 0, 0, TAGGED, r->in);
	mesh_forge(r->mesh, 0, 1, &envelope, &rts);
	refuser_fill(r);
	refuser_falls(r, &last_piece, bytes);
	c = mesh_wait(r->mesh, 1);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK_EQ(c.len, sizeof(bytes));
	NM_CHECK(c.context == r->in);
	check_filled(r->in, sizeof(r->in), 1);
	refuser_destroy(r); /* it was the only completion */
}

/* Random packets: every one is refused or does what it says. */
NM_TEST_WITHIN(noise, 60)
{
	uint64_t random = 17;

	for (int round = 0; round < 300; round++) {
		struct mesh *mesh = mesh_create(NULL);
		char *in = malloc(ROOM), bytes[200];
		struct iovec iov = {in, ROOM};
		struct nm_memory_attr attr = {
			.iov = &iov,
			.nr_iov = 1,
			.access = NM_REMOTE_READ | NM_REMOTE_WRITE,
		};
		struct nm_memory_region *region;

		NM_CHECK_EQ(nm_memory_register(mesh_node(mesh, 1)->memory, &attr, &region), 0);
		recv_from(mesh, 1, NULL, in, ROOM, 0, UINT64_MAX, TAGGED, in);
		recv_from(mesh, 1, NULL, in, ROOM, 0, 0, UNTAGGED | NM_MULTI_RECV, in);
		send_to(mesh, 1, 0, in, ROOM, 0, TAGGED, in);
		for (int i = 0; i < 50; i++) {
			struct nm_packet packet = {
				.op = (uint8_t)(nm_test_random(&random) % (NM_NR_OPS + 1)),
				.flags = (uint8_t)nm_test_random(&random),
				.len = (uint32_t)(nm_test_random(&random) % sizeof(bytes)),
				.tag = (1 + nm_test_random(&random) % 2) << 32 |
				       nm_test_random(&random) % 8,
				.data = nm_test_random(&random) % 64,
			};

			for (size_t b = 0; b < sizeof(bytes); b++)
				bytes[b] = b % 8 < 2 ? (char)nm_test_random(&random) : 0;
			mesh_forge(mesh, 0, 1, &packet, bytes);
			mesh_step(mesh);
		}
		mesh_settle(mesh);
		mesh_destroy(mesh);
		free(in);
	}
}
