/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crc.h"

#include <string.h>

/* Remainders of the four low bits, polynomial 0x1edc6f41 with its bits reversed. */
#define POLYNOMIAL UINT32_C(0x82f63b78)

static uint32_t shift4(uint32_t crc)
{
	for (int i = 0; i < 4; i++)
		crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
	return crc;
}

uint32_t nm_crc32c_portable(uint32_t crc, const void *bytes, size_t len)
{
	const uint8_t *at = bytes;
	uint32_t table[16];

	for (uint32_t i = 0; i < 16; i++)
		table[i] = shift4(i);
	crc = ~crc;
	for (; len; len--) {
		crc ^= *at++;
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return ~crc;
}

#ifdef __x86_64__
/* Eight bytes each three cycles: faster than memory is. */
static __attribute__((target("sse4.2"))) uint32_t crc32c_instruction(uint32_t crc,
								     const void *bytes, size_t len)
{
	const char *at = bytes;
	uint64_t word, sum = (uint32_t)~crc;

	for (; len >= sizeof(word); len -= sizeof(word), at += sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		sum = __builtin_ia32_crc32di(sum, word);
	}
	for (; len; len--)
		sum = __builtin_ia32_crc32qi((uint32_t)sum, (uint8_t)*at++);
	return ~(uint32_t)sum;
}
#endif

uint32_t nm_crc32c(uint32_t crc, const void *bytes, size_t len)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("sse4.2"))
		return crc32c_instruction(crc, bytes, len);
#endif
	return nm_crc32c_portable(crc, bytes, len);
}
