/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of GPUs for network adapters, which reach them without the host. */
#include <errno.h>
#include <unistd.h>

#include "device/cuda_private.h"

int nm_cuda_buffer(uint64_t address, size_t len, struct nm_device_buffer *ret_buffer)
{
	const struct nm_cuda_buffer *b;
	int err = -EFAULT;

	pthread_rwlock_rdlock(&nm_cuda_lock);
	b = nm_cuda_buffer_of(address, len);
	if (b && nm_cuda_buffer_is_there(b)) {
		*ret_buffer = (struct nm_device_buffer){
			.start = b->at.start,
			.size = b->at.size,
			.id = b->at.id,
			.device = (int)(b->gpu - nm_cuda_gpus),
		};
		err = 0;
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
	return err;
}

int nm_cuda_dmabuf(uint64_t address, size_t len, uint64_t *ret_offset, struct nm_reason *ret_why)
{
	/* The driver gives whole pages of the host. */
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const uint64_t start = address / page * page,
		       end = (address + len + page - 1) / page * page;
	const struct nm_cuda_buffer *b;
	nm_cuda_context popped;
	int error, file = -1;

	if (!nm_cuda.range_handle) {
		nm_reason_set(ret_why, "the driver is older than CUDA 11.7");
		return -EOPNOTSUPP;
	}
	pthread_rwlock_rdlock(&nm_cuda_lock);
	b = nm_cuda_buffer_of(address, len);
	if (!b || !nm_cuda_buffer_is_there(b)) {
		pthread_rwlock_unlock(&nm_cuda_lock);
		nm_reason_set(ret_why, "the buffer has gone");
		return -EFAULT;
	}
	error = nm_cuda.push(b->gpu->context);
	if (!error) {
		error = nm_cuda.range_handle(&file, start, end - start, NM_CUDA_RANGE_DMABUF, 0);
		nm_cuda.pop(&popped);
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
	if (error || file < 0) {
		nm_reason_set(ret_why, "%s (CUDA error %d)", nm_cuda_words(error), error);
		return -EIO;
	}
	*ret_offset = address - start;
	return file;
}
