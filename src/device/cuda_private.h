/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the CUDA interface: cuda.c buffers and copies, cuda_begin.c copies that go on,
 * cuda_share.c processes, cuda_export.c network adapters, cuda_load.c.
 */
#ifndef NM_DEVICE_CUDA_PRIVATE_H
#define NM_DEVICE_CUDA_PRIVATE_H

#include <pthread.h>

#include "base/device.h"
#include "base/reason.h"
#include "device/cuda_driver.h"
#include "device/device_list.h"

#define NM_CUDA_GPUS_MAX 64

/* A copy that goes on. */
struct nm_cuda_copy {
	uint64_t serial;     /* never used twice; 0: unused */
	nm_cuda_event event; /* after it; NULL: none was made yet */
	uint64_t address, len;
	uint64_t start, id; /* of its buffer */
	uint64_t host;	    /* the other side */
};
#define NM_CUDA_COPIES 16 /* of one GPU at a time */

/* What is used of a GPU. While buffers of a context are attached, it is the GPU's only one. */
struct nm_cuda_gpu {
	nm_cuda_context context;
	nm_cuda_stream stream; /* NULL: the GPU is not used */
	/*
	 * Memory in the context that is never used. The context is destroyed if this memory has
	 * gone or is another buffer, and only so can that be known: a reset GPU has a new context
	 * with the old handle, and no call may be made with a handle that is gone.
	 */
	uint64_t witness, witness_id;
	unsigned int nr_buffers;
	nm_cuda_stream into; /* of copies to the GPU that go on; NULL: none was made yet */
	struct nm_cuda_copy copies[NM_CUDA_COPIES];
};

/* One allocation of the program, of which pieces are attached. */
struct nm_cuda_buffer {
	struct nm_listed at; /* the first member */
	struct nm_cuda_gpu *gpu;
	enum { NM_CUDA_NOT_SHARED, NM_CUDA_SHARED, NM_CUDA_NOT_SHAREABLE } sharing;
	struct nm_cuda_handle handle; /* NM_CUDA_SHARED */
};

extern struct nm_cuda_driver nm_cuda;
/* Copies hold it shared; all that changes is below it. */
extern pthread_rwlock_t nm_cuda_lock;
extern struct nm_cuda_gpu nm_cuda_gpus[NM_CUDA_GPUS_MAX];

/* The driver's words for an error. */
const char *nm_cuda_words(int error);
/* The attached buffer that holds all of the range; NULL: there is none. With the lock. */
struct nm_cuda_buffer *nm_cuda_buffer_of(uint64_t address, size_t len);

/* Is the context of GPU still the one in which its stream was made? With the lock. */
bool nm_cuda_is_there(const struct nm_cuda_gpu *gpu);

/* Is it the allocation that was attached, and its context there? With the lock. */
bool nm_cuda_buffer_is_there(const struct nm_cuda_buffer *b);

/* Is this still the driver's buffer number ID? With the lock. */
bool nm_cuda_is_buffer(uint64_t address, uint64_t id);

/* cuda_begin.c: `begin` and `end` of the interface. */
int64_t nm_cuda_begin(uint64_t address, void *host, size_t len, bool is_get);
int nm_cuda_end(int64_t copy, bool waits);
/* All copies of GPU are over; those from and to START only, unless it is 0. With the lock. */
void nm_cuda_wait_copies(struct nm_cuda_gpu *gpu, uint64_t start);
/* All copies of GPU from and to these pages are over. With the lock. */
void nm_cuda_wait_pages(struct nm_cuda_gpu *gpu, const void *pages, size_t len);
/* Before the context of GPU is left: wait for all copies, destroy `into` and the events. */
void nm_cuda_end_copies(struct nm_cuda_gpu *gpu);

/* cuda_export.c: `buffer` and `dmabuf` of the interface. */
int nm_cuda_buffer(uint64_t address, size_t len, struct nm_device_buffer *ret_buffer);
int nm_cuda_dmabuf(uint64_t address, size_t len, uint64_t *ret_offset, struct nm_reason *ret_why);

/* cuda_share.c: `share` and `pull` of the interface. */
int nm_cuda_share(uint64_t address, size_t len, struct nm_device_share *ret_share);
int nm_cuda_pull(const struct nm_device_share *share, const struct iovec *pieces, size_t nr_pieces);
/*
 * The context of GPU is left: nothing of other processes stays open there. IS_THERE false: it was
 * destroyed, so nothing is. With the lock.
 */
void nm_cuda_close_opened(const struct nm_cuda_gpu *gpu, bool is_there);

extern const struct nm_device_ops nm_cuda_ops;

#endif
