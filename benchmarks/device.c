/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MBIT_PER_GT 1e3
#define NONBLOCKING 1

static struct {
	int (*init)(unsigned int flags);
	int (*count)(int *ret_count);
	int (*retain)(void **ret_context, int device);
	int (*use)(void *context);
	int (*alloc)(uint64_t *ret_address, size_t len);
	int (*free)(uint64_t address);
	int (*copy)(uint64_t to, uint64_t from, size_t len, void *stream);
	int (*stream)(void **ret_stream, unsigned int flags);
	int (*wait)(void *stream);
	int (*pin)(void *pages, size_t len, unsigned int flags);
	int (*unpin)(void *pages);
	int (*name)(char *ret_name, int len, int device);
	int (*bus)(char *ret_id, int len, int device);
} cuda;
static void *streams[2];

static const struct {
	const char *name;
	void *function;
	bool is_optional;
} calls[] = {
	{"cuInit", &cuda.init, false},
	{"cuDeviceGetCount", &cuda.count, false},
	{"cuDevicePrimaryCtxRetain", &cuda.retain, false},
	{"cuCtxSetCurrent", &cuda.use, false},
	{"cuMemAlloc_v2", &cuda.alloc, false},
	{"cuMemFree_v2", &cuda.free, false},
	{"cuMemcpyAsync", &cuda.copy, false},
	{"cuStreamCreate", &cuda.stream, false},
	{"cuStreamSynchronize", &cuda.wait, false},
	{"cuMemHostRegister_v2", &cuda.pin, false},
	{"cuMemHostUnregister", &cuda.unpin, false},
	{"cuDeviceGetName", &cuda.name, true},
	{"cuDeviceGetPCIBusId", &cuda.bus, true},
};

static void check(int error, const char *call)
{
	if (!error)
		return;
	fprintf(stderr, "%s: error %d of the driver\n", call, error);
	_Exit(1);
}

const char *device_open(void)
{
	static char why[256];
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int count = 0, error;

	if (!library) {
		snprintf(why, sizeof(why), "no driver of NVIDIA: %s", dlerror());
		return why;
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *found = dlsym(library, calls[i].name);

		if (!found && !calls[i].is_optional) {
			snprintf(why, sizeof(why), "libcuda.so.1 has no %s", calls[i].name);
			return why;
		}
		memcpy(calls[i].function, &found, sizeof(found));
	}
	error = cuda.init(0);
	if (!error)
		error = cuda.count(&count);
	if (error || count < 1) {
		snprintf(why, sizeof(why), "the driver of NVIDIA shows no GPU (error %d)", error);
		return why;
	}
	check(cuda.retain(&context, 0), "cuDevicePrimaryCtxRetain");
	check(cuda.use(context), "cuCtxSetCurrent");
	for (int i = 0; i < 2; i++)
		check(cuda.stream(&streams[i], NONBLOCKING), "cuStreamCreate");
	return NULL;
}

const char *device_name(void)
{
	static char name[128];

	if (!cuda.name || cuda.name(name, sizeof(name), 0) != 0)
		name[0] = '\0';
	name[sizeof(name) - 1] = '\0';
	for (char *c = name; *c; c++)
		if (!isprint((unsigned char)*c))
			*c = ' ';
	return name;
}

/* The first number in a file of the GPU in sysfs; 0: none. */
static double attribute(const char *bus, const char *name)
{
	char path[128];
	double value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", bus, name);
	file = fopen(path, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%15lf", &value) != 1)
		value = 0;
	fclose(file);
	return value;
}

double device_link_MBps(void)
{
	char bus[32] = "";
	double transfers, lanes;

	if (!cuda.bus || cuda.bus(bus, sizeof(bus), 0) != 0)
		return 0;
	bus[sizeof(bus) - 1] = '\0';
	for (char *c = bus; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	/* An idle GPU lowers its speed: what the link can do counts. */
	transfers = attribute(bus, "max_link_speed");
	lanes = attribute(bus, "current_link_width");
	/* 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, then flits. */
	return transfers * lanes * MBIT_PER_GT / 8 *
	       (transfers <= 5	? 0.8 :
		transfers <= 32 ? 128.0 / 130 :
				  1);
}

void *device_alloc(size_t len)
{
	uint64_t address;

	check(cuda.alloc(&address, len), "cuMemAlloc");
	return (void *)(uintptr_t)address;
}

void device_free(void *memory)
{
	check(cuda.free((uintptr_t)memory), "cuMemFree");
}

bool device_pin(void *pages, size_t len)
{
	return cuda.pin(pages, len, 0) == 0;
}

void device_unpin(void *pages)
{
	check(cuda.unpin(pages), "cuMemHostUnregister");
}

static void begin(int stream, void *to, const void *from, size_t len)
{
	check(cuda.copy((uintptr_t)to, (uintptr_t)from, len, streams[stream]), "cuMemcpyAsync");
}

static void end(int stream)
{
	check(cuda.wait(streams[stream]), "cuStreamSynchronize");
}

void device_copy(void *to, const void *from, size_t len)
{
	begin(0, to, from, len);
	end(0);
}

void device_copy_both(void *to, const void *from, void *other_to, const void *other_from,
		      size_t len)
{
	begin(0, to, from, len);
	begin(1, other_to, other_from, len);
	end(0);
	end(1);
}
