/* SPDX-License-Identifier: Apache-2.0 */
/* What memory a mapping is, told from invented measurements; and once from real ones. */
#include <string.h>
#include <sys/mman.h>

#include "harness.h"
#include "vmseg/measure.h"

/* Picoseconds per word: a load, a load that waits for another, a store. */
#define COST(load_, chase_, store_)                                                                \
	&(struct nm_mapping_cost)                                                                  \
	{                                                                                          \
		load_, chase_, store_                                                              \
	}

NM_TEST(cached_memory_is_taken)
{
	struct nm_reason why;

	/* alike; twice as slow; on the other NUMA node; faster than private memory by chance */
	NM_CHECK_EQ(nm_mapping_judge(COST(300, 1500, 300), COST(300, 1500, 300), &why),
		    NM_MAPPING_WRITE_BACK);
	NM_CHECK_HAS(why.text, "write-back");
	NM_CHECK_HAS(why.text, "a load 0.3 ns (private memory 0.3)");
	NM_CHECK_EQ(nm_mapping_judge(COST(600, 3000, 600), COST(300, 1500, 300), &why),
		    NM_MAPPING_WRITE_BACK);
	NM_CHECK_EQ(nm_mapping_judge(COST(2000, 9000, 2000), COST(300, 1500, 300), &why),
		    NM_MAPPING_WRITE_BACK);
	NM_CHECK_EQ(nm_mapping_judge(COST(200, 900, 100), COST(300, 1500, 300), &why),
		    NM_MAPPING_WRITE_BACK);
	/* an emulated processor: everything is slow */
	NM_CHECK_EQ(nm_mapping_judge(COST(9000, 15000, 12000), COST(8000, 14000, 11000), &why),
		    NM_MAPPING_WRITE_BACK);
}

NM_TEST(memory_past_the_caches_is_told)
{
	struct nm_reason why;

	NM_CHECK_EQ(nm_mapping_judge(COST(180000, 190000, 90000), COST(300, 1500, 300), &why),
		    NM_MAPPING_UNCACHED);
	NM_CHECK_HAS(why.text, "uncached: a load 180.0 ns");
	NM_CHECK_EQ(nm_mapping_judge(COST(180000, 190000, 700), COST(300, 1500, 300), &why),
		    NM_MAPPING_WRITE_COMBINED);
	NM_CHECK_EQ(nm_mapping_judge(COST(300, 1500, 90000), COST(300, 1500, 300), &why),
		    NM_MAPPING_SLOW_STORES);
	/* loads overlap so well that only those that wait for each other show it */
	NM_CHECK_EQ(nm_mapping_judge(COST(2000, 190000, 90000), COST(300, 1500, 300), &why),
		    NM_MAPPING_UNCACHED);
	/* the limit itself, and a clock that saw nothing pass */
	NM_CHECK_EQ(nm_mapping_judge(COST(2400, 1500, 300), COST(300, 1500, 300), &why),
		    NM_MAPPING_WRITE_COMBINED);
	NM_CHECK_EQ(nm_mapping_judge(COST(2399, 1500, 300), COST(300, 1500, 300), &why),
		    NM_MAPPING_WRITE_BACK);
	NM_CHECK_EQ(nm_mapping_judge(COST(1, 1, 1), COST(0, 0, 0), &why), NM_MAPPING_WRITE_BACK);
	NM_CHECK_EQ(nm_mapping_judge(COST(8, 8, 8), COST(0, 0, 0), &why), NM_MAPPING_UNCACHED);
}

NM_TEST(shared_memory_of_this_machine_is_write_back)
{
	uint8_t *memory = mmap(NULL, NM_VMSEG_SCRATCH_SIZE, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct nm_reason why;

	NM_CHECK(memory != MAP_FAILED);
	NM_CHECK_EQ(nm_mapping_measure(memory, memory, &why), NM_MAPPING_WRITE_BACK);
	NM_CHECK_HAS(why.text, "write-back: a load ");
	munmap(memory, NM_VMSEG_SCRATCH_SIZE);
}
