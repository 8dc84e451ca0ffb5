/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching of messages and receives: one instance for tagged messages and one for untagged ones.
 *
 * Rules: a message takes the oldest posted receive that matches it; a receive takes the oldest
 * unexpected message that matches it. A receive matches by source (or any) and by the tag bits that
 * its ignore mask leaves.
 *
 * Posted receives are hashed by class (ignore mask, source named or not), source and the tag bits
 * that matter. A program uses a handful of classes, so an arriving message looks into one bucket
 * per class in use and takes the oldest hit. More classes than NR_CLASSES share a linear list.
 * Hashing is put off: a receive only joins the list of all by age, and the first message that none
 * of the oldest few wants has all of them hashed, each once. Traffic in order never hashes.
 * Unexpected messages are hashed by source and tag, without the tag bits that receives are seen to
 * ignore, and stand in arrival order in a list of their source and in one of all.
 */
#ifndef NM_ENGINE_MATCH_H
#define NM_ENGINE_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

struct nm_peer;

#define NM_MATCH_CLASSES 8
/* Receives that a message is compared with before any hashing. */
#define NM_MATCH_OLDEST 4

/* A posted receive's place in the queue; embedded in the request. */
struct nm_posted {
	struct nm_list all_node; /* by age */
	struct nm_peer *source;	 /* NULL: any */
	uint64_t tag;
	uint64_t ignore;
	uint64_t sequence; /* age */
	/* valid from when it is hashed */
	struct nm_list bucket_node;
	unsigned int class_index;
};

/* A message that came before its receive, or its envelope. */
struct nm_unexpected {
	struct nm_list all_node;
	struct nm_list source_node;
	struct nm_list bucket_node;
	struct nm_peer *source;
	uint64_t tag;
	uint64_t data;
	uint64_t size;	    /* of the whole message */
	uint64_t sender_id; /* rendezvous, or the sender's request for the ACK */
	void *context;	    /* of the claim */
	uint32_t stored;    /* bytes in payload */
	uint8_t flags;	    /* NM_PKT_ */
	bool rendezvous;    /* the payload is still at the sender */
	bool lost;	    /* claimed, and then the sender went away with the payload */
	uint8_t payload[];
};

struct nm_match_class {
	uint64_t ignore;
	bool any_source;
	size_t nr; /* receives hashed in it */
};

struct nm_match {
	/* posted receives; class NM_MATCH_CLASSES is the overflow */
	struct nm_match_class classes[NM_MATCH_CLASSES + 1];
	unsigned int nr_classes;
	struct nm_list overflow;
	struct nm_list *posted_buckets;
	size_t posted_mask;
	size_t nr_posted;
	struct nm_list posted_all;
	uint64_t next_sequence;
	uint64_t next_hashed; /* receives older than this are in a bucket */
	/* unexpected messages */
	struct nm_list *unexpected_buckets;
	size_t unexpected_mask;
	size_t nr_unexpected;
	struct nm_list unexpected_all;
	uint64_t hash_ignore; /* tag bits left out of the hash */
	unsigned int which;   /* index in nm_peer.unexpected */
};

int nm_match_init(struct nm_match *match, unsigned int which);
void nm_match_fini(struct nm_match *match);

/* Add a receive (source, tag and ignore are filled in). */
static inline void nm_match_post(struct nm_match *match, struct nm_posted *posted)
{
	posted->sequence = match->next_sequence++;
	nm_list_append(&match->posted_all, &posted->all_node);
	match->nr_posted++;
}

/* The hashed half of nm_match_unpost(). */
void nm_match_unhash(struct nm_match *match, struct nm_posted *posted);

static inline void nm_match_unpost(struct nm_match *match, struct nm_posted *posted)
{
	nm_list_remove(&posted->all_node);
	match->nr_posted--;
	if (nm_unlikely(posted->sequence < match->next_hashed))
		nm_match_unhash(match, posted);
}

/* Was POSTED never hashed? Then nm_match_take() takes it out of the queue. */
static inline bool nm_match_is_plain(const struct nm_match *match, const struct nm_posted *posted)
{
	return posted->sequence >= match->next_hashed;
}

static inline void nm_match_take(struct nm_match *match, struct nm_posted *posted)
{
	posted->all_node.prev->next = posted->all_node.next;
	posted->all_node.next->prev = posted->all_node.prev;
	match->nr_posted--;
}

static inline bool nm_posted_matches(const struct nm_posted *posted, const struct nm_peer *source,
				     uint64_t tag)
{
	return ((posted->tag ^ tag) & ~posted->ignore) == 0 &&
	       (!posted->source || posted->source == source);
}

/* The receive for a message when it is one of the oldest few: what traffic in order finds. */
static inline struct nm_posted *nm_match_find_oldest(const struct nm_match *match,
						     const struct nm_peer *source, uint64_t tag)
{
	const struct nm_list *node = match->posted_all.next;

	for (unsigned int i = 0; i < NM_MATCH_OLDEST && node != &match->posted_all; i++) {
		struct nm_posted *posted = nm_container_of(node, struct nm_posted, all_node);

		if (nm_likely(nm_posted_matches(posted, source, tag)))
			return posted;
		node = node->next;
	}
	return NULL;
}

/* The oldest posted receive for a message, or NULL. It stays in the queue. */
struct nm_posted *nm_match_find_posted(struct nm_match *match, const struct nm_peer *source,
				       uint64_t tag);

/* Add a message (source and tag are filled in) as the youngest. */
void nm_match_store(struct nm_match *match, struct nm_unexpected *message);
void nm_match_unstore(struct nm_match *match, struct nm_unexpected *message);
/* The oldest message for a receive, or NULL. It stays in the queue. */
struct nm_unexpected *nm_match_find_unexpected(struct nm_match *match, struct nm_peer *source,
					       uint64_t tag, uint64_t ignore);

#endif
