/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packets between engines, protocol version 1 (docs/design/protocol.md).
 *
 * A packet is struct nm_packet (op, flags, len, tag, data) and a payload. Transports keep packets
 * of one link in order and lose none. The peer writes all of it, so it is copied once, checked, and
 * then used. Integers are little endian, like all supported machines.
 *
 * Envelopes (EAGER, RTS, WRITE, WRITE_RTS, READ, ATOMIC) start an operation. They are passed to the
 * transport at once or refused with -EAGAIN, never queued, so they arrive in the order of the
 * calls. The other packets answer or continue; they may wait in the peer's private queue.
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
	 * With NM_PKT_MEMORY, NM_PKT_NR instances of struct nm_wire_span follow: the place of the
	 * message at the sender, for a receiver that can read there. If it is on a device, struct
	 * nm_device_share follows instead; the length says which.
	 */
	NM_OP_RTS = 2,
	/*
	 * Answer to RTS and WRITE_RTS: asks for bytes. A transfer can begin at any offset, so after
	 * an error on one way another way continues at the same place. tag: the sender's id; data:
	 * the receiver's id; payload struct nm_wire_cts. With NM_PKT_MEMORY, once per message,
	 * spans follow as in RTS: the sender writes the bytes there itself, then sends PLACED.
	 * If the message was offered with NM_PKT_DIRECT, struct nm_wire_tag may follow: the sender
	 * sends the bytes past the packets, with this tag, then PLACED.
	 * Otherwise the bytes come as DATA. NM_PKT_LAST is then set, because no other request
	 * follows. NM_PKT_PAST may be set: the receiver shares no cache with the sender.
	 */
	NM_OP_CTS = 3,
	/* Bytes of a transfer, in order. tag: the receiver's id; data: offset of the first byte. */
	NM_OP_DATA = 4,
	/* An operation ended at the target. tag: the initiator's id; data: 0 or a positive errno.
	 * Also sent to the sender of an RTS with NM_PKT_MEMORY: every byte has arrived. And, as an
	 * error, to the receiver of DATA: the sender's device failed, and no more bytes follow. */
	NM_OP_ACK = 5,
	/* Put: tag: the initiator's id; data: completion data, with NM_PKT_DATA. Payload: NM_PKT_NR
	 * instances of struct nm_wire_remote, then the bytes. Answered by ACK. */
	NM_OP_WRITE = 6,
	/*
	 * Large put: like WRITE without the bytes. Answered by CTS (then DATA, then ACK) or by ACK.
	 */
	NM_OP_WRITE_RTS = 7,
	/* Get: payload as in WRITE_RTS. Answered by DATA to the initiator's id, or by ACK if it is
	 * empty or refused (also after some DATA, if the region went away). */
	NM_OP_READ = 8,
	/* Atomic: tag, data as in WRITE; payload struct nm_wire_atomic, the remotes, the operand,
	 * the compare bytes. Answered by RESULT if it fetches, else by ACK. */
	NM_OP_ATOMIC = 9,
	/* The old value at the target. tag: the initiator's id; payload: the bytes. */
	NM_OP_RESULT = 10,
	/*
	 * First packet on the network after the two gave up a channel (failover.c). tag: the
	 * sender's count of published data there; data: its count of data taken from there.
	 */
	NM_OP_SWITCH = 11,
	/* The writing for a CTS with NM_PKT_MEMORY or a tag has ended. tag: the receiver's id; data:
	 * number of bytes written, from the first one on; with a tag, all, none or another number. */
	NM_OP_PLACED = 12,
	/* The receiver sets where messages wait. data: enum nm_pace. */
	NM_OP_PACE = 13,
	/*
	 * On the network, the last packet of a way that used memory (move.h). tag: the position
	 * after the last packet there; data: number of the session. Answered by MOVED. All zero: the
	 * sender sees whether the network takes packets, and wants nothing.
	 * With NM_MOVE_TO_MEMORY in data, tag is 0: the last packet on the network of a way that
	 * comes back, and the first one in that session.
	 */
	NM_OP_MOVE = 14,
	/* The sender has left the reader's end of a session. tag: the position up to which it took
	 * packets; data: number of the session. */
	NM_OP_MOVED = 15,
	/*
	 * On the network: the sender has moved, and its memory is elsewhere (move_home.c). tag: the
	 * name of its part, NM_HOME_LEN bytes; data: number of the move, from 1 on.
	 */
	NM_OP_HOME = 16,
	NM_NR_OPS
};

enum nm_pace {
	NM_PACE_FREE, /* send small messages with their envelope, as at the start */
	NM_PACE_KEEP, /* many of yours wait here: send envelopes, keep the bytes until asked */
	NM_PACE_STOP, /* too many of your messages wait here: no more are taken */
};

#define NM_MOVE_TO_MEMORY (UINT64_C(1) << 32)

#define NM_PKT_TAGGED 0x01u /* for the tagged queue, else for the untagged one */
#define NM_PKT_DATA 0x02u   /* put data into the completion at the receiver */
#define NM_PKT_ACK 0x04u    /* confirm the delivery to the sender */
#define NM_PKT_MEMORY 0x08u /* RTS, CTS: with spans of the peer's memory */
#define NM_PKT_LAST 0x10u   /* CTS: no other request follows */
#define NM_PKT_DIRECT 0x10u /* RTS: a network adapter reaches the bytes on their device */
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
	uint64_t len;	 /* bytes that do not fit at the receiver are not transferred */
};
static_assert(sizeof(struct nm_wire_cts) == 16, "on the wire");

/* Of messages of the network beside the packets. */
struct nm_wire_tag {
	uint64_t tag;
};
static_assert(sizeof(struct nm_wire_tag) == 8, "on the wire");

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
	uint32_t size; /* bytes of the operand, and of the compare bytes if present */
};
static_assert(sizeof(struct nm_wire_atomic) == 8, "on the wire");

/* Sizes that fit one packet of every transport (transport.h: NM_MIN_MAX_PAYLOAD). */
#define NM_ATOMIC_MAX_BYTES 1024
static_assert(sizeof(struct nm_wire_atomic) + 4 * sizeof(struct nm_wire_remote) +
			      2 * NM_ATOMIC_MAX_BYTES <=
		      4096,
	      "an atomic is one packet");

#endif
