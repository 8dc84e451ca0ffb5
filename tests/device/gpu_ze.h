/* SPDX-License-Identifier: Apache-2.0 */
/* The part of gpu.h for Level Zero. All but the first return 0 or the driver's error. */
#ifndef NM_TEST_DEVICE_GPU_ZE_H
#define NM_TEST_DEVICE_GPU_ZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What only programs call, beside device/level_zero_driver.h. */
#define NM_ZE_MEMORY_DESC 0x15
struct nm_ze_memory_desc {
	uint32_t type;
	const void *next;
	uint32_t flags, ordinal;
};

/* False: no GPU, or the library lacks a function. */
bool gpu_ze_start(void *library);
int gpu_ze_alloc(uint64_t *ret_address, size_t len);
int gpu_ze_free(uint64_t address);
int gpu_ze_put(uint64_t to, const void *from, size_t len);
int gpu_ze_get(void *to, uint64_t from, size_t len);

#endif
