/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that neighbours share. Version 4.
 *
 * A *window* is one contiguous region that exactly one party writes (its owner) and every neighbour
 * maps read-only. It holds no pointers, locks or allocators: only offsets, counters and words that
 * one release store publishes and one acquire load takes. Data from A to B is in A's window (rings,
 * pool). B's count of consumed data is in B's window, which A reads. So the death of a party leaves
 * nothing locked. A hostile party can send wrong messages but cannot change the bytes of others.
 *
 *   window of endpoint A (a sealed memfd in one kernel; between machines, room in a part)
 *   +--------------------+ 0
 *   | nm_window_header   | identity, layout version, geometry, state
 *   +--------------------+ lanes_off
 *   | nm_lane[nr_lanes]  | one per link in use: out: identity of the reader; in: credits returned
 *   +--------------------+ regions_off
 *   | nm_region_slot[]   | registered memory that neighbours may copy from and to directly
 *   +--------------------+ rings_off
 *   | nm_ring[nr_lanes]   | ring of ring_slots 64-byte slots; ring i belongs to lane i
 *   +--------------------+ pool_off
 *   | bulk pool          | chunks of chunk_size bytes, rotated first-in first-out
 *   +--------------------+ size
 *
 * Foreign windows are hostile: read each word once into a private variable, check it, then use it.
 * The geometry is checked at attach (window.h); after that only the private copy is used.
 *
 * A lane has no generation: the start of a stream distinguishes it from the lane's last use.
 * Version 4 has the state of each link in the lanes, and the life of the owner in the header.
 */
#ifndef NM_SHM_LAYOUT_H
#define NM_SHM_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

#define NM_LAYOUT_MAGIC UINT64_C(0x31776c6174656d6e) /* "nmetalw1" little endian */
#define NM_LAYOUT_VERSION 4

/* Limits for a neighbour's window. Any other window is refused at attach. */
#define NM_MAX_LANES 4096
#define NM_MIN_RING_SLOTS 16
#define NM_MAX_RING_SLOTS 4096
#define NM_MIN_CHUNK_SIZE 4096
#define NM_MAX_CHUNK_SIZE 65536
#define NM_MAX_POOL_SIZE (UINT64_C(1) << 30)
#define NM_MAX_REGIONS 65536
/* Size of the table in own windows. Further regions are served by their owner. */
#define NM_NR_REGIONS 512
/* Number of slots where a key may be. */
#define NM_REGION_BUCKET 4

enum nm_window_state {
	NM_WINDOW_INIT = 0,
	NM_WINDOW_RUN = 1,
	NM_WINDOW_GONE = 2, /* closed normally; everything sent was published before */
};

/* Positions in a window. */
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
	/* line 0: written once, before any neighbour sees the window */
	uint64_t magic;
	uint32_t version;
	uint32_t features; /* bits that a neighbour must know to use this window; none yet */
	struct nm_geometry geometry; /* readers use a checked private copy */
	/* line 1: identity, written once, and rarely changed words */
	uint8_t id[6];
	uint8_t reserved1[10];
	/* Not 0 while the owner sleeps, and another number for each sleep, in which each sender
	 * rings once. A sender reads it for each message, so its line holds nothing that changes
	 * while work goes on. Partner: nm_shm_send(). */
	_Atomic uint32_t asleep;
	uint8_t reserved4[44];
	/* line 2: changes; rarely read */
	_Atomic uint32_t state; /* enum nm_window_state */
	/* Number of a thread that lives as long as the endpoint. The kernel sets FUTEX_OWNER_DIED at
	 * its end, before it closes the files of the process (robust_list). 0: unknown. */
	_Atomic uint32_t life;
	/* Approximate CLOCK_MONOTONIC of the owner's last poll; 0: none yet. Only for estimates. */
	_Atomic uint64_t polled_ns;
	uint8_t reserved3[48];
};
_Static_assert(sizeof(struct nm_window_header) == 3 * NM_CACHE_LINE, "three lines");
_Static_assert(offsetof(struct nm_window_header, id) == 64, "line 1");
_Static_assert(offsetof(struct nm_window_header, state) == 128, "line 2");

#define NM_LANE_WHO 14 /* bytes of an identity */

/* State of a link at one side. A peer that sees ENDED knows that the owner itself ended the link. */
#define NM_LANE_IDLE 0u
#define NM_LANE_SHOWN 1u      /* the proof is there */
#define NM_LANE_AGREED 2u     /* the owner saw the peer's proof: it will read; or it will send */
#define NM_LANE_ENDED 0x8000u /* or the errno of the reason; 0: no reason was given */
#define NM_LANE_ERRNO 0x0fffu

/*
 * Lane i of a window; only the owner writes it. At most one link uses a lane in each direction. The
 * handshake pairs it with a peer and one of the peer's lanes. Both sides keep this pairing in
 * private memory.
 */
struct nm_lane {
	/* line 0: feedback of the owner as a receiver. Partner: the writer's credit check. */
	_Atomic uint64_t consumed; /* position of the reader in the paired ring */
	_Atomic uint64_t
		chunks_freed; /* total of returned pool chunks of the paired window, in order */
	uint8_t reserved0[48];
	/* line 1: echoes of the peers' challenges, read only at the handshake: they prove that the
	 * peer sees what the owner writes. Both directions of a lane may have different peers. */
	_Atomic uint64_t writer_proof; /* owner is the sender of this lane's ring */
	_Atomic uint64_t reader_proof; /* owner is the receiver whose credits are in line 0 */
	/* The owner, as the sender, adds 1 before and 1 after it uses a region of the paired peer
	 * (shm/regions.h), so it is odd meanwhile. Partner: the peer that closes a region. */
	_Atomic uint64_t reaching;
	/* The owner, as the sender, rings it for a sleeping reader (shm/doorbell.h). */
	_Atomic uint32_t doorbell;
	/* State of the link as the owner sees it, in both roles: NM_LANE_. */
	_Atomic uint16_t writer_step, reader_step;
	uint32_t start; /* first position of the stream that the owner sends */
	/* Identities of the peers (connect/address.h) to which the proofs above belong. */
	uint8_t writer_for[NM_LANE_WHO], reader_for[NM_LANE_WHO];
};
_Static_assert(sizeof(struct nm_lane) == 2 * NM_CACHE_LINE, "two lines, no false sharing");

/* A region of registered memory; access 0: empty. See shm/regions.h. */
struct nm_region_slot {
	_Atomic uint64_t sequence; /* odd during a change of the other members */
	_Atomic uint64_t key, base, len, offset, access;
	uint8_t reserved[16];
};
_Static_assert(sizeof(struct nm_region_slot) == NM_CACHE_LINE, "a region is a line");

/*
 * A single-producer single-consumer ring. Slot word 0 is always the control word, also in
 * continuation slots, so a payload byte never looks like a published slot.
 *
 * control word: sequence 32 | kind 2 | op 6 | flags 8 | len 16   (bits 0..63, low first)
 *   sequence  position of the slot in the stream + 1, modulo 2^32. A slot is valid for a reader at
 *             position p only if it holds p + 1, so the slots of an earlier lap never match.
 *   kind      HEAD_INLINE payload in this and the following slots; HEAD_CHUNK payload in one
 *             pool chunk; BODY continuation (never taken for a head)
 * A stream starts at the position that the writer sends in the handshake, one lap past the end of
 * the lane's last stream. So slots of an earlier use never match, and a reader of an earlier stream
 * never takes a slot of the new one.
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
					uint32_t len;	 /* the length in the control word is 0 */
					uint8_t reserved[28];
				} chunk;
			};
		} head;
		uint8_t body[NM_SLOT_BODY];
	};
};
_Static_assert(sizeof(struct nm_slot) == NM_CACHE_LINE, "a slot is a line");

#endif
