/* SPDX-License-Identifier: Apache-2.0 */
/* The face of HIP before the memory of stand_in.c, with the numbers and errors of ROCm 6. */
#include "stand_in.h"
#include "stand_in_private.h"

extern int cuInit(unsigned int flags);
extern int cuDeviceGetCount(int *ret_count);
extern int cuDevicePrimaryCtxRetain(struct context **ret_context, int device);
extern int cuDevicePrimaryCtxReset_v2(int device);
extern int cuPointerGetAttribute(void *ret_value, int what, uint64_t address);
extern int cuMemAlloc_v2(uint64_t *ret_address, size_t size);
extern int cuMemFree_v2(uint64_t address);
extern int cuMemHostRegister_v2(void *pages, size_t len, unsigned int flags);
extern int cuMemHostUnregister(void *pages);
extern int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t len);
extern int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t len);
extern int cuGetErrorString(int error, const char **ret_text);

EXPORT int hipInit(unsigned int flags)
{
	return cuInit(flags);
}

EXPORT int hipGetDeviceCount(int *ret_count)
{
	return cuDeviceGetCount(ret_count);
}

EXPORT const char *hipGetErrorString(int error)
{
	const char *text = "unrecognized error code";

	cuGetErrorString(error, &text);
	return text;
}

/* Each thread has a current device, at first number 0. */
static int use(int device)
{
	struct context *context;
	int err = cuDevicePrimaryCtxRetain(&context, device);

	if (err)
		return err;
	depth = 1;
	stack[0] = context;
	return OK;
}

EXPORT int hipSetDevice(int device)
{
	return use(device);
}

static int ready(void)
{
	return depth ? OK : use(0);
}

EXPORT int hipGetDevice(int *ret_device)
{
	int err = ready();

	if (!err)
		*ret_device = current()->device;
	return err;
}

EXPORT int hipDeviceReset(void)
{
	int err = ready();

	return err ? err : cuDevicePrimaryCtxReset_v2(current()->device);
}

/* The real one writes 32 bits of a buffer's number. */
EXPORT int hipPointerGetAttribute(void *ret_value, int what, uint64_t address)
{
	uint64_t value = 0;
	int err;

	if (what != 2 && what != 7 && what != 9)
		return INVALID_VALUE;
	err = cuPointerGetAttribute(&value, what, address);
	if (!err)
		*(uint32_t *)ret_value = (uint32_t)value;
	return err;
}

EXPORT int hipMemGetAddressRange(uint64_t *ret_start, size_t *ret_size, uint64_t address)
{
	int err = cuPointerGetAttribute(ret_start, 11, address);

	return err ? err : cuPointerGetAttribute(ret_size, 12, address);
}

EXPORT int hipMalloc(uint64_t *ret_address, size_t size)
{
	int err = ready();

	return err ? err : cuMemAlloc_v2(ret_address, size);
}

EXPORT int hipFree(uint64_t address)
{
	return cuMemFree_v2(address);
}

EXPORT int hipHostRegister(void *pages, size_t len, unsigned int flags)
{
	int err = ready();

	return err ? err : cuMemHostRegister_v2(pages, len, flags);
}

EXPORT int hipHostUnregister(void *pages)
{
	return cuMemHostUnregister(pages);
}

EXPORT int hipMemcpyHtoD(uint64_t to, const void *from, size_t len)
{
	int err = ready();

	return err ? err : cuMemcpyHtoD_v2(to, from, len);
}

EXPORT int hipMemcpyDtoH(void *to, uint64_t from, size_t len)
{
	int err = ready();

	return err ? err : cuMemcpyDtoH_v2(to, from, len);
}

/* Memory of another device than the current one is not reached, so that its users set that. */
EXPORT int hipMemcpy(uint64_t to, uint64_t from, size_t len, int kind)
{
	const struct allocation *a;
	int err = ready();

	if (err)
		return err;
	a = allocation_of(kind == 1 ? to : from);
	if (!a || a->context != current())
		return INVALID_VALUE;
	return kind == 1 ? hipMemcpyHtoD(to, (const void *)(uintptr_t)from, len) :
	       kind == 2 ? hipMemcpyDtoH((void *)(uintptr_t)to, from, len) :
			   INVALID_VALUE;
}

EXPORT int hipStreamSynchronize(void *stream)
{
	int err = stream ? INVALID_HANDLE : enter();

	return err ? err : leave(OK);
}
