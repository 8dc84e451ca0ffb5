/* SPDX-License-Identifier: Apache-2.0 */
/* The library of a device's driver, which is loaded when a program first requests FI_HMEM. */
#ifndef NM_DEVICE_DRIVER_LIBRARY_H
#define NM_DEVICE_DRIVER_LIBRARY_H

#include <stdbool.h>

#include "base/reason.h"

/*
 * The first of NAMES, which NULL ends: one that the process has, otherwise one that can be loaded.
 * It is never closed: streams, pinned pages and threads of a driver outlive the last endpoint.
 * NULL: there is none, with the reason after the words WHAT.
 */
void *nm_driver_open(const char *const *names, const char *what, struct nm_reason *ret_why);
/* A function of LIBRARY. False: it has none, with the reason. RET_WHY may be NULL. */
bool nm_driver_function(void *library, const char *symbol, void *ret_function,
			struct nm_reason *ret_why);

#endif
