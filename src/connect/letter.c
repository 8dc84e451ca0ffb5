/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/letter.h"

#include <errno.h>
#include <string.h>

#include "base/hash.h"

int nm_letter_parse(const void *bytes, size_t len, struct nm_letter_head *ret_head)
{
	struct nm_letter_head head;
	bool plain;

	if (len < sizeof(head))
		return -EBADMSG;
	memcpy(&head, bytes, sizeof(head));
	plain = head.sequence == 0;
	if (head.magic != NM_LETTER_MAGIC || head.flags & ~NM_LETTER_FLAGS || !head.number ||
	    head.len != len - sizeof(head) || head.len > NM_LETTER_MESSAGE_MAX)
		return -EBADMSG;
	/* A letter without a sequence is not kept in order, so nothing in it may need an order. */
	if (plain ? head.len || head.flags & NM_LETTER_HANGUP :
		    head.flags & (NM_LETTER_RESET | NM_LETTER_PROBE))
		return -EBADMSG;
	if (!plain && !head.len && !(head.flags & NM_LETTER_HANGUP))
		return -EBADMSG;
	*ret_head = head;
	return 0;
}

enum purpose { PURPOSE_PROOF = 1, PURPOSE_COVER = 2 };

/* All inputs of a cover value; no padding. */
struct input {
	uint8_t segment[NM_VMSEG_TOKEN_LEN];
	struct nm_vmseg_address caller, owner;
	uint64_t number;
	uint32_t purpose, part;
	uint32_t direction, index;
};
_Static_assert(sizeof(struct input) == 88, "no padding, which would be anything");

static uint64_t keyed(const uint8_t token[8], const struct input *input)
{
	uint8_t key[NM_SIPHASH_KEY_LEN] = "nearmetal letter";

	memcpy(key, token, 8);
	return nm_siphash(key, input, sizeof(*input));
}

void nm_letter_proof(const uint8_t token[8], const uint8_t segment[NM_VMSEG_TOKEN_LEN],
		     uint32_t part, uint8_t ret_proof[8])
{
	struct input input = {.purpose = PURPOSE_PROOF, .part = part};
	uint64_t value;

	memcpy(input.segment, segment, sizeof(input.segment));
	value = keyed(token, &input);
	memcpy(ret_proof, &value, sizeof(value));
}

static void hide(const uint8_t token[8], struct input *input, uint32_t index, uint8_t secret[8])
{
	uint64_t value;

	input->index = index;
	value = keyed(token, input);
	for (size_t i = 0; i < sizeof(value); i++)
		secret[i] ^= (uint8_t)(value >> (8 * i));
}

void nm_letter_cover(const struct nm_letter_cover *cover, bool from_caller, void *message,
		     size_t len)
{
	struct input input = {
		.caller = *cover->caller,
		.owner = *cover->owner,
		.number = cover->number,
		.purpose = PURPOSE_COVER,
		.direction = from_caller,
	};
	struct nm_greeting greeting;

	if (len != sizeof(greeting))
		return;
	memcpy(&greeting, message, sizeof(greeting));
	memcpy(input.segment, cover->segment, sizeof(input.segment));
	hide(cover->owner_token, &input, 0, greeting.who.token);
	hide(cover->owner_token, &input, 1, greeting.owner_token);
	memcpy(message, &greeting, sizeof(greeting));
}
