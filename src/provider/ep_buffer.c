/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of one buffer that are not on the short path of provider.h. */
#include "provider/provider.h"

ssize_t nm_ep_inject_slowly(struct nm_ep *ep, fi_addr_t to, const void *buf, size_t len,
			    uint64_t tag, uint64_t data, uint64_t flags)
{
	const struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	struct nm_message message = {
		.iov = &iov,
		.nr_iov = 1,
		.tag = tag,
		.data = data,
		.flags = flags | NM_INJECT,
	};

	return nm_ep_post_send(ep, to, &message);
}

ssize_t nm_ep_recv_buffer_slowly(struct nm_ep *ep, fi_addr_t from, void *buf, size_t len,
				 uint64_t tag, uint64_t ignore, uint64_t flags, void *context)
{
	const struct iovec iov = {.iov_base = buf, .iov_len = len};
	struct nm_message message = {
		.iov = &iov,
		.nr_iov = 1,
		.tag = tag,
		.ignore = ignore,
		.context = context,
		.flags = flags,
	};

	return nm_ep_post_recv(ep, from, &message);
}
