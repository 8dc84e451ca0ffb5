/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics file of an endpoint: what others may know of it while it runs and after it ended.
 * One head, nr_peers peers, one tail, little endian, in one piece.
 *
 * The owner rewrites the whole file with one pwrite(2) when something may have changed, never by
 * a mapping: a process that truncates the file cannot stop it. A reader takes the bytes of the
 * file, and believes them only when the magic, the sizes, both generations and the sum agree; else
 * it reads again. The owner holds a POSIX write lock on the file as long as it lives, which every
 * process of the same kernel can ask for (F_GETLK), in every PID namespace.
 *
 * Readers: nearmetal/evidence/counters.py.
 */
#ifndef NM_TRANSPORT_STATS_LAYOUT_H
#define NM_TRANSPORT_STATS_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define NM_STATS_MAGIC UINT64_C(0x317374617473) /* "stats1", little endian */
#define NM_STATS_VERSION 5
#define NM_STATS_MAX_PEERS 4096 /* more are counted in nr_unlisted */

enum nm_stats_state {
	NM_STATS_RUNNING = 1,
	NM_STATS_CLOSED = 2,
};

/* The interface by which the program uses the endpoint. */
enum nm_stats_face {
	NM_STATS_LIBFABRIC = 0,
	NM_STATS_UCX = 1,
};

struct nm_stats_head {
	uint64_t magic;
	uint32_t version;
	uint32_t head_size, peer_size; /* of the structures, for readers of another version */
	uint32_t nr_peers;
	uint32_t nr_unlisted; /* peers that found no room */
	uint32_t state;
	uint64_t generation; /* grows by one with each writing */
	uint64_t started_ns; /* since 1970 */
	uint64_t written_ns;
	uint32_t pid; /* as the process knows it itself */
	int32_t rank; /* in its MPI job as its launcher says; -1: unknown */
	uint8_t id[6];
	uint8_t face; /* enum nm_stats_face */
	uint8_t unused;
	char host[64];
	char job[64];	   /* the name that nearmetal run gave it, or "" */
	char channels[56]; /* names of channels by number: "none,self,shm,segment,net" */
};

struct nm_stats_traffic {
	uint64_t sent_messages, sent_bytes;
	uint64_t received_messages, received_bytes;
};

/* Puts, gets or atomics on a peer's memory that the endpoint has started. */
struct nm_stats_accesses {
	uint64_t operations, bytes;
};

struct nm_stats_peer {
	uint8_t id[6];
	uint8_t relation, channel, integrity; /* enums of connect/locality.h, base/channel.h */
	uint8_t down;
	uint16_t moves; /* own changes between memory and the network, in order; at most all ones */
	uint32_t quarantines;
	uint64_t stalls;    /* sends that found no room and returned -EAGAIN */
	uint64_t fallbacks; /* transfers that had to go another way than planned */
	/* bytes of large messages from the peer, by protocol as transport/select.h numbers them */
	uint64_t protocols[8];
	struct nm_stats_traffic by_channel[8]; /* by enum nm_channel */
	/* by enum nm_access_way and enum nm_access_kind of engine/engine.h */
	struct nm_stats_accesses accesses[4][4];
	char label[96];
	char reason[192], down_reason[192], quarantine_reason[192], fallback_reason[192];
	char choice[192]; /* the protocol that was last changed to, and why */
	char device[192]; /* how large messages go between devices, and why; "": no FI_HMEM */
};

struct nm_stats_tail {
	uint64_t generation;
	uint64_t sum; /* nm_stats_sum() of everything before it */
};

_Static_assert(sizeof(struct nm_stats_head) == 256, "readers know it");
_Static_assert(sizeof(struct nm_stats_peer) == 1856, "readers know it");
_Static_assert(sizeof(struct nm_stats_tail) == 16, "readers know it");
_Static_assert(sizeof(struct nm_stats_peer) % 8 == 0, "summed by words");

/* LEN is a multiple of 8. Finds torn files, not forged ones. */
static inline uint64_t nm_stats_sum(const void *bytes, size_t len)
{
	const uint64_t *words = bytes;
	uint64_t sum = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < len / 8; i++)
		sum = (sum ^ words[i]) * UINT64_C(0x100000001b3);
	return sum;
}

#endif
