/* SPDX-License-Identifier: Apache-2.0 */
#include "device/level_zero.h"

#include <errno.h>

#include "base/log.h"
#include "device/driver_library.h"
#include "device/level_zero_driver.h"
#include "device/sync_device.h"

#define DRIVERS_MAX 8
#define GPUS_MAX 64
#define GROUPS_MAX 16

static struct nm_ze_driver ze;
static void *context; /* of nearmetal, for all GPUs */
static struct gpu {
	void *device;
	void *list; /* of copies; NULL: not made yet */
} gpus[GPUS_MAX];
static uint32_t nr_gpus;
/* One thread at a time uses a list. */
static pthread_mutex_t lists_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *words(int error)
{
	switch ((unsigned int)error) {
	case 0x70000001:
		return "the GPU was lost or reset";
	case 0x70000002:
		return "out of host memory";
	case 0x70000003:
		return "out of memory of the GPU";
	case 0x78000001:
		return "not initialized";
	case 0x78000004:
		return "invalid argument";
	default:
		return "see ze_result_t";
	}
}

/* FAILED: what the driver was asked for. */
static int refuse(struct nm_reason *ret_why, const char *failed, int error)
{
	nm_reason_set(ret_why, "%s: %s (Level Zero error 0x%x)", failed, words(error),
		      (unsigned int)error);
	return -EIO;
}

static int look_up(uint64_t address, struct nm_sync_buffer *ret_buffer, struct nm_reason *ret_why)
{
	struct nm_ze_memory memory = {.type = NM_ZE_MEMORY_PROPERTIES};
	void *device = NULL;
	int error = ze.properties(context, address, &memory, &device);

	if (error)
		return refuse(ret_why, "looking for the memory of an address", error);
	if (memory.kind != NM_ZE_MEMORY_DEVICE) {
		nm_reason_set(ret_why,
			      "address 0x%llx is not memory of a GPU; register host memory with "
			      "FI_HMEM_SYSTEM",
			      (unsigned long long)address);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < nr_gpus; i++)
		if (gpus[i].device == device) {
			ret_buffer->device = (int)i;
			ret_buffer->at.id = memory.id;
			error = ze.range(context, address, &ret_buffer->at.start,
					 &ret_buffer->at.size);
			return error ? refuse(ret_why, "looking for its range", error) : 0;
		}
	nm_reason_set(
		ret_why,
		"address 0x%llx is memory of another driver or of a part of a GPU; allocate it "
		"for a whole GPU",
		(unsigned long long)address);
	return -EINVAL;
}

static bool is_buffer(uint64_t start, uint64_t id)
{
	struct nm_ze_memory memory = {.type = NM_ZE_MEMORY_PROPERTIES};
	void *device;

	return ze.properties(context, start, &memory, &device) == 0 &&
	       memory.kind == NM_ZE_MEMORY_DEVICE && memory.id == id;
}

/* The first group of queues that copies. */
static int find_group(const struct gpu *gpu, uint32_t *ret_group, struct nm_reason *ret_why)
{
	struct nm_ze_queue_group groups[GROUPS_MAX];
	uint32_t nr = GROUPS_MAX;
	int error;

	for (uint32_t i = 0; i < GROUPS_MAX; i++)
		groups[i] = (struct nm_ze_queue_group){.type = NM_ZE_QUEUE_GROUP_PROPERTIES};
	error = ze.queue_groups(gpu->device, &nr, groups);
	if (error)
		return refuse(ret_why, "looking for queues that copy", error);
	for (uint32_t i = 0; i < nr && i < GROUPS_MAX; i++)
		if (groups[i].flags & NM_ZE_GROUP_COPIES && groups[i].nr_queues > 0) {
			*ret_group = i;
			return 0;
		}
	nm_reason_set(ret_why, "the GPU has no queue that copies");
	return -EIO;
}

static int make_list(struct gpu *gpu, struct nm_reason *ret_why)
{
	struct nm_ze_queue_desc desc = {.type = NM_ZE_QUEUE_DESC, .mode = NM_ZE_MODE_SYNCHRONOUS};
	int err = find_group(gpu, &desc.group, ret_why), error;
	void *list = NULL;

	if (err < 0)
		return err;
	error = ze.list_create(context, gpu->device, &desc, &list);
	if (error)
		return refuse(ret_why, "making a list of commands", error);
	gpu->list = list;
	return 0;
}

static int copy(int device, uint64_t to, uint64_t from, size_t len, bool is_get,
		struct nm_reason *ret_why)
{
	struct gpu *gpu = &gpus[device];
	int err = 0, error;

	(void)is_get;
	pthread_mutex_lock(&lists_lock);
	if (!gpu->list)
		err = make_list(gpu, ret_why);
	if (!err) {
		error = ze.copy(gpu->list, to, from, len, NULL, 0, NULL);
		if (error)
			err = refuse(ret_why, "copying", error);
	}
	pthread_mutex_unlock(&lists_lock);
	return err;
}

static struct nm_sync_device level_zero = {
	.look_up = look_up,
	.is_buffer = is_buffer,
	.copy = copy,
	.lock = PTHREAD_RWLOCK_INITIALIZER,
};

static int level_zero_attach(uint64_t address, size_t len, void **ret_handle,
			     struct nm_reason *ret_why)
{
	return nm_sync_attach(&level_zero, address, len, ret_handle, ret_why);
}

static void level_zero_detach(void *handle)
{
	nm_sync_detach(&level_zero, handle);
}

static bool level_zero_has(uint64_t address, size_t len)
{
	return nm_sync_has(&level_zero, address, len);
}

static int level_zero_get(void *to, uint64_t from, size_t len)
{
	return nm_sync_get(&level_zero, to, from, len);
}

static int level_zero_put(uint64_t to, const void *from, size_t len)
{
	return nm_sync_put(&level_zero, to, from, len);
}

static const struct nm_device_ops level_zero_ops = {
	.name = "Level Zero",
	.attach = level_zero_attach,
	.detach = level_zero_detach,
	.has = level_zero_has,
	.get = level_zero_get,
	.put = level_zero_put,
};

/* The GPUs of the first driver that has some, and a context for them. */
static bool find_gpus(struct nm_reason *ret_why)
{
	const struct nm_ze_context_desc desc = {.type = NM_ZE_CONTEXT_DESC};
	void *drivers[DRIVERS_MAX], *devices[GPUS_MAX];
	uint32_t nr_drivers = DRIVERS_MAX, nr = 0;
	int error = ze.init(NM_ZE_INIT_GPU_ONLY);

	if (!error)
		error = ze.drivers(&nr_drivers, drivers);
	if (error)
		nr_drivers = 0;
	for (uint32_t i = 0; i < nr_drivers && i < DRIVERS_MAX && nr == 0; i++) {
		int failed;

		nr = GPUS_MAX;
		failed = ze.devices(drivers[i], &nr, devices);
		if (!failed && nr > 0)
			failed = ze.context_create(drivers[i], &desc, &context);
		if (failed) {
			error = failed;
			nr = 0;
		}
	}
	if (nr == 0) {
		nm_reason_set(ret_why, "Level Zero shows no GPU: %s",
			      error ? words(error) : "it counts none");
		return false;
	}
	nr_gpus = nr < GPUS_MAX ? nr : GPUS_MAX;
	for (uint32_t i = 0; i < nr_gpus; i++)
		gpus[i].device = devices[i];
	return true;
}

const struct nm_device_ops *nm_level_zero_load(struct nm_reason *ret_why)
{
	static const char *const names[] = {"libze_loader.so.1", NULL};
	void *library = nm_driver_open(names, "no loader of Level Zero", ret_why);

	if (!library)
		return NULL;
#define LOAD(field, symbol, arguments)                                                             \
	if (!nm_driver_function(library, symbol, &ze.field, ret_why))                              \
		return NULL;
	NM_ZE_FUNCTIONS(LOAD)
#undef LOAD
	if (!find_gpus(ret_why))
		return NULL;
	nm_info("memory of Intel GPUs is offered; it was not tested on hardware");
	return &level_zero_ops;
}
