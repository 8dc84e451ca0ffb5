/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper of a segment directory: one thread of whichever process needed it first. It knows the
 * blocks that processes share (share.h) by digest and hands out their descriptors. It listens under
 * a name that no endpoint can have; when its process ends, the next who asks becomes the keeper.
 *
 * A conversation is one message each way on a connection of its own:
 *   WANT digest, length               ->  HAVE (descriptor) or NONE
 *   GIVE digest, length (descriptor)  ->  HAVE (descriptor of whoever was first) or NONE
 */
#ifndef NM_LOCALITY_KEEPER_H
#define NM_LOCALITY_KEEPER_H

#include "locality/segment_dir.h"
#include "locality/share.h"

#define NM_KEEPER_MAGIC UINT32_C(0x706b6d6e) /* "nmkp" */
#define NM_KEEPER_VERSION 1
#define NM_KEEPER_NAME "000000000000" /* an identity is never all zero */

enum nm_keeper_kind {
	NM_KEEPER_WANT = 1,
	NM_KEEPER_GIVE = 2,
	NM_KEEPER_HAVE = 3,
	NM_KEEPER_NONE = 4,
};

struct nm_keeper_message {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint64_t len; /* of the block */
	struct nm_digest digest;
};
_Static_assert(sizeof(struct nm_keeper_message) == 32, "no padding");

void nm_keeper_message_init(struct nm_keeper_message *message, enum nm_keeper_kind kind,
			    const struct nm_digest *digest, size_t len);
/* Check LEN foreign bytes and copy them out. Returns 0 or -EBADMSG. */
int nm_keeper_message_parse(const void *bytes, size_t len, struct nm_keeper_message *ret_message);

struct nm_keeper;

/* Become the keeper of DIR. Returns 0; -EADDRINUSE: there is one; -errno with a reason. */
int nm_keeper_start(const struct nm_segment_dir *dir, struct nm_keeper **ret_keeper,
		    struct nm_reason *ret_reason);
/* In a forked child: only forget. NULL is fine. */
void nm_keeper_stop(struct nm_keeper *keeper);

#endif
