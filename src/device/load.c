/* SPDX-License-Identifier: Apache-2.0 */
#include "device/load.h"

#include <pthread.h>

#include "base/compiler.h"
#include "device/cuda.h"
#include "device/level_zero.h"
#include "device/rocm.h"

static const struct {
	unsigned int number;
	const struct nm_device_ops *(*load)(struct nm_reason *ret_why);
} interfaces[] = {
	{NM_CUDA_NUMBER, nm_cuda_load},
	{NM_ROCM_NUMBER, nm_rocm_load},
	{NM_LEVEL_ZERO_NUMBER, nm_level_zero_load},
};

static const struct nm_device_ops *first;
static struct nm_reason missing; /* valid if `first` is NULL */

static void load_all(void)
{
	for (size_t i = 0; i < NM_ARRAY_SIZE(interfaces); i++) {
		struct nm_reason why = {""};
		const struct nm_device_ops *ops = interfaces[i].load(&why);

		if (ops && !nm_device_plug(interfaces[i].number, ops))
			first = first ? first : ops;
		else
			nm_reason_add(&missing, "%s%s", i > 0 ? "; " : "", why.text);
	}
}

const struct nm_device_ops *nm_devices_load(struct nm_reason *ret_why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_all);
	if (!first)
		*ret_why = missing;
	return first;
}

unsigned int nm_devices_find(const void *address, size_t len)
{
	for (size_t i = 0; i < NM_ARRAY_SIZE(interfaces) && len > 0; i++) {
		const struct nm_device_ops *ops = nm_device_plugged(interfaces[i].number);

		if (ops && ops->has((uintptr_t)address, len))
			return interfaces[i].number;
	}
	return 0;
}
