/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the first GPU for benchmarks, by the library libcuda.so.1 that the loader finds. Copies
 * end before a call returns. A call of the driver that fails ends the program with a line on stderr.
 */
#ifndef NM_BENCH_DEVICE_H
#define NM_BENCH_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

/* Makes the primary context of GPU 0 current. NULL, or why there is no GPU. */
const char *device_open(void);
/* The name of the GPU, or ""; and the MB/s of its PCIe link as sysfs shows it, 0: not known. */
const char *device_name(void);
double device_link_MBps(void);

void *device_alloc(size_t len);
void device_free(void *memory);
/* Pins host memory in whole pages. False: the driver refused, and copies are slower. */
bool device_pin(void *pages, size_t len);
void device_unpin(void *pages);

/* Copies LEN bytes, each pointer to host or device. */
void device_copy(void *to, const void *from, size_t len);
/* Two copies at the same time. */
void device_copy_both(void *to, const void *from, void *other_to, const void *other_from,
		      size_t len);

#endif
