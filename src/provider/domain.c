/* SPDX-License-Identifier: Apache-2.0 */
/* fid_domain: endpoints, queues and regions that may be used together, under one lock. */
#include <stdlib.h>

#include "base/log.h"
#include "provider/hmem.h"
#include "provider/provider.h"

static void after_fork_child(struct nm_fork_watch *watch)
{
	struct nm_domain *domain = nm_container_of(watch, struct nm_domain, fork_watch);

	nm_lock_forget(&domain->lock);
	nm_mover_forget(&domain->mover);
}

static struct nm_engine *engine_at(void *arg, size_t i)
{
	const struct nm_domain *domain = arg;

	return i < domain->eps.nr ? domain->eps.eps[i]->engine : NULL;
}

static int domain_close(struct fid *fid)
{
	struct nm_domain *domain = nm_container_of(fid, struct nm_domain, domain.fid);

	if (atomic_load(&domain->refs))
		return -FI_EBUSY;
	nm_opened_remove(&domain->opened);
	nm_mover_stop(&domain->mover);
	nm_fork_unwatch(&domain->fork_watch);
	nm_memory_table_destroy(domain->memory);
	nm_ep_list_fini(&domain->eps);
	nm_lock_fini(&domain->lock);
	nm_refs_put(&domain->fabric->refs);
	free(domain);
	return 0;
}

static int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep,
			  void *context)
{
	(void)domain;
	(void)info;
	(void)sep;
	(void)context;
	return -FI_ENOSYS;
}

static int no_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr,
			struct fid_poll **pollset)
{
	(void)domain;
	(void)attr;
	(void)pollset;
	return -FI_ENOSYS;
}

static int no_stx_ctx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx,
		      void *context)
{
	(void)domain;
	(void)attr;
	(void)stx;
	(void)context;
	return -FI_ENOSYS;
}

static int no_srx_ctx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **rx_ep,
		      void *context)
{
	(void)domain;
	(void)attr;
	(void)rx_ep;
	(void)context;
	return -FI_ENOSYS;
}

static int no_query_collective(struct fid_domain *domain, enum fi_collective_op coll,
			       struct fi_collective_attr *attr, uint64_t flags)
{
	(void)domain;
	(void)coll;
	(void)attr;
	(void)flags;
	return -FI_ENOSYS;
}

static struct fi_ops domain_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = domain_close,
	.bind = nm_no_bind,
	.control = nm_no_control,
	.ops_open = nm_no_ops_open,
};

static struct fi_ops_domain domain_ops = {
	.size = sizeof(struct fi_ops_domain),
	.av_open = nm_av_open,
	.cq_open = nm_cq_open,
	.endpoint = nm_ep_open,
	.scalable_ep = no_scalable_ep,
	.cntr_open = nm_cntr_open,
	.poll_open = no_poll_open,
	.stx_ctx = no_stx_ctx,
	.srx_ctx = no_srx_ctx,
	.query_atomic = nm_query_atomic,
	.query_collective = no_query_collective,
};

int nm_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **ret_domain,
		   void *context)
{
	struct nm_reason why;
	struct nm_domain *domain;
	int err;

	/* The program may have changed what fi_getinfo() gave it; look again at what is bound here. */
	if (info->domain_attr && info->domain_attr->data_progress == FI_PROGRESS_AUTO) {
		nm_reason_set(&why, "automatic data progress is not offered");
		nm_info("no domain: %s", why.text);
		return -FI_EINVAL;
	}
	if (info->caps & FI_HMEM && nm_hmem_load(&why)) {
		nm_info("no domain with FI_HMEM: %s", why.text);
		return -FI_ENODATA;
	}
	domain = calloc(1, sizeof(*domain));
	if (!domain)
		return -FI_ENOMEM;
	domain->has_devices = info->caps & FI_HMEM;
	err = nm_lock_init(&domain->lock,
			   !info->domain_attr || info->domain_attr->threading != FI_THREAD_DOMAIN ||
				   nm_mover_is_wanted());
	if (err)
		goto err_free;
	err = nm_memory_table_create(&domain->memory);
	if (err)
		goto err_lock;
	domain->domain.fid.fclass = FI_CLASS_DOMAIN;
	domain->domain.fid.context = context;
	domain->domain.fid.ops = &domain_fid_ops;
	domain->domain.ops = &domain_ops;
	domain->domain.mr = &nm_mr_ops;
	domain->fabric = nm_container_of(fabric, struct nm_fabric, fabric);
	domain->mover = (struct nm_mover){
		.lock = &domain->lock,
		.engine = engine_at,
		.arg = domain,
	};
	nm_refs_get(&domain->fabric->refs);
	nm_opened_add(&domain->opened, &domain->domain.fid);
	domain->fork_watch = (struct nm_fork_watch){.in_child = after_fork_child};
	nm_fork_watch(&domain->fork_watch);
	*ret_domain = &domain->domain;
	return 0;

err_lock:
	nm_lock_fini(&domain->lock);
err_free:
	free(domain);
	return err;
}
