/* SPDX-License-Identifier: Apache-2.0 */
/* The interfaces of devices that this machine has. */
#ifndef NM_DEVICE_LOAD_H
#define NM_DEVICE_LOAD_H

#include "base/device.h"
#include "base/reason.h"

/*
 * Plug in all for which there is a driver with a GPU (base/device.h). Any number of times. The
 * first of them; NULL: there is none, with the reason.
 */
const struct nm_device_ops *nm_devices_load(struct nm_reason *ret_why);
/* The interface in which LEN bytes at ADDRESS are attached, by its number; 0: none. */
unsigned int nm_devices_find(const void *address, size_t len);

#endif
