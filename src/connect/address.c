/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/address.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/hash.h"

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
	    all_zero(address.who.place, sizeof(address.who.place)))
		return -EINVAL;
	*ret_address = address;
	return 0;
}

bool nm_identity_equal(const struct nm_identity *a, const struct nm_identity *b)
{
	return !memcmp(a->id, b->id, sizeof(a->id)) &&
	       !memcmp(a->place, b->place, sizeof(a->place));
}

uint64_t nm_identity_hash(const struct nm_identity *who)
{
	uint64_t place, id = 0;

	memcpy(&place, who->place, sizeof(place));
	memcpy(&id, who->id, sizeof(who->id));
	/* Usually random, but a peer may choose it. The multiplication spreads low bits as well. */
	return (place ^ id) * UINT64_C(0x9e3779b97f4a7c15);
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
		 all_zero(who.place, sizeof(who.place)));
	*ret_who = who;
	return 0;
}

/* What WHO's place holds if its window is that file: little endian on every machine. */
static void file_bytes(uint64_t inode, uint64_t rundir, uint8_t ret_bytes[NM_PLACE_FILE])
{
	for (int i = 0; i < NM_PLACE_FILE; i++)
		ret_bytes[i] = (uint8_t)((inode ^ rundir) >> 8 * i);
}

void nm_identity_set_file(struct nm_identity *who, uint64_t inode, uint64_t rundir)
{
	file_bytes(inode, rundir, who->place);
}

bool nm_identity_has_file(const struct nm_identity *who, uint64_t inode, uint64_t rundir)
{
	uint8_t bytes[NM_PLACE_FILE];

	file_bytes(inode, rundir, bytes);
	return !memcmp(who->place, bytes, sizeof(bytes));
}

_Static_assert(sizeof(((struct nm_identity *)0)->place) == NM_PLACE_FILE + NM_HOME_LEN,
	       "a place names the file and the part");

/* The host chooses the token, so no machine can choose this value. */
void nm_home_name(const uint8_t token[NM_VMSEG_TOKEN_LEN], uint32_t part,
		  uint8_t ret_home[NM_HOME_LEN])
{
	uint64_t value = nm_siphash(token, &part, sizeof(part));

	for (size_t i = 0; i < NM_HOME_LEN; i++)
		ret_home[i] = (uint8_t)(value >> 8 * i);
}

void nm_identity_set_part(struct nm_identity *who, const uint8_t token[NM_VMSEG_TOKEN_LEN],
			  uint32_t part)
{
	nm_home_name(token, part, who->place + NM_PLACE_FILE);
}

bool nm_identity_has_part(const struct nm_identity *who, const uint8_t token[NM_VMSEG_TOKEN_LEN],
			  uint32_t part)
{
	uint8_t bytes[NM_HOME_LEN];

	nm_home_name(token, part, bytes);
	return !memcmp(who->place + NM_PLACE_FILE, bytes, sizeof(bytes));
}
