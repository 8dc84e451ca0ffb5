/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C (Castagnoli): finds torn and spoiled bytes, not bytes that somebody forged. */
#ifndef NM_BASE_CRC_H
#define NM_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of what had checksum CRC (0: nothing) followed by LEN bytes. */
uint32_t nm_crc32c(uint32_t crc, const void *bytes, size_t len);
/* The same without the processor's instruction; for machines that lack it, and for the tests. */
uint32_t nm_crc32c_portable(uint32_t crc, const void *bytes, size_t len);

#endif
