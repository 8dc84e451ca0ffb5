/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engines say to each other: the packets of protocol version 1 (docs/design/protocol.md).
 *
 * A packet is struct nm_packet (op, flags, len, tag, data) and a payload. Transports keep packets
 * of one link in order and lose none. Everything here is written by the peer: it is copied once,
 * checked, and then used. Integers are little endian, as all supported machines are.
 *
 * Envelopes (EAGER, RTS, WRITE, WRITE_RTS, READ, ATOMIC) start something; they are handed to the
 * transport at once or refused with -EAGAIN, never queued, so they arrive in the order of the
 * calls. The others answer or continue; they may wait in the peer's private queue.
 */
#ifndef NM_ENGINE_PROTOCOL_H
#define NM_ENGINE_PROTOCOL_H

#include <assert.h>
#include <stdint.h>

#include "base/compiler.h"

enum nm_op {
	/*
	 * A whole message. tag: its tag; data: the completion data, with NM_PKT_DATA.
	 * With NM_PKT_ACK the payload starts with struct nm_wire_id: the request to ACK once the
	 * message is matched and copied.
	 */
	NM_OP_EAGER = 1,
	/*
	 * The envelope of a large message: tag and data as in EAGER; payload struct nm_wire_rts.
	 * With NM_PKT_MEMORY as many struct nm_wire_span follow as NM_PKT_NR says: where the
	 * message lies at the sender, for a receiver that can read there.
	 */
	NM_OP_RTS = 2,
	/*
	 * Answer to RTS and WRITE_RTS: send me these bytes. A transfer can begin anywhere, so what
	 * failed on one way goes on on another where it stopped.
	 * tag: the sender's id; data: the receiver's id; payload struct nm_wire_cts.
	 * With NM_PKT_MEMORY spans follow as in RTS: write the bytes there yourself, then say
	 * PLACED; once per message. Else they come as DATA; then NM_PKT_LAST is set, for nothing
	 * more will be asked, and NM_PKT_PAST may be: the receiver shares no cache with the sender.
	 */
	NM_OP_CTS = 3,
	/* Bytes of a transfer, in order. tag: the receiver's id; data: offset of the first byte. */
	NM_OP_DATA = 4,
	/* An operation ended at the target. tag: the initiator's id; data: 0 or a positive errno. Also
	 * to the sender of an RTS with NM_PKT_MEMORY: every byte is there. */
	NM_OP_ACK = 5,
	/* Put: tag: the initiator's id; data: completion data, with NM_PKT_DATA. Payload: as many
	 * struct nm_wire_remote as NM_PKT_NR says, then the bytes. Answered by ACK. */
	NM_OP_WRITE = 6,
	/*
	 * Large put: as WRITE without the bytes. Answered by CTS (then DATA, then ACK) or by ACK.
	 */
	NM_OP_WRITE_RTS = 7,
	/* Get: payload as in WRITE_RTS. Answered by DATA to the initiator's id, or by ACK when it is
	 * empty or refused (also after some DATA, when the region went away). */
	NM_OP_READ = 8,
	/* Atomic: tag, data as in WRITE; payload struct nm_wire_atomic, the remotes, the operand,
	 * the compare bytes. Answered by ACK, or by RESULT when it fetches. */
	NM_OP_ATOMIC = 9,
	/* What was at the target before. tag: the initiator's id; payload: the bytes. */
	NM_OP_RESULT = 10,
	/*
	 * First word on the network after a channel between the two was given up (failover.c). tag:
	 * how much the sender had published there; data: how much it had taken of what came.
	 */
	NM_OP_SWITCH = 11,
	/* What a CTS with NM_PKT_MEMORY asked for has ended. tag: the receiver's id; data: how many of
	 * the bytes were written, from the first one on. */
	NM_OP_PLACED = 12,
	/* The receiver of messages has something to say on where they wait. data: enum nm_pace. */
	NM_OP_PACE = 13,
	NM_NR_OPS
};

enum nm_pace {
	NM_PACE_FREE, /* small messages may come with their envelope, as at the start */
	NM_PACE_KEEP, /* many of yours wait here: send envelopes, keep the bytes until I ask for them */
	NM_PACE_STOP, /* too many of yours wait here: I take nothing more of you */
};

#define NM_PKT_TAGGED 0x01u /* for the tagged queue, else for the untagged one */
#define NM_PKT_DATA 0x02u   /* data goes into the completion at the receiver */
#define NM_PKT_ACK 0x04u    /* confirm the delivery to the sender */
#define NM_PKT_MEMORY 0x08u /* RTS, CTS: with spans of the peer's memory */
#define NM_PKT_LAST 0x10u   /* CTS: nothing more will be asked */
#define NM_PKT_PAST 0x20u   /* CTS: copy past the cache */
#define NM_PKT_NR_SHIFT 6   /* bits 6 and 7: number of struct nm_wire_remote, less one */
#define NM_PKT_NR(flags) (((unsigned int)(flags) >> NM_PKT_NR_SHIFT) + 1)

struct nm_wire_id {
	uint64_t id;
};
static_assert(sizeof(struct nm_wire_id) == 8, "on the wire");

struct nm_wire_rts {
	uint64_t size;	    /* of the whole message */
	uint64_t sender_id; /* goes back in CTS and ACK */
};
static_assert(sizeof(struct nm_wire_rts) == 16, "on the wire");

struct nm_wire_cts {
	uint64_t offset; /* of the first byte */
	uint64_t len;	 /* what does not fit at the receiver is not transferred */
};
static_assert(sizeof(struct nm_wire_cts) == 16, "on the wire");

struct nm_wire_span {
	uint64_t address;
	uint64_t len;
};
static_assert(sizeof(struct nm_wire_span) == 16, "on the wire");

struct nm_wire_remote {
	uint64_t address;
	uint64_t len;
	uint64_t key;
};
static_assert(sizeof(struct nm_wire_remote) == 24, "on the wire");

struct nm_wire_atomic {
	uint8_t kind; /* enum nm_atomic_kind */
	uint8_t datatype;
	uint8_t op;
	uint8_t reserved;
	uint32_t size; /* bytes of the operand, and of the compare bytes when there are some */
};
static_assert(sizeof(struct nm_wire_atomic) == 8, "on the wire");

/* Sizes that fit one packet of every transport (transport.h: NM_MIN_MAX_PAYLOAD). */
#define NM_ATOMIC_MAX_BYTES 1024
static_assert(sizeof(struct nm_wire_atomic) + 4 * sizeof(struct nm_wire_remote) +
			      2 * NM_ATOMIC_MAX_BYTES <=
		      4096,
	      "an atomic is one packet");

#endif
