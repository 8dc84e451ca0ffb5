/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two endpoints say to each other on the session socket (SOCK_SEQPACKET, one datagram each):
 *
 *   caller -> owner  HELLO    who I am, whom I want, my window (descriptor), my lane, challenge
 *   owner -> caller  WELCOME  my window (descriptor), my lane for your credits, challenge
 *   caller -> owner  MET      I see my challenge in your window and have written yours into mine
 *   owner -> caller  ACK      likewise; I will read what you send
 *   caller -> owner  GO       and I will send: from here on the link exists
 *
 * On the way both find out whether they may copy from and to each other's memory (cma_proof.h):
 * HELLO and WELCOME offer it, MET, ACK and GO say whether it worked. It is no condition of a link.
 *
 *   either            BYE      the end, with an error number and words
 *
 * The header and BYE never change from version to version, so that any two releases can refuse each
 * other in words. Same kernel on both sides: native byte order.
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

/* How packets look in the windows, beyond what the layout's version says. */
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
	uint8_t owner_token[8]; /* HELLO: shows that the caller was given the address */
	uint8_t reserved[2];
	uint32_t lane;	   /* HELLO: of the ring; WELCOME: of the credits */
	uint32_t features; /* NM_FEATURE_: both sides must have the same */
	uint32_t reserved1[2];
	uint64_t start;		/* HELLO: position at which the stream starts */
	uint64_t challenge;	/* to be written into `proof` of the other's lane */
	uint64_t pid_ns_device; /* which PID namespace; 0: unknown */
	uint64_t pid_ns_inode;
	struct nm_cma_offer cma;
	struct nm_peer_label label;
};

/* MET, ACK, GO and BYE. */
struct nm_step {
	struct nm_message_header header;
	/* 1: I can copy from and to your memory (GO: and you to mine). BYE: 0: in order; else
	 * -errno as the sender saw it. */
	int32_t value;
	char words[180]; /* why not */
};

#define NM_MESSAGE_MAX 256
_Static_assert(sizeof(struct nm_greeting) <= NM_MESSAGE_MAX, "fits the receive buffer");
_Static_assert(sizeof(struct nm_message_header) == 8, "part of every version");
_Static_assert(sizeof(struct nm_step) == 192, "as BYE part of every version");
_Static_assert(sizeof(struct nm_greeting) == 232, "no padding, which would carry stray bytes");

/*
 * Check LEN foreign bytes. Returns the kind, or -EBADMSG (no such message, or not as long as its
 * kind is), -EPROTONOSUPPORT (another layout version; BYE is understood whatever the version).
 */
int nm_message_parse(const void *bytes, size_t len, struct nm_reason *ret_reason);
/* As above, for a message that must be HELLO or WELCOME; the copy's label is safe to print. */
int nm_greeting_parse(const void *bytes, size_t len, enum nm_message_kind kind,
		      struct nm_greeting *ret_greeting, struct nm_reason *ret_reason);
/* Copy out a message that nm_message_parse() accepted. The words are safe to print. */
void nm_step_copy(const void *bytes, struct nm_step *ret_step);

void nm_message_init(struct nm_message_header *header, enum nm_message_kind kind);

/* Send one message, with descriptor PASS_FD unless it is -1. Never blocks. 0 or -errno. */
int nm_message_send(int fd, const void *message, size_t len, int pass_fd);
/* Send MET, ACK, GO or BYE. No error of BYE matters: the hangup follows. */
int nm_message_send_step(int fd, enum nm_message_kind kind, int value, const char *words);
/*
 * Receive one message into BYTES and the one descriptor that may come with it (else -1; more than
 * one is closed and refused). Never blocks. Returns the length; 0: the other side hung up; -EAGAIN;
 * -EMFILE: a descriptor came but this process may not open more; -EBADMSG; -errno.
 */
int nm_message_receive(int fd, uint8_t bytes[NM_MESSAGE_MAX], int *ret_fd);

#endif
