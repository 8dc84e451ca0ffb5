/* SPDX-License-Identifier: Apache-2.0 */
/* fid_fabric: the root of all objects of one program. */
#include <stdlib.h>
#include <string.h>

#include "provider/provider.h"
#include "provider/wait.h"

static int fabric_close(struct fid *fid)
{
	struct nm_fabric *fabric = nm_container_of(fid, struct nm_fabric, fabric.fid);

	if (atomic_load(&fabric->refs))
		return -FI_EBUSY;
	nm_opened_remove(&fabric->opened);
	free(fabric);
	return 0;
}

static int no_passive_ep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep,
			 void *context)
{
	(void)fabric;
	(void)info;
	(void)pep;
	(void)context;
	return -FI_ENOSYS; /* reliable datagrams have no connections */
}

static int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr,
			struct fid_wait **waitset)
{
	(void)fabric;
	(void)attr;
	(void)waitset;
	return -FI_ENOSYS;
}

static struct fi_ops fabric_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = fabric_close,
	.bind = nm_no_bind,
	.control = nm_no_control,
	.ops_open = nm_no_ops_open,
};

static struct fi_ops_fabric fabric_ops = {
	.size = sizeof(struct fi_ops_fabric),
	.domain = nm_domain_open,
	.passive_ep = no_passive_ep,
	.eq_open = nm_eq_open,
	.wait_open = no_wait_open,
	.trywait = nm_trywait,
};

int nm_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **ret_fabric, void *context)
{
	struct nm_fabric *fabric;

	if (attr->name && strcmp(attr->name, NM_PROVIDER_NAME))
		return -FI_EINVAL;
	fabric = calloc(1, sizeof(*fabric));
	if (!fabric)
		return -FI_ENOMEM;
	fabric->fabric.fid.fclass = FI_CLASS_FABRIC;
	fabric->fabric.fid.context = context;
	fabric->fabric.fid.ops = &fabric_fid_ops;
	fabric->fabric.ops = &fabric_ops;
	fabric->fabric.api_version = attr->api_version;
	nm_opened_add(&fabric->opened, &fabric->fabric.fid);
	*ret_fabric = &fabric->fabric;
	return 0;
}
