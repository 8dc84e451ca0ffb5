/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a segment between virtual machines. Version 1.
 *
 * A segment is one file of the host. Every VM sees all of it and writes one part. It holds no
 * pointer, lock or allocator that two VMs share. Data for another VM, and the count of data taken
 * from it, are both in the own part.
 *
 *   +--------------------+ 0           nm_vmseg_host: written by the host before any VM starts
 *   | host page          |             and read-only for all of them
 *   +--------------------+ part_off
 *   | part 0             | written by VM 0 only
 *   +--------------------+ part_off + part_size
 *   | part 1 ...         |
 *   +--------------------+ size        the rest (a BAR's size is a power of two) has no meaning
 *
 *   a part
 *   +--------------------+ 0
 *   | nm_vmseg_part    | identity, geometry, state; the knock, which neighbours poll
 *   +--------------------+ NM_VMSEG_SCRATCH_OFF
 *   | scratch            | for measuring the mapping
 *   +--------------------+ slots_off
 *   | nm_vmseg_slot[]  | one per endpoint of the VM
 *   +--------------------+ cells_off
 *   | nm_vmseg_cell[]  | nr_cells for each slot: its mailbox
 *   +--------------------+ space_off
 *   | space              | windows (layout.h) of the endpoints, in granules
 *   +--------------------+ part_size
 *
 * A neighbour's words are hostile: each is read once into a private variable, checked, then used.
 */
#ifndef NM_VMSEG_LAYOUT_H
#define NM_VMSEG_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

#define NM_VMSEG_HOST_MAGIC UINT64_C(0x31746d67656d6d6e) /* "nmmegmt1" little endian */
#define NM_VMSEG_PART_MAGIC UINT64_C(0x31747261706d6d6e) /* "nmmpart1" */
#define NM_VMSEG_VERSION 1

/* Limits for a segment. Any other segment is refused at attach. */
#define NM_VMSEG_HOST_SIZE 4096
#define NM_VMSEG_TOKEN_LEN 16
#define NM_VMSEG_ALIGN (UINT64_C(2) << 20) /* of part_off; unit of DAX mappings */
#define NM_VMSEG_MIN_PART_SIZE (UINT64_C(2) << 20)
#define NM_VMSEG_MAX_PART_SIZE (UINT64_C(64) << 30)
#define NM_VMSEG_MAX_SIZE (UINT64_C(1) << 40)
#define NM_VMSEG_MAX_PARTS 256
#define NM_VMSEG_MAX_SLOTS 1024
#define NM_VMSEG_MAX_CELLS 256
/* Sizes in own parts. */
#define NM_VMSEG_MIN_SLOTS 4
#define NM_VMSEG_NR_SLOTS_MAX 256
#define NM_VMSEG_BYTES_PER_SLOT (UINT64_C(1) << 20)
#define NM_VMSEG_NR_CELLS 32
#define NM_VMSEG_GRANULE (UINT64_C(64) << 10)
#define NM_VMSEG_SCRATCH_OFF 4096
#define NM_VMSEG_SCRATCH_SIZE 16384

/*
 * States of the host page, of a part and of a slot. QUIESCE and FROZEN are for a machine that is to
 * leave the segment (docs/design/migration.md). Of a part: QUIESCE, its machine is asked to leave;
 * FROZEN, it has left. Any other number in the state of a part means that no process asked.
 */
enum nm_vmseg_state {
	NM_VMSEG_FREE = 0,
	NM_VMSEG_INIT = 1, /* claimed, not readable yet */
	NM_VMSEG_RUN = 2,
	NM_VMSEG_QUIESCE = 3, /* of a slot: its endpoint sends no more packets; its heart beats */
	NM_VMSEG_FROZEN = 4,  /* of a slot: no packet, letter or heartbeat is written either */
	NM_VMSEG_GONE = 5,    /* the end; published data stays for a while */
};

/*
 * The `features` of every part. Bit 0: its states QUIESCE and FROZEN have a meaning. A reader that
 * does not know them takes an endpoint in FROZEN for a dead one.
 */
#define NM_VMSEG_FEATURES UINT32_C(1)

struct nm_vmseg_host {
	/* line 0: written once */
	uint64_t magic;
	uint32_t version;
	uint32_t features; /* bits that a guest must know to use the segment; none yet */
	uint8_t token[NM_VMSEG_TOKEN_LEN]; /* random; the seed of each VM contains it */
	uint64_t size;			   /* end of the last part */
	uint64_t part_off;
	uint64_t part_size; /* a power of two */
	uint32_t nr_parts;
	uint32_t reserved0;
	/* line 1: only the host changes it while VMs run */
	_Atomic uint32_t state; /* enum nm_vmseg_state: RUN */
	_Atomic uint32_t epoch; /* +1 with each change of state */
	uint8_t reserved1[56];
};
_Static_assert(sizeof(struct nm_vmseg_host) == 2 * NM_CACHE_LINE, "two lines");
_Static_assert(offsetof(struct nm_vmseg_host, state) == 64, "line 1");

struct nm_vmseg_part {
	/* line 0: written by the first endpoint after a boot, `generation` last */
	uint64_t magic;
	uint32_t version;
	uint32_t features;	     /* NM_VMSEG_FEATURES; a neighbour must know each bit */
	_Atomic uint64_t generation; /* random; a new value after each boot of the VM */
	uint32_t index;
	uint32_t nr_slots;
	uint32_t nr_cells; /* of each slot */
	uint32_t slots_off;
	uint32_t cells_off;
	uint32_t space_off;
	int32_t numa;	   /* NUMA node of this part's memory, reported by the host; -1: unknown */
	int32_t vcpu_numa; /* NUMA node of the VM's pinned processors; -1: unknown */
	uint8_t reserved0[8];
	/* line 1: rarely changes */
	_Atomic uint32_t state; /* enum nm_vmseg_state */
	_Atomic uint32_t epoch; /* +1 with each change of state */
	uint8_t reserved1[56];
	/* line 2: polled by every neighbour. +1 after each message that was put into a mailbox. */
	_Atomic uint64_t knock;
	uint8_t reserved2[56];
	/* line 3: written through one mapping and read through the other, to compare them */
	_Atomic uint64_t echo;
	uint8_t reserved3[56];
};
_Static_assert(sizeof(struct nm_vmseg_part) == 4 * NM_CACHE_LINE, "four lines");
_Static_assert(offsetof(struct nm_vmseg_part, state) == 64, "line 1");
_Static_assert(offsetof(struct nm_vmseg_part, knock) == 128, "line 2");
_Static_assert(offsetof(struct nm_vmseg_part, echo) == 192, "line 3");

/*
 * An endpoint of the VM. `control` is published last: generation 56 | state 8 (low). Each
 * generation belongs to one endpoint; (part generation, slot, generation) is never reused.
 */
struct nm_vmseg_slot {
	/* line 0: written between the claim and RUN */
	_Atomic uint64_t control;
	uint64_t window_off; /* of its window in the part; a multiple of the granule */
	uint64_t window_size;
	uint8_t id[6];
	uint8_t reserved0[34];
	/* line 1: changes */
	_Atomic uint64_t heartbeat; /* the lease: +1 about ten times a second */
	_Atomic uint64_t posted;    /* sequence of the newest message in the mailbox */
	_Atomic uint64_t gone_ns;   /* time of its end, by a clock of its VM and for its VM only */
	uint8_t reserved2[40];
};
_Static_assert(sizeof(struct nm_vmseg_slot) == 2 * NM_CACHE_LINE, "two lines");
_Static_assert(offsetof(struct nm_vmseg_slot, heartbeat) == 64, "line 1");

#define NM_VMSEG_STATE_BITS 8
#define NM_VMSEG_MESSAGE_MAX 256

/*
 * A message in a mailbox. `sequence` counts all messages of one endpoint from 1 and is stored last;
 * 0: empty, or being written. Slot s owns nr_cells cells from s * nr_cells on.
 */
struct nm_vmseg_cell {
	_Atomic uint64_t sequence;
	uint64_t to_part_generation;
	uint64_t to_generation;
	uint32_t to_part;
	uint32_t to_slot;
	uint32_t len;
	uint8_t reserved[28];
	uint8_t bytes[NM_VMSEG_MESSAGE_MAX];
};
_Static_assert(sizeof(struct nm_vmseg_cell) == 5 * NM_CACHE_LINE, "five lines");

#endif
