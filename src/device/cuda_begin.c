/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that go on after their call: to the host on the GPU's stream, to the GPU on a stream of
 * their own, because a GPU has a copy engine for each direction. An event follows each.
 */
#include <errno.h>

#include "base/log.h"
#include "device/cuda_private.h"

/* Of what copies change in their GPU; nm_cuda_lock is held before it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_serial;

/* The number of a copy: its place is in the low bits. */
#define PLACES (NM_CUDA_GPUS_MAX * NM_CUDA_COPIES)

static int64_t number_of(const struct nm_cuda_gpu *gpu, const struct nm_cuda_copy *copy)
{
	return (int64_t)(copy->serial * PLACES) + (gpu - nm_cuda_gpus) * NM_CUDA_COPIES +
	       (copy - gpu->copies);
}

/* A place with an event, and the streams. NULL: all are in use, or the driver refuses. */
static struct nm_cuda_copy *make_ready(struct nm_cuda_gpu *gpu)
{
	struct nm_cuda_copy *copy = NULL;

	for (size_t i = 0; i < NM_CUDA_COPIES && !copy; i++)
		if (!gpu->copies[i].serial)
			copy = &gpu->copies[i];
	if (!copy ||
	    (!gpu->into && nm_cuda.stream_create(&gpu->into, NM_CUDA_STREAM_NON_BLOCKING) != 0))
		return NULL;
	if (!copy->event && nm_cuda.event_create(&copy->event, NM_CUDA_EVENT_NO_TIMING) != 0)
		return NULL;
	return copy;
}

/* In the context of B's GPU, with both locks. */
static int64_t begin(const struct nm_cuda_buffer *b, uint64_t address, void *host, size_t len,
		     bool is_get)
{
	struct nm_cuda_copy *copy = make_ready(b->gpu);
	nm_cuda_stream stream = is_get ? b->gpu->stream : b->gpu->into;
	uint64_t there = (uintptr_t)host;

	if (!copy ||
	    nm_cuda.copy(is_get ? there : address, is_get ? address : there, len, stream) != 0)
		return -EIO;
	if (nm_cuda.event_record(copy->event, stream) != 0) {
		/* It has begun, and nothing would say when it ends. */
		nm_cuda.stream_wait(stream);
		return -EIO;
	}
	copy->serial = ++last_serial;
	copy->address = address;
	copy->len = len;
	copy->start = b->at.start;
	copy->id = b->at.id;
	copy->host = there;
	return number_of(b->gpu, copy);
}

int64_t nm_cuda_begin(uint64_t address, void *host, size_t len, bool is_get)
{
	const struct nm_cuda_buffer *b;
	nm_cuda_context popped;
	int64_t number = -EFAULT;

	pthread_rwlock_rdlock(&nm_cuda_lock);
	b = nm_cuda_buffer_of(address, len);
	if (b && nm_cuda_buffer_is_there(b) && nm_cuda.push(b->gpu->context) == 0) {
		pthread_mutex_lock(&lock);
		number = begin(b, address, host, len, is_get);
		pthread_mutex_unlock(&lock);
		nm_cuda.pop(&popped);
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
	return number;
}

/* Wait for an event of GPU, or only ask for it. The thread may have another context, or none. */
static int look(const struct nm_cuda_gpu *gpu, nm_cuda_event event, bool waits)
{
	bool is_in = nm_cuda.push(gpu->context) == 0;
	nm_cuda_context popped;
	int error = waits ? nm_cuda.event_wait(event) : nm_cuda.event_query(event);

	if (is_in)
		nm_cuda.pop(&popped);
	return error;
}

static int end(const struct nm_cuda_gpu *gpu, const struct nm_cuda_copy *copy, bool waits)
{
	int error;

	if (copy->serial && nm_cuda_is_there(gpu)) {
		error = look(gpu, copy->event, waits);
		if (error == NM_CUDA_NOT_READY)
			return -EAGAIN;
		if (error) {
			nm_error("%s failed for a copy of %llu bytes at GPU address 0x%llx: %s "
				 "(CUDA error %d)",
				 waits ? "cuEventSynchronize" : "cuEventQuery",
				 (unsigned long long)copy->len, (unsigned long long)copy->address,
				 nm_cuda_words(error), error);
			look(gpu, copy->event, true);
			return -EIO;
		}
		if (nm_cuda_is_buffer(copy->start, copy->id))
			return 0;
	}
	nm_error("a GPU buffer was freed, its region was closed, or the GPU was reset, while bytes "
		 "were copied from or to it");
	return -EFAULT;
}

int nm_cuda_end(int64_t number, bool waits)
{
	struct nm_cuda_gpu *gpu = &nm_cuda_gpus[number % PLACES / NM_CUDA_COPIES];
	struct nm_cuda_copy *place = &gpu->copies[number % NM_CUDA_COPIES];
	struct nm_cuda_copy copy;
	int err;

	pthread_rwlock_rdlock(&nm_cuda_lock);
	pthread_mutex_lock(&lock);
	copy = *place;
	/* Another copy: this one ended with its context. */
	if (copy.serial != (uint64_t)number / PLACES)
		copy.serial = 0;
	pthread_mutex_unlock(&lock);
	err = end(gpu, &copy, waits);
	if (err != -EAGAIN && copy.serial) {
		pthread_mutex_lock(&lock);
		place->serial = 0;
		pthread_mutex_unlock(&lock);
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
	return err;
}

void nm_cuda_wait_copies(struct nm_cuda_gpu *gpu, uint64_t start)
{
	for (size_t i = 0; i < NM_CUDA_COPIES; i++) {
		const struct nm_cuda_copy *copy = &gpu->copies[i];

		if (copy->serial && (!start || copy->start == start) && nm_cuda_is_there(gpu))
			look(gpu, copy->event, true);
	}
}

void nm_cuda_wait_pages(struct nm_cuda_gpu *gpu, const void *pages, size_t len)
{
	for (size_t i = 0; i < NM_CUDA_COPIES; i++) {
		struct nm_cuda_copy copy;

		pthread_mutex_lock(&lock);
		copy = gpu->copies[i];
		pthread_mutex_unlock(&lock);
		if (copy.serial && copy.host - (uintptr_t)pages < len && nm_cuda_is_there(gpu))
			look(gpu, copy.event, true);
	}
}

void nm_cuda_end_copies(struct nm_cuda_gpu *gpu)
{
	nm_cuda_wait_copies(gpu, 0);
	for (size_t i = 0; i < NM_CUDA_COPIES; i++)
		if (gpu->copies[i].event)
			nm_cuda.event_destroy(gpu->copies[i].event);
	if (gpu->into)
		nm_cuda.stream_destroy(gpu->into);
}
