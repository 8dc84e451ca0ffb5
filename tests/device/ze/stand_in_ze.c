/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The face of Level Zero before the memory of stand_in.c: a driver that fails, and one whose GPUs
 * have one group of queues that only computes, and one that copies.
 */
#include "gpu_ze.h"
#include "stand_in.h"
#include "stand_in_private.h"

#include <string.h>

#include "device/level_zero_driver.h"

extern int cuInit(unsigned int flags);
extern int cuDeviceGetCount(int *ret_count);
extern int cuDevicePrimaryCtxRetain(struct context **ret_context, int device);
extern int cuPointerGetAttribute(void *ret_value, int what, uint64_t address);
extern int cuMemAlloc_v2(uint64_t *ret_address, size_t size);
extern int cuMemFree_v2(uint64_t address);
extern int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t len);

static char broken, driver, contexts[8], lists[64];
static unsigned int nr_contexts;

EXPORT int zeInit(uint32_t flags)
{
	return flags == NM_ZE_INIT_GPU_ONLY ? cuInit(0) : INVALID_VALUE;
}

EXPORT int zeDriverGet(uint32_t *nr, void **ret_drivers)
{
	int err = enter();

	if (err)
		return err;
	if (*nr > 0)
		ret_drivers[0] = &broken;
	if (*nr > 1)
		ret_drivers[1] = &driver;
	*nr = 2;
	return leave(OK);
}

/* A device is its primary context, so that memory names it. */
EXPORT int zeDeviceGet(void *of, uint32_t *nr, void **ret_devices)
{
	int count = 0, err = of == &driver ? cuDeviceGetCount(&count) : INVALID_VALUE;
	struct context *context;

	for (int i = 0; !err && i < count && (uint32_t)i < *nr; i++) {
		err = cuDevicePrimaryCtxRetain(&context, i);
		ret_devices[i] = context;
	}
	*nr = (uint32_t)count;
	return err;
}

EXPORT int zeDeviceGetCommandQueueGroupProperties(void *device, uint32_t *nr,
						  struct nm_ze_queue_group *ret_groups)
{
	int err = enter();

	if (err)
		return err;
	if (!device || *nr < 2 || ret_groups[1].type != NM_ZE_QUEUE_GROUP_PROPERTIES)
		return leave(INVALID_VALUE);
	ret_groups[0].flags = 1;
	ret_groups[1].flags = NM_ZE_GROUP_COPIES;
	ret_groups[0].nr_queues = ret_groups[1].nr_queues = 1;
	*nr = 2;
	return leave(OK);
}

EXPORT int zeContextCreate(void *of, const struct nm_ze_context_desc *desc, void **ret_context)
{
	int err = enter();

	if (err)
		return err;
	if (of != &driver || desc->type != NM_ZE_CONTEXT_DESC || nr_contexts == sizeof(contexts))
		return leave(INVALID_VALUE);
	*ret_context = &contexts[nr_contexts++];
	return leave(OK);
}

/* A list is the number of its device. */
EXPORT int zeCommandListCreateImmediate(void *context, void *device,
					const struct nm_ze_queue_desc *desc, void **ret_list)
{
	int err = enter();

	if (err)
		return err;
	if (!context || !device || desc->type != NM_ZE_QUEUE_DESC || desc->group != 1 ||
	    desc->mode != NM_ZE_MODE_SYNCHRONOUS)
		return leave(INVALID_VALUE);
	*ret_list = &lists[((struct context *)device)->device];
	return leave(OK);
}

/* Of memory that the driver does not know it says only that; that is no error. */
EXPORT int zeMemGetAllocProperties(void *context, uint64_t address, struct nm_ze_memory *ret_memory,
				   void **ret_device)
{
	int err = enter();

	if (err)
		return err;
	leave(OK);
	if (!context || ret_memory->type != NM_ZE_MEMORY_PROPERTIES)
		return INVALID_VALUE;
	ret_memory->kind = 0;
	if (cuPointerGetAttribute(ret_device, 1, address) != OK)
		return OK;
	ret_memory->kind = NM_ZE_MEMORY_DEVICE;
	return cuPointerGetAttribute(&ret_memory->id, 7, address);
}

EXPORT int zeMemGetAddressRange(void *context, uint64_t address, uint64_t *ret_start,
				size_t *ret_size)
{
	int err = context ? cuPointerGetAttribute(ret_start, 11, address) : INVALID_VALUE;

	return err ? err : cuPointerGetAttribute(ret_size, 12, address);
}

static void use(struct context *device)
{
	depth = 1;
	stack[0] = device;
}

EXPORT int zeMemAllocDevice(void *context, const struct nm_ze_memory_desc *desc, size_t size,
			    size_t alignment, void *device, uint64_t *ret_address)
{
	if (!context || desc->type != NM_ZE_MEMORY_DESC || alignment > PAGE)
		return INVALID_VALUE;
	use(device);
	return cuMemAlloc_v2(ret_address, size);
}

EXPORT int zeMemFree(void *context, uint64_t address)
{
	return context ? cuMemFree_v2(address) : INVALID_VALUE;
}

EXPORT int zeCommandListAppendMemoryCopy(void *list, uint64_t to, uint64_t from, size_t len,
					 void *event, uint32_t nr_events, void **events)
{
	if (event || nr_events || events)
		return INVALID_VALUE;
	use(&primary[(char *)list - lists]);
	return cuMemcpyHtoD_v2(to, (const void *)(uintptr_t)from, len);
}
