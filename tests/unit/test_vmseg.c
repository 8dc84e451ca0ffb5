/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching to a segment: what is taken, what is refused, and in which words. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "vmseg_fixture.h"

#define PART (4 * SEGMENT_MIB)

static int attach(const struct nm_vmseg_config *config, struct nm_reason *why)
{
	struct nm_vmseg *segment = NULL;
	int err = nm_vmseg_attach(config, &segment, why);

	if (!err)
		nm_vmseg_detach(segment);
	return err;
}

NM_TEST(two_machines_attach)
{
	const struct nm_vmseg_facts *facts;
	struct nm_vmseg *a, *b;

	segment_file(2, PART);
	a = segment_attach(0);
	b = segment_attach(1);
	facts = nm_vmseg_facts(b);
	NM_CHECK_EQ(facts->nr_parts, 2);
	NM_CHECK_EQ(facts->part, 1);
	NM_CHECK_EQ(facts->part_size, PART);
	NM_CHECK(facts->space > PART - PART / 8);
	NM_CHECK(!facts->enforced);
	NM_CHECK_HAS(facts->integrity_why.text, "one region for all");
	NM_CHECK_HAS(facts->mapping.text, "write-back");
	NM_CHECK(!memcmp(facts->token, nm_vmseg_facts(a)->token, sizeof(facts->token)));
	NM_CHECK(!nm_vmseg_is_lost(a));
	nm_vmseg_detach(a);
	nm_vmseg_detach(b);
	nm_vmseg_detach(NULL);
}

/* What /sys/devices/system/node/nodeN/distance says on some machines, as seen from `mine`. */
static const struct distance_case {
	const char *machine;
	int32_t mine, its;
	uint8_t distances[8];
	bool is_far;
	const char *words;
} distance_cases[] = {
	{"two sockets", 0, 1, {10, 32}, true, "NUMA node 1, own node 0: distance 32, own 10"},
	{"two sockets", 1, 0, {32, 10}, true, "NUMA node 0, own node 1: distance 32, own 10"},
	{"two sockets", 1, 1, {32, 10}, false, "NUMA node 1, own node 1: distance 10, own 10"},
	{"four nodes in a socket", 2, 5, {12, 12, 10, 12, 32, 32, 32, 32}, true, "distance 32"},
	{"four nodes in a socket", 2, 3, {12, 12, 10, 12, 32, 32, 32, 32}, true, "distance 12"},
	{"one node", 0, 0, {10}, false, "distance 10, own 10"},
	{"a virtual machine whose maker wrote nothing", 0, 1, {10, 10}, false, "distance 10"},
	{"a node that was not there at boot", 0, 3, {10, 21}, false, ""},
	{"nobody told mine", -1, 0, {10, 21}, false, ""},
	{"nobody told its", 0, -1, {10, 21}, false, ""},
	{"nobody told the distances", 0, 1, {0}, false, ""},
	{"a number that is no node's", 0, NM_VMSEG_MAX_NUMA, {10, 21}, false, ""},
	{"a hostile number", 0, INT32_MIN, {10, 21}, false, ""},
};

NM_TEST(distance_between_machines)
{
	const struct distance_case *c;

	for (c = distance_cases; c < distance_cases + NM_ARRAY_SIZE(distance_cases); c++) {
		struct nm_vmseg_config config = segment_config(0), other = segment_config(1);
		struct nm_vmseg *a = NULL, *b = NULL;
		struct nm_vmseg_claim *claim;
		struct nm_reason why = {""};
		bool is_far;

		segment_file(2, PART);
		unlink(config.lock);
		unlink(other.lock);
		config.vcpu_numa = c->mine;
		other.vcpu_numa = c->its;
		memcpy(config.distances, c->distances, sizeof(c->distances));
		NM_CHECK_EQ(nm_vmseg_attach(&config, &a, &why), 0);
		NM_CHECK_EQ(nm_vmseg_attach(&other, &b, &why), 0);
		/* Nobody is there yet. */
		NM_CHECK(!nm_vmseg_is_far(a, 1, &why));
		NM_CHECK_STR(why.text, "");
		claim = segment_open(b, 'b', NULL);
		is_far = nm_vmseg_is_far(a, 1, &why);
		if (is_far != c->is_far)
			nm_test_fail(__FILE__, __LINE__, "%s: far %d", c->machine, is_far);
		NM_CHECK_HAS(why.text, c->words);
		NM_CHECK_EQ(!why.text[0], !c->words[0]);
		NM_CHECK(!nm_vmseg_is_far(a, 2, &why));
		nm_vmseg_release(claim);
		nm_vmseg_detach(b);
		nm_vmseg_detach(a);
	}
}

NM_TEST(what_is_no_segment_of_ours_is_refused)
{
	struct nm_vmseg_config config;
	struct nm_reason why;
	uint32_t word;

	segment_file(2, PART);
	config = segment_config(0);
	config.token[3] ^= 1;
	NM_CHECK_EQ(attach(&config, &why), -EPERM);
	NM_CHECK_HAS(why.text, "another segment");
	config = segment_config(2);
	NM_CHECK_EQ(attach(&config, &why), -EBADMSG);
	NM_CHECK_HAS(why.text, "this machine's part is 2, but the segment has only 2");
	config = segment_config(0);
	word = 7;
	segment_poke(offsetof(struct nm_vmseg_host, version), &word, sizeof(word));
	NM_CHECK_EQ(attach(&config, &why), -EPROTONOSUPPORT);
	NM_CHECK_HAS(why.text, "layout version 7, not 1");
	word = 0;
	segment_poke(0, &word, sizeof(word));
	NM_CHECK_EQ(attach(&config, &why), -EBADMSG);
	NM_CHECK_HAS(why.text, "nearmetal-segment create");
	NM_CHECK_EQ(truncate(config.all, 100), 0);
	NM_CHECK_EQ(attach(&config, &why), -EBADMSG);
	NM_CHECK_EQ(unlink(config.all), 0);
	NM_CHECK_EQ(attach(&config, &why), -ENOENT);
	NM_CHECK_EQ(mkdir(config.all, 0700), 0);
	NM_CHECK_EQ(attach(&config, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "neither a file nor a DAX device");
}

NM_TEST(a_file_that_is_too_short_is_refused)
{
	struct nm_vmseg_config config;
	struct nm_reason why;

	segment_file(2, PART);
	config = segment_config(0);
	NM_CHECK_EQ(truncate(config.all, (off_t)(2 * PART)), 0);
	NM_CHECK_EQ(attach(&config, &why), -EBADMSG);
	NM_CHECK_HAS(why.text, "the file was truncated, or the device is smaller");
}

NM_TEST(write_combined_resources_are_refused_by_name)
{
	struct nm_vmseg_config config;
	struct nm_reason why;
	char real[512];

	segment_file(2, PART);
	config = segment_config(0);
	snprintf(real, sizeof(real), "%s/resource2_wc", nm_test_dir());
	NM_CHECK_EQ(rename(config.all, real), 0);
	NM_CHECK_EQ(symlink(real, config.all), 0);
	NM_CHECK_EQ(attach(&config, &why), -ENOTSUP);
	NM_CHECK_HAS(why.text, "virtio-pmem or nvdimm (DAX)");
}

NM_TEST(an_own_part_from_elsewhere_is_refused)
{
	struct nm_vmseg_config config;
	struct nm_reason why;
	FILE *file;

	segment_file(2, PART);
	config = segment_config(1);
	snprintf(config.own, sizeof(config.own), "%s/own", nm_test_dir());
	file = fopen(config.own, "we");
	NM_CHECK(file != NULL);
	fclose(file);
	NM_CHECK_EQ(truncate(config.own, (off_t)PART), 0);
	NM_CHECK_EQ(attach(&config, &why), -EBADMSG);
	NM_CHECK_HAS(why.text, "does not appear as part 1");
	NM_CHECK_EQ(truncate(config.own, (off_t)(2 * PART)), 0);
	NM_CHECK_EQ(attach(&config, &why), -EBADMSG);
	NM_CHECK_HAS(why.text, "but a part has");
}

NM_TEST(a_lock_file_that_is_something_else_is_left_alone)
{
	struct nm_vmseg_config config;
	struct nm_reason why;
	char text[64] = "";
	FILE *file;

	segment_file(1, PART);
	config = segment_config(0);
	file = fopen(config.lock, "we");
	NM_CHECK(file != NULL);
	fputs("keys of somebody\n", file);
	fclose(file);
	NM_CHECK_EQ(attach(&config, &why), -EBADMSG);
	NM_CHECK_HAS(why.text, "it is another kind of file");
	file = fopen(config.lock, "re");
	NM_CHECK(file && fgets(text, sizeof(text), file));
	fclose(file);
	NM_CHECK_STR(text, "keys of somebody\n");
	NM_CHECK_EQ(unlink(config.lock), 0);
	NM_CHECK_EQ(symlink("/dev/null", config.lock), 0);
	NM_CHECK_EQ(attach(&config, &why), -ELOOP);
}

NM_TEST(a_file_that_shrinks_under_us_is_noticed)
{
	struct nm_vmseg *segment;
	struct nm_vmseg_peer peer;
	struct nm_vmseg_claim *claim;

	segment_file(2, PART);
	segment = segment_attach(0);
	claim = segment_open(segment, 'a', NULL);
	NM_CHECK_EQ(truncate(segment_config(0).all, 4096), 0);
	NM_CHECK_EQ(segment_find(segment, (const uint8_t *)"nobody", &peer), -ENOENT);
	nm_vmseg_beat(claim);
	NM_CHECK(nm_vmseg_is_lost(segment));
	nm_vmseg_release(claim);
	nm_vmseg_detach(segment);
}

NM_TEST(eight_endpoints_fit_into_64_mib)
{
	struct nm_geometry geometry;
	struct nm_vmseg *segment;
	struct nm_reason why;

	segment_file(1, 64 * SEGMENT_MIB);
	segment = segment_attach(0);
	NM_CHECK_EQ(nm_vmseg_geometry(segment, 8, 64, 256, 32768, 4 * SEGMENT_MIB, &geometry, &why),
		    0);
	NM_CHECK_EQ(geometry.nr_lanes, 64);
	NM_CHECK_EQ((uint64_t)geometry.nr_chunks * geometry.chunk_size, 4 * SEGMENT_MIB);
	NM_CHECK(geometry.size * 8 <= nm_vmseg_facts(segment)->space);
	/* more of them: first the pool shrinks, then there are fewer lanes */
	NM_CHECK_EQ(
		nm_vmseg_geometry(segment, 24, 64, 256, 32768, 4 * SEGMENT_MIB, &geometry, &why),
		0);
	NM_CHECK_EQ(geometry.nr_lanes, 64);
	NM_CHECK(geometry.nr_chunks < 64);
	NM_CHECK(geometry.size * 24 <= nm_vmseg_facts(segment)->space);
	NM_CHECK_EQ(
		nm_vmseg_geometry(segment, 64, 64, 256, 32768, 4 * SEGMENT_MIB, &geometry, &why),
		0);
	NM_CHECK(geometry.nr_lanes < 64);
	NM_CHECK(geometry.size * 64 <= nm_vmseg_facts(segment)->space);
	NM_CHECK_EQ(
		nm_vmseg_geometry(segment, 256, 4096, 4096, 65536, SEGMENT_MIB, &geometry, &why),
		-ENOSPC);
	NM_CHECK_HAS(why.text, "no window fits");
	nm_vmseg_detach(segment);
}

NM_TEST(leases)
{
	struct nm_vmseg_lease lease = {0};

	NM_CHECK(nm_vmseg_lease_holds(&lease, 5, 1000, 100));
	NM_CHECK(nm_vmseg_lease_holds(&lease, 5, 1099, 100));
	NM_CHECK(!nm_vmseg_lease_holds(&lease, 5, 1100, 100));
	NM_CHECK(nm_vmseg_lease_holds(&lease, 6, 2000, 100));
	/* any other number will do: a counter may wrap */
	NM_CHECK(nm_vmseg_lease_holds(&lease, 1, 2100, 100));
}
