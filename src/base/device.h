/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User memory that loads and stores of this processor do not reach, for example of a GPU. Its
 * addresses are *marked*: bit 63 is set, which no user address of the host has; the next six bits
 * are the number of the device's interface, and 57 bits are its own. Marked addresses stand in
 * iovecs like any other; arithmetic within a buffer keeps the mark.
 *
 * Bytes that leave a device are copied into memory of the host (engine/stage.h), or the receiver
 * takes them by `pull`, so no channel sees a marked address. Bytes that arrive are put by the
 * functions of user_copy.h. See docs/design/devices.md.
 */
#ifndef NM_BASE_DEVICE_H
#define NM_BASE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/compiler.h"

#define NM_DEVICE_MARK (UINT64_C(1) << 63)
_Static_assert(sizeof(void *) == 8, "bit 63 marks devices");
#define NM_DEVICE_SHIFT 57
#define NM_DEVICE_MAX 63 /* numbers are 1 to 63: those of libfabric's enum fi_hmem_iface */

struct nm_reason;

/* A piece of device memory, for another process of this kernel. On the wire; all of it is hostile. */
struct nm_device_share {
	uint8_t handle[64]; /* the driver's name for the allocation */
	uint64_t offset;    /* of the piece in it */
	uint64_t id;	    /* another one for each allocation of a process */
	uint64_t number;    /* of the interface */
	uint64_t zero;
};

/* An allocation of the program, of which a piece is attached. */
struct nm_device_buffer {
	uint64_t start, size;
	uint64_t id; /* another one for each allocation of a process */
	int device;  /* the driver's number */
};

/*
 * An interface. All functions may be called by several threads at once. Addresses are unmarked.
 * Errors are negative: -EFAULT, there is no such memory (any more); -EIO, the driver failed;
 * -EINVAL, the memory cannot be used, with the reason in words; -ENOMEM. `share` and `pull`,
 * `buffer` and `dmabuf` may be NULL: it cannot be done.
 */
struct nm_device_ops {
	const char *name;
	/*
	 * Prepare LEN bytes at ADDRESS for copies, until detach() of *RET_HANDLE. Memory that the
	 * program frees in between makes later copies fail.
	 */
	int (*attach)(uint64_t address, size_t len, void **ret_handle, struct nm_reason *ret_why);
	void (*detach)(void *handle);
	/* Does all of this range lie in one attached piece of memory? */
	bool (*has)(uint64_t address, size_t len);
	/* Is that piece still what was attached? NULL: as has(). May log why it is not. */
	bool (*is_there)(uint64_t address, size_t len);
	/* Copies from and to the device. They block until the bytes are there, and log failures. */
	int (*get)(void *to, uint64_t from, size_t len);
	int (*put)(uint64_t to, const void *from, size_t len);
	/*
	 * Begin a copy between LEN bytes at ADDRESS and HOST, to the host (IS_GET) or from it, which
	 * goes on after the call. Its number, above 0; or negative: there is none, and get() or
	 * put() may do better. NULL, both: not possible.
	 */
	int64_t (*begin)(uint64_t address, void *host, size_t len, bool is_get);
	/*
	 * The copy of this number: 0, all bytes are there, and the number is used up; -EAGAIN, not
	 * yet, unless WAITS; or an error of get(), logged, and the number is used up. After any
	 * other result than -EAGAIN the copy touches neither side any more.
	 */
	int (*end)(int64_t copy, bool waits);
	/* Show LEN bytes to other processes of this kernel. 0, or negative: it cannot be done. */
	int (*share)(uint64_t address, size_t len, struct nm_device_share *ret_share);
	/*
	 * Copy what another process shares, from its first byte on, into PIECES of the host or with
	 * marks of this interface. 0, or negative: it cannot be done, and any part of it may be.
	 */
	int (*pull)(const struct nm_device_share *share, const struct iovec *pieces,
		    size_t nr_pieces);
	/* The attached allocation that holds this range. 0, or -EFAULT: there is none any more. */
	int (*buffer)(uint64_t address, size_t len, struct nm_device_buffer *ret_buffer);
	/*
	 * A dma-buf of the kernel, which the caller closes, that has this range at *RET_OFFSET.
	 * Negative: there is none, with the reason.
	 */
	int (*dmabuf)(uint64_t address, size_t len, uint64_t *ret_offset,
		      struct nm_reason *ret_why);
	/*
	 * Pin pages of the host, so that copies go straight to them. IS_READ_ONLY: they are mapped
	 * so. False: they are not pinned, which is logged with the reason.
	 */
	bool (*pin)(void *pages, size_t len, bool is_read_only);
	/* After the return no copy that goes on touches these pages. */
	void (*unpin)(void *pages, size_t len);
};

/*
 * Have OPS pin these pages until nm_device_unpin(). False: it cannot. What unmaps pages that may be
 * pinned calls nm_device_unpin() before; it has no effect on others.
 */
bool nm_device_pin(const struct nm_device_ops *ops, const void *pages, size_t len,
		   bool is_read_only) NM_COLD;
void nm_device_unpin(const void *pages);

/*
 * OPS serve interface NUMBER from now on; NULL: no interface. Before any endpoint is opened. 0 or
 * -EINVAL: there is no such number.
 */
int nm_device_plug(unsigned int number, const struct nm_device_ops *ops);
/* NULL: nothing is plugged in. */
const struct nm_device_ops *nm_device_plugged(unsigned int number);

static inline void *nm_device_mark(unsigned int number, uint64_t address)
{
	return (void *)(uintptr_t)(NM_DEVICE_MARK | (uint64_t)number << NM_DEVICE_SHIFT | address);
}

static inline unsigned int nm_device_number(const void *marked)
{
	return (uintptr_t)marked >> NM_DEVICE_SHIFT & NM_DEVICE_MAX;
}

/* The address without its mark, as the interface knows it. */
static inline uint64_t nm_device_address(const void *marked)
{
	return (uintptr_t)marked & ((UINT64_C(1) << NM_DEVICE_SHIFT) - 1);
}

static inline bool nm_is_device(const void *address)
{
	return (intptr_t)address < 0;
}

/* Are LEN bytes from ADDRESS on of one device, or all of the host? */
bool nm_device_is_one_range(const void *address, size_t len);

/* Is this range of a device, that a peer was shown, still what it was? */
bool nm_device_is_there(const void *address, size_t len) NM_COLD;
/* The interface of a marked address; NULL: nothing is plugged in, which is logged once. */
const struct nm_device_ops *nm_device_ops_of(const void *marked);
/*
 * As memcpy(), one side marked. 0 or as above. After an error of nm_device_get() TO is zeros: not
 * what lay there before, which may be another peer's.
 */
int nm_device_get(void *to, const void *from, size_t len) NM_COLD;
int nm_device_put(void *to, const void *from, size_t len) NM_COLD;

#endif
