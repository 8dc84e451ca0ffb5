/* SPDX-License-Identifier: Apache-2.0 */
/* The number of the own part, for a machine to which only its devices say that it has one. */
#include <stdatomic.h>
#include <stdio.h>
#include <sys/random.h>

#include "tools/segment_tool.h"
#include "vmseg/check.h"
#include "vmseg/map.h"

struct finding {
	struct nm_vmseg_map own, all;
	struct nm_vmseg_host host;
};

static const struct nm_vmseg_part *seen_part(const struct finding *finding, uint32_t index)
{
	return (const void *)((const uint8_t *)finding->all.base + finding->host.part_off +
			      index * finding->host.part_size);
}

/*
 * Write a random word into the own part and look for it in all parts. A neighbour may copy it: then
 * two parts show it, and neither is believed.
 */
static int find_part(const struct finding *finding, uint32_t *ret_part)
{
	struct nm_vmseg_part *own = finding->own.base;
	uint32_t found = 0, nr_found = 0;
	uint64_t word;

	if (getrandom(&word, sizeof(word), 0) != (ssize_t)sizeof(word))
		return segment_failed(NULL, "no random numbers");
	atomic_store_explicit(&own->echo, word, memory_order_relaxed);
	/* Two mappings are two addresses, and a load may pass a store. */
	atomic_thread_fence(memory_order_seq_cst);
	for (uint32_t i = 0; i < finding->host.nr_parts; i++) {
		if (atomic_load_explicit(&seen_part(finding, i)->echo, memory_order_relaxed) !=
		    word)
			continue;
		found = i;
		nr_found++;
	}
	if (nr_found != 1)
		return segment_failed(
			nr_found ? "another machine copies this machine's bytes" :
				   "the two devices belong to different segments",
			"data written to the own part appears in %u parts of the whole", nr_found);
	*ret_part = found;
	return 0;
}

static void print_finding(const struct finding *finding, uint32_t part)
{
	const struct nm_vmseg_host *host = &finding->host;
	char token[2 * NM_VMSEG_TOKEN_LEN + 1];

	segment_format_token(host->token, token);
	printf("segment.device=ivshmem\nsegment.token=%s\nsegment.nr_parts=%u\nsegment.part=%u\n"
	       "segment.part_size=%llu\nsegment.size=%llu\n",
	       token, host->nr_parts, part, (unsigned long long)host->part_size,
	       (unsigned long long)finding->all.file_len);
}

int segment_find(const char *own_path, const char *all_path)
{
	struct finding finding = {0};
	uint32_t part = 0, again = 0;
	struct nm_reason why = {""};
	uint64_t lead;
	int err;

	err = nm_vmseg_map(all_path, false, 0, 0, &finding.all, &why);
	if (!err)
		err = nm_vmseg_find_host(&finding.all, false, &finding.host, &lead, &why);
	if (!err)
		err = nm_vmseg_map(own_path, true, 0, 0, &finding.own, &why);
	if (err)
		err = segment_failed(NULL, "%s", why.text);
	else if (finding.own.file_len != finding.host.part_size)
		err = segment_failed(NULL, "%s has %llu bytes, but a part has %llu", own_path,
				     (unsigned long long)finding.own.file_len,
				     (unsigned long long)finding.host.part_size);
	if (!err)
		err = find_part(&finding, &part) || find_part(&finding, &again);
	if (!err && part != again)
		err = segment_failed(NULL, "the own part changes its place");
	if (!err)
		print_finding(&finding, part);
	nm_vmseg_unmap(&finding.own);
	nm_vmseg_unmap(&finding.all);
	return err || fflush(stdout) ? 1 : 0;
}
