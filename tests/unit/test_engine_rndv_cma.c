/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large messages without packets: every byte arrives whoever copies it, what fails goes on in
 * packets from where it stopped, and what a peer says of its memory is checked.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "engine/protocol.h"
#include "traffic.h"

enum { LEN = 600 * 1000 };

/* Nothing but PROTOCOL is worth its while. */
static struct nm_select_params only(enum nm_protocol protocol)
{
	struct nm_select_params params = {.probe_choices = UINT32_MAX};

	for (unsigned int class = 0; class < NM_SELECT_NR_CLASSES; class ++)
		for (unsigned int load = 0; load < NM_SELECT_NR_LOADS; load++)
			params.prior[class][load][protocol] = UINT32_MAX;
	return params;
}

static void see(void *arg, const struct nm_peer_facts *facts)
{
	*(struct nm_peer_facts *)arg = *facts;
}

static struct nm_peer_facts look(struct mesh *mesh, unsigned int at)
{
	struct nm_peer_facts facts = {0};

	mesh_settle(mesh);
	nm_engine_visit_peers(mesh_node(mesh, at)->engine, see, &facts);
	return facts;
}

/* The way back has to be open before a receiver can read at the sender. */
static struct mesh *mesh_of_neighbours(const struct nm_select_params *params)
{
	struct mesh_options options = {.remote_copy = true, .select = params};
	struct mesh *mesh = mesh_create(&options);

	send_to(mesh, 1, 0, "", 1, 1, NM_TAGGED, NULL);
	recv_from(mesh, 0, NULL, NULL, 0, 1, 0, NM_TAGGED, NULL);
	mesh_settle(mesh);
	while (!mesh_quiet(mesh, 0))
		mesh_wait(mesh, 0);
	return mesh;
}

static const size_t lens[] = {1025, 2 * 4096 - 1, 2 * 4096, 100000, LEN};

/* One message from 0 to 1 in scattered buffers, into ROOM bytes; both sides complete. */
static void exchange(struct mesh *mesh, size_t len, size_t room, uint64_t flags)
{
	char *out = malloc(len), *in = malloc(room + 1);
	struct iovec from[3] = {{out, len / 3}, {out + len / 3, 0}, {out + len / 3, len - len / 3}};
	struct iovec to[2] = {{in, room / 2 + 3}, {in + room / 2 + 3, room - room / 2 - 3}};
	struct nm_message m = {
		.iov = to,
		.nr_iov = 2,
		.tag = len,
		.context = in,
		.flags = TAGGED,
	};
	bool early = len % 2;
	struct nm_completion c;

	fill(out, len, len);
	memset(in, 0x5a, room + 1);
	if (early)
		NM_CHECK_EQ(nm_engine_recv(mesh_node(mesh, 1)->engine, &m), 0);
	m.iov = from;
	m.nr_iov = 3;
	m.peer = mesh_peer(mesh, 0, 1);
	m.context = out;
	m.flags |= flags;
	NM_CHECK_EQ(nm_engine_send(mesh_node(mesh, 0)->engine, &m), 0);
	if (!early) {
		mesh_settle(mesh);
		m = (struct nm_message){.iov = to, .nr_iov = 2, .tag = len, .flags = TAGGED};
		NM_CHECK_EQ(nm_engine_recv(mesh_node(mesh, 1)->engine, &m), 0);
	}
	c = mesh_wait(mesh, 1);
	NM_CHECK_EQ(c.err, room < len ? NM_ETRUNC : 0);
	NM_CHECK_EQ(c.len, room < len ? room : len);
	NM_CHECK_EQ(c.olen, room < len ? len - room : 0);
	check_filled(in, c.len, len);
	NM_CHECK_EQ(in[room], 0x5a);
	c = mesh_wait(mesh, 0);
	NM_CHECK_EQ(c.err, 0);
	NM_CHECK(c.context == out);
	NM_CHECK(mesh_quiet(mesh, 0) && mesh_quiet(mesh, 1));
	free(out);
	free(in);
}

NM_TEST(every_protocol_brings_every_byte)
{
	/* The mesh has no heaps: test_heap_way.c. */
	for (enum nm_protocol p = NM_PROTOCOL_POOL; p <= NM_PROTOCOL_BOTH; p++) {
		struct nm_select_params params = only(p);
		struct mesh *mesh = mesh_of_neighbours(&params);
		struct nm_peer_facts facts;

		for (size_t i = 0; i < NM_ARRAY_SIZE(lens); i++) {
			exchange(mesh, lens[i], lens[i], 0);
			exchange(mesh, lens[i], lens[i] + 77, NM_DELIVERY_COMPLETE);
			exchange(mesh, lens[i], lens[i] - 10, 0);
			exchange(mesh, lens[i], lens[i] / 2, NM_DELIVERY_COMPLETE);
		}
		facts = look(mesh, 1);
		for (enum nm_protocol q = NM_PROTOCOL_POOL; q < NM_NR_PROTOCOLS; q++)
			NM_CHECK_EQ(facts.bulk.bytes[q] > 0, p == q);
		NM_CHECK_EQ(facts.bulk.fallbacks, 0);
		NM_CHECK_EQ(mesh_copied(mesh, 1, 0) > 0, p >= NM_PROTOCOL_PULL);
		NM_CHECK_EQ(mesh_copied(mesh, 0, 1) > 0, p == NM_PROTOCOL_BOTH);
		mesh_destroy(mesh);
	}
}

/* Whoever fails, wherever, for whatever reason: the rest comes in packets. */
NM_TEST(what_fails_goes_on_in_packets)
{
	static const int errors[] = {-EFAULT, -EPERM, -ESRCH};
	static const uint64_t after[] = {0, 1, 4096, LEN / 4, LEN / 2 - 4096};

	for (unsigned int n = 0; n < 60; n++) {
		bool both = n % 2;
		unsigned int who = both ? n / 2 % 2 : 1;
		struct nm_select_params params = only(both ? NM_PROTOCOL_BOTH : NM_PROTOCOL_PULL);
		struct mesh *mesh = mesh_of_neighbours(&params);
		struct nm_peer_facts facts;
		int err = errors[n / 4 % 3];

		mesh_spoil_copies(mesh, who, !who, after[n / 12], err);
		exchange(mesh, LEN, LEN, n % 3 ? NM_DELIVERY_COMPLETE : 0);
		facts = look(mesh, 1);
		NM_CHECK_EQ(facts.bulk.fallbacks, 1);
		NM_CHECK_HAS(facts.bulk.fallback.text, who ? strerror(-err) : "could not write");
		/* What was lost for good is not tried again. */
		exchange(mesh, LEN, LEN, 0);
		NM_CHECK_EQ(look(mesh, 1).bulk.fallbacks, err != -EFAULT ? 1 : 2);
		mesh_destroy(mesh);
	}
}

NM_TEST(no_addresses_for_strangers)
{
	struct nm_select_params params = only(NM_PROTOCOL_BOTH);
	struct mesh_options options = {.select = &params};
	struct mesh *mesh = mesh_create(&options);

	exchange(mesh, LEN, LEN, 0);
	NM_CHECK_EQ(look(mesh, 1).bulk.bytes[NM_PROTOCOL_POOL], LEN);
	mesh_destroy(mesh);
}

/* A receiver that goes while the sender may still write waits for it. */
NM_TEST(nobody_writes_into_a_closed_endpoint)
{
	struct nm_select_params params = only(NM_PROTOCOL_BOTH);
	struct mesh *mesh = mesh_of_neighbours(&params);
	char *out = calloc(1, LEN), *in = calloc(1, LEN);

	recv_from(mesh, 1, NULL, in, LEN, 5, 0, TAGGED, in);
	send_to(mesh, 0, 1, out, LEN, 5, TAGGED, out);
	for (int i = 0; i < 3; i++)
		nm_engine_progress(mesh_node(mesh, 1)->engine);
	mesh_kill(mesh, 1, 0);
	/* Its close time-out has passed, or it was told: what is written now would show. */
	free(in);
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	free(out);
	mesh_destroy(mesh);
}

static void refused(const struct nm_packet *packet, const void *payload, const char *reason)
{
	struct nm_select_params params = only(NM_PROTOCOL_BOTH);
	struct mesh *mesh = mesh_of_neighbours(&params);
	char *in = calloc(1, LEN);
	struct nm_peer_facts facts;

	recv_from(mesh, 1, NULL, in, LEN, 0, UINT64_MAX, TAGGED, in);
	mesh_forge(mesh, 0, 1, packet, payload);
	facts = look(mesh, 1);
	NM_CHECK(facts.down);
	NM_CHECK_HAS(facts.down_reason.text, reason);
	NM_CHECK_EQ(mesh_wait(mesh, 1).err, ECONNRESET);
	NM_CHECK(mesh_quiet(mesh, 1));
	free(in);
	mesh_destroy(mesh);
}

NM_TEST(envelopes_that_lie_about_memory)
{
	struct {
		struct nm_wire_rts rts;
		struct nm_wire_span spans[NM_SPANS_MAX];
	} p = {.rts = {.size = 100, .sender_id = 1}, .spans = {{4096, 100}, {8192, 0}}};
	struct nm_packet one = {
		.op = NM_OP_RTS,
		.flags = NM_PKT_TAGGED | NM_PKT_MEMORY,
		.len = sizeof(p.rts) + sizeof(p.spans[0]),
	};
	struct nm_packet two = one;

	two.len += sizeof(p.spans[0]);
	refused(&two, &p, "envelope of 48 bytes");
	two.flags |= 1u << NM_PKT_NR_SHIFT;
	refused(&two, &p, "invalid place"); /* an empty span */
	p.spans[1].len = UINT64_MAX;
	refused(&two, &p, "invalid place"); /* sizes wrap around */
	one.len--;
	refused(&one, &p, "envelope of 31 bytes");
	one.len++;
	p.spans[0].len = 99;
	refused(&one, &p, "invalid place");
	p.spans[0] = (struct nm_wire_span){UINT64_MAX - 50, 100};
	refused(&one, &p, "invalid place"); /* past the end of all addresses */
	refused(&(struct nm_packet){.op = NM_OP_PLACED, .tag = UINT64_C(1) << 32}, NULL,
		"not requested");
}

/* A CTS from node 1 to a sender at node 0 that offered its memory. */
static void bad_place(uint8_t flags, uint32_t len, const void *payload)
{
	struct nm_select_params params = only(NM_PROTOCOL_BOTH);
	struct mesh *mesh = mesh_of_neighbours(&params);
	char *out = calloc(1, LEN);
	struct nm_packet packet = {.op = NM_OP_CTS, .flags = flags, .len = len};
	struct nm_peer_facts facts;

	send_to(mesh, 0, 1, out, LEN, 1, TAGGED, out);
	mesh_settle(mesh);
	packet.tag = UINT64_C(2) << 32; /* the second use of its first request */
	mesh_forge(mesh, 1, 0, &packet, payload);
	facts = look(mesh, 0);
	NM_CHECK(facts.down);
	NM_CHECK_HAS(facts.down_reason.text, "invalid place");
	NM_CHECK_EQ(mesh_wait(mesh, 0).err, ECONNRESET);
	NM_CHECK_EQ(mesh_copied(mesh, 0, 1), 0);
	free(out);
	mesh_destroy(mesh);
}

NM_TEST(requests_to_write_that_make_no_sense)
{
	struct {
		struct nm_wire_cts cts;
		struct nm_wire_span span;
	} p = {{LEN / 2, LEN / 2 + 1}, {4096, LEN / 2 + 1}};

	bad_place(NM_PKT_MEMORY, sizeof(p), &p);
	p.cts = (struct nm_wire_cts){UINT64_MAX, 2};
	bad_place(NM_PKT_MEMORY, sizeof(p), &p);
	p.cts = (struct nm_wire_cts){0, 0};
	bad_place(NM_PKT_MEMORY, sizeof(p), &p);
	p.cts = (struct nm_wire_cts){0, 100};
	bad_place(NM_PKT_MEMORY, sizeof(p), &p);
	p.span.len = 100;
	bad_place(NM_PKT_MEMORY | NM_PKT_LAST, sizeof(p), &p);
	bad_place(NM_PKT_MEMORY, sizeof(p) - 1, &p);
	bad_place(NM_PKT_MEMORY | 1u << NM_PKT_NR_SHIFT, sizeof(p), &p);
}
