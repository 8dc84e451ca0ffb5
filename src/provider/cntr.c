/* SPDX-License-Identifier: Apache-2.0 */
/* fid_cntr: numbers of finished and failed operations. Reading and waiting drive progress. */
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "provider/provider.h"
#include "provider/wait.h"

static struct nm_cntr *cntr_of(struct fid_cntr *cntr)
{
	return nm_container_of(cntr, struct nm_cntr, cntr);
}

static uint64_t cntr_read(struct fid_cntr *fid)
{
	struct nm_cntr *cntr = cntr_of(fid);
	uint64_t value;

	nm_lock_take(&cntr->domain->lock);
	nm_domain_progress(cntr->domain, cntr->driven);
	value = cntr->counter.value;
	nm_lock_give(&cntr->domain->lock);
	return value;
}

static uint64_t cntr_readerr(struct fid_cntr *fid)
{
	struct nm_cntr *cntr = cntr_of(fid);
	uint64_t errors;

	nm_lock_take(&cntr->domain->lock);
	nm_domain_progress(cntr->domain, cntr->driven);
	errors = cntr->counter.errors;
	nm_lock_give(&cntr->domain->lock);
	return errors;
}

enum change { CHANGE_ADD, CHANGE_SET };

static int change(struct nm_cntr *cntr, uint64_t *word, enum change how, uint64_t value)
{
	nm_lock_take(&cntr->domain->lock);
	*word = how == CHANGE_ADD ? *word + value : value;
	nm_lock_give(&cntr->domain->lock);
	return 0;
}

static int cntr_add(struct fid_cntr *fid, uint64_t value)
{
	return change(cntr_of(fid), &cntr_of(fid)->counter.value, CHANGE_ADD, value);
}

static int cntr_set(struct fid_cntr *fid, uint64_t value)
{
	return change(cntr_of(fid), &cntr_of(fid)->counter.value, CHANGE_SET, value);
}

static int cntr_adderr(struct fid_cntr *fid, uint64_t value)
{
	return change(cntr_of(fid), &cntr_of(fid)->counter.errors, CHANGE_ADD, value);
}

static int cntr_seterr(struct fid_cntr *fid, uint64_t value)
{
	return change(cntr_of(fid), &cntr_of(fid)->counter.errors, CHANGE_SET, value);
}

/* Until the value is at least THRESHOLD, an operation fails, or the time is over. */
static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
	uint64_t limit_ns = timeout < 0 ? UINT64_MAX : (uint64_t)timeout * NM_NS_PER_MS;
	uint64_t start = nm_clock_ns(), waited;
	struct nm_cntr *cntr = cntr_of(fid);
	struct nm_nap nap = {
		.domain = cntr->domain,
		.counter = &cntr->counter,
		.value = threshold,
	};

	nm_nap_begin(&nap);
	nm_lock_take(&cntr->domain->lock);
	nap.errors = cntr->counter.errors;
	nm_lock_give(&cntr->domain->lock);
	for (;;) {
		if (cntr_read(fid) >= threshold)
			return 0;
		if (cntr_readerr(fid) != nap.errors)
			return -FI_EAVAIL;
		waited = nm_clock_ns() - start;
		if (waited >= limit_ns)
			return -FI_ETIMEDOUT;
		nm_nap_take(&nap, limit_ns - waited);
	}
}

static int cntr_control(struct fid *fid, int command, void *arg)
{
	const struct nm_cntr *cntr = nm_container_of(fid, struct nm_cntr, cntr.fid);

	return nm_wait_control(cntr->wait_obj, cntr->fd, command, arg);
}

static int cntr_close(struct fid *fid)
{
	struct nm_cntr *cntr = nm_container_of(fid, struct nm_cntr, cntr.fid);

	if (atomic_load(&cntr->refs))
		return -FI_EBUSY;
	if (cntr->fd >= 0)
		close(cntr->fd);
	nm_ep_list_fini(&cntr->eps);
	nm_refs_put(&cntr->domain->refs);
	free(cntr);
	return 0;
}

static struct fi_ops cntr_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = cntr_close,
	.bind = nm_no_bind,
	.control = cntr_control,
	.ops_open = nm_no_ops_open,
};

static struct fi_ops_cntr cntr_ops = {
	.size = sizeof(struct fi_ops_cntr),
	.read = cntr_read,
	.readerr = cntr_readerr,
	.add = cntr_add,
	.set = cntr_set,
	.wait = cntr_wait,
	.adderr = cntr_adderr,
	.seterr = cntr_seterr,
};

int nm_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **ret_cntr,
		 void *context)
{
	enum fi_wait_obj wait_obj = attr ? attr->wait_obj : FI_WAIT_UNSPEC;
	struct nm_cntr *cntr;
	int err;

	if ((attr && attr->events != FI_CNTR_EVENTS_COMP) || !nm_wait_offered(wait_obj))
		return -FI_ENOSYS;
	cntr = calloc(1, sizeof(*cntr));
	if (!cntr)
		return -FI_ENOMEM;
	cntr->fd = -1;
	err = wait_obj == FI_WAIT_FD ? nm_wait_open(1, &cntr->fd) : 0;
	if (err) {
		free(cntr);
		return err;
	}
	cntr->wait_obj = wait_obj;
	cntr->driven = &cntr->eps;
	cntr->domain = nm_container_of(domain, struct nm_domain, domain);
	nm_refs_get(&cntr->domain->refs);
	cntr->cntr.fid.fclass = FI_CLASS_CNTR;
	cntr->cntr.fid.context = context;
	cntr->cntr.fid.ops = &cntr_fid_ops;
	cntr->cntr.ops = &cntr_ops;
	*ret_cntr = &cntr->cntr;
	return 0;
}
