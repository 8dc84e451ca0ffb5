/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that many processes of a host hold alike, once in memory: the addresses of a job are the
 * same in each of its processes.
 *
 * Whoever has a block of bytes asks the keeper of the segment directory (keeper.h) for the block
 * with that digest, compares all of it with its own and drops its own. If there is none, it makes
 * one and hands it to the keeper. A block is a memfd sealed against every writer, its maker
 * included, so what was compared stays: nobody has to be trusted, and nobody can be hurt by what
 * another one does or by its end. A neighbour who lies or does not answer costs memory, never
 * correctness: the block is then this process's own.
 *
 * Not thread-safe: the caller serialises the calls for one struct nm_share.
 */
#ifndef NM_LOCALITY_SHARE_H
#define NM_LOCALITY_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/reason.h"

#define NM_BLOCK_MAX ((size_t)8 << 20)

struct nm_share;

/* In the segment directory DIR ("": the default), opened at the first block. NULL: no memory. */
struct nm_share *nm_share_create(const char *dir);
/* Blocks that were handed out stay valid. NULL is fine. */
void nm_share_destroy(struct nm_share *share);

/* LEN bytes, read only, until nm_block_fini(). */
struct nm_block {
	const void *bytes;
	size_t len;
	bool is_found; /* somebody else had made it */
	bool is_kept;  /* and neighbours can find it */
};

/*
 * A block equal to BYTES (1..NM_BLOCK_MAX), in memory that counts once for all who hold it. May
 * wait for the keeper; one that took a second for an answer is never asked again. Returns 0 or -errno (no memory
 * for a block of our own).
 */
int nm_share_block(struct nm_share *share, const void *bytes, size_t len,
		   struct nm_block *ret_block);
void nm_block_fini(struct nm_block *block);

struct nm_digest {
	uint64_t words[2];
};

/* No more than a name: who finds a block by it compares the bytes. */
struct nm_digest nm_digest_of(const void *bytes, size_t len);
/*
 * Map FD, which a stranger handed over, as a block of LEN bytes. Returns 0 or -errno with a
 * reason; -EPERM: it is not sealed, so it could change.
 */
int nm_block_map(int fd, size_t len, struct nm_block *ret_block, struct nm_reason *ret_reason);
/* Does the kernel say that whoever is behind the socket FD is the same user? */
bool nm_share_is_same_user(int fd);

#endif
