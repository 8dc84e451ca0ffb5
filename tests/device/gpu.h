/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for tests, by the driver that the loader finds: the real one, or the stand-in. The
 * environment's NM_DEVICE says which: cuda, the default, rocm or ze. Each function ends the program
 * with a line on stderr if the driver fails.
 */
#ifndef NM_TEST_DEVICE_GPU_H
#define NM_TEST_DEVICE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The interface, libfabric's enum fi_hmem_iface; whether a thread has a context of the GPU that can
 * be another one; whether a program can reset the GPU.
 */
extern int gpu_number;
extern bool gpu_has_contexts, gpu_has_resets;

/* False: this machine has no driver, or no GPU. Makes the primary context of GPU 0 current. */
bool gpu_open(void);
/* All that was in the primary context is gone, and it is current. */
void gpu_reset(void);
/* A second context of GPU 0 becomes current; gpu_primary() goes back to the first one. */
void *gpu_other_context(void);
void gpu_destroy_context(void *context);
void gpu_primary(void);
/* This thread has no context, as one that never used the GPU. */
void gpu_no_context(void);

void *gpu_alloc(size_t len);
void gpu_free(void *memory);
void gpu_put(void *to, const void *from, size_t len);
void gpu_get(void *to, const void *from, size_t len);
/* Host memory that is pinned, or the same no more, if the interface pins. */
void gpu_pin(void *pages, size_t len);
void gpu_unpin(void *pages);

/* The stand-in's failures (stand_in.h). NULL: the driver is a real one. */
extern void (*gpu_fail)(unsigned int nth);
extern unsigned int (*gpu_calls)(void);
extern unsigned int (*gpu_overlap)(void);
extern unsigned int (*gpu_direct)(void);

#endif
