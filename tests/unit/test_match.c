/* SPDX-License-Identifier: Apache-2.0 */
/* Matching against a model that only walks lists: the same choice every time. */
#include "engine/match.h"

#include <stdlib.h>
#include <string.h>

#include "engine/peer.h"
#include "harness.h"

enum { SOURCES = 4, LIVE = 600 };

static void peers_init(struct nm_peer *peers)
{
	memset(peers, 0, SOURCES * sizeof(*peers));
	for (int i = 0; i < SOURCES; i++) {
		nm_list_init(&peers[i].unexpected[0]);
		nm_list_init(&peers[i].unexpected[1]);
	}
}

static bool matches(const struct nm_posted *p, const struct nm_peer *source, uint64_t tag)
{
	return (!p->source || p->source == source) && ((p->tag ^ tag) & ~p->ignore) == 0;
}

/* Masks of real MPIs, wildcards, and more of them than there are classes. */
static uint64_t random_ignore(uint64_t *random)
{
	static const uint64_t masks[] = {
		0,	     0x00c0000000000000,
		0x100000000, 0x6000000000000000,
		0x17fffffff, UINT64_MAX,
		3,	     5,
		6,	     9,
		10,	     12,
	};

	return masks[nm_test_random(random) % (sizeof(masks) / sizeof(masks[0]))];
}

static uint64_t random_tag(uint64_t *random)
{
	uint64_t tag = nm_test_random(random) % 12;

	if (nm_test_random(random) % 4 == 0)
		tag |= 0x00c0000000000000;
	return tag;
}

static struct nm_peer *random_source(uint64_t *random, struct nm_peer *peers)
{
	uint64_t i = nm_test_random(random) % (SOURCES + 1);

	return i == SOURCES ? NULL : &peers[i];
}

static void posted_agrees_with_model(uint64_t seed)
{
	static struct nm_posted posted[LIVE];
	struct nm_posted *model[LIVE]; /* by age */
	struct nm_peer peers[SOURCES];
	struct nm_match match;
	uint64_t random = seed;
	int nr = 0, unused[LIVE], nr_unused = LIVE;

	peers_init(peers);
	NM_CHECK_EQ(nm_match_init(&match, 1), 0);
	for (int i = 0; i < LIVE; i++)
		unused[i] = i;
	for (int round = 0; round < 20000; round++) {
		if (nr_unused > 0 && nm_test_random(&random) % 100 < 55) {
			struct nm_posted *p = &posted[unused[--nr_unused]];

			p->source = random_source(&random, peers);
			p->tag = random_tag(&random);
			p->ignore = random_ignore(&random);
			nm_match_post(&match, p);
			model[nr++] = p;
		} else {
			struct nm_peer *source = &peers[nm_test_random(&random) % SOURCES];
			uint64_t tag = random_tag(&random);
			struct nm_posted *p = nm_match_find_posted(&match, source, tag);
			int i = 0;

			while (i < nr && !matches(model[i], source, tag))
				i++;
			NM_CHECK(p == (i < nr ? model[i] : NULL));
			if (!p)
				continue;
			nm_match_unpost(&match, p);
			unused[nr_unused++] = (int)(p - posted);
			memmove(&model[i], &model[i + 1], (size_t)(--nr - i) * sizeof(model[0]));
		}
	}
	NM_CHECK_EQ(match.nr_posted, nr);
	nm_match_fini(&match);
}

NM_TEST(oldest_posted_receive_wins)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		posted_agrees_with_model(seed);
}

static void unexpected_agrees_with_model(uint64_t seed)
{
	struct nm_unexpected *model[LIVE]; /* by age */
	struct nm_peer peers[SOURCES];
	struct nm_match match;
	uint64_t random = seed;
	int nr = 0;

	peers_init(peers);
	NM_CHECK_EQ(nm_match_init(&match, 0), 0);
	for (int round = 0; round < 20000; round++) {
		if (nr < LIVE && nm_test_random(&random) % 100 < 55) {
			struct nm_unexpected *m = calloc(1, sizeof(*m));

			m->source = &peers[nm_test_random(&random) % SOURCES];
			m->tag = random_tag(&random);
			nm_match_store(&match, m);
			model[nr++] = m;
		} else {
			struct nm_posted want = {
				.source = random_source(&random, peers),
				.tag = random_tag(&random),
				.ignore = random_ignore(&random),
			};
			struct nm_unexpected *m = nm_match_find_unexpected(&match, want.source,
									   want.tag, want.ignore);
			int i = 0;

			while (i < nr && !matches(&want, model[i]->source, model[i]->tag))
				i++;
			NM_CHECK(m == (i < nr ? model[i] : NULL));
			if (!m)
				continue;
			nm_match_unstore(&match, m);
			free(m);
			memmove(&model[i], &model[i + 1], (size_t)(--nr - i) * sizeof(model[0]));
		}
	}
	NM_CHECK_EQ(match.nr_unexpected, nr);
	while (nr > 0)
		free(model[--nr]);
	nm_match_fini(&match);
}

NM_TEST(oldest_unexpected_message_wins)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		unexpected_agrees_with_model(seed);
}

/* Thousands of posted receives and messages: the tables grow and nothing is lost. */
NM_TEST(tables_grow)
{
	enum { COUNT = 5000 };
	struct nm_peer peers[SOURCES];
	struct nm_posted *posted = calloc(COUNT, sizeof(*posted));
	struct nm_unexpected *messages = calloc(COUNT, sizeof(*messages));
	struct nm_match match;

	peers_init(peers);
	NM_CHECK_EQ(nm_match_init(&match, 1), 0);
	for (uint64_t i = 0; i < COUNT; i++) {
		posted[i].source = &peers[i % SOURCES];
		posted[i].tag = i;
		nm_match_post(&match, &posted[i]);
		messages[i].source = &peers[i % SOURCES];
		messages[i].tag = i;
		nm_match_store(&match, &messages[i]);
	}
	/* From the youngest on: the oldest would be found without a table. */
	for (uint64_t i = COUNT; i-- > 0;) {
		NM_CHECK(nm_match_find_posted(&match, &peers[i % SOURCES], i) == &posted[i]);
		NM_CHECK(nm_match_find_unexpected(&match, &peers[i % SOURCES], i, 0) ==
			 &messages[i]);
		nm_match_unpost(&match, &posted[i]);
		nm_match_unstore(&match, &messages[i]);
	}
	NM_CHECK(match.posted_mask + 1 >= COUNT);
	NM_CHECK_EQ(match.nr_posted + match.nr_unexpected, 0);
	nm_match_fini(&match);
	free(posted);
	free(messages);
}
