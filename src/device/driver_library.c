/* SPDX-License-Identifier: Apache-2.0 */
#include "device/driver_library.h"

#include <dlfcn.h>
#include <string.h>

void *nm_driver_open(const char *const *names, const char *what, struct nm_reason *ret_why)
{
	void *library = NULL;

	/* Two versions of a library in one process would not know each other's memory. */
	for (const char *const *name = names; *name && !library; name++)
		library = dlopen(*name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	for (const char *const *name = names; *name && !library; name++)
		library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		nm_reason_set(ret_why, "%s: %s", what, dlerror());
	return library;
}

bool nm_driver_function(void *library, const char *symbol, void *ret_function,
			struct nm_reason *ret_why)
{
	void *found = dlsym(library, symbol);

	if (!found) {
		nm_reason_set(ret_why, "the driver has no %s(): it is too old", symbol);
		return false;
	}
	memcpy(ret_function, &found, sizeof(found));
	return true;
}
