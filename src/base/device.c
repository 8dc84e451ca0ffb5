/* SPDX-License-Identifier: Apache-2.0 */
#include "base/device.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"

#define ADDRESS_MASK ((UINT64_C(1) << NM_DEVICE_SHIFT) - 1)

static const struct nm_device_ops *plugged[NM_DEVICE_MAX + 1];

int nm_device_plug(unsigned int number, const struct nm_device_ops *ops)
{
	if (number < 1 || number > NM_DEVICE_MAX)
		return -EINVAL;
	plugged[number] = ops;
	return 0;
}

const struct nm_device_ops *nm_device_plugged(unsigned int number)
{
	return number <= NM_DEVICE_MAX ? plugged[number] : NULL;
}

bool nm_device_is_one_range(const void *address, size_t len)
{
	uint64_t first = (uintptr_t)address, last;

	if (len == 0)
		return true;
	if (__builtin_add_overflow(first, len - 1, &last))
		return false;
	if (!(first & NM_DEVICE_MARK))
		return !(last & NM_DEVICE_MARK);
	return first >> NM_DEVICE_SHIFT == last >> NM_DEVICE_SHIFT;
}

static const struct nm_device_ops *ops_of(const void *address)
{
	unsigned int number = (uintptr_t)address >> NM_DEVICE_SHIFT & NM_DEVICE_MAX;
	const struct nm_device_ops *ops = nm_device_plugged(number);

	if (!ops)
		nm_log_once(
			NM_LOG_ERROR,
			"memory of device interface %u was used, but no such interface is plugged in",
			number);
	return ops;
}

void nm_device_get(void *to, const void *from, size_t len)
{
	const struct nm_device_ops *ops = ops_of(from);

	if (ops)
		ops->get(to, (uintptr_t)from & ADDRESS_MASK, len);
	else
		memset(to, 0, len); /* not what lay there before, which may be another peer's */
}

void nm_device_put(void *to, const void *from, size_t len)
{
	const struct nm_device_ops *ops = ops_of(to);

	if (ops)
		ops->put((uintptr_t)to & ADDRESS_MASK, from, len);
}
