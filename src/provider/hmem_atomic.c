/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Atomics of endpoints with FI_HMEM. An operation is at most a packet long, so what it sends is
 * copied to the host first, and the operations of all endpoints do the rest. Results get marks.
 */
#include "engine/atomic.h"
#include "engine/iov.h"
#include "provider/hmem.h"

/* The pieces of one operand, on the host. */
struct operand {
	struct fi_ioc ioc[NM_IOV_MAX];
	size_t count;
	char bytes[NM_ATOMIC_MAX_BYTES];
};

/* Elements to bytes. The operation itself refuses what is too much or no datatype. */
static int mark(const struct fi_ioc *ioc, void *const *desc, size_t count,
		enum fi_datatype datatype, struct nm_hmem_iov *ret_marked)
{
	size_t size = nm_atomic_size((uint32_t)datatype);
	struct iovec iov[NM_IOV_MAX];

	if (count > NM_IOV_MAX)
		return -FI_EINVAL;
	for (size_t i = 0; i < count; i++) {
		if (size && ioc[i].count > NM_ATOMIC_MAX_BYTES / size)
			return -FI_EMSGSIZE;
		iov[i] = (struct iovec){ioc[i].addr, ioc[i].count * size};
	}
	return nm_hmem_mark(iov, desc, count, ret_marked);
}

/* Point RET at host memory with what IOC holds: IOC's own, or a copy. */
static int bring(const struct fi_ioc *ioc, void *const *desc, size_t count,
		 enum fi_datatype datatype, struct operand *ret)
{
	size_t size = nm_atomic_size((uint32_t)datatype);
	struct nm_hmem_iov marked;
	uint64_t total;
	int err = mark(ioc, desc, count, datatype, &marked);

	if (err)
		return err;
	ret->count = count;
	if (!marked.is_device) {
		for (size_t i = 0; i < count; i++)
			ret->ioc[i] = ioc[i];
		return 0;
	}
	total = nm_iov_total(marked.iov, marked.nr);
	if (total > NM_ATOMIC_MAX_BYTES)
		return -FI_EMSGSIZE;
	ret->ioc[0] = (struct fi_ioc){.addr = ret->bytes, .count = total / (size ? size : 1)};
	ret->count = 1;
	return nm_iov_gather(ret->bytes, marked.iov, marked.nr, total);
}

/* IOC with marks, for results. */
static int mark_results(const struct fi_ioc *ioc, void *const *desc, size_t count,
			enum fi_datatype datatype, struct operand *ret)
{
	struct nm_hmem_iov marked;
	int err = mark(ioc, desc, count, datatype, &marked);

	if (err)
		return err;
	ret->count = marked.nr;
	for (size_t i = 0; i < marked.nr; i++)
		ret->ioc[i] = (struct fi_ioc){.addr = marked.iov[i].iov_base,
					      .count = i < count ? ioc[i].count : 0};
	return 0;
}

static ssize_t atomic_writemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags)
{
	struct fi_msg_atomic copy = *msg;
	struct operand operand;
	int err = bring(msg->msg_iov, msg->desc, msg->iov_count, msg->datatype, &operand);

	if (err)
		return err;
	copy.msg_iov = operand.ioc;
	copy.iov_count = operand.count;
	return nm_atomic_ops.writemsg(fid, &copy, flags);
}

static ssize_t atomic_writev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
			     size_t count, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
			     enum fi_datatype datatype, enum fi_op op, void *context)
{
	struct operand operand;
	int err = bring(iov, desc, count, datatype, &operand);

	if (err)
		return err;
	return nm_atomic_ops.writev(fid, operand.ioc, NULL, operand.count, dest_addr, addr, key,
				    datatype, op, context);
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
	size_t size = nm_atomic_size((uint32_t)datatype);
	char bytes[NM_INJECT_SIZE];
	struct nm_hmem_iov marked;
	int err;

	if (size && count > NM_INJECT_SIZE / size)
		return -FI_EMSGSIZE;
	err = nm_hmem_find(buf, count * size, &marked);
	if (!err && marked.is_device) {
		err = nm_iov_gather(bytes, marked.iov, marked.nr, count * size);
		buf = bytes;
	}
	return err ? err :
		     nm_atomic_ops.inject(fid, buf, count, dest_addr, addr, key, datatype, op);
}

static ssize_t atomic_readwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
				   struct fi_ioc *resultv, void **result_desc, size_t result_count,
				   uint64_t flags)
{
	struct fi_msg_atomic copy = *msg;
	struct operand operand, result;
	/* FI_ATOMIC_READ has no operand: what is given for it is not looked at. */
	int err = msg->op == FI_ATOMIC_READ ?
			  0 :
			  bring(msg->msg_iov, msg->desc, msg->iov_count, msg->datatype, &operand);

	if (!err && msg->op != FI_ATOMIC_READ) {
		copy.msg_iov = operand.ioc;
		copy.iov_count = operand.count;
	}
	if (!err)
		err = mark_results(resultv, result_desc, result_count, msg->datatype, &result);
	return err ? err :
		     nm_atomic_ops.readwritemsg(fid, &copy, result.ioc, NULL, result.count, flags);
}

static ssize_t atomic_readwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
				 size_t count, struct fi_ioc *resultv, void **result_desc,
				 size_t result_count, fi_addr_t dest_addr, uint64_t addr,
				 uint64_t key, enum fi_datatype datatype, enum fi_op op,
				 void *context)
{
	struct operand operand = {.count = count}, result;
	int err = op == FI_ATOMIC_READ ? 0 : bring(iov, desc, count, datatype, &operand);

	if (!err)
		err = mark_results(resultv, result_desc, result_count, datatype, &result);
	if (err)
		return err;
	return nm_atomic_ops.readwritev(fid, op == FI_ATOMIC_READ ? iov : operand.ioc, NULL,
					operand.count, result.ioc, NULL, result.count, dest_addr,
					addr, key, datatype, op, context);
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
	struct fi_msg_atomic copy = *msg;
	struct operand operand, compare, result;
	int err = bring(msg->msg_iov, msg->desc, msg->iov_count, msg->datatype, &operand);

	if (!err)
		err = bring(comparev, compare_desc, compare_count, msg->datatype, &compare);
	if (!err)
		err = mark_results(resultv, result_desc, result_count, msg->datatype, &result);
	if (err)
		return err;
	copy.msg_iov = operand.ioc;
	copy.iov_count = operand.count;
	return nm_atomic_ops.compwritemsg(fid, &copy, compare.ioc, NULL, compare.count, result.ioc,
					  NULL, result.count, flags);
}

static ssize_t atomic_compwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc,
				 size_t count, const struct fi_ioc *comparev, void **compare_desc,
				 size_t compare_count, struct fi_ioc *resultv, void **result_desc,
				 size_t result_count, fi_addr_t dest_addr, uint64_t addr,
				 uint64_t key, enum fi_datatype datatype, enum fi_op op,
				 void *context)
{
	struct operand operand, compare, result;
	int err = bring(iov, desc, count, datatype, &operand);

	if (!err)
		err = bring(comparev, compare_desc, compare_count, datatype, &compare);
	if (!err)
		err = mark_results(resultv, result_desc, result_count, datatype, &result);
	if (err)
		return err;
	return nm_atomic_ops.compwritev(fid, operand.ioc, NULL, operand.count, compare.ioc, NULL,
					compare.count, result.ioc, NULL, result.count, dest_addr,
					addr, key, datatype, op, context);
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

static int atomic_writevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
			     size_t *count)
{
	return nm_atomic_ops.writevalid(ep, datatype, op, count);
}

static int atomic_readwritevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
				 size_t *count)
{
	return nm_atomic_ops.readwritevalid(ep, datatype, op, count);
}

static int atomic_compwritevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op,
				 size_t *count)
{
	return nm_atomic_ops.compwritevalid(ep, datatype, op, count);
}

struct fi_ops_atomic nm_hmem_atomic_ops = {
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
