/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fabric address of an endpoint: its identity, by which peers on the same host find it, and its
 * network address. It has 64 bytes, because MPICH passes a 64-byte buffer to fi_getname() and does
 * not retry.
 *
 * The address contains no host name, boot id or pid, so it does not show which endpoints are near.
 * `id` only names the socket on which an endpoint listens. `token` is a secret that both sides must
 * show before they trust each other: the owner in its mapped window, the caller in its HELLO.
 */
#ifndef NM_CONNECT_ADDRESS_H
#define NM_CONNECT_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_ADDRESS_VERSION 1
#define NM_ADDRESS_LEN 64
#define NM_INNER_MAX 48 /* the longest known inner address is sockaddr_ib */

/* Identity of an endpoint. Random for each endpoint, so a restarted process is another endpoint. */
struct nm_identity {
	uint8_t id[6];	  /* names the socket in the rundir */
	uint8_t token[8]; /* secret, known only to holders of the address */
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
/* Create a random identity with getrandom(2). Returns 0 or -errno. */
int nm_identity_create(struct nm_identity *ret_who);

/* Format of an identity in log entries: nm_info("peer " NM_WHO_FORMAT, NM_WHO(&who)). */
#define NM_WHO_FORMAT "%02x%02x%02x%02x%02x%02x"
#define NM_WHO(who)                                                                                \
	(who)->id[0], (who)->id[1], (who)->id[2], (who)->id[3], (who)->id[4], (who)->id[5]

#endif
