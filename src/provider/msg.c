/* SPDX-License-Identifier: Apache-2.0 */
/* fi_send, fi_recv and their variants: untagged messages. */
#include "provider/provider.h"

static ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			 fi_addr_t src_addr, void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_message message = {
		.iov = iov,
		.nr_iov = count,
		.context = context,
		.flags = NM_MSG | ep->rx_op_flags,
	};

	(void)desc;
	if (nm_unlikely(count > NM_IOV_MAX))
		return -FI_EINVAL;
	return nm_ep_post_recv(ep, src_addr, &message);
}

static ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t src_addr,
			void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct iovec iov = {.iov_base = buf, .iov_len = len};

	if (nm_unlikely(ep->rx_op_flags & NM_MULTI_RECV))
		return msg_recvv(fid, &iov, &desc, 1, src_addr, context);
	return nm_ep_recv_buffer(ep, src_addr, buf, len, 0, UINT64_MAX, NM_MSG | ep->rx_op_flags,
				 context);
}

static ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	const uint64_t known = FI_COMPLETION | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD;
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_message message = {
		.iov = msg->msg_iov,
		.nr_iov = msg->iov_count,
		.context = msg->context,
		.flags = NM_MSG | (flags & known) | ep->rx_msg_flags,
	};

	if (nm_unlikely(msg->iov_count > NM_IOV_MAX))
		return -FI_EINVAL;
	return nm_ep_post_recv(ep, msg->addr, &message);
}

static ssize_t send_flags(struct nm_ep *ep, const struct iovec *iov, size_t count, uint64_t data,
			  fi_addr_t to, void *context, uint64_t flags)
{
	struct nm_message message = {
		.iov = iov,
		.nr_iov = count,
		.data = data,
		.context = context,
		.flags = NM_MSG | flags,
	};

	if (nm_unlikely(count > NM_IOV_MAX))
		return -FI_EINVAL;
	return nm_ep_post_send(ep, to, &message);
}

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			 fi_addr_t dest_addr, void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);

	(void)desc;
	return send_flags(ep, iov, count, 0, dest_addr, context, ep->tx_op_flags);
}

static ssize_t msg_send(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			fi_addr_t dest_addr, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	return msg_sendv(fid, &iov, &desc, 1, dest_addr, context);
}

static ssize_t msg_sendmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	struct nm_ep *ep = nm_ep_of(fid);

	flags = (flags & (NM_TX_OP_FLAGS | FI_REMOTE_CQ_DATA)) | ep->tx_msg_flags;
	return send_flags(ep, msg->msg_iov, msg->iov_count, msg->data, msg->addr, msg->context,
			  flags);
}

static ssize_t msg_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			    uint64_t data, fi_addr_t dest_addr, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	struct nm_ep *ep = nm_ep_of(fid);

	(void)desc;
	return send_flags(ep, &iov, 1, data, dest_addr, context,
			  ep->tx_op_flags | NM_REMOTE_CQ_DATA);
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t dest_addr)
{
	return nm_ep_inject(nm_ep_of(fid), dest_addr, buf, len, 0, 0, NM_MSG);
}

static ssize_t msg_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
			      fi_addr_t dest_addr)
{
	return nm_ep_inject(nm_ep_of(fid), dest_addr, buf, len, 0, data,
			    NM_MSG | NM_REMOTE_CQ_DATA);
}

struct fi_ops_msg nm_msg_ops = {
	.size = sizeof(struct fi_ops_msg),
	.recv = msg_recv,
	.recvv = msg_recvv,
	.recvmsg = msg_recvmsg,
	.send = msg_send,
	.sendv = msg_sendv,
	.sendmsg = msg_sendmsg,
	.inject = msg_inject,
	.senddata = msg_senddata,
	.injectdata = msg_injectdata,
};
