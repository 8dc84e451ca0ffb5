/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of GPUs between processes of one kernel, by the handles of the driver. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "device/cuda_private.h"

/*
 * Allocations of other processes that are kept open, because to open one is slow.
 */
#define OPENED_MAX 32

/* An allocation of another process, opened in the context of GPU. */
struct opened {
	struct nm_cuda_handle handle;
	uint64_t id;
	struct nm_cuda_gpu *gpu; /* NULL: unused */
	uint64_t start; /* where it is mapped; 0: the driver refused, and is not asked again */
	size_t size;
	uint64_t used;	    /* when, as a count of uses */
	unsigned int users; /* copies in progress */
};

static struct opened opened[OPENED_MAX];
static uint64_t nr_uses;

static int share_locked(uint64_t address, size_t len, struct nm_device_share *ret_share)
{
	struct nm_cuda_buffer *b = nm_cuda_buffer_of(address, len);
	nm_cuda_context popped;
	int error;

	/* A buffer that has gone is not shown: a peer may have it open, with the bytes of then. */
	if (!b || b->sharing == NM_CUDA_NOT_SHAREABLE || !nm_cuda_buffer_is_there(b))
		return -EFAULT;
	if (b->sharing == NM_CUDA_NOT_SHARED) {
		error = nm_cuda.push(b->gpu->context);
		if (!error) {
			error = nm_cuda.share(&b->handle, b->at.start);
			nm_cuda.pop(&popped);
		}
		b->sharing = error ? NM_CUDA_NOT_SHAREABLE : NM_CUDA_SHARED;
		if (error) {
			nm_info("GPU buffer at 0x%llx is copied through host memory, because it "
				"cannot be shared with other processes: %s",
				(unsigned long long)address, nm_cuda_words(error));
			return -EIO;
		}
	}
	memcpy(ret_share->handle, b->handle.bytes, sizeof(ret_share->handle));
	ret_share->offset = address - b->at.start;
	ret_share->id = b->at.id;
	return 0;
}

int nm_cuda_share(uint64_t address, size_t len, struct nm_device_share *ret_share)
{
	int err;

	pthread_rwlock_wrlock(&nm_cuda_lock);
	err = share_locked(address, len, ret_share);
	pthread_rwlock_unlock(&nm_cuda_lock);
	return err;
}

static void close_opened(struct opened *o, bool is_there)
{
	nm_cuda_context popped;

	if (is_there && o->start && nm_cuda.push(o->gpu->context) == 0) {
		nm_cuda.close(o->start);
		nm_cuda.pop(&popped);
	}
	*o = (struct opened){0};
}

void nm_cuda_close_opened(const struct nm_cuda_gpu *gpu, bool is_there)
{
	for (size_t i = 0; i < OPENED_MAX; i++)
		if (opened[i].gpu == gpu)
			close_opened(&opened[i], is_there);
}

/* The GPU to which PIECES belong, or any that is in use if all are of the host. */
static struct nm_cuda_gpu *gpu_of(const struct iovec *pieces, size_t nr_pieces)
{
	for (size_t i = 0; i < nr_pieces; i++) {
		const struct nm_cuda_buffer *b;

		if (!nm_is_device(pieces[i].iov_base))
			continue;
		b = nm_cuda_buffer_of(nm_device_address(pieces[i].iov_base), pieces[i].iov_len);
		return b ? b->gpu : NULL;
	}
	for (size_t i = 0; i < NM_CUDA_GPUS_MAX; i++)
		if (nm_cuda_is_there(&nm_cuda_gpus[i]))
			return &nm_cuda_gpus[i];
	return NULL;
}

static bool is_same(const struct opened *o, const struct nm_device_share *share,
		    const struct nm_cuda_gpu *gpu)
{
	return o->gpu == gpu && o->id == share->id &&
	       !memcmp(o->handle.bytes, share->handle, sizeof(o->handle.bytes));
}

/* Room for another one: unused, or the one that was used longest ago. NULL: all are in use. */
static struct opened *make_room(const struct nm_device_share *share)
{
	struct opened *oldest = NULL;

	for (size_t i = 0; i < OPENED_MAX; i++) {
		struct opened *o = &opened[i];

		/* The same name for another allocation: the old one was freed. */
		if (o->gpu && !o->users && o->id != share->id &&
		    !memcmp(o->handle.bytes, share->handle, sizeof(o->handle.bytes)))
			close_opened(o, nm_cuda_is_there(o->gpu));
		if (!o->users && (!oldest || o->used < oldest->used))
			oldest = o;
	}
	if (oldest && oldest->gpu)
		close_opened(oldest, nm_cuda_is_there(oldest->gpu));
	return oldest;
}

/* Open what SHARE names as O. If the driver refuses, o->start stays 0, and it is not asked again. */
static void open_share(struct opened *o, const struct nm_device_share *share)
{
	nm_cuda_context popped;
	uint64_t address = 0;
	int error = nm_cuda.push(o->gpu->context);

	memcpy(o->handle.bytes, share->handle, sizeof(o->handle.bytes));
	o->id = share->id;
	if (!error) {
		error = nm_cuda.open(&address, o->handle, NM_CUDA_OPEN_PEER_ACCESS);
		if (!error)
			error = nm_cuda.attribute(&o->size, NM_CUDA_POINTER_RANGE_SIZE, address);
		if (error && address)
			nm_cuda.close(address);
		nm_cuda.pop(&popped);
	}
	if (!error)
		o->start = address;
	else
		nm_info("a GPU buffer of another process is copied through host memory, because it "
			"cannot be opened here: %s",
			nm_cuda_words(error));
}

/* What SHARE names, opened, with one user more. NULL: it cannot be. */
static struct opened *take_opened(const struct nm_device_share *share, struct nm_cuda_gpu *gpu)
{
	struct opened *o = NULL;

	for (size_t i = 0; i < OPENED_MAX && !o; i++)
		if (opened[i].gpu && is_same(&opened[i], share, gpu))
			o = &opened[i];
	if (!o) {
		o = make_room(share);
		if (!o)
			return NULL;
		o->gpu = gpu;
		open_share(o, share);
	}
	o->used = ++nr_uses;
	if (!o->start)
		return NULL;
	o->users++;
	return o;
}

/* Copy to all pieces, and wait. 0 or the driver's error. */
static int pull_pieces(const struct opened *o, uint64_t from, const struct iovec *pieces,
		       size_t nr_pieces)
{
	nm_cuda_context popped;
	int error = nm_cuda.push(o->gpu->context), last;

	if (error)
		return error;
	for (size_t i = 0; i < nr_pieces && !error; i++) {
		uint64_t to = nm_is_device(pieces[i].iov_base) ?
				      nm_device_address(pieces[i].iov_base) :
				      (uintptr_t)pieces[i].iov_base;

		error = nm_cuda.copy(to, from, pieces[i].iov_len, o->gpu->stream);
		from += pieces[i].iov_len;
	}
	last = nm_cuda.stream_wait(o->gpu->stream);
	nm_cuda.pop(&popped);
	return error ? error : last;
}

/* Are all pieces on the device what they were when they were attached? */
static bool are_there(const struct iovec *pieces, size_t nr_pieces, uint64_t *ret_len)
{
	*ret_len = 0;
	for (size_t i = 0; i < nr_pieces; i++) {
		uint64_t address = nm_device_address(pieces[i].iov_base);
		const struct nm_cuda_buffer *b;

		*ret_len += pieces[i].iov_len;
		if (!nm_is_device(pieces[i].iov_base))
			continue;
		b = nm_cuda_buffer_of(address, pieces[i].iov_len);
		if (!b || !nm_cuda_buffer_is_there(b))
			return false;
	}
	return true;
}

int nm_cuda_pull(const struct nm_device_share *share, const struct iovec *pieces, size_t nr_pieces)
{
	struct opened *o = NULL;
	struct nm_cuda_gpu *gpu;
	uint64_t len;
	int err = -EFAULT, error;

	pthread_rwlock_wrlock(&nm_cuda_lock);
	gpu = are_there(pieces, nr_pieces, &len) ? gpu_of(pieces, nr_pieces) : NULL;
	if (gpu)
		o = take_opened(share, gpu);
	if (o)
		gpu->nr_buffers++; /* its context stays */
	pthread_rwlock_unlock(&nm_cuda_lock);
	if (!gpu)
		nm_info("a GPU buffer of another process is copied through host memory, because "
			"no context of a GPU is in use here, or the receive buffer has gone");
	if (!o)
		return -EFAULT;
	pthread_rwlock_rdlock(&nm_cuda_lock);
	if (share->offset <= o->size && len <= o->size - share->offset) {
		error = pull_pieces(o, o->start + share->offset, pieces, nr_pieces);
		err = error ? -EIO : 0;
		if (error)
			nm_info("a GPU buffer of another process is copied through host memory, "
				"because the copy from it failed: %s",
				nm_cuda_words(error));
	}
	pthread_rwlock_unlock(&nm_cuda_lock);
	pthread_rwlock_wrlock(&nm_cuda_lock);
	o->users--;
	gpu->nr_buffers--;
	pthread_rwlock_unlock(&nm_cuda_lock);
	return err;
}
