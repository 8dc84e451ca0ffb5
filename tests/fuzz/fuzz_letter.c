/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Letters in the mailboxes of a segment. What is accepted has one meaning: either it is numbered and
 * says something, or it is not and says nothing that would have to be kept in order.
 */
#include <stdlib.h>
#include <string.h>

#include "connect/letter.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void expect(bool condition)
{
	if (!condition)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	const struct nm_vmseg_address caller = {1, 2, 3, 4}, owner = {0, 1, 2, 3};
	const uint8_t token[8] = {7}, segment[NM_VMSEG_TOKEN_LEN] = {9};
	uint8_t message[NM_VMSEG_MESSAGE_MAX], before[NM_VMSEG_MESSAGE_MAX];
	struct nm_letter_cover cover = {token, segment, &caller, &owner, 0};
	struct nm_greeting greeting;
	struct nm_letter_head head;
	struct nm_reason why;

	if (len > NM_VMSEG_MESSAGE_MAX || nm_letter_parse(bytes, len, &head))
		return 0;
	expect(head.number != 0 && !(head.flags & ~NM_LETTER_FLAGS));
	expect(head.len == len - sizeof(head) && head.len <= NM_LETTER_MESSAGE_MAX);
	if (head.sequence)
		expect((head.len || head.flags & NM_LETTER_HANGUP) &&
		       !(head.flags & (NM_LETTER_RESET | NM_LETTER_PROBE)));
	else
		expect(!head.len && !(head.flags & NM_LETTER_HANGUP));
	memcpy(message, bytes + sizeof(head), head.len);
	memcpy(before, message, head.len);
	cover.number = head.number;
	nm_letter_cover(&cover, true, message, head.len);
	if (head.len != sizeof(greeting))
		expect(!memcmp(message, before, head.len));
	nm_greeting_parse(message, head.len, NM_MESSAGE_HELLO, &greeting, &why);
	nm_letter_cover(&cover, true, message, head.len);
	expect(!memcmp(message, before, head.len));
	return 0;
}
