/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of two endpoints on the session socket (SOCK_SEQPACKET, one datagram each):
 *
 *   caller -> owner  HELLO    both identities, the caller's window (descriptor), lane, challenge
 *   owner -> caller  WELCOME  the owner's window (descriptor), its lane for credits, challenge
 *   caller -> owner  MET      I see my challenge in your window; yours is written into mine
 *   owner -> caller  ACK      I see mine too; I will read what you send
 *   caller -> owner  GO       I will send: from here on the link exists
 *
 * Another process may own the socket, so MET, ACK, GO and BYE only ask the receiver to look. What
 * they say counts if the lane in the sender's window shows it too (NM_LANE_ in shm/layout.h).
 *
 * MET and ACK also carry the sender's heap (descriptor) if there is one (shm/heap.h).
 *
 * Both sides also learn if they may copy from and to each other's memory (cma_proof.h). HELLO and
 * WELCOME offer it; MET, ACK and GO carry the result. A link does not depend on it.
 *
 *   either            BYE      the end, with an error number and a reason
 *
 * The header and BYE are the same in all versions, so that any two releases can refuse each other
 * with a reason. Both sides share one kernel: native byte order.
 */
#ifndef NM_CONNECT_MESSAGE_H
#define NM_CONNECT_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/reason.h"
#include "connect/address.h"
#include "connect/cma_proof.h"
#include "connect/locality.h"

#define NM_SESSION_MAGIC UINT32_C(0x746d6d6e) /* "nmmt" */

/* Properties of packets in the windows that the layout version does not cover. */
#define NM_FEATURE_CHECKSUM 1u
#define NM_FEATURES_KNOWN NM_FEATURE_CHECKSUM

enum nm_message_kind {
	NM_MESSAGE_HELLO = 1,
	NM_MESSAGE_WELCOME = 2,
	NM_MESSAGE_MET = 3,
	NM_MESSAGE_ACK = 4,
	NM_MESSAGE_GO = 5,
	NM_MESSAGE_BYE = 6,
};

struct nm_message_header {
	uint32_t magic;
	uint16_t version; /* NM_LAYOUT_VERSION of the sender */
	uint16_t kind;
};

/* HELLO and WELCOME. */
struct nm_greeting {
	struct nm_message_header header;
	struct nm_identity who; /* the sender */
	struct nm_identity to;	/* HELLO: the endpoint that it calls */
	uint32_t lane;		/* HELLO: of the ring; WELCOME: of the credits */
	uint32_t features;	/* NM_FEATURE_: must be equal on both sides */
	uint32_t reserved;
	uint64_t challenge;	/* the receiver writes it into `proof` of its lane */
	uint64_t pid_ns_device; /* PID namespace; 0: unknown */
	uint64_t pid_ns_inode;
	struct nm_cma_offer cma;
	struct nm_peer_label label;
};

/* MET, ACK, GO and BYE. */
struct nm_step {
	struct nm_message_header header;
	/* 1: the sender can copy from and to your memory (GO: and you to the sender's). BYE: 0:
	 * normal end; else -errno at the sender. */
	int32_t value;
	char words[180]; /* the reason */
};

#define NM_MESSAGE_MAX 256
_Static_assert(sizeof(struct nm_greeting) <= NM_MESSAGE_MAX, "fits the receive buffer");
_Static_assert(sizeof(struct nm_message_header) == 8, "part of every version");
_Static_assert(sizeof(struct nm_step) == 192, "as BYE part of every version");
_Static_assert(sizeof(struct nm_greeting) == 224, "no padding, which would carry stray bytes");

/*
 * Check LEN foreign bytes. Returns the kind; -EBADMSG: no such kind, or its length is wrong;
 * -EPROTONOSUPPORT: another layout version (BYE is understood in every version).
 */
int nm_message_parse(const void *bytes, size_t len, struct nm_reason *ret_reason);
/* As above, for a message that must be HELLO or WELCOME; the copy's label is safe to print. */
int nm_greeting_parse(const void *bytes, size_t len, enum nm_message_kind kind,
		      struct nm_greeting *ret_greeting, struct nm_reason *ret_reason);
/* Copy out a message that nm_message_parse() accepted. The words are safe to print. */
void nm_step_copy(const void *bytes, struct nm_step *ret_step);

void nm_message_init(struct nm_message_header *header, enum nm_message_kind kind);

/*
 * Send one message, with descriptor PASS_FD unless it is -1. Never blocks. 0 or -errno. -EBUSY: the
 * user has too many descriptors in flight, which any of its processes can cause, and which may pass.
 */
int nm_message_send(int fd, const void *message, size_t len, int pass_fd);
/* What an error of nm_message_send() means, in words. */
const char *nm_message_send_error(int err);
/* Send MET, ACK, GO or BYE. No error of BYE matters: the hangup follows. */
int nm_message_send_step(int fd, enum nm_message_kind kind, int value, const char *words);
/* The same with descriptor PASS_FD unless it is -1. */
int nm_message_send_step_with(int fd, enum nm_message_kind kind, int value, const char *words,
			      int pass_fd);
/*
 * Receive one message into BYTES and its descriptor, if there is one (else -1; more than one is
 * closed and refused). Never blocks. Returns the length; 0: the other side hung up; -EAGAIN;
 * -EMFILE: a descriptor came but this process may not open more; -EBADMSG; -errno.
 */
int nm_message_receive(int fd, uint8_t bytes[NM_MESSAGE_MAX], int *ret_fd);

#endif
