/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FI_HMEM: buffers of a program that lie on a device. An endpoint with it has operation tables of
 * its own (hmem_msg.c, hmem_rma.c, hmem_atomic.c); those of all other endpoints know nothing of it.
 *
 * The descriptor of a region on a device, fi_mr_desc(), is the number of its interface, and that of
 * a region of the host is NULL. So a descriptor that outlives its region does no harm: the address
 * is looked up among the attached buffers.
 */
#ifndef NM_PROVIDER_HMEM_H
#define NM_PROVIDER_HMEM_H

#include "base/device.h"
#include "provider/provider.h"

/* Plug in what this machine has. 0; -FI_ENODATA: nothing, with the reason. Any number of times. */
int nm_hmem_load(struct nm_reason *ret_why);

/* Pieces of one operation, with the marks of base/device.h. */
struct nm_hmem_iov {
	struct iovec iov[NM_IOV_MAX];
	size_t nr;
	bool is_device; /* at least one of them is */
};

/*
 * Mark the pieces whose descriptor names a device, and add an empty one if a single piece is on it
 * (base/user_copy.h). DESC may be NULL. 0; -FI_EINVAL: too many pieces, or a descriptor that is
 * none; -FI_EFAULT: a piece is in no registered buffer of the device. Reasons are logged.
 */
int nm_hmem_mark(const struct iovec *iov, void *const *desc, size_t count,
		 struct nm_hmem_iov *ret_marked);
/* The same for a call without descriptors: the address is looked up. */
int nm_hmem_find(const void *buf, size_t len, struct nm_hmem_iov *ret_marked);

/* Why attach() refused, as libfabric's error. */
int nm_hmem_error(int err);

extern struct fi_ops_msg nm_hmem_msg_ops;
extern struct fi_ops_tagged nm_hmem_tagged_ops;
extern struct fi_ops_rma nm_hmem_rma_ops;
extern struct fi_ops_atomic nm_hmem_atomic_ops;

#endif
