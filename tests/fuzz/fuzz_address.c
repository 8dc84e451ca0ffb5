/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses come out of a key-value store that anybody in the job may write. */
#include <stdlib.h>
#include <string.h>

#include "connect/address.h"
#include "target.h"

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct nm_address address;

	memset(&address, 0xee, sizeof(address));
	if (nm_address_parse(bytes, len, &address)) {
		/* Outputs are written on success only. */
		if (address.version != 0xee)
			abort();
		return;
	}
	if (len != NM_ADDRESS_LEN || address.inner_len > NM_INNER_MAX ||
	    memcmp(&address, bytes, len))
		abort();
}
