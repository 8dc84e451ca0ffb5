/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that neighbours share. Version 2.
 *
 * A *window* is one contiguous region that exactly one party writes (its owner) and every
 * neighbour maps read-only. Nothing in it is a pointer, a lock or an allocator: only offsets,
 * counters and words that are published by one release store and taken by one acquire load.
 * What A sends to B lies in A's window (rings, pool); what B has consumed of it is a counter in
 * B's window, which A reads. So the death of a party leaves nothing locked, and a hostile party
 * can lie about its own messages but cannot touch anyone's bytes.
 *
 *   window of endpoint A (a sealed memfd per endpoint in one kernel; later a slot of a VM's window)
 *   +--------------------+ 0
 *   | nm_window_header   | who, layout version, geometry, state
 *   +--------------------+ lanes_off
 *   | nm_lane[nr_lanes]  | one per link in use: out: identity of the reader; in: credits returned
 *   +--------------------+ regions_off
 *   | nm_region_slot[]   | registered memory that neighbours may copy from and to by themselves
 *   +--------------------+ rings_off
 *   | nm_ring[nr_lanes]   | ring of ring_slots 64-byte slots; ring i belongs to lane i
 *   +--------------------+ pool_off
 *   | bulk pool          | chunks of chunk_size bytes, rotated first-in first-out
 *   +--------------------+ size
 *
 * Foreign windows are hostile: read each word once into a private variable, check, use. The
 * geometry is validated at attach (window.h) and then used only from the private copy.
 *
 * Version 2 has no word without a reader: what a lane's last use left behind is told from its next
 * one by the start of the stream, which takes the place of a generation. Version 3 has doorbells,
 * and packets that set a pace.
 */
#ifndef NM_SHM_LAYOUT_H
#define NM_SHM_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

#define NM_LAYOUT_MAGIC UINT64_C(0x31776c6174656d6e) /* "nmetalw1" little endian */
#define NM_LAYOUT_VERSION 3

/* What a neighbour's window may look like; anything else is refused at attach. */
#define NM_MAX_LANES 4096
#define NM_MIN_RING_SLOTS 16
#define NM_MAX_RING_SLOTS 4096
#define NM_MIN_CHUNK_SIZE 4096
#define NM_MAX_CHUNK_SIZE 65536
#define NM_MAX_POOL_SIZE (UINT64_C(1) << 30)
#define NM_MAX_REGIONS 65536
/* What a window of ours has; further regions are served by their owner. */
#define NM_NR_REGIONS 512
/* Slots that a key may be in. */
#define NM_REGION_BUCKET 4

enum nm_window_state {
	NM_WINDOW_INIT = 0,
	NM_WINDOW_RUN = 1,
	NM_WINDOW_GONE = 2, /* closed in order; everything sent had been published before */
};

/* Where things are in a window. */
struct nm_geometry {
	uint64_t size;
	uint32_t nr_lanes;
	uint32_t ring_slots; /* power of two */
	uint32_t chunk_size;
	uint32_t nr_chunks;
	uint32_t lanes_off;
	uint32_t rings_off;
	uint64_t pool_off;
	uint32_t regions_off;
	uint32_t nr_regions; /* a multiple of NM_REGION_BUCKET; 0: none */
};

struct nm_window_header {
	/* line 0: written once before the window is shown to anyone */
	uint64_t magic;
	uint32_t version;
	uint32_t features; /* bits a neighbour must know to use this window; there are none yet */
	struct nm_geometry geometry; /* readers use a checked private copy */
	/* line 1: identity, written once, and what seldom changes */
	uint8_t id[6];
	uint8_t token_proof[8]; /* equal to the token in the owner's fabric address */
	uint8_t reserved1[2];
	/* Not 0 while the owner sleeps, and another number each time: then each sender rings,
	 * once. Each sender reads it for each message, so it shares its line with nothing that
	 * changes as long as work goes on. Partner: nm_shm_send(). */
	_Atomic uint32_t asleep;
	uint8_t reserved4[44];
	/* line 2: changes; rarely read */
	_Atomic uint32_t state; /* enum nm_window_state */
	uint8_t reserved2[4];
	/* CLOCK_MONOTONIC when the owner was last seen to poll, about; 0: not yet. For guesses. */
	_Atomic uint64_t polled_ns;
	uint8_t reserved3[48];
};
_Static_assert(sizeof(struct nm_window_header) == 3 * NM_CACHE_LINE, "three lines");
_Static_assert(offsetof(struct nm_window_header, id) == 64, "line 1");
_Static_assert(offsetof(struct nm_window_header, state) == 128, "line 2");

/*
 * Lane i of a window, owner's words only. A lane is used by one link at a time in each direction;
 * which peer and which of the peer's lanes it is paired with is agreed in the handshake and kept
 * in private memory on both sides.
 */
struct nm_lane {
	/* line 0: feedback of the owner as a receiver. Partner: writer's credit check. */
	_Atomic uint64_t consumed; /* position of the reader in the paired ring */
	_Atomic uint64_t
		chunks_freed; /* pool chunks of the paired window given back, ever, in order */
	uint8_t reserved0[48];
	/* line 1: echoes of the peers' challenges, read at the handshake only: they show that what
	 * I write is what the peer sees. A lane may be in use both ways, with different peers. */
	_Atomic uint64_t writer_proof; /* owner is the sender of this lane's ring */
	_Atomic uint64_t reader_proof; /* owner is the receiver whose credits are in line 0 */
	/* +1 when the owner, as the sender, begins to use a region of the peer it is paired with
	 * (shm/regions.h), +1 when it has ended: odd while it does. Partner: who closes a region. */
	_Atomic uint64_t reaching;
	/* The owner, as the sender, rings it for a reader that sleeps (shm/doorbell.h). */
	_Atomic uint32_t doorbell;
	uint8_t reserved1[36];
};
_Static_assert(sizeof(struct nm_lane) == 2 * NM_CACHE_LINE, "two lines, no false sharing");

/* A region of registered memory; access 0: empty. See shm/regions.h. */
struct nm_region_slot {
	_Atomic uint64_t sequence; /* odd while the rest is being changed */
	_Atomic uint64_t key, base, len, offset, access;
	uint8_t reserved[16];
};
_Static_assert(sizeof(struct nm_region_slot) == NM_CACHE_LINE, "a region is a line");

/*
 * A ring is a single-producer single-consumer ring. Slot word 0 always is the control word, in
 * continuation slots too, so a payload byte can never pass for a published slot.
 *
 * control word: sequence 32 | kind 2 | op 6 | flags 8 | len 16   (bits 0..63, low first)
 *   sequence  position of the slot in the stream + 1, modulo 2^32: a slot is valid for a reader
 *             at position p only when it holds p + 1; what an earlier lap left never matches
 *   kind      HEAD_INLINE payload in this and the following slots; HEAD_CHUNK payload in one
 *             pool chunk; BODY continuation (never taken for a head)
 * A stream starts at the position that the writer tells in the handshake: a lap past the end of the
 * lane's last stream, so what an earlier use left behind does not match either, and a reader of
 * that earlier stream never takes a slot of the new one.
 * A packet takes 1 + ceil(max(0, len - NM_SLOT_INLINE) / NM_SLOT_BODY) slots when inline; slots
 * wrap at the end of the ring. The control word of the HEAD is stored last, with release.
 */
#define NM_SLOT_INLINE 40 /* payload bytes in a head slot */
#define NM_SLOT_BODY 56	  /* payload bytes in a continuation slot */

enum nm_slot_kind {
	NM_SLOT_HEAD_INLINE = 1,
	NM_SLOT_HEAD_CHUNK = 2,
	NM_SLOT_BODY_KIND = 3,
};

struct nm_slot {
	_Atomic uint64_t control;
	union {
		struct {
			uint64_t tag;
			uint64_t data;
			union {
				uint8_t payload[NM_SLOT_INLINE];
				struct {
					uint32_t index;	 /* in the sender's pool */
					uint32_t offset; /* of the payload in that chunk */
					uint32_t len;	 /* the control word's is 0 */
					uint8_t reserved[28];
				} chunk;
			};
		} head;
		uint8_t body[NM_SLOT_BODY];
	};
};
_Static_assert(sizeof(struct nm_slot) == NM_CACHE_LINE, "a slot is a line");

#endif
