/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed function of short inputs. Who does not know
 * the key can neither compute a value nor learn the key from values.
 */
#ifndef NM_BASE_SIPHASH_H
#define NM_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

#define NM_SIPHASH_KEY_LEN 16

uint64_t nm_siphash(const uint8_t key[NM_SIPHASH_KEY_LEN], const void *bytes, size_t len);

#endif
