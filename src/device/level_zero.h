/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of Intel GPUs, by the loader of Level Zero. Not tested on hardware. */
#ifndef NM_DEVICE_LEVEL_ZERO_H
#define NM_DEVICE_LEVEL_ZERO_H

#include "base/device.h"
#include "base/reason.h"

/* libfabric's FI_HMEM_ZE, asserted in flags_check.c. */
#define NM_LEVEL_ZERO_NUMBER 3

/* Load the interface; load.c does that once. NULL: there is none, with the reason. */
const struct nm_device_ops *nm_level_zero_load(struct nm_reason *ret_why);

#endif
