/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections over the mailboxes of a segment (vmseg/attach.h): what goes into a cell. Mailboxes
 * keep a message until its sender takes it back, and do not show that it was read; so letters are
 * numbered and acknowledged one by one, and sent again until they are.
 *
 *   letter:  number of the connection | sequence of this letter | sequence taken from you | message
 *
 * A letter without a message (sequence 0) only acknowledges. HANGUP comes behind the last message.
 * RESET answers what belongs to no connection: an endpoint that was given up while its machine
 * stood still learns so from it. PROBE asks for an answer.
 *
 * Everybody who shares a segment can read all of it, so no secret of a greeting is sent as it is,
 * and what shows in a slot is proof of a secret and not the secret. The owner of another part can
 * neither show the proof there nor read the secret from it.
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
	NM_LETTER_CALLER = 1, /* its sender is the caller */
	NM_LETTER_HANGUP = 2,
	NM_LETTER_RESET = 4,
	NM_LETTER_PROBE = 8,
};
#define NM_LETTER_FLAGS 15u

struct nm_letter_head {
	uint32_t magic;
	uint16_t flags;
	uint16_t len;	   /* of the message */
	uint64_t number;   /* of the connection, random: the caller's choice; never 0 */
	uint32_t sequence; /* from 1; 0: an acknowledgement and nothing else */
	uint32_t taken;	   /* everything of yours up to this one */
};

#define NM_LETTER_MESSAGE_MAX (NM_VMSEG_MESSAGE_MAX - sizeof(struct nm_letter_head))
_Static_assert(sizeof(struct nm_letter_head) == 24, "no padding");
_Static_assert(NM_LETTER_MESSAGE_MAX >= sizeof(struct nm_greeting), "every message fits");
_Static_assert(NM_LETTER_MESSAGE_MAX >= sizeof(struct nm_step), "every message fits");

/*
 * Check LEN foreign bytes. The message, if there is one, follows the head and is unchecked. Pure.
 * Returns 0 or -EBADMSG.
 */
int nm_letter_parse(const void *bytes, size_t len, struct nm_letter_head *ret_head);

/*
 * What an endpoint that knows TOKEN shows in its slot in PART: equal for all who know it, and
 * nothing in another part, whose owner has read it.
 */
void nm_letter_proof(const uint8_t token[8], const uint8_t segment[NM_VMSEG_TOKEN_LEN],
		     uint32_t part, uint8_t ret_proof[8]);

/* One direction of one connection, for hiding secrets. */
struct nm_letter_cover {
	const uint8_t *owner_token; /* known to both sides alone */
	const uint8_t *segment;	    /* its token */
	const struct nm_vmseg_address *caller, *owner;
	uint64_t number;
};
/*
 * Cover the secrets of MESSAGE, LEN bytes, if it is a greeting; or uncover them: it is the same.
 */
void nm_letter_cover(const struct nm_letter_cover *cover, bool from_caller, void *message,
		     size_t len);

#endif
