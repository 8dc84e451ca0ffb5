/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine says to its peer: the unit that every channel carries. */
#ifndef NM_BASE_PACKET_H
#define NM_BASE_PACKET_H

#include <stdint.h>

#define NM_PACKET_NR_OPS 64 /* six bits in a slot's control word */

/* `op` and `flags` belong to the engine; no channel looks at them. */
struct nm_packet {
	uint8_t op; /* < NM_PACKET_NR_OPS */
	uint8_t flags;
	uint32_t len; /* payload bytes, <= max_payload of the transport that carries it */
	uint64_t tag;
	uint64_t data;
};

#endif
