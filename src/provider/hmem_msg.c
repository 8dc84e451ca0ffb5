/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages, untagged and tagged, of endpoints with FI_HMEM. What turns out to be in host memory is
 * passed to the operations of all endpoints, and so are receives, which need marks only.
 */
#include "provider/hmem.h"

/* A message that is sent from a device. */
struct outgoing {
	const struct nm_hmem_iov *marked;
	fi_addr_t to;
	uint64_t tag, data, flags;
	void *context;
};

static ssize_t send_marked(struct fid_ep *fid, const struct outgoing *out)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_message message = {
		.iov = out->marked->iov,
		.nr_iov = out->marked->nr,
		.tag = out->tag,
		.data = out->data,
		.context = out->context,
		.flags = out->flags,
	};
	int err;

	nm_lock_take(&ep->domain->lock);
	err = nm_ep_peer(ep, out->to, &message.peer);
	if (!err)
		err = nm_engine_send_device(ep->engine, &message);
	nm_lock_give(&ep->domain->lock);
	return err;
}

/* A multi-receive buffer is one piece, and never on the path that asks for two. */
static void mark_multi(struct nm_hmem_iov *marked, uint64_t flags)
{
	if (flags & NM_MULTI_RECV && marked->nr == 2 && marked->iov[1].iov_len == 0)
		marked->nr = 1;
}

/* ---- untagged ---- */

static ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			 fi_addr_t src_addr, void *context)
{
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(iov, desc, count, &marked);

	if (err)
		return err;
	mark_multi(&marked, nm_ep_of(fid)->rx_op_flags);
	return nm_msg_ops.recvv(fid, marked.iov, NULL, marked.nr, src_addr, context);
}

static ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t src_addr,
			void *context)
{
	struct iovec iov = {.iov_base = buf, .iov_len = len};

	if (!desc)
		return nm_msg_ops.recv(fid, buf, len, NULL, src_addr, context);
	return msg_recvv(fid, &iov, &desc, 1, src_addr, context);
}

static ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	struct fi_msg copy = *msg;
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(msg->msg_iov, msg->desc, msg->iov_count, &marked);

	if (err)
		return err;
	mark_multi(&marked, flags);
	copy.msg_iov = marked.iov;
	copy.iov_count = marked.nr;
	return nm_msg_ops.recvmsg(fid, &copy, flags);
}

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			 fi_addr_t dest_addr, void *context)
{
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(iov, desc, count, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_msg_ops.sendv(fid, iov, NULL, count, dest_addr, context);
	return send_marked(fid, &(struct outgoing){
					.marked = &marked,
					.to = dest_addr,
					.flags = NM_MSG | nm_ep_of(fid)->tx_op_flags,
					.context = context,
				});
}

static ssize_t msg_send(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			fi_addr_t dest_addr, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	return msg_sendv(fid, &iov, &desc, 1, dest_addr, context);
}

static ssize_t msg_sendmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(msg->msg_iov, msg->desc, msg->iov_count, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_msg_ops.sendmsg(fid, msg, flags);
	return send_marked(fid, &(struct outgoing){
					.marked = &marked,
					.to = msg->addr,
					.data = msg->data,
					.flags = NM_MSG |
						 (flags & (NM_TX_OP_FLAGS | FI_REMOTE_CQ_DATA)) |
						 nm_ep_of(fid)->tx_msg_flags,
					.context = msg->context,
				});
}

static ssize_t msg_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			    uint64_t data, fi_addr_t dest_addr, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(&iov, &desc, 1, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_msg_ops.senddata(fid, buf, len, NULL, data, dest_addr, context);
	return send_marked(fid,
			   &(struct outgoing){
				   .marked = &marked,
				   .to = dest_addr,
				   .data = data,
				   .flags = NM_MSG | nm_ep_of(fid)->tx_op_flags | NM_REMOTE_CQ_DATA,
				   .context = context,
			   });
}

/* The call without descriptors, for both kinds of message. *RET_IS_DEVICE false: not done. */
static ssize_t inject(struct fid_ep *fid, const void *buf, size_t len, const struct outgoing *to,
		      bool *ret_is_device)
{
	struct outgoing out = *to;
	struct nm_hmem_iov marked;
	int err = nm_hmem_find(buf, len, &marked);

	*ret_is_device = err || marked.is_device;
	if (err || !marked.is_device)
		return err;
	if (len > NM_INJECT_SIZE)
		return -FI_EMSGSIZE;
	out.marked = &marked;
	out.flags |= NM_INJECT;
	return send_marked(fid, &out);
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t dest_addr)
{
	struct outgoing out = {.to = dest_addr, .flags = NM_MSG};
	bool is_device;
	ssize_t rc = inject(fid, buf, len, &out, &is_device);

	return is_device ? rc : nm_msg_ops.inject(fid, buf, len, dest_addr);
}

static ssize_t msg_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
			      fi_addr_t dest_addr)
{
	struct outgoing out = {.to = dest_addr, .data = data, .flags = NM_MSG | NM_REMOTE_CQ_DATA};
	bool is_device;
	ssize_t rc = inject(fid, buf, len, &out, &is_device);

	return is_device ? rc : nm_msg_ops.injectdata(fid, buf, len, data, dest_addr);
}

struct fi_ops_msg nm_hmem_msg_ops = {
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

/* ---- tagged ---- */

static ssize_t tagged_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			    fi_addr_t src_addr, uint64_t tag, uint64_t ignore, void *context)
{
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(iov, desc, count, &marked);

	if (err)
		return err;
	return nm_tagged_ops.recvv(fid, marked.iov, NULL, marked.nr, src_addr, tag, ignore,
				   context);
}

static ssize_t tagged_recv(struct fid_ep *fid, void *buf, size_t len, void *desc,
			   fi_addr_t src_addr, uint64_t tag, uint64_t ignore, void *context)
{
	struct iovec iov = {.iov_base = buf, .iov_len = len};

	if (!desc)
		return nm_tagged_ops.recv(fid, buf, len, NULL, src_addr, tag, ignore, context);
	return tagged_recvv(fid, &iov, &desc, 1, src_addr, tag, ignore, context);
}

static ssize_t tagged_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
	struct fi_msg_tagged copy = *msg;
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(msg->msg_iov, msg->desc, msg->iov_count, &marked);

	if (err)
		return err;
	copy.msg_iov = marked.iov;
	copy.iov_count = marked.nr;
	return nm_tagged_ops.recvmsg(fid, &copy, flags);
}

static ssize_t tagged_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			    fi_addr_t dest_addr, uint64_t tag, void *context)
{
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(iov, desc, count, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_tagged_ops.sendv(fid, iov, NULL, count, dest_addr, tag, context);
	return send_marked(fid, &(struct outgoing){
					.marked = &marked,
					.to = dest_addr,
					.tag = tag,
					.flags = NM_TAGGED | nm_ep_of(fid)->tx_op_flags,
					.context = context,
				});
}

static ssize_t tagged_send(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			   fi_addr_t dest_addr, uint64_t tag, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	return tagged_sendv(fid, &iov, &desc, 1, dest_addr, tag, context);
}

static ssize_t tagged_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(msg->msg_iov, msg->desc, msg->iov_count, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_tagged_ops.sendmsg(fid, msg, flags);
	return send_marked(fid, &(struct outgoing){
					.marked = &marked,
					.to = msg->addr,
					.tag = msg->tag,
					.data = msg->data,
					.flags = NM_TAGGED |
						 (flags & (NM_TX_OP_FLAGS | FI_REMOTE_CQ_DATA)) |
						 nm_ep_of(fid)->tx_msg_flags,
					.context = msg->context,
				});
}

static ssize_t tagged_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			       uint64_t data, fi_addr_t dest_addr, uint64_t tag, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(&iov, &desc, 1, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_tagged_ops.senddata(fid, buf, len, NULL, data, dest_addr, tag, context);
	return send_marked(
		fid, &(struct outgoing){
			     .marked = &marked,
			     .to = dest_addr,
			     .tag = tag,
			     .data = data,
			     .flags = NM_TAGGED | nm_ep_of(fid)->tx_op_flags | NM_REMOTE_CQ_DATA,
			     .context = context,
		     });
}

static ssize_t tagged_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t dest_addr,
			     uint64_t tag)
{
	struct outgoing out = {.to = dest_addr, .tag = tag, .flags = NM_TAGGED};
	bool is_device;
	ssize_t rc = inject(fid, buf, len, &out, &is_device);

	return is_device ? rc : nm_tagged_ops.inject(fid, buf, len, dest_addr, tag);
}

static ssize_t tagged_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
				 fi_addr_t dest_addr, uint64_t tag)
{
	struct outgoing out = {
		.to = dest_addr,
		.tag = tag,
		.data = data,
		.flags = NM_TAGGED | NM_REMOTE_CQ_DATA,
	};
	bool is_device;
	ssize_t rc = inject(fid, buf, len, &out, &is_device);

	return is_device ? rc : nm_tagged_ops.injectdata(fid, buf, len, data, dest_addr, tag);
}

struct fi_ops_tagged nm_hmem_tagged_ops = {
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
