/* SPDX-License-Identifier: Apache-2.0 */
/* Attach: map, check, test and measure. */
#include "vmseg/attach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/fault.h"
#include "base/log.h"
#include "vmseg/measure.h"
#include "vmseg/private.h"

/* For everything under the lock file, also the measurement on a busy machine. */
#define ATTACH_WAIT_MS 10000

bool nm_vmseg_is_inherited(const struct nm_vmseg *segment)
{
	return getpid() != segment->creator;
}

bool nm_vmseg_is_lost(const struct nm_vmseg *segment)
{
	/* Partner: the handler of SIGBUS. */
	return atomic_load_explicit(&segment->all_guard.lost, memory_order_acquire) ||
	       atomic_load_explicit(&segment->own_guard.lost, memory_order_acquire);
}

const struct nm_vmseg_facts *nm_vmseg_facts(const struct nm_vmseg *segment)
{
	return &segment->facts;
}

static int guard(struct nm_vmseg_map *map, bool writable, struct nm_sigbus_guard *guard,
		 bool *ret_guarded, struct nm_reason *ret_reason)
{
	int err;

	guard->start = (uintptr_t)map->base;
	guard->len = map->len;
	guard->writable = writable;
	err = nm_sigbus_guard(guard);
	if (err)
		nm_reason_set(ret_reason, "cannot guard the segment against its truncation: %s",
			      strerror(-err));
	else
		*ret_guarded = true;
	return err;
}

static int map_all(struct nm_vmseg *segment, struct nm_reason *ret_reason)
{
	const struct nm_vmseg_config *config = &segment->config;
	uint64_t offset;
	int err;

	err = nm_vmseg_map(config->all, false, 0, 0, &segment->all, ret_reason);
	if (!err)
		err = guard(&segment->all, false, &segment->all_guard, &segment->all_guarded,
			    ret_reason);
	if (!err)
		err = nm_vmseg_find_host(&segment->all, false, &segment->host, &offset, ret_reason);
	if (err)
		return err;
	if (memcmp(segment->host.token, config->token, sizeof(config->token)) != 0) {
		nm_reason_set(ret_reason,
			      "%s is another segment: its token is not the token that this machine "
			      "got",
			      config->all);
		return -EPERM;
	}
	if (config->part >= segment->host.nr_parts) {
		nm_reason_set(ret_reason, "this machine's part is %u, but the segment has only %u",
			      config->part, segment->host.nr_parts);
		return -EBADMSG;
	}
	return 0;
}

static int map_own(struct nm_vmseg *segment, struct nm_reason *ret_reason)
{
	const struct nm_vmseg_config *config = &segment->config;
	const struct nm_vmseg_host *host = &segment->host;
	const char *path = config->own[0] ? config->own : config->all;
	uint64_t offset = config->own[0] ? 0 : host->part_off + config->part * host->part_size;
	int err;

	err = nm_vmseg_map(path, true, offset, host->part_size, &segment->own, ret_reason);
	if (!err && config->own[0] && segment->own.file_len != host->part_size) {
		nm_reason_set(ret_reason, "%s has %llu bytes, but a part has %llu", path,
			      (unsigned long long)segment->own.file_len,
			      (unsigned long long)host->part_size);
		err = -EBADMSG;
	}
	return err ? err :
		     guard(&segment->own, true, &segment->own_guard, &segment->own_guarded,
			   ret_reason);
}

int nm_vmseg_random(uint64_t *ret_word, struct nm_reason *ret_reason)
{
	uint64_t word = 0;
	ssize_t len = getrandom(&word, sizeof(word), 0);
	int err;

	if (len == (ssize_t)sizeof(word)) {
		*ret_word = word ? word : 1;
		return 0;
	}
	/* The manual promises all eight bytes or none; a system call filter may do otherwise. */
	err = len < 0 && errno ? -errno : -EIO;
	nm_reason_set(ret_reason, "cannot get random numbers: %s", strerror(-err));
	return err;
}

/* Check that data written to the own part appears in it for all. Under the lock file. */
static int check_echo(struct nm_vmseg *segment, struct nm_reason *ret_reason)
{
	const struct nm_vmseg_part *seen =
		(const void *)nm_vmseg_seen_part(segment, segment->config.part);
	struct nm_vmseg_part *part = nm_vmseg_own_part(segment);

	for (int i = 0; i < 2; i++) {
		uint64_t word = 0;
		int err = nm_vmseg_random(&word, ret_reason);

		if (err)
			return err;
		/* The fence: two mappings are two addresses, and a load may pass a store. */
		atomic_store_explicit(&part->echo, word, memory_order_relaxed);
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load_explicit(&seen->echo, memory_order_relaxed) == word)
			continue;
		nm_reason_set(ret_reason,
			      "data written to %s does not appear as part %u of %s: the devices "
			      "belong to different segments, or the part is another one",
			      segment->config.own[0] ? segment->config.own : segment->config.all,
			      segment->config.part, segment->config.all);
		return -EBADMSG;
	}
	return 0;
}

/*
 * Find what keeps neighbours out of the own part. They have the same mapping of the whole, so if a
 * write through it fails here, theirs fail too. Under the lock file.
 */
static enum nm_vmseg_promise try_integrity(struct nm_vmseg *segment, struct nm_reason *ret_reason)
{
	uint64_t offset = segment->host.part_off + segment->config.part * segment->host.part_size;
	struct nm_vmseg_part *part = nm_vmseg_own_part(segment), *through;
	const uint64_t before = UINT64_C(0x5a5a5a5a5a5a5a5a);
	struct nm_vmseg_map map = {0};
	bool landed;

	if (!segment->config.own[0]) {
		nm_reason_set(ret_reason, "one region for all: every machine can write all of it");
		return NM_VMSEG_CONVENTION;
	}
	if (nm_vmseg_map(segment->config.all, true, offset, NM_VMSEG_ALIGN, &map, NULL)) {
		bool told = segment->config.integrity == NM_VMSEG_ENFORCED;

		nm_reason_set(ret_reason, "%s",
			      told ? "the host reports it; the whole cannot be opened for writing "
				     "here, so it was not tested" :
				     "the whole may not be opened for writing here, and the host "
				     "does not say whether others may");
		return told ? NM_VMSEG_ENFORCED : NM_VMSEG_CONVENTION;
	}
	through = map.base;
	/* Plain stores: hypervisors that drop stores emulate only these. */
	atomic_store_explicit(&part->echo, before, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	atomic_store_explicit(&through->echo, ~before, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	landed = atomic_load_explicit(&part->echo, memory_order_relaxed) != before;
	nm_vmseg_unmap(&map);
	nm_reason_set(ret_reason, "%s",
		      landed ? "a write through the mapping of the whole reached this part" :
			       "a write through the mapping of the whole was dropped");
	return landed ? NM_VMSEG_CONVENTION : NM_VMSEG_ENFORCED;
}

static int measure(struct nm_vmseg *segment, struct nm_vmseg_record *record,
		   struct nm_reason *ret_reason)
{
	uint8_t *scratch = (uint8_t *)segment->own.base + NM_VMSEG_SCRATCH_OFF;
	const uint8_t *seen =
		nm_vmseg_seen_part(segment, segment->config.part) + NM_VMSEG_SCRATCH_OFF;
	struct nm_reason numbers;
	enum nm_mapping_kind kind = nm_mapping_measure(scratch, seen, &numbers);

	if (kind != NM_MAPPING_WRITE_BACK) {
		nm_reason_set(
			ret_reason,
			"the hypervisor maps it without caches; give the machines virtio-pmem "
			"or nvdimm (DAX) instead of ivshmem; %s",
			numbers.text);
		return -ENOTSUP;
	}
	record->mapping = numbers;
	record->is_measured = 1;
	return 0;
}

/* The result of one process is valid for all until the VM reboots. */
static int try_out(struct nm_vmseg *segment, struct nm_reason *ret_reason)
{
	struct nm_vmseg_record record;
	int err;

	err = nm_vmseg_lock_take(&segment->lock, nm_vmseg_patience(segment, ATTACH_WAIT_MS),
				 ret_reason);
	if (err)
		return err;
	err = nm_vmseg_record_read(&segment->lock, &record, ret_reason);
	if (!err && memcmp(record.token, segment->host.token, sizeof(record.token)) != 0) {
		record = (struct nm_vmseg_record){0};
		memcpy(record.token, segment->host.token, sizeof(record.token));
	}
	if (!err)
		err = check_echo(segment, ret_reason);
	if (!err && !record.is_measured) {
		err = measure(segment, &record, ret_reason);
		if (!err) {
			record.integrity = try_integrity(segment, &record.integrity_why);
			NM_FAULT("segment-measured");
			err = nm_vmseg_record_write(&segment->lock, &record, ret_reason);
		}
	}
	NM_FAULT("segment-tried");
	nm_vmseg_lock_give(&segment->lock);
	if (err)
		return err;
	segment->facts.mapping = record.mapping;
	segment->facts.integrity_why = record.integrity_why;
	segment->facts.enforced = record.integrity == NM_VMSEG_ENFORCED;
	return 0;
}

static void set_facts(struct nm_vmseg *segment)
{
	struct nm_vmseg_facts *facts = &segment->facts;
	struct nm_vmseg_shape shape;

	nm_vmseg_shape_init(segment->host.part_size, &shape);
	memcpy(facts->token, segment->host.token, sizeof(facts->token));
	facts->nr_parts = segment->host.nr_parts;
	facts->part = segment->config.part;
	facts->part_size = segment->host.part_size;
	facts->space = shape.part_size - shape.space_off;
	facts->nr_slots = shape.nr_slots;
}

int nm_vmseg_attach(const struct nm_vmseg_config *config, struct nm_vmseg **ret_segment,
		    struct nm_reason *ret_reason)
{
	struct nm_vmseg *segment = calloc(1, sizeof(*segment));
	int err;

	if (!segment) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	segment->config = *config;
	segment->creator = getpid();
	pthread_mutex_init(&segment->mutex, NULL);
	err = map_all(segment, ret_reason);
	if (!err)
		err = map_own(segment, ret_reason);
	if (!err)
		err = nm_vmseg_lock_open(config->lock, &segment->lock, ret_reason);
	if (err)
		goto err_detach;
	segment->lock_open = true;
	err = try_out(segment, ret_reason);
	if (!err && nm_vmseg_is_lost(segment)) {
		nm_reason_set(ret_reason, "the file of the segment is shorter than it was mapped");
		err = -EBADMSG;
	}
	if (err)
		goto err_detach;
	segment->parts = calloc(segment->host.nr_parts, sizeof(*segment->parts));
	if (!segment->parts) {
		nm_reason_set(ret_reason, "out of memory");
		err = -ENOMEM;
		goto err_detach;
	}
	set_facts(segment);
	*ret_segment = segment;
	return 0;

err_detach:
	nm_vmseg_detach(segment);
	return err;
}

void nm_vmseg_detach(struct nm_vmseg *segment)
{
	if (!segment)
		return;
	if (segment->lock_open)
		nm_vmseg_lock_close(&segment->lock);
	if (segment->all_guarded)
		nm_sigbus_unguard(&segment->all_guard);
	if (segment->own_guarded)
		nm_sigbus_unguard(&segment->own_guard);
	nm_vmseg_unmap(&segment->all);
	nm_vmseg_unmap(&segment->own);
	pthread_mutex_destroy(&segment->mutex);
	free(segment->parts);
	free(segment);
}

int nm_vmseg_geometry(const struct nm_vmseg *segment, uint32_t nr_endpoints, uint32_t nr_lanes,
		      uint32_t ring_slots, uint32_t chunk_size, uint64_t pool_size,
		      struct nm_geometry *ret_geometry, struct nm_reason *ret_reason)
{
	uint64_t room = nr_endpoints ? segment->facts.space / nr_endpoints : 0;

	return nm_geometry_fit(room & ~(NM_VMSEG_GRANULE - 1), nr_lanes, ring_slots, chunk_size,
			       pool_size, ret_geometry, ret_reason);
}
