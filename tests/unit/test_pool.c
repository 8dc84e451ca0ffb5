/* SPDX-License-Identifier: Apache-2.0 */
/* The bulk pool: rotation, sharing, and counters that lie. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "shm/pool.h"

#define CHUNK 4096
#define NR 20

static uint8_t *memory;

static void pool_start(struct nm_pool *pool, uint32_t nr)
{
	memory = malloc((size_t)CHUNK * nr);
	NM_CHECK(memory != NULL);
	NM_CHECK_EQ(nm_pool_init(pool, memory, CHUNK, nr), 0);
}

static void pool_end(struct nm_pool *pool)
{
	nm_pool_fini(pool);
	free(memory);
}

NM_TEST(chunks_rotate_over_the_whole_pool)
{
	struct nm_pool_user user = {0};
	uint32_t index, offset, i;
	struct nm_pool pool;

	pool_start(&pool, NR);
	/* One at a time, given back at once: a last-in first-out list would use chunk 0 for ever. */
	for (i = 0; i < 5 * NR; i++) {
		NM_CHECK_EQ(nm_pool_take(&pool, &user, CHUNK, &index, &offset), 0);
		NM_CHECK_EQ(index, i % NR);
		NM_CHECK_EQ(offset, 0);
		NM_CHECK(nm_pool_bytes(&pool, index, offset) == memory + (size_t)index * CHUNK);
		NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, i + 1), 0);
	}
	pool_end(&pool);
}

NM_TEST(reserved_chunks_lie_side_by_side)
{
	struct nm_pool_user user = {0}, other = {0};
	uint32_t index, offset, first;
	struct nm_pool pool;

	pool_start(&pool, NR);
	/* Half of what is free stays, and packets that are sent meanwhile have their own order. */
	NM_CHECK_EQ(nm_pool_reserve(&pool, &user, NR, &first), NR / 2);
	NM_CHECK_EQ(first, 0);
	NM_CHECK_EQ(nm_pool_take(&pool, &user, 64, &index, &offset), 0);
	NM_CHECK_EQ(index, NR / 2);
	NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, 1), 0);
	NM_CHECK_EQ(user.nr_held, 0);
	for (uint32_t i = 0; i < NR / 2; i++)
		i % 2 ? nm_pool_unreserve(&pool, &user, i) : nm_pool_attach(&pool, &user, i);
	NM_CHECK_EQ(user.nr_held, NR / 4);
	NM_CHECK_EQ(pool.nr_free, NR - NR / 4);
	/* The oldest of the user is given back first. */
	NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, 2), 0);
	NM_CHECK_EQ(user.head, 2);
	nm_pool_reclaim_all(&pool, &user);
	NM_CHECK_EQ(pool.nr_free, NR);
	/* Where the free ones do not lie side by side, they come one by one. */
	for (uint32_t i = 0; i < NR / 2 - 1; i++)
		NM_CHECK_EQ(nm_pool_take(&pool, &other, 64, &index, &offset), 0);
	while (nm_pool_take(&pool, &user, 64, &index, &offset) == 0)
		NM_CHECK(user.nr_held < NR);
	NM_CHECK_EQ(nm_pool_reserve(&pool, &user, 1, &first), -EAGAIN);
	pool_end(&pool);
}

NM_TEST(small_payloads_move_through_their_chunk)
{
	struct nm_pool_user user = {0};
	uint32_t index, offset, lap;
	struct nm_pool pool;
	uint64_t freed = 0;

	pool_start(&pool, 1);
	for (lap = 0; lap < 12; lap++) {
		NM_CHECK_EQ(nm_pool_take(&pool, &user, 1000, &index, &offset), 0);
		NM_CHECK_EQ(offset, lap % 4 * 1024);
		NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, ++freed), 0);
	}
	/* Never past the end. */
	NM_CHECK_EQ(nm_pool_take(&pool, &user, CHUNK, &index, &offset), 0);
	NM_CHECK_EQ(offset, 0);
	pool_end(&pool);
}

static uint32_t take_all(struct nm_pool *pool, struct nm_pool_user *user)
{
	uint32_t index, offset, nr = 0;

	while (nm_pool_take(pool, user, 100, &index, &offset) == 0)
		nr++;
	return nr;
}

NM_TEST(one_user_cannot_take_everything)
{
	struct nm_pool_user first = {0}, second = {0}, third = {0};
	struct nm_pool pool;

	pool_start(&pool, 128);
	NM_CHECK(take_all(&pool, &first) >= 128 * 3 / 4);
	NM_CHECK(pool.nr_free >= 20);
	NM_CHECK(take_all(&pool, &second) >= 16);
	NM_CHECK(pool.nr_free >= 1);
	NM_CHECK(take_all(&pool, &third) >= 1);
	/* What one gives back the others may have. */
	nm_pool_reclaim_all(&pool, &first);
	NM_CHECK_EQ(first.nr_held, 0);
	NM_CHECK(take_all(&pool, &third) > 40);
	nm_pool_reclaim_all(&pool, &second);
	nm_pool_reclaim_all(&pool, &third);
	NM_CHECK_EQ(pool.nr_free, 128);
	pool_end(&pool);
}

/* What a peer that stopped reading has reserved starves the others no more than what it holds. */
NM_TEST(reserved_chunks_count_for_the_share)
{
	struct nm_pool_user stuck = {0}, other = {0};
	uint32_t index, offset;
	struct nm_pool pool;

	pool_start(&pool, NR);
	while (nm_pool_reserve(&pool, &stuck, NR, &index) > 0)
		;
	NM_CHECK_EQ(nm_pool_take(&pool, &other, 1, &index, &offset), 0);
	NM_CHECK_EQ(stuck.nr_reserved + 1 + pool.nr_free, NR);
	pool_end(&pool);
}

NM_TEST(tiny_pool_still_serves)
{
	struct nm_pool_user user = {0};
	uint32_t index, offset;
	struct nm_pool pool;

	pool_start(&pool, 1);
	NM_CHECK_EQ(nm_pool_take(&pool, &user, 1, &index, &offset), 0);
	NM_CHECK_EQ(nm_pool_take(&pool, &user, 1, &index, &offset), -EAGAIN);
	NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, 1), 0);
	NM_CHECK_EQ(nm_pool_take(&pool, &user, 1, &index, &offset), 0);
	pool_end(&pool);
}

NM_TEST(lying_counters_are_found_out)
{
	struct nm_pool_user user = {0};
	uint32_t index, offset, i;
	struct nm_pool pool;

	pool_start(&pool, NR);
	for (i = 0; i < 5; i++)
		NM_CHECK_EQ(nm_pool_take(&pool, &user, 1, &index, &offset), 0);
	NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, 6), -EBADMSG);
	NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, UINT64_MAX), -EBADMSG);
	NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, 3), 0);
	NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, 2), -EBADMSG);
	NM_CHECK_EQ(nm_pool_reclaim(&pool, &user, 3), 0);
	NM_CHECK_EQ(user.nr_held, 2);
	NM_CHECK_EQ(pool.nr_free, NR - 2);
	nm_pool_reclaim_all(&pool, &user);
	NM_CHECK_EQ(pool.nr_free, NR);
	pool_end(&pool);
}

/* Against a model: no chunk is ever held twice, none is lost, each user's return in order. */
NM_TEST(random_use_keeps_every_chunk_accounted_for)
{
	struct nm_pool_user users[3] = {0};
	uint64_t random = 11, freed[3] = {0}, part;
	uint32_t index, offset, held, len;
	struct nm_pool pool;
	bool taken[NR] = {false};
	uint32_t order[3][NR];
	unsigned int u, i, n;

	pool_start(&pool, NR);
	for (i = 0; i < 100000; i++) {
		u = (unsigned int)(nm_test_random(&random) % 3);
		len = (uint32_t)(nm_test_random(&random) % (CHUNK + 1));
		held = users[u].nr_held;
		if (nm_test_random(&random) & 1) {
			if (nm_pool_take(&pool, &users[u], len, &index, &offset))
				continue;
			NM_CHECK(index < NR && !taken[index] && offset + len <= CHUNK);
			taken[index] = true;
			order[u][held] = index;
		} else {
			part = held ? nm_test_random(&random) % (held + 1) : 0;
			freed[u] += part;
			NM_CHECK_EQ(nm_pool_reclaim(&pool, &users[u], freed[u]), 0);
			for (n = 0; n < part; n++)
				taken[order[u][n]] = false;
			memmove(order[u], order[u] + part, (held - part) * sizeof(order[u][0]));
		}
		NM_CHECK_EQ(pool.nr_free + users[0].nr_held + users[1].nr_held + users[2].nr_held,
			    NR);
	}
	pool_end(&pool);
}
