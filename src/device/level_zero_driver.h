/* SPDX-License-Identifier: Apache-2.0 */
/* The part of Level Zero's core interface that nearmetal calls; its headers may be missing. */
#ifndef NM_DEVICE_LEVEL_ZERO_DRIVER_H
#define NM_DEVICE_LEVEL_ZERO_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define NM_ZE_INIT_GPU_ONLY 1u
#define NM_ZE_MEMORY_DEVICE 2u
#define NM_ZE_GROUP_COPIES 2u
#define NM_ZE_MODE_SYNCHRONOUS 1u /* a copy is over when its call returns */

/* ze_structure_type_t */
enum {
	NM_ZE_QUEUE_GROUP_PROPERTIES = 0x6,
	NM_ZE_CONTEXT_DESC = 0xd,
	NM_ZE_QUEUE_DESC = 0xe,
	NM_ZE_MEMORY_PROPERTIES = 0x17,
};

struct nm_ze_queue_group {
	uint32_t type, padding0;
	void *next;
	uint32_t flags, padding1;
	size_t fill_size_max;
	uint32_t nr_queues, padding2;
};

struct nm_ze_context_desc {
	uint32_t type;
	const void *next;
	uint32_t flags;
};

struct nm_ze_queue_desc {
	uint32_t type;
	const void *next;
	uint32_t group, index, flags, mode, priority;
};

struct nm_ze_memory {
	uint32_t type;
	void *next;
	uint32_t kind;
	uint64_t id; /* another one for each allocation */
	uint64_t page_size;
};

/* Handles are pointers. X(field, symbol, arguments). All return 0 or a ze_result_t. */
#define NM_ZE_FUNCTIONS(X)                                                                         \
	X(init, "zeInit", (uint32_t flags))                                                        \
	X(drivers, "zeDriverGet", (uint32_t * nr, void **ret_drivers))                             \
	X(devices, "zeDeviceGet", (void *driver, uint32_t *nr, void **ret_devices))                \
	X(queue_groups, "zeDeviceGetCommandQueueGroupProperties",                                  \
	  (void *device, uint32_t *nr, struct nm_ze_queue_group *ret_groups))                      \
	X(context_create, "zeContextCreate",                                                       \
	  (void *driver, const struct nm_ze_context_desc *desc, void **ret_context))               \
	X(list_create, "zeCommandListCreateImmediate",                                             \
	  (void *context, void *device, const struct nm_ze_queue_desc *desc, void **ret_list))     \
	X(properties, "zeMemGetAllocProperties",                                                   \
	  (void *context, uint64_t address, struct nm_ze_memory *ret_memory, void **ret_device))   \
	X(range, "zeMemGetAddressRange",                                                           \
	  (void *context, uint64_t address, uint64_t *ret_start, size_t *ret_size))                \
	X(copy, "zeCommandListAppendMemoryCopy",                                                   \
	  (void *list, uint64_t to, uint64_t from, size_t len, void *event, uint32_t nr_events,    \
	   void **events))

struct nm_ze_driver {
#define NM_ZE_FUNCTION(field, symbol, arguments) int(*field) arguments;
	NM_ZE_FUNCTIONS(NM_ZE_FUNCTION)
#undef NM_ZE_FUNCTION
};

#endif
