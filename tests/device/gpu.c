/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void (*gpu_fail)(unsigned int nth);
unsigned int (*gpu_calls)(void);
unsigned int (*gpu_overlap)(void);
unsigned int (*gpu_direct)(void);

static struct {
	int (*init)(unsigned int flags);
	int (*count)(int *ret_count);
	int (*retain)(void **ret_context, int device);
	int (*reset)(int device);
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

static void check(int error, const char *call)
{
	if (!error)
		return;
	fprintf(stderr, "%s: CUDA error %d\n", call, error);
	_Exit(3);
}

static void find(void *library, const char *name, void *ret_function)
{
	void *found = dlsym(library, name);

	memcpy(ret_function, &found, sizeof(found));
	if (!found && strncmp(name, "nm_", 3) != 0)
		check(-1, name);
}

bool gpu_open(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int count = 0;

	if (!library)
		return false;
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
	find(library, "nm_stand_in_fail", &gpu_fail);
	find(library, "nm_stand_in_calls", &gpu_calls);
	find(library, "nm_stand_in_overlap", &gpu_overlap);
	find(library, "nm_stand_in_direct", &gpu_direct);
	if (gpu.init(0) != 0 || gpu.count(&count) != 0 || count < 1)
		return false;
	check(gpu.retain(&primary, 0), "cuDevicePrimaryCtxRetain");
	gpu_primary();
	return true;
}

void gpu_primary(void)
{
	check(gpu.use(primary), "cuCtxSetCurrent");
}

void gpu_no_context(void)
{
	check(gpu.use(NULL), "cuCtxSetCurrent");
}

void gpu_reset(void)
{
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

	check(gpu.alloc(&address, len), "cuMemAlloc");
	return (void *)(uintptr_t)address;
}

void gpu_free(void *memory)
{
	check(gpu.free((uintptr_t)memory), "cuMemFree");
}

void gpu_put(void *to, const void *from, size_t len)
{
	check(gpu.put((uintptr_t)to, from, len), "cuMemcpyHtoD");
	/* Pageable memory is only on its way by then. */
	if (!gpu_fail)
		check(gpu.wait(NULL), "cuStreamSynchronize");
}

void gpu_get(void *to, const void *from, size_t len)
{
	check(gpu.get(to, (uintptr_t)from, len), "cuMemcpyDtoH");
}

void gpu_pin(void *pages, size_t len)
{
	check(gpu.pin(pages, len, 0), "cuMemHostRegister");
}

void gpu_unpin(void *pages)
{
	check(gpu.unpin(pages), "cuMemHostUnregister");
}
