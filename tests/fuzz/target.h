/* SPDX-License-Identifier: Apache-2.0 */
/* What every fuzzer defines. target.c calls it within bounds of time and memory. */
#ifndef NM_FUZZ_TARGET_H
#define NM_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

/* Parse one input, and abort() if what comes out breaks a promise. */
void nm_fuzz_input(const uint8_t *bytes, size_t len);

#endif
