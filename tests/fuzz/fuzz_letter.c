/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Letters in the mailboxes of a segment. What is accepted has one meaning: either it is numbered and
 * says something, or it is not and says nothing that would have to be kept in order.
 */
#include <stdlib.h>

#include "connect/letter.h"
#include "target.h"

static void expect(bool condition)
{
	if (!condition)
		abort();
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct nm_greeting greeting;
	struct nm_letter_head head;
	struct nm_reason why;

	if (len > NM_VMSEG_MESSAGE_MAX || nm_letter_parse(bytes, len, &head))
		return;
	expect(head.number != 0 && !(head.flags & ~NM_LETTER_FLAGS));
	expect(head.len == len - sizeof(head) && head.len <= NM_LETTER_MESSAGE_MAX);
	if (head.sequence)
		expect((head.len || head.flags & NM_LETTER_HANGUP) &&
		       !(head.flags & (NM_LETTER_RESET | NM_LETTER_PROBE)));
	else
		expect(!head.len && !(head.flags & NM_LETTER_HANGUP));
	nm_greeting_parse(bytes + sizeof(head), head.len, NM_MESSAGE_HELLO, &greeting, &why);
}
