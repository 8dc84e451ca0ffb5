/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of mpi_traffic: every message of every rank, as a pure function of the seed.
 *
 * Sender and receiver compute the same plan, so the receiver knows size, tag and content of each
 * message without being told, down to messages of no bytes. Messages are numbered per source and
 * fall into rounds; in every fourth round one rank, the listener, only receives.
 */
#ifndef NM_BENCH_TRAFFIC_PLAN_H
#define NM_BENCH_TRAFFIC_PLAN_H

#include <math.h>

#include "sampling.h"

#define MESSAGE_MAX ((size_t)8 << 20)
#define PER_ROUND 256u
#define FULL_RANGE_SHARE 64 /* one message in so many keeps the whole range of sizes */
#define STRIDED_MAX ((size_t)1 << 20)

static const int tags[] = {0, 1, 2, 77, 1000, 4096, 32766, 32767};

#define NR_TAGS ((int)(sizeof(tags) / sizeof(tags[0])))

enum send_mode {
	SEND_ISEND,
	SEND_ISSEND,
	SEND_PERSISTENT,
	SEND_BLOCKING,
	SEND_SYNCHRONOUS,
	SEND_BUFFERED,
	NR_SEND_MODES,
};

struct plan {
	uint64_t seed;
	int nr_ranks;
	uint32_t rounds;
	size_t usual_max; /* upper bound of most sizes, lowered until the byte cap is kept */
	uint64_t messages, bytes;
};

struct message {
	int source, dest;
	int tag; /* index into tags[] */
	uint32_t index;
	size_t bytes;
	size_t block; /* strided layout at the sender, in blocks of so many bytes; 0: contiguous */
	enum send_mode mode;
	uint64_t key; /* of the payload */
};

static inline int plan_listener(const struct plan *plan, uint32_t round)
{
	return plan->nr_ranks > 1 && round % 4 == 3 ? (int)(round / 4) % plan->nr_ranks : -1;
}

static inline uint64_t plan_hash(const struct plan *plan, int source, uint32_t index)
{
	return mix64(mix64(plan->seed ^ ((uint64_t)(unsigned)source << 48)) + index);
}

/* Destination and tag alone, cheap: cursors walk over many messages. False: a listener's gap. */
static inline bool plan_route(const struct plan *plan, int source, uint32_t index, int *ret_dest,
			      int *ret_tag)
{
	uint64_t hash = plan_hash(plan, source, index);
	int others = plan->nr_ranks - 1;

	if (plan_listener(plan, index / PER_ROUND) == source)
		return false;
	*ret_tag = (int)(hash % (uint64_t)NR_TAGS);
	hash >>= 8;
	if (!others || hash % 32 == 0)
		*ret_dest = source;
	else
		*ret_dest = (source + 1 + (int)((hash >> 8) % (uint64_t)others)) % plan->nr_ranks;
	return true;
}

/* Log-uniform from 0 to max, from 32 random bits. */
static inline size_t log_uniform(uint32_t bits, size_t max)
{
	double share = bits / 4294967296.0;

	return (size_t)exp2(share * log2((double)max + 2)) - 1;
}

static inline bool plan_message(const struct plan *plan, int source, uint32_t index,
				struct message *ret_message)
{
	static const size_t blocks[] = {8, 64, 4096};
	struct message message = {.source = source, .index = index};
	uint64_t hash;

	if (!plan_route(plan, source, index, &message.dest, &message.tag))
		return false;
	message.key = mix64(plan_hash(plan, source, index) ^ 0x6b65790000000000u);
	hash = mix64(message.key);
	message.bytes = log_uniform(
		(uint32_t)hash, (hash >> 32) % FULL_RANGE_SHARE ? plan->usual_max : MESSAGE_MAX);
	hash = mix64(hash);
	message.mode = (enum send_mode)(hash % NR_SEND_MODES);
	message.block = (hash >> 8) % 4 ? 0 : blocks[(hash >> 16) % 3];
	if (message.bytes > STRIDED_MAX || message.bytes < 2 * message.block)
		message.block = 0;
	if (message.block)
		message.bytes -= message.bytes % message.block;
	*ret_message = message;
	return true;
}

static inline void plan_sum(struct plan *plan)
{
	struct message message;
	uint32_t index;
	int source;

	plan->messages = plan->bytes = 0;
	for (source = 0; source < plan->nr_ranks; source++)
		for (index = 0; index < plan->rounds * PER_ROUND; index++)
			if (plan_message(plan, source, index, &message)) {
				plan->messages++;
				plan->bytes += message.bytes;
			}
}

/*
 * Plans at least `messages` messages of at most `cap` bytes in all. Sizes are log-uniform from 0
 * to 8 MiB; when that is more than the cap allows, the upper bound is lowered for all but one
 * message in FULL_RANGE_SHARE. Returns 0, or -ERANGE: no plan keeps the cap.
 */
static inline int plan_make(uint64_t seed, int nr_ranks, uint64_t messages, uint64_t cap,
			    struct plan *ret_plan)
{
	struct plan plan = {.seed = seed, .nr_ranks = nr_ranks, .usual_max = MESSAGE_MAX};
	uint64_t full = (uint64_t)nr_ranks * PER_ROUND;

	if (messages / full > UINT32_MAX / PER_ROUND / 2)
		return -ERANGE;
	plan.rounds = (uint32_t)(messages / full + 1);
	plan_sum(&plan);
	while (plan.messages < messages) {
		plan.rounds++;
		plan_sum(&plan);
	}
	while (plan.bytes > cap && plan.usual_max > 1024) {
		plan.usual_max -= plan.usual_max / 5;
		plan_sum(&plan);
	}
	if (plan.bytes > cap)
		return -ERANGE;
	*ret_plan = plan;
	return 0;
}

/* Walks over the messages of one source that go to one rank with one tag, in order. */
struct cursor {
	uint32_t index; /* where to go on looking */
	uint32_t taken; /* how many were found */
};

static inline bool cursor_next(const struct plan *plan, int source, int dest, int tag,
			       struct cursor *cursor, struct message *ret_message)
{
	int found_dest, found_tag;

	while (cursor->index < plan->rounds * PER_ROUND) {
		uint32_t index = cursor->index++;

		if (plan_route(plan, source, index, &found_dest, &found_tag) &&
		    found_dest == dest && found_tag == tag) {
			cursor->taken++;
			return plan_message(plan, source, index, ret_message);
		}
	}
	return false;
}

/* All messages to dest, by tag. Returns how many in all. */
static inline uint64_t plan_incoming(const struct plan *plan, int dest,
				     uint64_t ret_by_tag[NR_TAGS])
{
	uint64_t nr = 0;
	uint32_t index;
	int source, found_dest, found_tag;

	memset(ret_by_tag, 0, NR_TAGS * sizeof(ret_by_tag[0]));
	for (source = 0; source < plan->nr_ranks; source++)
		for (index = 0; index < plan->rounds * PER_ROUND; index++)
			if (plan_route(plan, source, index, &found_dest, &found_tag) &&
			    found_dest == dest) {
				ret_by_tag[found_tag]++;
				nr++;
			}
	return nr;
}

/* Messages of this round to dest. */
static inline uint32_t plan_round_incoming(const struct plan *plan, uint32_t round, int dest)
{
	uint32_t index, nr = 0;
	int source, found_dest, found_tag;

	for (source = 0; source < plan->nr_ranks; source++)
		for (index = round * PER_ROUND; index < (round + 1) * PER_ROUND; index++)
			nr += plan_route(plan, source, index, &found_dest, &found_tag) &&
			      found_dest == dest;
	return nr;
}

/* Which message of the plan has this payload? For the error text when a wrong one arrived. */
static inline bool plan_find_key(const struct plan *plan, uint64_t key, struct message *ret_message)
{
	uint32_t index;
	int source;

	for (source = 0; source < plan->nr_ranks; source++)
		for (index = 0; index < plan->rounds * PER_ROUND; index++)
			if (plan_message(plan, source, index, ret_message) &&
			    ret_message->key == key)
				return true;
	return false;
}

/* The key of a payload, from its first word: the product in payload_word() can be undone. */
static inline uint64_t payload_key(const void *payload)
{
	uint64_t word, inverse = 0x9e3779b97f4a7c15u;
	int i;

	for (i = 0; i < 6; i++)
		inverse *= 2 - 0x9e3779b97f4a7c15u * inverse;
	memcpy(&word, payload, 8);
	return word * inverse;
}

#endif
