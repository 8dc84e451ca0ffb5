/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fabric address of an endpoint: its identity, by which peers on the same host find it, and its
 * network address. It has 64 bytes, because MPICH passes a 64-byte buffer to fi_getname() and does
 * not retry.
 *
 * The address contains no host name, boot id or pid, so it does not show which endpoints are near.
 * `id` only names the socket on which an endpoint listens. `place` names the memory that only the
 * endpoint can write: the file of its window, and the part of its machine. Every rank of a job has
 * every address, so nothing in an address is a secret. Another process can repeat an address, but it
 * cannot show its own bytes in that file or in that part (docs/design/windows.md).
 */
#ifndef NM_CONNECT_ADDRESS_H
#define NM_CONNECT_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmseg/layout.h"

#define NM_ADDRESS_VERSION 2
#define NM_ADDRESS_LEN 64
#define NM_INNER_MAX 48 /* the longest known inner address is sockaddr_ib */

#define NM_PLACE_FILE 5 /* bytes of a place that name the file of the window */
#define NM_HOME_LEN 3	/* bytes that name a part of a segment: the rest of a place */

/* Identity of an endpoint. A restarted process is another endpoint. */
struct nm_identity {
	uint8_t id[6];	  /* random; names the socket in the rundir */
	uint8_t place[8]; /* the file of the window, then the part; random without one */
};

struct nm_address {
	uint8_t version;   /* NM_ADDRESS_VERSION */
	uint8_t inner_len; /* bytes used in inner; 0: not reachable over the network */
	struct nm_identity who;
	uint8_t inner[NM_INNER_MAX]; /* name of the inner libfabric endpoint */
};
_Static_assert(sizeof(struct nm_address) == NM_ADDRESS_LEN, "fits FI_NAME_MAX");

/*
 * nm_address_parse - check LEN foreign bytes and copy them out. Returns 0, or -EINVAL for a wrong
 * length, version or inner_len or an all-zero identity.
 */
int nm_address_parse(const void *bytes, size_t len, struct nm_address *ret_address);

bool nm_identity_equal(const struct nm_identity *a, const struct nm_identity *b);
/* A hash for open addressing. Identities are random, so a simple hash is enough. */
uint64_t nm_identity_hash(const struct nm_identity *who);
/* Create a random identity with getrandom(2). Its place names nothing yet. Returns 0 or -errno. */
int nm_identity_create(struct nm_identity *ret_who);

/*
 * The file of the window: INODE is the number of its memfd, of which the low 40 bits count. A kernel
 * gives each memfd the next number, so two that live at once differ, unless 2^40 others (2^32 before
 * Linux 5.9) were made in between. RUNDIR is a number of the rundir (nm_rundir_number()), so that a
 * file of another host with an equal number is refused.
 */
void nm_identity_set_file(struct nm_identity *who, uint64_t inode, uint64_t rundir);
bool nm_identity_has_file(const struct nm_identity *who, uint64_t inode, uint64_t rundir);
/* The part of the endpoint's machine in the segment with TOKEN. */
void nm_identity_set_part(struct nm_identity *who, const uint8_t token[NM_VMSEG_TOKEN_LEN],
			  uint32_t part);
/* The name of a part for the endpoints of a job: the identity has it, or after a move HOME. */
void nm_home_name(const uint8_t token[NM_VMSEG_TOKEN_LEN], uint32_t part,
		  uint8_t ret_home[NM_HOME_LEN]);
bool nm_identity_has_part(const struct nm_identity *who, const uint8_t token[NM_VMSEG_TOKEN_LEN],
			  uint32_t part);

/* Format of an identity in log entries: nm_info("peer " NM_WHO_FORMAT, NM_WHO(&who)). */
#define NM_WHO_FORMAT "%02x%02x%02x%02x%02x%02x"
#define NM_WHO(who)                                                                                \
	(who)->id[0], (who)->id[1], (who)->id[2], (who)->id[3], (who)->id[4], (who)->id[5]

#endif
