/* SPDX-License-Identifier: Apache-2.0 */
#include "base/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

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

struct pin {
	struct pin *next;
	const struct nm_device_ops *ops;
	void *pages;
	size_t len;
};

static pthread_mutex_t pins_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pin *pins;
static _Atomic bool has_pins; /* most processes never have one */

bool nm_device_pin(const struct nm_device_ops *ops, const void *pages, size_t len,
		   bool is_read_only)
{
	struct pin *pin = malloc(sizeof(*pin));

	if (!pin)
		return false;
	*pin = (struct pin){.ops = ops, .pages = (void *)(uintptr_t)pages, .len = len};
	if (!ops->pin || !ops->pin(pin->pages, len, is_read_only)) {
		free(pin);
		return false;
	}
	pthread_mutex_lock(&pins_lock);
	pin->next = pins;
	pins = pin;
	atomic_store(&has_pins, true);
	pthread_mutex_unlock(&pins_lock);
	return true;
}

void nm_device_unpin(const void *pages)
{
	struct pin **at = &pins, *pin;

	if (!atomic_load(&has_pins))
		return;
	pthread_mutex_lock(&pins_lock);
	while (*at && (*at)->pages != pages)
		at = &(*at)->next;
	pin = *at;
	if (pin)
		*at = pin->next;
	pthread_mutex_unlock(&pins_lock);
	if (!pin)
		return;
	pin->ops->unpin(pin->pages, pin->len);
	free(pin);
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

const struct nm_device_ops *nm_device_ops_of(const void *address)
{
	unsigned int number = nm_device_number(address);
	const struct nm_device_ops *ops = nm_device_plugged(number);

	if (!ops)
		nm_log_once(
			NM_LOG_ERROR,
			"memory of device interface %u was used, but no such interface is plugged in",
			number);
	return ops;
}

bool nm_device_is_there(const void *address, size_t len)
{
	const struct nm_device_ops *ops = nm_device_ops_of(address);

	return ops && (ops->is_there ? ops->is_there : ops->has)(nm_device_address(address), len);
}

int nm_device_get(void *to, const void *from, size_t len)
{
	const struct nm_device_ops *ops = nm_device_ops_of(from);
	int err = ops ? ops->get(to, nm_device_address(from), len) : -EFAULT;

	if (err < 0)
		memset(to, 0, len);
	return err;
}

int nm_device_put(void *to, const void *from, size_t len)
{
	const struct nm_device_ops *ops = nm_device_ops_of(to);

	return ops ? ops->put(nm_device_address(to), from, len) : -EFAULT;
}
