/* SPDX-License-Identifier: Apache-2.0 */
/* fi_read, fi_write and their variants. */
#include "provider/provider.h"

typedef int (*rma_fn)(struct nm_engine *engine, const struct nm_rma *rma);

static ssize_t post(struct nm_ep *ep, rma_fn call, fi_addr_t addr, struct nm_rma *rma)
{
	int err;

	nm_lock_take(&ep->domain->lock);
	err = nm_ep_peer(ep, addr, &rma->peer);
	if (nm_likely(!err))
		err = call(ep->engine, rma);
	nm_lock_give(&ep->domain->lock);
	return err;
}

/* One remote range, as long as the local bytes are. */
static int fill(struct nm_rma *rma, const struct iovec *iov, size_t count, uint64_t address,
		uint64_t key)
{
	size_t i;

	if (nm_unlikely(count > NM_IOV_MAX))
		return -FI_EINVAL;
	rma->iov = iov;
	rma->nr_iov = count;
	rma->nr_remote = 1;
	rma->remote[0] = (struct nm_remote){.address = address, .key = key};
	for (i = 0; i < count; i++)
		rma->remote[0].len += iov[i].iov_len;
	return 0;
}

static int fill_msg(struct nm_rma *rma, const struct fi_msg_rma *msg)
{
	size_t i;

	if (nm_unlikely(msg->iov_count > NM_IOV_MAX || msg->rma_iov_count > NM_IOV_MAX))
		return -FI_EINVAL;
	rma->iov = msg->msg_iov;
	rma->nr_iov = msg->iov_count;
	rma->nr_remote = msg->rma_iov_count;
	rma->data = msg->data;
	rma->context = msg->context;
	for (i = 0; i < msg->rma_iov_count; i++)
		rma->remote[i] = (struct nm_remote){
			.address = msg->rma_iov[i].addr,
			.len = msg->rma_iov[i].len,
			.key = msg->rma_iov[i].key,
		};
	return 0;
}

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			 fi_addr_t src_addr, uint64_t addr, uint64_t key, void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_rma rma = {.context = context, .flags = ep->tx_op_flags & ~NM_INJECT};
	int err = fill(&rma, iov, count, addr, key);

	(void)desc;
	return err ? err : post(ep, nm_engine_read, src_addr, &rma);
}

static ssize_t rma_read(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t src_addr,
			uint64_t addr, uint64_t key, void *context)
{
	struct iovec iov = {.iov_base = buf, .iov_len = len};

	return rma_readv(fid, &iov, &desc, 1, src_addr, addr, key, context);
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_rma rma = {
		.flags = (flags & NM_TX_OP_FLAGS & ~FI_INJECT) | ep->tx_msg_flags,
	};
	int err = fill_msg(&rma, msg);

	return err ? err : post(ep, nm_engine_read, msg->addr, &rma);
}

static ssize_t write_flags(struct nm_ep *ep, const struct iovec *iov, size_t count, uint64_t data,
			   fi_addr_t to, uint64_t addr, uint64_t key, void *context, uint64_t flags)
{
	struct nm_rma rma = {.data = data, .context = context, .flags = flags};
	int err = fill(&rma, iov, count, addr, key);

	return err ? err : post(ep, nm_engine_write, to, &rma);
}

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
			  fi_addr_t dest_addr, uint64_t addr, uint64_t key, void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);

	(void)desc;
	return write_flags(ep, iov, count, 0, dest_addr, addr, key, context, ep->tx_op_flags);
}

static ssize_t rma_write(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			 fi_addr_t dest_addr, uint64_t addr, uint64_t key, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	return rma_writev(fid, &iov, &desc, 1, dest_addr, addr, key, context);
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct nm_rma rma = {
		.flags = (flags & (NM_TX_OP_FLAGS | FI_REMOTE_CQ_DATA)) | ep->tx_msg_flags,
	};
	int err = fill_msg(&rma, msg);

	return err ? err : post(ep, nm_engine_write, msg->addr, &rma);
}

static ssize_t rma_writedata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
			     uint64_t data, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
			     void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	struct nm_ep *ep = nm_ep_of(fid);

	(void)desc;
	return write_flags(ep, &iov, 1, data, dest_addr, addr, key, context,
			   ep->tx_op_flags | NM_REMOTE_CQ_DATA);
}

static ssize_t inject(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
		      fi_addr_t dest_addr, uint64_t addr, uint64_t key, uint64_t flags)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	if (nm_unlikely(len > NM_INJECT_SIZE))
		return -FI_EMSGSIZE;
	return write_flags(nm_ep_of(fid), &iov, 1, data, dest_addr, addr, key, NULL,
			   NM_INJECT | flags);
}

static ssize_t rma_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t dest_addr,
			  uint64_t addr, uint64_t key)
{
	return inject(fid, buf, len, 0, dest_addr, addr, key, 0);
}

static ssize_t rma_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
			      fi_addr_t dest_addr, uint64_t addr, uint64_t key)
{
	return inject(fid, buf, len, data, dest_addr, addr, key, NM_REMOTE_CQ_DATA);
}

struct fi_ops_rma nm_rma_ops = {
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
