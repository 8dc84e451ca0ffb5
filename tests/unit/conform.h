/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite over the transport contract, for every channel of base/channel.h: how a
 * case is written, once for all channels, and chosen by what a channel has. A new channel adds one
 * line to CORE_CHANNELS or FABRIC_CHANNELS and its fixture.
 */
#ifndef NM_TEST_CONFORM_H
#define NM_TEST_CONFORM_H

#include "far_node.h"
#include "transport_fixture.h"

#define CORE_CHANNELS(X, test, needs)                                                              \
	X(self, test, needs)                                                                       \
	X(shm, test, needs)                                                                        \
	X(segment, test, needs)
#ifdef NM_TEST_FABRIC
#define FABRIC_CHANNELS(X, test, needs) X(net, test, needs)
#else
#define FABRIC_CHANNELS(X, test, needs)
#endif
#define ALL(X, test, needs)                                                                        \
	CORE_CHANNELS(X, test, needs)                                                              \
	FABRIC_CHANNELS(X, test, needs)

#ifdef NM_TEST_FABRIC
#define COUNT(channel, test, needs) +1
_Static_assert(0 ALL(COUNT, , ) == NM_NR_CHANNELS - 1, "every channel has its line in ALL");
#endif

/* What a case needs of a channel. */
static inline bool any(const struct fixture *fixture)
{
	return fixture->kind;
}

/* Another side that can close or die. */
static inline bool pair(const struct fixture *fixture)
{
	return !loops_back(fixture);
}

/* Another side in this process, whose memory is read. */
static inline bool copies(const struct fixture *fixture)
{
	return fixture->copies && !far_is_given();
}

static inline bool quarantines(const struct fixture *fixture)
{
	return fixture->quarantines;
}

static inline bool has_places(const struct fixture *fixture)
{
	return fixture->has_places;
}

#define CASE(channel, test, needs)                                                                 \
	static void channel##_##test(void)                                                         \
	{                                                                                          \
		test(&channel##_fixture);                                                          \
	}                                                                                          \
	__attribute__((constructor)) static void register_##channel##_##test(void)                 \
	{                                                                                          \
		static struct nm_test_case test_case = {#channel "_" #test, channel##_##test, 60,  \
							NULL};                                     \
		if (needs(&channel##_fixture))                                                     \
			nm_test_register(&test_case);                                              \
	}
/* A case for all channels of which NEEDS is true. */
#define CONFORMS_IF(needs, test)                                                                   \
	static void test(const struct fixture *fixture);                                           \
	ALL(CASE, test, needs)                                                                     \
	static void test(const struct fixture *fixture)
#define CONFORMS(test) CONFORMS_IF(any, test)

/* Two connected nodes, or one that is its own peer. */
extern struct node *node_a, *node_b;

unsigned int progress_both(void);

/* A channel may need the sender's progress, too. */
#define UNTIL(condition)                                                                           \
	do {                                                                                       \
		for (unsigned int idle_ = 0; !(condition);) {                                      \
			idle_ = progress_both() ? 0 : idle_ + 1;                                   \
			if (idle_ > 64)                                                            \
				nm_test_sleep_ms(1);                                               \
		}                                                                                  \
	} while (0)

/* Start and end of most cases. A packet has gone each way, and none is counted. */
void start(const struct fixture *fixture);
void finish(const struct fixture *fixture);
/* Everything has arrived, and what it took is free again. */
void settle(void);
/* Send as soon as the channel takes it. */
void send_soon(struct node *from, uint64_t seed, uint32_t len);
void send_and_check(uint64_t seed, uint32_t len);

#endif
