/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/address.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

static bool all_zero(const uint8_t *bytes, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++)
		if (bytes[i])
			return false;
	return true;
}

int nm_address_parse(const void *bytes, size_t len, struct nm_address *ret_address)
{
	struct nm_address address;

	if (!bytes || len != NM_ADDRESS_LEN)
		return -EINVAL;
	memcpy(&address, bytes, sizeof(address));
	if (address.version != NM_ADDRESS_VERSION || address.inner_len > NM_INNER_MAX)
		return -EINVAL;
	if (all_zero(address.who.id, sizeof(address.who.id)) ||
	    all_zero(address.who.token, sizeof(address.who.token)))
		return -EINVAL;
	*ret_address = address;
	return 0;
}

bool nm_identity_equal(const struct nm_identity *a, const struct nm_identity *b)
{
	return !memcmp(a->id, b->id, sizeof(a->id)) &&
	       !memcmp(a->token, b->token, sizeof(a->token));
}

uint64_t nm_identity_hash(const struct nm_identity *who)
{
	uint64_t token, id = 0;

	memcpy(&token, who->token, sizeof(token));
	memcpy(&id, who->id, sizeof(who->id));
	/* Usually random, but a peer may choose it. The multiplication spreads low bits as well. */
	return (token ^ id) * UINT64_C(0x9e3779b97f4a7c15);
}

int nm_identity_create(struct nm_identity *ret_who)
{
	struct nm_identity who;
	ssize_t got;

	do {
		got = getrandom(&who, sizeof(who), 0);
		if (got < 0 && errno != EINTR)
			return -errno;
	} while (got != (ssize_t)sizeof(who) || all_zero(who.id, sizeof(who.id)) ||
		 all_zero(who.token, sizeof(who.token)));
	*ret_who = who;
	return 0;
}
