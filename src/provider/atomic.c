/* SPDX-License-Identifier: Apache-2.0 */
/* fi_atomic, fi_fetch_atomic, fi_compare_atomic and their variants, in bytes for the engine. */
#include "engine/atomic.h"
#include "provider/provider.h"

/* The local sides of one operation: libfabric counts elements, the engine bytes. */
struct local_iov {
	struct iovec iov[NM_IOV_MAX];
};

static int to_bytes(const struct fi_ioc *ioc, size_t count, size_t size, struct local_iov *ret_iov)
{
	size_t i;

	if (nm_unlikely(count > NM_IOV_MAX))
		return -FI_EINVAL;
	for (i = 0; i < count; i++) {
		/* No overflow: an operation is at most a packet long, and that is checked next. */
		if (nm_unlikely(ioc[i].count > NM_ATOMIC_MAX_BYTES / size))
			return -FI_EMSGSIZE;
		ret_iov->iov[i].iov_base = ioc[i].addr;
		ret_iov->iov[i].iov_len = ioc[i].count * size;
	}
	return 0;
}

/* Everything about one call, as the variants give it. */
struct call {
	enum nm_atomic_kind kind;
	const struct fi_msg_atomic *msg;
	const struct fi_ioc *compare;
	size_t nr_compare;
	const struct fi_ioc *result;
	size_t nr_result;
	uint64_t flags;
};

static int fill_remote(const struct fi_msg_atomic *msg, size_t size, struct nm_atomic *atomic)
{
	size_t i;

	if (nm_unlikely(!msg->rma_iov_count || msg->rma_iov_count > NM_IOV_MAX))
		return -FI_EINVAL;
	for (i = 0; i < msg->rma_iov_count; i++) {
		if (nm_unlikely(msg->rma_iov[i].count > NM_ATOMIC_MAX_BYTES / size))
			return -FI_EMSGSIZE;
		atomic->remote[i] = (struct nm_remote){
			.address = msg->rma_iov[i].addr,
			.len = msg->rma_iov[i].count * size,
			.key = msg->rma_iov[i].key,
		};
	}
	atomic->nr_remote = msg->rma_iov_count;
	return 0;
}

static ssize_t post(struct nm_ep *ep, const struct call *call)
{
	const struct fi_msg_atomic *msg = call->msg;
	struct local_iov operand, compare, result;
	struct nm_atomic atomic = {
		.operand = operand.iov,
		.nr_operand = msg->op == FI_ATOMIC_READ ? 0 : msg->iov_count,
		.compare = compare.iov,
		.nr_compare = call->nr_compare,
		.result = result.iov,
		.nr_result = call->nr_result,
		.datatype = (uint32_t)msg->datatype,
		.op = (uint32_t)msg->op,
		.data = msg->data,
		.context = msg->context,
		.flags = call->flags,
	};
	size_t size = nm_atomic_size(atomic.datatype);
	int err;

	if (nm_unlikely(!nm_atomic_valid(call->kind, atomic.datatype, atomic.op)))
		return -FI_EOPNOTSUPP;
	err = to_bytes(msg->msg_iov, atomic.nr_operand, size, &operand);
	if (!err)
		err = to_bytes(call->compare, call->nr_compare, size, &compare);
	if (!err)
		err = to_bytes(call->result, call->nr_result, size, &result);
	if (!err)
		err = fill_remote(msg, size, &atomic);
	if (err)
		return err;
	nm_lock_take(&ep->domain->lock);
	err = nm_ep_peer(ep, msg->addr, &atomic.peer);
	if (nm_likely(!err))
		err = nm_engine_atomic(ep->engine, &atomic);
	nm_lock_give(&ep->domain->lock);
	return err;
}

static uint64_t msg_flags(const struct nm_ep *ep, uint64_t flags)
{
	return (flags & (NM_TX_OP_FLAGS | FI_REMOTE_CQ_DATA)) | ep->tx_msg_flags;
}

static size_t count_elements(const struct fi_ioc *iov, size_t count)
{
	size_t nr = 0, i;

	for (i = 0; i < count; i++)
		nr += iov[i].count;
	return nr;
}

/* A message whose remote side is one range; MSG and RMA stay the caller's. */
static void fill_msg(struct fi_msg_atomic *msg, struct fi_rma_ioc *rma, fi_addr_t addr,
		     enum fi_datatype datatype, enum fi_op op, void *context)
{
	msg->addr = addr;
	msg->rma_iov = rma;
	msg->rma_iov_count = 1;
	msg->datatype = datatype;
	msg->op = op;
	msg->context = context;
}

static ssize_t atomic_writemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct call call = {
		.kind = NM_ATOMIC_UPDATE,
		.msg = msg,
		.flags = msg_flags(ep, flags),
	};

	return post(ep, &call);
}

static ssize_t atomic_writev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
			     size_t count, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
			     enum fi_datatype datatype, enum fi_op op, void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct fi_rma_ioc rma = {.addr = addr, .key = key};
	struct fi_msg_atomic msg = {.msg_iov = iov, .iov_count = count};
	struct call call = {.kind = NM_ATOMIC_UPDATE, .msg = &msg, .flags = ep->tx_op_flags};

	(void)desc;
	if (nm_unlikely(count > NM_IOV_MAX))
		return -FI_EINVAL;
	rma.count = count_elements(iov, count);
	fill_msg(&msg, &rma, dest_addr, datatype, op, context);
	return post(ep, &call);
}

static ssize_t atomic_write(struct fid_ep *fid, const void *buf, size_t count, void *desc,
			    fi_addr_t dest_addr, uint64_t addr, uint64_t key,
			    enum fi_datatype datatype, enum fi_op op, void *context)
{
	struct fi_ioc iov = {.addr = (void *)(uintptr_t)buf, .count = count};

	return atomic_writev(fid, &iov, &desc, 1, dest_addr, addr, key, datatype, op, context);
}

static ssize_t atomic_inject(struct fid_ep *fid, const void *buf, size_t count, fi_addr_t dest_addr,
			     uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op)
{
	struct fi_ioc iov = {.addr = (void *)(uintptr_t)buf, .count = count};
	struct fi_rma_ioc rma = {.addr = addr, .count = count, .key = key};
	struct fi_msg_atomic msg = {.msg_iov = &iov, .iov_count = 1};
	struct call call = {.kind = NM_ATOMIC_UPDATE, .msg = &msg, .flags = NM_INJECT};
	size_t size = nm_atomic_size((uint32_t)datatype);

	if (size && count > NM_INJECT_SIZE / size)
		return -FI_EMSGSIZE;
	fill_msg(&msg, &rma, dest_addr, datatype, op, NULL);
	return post(nm_ep_of(fid), &call);
}

static ssize_t atomic_readwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
				   struct fi_ioc *resultv, void **result_desc, size_t result_count,
				   uint64_t flags)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct call call = {
		.kind = NM_ATOMIC_FETCH,
		.msg = msg,
		.result = resultv,
		.nr_result = result_count,
		.flags = msg_flags(ep, flags),
	};

	(void)result_desc;
	return post(ep, &call);
}

static ssize_t atomic_readwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
				 size_t count, struct fi_ioc *resultv, void **result_desc,
				 size_t result_count, fi_addr_t dest_addr, uint64_t addr,
				 uint64_t key, enum fi_datatype datatype, enum fi_op op,
				 void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct fi_rma_ioc rma = {.addr = addr, .key = key};
	struct fi_msg_atomic msg = {.msg_iov = iov, .iov_count = count};
	struct call call = {
		.kind = NM_ATOMIC_FETCH,
		.msg = &msg,
		.result = resultv,
		.nr_result = result_count,
		.flags = ep->tx_op_flags,
	};

	(void)desc;
	(void)result_desc;
	if (nm_unlikely(result_count > NM_IOV_MAX))
		return -FI_EINVAL;
	rma.count = count_elements(resultv, result_count);
	fill_msg(&msg, &rma, dest_addr, datatype, op, context);
	return post(ep, &call);
}

static ssize_t atomic_readwrite(struct fid_ep *fid, const void *buf, size_t count, void *desc,
				void *result, void *result_desc, fi_addr_t dest_addr, uint64_t addr,
				uint64_t key, enum fi_datatype datatype, enum fi_op op,
				void *context)
{
	struct fi_ioc iov = {.addr = (void *)(uintptr_t)buf, .count = count};
	struct fi_ioc results = {.addr = result, .count = count};

	return atomic_readwritev(fid, &iov, &desc, 1, &results, &result_desc, 1, dest_addr, addr,
				 key, datatype, op, context);
}

static ssize_t atomic_compwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
				   const struct fi_ioc *comparev, void **compare_desc,
				   size_t compare_count, struct fi_ioc *resultv, void **result_desc,
				   size_t result_count, uint64_t flags)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct call call = {
		.kind = NM_ATOMIC_COMPARE,
		.msg = msg,
		.compare = comparev,
		.nr_compare = compare_count,
		.result = resultv,
		.nr_result = result_count,
		.flags = msg_flags(ep, flags),
	};

	(void)compare_desc;
	(void)result_desc;
	return post(ep, &call);
}

static ssize_t atomic_compwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
				 size_t count, const struct fi_ioc *comparev, void **compare_desc,
				 size_t compare_count, struct fi_ioc *resultv, void **result_desc,
				 size_t result_count, fi_addr_t dest_addr, uint64_t addr,
				 uint64_t key, enum fi_datatype datatype, enum fi_op op,
				 void *context)
{
	struct nm_ep *ep = nm_ep_of(fid);
	struct fi_rma_ioc rma = {.addr = addr, .key = key};
	struct fi_msg_atomic msg = {.msg_iov = iov, .iov_count = count};
	struct call call = {
		.kind = NM_ATOMIC_COMPARE,
		.msg = &msg,
		.compare = comparev,
		.nr_compare = compare_count,
		.result = resultv,
		.nr_result = result_count,
		.flags = ep->tx_op_flags,
	};

	(void)desc;
	(void)compare_desc;
	(void)result_desc;
	if (nm_unlikely(count > NM_IOV_MAX))
		return -FI_EINVAL;
	rma.count = count_elements(iov, count);
	fill_msg(&msg, &rma, dest_addr, datatype, op, context);
	return post(ep, &call);
}

static ssize_t atomic_compwrite(struct fid_ep *fid, const void *buf, size_t count, void *desc,
				const void *compare, void *compare_desc, void *result,
				void *result_desc, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
				enum fi_datatype datatype, enum fi_op op, void *context)
{
	struct fi_ioc iov = {.addr = (void *)(uintptr_t)buf, .count = count};
	struct fi_ioc compares = {.addr = (void *)(uintptr_t)compare, .count = count};
	struct fi_ioc results = {.addr = result, .count = count};

	return atomic_compwritev(fid, &iov, &desc, 1, &compares, &compare_desc, 1, &results,
				 &result_desc, 1, dest_addr, addr, key, datatype, op, context);
}

static int check(enum nm_atomic_kind kind, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	if (!nm_atomic_valid(kind, (uint32_t)datatype, (uint32_t)op))
		return -FI_EOPNOTSUPP;
	if (count)
		*count = NM_ATOMIC_MAX_BYTES / nm_atomic_size((uint32_t)datatype);
	return 0;
}

static int atomic_writevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
			     size_t *count)
{
	(void)ep;
	return check(NM_ATOMIC_UPDATE, datatype, op, count);
}

static int atomic_readwritevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
				 size_t *count)
{
	(void)ep;
	return check(NM_ATOMIC_FETCH, datatype, op, count);
}

static int atomic_compwritevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
				 size_t *count)
{
	(void)ep;
	return check(NM_ATOMIC_COMPARE, datatype, op, count);
}

int nm_query_atomic(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op,
		    struct fi_atomic_attr *attr, uint64_t flags)
{
	enum nm_atomic_kind kind = NM_ATOMIC_UPDATE;

	(void)domain;
	if (flags & ~(uint64_t)(FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC | FI_TAGGED))
		return -FI_EINVAL;
	if ((flags & FI_TAGGED) || (flags & FI_FETCH_ATOMIC && flags & FI_COMPARE_ATOMIC))
		return -FI_EOPNOTSUPP;
	if (flags & FI_FETCH_ATOMIC)
		kind = NM_ATOMIC_FETCH;
	if (flags & FI_COMPARE_ATOMIC)
		kind = NM_ATOMIC_COMPARE;
	attr->size = nm_atomic_size((uint32_t)datatype);
	return check(kind, datatype, op, &attr->count);
}

struct fi_ops_atomic nm_atomic_ops = {
	.size = sizeof(struct fi_ops_atomic),
	.write = atomic_write,
	.writev = atomic_writev,
	.writemsg = atomic_writemsg,
	.inject = atomic_inject,
	.readwrite = atomic_readwrite,
	.readwritev = atomic_readwritev,
	.readwritemsg = atomic_readwritemsg,
	.compwrite = atomic_compwrite,
	.compwritev = atomic_compwritev,
	.compwritemsg = atomic_compwritemsg,
	.writevalid = atomic_writevalid,
	.readwritevalid = atomic_readwritevalid,
	.compwritevalid = atomic_compwritevalid,
};
