/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that nobody receives for long, or ever. An honest program gets all of them in whatever
 * order it asks, and many of their bytes wait at the sender; who floods is given up at a bound.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/unexpected.h"
#include "traffic.h"

#define BYTES_MAX 1024 /* as libfabric programs may inject */

static struct mesh *mesh_with(const char *unexpected_max, unsigned int nr_nodes)
{
	setenv("NEARMETAL_UNEXPECTED_MAX", unexpected_max, 1);
	return mesh_create(&(struct mesh_options){.nr_nodes = nr_nodes});
}

static size_t len_of(uint64_t tag)
{
	return (size_t)(tag * 37 % (BYTES_MAX + 1));
}

/* The buffer is ours again at once. */
static void send_now(struct mesh *mesh, const char *bytes, size_t len, uint64_t tag)
{
	while (nm_engine_inject(mesh_peer(mesh, 0, 1), bytes, len, tag, 0, NM_TAGGED) == -EAGAIN)
		mesh_step(mesh);
}

static void receive_from(struct mesh *mesh, struct nm_peer *source, uint64_t tag, size_t len)
{
	char in[BYTES_MAX];
	struct nm_completion c;

	NM_CHECK_EQ(recv_from(mesh, 1, source, in, sizeof(in), tag, 0, TAGGED, in), 0);
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK_EQ(c.tag, tag);
	NM_CHECK_EQ(c.len, len);
	check_filled(in, len, tag);
}

static void receive(struct mesh *mesh, uint64_t tag, size_t len)
{
	receive_from(mesh, mesh_peer(mesh, 1, 0), tag, len);
}

/* Fill the receiver with messages until it asks the sender to keep the bytes of those to come. */
static uint64_t press(struct mesh *mesh)
{
	char bytes[BYTES_MAX];
	uint64_t nr = 0;

	while (!mesh_peer(mesh, 0, 1)->keeps) {
		fill(bytes, BYTES_MAX, nr);
		send_now(mesh, bytes, BYTES_MAX, nr++);
		mesh_settle(mesh);
		NM_CHECK(nr < 1000);
	}
	return nr;
}

static void relieve(struct mesh *mesh, uint64_t nr)
{
	for (uint64_t tag = 0; tag < nr; tag++)
		receive(mesh, tag, BYTES_MAX);
	mesh_settle(mesh);
	NM_CHECK(!mesh_peer(mesh, 0, 1)->keeps && mesh_peer(mesh, 1, 0)->asked == NM_PACE_FREE);
	NM_CHECK_EQ(mesh_peer(mesh, 1, 0)->held_bytes, 0);
}

/* The last message first: every other one has to be let in before it, and to wait. */
NM_TEST_WITHIN(messages_in_reverse_order, 60)
{
	enum { NR = 20000 };
	struct mesh *mesh = mesh_with("16M", 2);
	char *bytes = malloc((size_t)NR * BYTES_MAX);

	for (uint64_t tag = 0; tag < NR; tag++) {
		struct iovec iov = {bytes + tag * BYTES_MAX, len_of(tag)};
		struct nm_message m = {.iov = &iov,
				       .nr_iov = 1,
				       .peer = mesh_peer(mesh, 0, 1),
				       .tag = tag,
				       .flags = NM_TAGGED};

		fill(iov.iov_base, iov.iov_len, tag);
		while (nm_engine_send(mesh_node(mesh, 0)->engine, &m) == -EAGAIN)
			mesh_step(mesh);
		if (tag % 64 == 0)
			mesh_step(mesh);
	}
	mesh_settle(mesh);
	NM_CHECK(mesh_peer(mesh, 1, 0)->asked == NM_PACE_KEEP && mesh_peer(mesh, 0, 1)->keeps);
	NM_CHECK(mesh_peer(mesh, 1, 0)->held_bytes <=
		 nm_params()->unexpected_max / 64 + (NR + 64) * NM_UNEXPECTED_BLOCK);
	for (uint64_t tag = NR; tag-- > 0;)
		receive(mesh, tag, len_of(tag));
	relieve(mesh, 0);
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.value, NR);
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	mesh_destroy(mesh);
	free(bytes);
}

/* With what is in force when nobody says otherwise. */
NM_TEST_WITHIN(a_million_small_messages_in_reverse_order, 120)
{
	enum { NR = 1000000 };
	struct mesh *mesh = mesh_with("", 2);
	char bytes[8];

	for (uint64_t tag = 0; tag < NR; tag++) {
		fill(bytes, sizeof(bytes), tag);
		send_now(mesh, bytes, sizeof(bytes), tag);
		if (tag % 64 == 0)
			mesh_step(mesh);
	}
	mesh_settle(mesh);
	NM_CHECK(mesh_peer(mesh, 0, 1)->keeps);
	for (uint64_t tag = NR; tag-- > 0;)
		receive(mesh, tag, sizeof(bytes));
	relieve(mesh, 0);
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.value, NR);
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	mesh_destroy(mesh);
}

/* Its completion is what holds a sender back; where the bytes were injected it is not held. */
NM_TEST(completions_wait_while_bytes_are_kept)
{
	const uint64_t levels[] = {0, NM_DELIVERY_COMPLETE, NM_MATCH_COMPLETE,
				   NM_TRANSMIT_COMPLETE};
	struct mesh *mesh = mesh_with("256K", 2);
	char bytes[BYTES_MAX], context;
	uint64_t nr;

	nr = press(mesh);
	fill(bytes, BYTES_MAX, nr);
	for (size_t i = 0; i < NM_ARRAY_SIZE(levels); i++) {
		send_to(mesh, 0, 1, bytes, BYTES_MAX, nr, TAGGED | levels[i], &context);
		NM_CHECK(mesh_quiet(mesh, 0));
		receive(mesh, nr, BYTES_MAX);
		NM_CHECK(mesh_wait(mesh, 0).context == &context);
	}
	send_to(mesh, 0, 1, bytes, BYTES_MAX, nr, TAGGED | NM_INJECT, &context);
	NM_CHECK(mesh_wait(mesh, 0).context == &context);
	send_to(mesh, 0, 1, bytes, NM_UNEXPECTED_EAGER, nr + 1, TAGGED, &context);
	NM_CHECK(mesh_wait(mesh, 0).context == &context);
	receive(mesh, nr, BYTES_MAX);
	recv_from(mesh, 1, NULL, NULL, 0, nr + 1, 0, TAGGED | NM_PEEK | NM_DISCARD, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, NM_UNEXPECTED_EAGER);
	relieve(mesh, nr);
	send_to(mesh, 0, 1, bytes, BYTES_MAX, nr, TAGGED, &context);
	NM_CHECK(mesh_wait(mesh, 0).context == &context);
	receive(mesh, nr, BYTES_MAX);
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	mesh_destroy(mesh);
}

/* Messages match in the order of their sends, however each of them comes. */
NM_TEST(order_is_kept_while_bytes_are)
{
	const size_t lens[] = {8, BYTES_MAX, 100, 700, 0, 300};
	struct mesh *mesh = mesh_with("256K", 2);
	char bytes[NM_ARRAY_SIZE(lens)][BYTES_MAX], in[BYTES_MAX];
	uint64_t nr;

	nr = press(mesh);
	for (size_t i = 0; i < NM_ARRAY_SIZE(lens); i++) {
		fill(bytes[i], lens[i], i);
		send_to(mesh, 0, 1, bytes[i], lens[i], nr,
			NM_TAGGED | (i == 3 ? (uint64_t)NM_INJECT : 0), NULL);
	}
	for (size_t i = 0; i < NM_ARRAY_SIZE(lens); i++) {
		recv_from(mesh, 1, NULL, in, sizeof(in), nr, 0, TAGGED, in);
		NM_CHECK_EQ(mesh_wait(mesh, 1).len, lens[i]);
		check_filled(in, lens[i], i);
	}
	relieve(mesh, nr);
	NM_CHECK_EQ(mesh_node(mesh, 0)->send.value, nr + NM_ARRAY_SIZE(lens));
	mesh_destroy(mesh);
}

/* A program that sends and sends is asked in time, without looking for anything itself. */
NM_TEST(a_sender_listens)
{
	struct mesh *mesh = mesh_with("64M", 2);
	char bytes[BYTES_MAX] = {0};
	uint64_t sent = 0;

	send_to(mesh, 0, 1, bytes, 8, 0, NM_TAGGED, NULL);
	mesh_settle(mesh);
	while (!mesh_peer(mesh, 0, 1)->keeps) {
		sent += BYTES_MAX;
		NM_CHECK(sent <= 4 << 20);
		send_to(mesh, 0, 1, bytes, BYTES_MAX, 0, NM_TAGGED, NULL);
		nm_engine_progress(mesh_node(mesh, 1)->engine);
	}
	mesh_destroy(mesh);
}

/* Nor is it put off for ever by messages without a byte, or among those that it injects. */
NM_TEST(a_sender_of_nothing_listens)
{
	struct mesh *mesh = mesh_with("64M", 2);
	char bytes[BYTES_MAX] = {0};

	send_to(mesh, 1, 0, bytes, 8, 7, NM_TAGGED, NULL);
	nm_engine_progress(mesh_node(mesh, 1)->engine);
	for (int i = 0; mesh_peer(mesh, 0, 1)->source_channels == 0; i++) {
		NM_CHECK(i < 10000);
		send_to(mesh, 0, 1, NULL, 0, 0, NM_TAGGED, NULL);
		nm_engine_progress(mesh_node(mesh, 1)->engine);
	}
	while (mesh_peer(mesh, 1, 0)->asked != NM_PACE_KEEP) {
		send_now(mesh, bytes, BYTES_MAX, 0);
		nm_engine_progress(mesh_node(mesh, 1)->engine);
	}
	for (int i = 0; !mesh_peer(mesh, 0, 1)->keeps; i++) {
		NM_CHECK(i < 4096);
		send_to(mesh, 0, 1, bytes, BYTES_MAX, 0, NM_TAGGED, NULL);
		send_now(mesh, bytes, BYTES_MAX, 0);
		nm_engine_progress(mesh_node(mesh, 1)->engine);
	}
	mesh_destroy(mesh);
}

/* Puts, gets, atomics and answers are no messages: they come through, and as fast as ever. */
NM_TEST(what_is_no_message_comes_through)
{
	struct mesh *mesh = mesh_with("256K", 2);
	char bytes[BYTES_MAX], window[BYTES_MAX] = {0}, in[BYTES_MAX];
	struct iovec place = {window, sizeof(window)}, iov = {bytes, sizeof(bytes)};
	const struct nm_memory_attr attr = {
		.iov = &place, .nr_iov = 1, .access = NM_REMOTE_READ | NM_REMOTE_WRITE};
	struct nm_memory_region *region;
	struct nm_rma rma = {
		.iov = &iov,
		.nr_iov = 1,
		.remote = {{.len = sizeof(bytes)}},
		.nr_remote = 1,
		.peer = mesh_peer(mesh, 0, 1),
		.flags = NM_COMPLETION,
	};
	uint64_t nr = press(mesh);

	NM_CHECK_EQ(nm_memory_register(mesh_node(mesh, 1)->memory, &attr, &region), 0);
	fill(bytes, sizeof(bytes), 3);
	NM_CHECK_EQ(nm_engine_write(mesh_node(mesh, 0)->engine, &rma), 0);
	/* It goes with its envelope: the target has it without having asked for it. */
	while (nm_engine_progress(mesh_node(mesh, 1)->engine) > 0)
		;
	check_filled(window, sizeof(window), 3);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	iov.iov_base = in;
	NM_CHECK_EQ(nm_engine_read(mesh_node(mesh, 0)->engine, &rma), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, 0);
	check_filled(in, sizeof(in), 3);
	/* Messages the other way, and their answers. */
	send_to(mesh, 1, 0, bytes, 8, 9, TAGGED | NM_DELIVERY_COMPLETE, NULL);
	recv_from(mesh, 0, NULL, in, sizeof(in), 9, 0, TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 0).len, 8);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
	relieve(mesh, nr);
	mesh_destroy(mesh);
}

/* An endpoint that is its own peer is both sides at once. */
NM_TEST(messages_to_oneself)
{
	struct mesh *mesh = mesh_with("256K", 1);
	struct nm_peer *self = mesh_peer(mesh, 0, 0);
	char bytes[BYTES_MAX], in[BYTES_MAX];
	uint64_t nr = 0;

	fill(bytes, BYTES_MAX, 5);
	while (!self->keeps) {
		send_to(mesh, 0, 0, bytes, BYTES_MAX, nr++, NM_TAGGED, NULL);
		mesh_settle(mesh);
		NM_CHECK(nr < 1000);
	}
	send_to(mesh, 0, 0, bytes, BYTES_MAX, nr++, NM_TAGGED, NULL);
	send_to(mesh, 0, 0, bytes, BYTES_MAX, nr++, NM_TAGGED | NM_INJECT, NULL);
	while (nr-- > 0) {
		memset(in, 0, sizeof(in));
		recv_from(mesh, 0, self, in, sizeof(in), nr, 0, TAGGED, NULL);
		NM_CHECK_EQ(mesh_wait(mesh, 0).len, BYTES_MAX);
		check_filled(in, BYTES_MAX, 5);
	}
	mesh_settle(mesh);
	NM_CHECK(!self->keeps && self->asked == NM_PACE_FREE);
	NM_CHECK_EQ(self->held_bytes, 0);
	mesh_destroy(mesh);
}

/* Looked at, set aside and taken, or dropped: what waits counts until it is gone. */
NM_TEST(what_is_claimed_is_held)
{
	struct mesh *mesh = mesh_with("256K", 2);
	struct nm_peer *peer = mesh_peer(mesh, 1, 0);
	char bytes[BYTES_MAX], in[BYTES_MAX], context;
	uint64_t nr = press(mesh), held;

	fill(bytes, BYTES_MAX, 1);
	send_to(mesh, 0, 1, bytes, BYTES_MAX, nr, TAGGED, &context);
	mesh_settle(mesh);
	held = peer->held_bytes;
	recv_from(mesh, 1, NULL, NULL, 0, nr, 0, TAGGED | NM_PEEK, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, BYTES_MAX);
	recv_from(mesh, 1, NULL, NULL, 0, nr, 0, TAGGED | NM_PEEK | NM_CLAIM, in);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, BYTES_MAX);
	NM_CHECK_EQ(peer->held_bytes, held);
	NM_CHECK_EQ(recv_from(mesh, 1, NULL, in, sizeof(in), nr, 0, TAGGED | NM_CLAIM, in), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).len, BYTES_MAX);
	check_filled(in, BYTES_MAX, 1);
	NM_CHECK(peer->held_bytes < held);
	NM_CHECK(mesh_wait(mesh, 0).context == &context);
	for (uint64_t tag = 0; tag < nr; tag++) {
		recv_from(mesh, 1, NULL, NULL, 0, tag, 0, TAGGED | NM_PEEK | NM_DISCARD, NULL);
		NM_CHECK_EQ(mesh_wait(mesh, 1).len, BYTES_MAX);
	}
	relieve(mesh, 0);
	mesh_destroy(mesh);
}

struct end {
	struct nm_identity who;
	struct nm_reason reason;
	bool down;
};

static void see(void *arg, const struct nm_peer_facts *facts)
{
	struct end *end = arg;

	if (nm_identity_equal(&facts->who, &end->who)) {
		end->down = facts->down;
		end->reason = facts->down_reason;
	}
}

/* How node AT thinks of node OF. */
static struct end look(struct mesh *mesh, unsigned int at, unsigned int of)
{
	struct end end = {.who = mesh_node(mesh, of)->address.who};

	nm_engine_visit_peers(mesh_node(mesh, at)->engine, see, &end);
	return end;
}

/* One that keeps nothing, whatever it is asked, and never ends. Others notice nothing. */
NM_TEST(a_flood_ends_at_the_bound)
{
	const struct nm_packet packet = {
		.op = NM_OP_EAGER, .flags = NM_PKT_TAGGED, .len = BYTES_MAX, .tag = 7};
	struct mesh *mesh = mesh_with("1M", 3);
	char bytes[BYTES_MAX], in[BYTES_MAX];
	struct end end;
	uint64_t held;

	fill(bytes, BYTES_MAX, 7);
	send_to(mesh, 1, 0, bytes, 8, 1, NM_TAGGED, NULL);
	for (int i = 0; i < 10000; i++) {
		mesh_forge(mesh, 0, 1, &packet, bytes);
		mesh_step(mesh);
		NM_CHECK(mesh_peer(mesh, 1, 0)->held_bytes <= 1 << 20);
	}
	end = look(mesh, 1, 0);
	NM_CHECK(end.down);
	NM_CHECK_HAS(end.reason.text, "NEARMETAL_UNEXPECTED_MAX");
	/* It is told why nobody listens to it any more. */
	mesh_settle(mesh);
	end = look(mesh, 0, 1);
	NM_CHECK(end.down);
	NM_CHECK_HAS(end.reason.text, "it takes no more");
	/* Somebody is told that one is lost; what had come from it is there all the same. */
	NM_CHECK_EQ(recv_from(mesh, 1, NULL, in, sizeof(in), 8, 0, TAGGED, NULL), 0);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, ECONNRESET);
	held = mesh_peer(mesh, 1, 0)->held_bytes;
	receive(mesh, 7, BYTES_MAX);
	NM_CHECK(mesh_peer(mesh, 1, 0)->held_bytes < held);
	NM_CHECK_EQ(recv_from(mesh, 1, mesh_peer(mesh, 1, 2), in, sizeof(in), 7, 0, TAGGED, NULL),
		    0);
	send_to(mesh, 2, 1, bytes, BYTES_MAX, 7, NM_TAGGED, NULL);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, 0);
	check_filled(in, BYTES_MAX, 7);
	mesh_destroy(mesh);
}

/* Envelopes take room, too. */
NM_TEST(a_flood_of_envelopes_ends_at_the_bound)
{
	const struct nm_wire_rts rts = {.size = 1 << 20, .sender_id = 5};
	const struct nm_packet packet = {.op = NM_OP_RTS, .len = sizeof(rts)};
	struct mesh *mesh = mesh_with("1M", 2);

	for (int i = 0; i < 10000; i++) {
		mesh_forge(mesh, 0, 1, &packet, &rts);
		mesh_step(mesh);
	}
	NM_CHECK(look(mesh, 1, 0).down);
	/* What it never sent is not waited for. */
	NM_CHECK_EQ(mesh_peer(mesh, 1, 0)->held_bytes, 0);
	mesh_destroy(mesh);
}

/* One that takes nothing in is told as soon as it does, and does not make us wait for that. */
static void untold(bool ever)
{
	/* What one round of progress may bring counts for nothing (hold.c). */
	const uint64_t max = 1 << 20, late = max + (4 << 20);
	struct mesh *mesh = mesh_with("1M", 2);
	char bytes[BYTES_MAX] = {0};

	send_to(mesh, 0, 1, bytes, 8, 1, NM_TAGGED, NULL);
	send_to(mesh, 1, 0, bytes, 8, 1, NM_TAGGED, NULL);
	mesh_settle(mesh);
	mesh_block(mesh, 1, 0, true);
	while (mesh_peer(mesh, 1, 0)->held_bytes <= max) {
		send_now(mesh, bytes, BYTES_MAX, 7);
		mesh_settle(mesh);
	}
	NM_CHECK(!look(mesh, 1, 0).down);
	if (ever) {
		mesh_block(mesh, 1, 0, false);
		mesh_settle(mesh);
		NM_CHECK(look(mesh, 1, 0).down);
		NM_CHECK_HAS(look(mesh, 0, 1).reason.text, "it takes no more");
	} else {
		for (uint64_t sent = 0; sent <= (8 << 20); sent += BYTES_MAX) {
			send_now(mesh, bytes, BYTES_MAX, 7);
			mesh_settle(mesh);
			NM_CHECK(mesh_peer(mesh, 1, 0)->held_bytes <= late);
		}
		NM_CHECK(look(mesh, 1, 0).down);
	}
	mesh_destroy(mesh);
}

NM_TEST(a_flood_from_one_that_listens_late)
{
	untold(true);
}

NM_TEST(a_flood_from_one_that_never_listens)
{
	untold(false);
}

NM_TEST(paces_that_do_not_exist)
{
	const struct nm_packet packets[] = {
		{.op = NM_OP_PACE, .data = NM_PACE_STOP + 1},
		{.op = NM_OP_PACE, .data = UINT64_MAX},
		{.op = NM_OP_PACE, .len = 1},
	};

	for (size_t i = 0; i < NM_ARRAY_SIZE(packets); i++) {
		struct mesh *mesh = mesh_create(NULL);

		mesh_forge(mesh, 0, 1, &packets[i], "x");
		mesh_settle(mesh);
		NM_CHECK_HAS(look(mesh, 1, 0).reason.text, "a pace that does not exist");
		mesh_destroy(mesh);
	}
}

/* NR messages from node FROM to node 1. What nodes 2 and 3 may take there is STRANGERS_MAX together. */
enum { STRANGERS_MAX = 1 << 20, UNTOLD_MAX = 4 << 20 };

static uint64_t held_by_strangers(struct mesh *mesh)
{
	return mesh_peer(mesh, 1, 2)->held_bytes + mesh_peer(mesh, 1, 3)->held_bytes;
}

static void flood(struct mesh *mesh, unsigned int from, unsigned int nr, uint64_t most)
{
	const struct nm_packet packet = {
		.op = NM_OP_EAGER, .flags = NM_PKT_TAGGED, .len = BYTES_MAX, .tag = 7};
	char bytes[BYTES_MAX];

	fill(bytes, BYTES_MAX, 7);
	while (nr--) {
		mesh_forge(mesh, from, 1, &packet, bytes);
		mesh_step(mesh);
		NM_CHECK(held_by_strangers(mesh) <= most);
	}
}

static struct mesh *mesh_with_strangers(void)
{
	const struct mesh_options options = {.nr_nodes = 4};
	struct mesh *mesh;

	setenv("NEARMETAL_UNEXPECTED_MAX", "4M", 1);
	mesh = mesh_create(&options);
	mesh_take_out(mesh, 2);
	mesh_take_out(mesh, 3);
	return mesh;
}

/* A process can have many names. The one with most messages goes, and its messages go with it. */
NM_TEST(strangers_share_one_limit)
{
	struct mesh *mesh = mesh_with_strangers();
	char in[8];

	recv_from(mesh, 1, NULL, in, sizeof(in), 8, 0, TAGGED, NULL);
	flood(mesh, 0, 300, 0);
	flood(mesh, 2, 500, STRANGERS_MAX);
	NM_CHECK(!look(mesh, 1, 2).down);
	flood(mesh, 3, 450, STRANGERS_MAX + NM_UNEXPECTED_BLOCK + BYTES_MAX);
	mesh_settle(mesh);
	NM_CHECK(look(mesh, 1, 2).down);
	NM_CHECK_HAS(look(mesh, 2, 1).reason.text, "it takes no more");
	NM_CHECK(!look(mesh, 1, 3).down);
	/* Neither other peers nor a receive from any source notice it. */
	NM_CHECK(mesh_quiet(mesh, 1));
	for (int i = 0; i < 300; i++)
		receive(mesh, 7, BYTES_MAX);
	mesh_destroy(mesh);
}

/* Nobody answers the calls of these. */
NM_TEST(strangers_that_take_nothing_share_one_limit)
{
	struct mesh *mesh = mesh_with_strangers();

	send_to(mesh, 1, 2, "hello", 5, 1, NM_TAGGED, NULL);
	send_to(mesh, 1, 3, "hello", 5, 1, NM_TAGGED, NULL);
	mesh_settle(mesh);
	mesh_block(mesh, 1, 2, true);
	mesh_block(mesh, 1, 3, true);
	flood(mesh, 2, 3500, STRANGERS_MAX + UNTOLD_MAX + NM_UNEXPECTED_BLOCK + BYTES_MAX);
	flood(mesh, 3, 3500, STRANGERS_MAX + UNTOLD_MAX + NM_UNEXPECTED_BLOCK + BYTES_MAX);
	NM_CHECK(look(mesh, 1, 2).down || look(mesh, 1, 3).down);
	mesh_destroy(mesh);
}

/* Open MPI inserts an address late. Sound senders are asked to keep their bytes long before. */
NM_TEST(sound_strangers_keep_their_bytes)
{
	struct mesh *mesh = mesh_with_strangers();
	char bytes[BYTES_MAX];

	fill(bytes, BYTES_MAX, 7);
	for (int i = 0; i < 1500; i++)
		for (unsigned int from = 2; from < 4; from++) {
			send_to(mesh, from, 1, bytes, BYTES_MAX, 7, NM_TAGGED, NULL);
			mesh_step(mesh);
		}
	mesh_settle(mesh);
	NM_CHECK(!look(mesh, 1, 2).down);
	NM_CHECK(!look(mesh, 1, 3).down);
	NM_CHECK(!look(mesh, 2, 1).down);
	for (int i = 0; i < 3000; i++)
		receive_from(mesh, NULL, 7, BYTES_MAX);
	NM_CHECK_EQ(held_by_strangers(mesh), 0);
	NM_CHECK_EQ(mesh_node(mesh, 1)->engine->unlisted_bytes, 0);
	mesh_destroy(mesh);
}

/* What a peer has here is no stranger's any more when the program inserts its address. */
NM_TEST(messages_of_a_peer_that_is_inserted_late)
{
	struct mesh *mesh = mesh_with_strangers();
	struct nm_engine *engine = mesh_node(mesh, 1)->engine;
	struct nm_peer *peer;

	flood(mesh, 2, 100, STRANGERS_MAX);
	peer = mesh_peer(mesh, 1, 2);
	NM_CHECK_EQ(engine->unlisted_bytes, peer->held_bytes);
	nm_peer_set_index(peer, 2);
	NM_CHECK_EQ(engine->unlisted_bytes, 0);
	nm_engine_forget(engine, &peer->who);
	NM_CHECK_EQ(engine->unlisted_bytes, peer->held_bytes);
	mesh_destroy(mesh);
}
