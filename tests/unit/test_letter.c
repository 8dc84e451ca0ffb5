/* SPDX-License-Identifier: Apache-2.0 */
/* What carries a session through mailboxes: letters that are no letters, and covers of secrets. */
#include <errno.h>
#include <string.h>

#include "connect/letter.h"
#include "harness.h"

NM_TEST(letters_are_checked)
{
	struct nm_letter_head head = {NM_LETTER_MAGIC, NM_LETTER_CALLER, 192, 7, 1, 0}, got;
	uint8_t bytes[NM_VMSEG_MESSAGE_MAX] = {0};

#define TRY(len_) (memcpy(bytes, &head, sizeof(head)), nm_letter_parse(bytes, len_, &got))
	NM_CHECK_EQ(TRY(24 + 192), 0);
	NM_CHECK_EQ(got.number, 7);
	NM_CHECK_EQ(TRY(24 + 191), -EBADMSG);
	NM_CHECK_EQ(TRY(23), -EBADMSG);
	head.flags = 16;
	NM_CHECK_EQ(TRY(24 + 192), -EBADMSG);
	head.flags = NM_LETTER_RESET;
	NM_CHECK_EQ(TRY(24 + 192), -EBADMSG);
	head.flags = 0;
	head.sequence = 0;
	NM_CHECK_EQ(TRY(24 + 192), -EBADMSG);
	head.len = 0;
	NM_CHECK_EQ(TRY(24), 0);
	head.flags = NM_LETTER_HANGUP;
	NM_CHECK_EQ(TRY(24), -EBADMSG);
	head.sequence = 3;
	NM_CHECK_EQ(TRY(24), 0);
	head.flags = 0;
	NM_CHECK_EQ(TRY(24), -EBADMSG);
	head.flags = NM_LETTER_HANGUP;
	head.number = 0;
	NM_CHECK_EQ(TRY(24), -EBADMSG);
#undef TRY
}

NM_TEST(covers_depend_on_everything)
{
	struct nm_vmseg_address caller = {1, 2, 3, 4}, owner = {5, 6, 7, 8};
	const uint8_t token[8] = "secret!", segment[NM_VMSEG_TOKEN_LEN] = "this one";
	struct nm_letter_cover cover = {token, segment, &caller, &owner, 99};
	struct nm_greeting plain = {.who = {.token = "caller"}, .owner_token = "secret!"};
	struct nm_greeting there = plain, back = plain, other = plain;
	uint8_t proof[8], elsewhere[8];

	nm_letter_cover(&cover, true, &there, sizeof(there));
	nm_letter_cover(&cover, false, &back, sizeof(back));
	NM_CHECK(memcmp(there.who.token, plain.who.token, 8) != 0);
	NM_CHECK(memcmp(there.owner_token, plain.owner_token, 8) != 0);
	NM_CHECK(memcmp(there.owner_token, back.owner_token, 8) != 0);
	/* What another machine copies out of my mailbox means nothing in its own. */
	caller.part = 9;
	nm_letter_cover(&cover, true, &other, sizeof(other));
	NM_CHECK(memcmp(there.owner_token, other.owner_token, 8) != 0);
	caller.part = 1;
	nm_letter_cover(&cover, true, &there, sizeof(there));
	NM_CHECK(!memcmp(&there, &plain, sizeof(plain)));
	nm_letter_proof(token, segment, 0, proof);
	nm_letter_proof(token, segment, 1, elsewhere);
	NM_CHECK(memcmp(proof, elsewhere, sizeof(proof)) != 0);
	NM_CHECK(memcmp(proof, token, sizeof(proof)) != 0);
}
