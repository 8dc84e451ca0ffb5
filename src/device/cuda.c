/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/cuda_private.h"

pthread_rwlock_t nm_cuda_lock = PTHREAD_RWLOCK_INITIALIZER;
struct nm_cuda_gpu nm_cuda_gpus[NM_CUDA_GPUS_MAX];
static struct nm_device_list buffers;

/*
 * A block of the driver's. It packs smaller buffers into common blocks, and a witness in one of them
 * would keep freed buffers of the program readable by the processes that know their handles.
 */
#define WITNESS_SIZE (2u << 20)

/* FAILED: what the driver was asked for. */
static int refuse(struct nm_reason *ret_why, const char *failed, uint64_t address, int error)
{
	nm_reason_set(ret_why, "%s failed for address 0x%llx: %s (CUDA error %d)", failed,
		      (unsigned long long)address, nm_cuda_words(error), error);
	return -EIO;
}

struct nm_cuda_buffer *nm_cuda_buffer_of(uint64_t address, size_t len)
{
	/* The first member of its buffer. */
	return (struct nm_cuda_buffer *)nm_device_list_find(&buffers, address, len);
}

/* What the driver knows of an address. */
struct place {
	struct nm_listed at;
	nm_cuda_context context; /* NULL: of a pool, so of the GPU's primary context */
	int device;
};

static int look_up(uint64_t address, size_t len, struct place *ret_place, struct nm_reason *ret_why)
{
	const struct {
		enum nm_cuda_attribute attribute;
		void *to;
		const char *name;
	} wanted[] = {
		{NM_CUDA_POINTER_RANGE_START, &ret_place->at.start, "looking for its start"},
		{NM_CUDA_POINTER_RANGE_SIZE, &ret_place->at.size, "looking for its size"},
		{NM_CUDA_POINTER_BUFFER_ID, &ret_place->at.id, "looking for its buffer"},
		{NM_CUDA_POINTER_CONTEXT, &ret_place->context, "looking for its context"},
		{NM_CUDA_POINTER_DEVICE, &ret_place->device, "looking for its GPU"},
	};
	unsigned int type = 0;
	int error = nm_cuda.attribute(&type, NM_CUDA_POINTER_MEMORY_TYPE, address);

	if (error != 0 || type != NM_CUDA_MEMORY_DEVICE) {
		nm_reason_set(ret_why,
			      "address 0x%llx is not memory of a GPU (%s); register host memory "
			      "with FI_HMEM_SYSTEM",
			      (unsigned long long)address,
			      error ? nm_cuda_words(error) : "it is host memory that CUDA knows");
		return -EINVAL;
	}
	for (size_t i = 0; i < NM_ARRAY_SIZE(wanted); i++) {
		error = nm_cuda.attribute(wanted[i].to, wanted[i].attribute, address);
		if (error)
			return refuse(ret_why, wanted[i].name, address, error);
	}
	if (!nm_listed_holds(&ret_place->at, address, len, ret_why))
		return -EINVAL;
	if (ret_place->device < 0 || ret_place->device >= NM_CUDA_GPUS_MAX) {
		nm_reason_set(ret_why, "GPU %d is beyond the %d that are supported",
			      ret_place->device, NM_CUDA_GPUS_MAX);
		return -EINVAL;
	}
	return 0;
}

bool nm_cuda_is_buffer(uint64_t address, uint64_t id)
{
	uint64_t found = 0;

	return nm_cuda.attribute(&found, NM_CUDA_POINTER_BUFFER_ID, address) == 0 && found == id;
}

bool nm_cuda_is_there(const struct nm_cuda_gpu *gpu)
{
	return gpu->stream && nm_cuda_is_buffer(gpu->witness, gpu->witness_id);
}

bool nm_cuda_buffer_is_there(const struct nm_cuda_buffer *b)
{
	/* Memory of a pool or a mapping may outlive a context. */
	return nm_cuda_is_buffer(b->at.start, b->at.id) && nm_cuda_is_there(b->gpu);
}

static void leave_context(struct nm_cuda_gpu *gpu)
{
	bool is_there = nm_cuda_is_there(gpu);
	nm_cuda_context popped;

	nm_cuda_close_opened(gpu, is_there);
	/* If the program has destroyed the context, all of it has gone. */
	if (is_there && nm_cuda.push(gpu->context) == 0) {
		nm_cuda_end_copies(gpu);
		nm_cuda.stream_destroy(gpu->stream);
		nm_cuda.free(gpu->witness);
		nm_cuda.pop(&popped);
	}
	*gpu = (struct nm_cuda_gpu){0};
}

/* The stream and the witness of GPU, in the context that is current. 0 or the driver's error. */
static int settle(struct nm_cuda_gpu *gpu, const char **ret_call)
{
	int error = nm_cuda.alloc(&gpu->witness, WITNESS_SIZE);

	*ret_call = "allocating its witness";
	if (error)
		return error;
	*ret_call = "looking for the buffer of its witness";
	error = nm_cuda.attribute(&gpu->witness_id, NM_CUDA_POINTER_BUFFER_ID, gpu->witness);
	if (!error) {
		*ret_call = "making a stream";
		error = nm_cuda.stream_create(&gpu->stream, NM_CUDA_STREAM_NON_BLOCKING);
	}
	if (error) {
		nm_cuda.free(gpu->witness);
		*gpu = (struct nm_cuda_gpu){0};
	}
	return error;
}

/* Use the context of PLACE on its GPU. */
static int enter_context(const struct place *place, uint64_t address, struct nm_reason *ret_why)
{
	struct nm_cuda_gpu *gpu = &nm_cuda_gpus[place->device];
	nm_cuda_context context = place->context, popped;
	const char *call;
	int error = 0;

	if (!context)
		error = nm_cuda.primary_retain(&context, place->device);
	if (error)
		return refuse(ret_why, "taking the primary context", address, error);
	if (gpu->context == context && nm_cuda_is_there(gpu))
		return 0;
	if (gpu->nr_buffers > 0) {
		nm_reason_set(
			ret_why,
			"address 0x%llx belongs to a second context of GPU %d, or the GPU was "
			"reset; buffers of another context are registered: use one context "
			"for all, or close their regions first",
			(unsigned long long)address, place->device);
		return -EINVAL;
	}
	leave_context(gpu);
	error = nm_cuda.push(context);
	if (error)
		return refuse(ret_why, "entering its context", address, error);
	error = settle(gpu, &call);
	nm_cuda.pop(&popped);
	if (error)
		return refuse(ret_why, call, address, error);
	gpu->context = context;
	return 0;
}

static int attach_locked(uint64_t address, size_t len, void **ret_handle, struct nm_reason *ret_why)
{
	struct place place = {0};
	struct nm_cuda_buffer *b;
	int err = look_up(address, len, &place, ret_why);

	if (err < 0)
		return err;
	b = nm_cuda_buffer_of(place.at.start, place.at.size);
	if (b && b->at.id == place.at.id && nm_cuda_is_there(b->gpu)) {
		b->at.nr_attached++;
		*ret_handle = b;
		return 0;
	}
	err = enter_context(&place, address, ret_why);
	if (err < 0)
		return err;
	b = calloc(1, sizeof(*b));
	if (b)
		*b = (struct nm_cuda_buffer){
			.at = place.at,
			.gpu = &nm_cuda_gpus[place.device],
		};
	if (!b || nm_device_list_add(&buffers, &b->at) < 0) {
		free(b);
		nm_reason_set(ret_why, "out of memory");
		return -ENOMEM;
	}
	b->at.nr_attached = 1;
	b->gpu->nr_buffers++;
	*ret_handle = b;
	return 0;
}

static int cuda_attach(uint64_t address, size_t len, void **ret_handle, struct nm_reason *ret_why)
{
	int err;

	pthread_rwlock_wrlock(&nm_cuda_lock);
	err = attach_locked(address, len, ret_handle, ret_why);
	pthread_rwlock_unlock(&nm_cuda_lock);
	return err;
}

static void cuda_detach(void *handle)
{
	struct nm_cuda_buffer *b = handle;

	pthread_rwlock_wrlock(&nm_cuda_lock);
	/* Also if another region holds it: the caller has closed one that a copy may have used. */
	nm_cuda_wait_copies(b->gpu, b->at.start);
	if (--b->at.nr_attached == 0) {
		nm_device_list_remove(&buffers, &b->at);
		/* The stream stays: the next buffer is probably of the same context. */
		b->gpu->nr_buffers--;
		free(b);
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
}

static bool cuda_has(uint64_t address, size_t len)
{
	bool has;

	pthread_rwlock_rdlock(&nm_cuda_lock);
	has = nm_cuda_buffer_of(address, len) != NULL;
	pthread_rwlock_unlock(&nm_cuda_lock);
	return has;
}

static bool cuda_is_there(uint64_t address, size_t len)
{
	const struct nm_cuda_buffer *b;
	bool is_there;

	pthread_rwlock_rdlock(&nm_cuda_lock);
	b = nm_cuda_buffer_of(address, len);
	is_there = b && nm_cuda_buffer_is_there(b);
	pthread_rwlock_unlock(&nm_cuda_lock);
	if (!is_there)
		nm_error(
			"GPU buffer at 0x%llx was freed, or the GPU was reset, while another process "
			"copied from it: that process has other bytes",
			(unsigned long long)address);
	return is_there;
}

/* Copy on the stream of GPU, and wait. 0 or the driver's error, with the name of the call. */
static int copy_on(const struct nm_cuda_gpu *gpu, uint64_t to, uint64_t from, size_t len,
		   const char **ret_call)
{
	nm_cuda_context popped;
	int error = nm_cuda.push(gpu->context);

	*ret_call = "cuCtxPushCurrent";
	if (error)
		return error;
	*ret_call = "cuMemcpyAsync";
	error = nm_cuda.copy(to, from, len, gpu->stream);
	if (!error) {
		*ret_call = "cuStreamSynchronize";
		error = nm_cuda.stream_wait(gpu->stream);
	}
	nm_cuda.pop(&popped);
	return error;
}

/* ADDRESS is the side on the GPU. */
static int copy(uint64_t to, uint64_t from, uint64_t address, size_t len)
{
	const struct nm_cuda_buffer *b;
	const char *call;
	int error, err = 0;

	pthread_rwlock_rdlock(&nm_cuda_lock);
	b = nm_cuda_buffer_of(address, len);
	if (!b) {
		nm_error("%zu bytes at GPU address 0x%llx are in no registered buffer: its region "
			 "was closed while an operation used it, or the address is wrong",
			 len, (unsigned long long)address);
		pthread_rwlock_unlock(&nm_cuda_lock);
		return -EFAULT;
	}
	if (!nm_cuda_buffer_is_there(b)) {
		nm_error(
			"GPU buffer at 0x%llx was freed, or the GPU was reset, while the buffer was "
			"registered or in use",
			(unsigned long long)address);
		err = -EFAULT;
	} else {
		error = copy_on(b->gpu, to, from, len, &call);
		if (error) {
			nm_error("%s failed for %zu bytes at GPU address 0x%llx: %s (CUDA error "
				 "%d)",
				 call, len, (unsigned long long)address, nm_cuda_words(error),
				 error);
			err = -EIO;
		}
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
	return err;
}

static int cuda_get(void *to, uint64_t from, size_t len)
{
	return copy((uintptr_t)to, from, from, len);
}

static int cuda_put(uint64_t to, const void *from, size_t len)
{
	return copy(to, (uintptr_t)from, to, len);
}

/* Any context will do: the pages are pinned for all. */
static bool enter_any(void)
{
	for (int i = 0; i < NM_CUDA_GPUS_MAX; i++)
		if (nm_cuda_is_there(&nm_cuda_gpus[i]) &&
		    nm_cuda.push(nm_cuda_gpus[i].context) == 0)
			return true;
	return false;
}

static bool cuda_pin(void *pages, size_t len, bool is_read_only)
{
	const unsigned int flags = NM_CUDA_HOST_REGISTER_PORTABLE |
				   (is_read_only ? NM_CUDA_HOST_REGISTER_READ_ONLY : 0);
	nm_cuda_context popped;
	bool is_pinned = false;
	int error = 0;

	pthread_rwlock_rdlock(&nm_cuda_lock);
	if (enter_any()) {
		error = nm_cuda.host_register(pages, len, flags);
		is_pinned = error == 0;
		nm_cuda.pop(&popped);
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
	if (error)
		nm_info("%zu bytes of host memory%s are not pinned, so copies of GPUs are slower: "
			"%s (CUDA error %d)",
			len, is_read_only ? ", which another process shares," : "",
			nm_cuda_words(error), error);
	return is_pinned;
}

static void cuda_unpin(void *pages, size_t len)
{
	nm_cuda_context popped;

	pthread_rwlock_rdlock(&nm_cuda_lock);
	for (size_t i = 0; i < NM_CUDA_GPUS_MAX; i++)
		nm_cuda_wait_pages(&nm_cuda_gpus[i], pages, len);
	if (enter_any()) {
		nm_cuda.host_unregister(pages);
		nm_cuda.pop(&popped);
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
}

const struct nm_device_ops nm_cuda_ops = {
	.name = "CUDA",
	.attach = cuda_attach,
	.detach = cuda_detach,
	.has = cuda_has,
	.is_there = cuda_is_there,
	.get = cuda_get,
	.put = cuda_put,
	.begin = nm_cuda_begin,
	.end = nm_cuda_end,
	.share = nm_cuda_share,
	.pull = nm_cuda_pull,
	.buffer = nm_cuda_buffer,
	.dmabuf = nm_cuda_dmabuf,
	.pin = cuda_pin,
	.unpin = cuda_unpin,
};
