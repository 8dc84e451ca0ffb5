/* SPDX-License-Identifier: Apache-2.0 */
/* Direct copies from and to the memory of a proven peer. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "ucx/face.h"

/* Once per peer: a program may try again for ever. */
static NM_COLD void report_failure(struct nm_peer *peer, const struct nm_span *span, int err)
{
	nm_log(peer->has_bad_copy ? NM_LOG_DEBUG : NM_LOG_ERROR,
	       "ucx: no direct copy of %llu bytes of peer " NM_WHO_FORMAT " at %#llx: %s",
	       (unsigned long long)span->len, NM_WHO(&peer->who), (unsigned long long)span->address,
	       err ? strerror(-err) : "no byte was copied");
	peer->has_bad_copy = true;
}

/* From or to this process: by the kernel, which checks the address here, too. */
static ssize_t copy_own(bool is_read, const struct iovec *local, unsigned int nr,
			const struct nm_span *span)
{
	const struct iovec there = {(void *)(uintptr_t)span->address, span->len};
	ssize_t got =
		(is_read ? process_vm_readv : process_vm_writev)(getpid(), local, nr, &there, 1, 0);

	return got < 0 ? -errno : got;
}

ucs_status_t nm_ucx_copy(struct nm_peer *peer, bool is_read, const uct_iov_t *iov, size_t nr,
			 uint64_t remote)
{
	struct iovec local[NM_SPANS_MAX];
	struct nm_span span = {remote, 0};
	unsigned int first = 0, nr_local = 0;
	bool is_self = nm_ucx_peer_is_self(peer);
	ssize_t got;

	if (nm_unlikely(nr > NM_SPANS_MAX))
		return UCS_ERR_INVALID_PARAM;
	for (size_t i = 0; i < nr; i++) {
		size_t len = iov[i].length * iov[i].count;

		if (nm_unlikely(len > NM_REMOTE_COPY_STEP - span.len))
			return UCS_ERR_INVALID_PARAM;
		if (!len)
			continue;
		local[nr_local++] = (struct iovec){iov[i].buffer, len};
		span.len += len;
	}
	ucs_trace_data("nearcma %s %llu bytes at %#llx", is_read ? "gets" : "puts",
		       (unsigned long long)span.len, (unsigned long long)remote);
	while (span.len) {
		const struct nm_copy_ops *copy = peer->link ? peer->link->transport->copy : NULL;

		/* Messages report the end of the peer. */
		if (nm_unlikely(!copy && !is_self))
			return UCS_ERR_CONNECTION_RESET;
		if (is_self)
			got = copy_own(is_read, local + first, nr_local - first, &span);
		else
			got = (is_read ? copy->read_remote : copy->write_remote)(
				peer->link, local + first, nr_local - first, &span, 1);
		if (nm_unlikely(got <= 0)) {
			report_failure(peer, &span, (int)got);
			return got == -EFAULT ? UCS_ERR_IO_ERROR : UCS_ERR_CONNECTION_RESET;
		}
		span.address += (size_t)got;
		span.len -= (size_t)got;
		for (; first < nr_local && (size_t)got >= local[first].iov_len; first++)
			got -= (ssize_t)local[first].iov_len;
		if (first < nr_local) {
			local[first].iov_base = (char *)local[first].iov_base + got;
			local[first].iov_len -= (size_t)got;
		}
	}
	return UCS_OK;
}
