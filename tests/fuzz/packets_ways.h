/* SPDX-License-Identifier: Apache-2.0 */
/* The two ways of the hostile peer of fuzz_packets.c: a memory channel and a network. */
#ifndef NM_FUZZ_PACKETS_WAYS_H
#define NM_FUZZ_PACKETS_WAYS_H

#include "engine/engine.h"
#include "engine/protocol.h"

enum { IDS = 8, CONTEXTS = 64, ROOM = 12000, WINDOW = 256, HELD = 3 };

struct world {
	struct nm_engine *engine;
	struct nm_cqueue *cq;
	struct nm_memory_table *memory;
	struct nm_memory_region *region;
	struct nm_peer *peer;	/* as the user knows it */
	struct nm_peer *source; /* as the transport does; NULL: not up */
	bool blocked, dead;
	uint8_t copies;	   /* remote copies that succeed before one fails */
	uint64_t ids[IDS]; /* given out lately */
	unsigned int nr_ids;
	char room[ROOM];
	char window[WINDOW];
	uint8_t completions[CONTEXTS];
	bool multi[CONTEXTS];
	unsigned int nr_contexts;
	/* memory and network: what each is about to say when it is polled */
	struct way {
		struct nm_transport *transport;
		struct nm_link link;
		bool gone;
		bool ends; /* is to be told as quarantined */
		bool speaks;
		bool is_held, is_left, is_taken, is_forgotten, is_suspended; /* see nm_move_ops */
		uint8_t nr_enters; /* that are not answered yet */
		struct nm_packet packet;
		char *payload;
	} ways[2];
};

extern struct world *world; /* one at a time; the transports find it here */

/* Make way I of the world, and give it to the engine. */
void add_way(unsigned int i);

#endif
