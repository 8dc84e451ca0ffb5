/* SPDX-License-Identifier: Apache-2.0 */
/* What carries a session through mailboxes: letters that are no letters. */
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
