/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "base/user_copy.h"
#include "engine/engine.h"

#define BUCKETS_MIN 64

struct nm_memory_region {
	struct nm_memory_region *next; /* in its bucket */
	struct iovec iov[NM_IOV_MAX];
	size_t nr_iov;
	uint64_t key;
	uint64_t access;
	uint64_t offset;
	uint64_t size;
	struct nm_counter *counter;
	struct nm_memory_table *table;
};

struct nm_memory_table {
	struct nm_memory_watch *watches;
	struct nm_memory_region **buckets; /* by key */
	size_t mask;
	size_t nr;
};

static size_t key_hash(uint64_t key)
{
	key *= UINT64_C(0x9e3779b97f4a7c15);
	return (size_t)(key ^ key >> 32);
}

int nm_memory_table_create(struct nm_memory_table **ret_table)
{
	struct nm_memory_table *table = calloc(1, sizeof(*table));

	if (!table)
		return -ENOMEM;
	table->buckets = calloc(BUCKETS_MIN, sizeof(*table->buckets));
	if (!table->buckets) {
		free(table);
		return -ENOMEM;
	}
	table->mask = BUCKETS_MIN - 1;
	*ret_table = table;
	return 0;
}

void nm_memory_table_destroy(struct nm_memory_table *table)
{
	if (!table)
		return;
	for (size_t i = 0; i <= table->mask; i++) {
		while (table->buckets[i]) {
			struct nm_memory_region *r = table->buckets[i];

			table->buckets[i] = r->next;
			free(r);
		}
	}
	free(table->buckets);
	free(table);
}

static struct nm_memory_region *table_find(const struct nm_memory_table *table, uint64_t key)
{
	struct nm_memory_region *r = table->buckets[key_hash(key) & table->mask];

	while (r && r->key != key)
		r = r->next;
	return r;
}

static void table_grow(struct nm_memory_table *table)
{
	size_t nr = (table->mask + 1) * 2;
	struct nm_memory_region **buckets = calloc(nr, sizeof(*buckets));

	if (!buckets)
		return; /* longer chains, nothing worse */
	for (size_t i = 0; i <= table->mask; i++) {
		while (table->buckets[i]) {
			struct nm_memory_region *r = table->buckets[i];
			size_t to = key_hash(r->key) & (nr - 1);

			table->buckets[i] = r->next;
			r->next = buckets[to];
			buckets[to] = r;
		}
	}
	free(table->buckets);
	table->buckets = buckets;
	table->mask = nr - 1;
}

static bool can_be_shown(const struct nm_memory_region *r)
{
	return r->nr_iov == 1 && !r->counter && nm_user_is_host(r->iov, 1);
}

static void show(const struct nm_memory_region *r, struct nm_memory_watch *watch)
{
	struct nm_region region = {
		.key = r->key,
		.base = (uintptr_t)r->iov[0].iov_base,
		.len = r->size,
		.offset = r->offset,
		.access = r->access,
	};

	if (can_be_shown(r))
		watch->show(watch, &region);
}

static void hide_from_all(const struct nm_memory_region *r)
{
	struct nm_memory_watch *watch;

	for (watch = r->table->watches; watch && can_be_shown(r); watch = watch->next)
		watch->hide(watch, r->key);
}

void nm_memory_watch(struct nm_memory_table *table, struct nm_memory_watch *watch)
{
	watch->next = table->watches;
	table->watches = watch;
	for (size_t i = 0; i <= table->mask; i++)
		for (struct nm_memory_region *r = table->buckets[i]; r; r = r->next)
			show(r, watch);
}

void nm_memory_unwatch(struct nm_memory_table *table, struct nm_memory_watch *watch)
{
	struct nm_memory_watch **at = &table->watches;

	while (*at && *at != watch)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = watch->next;
	for (size_t i = 0; i <= table->mask; i++)
		for (struct nm_memory_region *r = table->buckets[i]; r; r = r->next)
			if (can_be_shown(r))
				watch->hide(watch, r->key);
}

/* Sum of the pieces and where it ends remotely; both must fit 64 bits. */
static int attr_size(const struct nm_memory_attr *attr, uint64_t *ret_size)
{
	uint64_t size = 0;

	if (attr->nr_iov < 1 || attr->nr_iov > NM_IOV_MAX)
		return -EINVAL;
	for (size_t i = 0; i < attr->nr_iov; i++) {
		uintptr_t end;

		if (__builtin_add_overflow((uintptr_t)attr->iov[i].iov_base, attr->iov[i].iov_len,
					   &end) ||
		    __builtin_add_overflow(size, attr->iov[i].iov_len, &size))
			return -EINVAL;
		/* Of a device, it must not run into the next one's. */
		if (nm_is_device(attr->iov[i].iov_base) &&
		    !nm_device_is_one_range(attr->iov[i].iov_base, attr->iov[i].iov_len))
			return -EINVAL;
	}
	if (attr->offset > UINT64_MAX - size)
		return -EINVAL;
	*ret_size = size;
	return 0;
}

int nm_memory_register(struct nm_memory_table *table, const struct nm_memory_attr *attr,
		       struct nm_memory_region **ret_region)
{
	struct nm_memory_region *r;
	struct nm_memory_region **bucket;
	uint64_t size;
	int err = attr_size(attr, &size);

	if (err < 0)
		return err;
	if (table_find(table, attr->key))
		return -ENOKEY;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	for (size_t i = 0; i < attr->nr_iov; i++)
		r->iov[i] = attr->iov[i];
	r->nr_iov = attr->nr_iov;
	r->key = attr->key;
	r->access = attr->access;
	r->offset = attr->offset;
	r->size = size;
	r->counter = attr->counter;
	r->table = table;
	if (table->nr++ > table->mask)
		table_grow(table);
	bucket = &table->buckets[key_hash(r->key) & table->mask];
	r->next = *bucket;
	*bucket = r;
	for (struct nm_memory_watch *watch = table->watches; watch; watch = watch->next)
		show(r, watch);
	*ret_region = r;
	return 0;
}

void nm_memory_deregister(struct nm_memory_table *table, struct nm_memory_region *region)
{
	struct nm_memory_region **at;

	if (!region)
		return;
	at = &table->buckets[key_hash(region->key) & table->mask];
	while (*at && *at != region)
		at = &(*at)->next;
	if (!*at)
		return;
	hide_from_all(region);
	*at = region->next;
	table->nr--;
	free(region);
}

void nm_memory_bind_counter(struct nm_memory_region *region, struct nm_counter *counter)
{
	/* Accesses that peers do by themselves are not counted here. */
	if (counter)
		hide_from_all(region);
	region->counter = counter;
}

struct nm_counter *nm_memory_counter(const struct nm_memory_region *region)
{
	return region->counter;
}

int nm_memory_resolve(const struct nm_memory_table *table, uint64_t key, uint64_t address,
		      uint64_t len, uint64_t access, struct iovec *ret_iov,
		      struct nm_memory_region **ret_region)
{
	struct nm_memory_region *r = table_find(table, key);
	uint64_t start;
	int nr = 0;

	if (!r)
		return -ENOKEY;
	if ((r->access & access) != access)
		return -EACCES;
	if (address < r->offset || address - r->offset > r->size ||
	    len > r->size - (address - r->offset))
		return -ERANGE;
	start = address - r->offset;
	for (size_t i = 0; i < r->nr_iov && (len > 0 || nr == 0); i++) {
		uint64_t n = r->iov[i].iov_len;

		if (start >= n && len > 0) {
			start -= n;
			continue;
		}
		n -= start < n ? start : n;
		if (n > len)
			n = len;
		/* All of memory is all of the host's: a peer cannot name a device by an offset. */
		if (!nm_is_device(r->iov[i].iov_base) &&
		    (uintptr_t)r->iov[i].iov_base + start + n > NM_DEVICE_MARK)
			return -ERANGE;
		/* Integers, because a region may start at NULL. */
		ret_iov[nr].iov_base = (void *)((uintptr_t)r->iov[i].iov_base + (uintptr_t)start);
		ret_iov[nr++].iov_len = (size_t)n;
		len -= n;
		start = 0;
	}
	*ret_region = r;
	return nr;
}
