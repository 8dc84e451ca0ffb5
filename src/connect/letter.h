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
 * Every process in the segment's VMs can read all of it, and a letter holds no secret. Its place
 * names its sender: only that machine can write there.
 */
#ifndef NM_CONNECT_LETTER_H
#define NM_CONNECT_LETTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
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

#endif
