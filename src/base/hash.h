/* SPDX-License-Identifier: Apache-2.0 */
/* A checksum and a keyed hash. */
#ifndef NM_BASE_HASH_H
#define NM_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed function of short inputs. Without the key,
 * the key can neither compute a value nor learn the key from values.
 */
#define NM_SIPHASH_KEY_LEN 16

uint64_t nm_siphash(const uint8_t key[NM_SIPHASH_KEY_LEN], const void *bytes, size_t len);

/* CRC-32C (Castagnoli): finds torn and damaged bytes, not forged ones. */

/* The checksum of what had checksum CRC (0: nothing) followed by LEN bytes. */
uint32_t nm_crc32c(uint32_t crc, const void *bytes, size_t len);
/* The same without the processor's instruction; for machines that lack it, and for the tests. */
uint32_t nm_crc32c_portable(uint32_t crc, const void *bytes, size_t len);

#endif
