/* SPDX-License-Identifier: Apache-2.0 */
/* What a test and a process on another machine say to each other: both are one build. */
#ifndef NM_TEST_FAR_WIRE_H
#define NM_TEST_FAR_WIRE_H

#include "transport/transport.h"

enum far_kind {
	/* from the test */
	FAR_CREATE,
	FAR_CONNECT,
	FAR_SEND,
	FAR_DRAINED,
	FAR_DESCRIBE,
	FAR_PROGRESS,
	FAR_DESTROY,
	/* from the other side */
	FAR_SOURCE_UP,
	FAR_DELIVER,
	FAR_SOURCE_DOWN,
	/* either way */
	FAR_ANSWER,
};

#define FAR_BYTES_MAX 65536

struct far_frame {
	uint32_t kind;
	int32_t value; /* an answer: what the call returned; FAR_PROGRESS: packets are answered */
	uint32_t len;  /* bytes that follow `head` */
	/* What the call was given or returned, but for a payload. */
	union {
		struct {
			char name[16];
			struct nm_identity who;
		} create;
		struct {
			uint32_t max_payload, eager_max;
			struct nm_reason why;
		} created;
		struct nm_address address;
		struct nm_reason why;
		struct nm_packet packet;
		struct nm_link_facts facts;
		struct {
			struct nm_identity who;
			struct nm_peer_label label;
		} source;
	} head;
};

/* A side that goes away has been killed: both then kill their own process, too. */
void far_put(int fd, const struct far_frame *frame, const void *bytes);
/* BYTES has room for FAR_BYTES_MAX. */
void far_get(int fd, struct far_frame *ret_frame, void *bytes);

#endif
