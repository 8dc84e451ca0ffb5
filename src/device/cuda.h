/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of NVIDIA GPUs, by the driver's library (libcuda.so.1), which is loaded when a program
 * first requests FI_HMEM. Nothing of CUDA is needed to build.
 *
 * Copies run on a stream of nearmetal's own in the context to which a buffer belongs, so they wait
 * for no kernel of the program, and a program has to finish its kernels before it sends a buffer.
 * One context of each GPU is used: all buffers attached at one time have to be of the same one.
 */
#ifndef NM_DEVICE_CUDA_H
#define NM_DEVICE_CUDA_H

#include "base/device.h"
#include "base/reason.h"

/* libfabric's FI_HMEM_CUDA, asserted in flags_check.c. */
#define NM_CUDA_NUMBER 1

/*
 * Load the interface; load.c does that once. NULL: there is none, with the reason: no library, a
 * library without a function, no GPU, a driver that does not start.
 */
const struct nm_device_ops *nm_cuda_load(struct nm_reason *ret_why);

#endif
