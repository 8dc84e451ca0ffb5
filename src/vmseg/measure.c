/* SPDX-License-Identifier: Apache-2.0 */
#include "vmseg/measure.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"

/* One page: half a millisecond at a microsecond per load, and it fits into any L1 cache. */
#define WORDS 512
#define NR_SAMPLES 24
/* Each round has new samples, because the machine may have been busy during a whole round. */
#define NR_ROUNDS 6
#define NEVER UINT64_MAX

_Static_assert(WORDS * sizeof(uint64_t) <= NM_VMSEG_SCRATCH_SIZE, "fits the scratch");

static void keep_min(uint64_t *best, uint64_t ns)
{
	uint64_t ps = ns * 1000 / WORDS;

	if (!ps)
		ps = 1;
	if (ps < *best)
		*best = ps;
}

static void sample_loads(const volatile uint64_t *words, struct nm_mapping_cost *cost)
{
	uint64_t start = nm_clock_ns(), at = 0;

	for (unsigned int i = 0; i < WORDS; i++)
		(void)words[i];
	keep_min(&cost->load, nm_clock_ns() - start);
	/* All words are zero, but unknown to the processor: each index needs the last load. */
	start = nm_clock_ns();
	for (unsigned int i = 0; i < WORDS; i++)
		at = words[(at + i * 8) % WORDS];
	keep_min(&cost->chase, nm_clock_ns() - start + (at & 1));
}

static void sample_stores(volatile uint64_t *words, struct nm_mapping_cost *cost)
{
	uint64_t start = nm_clock_ns();

	for (unsigned int i = 0; i < WORDS; i++)
		words[i] = 0;
	/* Also waits until write-combining buffers are empty. */
	atomic_thread_fence(memory_order_seq_cst);
	keep_min(&cost->store, nm_clock_ns() - start);
}

static void take_worse(struct nm_mapping_cost *cost, const struct nm_mapping_cost *other)
{
	if (other->load > cost->load)
		cost->load = other->load;
	if (other->chase > cost->chase)
		cost->chase = other->chase;
}

enum nm_mapping_kind nm_mapping_measure(void *scratch, const void *seen,
					struct nm_reason *ret_reason)
{
	static const struct nm_mapping_cost unknown = {NEVER, NEVER, NEVER};
	uint64_t private_words[WORDS] = {0};
	enum nm_mapping_kind kind = NM_MAPPING_UNCACHED;
	struct nm_mapping_cost mapping, through, own;

	/* The first passes fill page tables and caches. The minimum ignores them. */
	for (unsigned int round = 0; round < NR_ROUNDS && kind != NM_MAPPING_WRITE_BACK; round++) {
		mapping = through = own = unknown;
		for (unsigned int i = 0; i < NR_SAMPLES; i++) {
			sample_stores(scratch, &mapping);
			sample_stores(private_words, &own);
			sample_loads(scratch, &mapping);
			sample_loads(private_words, &own);
			sample_loads(seen, &through);
		}
		take_worse(&mapping, &through);
		kind = nm_mapping_judge(&mapping, &own, ret_reason);
	}
	return kind;
}

static bool is_slow(uint64_t mapping, uint64_t private_memory)
{
	return mapping / NM_MAPPING_MAX_RATIO >= (private_memory ? private_memory : 1);
}

const char *nm_mapping_kind_name(enum nm_mapping_kind kind)
{
	static const char *const names[] = {"write-back", "write-combined", "uncached",
					    "slow to write"};

	return names[kind];
}

enum nm_mapping_kind nm_mapping_judge(const struct nm_mapping_cost *mapping,
				      const struct nm_mapping_cost *private_memory,
				      struct nm_reason *ret_reason)
{
	bool slow_loads = is_slow(mapping->load, private_memory->load) ||
			  is_slow(mapping->chase, private_memory->chase);
	bool slow_stores = is_slow(mapping->store, private_memory->store);
	enum nm_mapping_kind kind = slow_loads && slow_stores ? NM_MAPPING_UNCACHED :
				    slow_loads		      ? NM_MAPPING_WRITE_COMBINED :
				    slow_stores		      ? NM_MAPPING_SLOW_STORES :
								NM_MAPPING_WRITE_BACK;

	nm_reason_set(ret_reason,
		      "%s: a load %llu.%llu ns (private memory %llu.%llu), one after another "
		      "%llu.%llu (%llu.%llu), a store %llu.%llu (%llu.%llu)",
		      nm_mapping_kind_name(kind), (unsigned long long)mapping->load / 1000,
		      (unsigned long long)mapping->load % 1000 / 100,
		      (unsigned long long)private_memory->load / 1000,
		      (unsigned long long)private_memory->load % 1000 / 100,
		      (unsigned long long)mapping->chase / 1000,
		      (unsigned long long)mapping->chase % 1000 / 100,
		      (unsigned long long)private_memory->chase / 1000,
		      (unsigned long long)private_memory->chase % 1000 / 100,
		      (unsigned long long)mapping->store / 1000,
		      (unsigned long long)mapping->store % 1000 / 100,
		      (unsigned long long)private_memory->store / 1000,
		      (unsigned long long)private_memory->store % 1000 / 100);
	return kind;
}
