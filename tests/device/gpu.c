/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_ze.h"

void (*gpu_fail)(unsigned int nth);
unsigned int (*gpu_calls)(void);
unsigned int (*gpu_overlap)(void);
unsigned int (*gpu_direct)(void);
int gpu_number = 1;
bool gpu_has_contexts = true, gpu_has_resets = true;

static struct {
	int (*init)(unsigned int flags);
	int (*count)(int *ret_count);
	int (*retain)(void **ret_context, int device);
	int (*reset)(int device);
	int (*reset_current)(void); /* HIP, also the next two */
	int (*device)(int *ret_device);
	int (*use_device)(int device);
	int (*create)(void **ret_context, unsigned int flags, int device);
	int (*destroy)(void *context);
	int (*use)(void *context);
	int (*alloc)(uint64_t *ret_address, size_t len);
	int (*free)(uint64_t address);
	int (*put)(uint64_t to, const void *from, size_t len);
	int (*get)(void *to, uint64_t from, size_t len);
	int (*pin)(void *pages, size_t len, unsigned int flags);
	int (*unpin)(void *pages);
	int (*wait)(void *stream);
} gpu;
static void *primary;
static int rocm_device; /* of all buffers */
static bool is_away;	/* HIP's current device is another one, as far as there is one */

static void check(int error, const char *call)
{
	if (!error)
		return;
	fprintf(stderr, "%s: error %d\n", call, error);
	_Exit(3);
}

static void find(void *library, const char *name, void *ret_function)
{
	void *found = dlsym(library, name);

	memcpy(ret_function, &found, sizeof(found));
	if (!found && strncmp(name, "nm_", 3) != 0)
		check(-1, name);
}

static void *find_cuda(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		return NULL;
	find(library, "cuInit", &gpu.init);
	find(library, "cuDeviceGetCount", &gpu.count);
	find(library, "cuDevicePrimaryCtxRetain", &gpu.retain);
	find(library, "cuDevicePrimaryCtxReset_v2", &gpu.reset);
	find(library, "cuCtxCreate_v2", &gpu.create);
	find(library, "cuCtxDestroy_v2", &gpu.destroy);
	find(library, "cuCtxSetCurrent", &gpu.use);
	find(library, "cuMemAlloc_v2", &gpu.alloc);
	find(library, "cuMemFree_v2", &gpu.free);
	find(library, "cuMemcpyHtoD_v2", &gpu.put);
	find(library, "cuMemcpyDtoH_v2", &gpu.get);
	find(library, "cuMemHostRegister_v2", &gpu.pin);
	find(library, "cuMemHostUnregister", &gpu.unpin);
	find(library, "cuStreamSynchronize", &gpu.wait);
	find(library, "nm_stand_in_overlap", &gpu_overlap);
	find(library, "nm_stand_in_direct", &gpu_direct);
	return library;
}

static void *find_rocm(void)
{
	void *library = dlopen("libamdhip64.so.6", RTLD_NOW);

	if (!library)
		return NULL;
	gpu_number = 2;
	gpu_has_contexts = false;
	find(library, "hipInit", &gpu.init);
	find(library, "hipGetDeviceCount", &gpu.count);
	find(library, "hipDeviceReset", &gpu.reset_current);
	find(library, "hipGetDevice", &gpu.device);
	find(library, "hipSetDevice", &gpu.use_device);
	find(library, "hipMalloc", &gpu.alloc);
	find(library, "hipFree", &gpu.free);
	find(library, "hipMemcpyHtoD", &gpu.put);
	find(library, "hipMemcpyDtoH", &gpu.get);
	find(library, "hipHostRegister", &gpu.pin);
	find(library, "hipHostUnregister", &gpu.unpin);
	find(library, "hipStreamSynchronize", &gpu.wait);
	return library;
}

static void *find_ze(void)
{
	void *library = dlopen("libze_loader.so.1", RTLD_NOW);

	gpu_number = 3;
	gpu_has_contexts = gpu_has_resets = false;
	gpu.alloc = gpu_ze_alloc;
	gpu.free = gpu_ze_free;
	gpu.put = gpu_ze_put;
	gpu.get = gpu_ze_get;
	return library && gpu_ze_start(library) ? library : NULL;
}

bool gpu_open(void)
{
	const char *device = getenv("NM_DEVICE");
	void *library = !device || !strcmp(device, "cuda") ? find_cuda() :
			!strcmp(device, "rocm")		   ? find_rocm() :
							     find_ze();
	int count = 0;

	if (!library)
		return false;
	find(library, "nm_stand_in_fail", &gpu_fail);
	find(library, "nm_stand_in_calls", &gpu_calls);
	if (gpu.init && (gpu.init(0) != 0 || gpu.count(&count) != 0 || count < 1))
		return false;
	if (gpu_has_contexts)
		check(gpu.retain(&primary, 0), "cuDevicePrimaryCtxRetain");
	rocm_device = count - 1;
	gpu_primary();
	return true;
}

void gpu_primary(void)
{
	int device = -1;

	if (gpu_has_contexts) {
		check(gpu.use(primary), "cuCtxSetCurrent");
		return;
	}
	if (!gpu.use_device)
		return;
	/* Nothing in between has changed it. */
	check(gpu.device(&device), "hipGetDevice");
	check(is_away && device != 0, "the current device is another one");
	is_away = false;
	check(gpu.use_device(rocm_device), "hipSetDevice");
}

void gpu_no_context(void)
{
	if (gpu_has_contexts)
		check(gpu.use(NULL), "cuCtxSetCurrent");
	else if (gpu.use_device)
		check(gpu.use_device(0), "hipSetDevice");
	is_away = !gpu_has_contexts;
}

void gpu_reset(void)
{
	if (!gpu_has_contexts) {
		check(gpu.reset_current(), "hipDeviceReset");
		return;
	}
	check(gpu.reset(0), "cuDevicePrimaryCtxReset");
	check(gpu.retain(&primary, 0), "cuDevicePrimaryCtxRetain");
	gpu_primary();
}

void *gpu_other_context(void)
{
	void *context;

	check(gpu.create(&context, 0, 0), "cuCtxCreate");
	return context;
}

void gpu_destroy_context(void *context)
{
	check(gpu.destroy(context), "cuCtxDestroy");
	gpu_primary();
}

void *gpu_alloc(size_t len)
{
	uint64_t address;

	check(gpu.alloc(&address, len), "allocation");
	return (void *)(uintptr_t)address;
}

void gpu_free(void *memory)
{
	check(gpu.free((uintptr_t)memory), "freeing");
}

void gpu_put(void *to, const void *from, size_t len)
{
	check(gpu.put((uintptr_t)to, from, len), "copy to the device");
	/* Pageable memory is only on its way by then. */
	if (!gpu_fail && gpu.wait)
		check(gpu.wait(NULL), "waiting");
}

void gpu_get(void *to, const void *from, size_t len)
{
	check(gpu.get(to, (uintptr_t)from, len), "copy from the device");
}

void gpu_pin(void *pages, size_t len)
{
	if (gpu.pin)
		check(gpu.pin(pages, len, 0), "pinning");
}

void gpu_unpin(void *pages)
{
	if (gpu.unpin)
		check(gpu.unpin(pages), "unpinning");
}
