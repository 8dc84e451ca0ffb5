/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/match.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/peer.h"

#define BUCKETS_MIN 256
/* A mask of more bits than this is a wildcard of a receive, not a field that is never matched. */
#define HASH_IGNORE_BITS 8

static uint64_t mix(uint64_t x)
{
	x *= UINT64_C(0x9e3779b97f4a7c15);
	return x ^ x >> 32;
}

static size_t posted_hash(const struct nm_peer *source, uint64_t tag, unsigned int class_index)
{
	return (size_t)mix(tag ^ mix((uintptr_t)source + class_index));
}

static size_t unexpected_hash(const struct nm_match *match, const struct nm_peer *source,
			      uint64_t tag)
{
	return (size_t)mix((tag & ~match->hash_ignore) ^ mix((uintptr_t)source));
}

static struct nm_list *buckets_create(size_t nr)
{
	struct nm_list *buckets = malloc(nr * sizeof(*buckets));

	for (size_t i = 0; buckets && i < nr; i++)
		nm_list_init(&buckets[i]);
	return buckets;
}

int nm_match_init(struct nm_match *match, unsigned int which)
{
	*match = (struct nm_match){.which = which};
	match->posted_buckets = buckets_create(BUCKETS_MIN);
	match->unexpected_buckets = buckets_create(BUCKETS_MIN);
	if (!match->posted_buckets || !match->unexpected_buckets) {
		nm_match_fini(match);
		return -ENOMEM;
	}
	match->posted_mask = match->unexpected_mask = BUCKETS_MIN - 1;
	nm_list_init(&match->overflow);
	nm_list_init(&match->posted_all);
	nm_list_init(&match->unexpected_all);
	return 0;
}

void nm_match_fini(struct nm_match *match)
{
	free(match->posted_buckets);
	free(match->unexpected_buckets);
	match->posted_buckets = match->unexpected_buckets = NULL;
}

static unsigned int class_of(struct nm_match *match, uint64_t ignore, bool any_source)
{
	struct nm_match_class *c = match->classes;

	for (unsigned int i = 0; i < match->nr_classes; i++)
		if (c[i].ignore == ignore && c[i].any_source == any_source)
			return i;
	if (match->nr_classes == NM_MATCH_CLASSES)
		return NM_MATCH_CLASSES;
	c[match->nr_classes].ignore = ignore;
	c[match->nr_classes].any_source = any_source;
	return match->nr_classes++;
}

static struct nm_list *posted_bucket(struct nm_match *match, const struct nm_posted *p)
{
	if (nm_unlikely(p->class_index == NM_MATCH_CLASSES))
		return &match->overflow;
	return &match->posted_buckets[posted_hash(p->source, p->tag & ~p->ignore, p->class_index) &
				      match->posted_mask];
}

/* Make the table as large as its contents. Without memory the chains only get longer. */
static NM_COLD void posted_grow(struct nm_match *match)
{
	size_t nr = match->posted_mask + 1;
	struct nm_list *buckets;

	while (nr < match->nr_posted)
		nr *= 2;
	buckets = buckets_create(nr);
	if (!buckets)
		return;
	free(match->posted_buckets);
	match->posted_buckets = buckets;
	match->posted_mask = nr - 1;
	nm_list_init(&match->overflow);
	/* By age, so that every bucket is in order of age again. */
	nm_list_for_each(node, &match->posted_all) {
		struct nm_posted *p = nm_container_of(node, struct nm_posted, all_node);

		if (p->sequence >= match->next_hashed)
			break;
		nm_list_append(posted_bucket(match, p), &p->bucket_node);
	}
}

/* Put every receive that is in no bucket yet into one, in order of age. */
static void hash_posted(struct nm_match *match)
{
	struct nm_list *node = &match->posted_all;

	if (nm_unlikely(match->nr_posted > 2 * match->posted_mask))
		posted_grow(match);
	while (node->prev != &match->posted_all &&
	       nm_container_of(node->prev, struct nm_posted, all_node)->sequence >=
		       match->next_hashed)
		node = node->prev;
	for (; node != &match->posted_all; node = node->next) {
		struct nm_posted *p = nm_container_of(node, struct nm_posted, all_node);

		p->class_index = class_of(match, p->ignore, !p->source);
		nm_list_append(posted_bucket(match, p), &p->bucket_node);
		match->classes[p->class_index].nr++;
	}
	match->next_hashed = match->next_sequence;
}

void nm_match_unhash(struct nm_match *match, struct nm_posted *posted)
{
	nm_list_remove(&posted->bucket_node);
	match->classes[posted->class_index].nr--;
}

/* The first match of a bucket; buckets are in order of age, so it is the oldest. */
static struct nm_posted *bucket_find(struct nm_list *bucket, const struct nm_peer *source,
				     uint64_t tag)
{
	nm_list_for_each(node, bucket) {
		struct nm_posted *p = nm_container_of(node, struct nm_posted, bucket_node);

		if (nm_posted_matches(p, source, tag))
			return p;
	}
	return NULL;
}

struct nm_posted *nm_match_find_posted(struct nm_match *match, const struct nm_peer *source,
				       uint64_t tag)
{
	struct nm_posted *best = nm_match_find_oldest(match, source, tag);

	if (best || match->nr_posted <= NM_MATCH_OLDEST)
		return best;
	if (match->next_hashed != match->next_sequence)
		hash_posted(match);
	for (unsigned int i = 0; i < match->nr_classes; i++) {
		const struct nm_match_class *c = &match->classes[i];
		struct nm_posted *p;
		size_t hash;

		if (c->nr == 0)
			continue;
		hash = posted_hash(c->any_source ? NULL : source, tag & ~c->ignore, i);
		p = bucket_find(&match->posted_buckets[hash & match->posted_mask], source, tag);
		if (p && (!best || p->sequence < best->sequence))
			best = p;
	}
	if (nm_unlikely(match->classes[NM_MATCH_CLASSES].nr > 0)) {
		struct nm_posted *p = bucket_find(&match->overflow, source, tag);

		if (p && (!best || p->sequence < best->sequence))
			best = p;
	}
	return best;
}

static void unexpected_rehash(struct nm_match *match)
{
	for (size_t i = 0; i <= match->unexpected_mask; i++)
		nm_list_init(&match->unexpected_buckets[i]);
	nm_list_for_each(node, &match->unexpected_all) {
		struct nm_unexpected *m = nm_container_of(node, struct nm_unexpected, all_node);
		size_t hash = unexpected_hash(match, m->source, m->tag);

		nm_list_append(&match->unexpected_buckets[hash & match->unexpected_mask],
			       &m->bucket_node);
	}
}

static NM_COLD void unexpected_grow(struct nm_match *match)
{
	size_t nr = (match->unexpected_mask + 1) * 2;
	struct nm_list *buckets = buckets_create(nr);

	if (!buckets)
		return;
	free(match->unexpected_buckets);
	match->unexpected_buckets = buckets;
	match->unexpected_mask = nr - 1;
	unexpected_rehash(match);
}

void nm_match_store(struct nm_match *match, struct nm_unexpected *message)
{
	size_t hash = unexpected_hash(match, message->source, message->tag);

	nm_list_append(&match->unexpected_buckets[hash & match->unexpected_mask],
		       &message->bucket_node);
	nm_list_append(&match->unexpected_all, &message->all_node);
	nm_list_append(&message->source->unexpected[match->which], &message->source_node);
	if (nm_unlikely(++match->nr_unexpected > 2 * match->unexpected_mask))
		unexpected_grow(match);
}

void nm_match_unstore(struct nm_match *match, struct nm_unexpected *message)
{
	nm_list_remove(&message->bucket_node);
	nm_list_remove(&message->all_node);
	nm_list_remove(&message->source_node);
	match->nr_unexpected--;
}

#define TAG_MATCHES(m, want, ign) ((((m)->tag ^ (want)) & ~(ign)) == 0)

static struct nm_unexpected *find_hashed(struct nm_match *match, const struct nm_peer *source,
					 uint64_t tag, uint64_t ignore)
{
	size_t hash = unexpected_hash(match, source, tag);

	nm_list_for_each(node, &match->unexpected_buckets[hash & match->unexpected_mask]) {
		struct nm_unexpected *m = nm_container_of(node, struct nm_unexpected, bucket_node);

		if (m->source == source && TAG_MATCHES(m, tag, ignore))
			return m;
	}
	return NULL;
}

struct nm_unexpected *nm_match_find_unexpected(struct nm_match *match, struct nm_peer *source,
					       uint64_t tag, uint64_t ignore)
{
	if (match->nr_unexpected == 0)
		return NULL;
	if (!source) {
		nm_list_for_each(node, &match->unexpected_all) {
			struct nm_unexpected *m =
				nm_container_of(node, struct nm_unexpected, all_node);

			if (TAG_MATCHES(m, tag, ignore))
				return m;
		}
		return NULL;
	}
	/* MPIs ignore one or two protocol bits in all their receives: learn these, once. */
	if (nm_unlikely(ignore & ~match->hash_ignore) &&
	    __builtin_popcountll(ignore | match->hash_ignore) <= HASH_IGNORE_BITS) {
		match->hash_ignore |= ignore;
		unexpected_rehash(match);
	}
	if (!(ignore & ~match->hash_ignore))
		return find_hashed(match, source, tag, ignore);
	nm_list_for_each(node, &source->unexpected[match->which]) {
		struct nm_unexpected *m = nm_container_of(node, struct nm_unexpected, source_node);

		if (TAG_MATCHES(m, tag, ignore))
			return m;
	}
	return NULL;
}
