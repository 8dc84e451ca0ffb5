/* SPDX-License-Identifier: Apache-2.0 */
#include "device/sync_device.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"

static struct nm_sync_buffer *buffer_of(const struct nm_sync_device *device, uint64_t address,
					size_t len)
{
	return (struct nm_sync_buffer *)nm_device_list_find(&device->buffers, address, len);
}

static int attach_locked(struct nm_sync_device *device, uint64_t address, size_t len,
			 void **ret_handle, struct nm_reason *ret_why)
{
	struct nm_sync_buffer found = {0}, *b;
	int err = device->look_up(address, &found, ret_why);

	if (err < 0)
		return err;
	if (!nm_listed_holds(&found.at, address, len, ret_why))
		return -EINVAL;
	b = buffer_of(device, found.at.start, found.at.size);
	if (b && b->at.start == found.at.start && b->at.id == found.at.id) {
		b->at.nr_attached++;
		*ret_handle = b;
		return 0;
	}
	b = malloc(sizeof(*b));
	if (b)
		*b = found;
	if (!b || nm_device_list_add(&device->buffers, &b->at) < 0) {
		free(b);
		nm_reason_set(ret_why, "out of memory");
		return -ENOMEM;
	}
	b->at.nr_attached = 1;
	*ret_handle = b;
	return 0;
}

int nm_sync_attach(struct nm_sync_device *device, uint64_t address, size_t len, void **ret_handle,
		   struct nm_reason *ret_why)
{
	int err;

	pthread_rwlock_wrlock(&device->lock);
	err = attach_locked(device, address, len, ret_handle, ret_why);
	pthread_rwlock_unlock(&device->lock);
	return err;
}

void nm_sync_detach(struct nm_sync_device *device, void *handle)
{
	struct nm_sync_buffer *b = handle;

	pthread_rwlock_wrlock(&device->lock);
	if (--b->at.nr_attached == 0) {
		nm_device_list_remove(&device->buffers, &b->at);
		free(b);
	}
	pthread_rwlock_unlock(&device->lock);
}

bool nm_sync_has(struct nm_sync_device *device, uint64_t address, size_t len)
{
	bool has;

	pthread_rwlock_rdlock(&device->lock);
	has = buffer_of(device, address, len) != NULL;
	pthread_rwlock_unlock(&device->lock);
	return has;
}

static int copy_locked(const struct nm_sync_device *device, uint64_t to, uint64_t from, size_t len,
		       bool is_get)
{
	const uint64_t address = is_get ? from : to;
	const struct nm_sync_buffer *b = buffer_of(device, address, len);
	struct nm_reason why;
	int err;

	if (!b) {
		nm_error("%zu bytes at GPU address 0x%llx are in no registered buffer: its region "
			 "was closed while an operation used it, or the address is wrong",
			 len, (unsigned long long)address);
		return -EFAULT;
	}
	if (!device->is_buffer(b->at.start, b->at.id)) {
		nm_error(
			"GPU buffer at 0x%llx was freed, or the GPU was reset, while the buffer was "
			"registered or in use",
			(unsigned long long)address);
		return -EFAULT;
	}
	err = device->copy(b->device, to, from, len, is_get, &why);
	if (err < 0)
		nm_error("a copy of %zu bytes at GPU address 0x%llx failed: %s", len,
			 (unsigned long long)address, why.text);
	return err;
}

int nm_sync_get(struct nm_sync_device *device, void *to, uint64_t from, size_t len)
{
	int err;

	pthread_rwlock_rdlock(&device->lock);
	err = copy_locked(device, (uintptr_t)to, from, len, true);
	pthread_rwlock_unlock(&device->lock);
	return err;
}

int nm_sync_put(struct nm_sync_device *device, uint64_t to, const void *from, size_t len)
{
	int err;

	pthread_rwlock_rdlock(&device->lock);
	err = copy_locked(device, to, (uintptr_t)from, len, false);
	pthread_rwlock_unlock(&device->lock);
	return err;
}
