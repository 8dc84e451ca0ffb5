/* SPDX-License-Identifier: Apache-2.0 */
#include "provider/address_pack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Fills in place[], and returns how many bytes are not the same in all addresses. */
static uint32_t find_own(const uint8_t (*bytes)[NM_ADDRESS_LEN], uint32_t nr,
			 uint8_t ret_place[NM_ADDRESS_LEN])
{
	uint8_t differs[NM_ADDRESS_LEN] = {0};
	uint32_t i, k, stride = 0;

	for (i = 1; i < nr; i++)
		for (k = 0; k < NM_ADDRESS_LEN; k++)
			differs[k] |= bytes[i][k] ^ bytes[0][k];
	for (k = 0; k < NM_ADDRESS_LEN; k++)
		if (differs[k])
			ret_place[stride++] = (uint8_t)k;
	return stride;
}

struct nm_address_pack *nm_address_pack_create(const struct nm_address *addresses, uint32_t nr)
{
	const uint8_t(*bytes)[NM_ADDRESS_LEN] = (const void *)addresses;
	uint8_t place[NM_ADDRESS_LEN] = {0}, *own;
	uint32_t stride = find_own(bytes, nr, place), i, k;
	struct nm_address_pack *pack = malloc(sizeof(*pack) + (size_t)nr * stride);

	if (!pack)
		return NULL;
	pack->nr = nr;
	pack->stride = stride;
	memcpy(pack->common, bytes[0], sizeof(pack->common));
	memcpy(pack->place, place, sizeof(pack->place));
	own = pack->own;
	for (i = 0; i < nr; i++)
		for (k = 0; k < stride; k++)
			*own++ = bytes[i][place[k]];
	return pack;
}

size_t nm_address_pack_size(const struct nm_address_pack *pack)
{
	return sizeof(*pack) + (size_t)pack->nr * pack->stride;
}

void nm_address_pack_get(const struct nm_address_pack *pack, uint32_t i,
			 struct nm_address *ret_address)
{
	const uint8_t *own = pack->own + (size_t)i * pack->stride;
	uint8_t bytes[NM_ADDRESS_LEN];
	uint32_t k;

	memcpy(bytes, pack->common, sizeof(bytes));
	for (k = 0; k < pack->stride; k++)
		bytes[pack->place[k]] = own[k];
	memcpy(ret_address, bytes, sizeof(bytes));
}

/* Write the own bytes of address I. False: ADDRESS differs in a common byte. */
static bool set_in_place(struct nm_address_pack *pack, uint32_t i, const uint8_t *bytes)
{
	uint8_t rebuilt[NM_ADDRESS_LEN];
	uint32_t k;

	memcpy(rebuilt, pack->common, sizeof(rebuilt));
	for (k = 0; k < pack->stride; k++)
		rebuilt[pack->place[k]] = bytes[pack->place[k]];
	if (memcmp(rebuilt, bytes, sizeof(rebuilt)) != 0)
		return false;
	for (k = 0; k < pack->stride; k++)
		pack->own[(size_t)i * pack->stride + k] = bytes[pack->place[k]];
	return true;
}

int nm_address_pack_set(struct nm_address_pack **pack, uint32_t i, const struct nm_address *address)
{
	struct nm_address_pack *old = *pack, *new;
	struct nm_address *all;
	uint32_t n;

	if (set_in_place(old, i, (const uint8_t *)address))
		return 0;
	all = calloc(old->nr, sizeof(*all));
	if (!all)
		return -ENOMEM;
	for (n = 0; n < old->nr; n++)
		nm_address_pack_get(old, n, &all[n]);
	all[i] = *address;
	new = nm_address_pack_create(all, old->nr);
	free(all);
	if (!new)
		return -ENOMEM;
	free(old);
	*pack = new;
	return 0;
}
