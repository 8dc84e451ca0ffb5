/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fid_mr: regions that peers may read, write or update. The program chooses keys and remote
 * addresses are offsets. No host memory is pinned, so NULL to SIZE_MAX is a region like any other.
 * Pieces on a device are attached to its interface and carry its mark.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/device.h"
#include "base/log.h"
#include "provider/hmem.h"
#include "provider/provider.h"

/* Say more about device memory than we need to know. */
#define DEVICE_FLAGS (FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC)

struct nm_mr {
	struct fid_mr mr;
	struct nm_domain *domain;
	struct nm_memory_region *region;
	struct nm_cntr *cntr;
	const struct nm_device_ops *device; /* NULL: host memory */
	void *handles[NM_IOV_MAX];	    /* of the device's pieces; NULL: an empty one */
	struct iovec pieces[NM_IOV_MAX];    /* with their marks; those with a handle are valid */
};

static struct nm_mr *mr_of(struct fid *fid)
{
	return nm_container_of(fid, struct nm_mr, mr.fid);
}

static void detach(const struct nm_mr *mr)
{
	for (size_t i = 0; mr->device && i < NM_IOV_MAX; i++)
		if (mr->handles[i])
			mr->device->detach(mr->handles[i]);
}

/* No adapter reaches the pieces any more. */
static void leave(const struct nm_mr *mr)
{
	const struct nm_ep_list *eps = &mr->domain->eps;

	nm_lock_take(&mr->domain->lock);
	for (size_t i = 0; i < eps->nr * NM_IOV_MAX; i++)
		if (mr->handles[i % NM_IOV_MAX])
			nm_engine_leave_memory(eps->eps[i / NM_IOV_MAX]->engine,
					       &mr->pieces[i % NM_IOV_MAX]);
	nm_lock_give(&mr->domain->lock);
}

static int mr_close(struct fid *fid)
{
	struct nm_mr *mr = mr_of(fid);

	nm_lock_take(&mr->domain->lock);
	nm_memory_deregister(mr->domain->memory, mr->region);
	nm_lock_give(&mr->domain->lock);
	detach(mr);
	if (mr->device)
		leave(mr);
	if (mr->cntr)
		nm_refs_put(&mr->cntr->refs);
	nm_refs_put(&mr->domain->refs);
	free(mr);
	return 0;
}

static int mr_bind(struct fid *fid, struct fid *bfid, uint64_t flags)
{
	struct nm_mr *mr = mr_of(fid);
	struct nm_cntr *cntr;

	if (flags & ~(uint64_t)(FI_REMOTE_WRITE | FI_REMOTE_READ))
		return -FI_EBADFLAGS;
	if (bfid->fclass == FI_CLASS_EP)
		return 0; /* regions serve all endpoints of the domain already */
	if (bfid->fclass != FI_CLASS_CNTR || mr->cntr)
		return -FI_EINVAL;
	cntr = nm_container_of(bfid, struct nm_cntr, cntr.fid);
	if (cntr->domain != mr->domain)
		return -FI_EDOMAIN;
	nm_lock_take(&mr->domain->lock);
	nm_memory_bind_counter(mr->region, &cntr->counter);
	cntr->driven = &mr->domain->eps; /* a peer may write here through any of them */
	nm_lock_give(&mr->domain->lock);
	nm_refs_get(&cntr->refs);
	mr->cntr = cntr;
	return 0;
}

static int mr_control(struct fid *fid, int command, void *arg)
{
	(void)fid;
	(void)arg;
	return command == FI_ENABLE ? 0 : -FI_ENOSYS; /* enabled from the start */
}

static struct fi_ops mr_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = mr_close,
	.bind = mr_bind,
	.control = mr_control,
	.ops_open = nm_no_ops_open,
};

/*
 * Where the memory is: *RET_NUMBER is 0 for the host. The manual lets us ignore the interface
 * without FI_HMEM; but a load from an address of a GPU would end the program, so it is refused.
 */
static int check_interface(const struct nm_domain *domain, const struct fi_mr_attr *attr,
			   unsigned int *ret_number)
{
	unsigned int number = (unsigned int)attr->iface;

	*ret_number = 0;
	/* The fields came with 1.10: an older program's structure ends before them. */
	if (FI_VERSION_LT(domain->fabric->fabric.api_version, FI_VERSION(1, 10)) ||
	    attr->iface == FI_HMEM_SYSTEM)
		return 0;
	if (number > NM_DEVICE_MAX) {
		nm_warn("region with key %llu not registered: memory interface %u does not exist; "
			"set fi_mr_attr.iface to 0 (FI_HMEM_SYSTEM)",
			(unsigned long long)attr->requested_key, number);
		return -FI_EINVAL;
	}
	if (!domain->has_devices || !nm_device_plugged(number)) {
		nm_warn("region with key %llu not registered: it is device memory (interface %u), "
			"and %s; copy it to host memory",
			(unsigned long long)attr->requested_key, number,
			domain->has_devices ? "this interface is not built in" :
					      "its domain was opened without FI_HMEM");
		return -FI_ENOSYS;
	}
	*ret_number = number;
	return 0;
}

/* The pieces of ATTR with their marks. On failure nothing is attached. */
static int attach(struct nm_mr *mr, unsigned int number, const struct fi_mr_attr *attr,
		  struct iovec *ret_marked)
{
	struct nm_reason why = {"address and length are beyond all memory"};
	int err = 0;

	mr->device = nm_device_plugged(number);
	for (size_t i = 0; !err && i < attr->iov_count; i++) {
		const struct iovec *v = &attr->mr_iov[i];
		uint64_t address = (uintptr_t)v->iov_base;

		ret_marked[i] = (struct iovec){nm_device_mark(number, address), v->iov_len};
		if (nm_is_device(v->iov_base) || nm_device_address(v->iov_base) != address ||
		    !nm_device_is_one_range(ret_marked[i].iov_base, v->iov_len))
			err = -EINVAL;
		else if (v->iov_len > 0)
			err = mr->device->attach(address, v->iov_len, &mr->handles[i], &why);
	}
	if (!err) {
		memcpy(mr->pieces, ret_marked, attr->iov_count * sizeof(*ret_marked));
		mr->mr.mem_desc = (void *)(uintptr_t)number;
		return 0;
	}
	nm_warn("region with key %llu not registered: %s", (unsigned long long)attr->requested_key,
		why.text);
	detach(mr);
	return nm_hmem_error(err);
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
		      struct fid_mr **ret_mr)
{
	struct nm_domain *domain = nm_container_of(fid, struct nm_domain, domain.fid);
	struct nm_memory_attr region = {
		.iov = attr->mr_iov,
		.nr_iov = attr->iov_count,
		.access = attr->access,
		.offset = attr->offset,
		.key = attr->requested_key,
	};
	struct iovec marked[NM_IOV_MAX];
	unsigned int number;
	struct nm_mr *mr;
	int err;

	if (fid->fclass != FI_CLASS_DOMAIN || !attr->iov_count || attr->iov_count > NM_IOV_MAX)
		return -FI_EINVAL;
	if (flags & ~(uint64_t)(FI_RMA_EVENT | (domain->has_devices ? DEVICE_FLAGS : 0)))
		return -FI_EBADFLAGS;
	err = check_interface(domain, attr, &number);
	if (err)
		return err;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return -FI_ENOMEM;
	if (number) {
		err = attach(mr, number, attr, marked);
		if (err) {
			free(mr);
			return err;
		}
		region.iov = marked;
	}
	nm_lock_take(&domain->lock);
	err = nm_memory_register(domain->memory, &region, &mr->region);
	nm_lock_give(&domain->lock);
	if (err) {
		detach(mr);
		free(mr);
		return err == -ENOKEY ? -FI_ENOKEY : err;
	}
	mr->domain = domain;
	nm_refs_get(&domain->refs);
	mr->mr.fid.fclass = FI_CLASS_MR;
	mr->mr.fid.context = attr->context;
	mr->mr.fid.ops = &mr_fid_ops;
	mr->mr.key = attr->requested_key;
	*ret_mr = &mr->mr;
	return 0;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access,
		   uint64_t offset, uint64_t requested_key, uint64_t flags, struct fid_mr **ret_mr,
		   void *context)
{
	struct fi_mr_attr attr = {
		.mr_iov = iov,
		.iov_count = count,
		.access = access,
		.offset = offset,
		.requested_key = requested_key,
		.context = context,
	};

	return mr_regattr(fid, &attr, flags, ret_mr);
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset,
		  uint64_t requested_key, uint64_t flags, struct fid_mr **ret_mr, void *context)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	return mr_regv(fid, &iov, 1, access, offset, requested_key, flags, ret_mr, context);
}

struct fi_ops_mr nm_mr_ops = {
	.size = sizeof(struct fi_ops_mr),
	.reg = mr_reg,
	.regv = mr_regv,
	.regattr = mr_regattr,
};
