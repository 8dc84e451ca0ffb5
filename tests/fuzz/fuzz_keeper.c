/* SPDX-License-Identifier: Apache-2.0 */
/* Anybody of the same user can talk to a keeper, or pass for one. */
#include <stdlib.h>
#include <string.h>

#include "locality/keeper.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct nm_keeper_message message;

	memset(&message, 0xee, sizeof(message));
	if (nm_keeper_message_parse(bytes, len, &message)) {
		/* Outputs are written on success only. */
		if (message.magic != UINT32_C(0xeeeeeeee))
			abort();
		return 0;
	}
	if (len != sizeof(message) || !message.len || message.len > NM_BLOCK_MAX ||
	    message.kind < NM_KEEPER_WANT || message.kind > NM_KEEPER_NONE ||
	    memcmp(&message, bytes, len))
		abort();
	return 0;
}
