/* SPDX-License-Identifier: Apache-2.0 */
/* One endpoint over one channel, and a conversation that uses everything two endpoints can do. */
#ifndef NM_TEST_FAULTS_TALK_H
#define NM_TEST_FAULTS_TALK_H

#include <stdbool.h>

#include "engine/engine.h"

struct talker {
	struct nm_address address;    /* complete once it is open */
	const struct nm_address *all; /* the addresses of NR_ALL endpoints, its own among them */
	unsigned int nr_all;
	/* What create() of its channel is. */
	int (*create)(const struct nm_sink *sink, struct nm_address *address,
		      struct nm_transport **ret_transport, struct nm_reason *ret_reason);
	const char *cables;  /* where its network is, beside that channel; NULL: it has none */
	unsigned int number; /* small; a counter of its own at everybody's */
	struct nm_engine *engine;
	struct nm_cqueue *cq;
	struct nm_memory_table *memory;
	struct nm_counter read, written; /* by others */
	char *shared;			 /* what the other may put into and get from */
};

/* 0 or -errno. */
int talker_open(struct talker *me);
void talker_close(struct talker *me);

enum talk_end {
	TALK_GOOD,  /* all of it, and every byte was right */
	TALK_LOST,  /* an operation ended with an error, and so did all others */
	TALK_MIXED, /* wrong bytes, a completion too many: a defect */
	TALK_HUNG,  /* something did not end in time: a defect */
};

/*
 * Messages of all sizes both ways, puts, gets and an atomic. Both sides call it, at the NTH time
 * (from 0) with each other.
 */
enum talk_end talk(struct talker *me, const struct nm_address *other, unsigned int nth);
/* True if messages to OTHER use CHANNEL. */
bool talks_on(struct talker *me, const struct nm_identity *other, enum nm_channel channel);
/* Wait until OTHER has closed. False: in vain. */
bool talk_until_gone(struct talker *me, const struct nm_address *other);

#endif
