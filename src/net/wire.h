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
#define NM_NET_VERSION 4		  /* 3: tokens; 4: PAUSE to RESUMED */

enum nm_net_kind {
	/* numbered messages of a link */
	NM_NET_PACKET = 1, /* an engine's packet: its payload follows */
	NM_NET_PING,	   /* nothing; a dead peer makes the send fail */
	NM_NET_BYE,	   /* the sender closes normally and has sent everything */
	NM_NET_BYE_SEEN,   /* answer to BYE: everything sent before it has been taken in */
	NM_NET_PAUSE,	   /* the sender's network goes (resume.c): no packet follows for now */
	NM_NET_PAUSED,	   /* answer to PAUSE: everything sent before it has been taken in */
	NM_NET_HELLO,	   /* the first of them: struct nm_net_hello follows */
	/* before a link (proof.h) */
	NM_NET_KNOCK, /* asks for a token: tag: place of the receiver; data: a nonce; the sender's
		       * struct nm_address follows */
	NM_NET_TOKEN, /* the answer: tag: that nonce; data: the token */
	/* after a pause; sequence: that of the sender's next message, data: that of the receiver's */
	NM_NET_RESUME,	/* tag: number of the sender's opening */
	NM_NET_RESUMED, /* the answer; tag: that number */
};

/* `data` of a BYE whose sender refused the greeting of its receiver, and takes nothing from it. */
#define NM_NET_REFUSED 1

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
	uint8_t reserved[2];
	uint64_t token; /* of the numbered messages: the receiver's, for this source */
};
_Static_assert(sizeof(struct nm_net_header) == 56, "no padding on the wire");

struct nm_net_hello {
	struct nm_address address; /* of the sender: the way back */
	struct nm_peer_label label;
	uint8_t token[8]; /* the sender's, for the receiver's messages to it */
};

/* No message of a link that stands: a greeting, and what has no number. */
static inline bool nm_net_is_outside_link(uint8_t kind)
{
	return kind >= NM_NET_HELLO;
}

static inline bool nm_net_is_numbered(uint8_t kind)
{
	return kind <= NM_NET_HELLO;
}

/*
 * Check LEN foreign bytes and copy the header out. Returns 0 or -EBADMSG with a reason.
 * MAX_PAYLOAD: the longest payload that may follow. The token is not checked.
 */
int nm_net_header_parse(const void *bytes, size_t len, uint32_t max_payload,
			struct nm_net_header *ret_header, struct nm_reason *ret_reason);
/* Check the payload of a HELLO against its header; the copy's label is safe to print. */
int nm_net_hello_parse(const void *bytes, const struct nm_net_header *header,
		       struct nm_net_hello *ret_hello, struct nm_reason *ret_reason);
/* Check a KNOCK that arrived at the endpoint ME: the address is the one that its sender claims. */
int nm_net_knock_parse(const void *bytes, const struct nm_net_header *header,
		       const struct nm_identity *me, struct nm_address *ret_address,
		       struct nm_reason *ret_reason);

#endif
