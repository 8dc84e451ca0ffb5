/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies from and to the memory of a peer that was proven (connect/cma_proof.h): one system call,
 * which carries its own proof that it works on the peer and nobody else.
 *
 * Thread-safe. No allocation, no lock, no log, no other system call.
 */
#ifndef NM_TRANSPORT_CMA_H
#define NM_TRANSPORT_CMA_H

#include <sys/uio.h>

#include "connect/cma_proof.h"
#include "transport/transport.h"

/*
 * nm_cma_read, nm_cma_write - as read_remote() and write_remote() of transport.h say, for at most
 * NM_SPANS_MAX pieces on each side; where the two sides differ, the smaller one counts.
 * Returns the bytes copied from the front (short where one side's memory ends, or was never there);
 * -EFAULT: none; and when the target is not what was proven, or not to be reached any more, with
 * not a byte written: -ESRCH, -EPERM, -ENOSYS.
 */
ssize_t nm_cma_read(const struct nm_cma_target *target, const struct iovec *local,
		    unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote);
ssize_t nm_cma_write(const struct nm_cma_target *target, const struct iovec *local,
		     unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote);

/* What an error of the two means, in words that make sense after "direct copies are off: ". */
void nm_cma_explain(int err, struct nm_reason *ret_why);

#endif
