/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/letter.h"

#include <errno.h>
#include <string.h>

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
