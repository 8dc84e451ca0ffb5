/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fid_eq: an event queue in which nothing ever happens. Connections, registrations and address
 * insertions finish before their calls return; programs still open a queue and bind it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "provider/provider.h"

struct nm_eq {
	struct fid_eq eq;
	struct nm_fabric *fabric;
};

static int eq_close(struct fid *fid)
{
	struct nm_eq *eq = nm_container_of(fid, struct nm_eq, eq.fid);

	nm_refs_put(&eq->fabric->refs);
	free(eq);
	return 0;
}

static ssize_t eq_read(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, uint64_t flags)
{
	(void)eq;
	(void)event;
	(void)buf;
	(void)len;
	(void)flags;
	return -FI_EAGAIN;
}

static ssize_t eq_readerr(struct fid_eq *eq, struct fi_eq_err_entry *buf, uint64_t flags)
{
	(void)eq;
	(void)buf;
	(void)flags;
	return -FI_EAGAIN;
}

static ssize_t eq_write(struct fid_eq *eq, uint32_t event, const void *buf, size_t len,
			uint64_t flags)
{
	(void)eq;
	(void)event;
	(void)buf;
	(void)len;
	(void)flags;
	return -FI_ENOSYS;
}

static ssize_t eq_sread(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, int timeout,
			uint64_t flags)
{
	struct timespec time = {.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};

	(void)eq;
	(void)event;
	(void)buf;
	(void)len;
	(void)flags;
	/* Without a time-out the wait would never end, because no event ever comes. */
	if (timeout < 0)
		return -FI_EINVAL;
	nanosleep(&time, NULL);
	return -FI_EAGAIN;
}

static const char *eq_strerror(struct fid_eq *eq, int prov_errno, const void *err_data, char *buf,
			       size_t len)
{
	const char *text = nm_host.strerror(prov_errno);

	(void)eq;
	(void)err_data;
	if (buf && len)
		snprintf(buf, len, "%s", text);
	return text;
}

static struct fi_ops eq_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = eq_close,
	.bind = nm_no_bind,
	.control = nm_no_control,
	.ops_open = nm_no_ops_open,
};

static struct fi_ops_eq eq_ops = {
	.size = sizeof(struct fi_ops_eq),
	.read = eq_read,
	.readerr = eq_readerr,
	.write = eq_write,
	.sread = eq_sread,
	.strerror = eq_strerror,
};

int nm_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **ret_eq,
	       void *context)
{
	struct nm_eq *eq;

	if (attr && attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC)
		return -FI_ENOSYS;
	eq = calloc(1, sizeof(*eq));
	if (!eq)
		return -FI_ENOMEM;
	eq->eq.fid.fclass = FI_CLASS_EQ;
	eq->eq.fid.context = context;
	eq->eq.fid.ops = &eq_fid_ops;
	eq->eq.ops = &eq_ops;
	eq->fabric = nm_container_of(fabric, struct nm_fabric, fabric);
	nm_refs_get(&eq->fabric->refs);
	*ret_eq = &eq->eq;
	return 0;
}
