/* SPDX-License-Identifier: Apache-2.0 */
/* fi_tsend, fi_trecv and their variants: what MPI point-to-point is made of. */
#include "provider/provider.h"

static ssize_t tagged_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			    fi_addr_t src_addr, uint64_t tag, uint64_t ignore, void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_message message = {
		.iov = iov,
		.nr_iov = count,
		.tag = tag,
		.ignore = ignore,
		.context = context,
		/* multi-receive buffers are for untagged messages */
		.flags = NM_TAGGED | (ep->rx_op_flags & ~NM_MULTI_RECV),
	};

	(void)desc;
	if (nm_unlikely(count > NM_IOV_MAX))
		return -FI_EINVAL;
	return nm_ep_post_recv(ep, src_addr, &message);
}

static ssize_t tagged_recv(struct fid_ep *fid, void *buf, size_t len, void *desc,
			   fi_addr_t src_addr, uint64_t tag, uint64_t ignore, void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);

	(void)desc;
	return nm_ep_recv_buffer(ep, src_addr, buf, len, tag, ignore,
				 NM_TAGGED | (ep->rx_op_flags & ~NM_MULTI_RECV), context);
}

static ssize_t tagged_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
	const uint64_t known = FI_COMPLETION | FI_PEEK | FI_CLAIM | FI_DISCARD;
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_message message = {
		.iov = msg->msg_iov,
		.nr_iov = msg->iov_count,
		.tag = msg->tag,
		.ignore = msg->ignore,
		.context = msg->context,
		.flags = NM_TAGGED | (flags & known) | ep->rx_msg_flags,
	};

	if (nm_unlikely(msg->iov_count > NM_IOV_MAX))
		return -FI_EINVAL;
	return nm_ep_post_recv(ep, msg->addr, &message);
}

static ssize_t send_flags(struct nm_ep *ep, const struct iovec *iov, size_t count, uint64_t data,
			  fi_addr_t to, uint64_t tag, void *context, uint64_t flags)
{
	struct nm_message message = {
		.iov = iov,
		.nr_iov = count,
		.tag = tag,
		.data = data,
		.context = context,
		.flags = NM_TAGGED | flags,
	};

	if (nm_unlikely(count > NM_IOV_MAX))
		return -FI_EINVAL;
	return nm_ep_post_send(ep, to, &message);
}

static ssize_t tagged_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			    fi_addr_t dest_addr, uint64_t tag, void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);

	(void)desc;
	return send_flags(ep, iov, count, 0, dest_addr, tag, context, ep->tx_op_flags);
}

static ssize_t tagged_send(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			   fi_addr_t dest_addr, uint64_t tag, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	return tagged_sendv(fid, &iov, &desc, 1, dest_addr, tag, context);
}

static ssize_t tagged_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
	struct nm_ep *ep = nm_ep_of(fid);

	flags = (flags & (NM_TX_OP_FLAGS | FI_REMOTE_CQ_DATA)) | ep->tx_msg_flags;
	return send_flags(ep, msg->msg_iov, msg->iov_count, msg->data, msg->addr, msg->tag,
			  msg->context, flags);
}

static ssize_t tagged_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			       uint64_t data, fi_addr_t dest_addr, uint64_t tag, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	struct nm_ep *ep = nm_ep_of(fid);

	(void)desc;
	return send_flags(ep, &iov, 1, data, dest_addr, tag, context,
			  ep->tx_op_flags | NM_REMOTE_CQ_DATA);
}

static ssize_t tagged_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t dest_addr,
			     uint64_t tag)
{
	return nm_ep_inject(nm_ep_of(fid), dest_addr, buf, len, tag, 0, NM_TAGGED);
}

static ssize_t tagged_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
				 fi_addr_t dest_addr, uint64_t tag)
{
	return nm_ep_inject(nm_ep_of(fid), dest_addr, buf, len, tag, data,
			    NM_TAGGED | NM_REMOTE_CQ_DATA);
}

struct fi_ops_tagged nm_tagged_ops = {
	.size = sizeof(struct fi_ops_tagged),
	.recv = tagged_recv,
	.recvv = tagged_recvv,
	.recvmsg = tagged_recvmsg,
	.send = tagged_send,
	.sendv = tagged_sendv,
	.sendmsg = tagged_sendmsg,
	.inject = tagged_inject,
	.senddata = tagged_senddata,
	.injectdata = tagged_injectdata,
};
