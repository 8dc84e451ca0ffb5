/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fabric address of an endpoint: its identity, by which peers of one host find it, and how the
 * network reaches it. 64 bytes, because MPICH hands fi_getname() a 64-byte buffer and does not
 * retry.
 *
 * The address carries no host name, boot id or pid: nothing in it says which endpoints are near.
 * `id` only names the socket on which an endpoint listens, and `token` is the secret that both
 * sides must show (the owner in the mapped window, the caller in its hello) before they believe it.
 */
#ifndef NM_CONNECT_ADDRESS_H
#define NM_CONNECT_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_ADDRESS_VERSION 1
#define NM_ADDRESS_LEN 64
#define NM_INNER_MAX 48 /* sockaddr_ib is the longest inner address we know */

/* Who an endpoint is. Random per endpoint, so a restarted process is another endpoint. */
struct nm_identity {
	uint8_t id[6];	  /* names the socket in the rundir */
	uint8_t token[8]; /* known only to whom the address was given */
};

struct nm_address {
	uint8_t version;   /* NM_ADDRESS_VERSION */
	uint8_t inner_len; /* bytes used in inner; 0: not reachable over the network */
	struct nm_identity who;
	uint8_t inner[NM_INNER_MAX]; /* the inner libfabric endpoint's own name */
};
_Static_assert(sizeof(struct nm_address) == NM_ADDRESS_LEN, "fits FI_NAME_MAX");

/*
 * nm_address_parse - check LEN foreign bytes and copy them out.
 * Returns 0, or -EINVAL (wrong length, version or inner_len; all-zero identity).
 */
int nm_address_parse(const void *bytes, size_t len, struct nm_address *ret_address);

bool nm_identity_equal(const struct nm_identity *a, const struct nm_identity *b);
/* A hash good enough for open addressing; identities are random already. */
uint64_t nm_identity_hash(const struct nm_identity *who);
/* Fresh random identity from getrandom(2). Returns 0 or -errno. */
int nm_identity_create(struct nm_identity *ret_who);

/* An identity in log entries: nm_info("peer " NM_WHO_FORMAT, NM_WHO(&who)). */
#define NM_WHO_FORMAT "%02x%02x%02x%02x%02x%02x"
#define NM_WHO(who)                                                                                \
	(who)->id[0], (who)->id[1], (who)->id[2], (who)->id[3], (who)->id[4], (who)->id[5]

#endif
