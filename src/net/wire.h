/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of the network channel, in the byte order of the sender. On a machine of another byte
 * order the magic number does not match. All bytes come from a peer and are hostile until
 * nm_net_header_parse() has checked them.
 */
#ifndef NM_NET_WIRE_H
#define NM_NET_WIRE_H

#include "base/reason.h"
#include "connect/address.h"
#include "connect/locality.h"

#define NM_NET_MAGIC UINT32_C(0x6e746d6e) /* "nmtn" */
#define NM_NET_VERSION 2		  /* 2: packets that set a pace */

enum nm_net_kind {
	NM_NET_HELLO = 1, /* first on every link: struct nm_net_hello follows */
	NM_NET_PACKET,	  /* an engine's packet: its payload follows */
	NM_NET_PING,	  /* nothing; a dead peer makes the send fail */
	NM_NET_BYE,	  /* the sender closes normally and has sent everything */
	NM_NET_BYE_SEEN,  /* answer to BYE: everything sent before it has been taken in */
};

struct nm_net_header {
	uint32_t magic;
	uint8_t version;
	uint8_t kind;
	uint8_t op; /* these and len, tag, data: of the packet */
	uint8_t flags;
	uint32_t len;
	uint32_t sequence; /* of this link, from 0: a gap means a lost message */
	uint64_t tag;
	uint64_t data;
	struct nm_identity source;
	uint8_t target_token[8]; /* proves that the sender has the address */
	uint8_t reserved[2];
};
_Static_assert(sizeof(struct nm_net_header) == 56, "no padding on the wire");

struct nm_net_hello {
	struct nm_address address; /* of the sender: the way back */
	struct nm_peer_label label;
};

/*
 * Check LEN foreign bytes that arrived at the endpoint ME and copy the header out. Returns 0 or
 * -EBADMSG with a reason. MAX_PAYLOAD: the longest payload that may follow.
 */
int nm_net_header_parse(const void *bytes, size_t len, const struct nm_identity *me,
			uint32_t max_payload, struct nm_net_header *ret_header,
			struct nm_reason *ret_reason);
/* Check the payload of a HELLO against its header; the copy's label is safe to print. */
int nm_net_hello_parse(const void *bytes, const struct nm_net_header *header,
		       struct nm_net_hello *ret_hello, struct nm_reason *ret_reason);

#endif
