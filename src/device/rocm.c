/* SPDX-License-Identifier: Apache-2.0 */
#include "device/rocm.h"

#include <errno.h>

#include "base/log.h"
#include "device/driver_library.h"
#include "device/sync_device.h"

/* hipPointer_attribute, hipMemoryType and hipMemcpyKind of HIP 6. */
enum { POINTER_MEMORY_TYPE = 2, POINTER_BUFFER_ID = 7, POINTER_DEVICE = 9 };
enum { MEMORY_DEVICE = 2 };
enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };

/* X(field, symbol, arguments). All return 0 or an error code. */
#define FUNCTIONS(X)                                                                               \
	X(init, "hipInit", (unsigned int flags))                                                   \
	X(device_count, "hipGetDeviceCount", (int *ret_count))                                     \
	X(device, "hipGetDevice", (int *ret_device))                                               \
	X(use_device, "hipSetDevice", (int device))                                                \
	X(attribute, "hipPointerGetAttribute", (void *ret_value, int attribute, uint64_t pointer)) \
	X(range, "hipMemGetAddressRange",                                                          \
	  (uint64_t * ret_start, size_t * ret_size, uint64_t pointer))                             \
	X(copy, "hipMemcpy", (uint64_t to, uint64_t from, size_t len, int kind))                   \
	X(stream_wait, "hipStreamSynchronize", (void *stream))

static struct {
#define FUNCTION(field, symbol, arguments) int(*field) arguments;
	FUNCTIONS(FUNCTION)
#undef FUNCTION
	const char *(*error_string)(int error);
} hip;

static int look_up(uint64_t address, struct nm_sync_buffer *ret_buffer, struct nm_reason *ret_why)
{
	unsigned int type = 0;
	int error = hip.attribute(&type, POINTER_MEMORY_TYPE, address);

	if (error || type != MEMORY_DEVICE) {
		nm_reason_set(ret_why,
			      "address 0x%llx is not memory of a GPU (%s); register host memory "
			      "with FI_HMEM_SYSTEM",
			      (unsigned long long)address,
			      error ? hip.error_string(error) :
				      "HIP knows it as memory of another kind");
		return -EINVAL;
	}
	error = hip.range(&ret_buffer->at.start, &ret_buffer->at.size, address);
	/* HIP may write only 32 bits of the buffer's number: the field starts as 0. */
	if (!error)
		error = hip.attribute(&ret_buffer->at.id, POINTER_BUFFER_ID, address);
	if (!error)
		error = hip.attribute(&ret_buffer->device, POINTER_DEVICE, address);
	if (!error)
		return 0;
	nm_reason_set(ret_why, "HIP does not describe address 0x%llx: %s (HIP error %d)",
		      (unsigned long long)address, hip.error_string(error), error);
	return -EIO;
}

static bool is_buffer(uint64_t start, uint64_t id)
{
	uint64_t found = 0;

	return hip.attribute(&found, POINTER_BUFFER_ID, start) == 0 && found == id;
}

static int copy(int device, uint64_t to, uint64_t from, size_t len, bool is_get,
		struct nm_reason *ret_why)
{
	int before, error = hip.device(&before), last = 0;

	if (!error) {
		if (before != device)
			error = hip.use_device(device);
		if (!error)
			error = hip.copy(to, from, len, is_get ? DEVICE_TO_HOST : HOST_TO_DEVICE);
		/* Bytes of pageable memory may be only on their way. */
		if (!error)
			error = hip.stream_wait(NULL);
		if (before != device)
			last = hip.use_device(before);
	}
	error = error ? error : last;
	if (!error)
		return 0;
	nm_reason_set(ret_why, "%s (HIP error %d)", hip.error_string(error), error);
	return -EIO;
}

static struct nm_sync_device rocm = {
	.look_up = look_up,
	.is_buffer = is_buffer,
	.copy = copy,
	.lock = PTHREAD_RWLOCK_INITIALIZER,
};

static int rocm_attach(uint64_t address, size_t len, void **ret_handle, struct nm_reason *ret_why)
{
	return nm_sync_attach(&rocm, address, len, ret_handle, ret_why);
}

static void rocm_detach(void *handle)
{
	nm_sync_detach(&rocm, handle);
}

static bool rocm_has(uint64_t address, size_t len)
{
	return nm_sync_has(&rocm, address, len);
}

static int rocm_get(void *to, uint64_t from, size_t len)
{
	return nm_sync_get(&rocm, to, from, len);
}

static int rocm_put(uint64_t to, const void *from, size_t len)
{
	return nm_sync_put(&rocm, to, from, len);
}

static const struct nm_device_ops rocm_ops = {
	.name = "ROCm",
	.attach = rocm_attach,
	.detach = rocm_detach,
	.has = rocm_has,
	.get = rocm_get,
	.put = rocm_put,
};

const struct nm_device_ops *nm_rocm_load(struct nm_reason *ret_why)
{
	/* Before ROCm 6 the numbers of hipMemoryType were others. */
	static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", NULL};
	void *library = nm_driver_open(names, "no library of ROCm", ret_why);
	int error, nr_gpus = 0;

	if (!library)
		return NULL;
	if (!nm_driver_function(library, "hipGetErrorString", &hip.error_string, ret_why))
		return NULL;
#define LOAD(field, symbol, arguments)                                                             \
	if (!nm_driver_function(library, symbol, &hip.field, ret_why))                             \
		return NULL;
	FUNCTIONS(LOAD)
#undef LOAD
	error = hip.init(0);
	if (!error)
		error = hip.device_count(&nr_gpus);
	if (error || nr_gpus < 1) {
		nm_reason_set(ret_why, "ROCm shows no GPU: %s",
			      error ? hip.error_string(error) : "it counts none");
		return NULL;
	}
	nm_info("memory of AMD GPUs is offered; it was not tested on hardware");
	return &rocm_ops;
}
