/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of devices whose driver copies in one call: the part of struct nm_device_ops that is the
 * same for all of them. Such memory is staged: there are no handles and no copies that go on.
 */
#ifndef NM_DEVICE_SYNC_DEVICE_H
#define NM_DEVICE_SYNC_DEVICE_H

#include <pthread.h>

#include "base/device.h"
#include "base/reason.h"
#include "device/device_list.h"

struct nm_sync_buffer {
	struct nm_listed at; /* the first member */
	int device;
};

struct nm_sync_device {
	/*
	 * Set start, size, id and device of the allocation at ADDRESS. 0; -EINVAL, it is none of a
	 * device; -EIO, the driver failed; with the reason.
	 */
	int (*look_up)(uint64_t address, struct nm_sync_buffer *ret_buffer,
		       struct nm_reason *ret_why);
	/* Does allocation ID still lie at START? */
	bool (*is_buffer)(uint64_t start, uint64_t id);
	/* Copy, to the host if IS_GET or else from it, and wait. 0, or -EIO with the reason. */
	int (*copy)(int device, uint64_t to, uint64_t from, size_t len, bool is_get,
		    struct nm_reason *ret_why);
	pthread_rwlock_t lock; /* copies hold it shared */
	struct nm_device_list buffers;
};

/* As the functions of struct nm_device_ops. */
int nm_sync_attach(struct nm_sync_device *device, uint64_t address, size_t len, void **ret_handle,
		   struct nm_reason *ret_why);
void nm_sync_detach(struct nm_sync_device *device, void *handle);
bool nm_sync_has(struct nm_sync_device *device, uint64_t address, size_t len);
int nm_sync_get(struct nm_sync_device *device, void *to, uint64_t from, size_t len);
int nm_sync_put(struct nm_sync_device *device, uint64_t to, const void *from, size_t len);

#endif
