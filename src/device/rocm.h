/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of AMD GPUs, by the library of HIP (ROCm 6 or newer). Not tested on hardware. Copies use
 * the default stream, so they wait for kernels that a program left there.
 */
#ifndef NM_DEVICE_ROCM_H
#define NM_DEVICE_ROCM_H

#include "base/device.h"
#include "base/reason.h"

/* libfabric's FI_HMEM_ROCR, asserted in flags_check.c. */
#define NM_ROCM_NUMBER 2

/* Load the interface; load.c does that once. NULL: there is none, with the reason. */
const struct nm_device_ops *nm_rocm_load(struct nm_reason *ret_why);

#endif
