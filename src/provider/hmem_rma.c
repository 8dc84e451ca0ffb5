/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets of endpoints with FI_HMEM: the local side may be on a device. The remote side may be
 * on one for every endpoint, because its owner executes the operation.
 */
#include "provider/hmem.h"

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			 fi_addr_t src_addr, uint64_t addr, uint64_t key, void *context)
{
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(iov, desc, count, &marked);

	if (err)
		return err;
	return nm_rma_ops.readv(fid, marked.iov, NULL, marked.nr, src_addr, addr, key, context);
}

static ssize_t rma_read(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t src_addr,
			uint64_t addr, uint64_t key, void *context)
{
	struct iovec iov = {.iov_base = buf, .iov_len = len};

	return rma_readv(fid, &iov, &desc, 1, src_addr, addr, key, context);
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	struct fi_msg_rma copy = *msg;
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(msg->msg_iov, msg->desc, msg->iov_count, &marked);

	if (err)
		return err;
	copy.msg_iov = marked.iov;
	copy.iov_count = marked.nr;
	return nm_rma_ops.readmsg(fid, &copy, flags);
}

static ssize_t write_marked(struct fid_ep *fid, const struct nm_hmem_iov *marked,
			    const struct fi_msg_rma *msg, uint64_t flags)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_rma rma = {
		.iov = marked->iov,
		.nr_iov = marked->nr,
		.nr_remote = msg->rma_iov_count,
		.data = msg->data,
		.context = msg->context,
		.flags = flags,
	};
	int err;

	if (msg->rma_iov_count > NM_IOV_MAX)
		return -FI_EINVAL;
	for (size_t i = 0; i < msg->rma_iov_count; i++)
		rma.remote[i] = (struct nm_remote){
			.address = msg->rma_iov[i].addr,
			.len = msg->rma_iov[i].len,
			.key = msg->rma_iov[i].key,
		};
	nm_lock_take(&ep->domain->lock);
	err = nm_ep_peer(ep, msg->addr, &rma.peer);
	if (!err)
		err = nm_engine_write_device(ep->engine, &rma);
	nm_lock_give(&ep->domain->lock);
	return err;
}

/* One remote range, as long as the local bytes are. */
static ssize_t write_one(struct fid_ep *fid, const struct nm_hmem_iov *marked, fi_addr_t to,
			 const struct fi_rma_iov *remote, uint64_t data, void *context,
			 uint64_t flags)
{
	struct fi_rma_iov range = *remote;
	const struct fi_msg_rma msg = {
		.addr = to,
		.rma_iov = &range,
		.rma_iov_count = 1,
		.data = data,
		.context = context,
	};

	for (size_t i = 0; i < marked->nr; i++)
		range.len += marked->iov[i].iov_len;
	return write_marked(fid, marked, &msg, flags);
}

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			  fi_addr_t dest_addr, uint64_t addr, uint64_t key, void *context)
{
	const struct fi_rma_iov remote = {.addr = addr, .key = key};
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(iov, desc, count, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_rma_ops.writev(fid, iov, NULL, count, dest_addr, addr, key, context);
	return write_one(fid, &marked, dest_addr, &remote, 0, context, nm_ep_of(fid)->tx_op_flags);
}

static ssize_t rma_write(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			 fi_addr_t dest_addr, uint64_t addr, uint64_t key, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	return rma_writev(fid, &iov, &desc, 1, dest_addr, addr, key, context);
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(msg->msg_iov, msg->desc, msg->iov_count, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_rma_ops.writemsg(fid, msg, flags);
	return write_marked(fid, &marked, msg,
			    (flags & (NM_TX_OP_FLAGS | FI_REMOTE_CQ_DATA)) |
				    nm_ep_of(fid)->tx_msg_flags);
}

static ssize_t rma_writedata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			     uint64_t data, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
			     void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	const struct fi_rma_iov remote = {.addr = addr, .key = key};
	struct nm_hmem_iov marked;
	int err = nm_hmem_mark(&iov, &desc, 1, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_rma_ops.writedata(fid, buf, len, NULL, data, dest_addr, addr, key,
					    context);
	return write_one(fid, &marked, dest_addr, &remote, data, context,
			 nm_ep_of(fid)->tx_op_flags | NM_REMOTE_CQ_DATA);
}

static ssize_t rma_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t dest_addr,
			  uint64_t addr, uint64_t key)
{
	const struct fi_rma_iov remote = {.addr = addr, .key = key};
	struct nm_hmem_iov marked;
	int err = nm_hmem_find(buf, len, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_rma_ops.inject(fid, buf, len, dest_addr, addr, key);
	if (len > NM_INJECT_SIZE)
		return -FI_EMSGSIZE;
	return write_one(fid, &marked, dest_addr, &remote, 0, NULL, NM_INJECT);
}

static ssize_t rma_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
			      fi_addr_t dest_addr, uint64_t addr, uint64_t key)
{
	const struct fi_rma_iov remote = {.addr = addr, .key = key};
	struct nm_hmem_iov marked;
	int err = nm_hmem_find(buf, len, &marked);

	if (err)
		return err;
	if (!marked.is_device)
		return nm_rma_ops.injectdata(fid, buf, len, data, dest_addr, addr, key);
	if (len > NM_INJECT_SIZE)
		return -FI_EMSGSIZE;
	return write_one(fid, &marked, dest_addr, &remote, data, NULL,
			 NM_INJECT | NM_REMOTE_CQ_DATA);
}

struct fi_ops_rma nm_hmem_rma_ops = {
	.size = sizeof(struct fi_ops_rma),
	.read = rma_read,
	.readv = rma_readv,
	.readmsg = rma_readmsg,
	.write = rma_write,
	.writev = rma_writev,
	.writemsg = rma_writemsg,
	.inject = rma_inject,
	.writedata = rma_writedata,
	.injectdata = rma_injectdata,
};
