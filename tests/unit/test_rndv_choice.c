/* SPDX-License-Identifier: Apache-2.0 */
/* How large messages of a peer come, by rates that the case invents: the clock is its own. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/internal.h"
#include "engine/rndv_choice.h"
#include "harness.h"

enum { LEN = 64 << 10, NR = 4000 };

static struct nm_engine engine;
static struct nm_peer peer;
static struct nm_link link_to_peer;
static uint64_t now_ns;

/* In place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	if (clock != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, clock, ret_time);
	ret_time->tv_sec = (time_t)(now_ns / NM_NS_PER_S);
	ret_time->tv_nsec = (long)(now_ns % NM_NS_PER_S);
	return 0;
}

/* What a message of LEN costs by each way. */
struct costs {
	uint64_t takes_ns[NM_NR_PROTOCOLS]; /* from its begin to its end */
	uint64_t then_ns[NM_NR_PROTOCOLS];  /* until the sender has written the next one */
	uint64_t pause_ns;		    /* more, until the next one begins */
};

static void start(void)
{
	engine.config.select = &nm_select_defaults;
	link_to_peer.reads_heap = true;
	peer.state = NM_PEER_CONNECTED;
	peer.link = &link_to_peer;
	now_ns = NM_NS_PER_S;
}

static void finish(void)
{
	free(peer.bulk);
	peer.bulk = NULL;
}

static struct nm_request begin(void)
{
	struct nm_request r = {
		.peer = &peer,
		.accepted = LEN,
		.nr_spans = 1,
		.spans = {{NM_SPAN_HEAP, LEN}},
	};

	nm_rndv_choice_begin(&engine, &r);
	return r;
}

static void take_one(const struct costs *costs)
{
	struct nm_request r = begin();

	now_ns += costs->takes_ns[r.verdict.protocol];
	nm_rndv_choice_end(&engine, &r);
	now_ns += costs->then_ns[r.verdict.protocol] + costs->pause_ns;
}

/* The share of the bytes, in percent, that came by PROTOCOL after a time to learn. */
static uint64_t share_of(enum nm_protocol protocol, const struct costs *costs)
{
	uint64_t before;

	for (int i = 0; i < NR; i++)
		take_one(costs);
	before = peer.bulk->facts.bytes[protocol];
	for (int i = 0; i < NR; i++)
		take_one(costs);
	return (peer.bulk->facts.bytes[protocol] - before) * 100 / ((uint64_t)NR * LEN);
}

static uint32_t rate_of(enum nm_protocol protocol)
{
	return peer.bulk->states[1].cells[0][NM_SELECT_LONE].arms[protocol].mbps;
}

#define TAKES                                                                                      \
	{                                                                                          \
		[NM_PROTOCOL_POOL] = 6000, [NM_PROTOCOL_POOL_PAST] = 9000,                         \
		[NM_PROTOCOL_HEAP] = 1600                                                          \
	}

static const struct costs free_reads = {.takes_ns = TAKES};
static const struct costs dear_reads = {.takes_ns = TAKES, .then_ns = {[NM_PROTOCOL_HEAP] = 30000}};

NM_TEST(heap_is_used_if_the_sender_pays_nothing)
{
	start();
	NM_CHECK(share_of(NM_PROTOCOL_HEAP, &free_reads) > 80);
	finish();
}

/* The receiver sees only the time between two messages. */
NM_TEST(heap_is_left_if_the_sender_pays_for_it)
{
	start();
	NM_CHECK(share_of(NM_PROTOCOL_POOL, &dear_reads) > 80);
	/* The reads cost the sender nothing for a time. */
	NM_CHECK(share_of(NM_PROTOCOL_HEAP, &free_reads) > 80);
	NM_CHECK(share_of(NM_PROTOCOL_POOL, &dear_reads) > 80);
	finish();
}

/* What the sender pays is longer than the longest pause that is timed. */
NM_TEST(heap_is_left_if_the_next_message_comes_too_late)
{
	struct costs costs = dear_reads;

	start();
	NM_CHECK(share_of(NM_PROTOCOL_HEAP, &free_reads) > 80);
	costs.then_ns[NM_PROTOCOL_HEAP] = 10 * NM_NS_PER_MS;
	NM_CHECK(share_of(NM_PROTOCOL_POOL, &costs) > 80);
	finish();
}

/* Between two pauses the faster kind of two copies is found, and not what was faster elsewhere. */
NM_TEST(after_pauses_the_pool_is_compared_with_itself)
{
	struct costs costs = {.takes_ns = TAKES, .pause_ns = NM_NS_PER_MS};

	for (int i = 0; i < 4; i++) {
		start();
		link_to_peer.far = i & 1;
		costs.takes_ns[NM_PROTOCOL_POOL_PAST] = i & 2 ? 3000 : 9000;
		NM_CHECK(share_of(i & 2 ? NM_PROTOCOL_POOL_PAST : NM_PROTOCOL_POOL, &costs) > 80);
		finish();
	}
}

NM_TEST(what_was_reset_teaches_nothing)
{
	uint32_t rate;

	start();
	take_one(&free_reads);
	take_one(&free_reads);
	rate = rate_of(NM_PROTOCOL_POOL);
	NM_CHECK(rate > 0);
	nm_rndv_choice_reset(&peer);
	now_ns += NM_NS_PER_MS / 10;
	take_one(&free_reads);
	NM_CHECK_EQ(rate_of(NM_PROTOCOL_POOL), rate);
	finish();
}

/* Two at once are a stream, whose time ends with it. */
NM_TEST(streams_have_rates_of_their_own)
{
	const struct nm_select_cell *stream;
	struct nm_request first, second;
	uint32_t rate;

	start();
	take_one(&free_reads);
	take_one(&free_reads);
	rate = rate_of(NM_PROTOCOL_POOL);
	first = begin();
	NM_CHECK(rate_of(NM_PROTOCOL_POOL) != rate);
	rate = rate_of(NM_PROTOCOL_POOL);
	second = begin();
	now_ns += 100000;
	nm_rndv_choice_end(&engine, &first);
	nm_rndv_choice_end(&engine, &second);
	stream = &peer.bulk->states[1].cells[0][NM_SELECT_STREAM];
	NM_CHECK(stream->arms[NM_PROTOCOL_POOL].mbps > 0);
	NM_CHECK_EQ(rate_of(NM_PROTOCOL_POOL), rate);
	finish();
}
