/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections over the mailboxes of a segment (vmseg/attach.h): the content of a cell. A mailbox
 * keeps a message until its sender removes it, and does not show that it was read. So letters are
 * numbered, acknowledged one by one, and sent again until the acknowledgement arrives.
 *
 *   letter:  number of the connection | sequence of this letter | last sequence received | message
 *
 * A letter without a message (sequence 0) only acknowledges. HANGUP follows the last message. RESET
 * answers a letter that belongs to no connection. An endpoint whose machine stood still learns from
 * it that its peers gave it up. PROBE asks for an answer.
 *
 * Every process in the segment's VMs can read all of it. So the secrets of a greeting are sent
 * covered, and a slot shows a proof of its secret instead of the secret. The owner of another part
 * cannot show this proof in its own part and cannot compute the secret from it.
 */
#ifndef NM_CONNECT_LETTER_H
#define NM_CONNECT_LETTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "connect/address.h"
#include "connect/message.h"
#include "vmseg/attach.h"

#define NM_LETTER_MAGIC UINT32_C(0x746c6d6e) /* "nmlt" */

enum nm_letter_flag {
	NM_LETTER_CALLER = 1, /* the sender is the caller */
	NM_LETTER_HANGUP = 2,
	NM_LETTER_RESET = 4,
	NM_LETTER_PROBE = 8,
};
#define NM_LETTER_FLAGS 15u

struct nm_letter_head {
	uint32_t magic;
	uint16_t flags;
	uint16_t len;	   /* of the message */
	uint64_t number;   /* of the connection: random, chosen by the caller, never 0 */
	uint32_t sequence; /* starts at 1; 0: this letter only acknowledges */
	uint32_t taken;	   /* last sequence received; it acknowledges all before it */
};

#define NM_LETTER_MESSAGE_MAX (NM_VMSEG_MESSAGE_MAX - sizeof(struct nm_letter_head))
_Static_assert(sizeof(struct nm_letter_head) == 24, "no padding");
_Static_assert(NM_LETTER_MESSAGE_MAX >= sizeof(struct nm_greeting), "every message fits");
_Static_assert(NM_LETTER_MESSAGE_MAX >= sizeof(struct nm_step), "every message fits");

/*
 * Check LEN foreign bytes. An optional message follows the head and is unchecked. Pure. Returns 0
 * or -EBADMSG.
 */
int nm_letter_parse(const void *bytes, size_t len, struct nm_letter_head *ret_head);

/*
 * The proof that an endpoint shows in its slot in PART if it knows TOKEN. It is the same for every
 * endpoint that knows TOKEN. It is worthless in another part.
 */
void nm_letter_proof(const uint8_t token[8], const uint8_t segment[NM_VMSEG_TOKEN_LEN],
		     uint32_t part, uint8_t ret_proof[8]);

/* One direction of one connection, for covering secrets. */
struct nm_letter_cover {
	const uint8_t *owner_token; /* known only to the two sides */
	const uint8_t *segment;	    /* token of the segment */
	const struct nm_vmseg_address *caller, *owner;
	uint64_t number;
};
/* Cover or uncover (the same operation) the secrets of MESSAGE, LEN bytes, if it is a greeting. */
void nm_letter_cover(const struct nm_letter_cover *cover, bool from_caller, void *message,
		     size_t len);

#endif
