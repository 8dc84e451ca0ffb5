/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPU 0 by Level Zero, in a context of the program. */
#include "gpu_ze.h"

#include <dlfcn.h>
#include <string.h>

#include "device/level_zero_driver.h"

static struct nm_ze_driver ze;
static int (*ze_alloc)(void *context, const struct nm_ze_memory_desc *desc, size_t size,
		       size_t alignment, void *device, uint64_t *ret_address);
static int (*ze_free)(void *context, uint64_t address);
static void *context, *device, *list;

static bool find(void *library, const char *name, void *ret_function)
{
	void *found = dlsym(library, name);

	memcpy(ret_function, &found, sizeof(found));
	return found;
}

static int start(void)
{
	const struct nm_ze_context_desc context_desc = {.type = NM_ZE_CONTEXT_DESC};
	struct nm_ze_queue_desc desc = {.type = NM_ZE_QUEUE_DESC, .mode = NM_ZE_MODE_SYNCHRONOUS};
	struct nm_ze_queue_group groups[16];
	uint32_t nr_drivers = 8, nr = 0, nr_groups = 16;
	void *drivers[8], *driver = NULL;
	int error = ze.init(NM_ZE_INIT_GPU_ONLY);

	for (size_t i = 0; i < 16; i++)
		groups[i] = (struct nm_ze_queue_group){.type = NM_ZE_QUEUE_GROUP_PROPERTIES};
	if (!error)
		error = ze.drivers(&nr_drivers, drivers);
	if (error)
		return error;
	/* The first driver that has a GPU. */
	for (uint32_t i = 0; i < nr_drivers && i < 8 && nr == 0; i++) {
		nr = 1;
		driver = drivers[i];
		error = ze.devices(driver, &nr, &device);
		if (error)
			nr = 0;
	}
	if (!error)
		error = ze.context_create(driver, &context_desc, &context);
	if (!error)
		error = ze.queue_groups(device, &nr_groups, groups);
	while (!error && desc.group < nr_groups && !(groups[desc.group].flags & NM_ZE_GROUP_COPIES))
		desc.group++;
	return error ? error : ze.list_create(context, device, &desc, &list);
}

bool gpu_ze_start(void *library)
{
	bool has_all = find(library, "zeMemAllocDevice", &ze_alloc) &&
		       find(library, "zeMemFree", &ze_free);

#define FIND(field, symbol, arguments) has_all = has_all && find(library, symbol, &ze.field);
	NM_ZE_FUNCTIONS(FIND)
#undef FIND
	return has_all && start() == 0;
}

int gpu_ze_alloc(uint64_t *ret_address, size_t len)
{
	const struct nm_ze_memory_desc desc = {.type = NM_ZE_MEMORY_DESC};

	return ze_alloc(context, &desc, len, 64, device, ret_address);
}

int gpu_ze_free(uint64_t address)
{
	return ze_free(context, address);
}

int gpu_ze_put(uint64_t to, const void *from, size_t len)
{
	return ze.copy(list, to, (uintptr_t)from, len, NULL, 0, NULL);
}

int gpu_ze_get(void *to, uint64_t from, size_t len)
{
	return ze.copy(list, (uintptr_t)to, from, len, NULL, 0, NULL);
}
