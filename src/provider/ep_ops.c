/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of an endpoint that move no data: bind, options, name, cancel. */
#include <string.h>

#include "provider/ep.h"
#include "provider/hmem.h"

static struct nm_ep *fid_to_ep(fid_t fid)
{
	return nm_container_of(fid, struct nm_ep, ep.fid);
}

static int bind_av(struct nm_ep *ep, struct nm_av *av)
{
	if (av->domain != ep->domain)
		return -FI_EDOMAIN;
	if (ep->av)
		return -FI_EINVAL;
	nm_refs_get(&av->refs);
	ep->av = av;
	return 0;
}

/* Without FI_SELECTIVE_COMPLETION every operation of that side completes visibly. */
static int bind_cq(struct nm_ep *ep, struct nm_cq *cq, uint64_t flags)
{
	uint64_t completion = flags & FI_SELECTIVE_COMPLETION ? 0 : FI_COMPLETION;

	if (cq->domain != ep->domain)
		return -FI_EDOMAIN;
	if (flags & ~(uint64_t)(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION))
		return -FI_EBADFLAGS;
	if (!(flags & (FI_TRANSMIT | FI_RECV)) || (flags & FI_TRANSMIT && ep->tx_cq) ||
	    (flags & FI_RECV && ep->rx_cq))
		return -FI_EINVAL;
	if (flags & FI_TRANSMIT) {
		nm_refs_get(&cq->refs);
		ep->tx_cq = cq;
		ep->tx_op_flags |= completion;
		ep->tx_msg_flags |= completion;
	}
	if (flags & FI_RECV) {
		nm_refs_get(&cq->refs);
		ep->rx_cq = cq;
		ep->rx_op_flags |= completion;
		ep->rx_msg_flags |= completion;
	}
	return 0;
}

/* Also allowed on an enabled endpoint: Sandia OpenSHMEM does it, and other providers allow it. */
static int bind_cntr(struct nm_ep *ep, struct nm_cntr *cntr, uint64_t flags)
{
	static const uint64_t uses[NM_NR_CNTR_USES] = {
		[NM_CNTR_SEND] = FI_SEND,
		[NM_CNTR_RECV] = FI_RECV,
		[NM_CNTR_READ] = FI_READ,
		[NM_CNTR_WRITE] = FI_WRITE,
		[NM_CNTR_REMOTE_READ] = FI_REMOTE_READ,
		[NM_CNTR_REMOTE_WRITE] = FI_REMOTE_WRITE,
	};
	uint64_t known = 0;
	int i, err;

	if (cntr->domain != ep->domain)
		return -FI_EDOMAIN;
	for (i = 0; i < NM_NR_CNTR_USES; i++) {
		known |= uses[i];
		if (flags & uses[i] && ep->cntrs[i])
			return -FI_EINVAL;
	}
	if (!flags || flags & ~known)
		return -FI_EBADFLAGS;
	nm_lock_take(&ep->domain->lock);
	err = ep->engine ? nm_ep_list_add(&cntr->eps, ep) : 0;
	for (i = 0; !err && i < NM_NR_CNTR_USES; i++) {
		if (!(flags & uses[i]))
			continue;
		nm_refs_get(&cntr->refs);
		ep->cntrs[i] = cntr;
	}
	if (!err && ep->engine)
		nm_ep_bind_queues(ep, ep->engine);
	nm_lock_give(&ep->domain->lock);
	return err;
}

static int ep_bind(struct fid *fid, struct fid *bfid, uint64_t flags)
{
	struct nm_ep *ep = fid_to_ep(fid);

	if (bfid->fclass == FI_CLASS_CNTR)
		return bind_cntr(ep, nm_container_of(bfid, struct nm_cntr, cntr.fid), flags);
	if (ep->engine)
		return -FI_EOPBADSTATE;
	if (bfid->fclass == FI_CLASS_AV)
		return bind_av(ep, nm_container_of(bfid, struct nm_av, av.fid));
	if (bfid->fclass == FI_CLASS_CQ)
		return bind_cq(ep, nm_container_of(bfid, struct nm_cq, cq.fid), flags);
	if (bfid->fclass == FI_CLASS_EQ)
		return 0; /* there is nothing that could be reported to it */
	return -FI_ENOSYS;
}

static int get_op_flags(const struct nm_ep *ep, uint64_t *flags)
{
	if (*flags & FI_TRANSMIT && *flags & FI_RECV)
		return -FI_EINVAL;
	*flags = *flags & FI_RECV ? ep->rx_op_flags : ep->tx_op_flags;
	return 0;
}

static int set_op_flags(struct nm_ep *ep, uint64_t flags)
{
	if (!(flags & FI_TRANSMIT) == !(flags & FI_RECV))
		return -FI_EINVAL;
	if (flags & FI_RECV)
		ep->rx_op_flags = flags & NM_RX_OP_FLAGS;
	else
		ep->tx_op_flags = flags & NM_TX_OP_FLAGS;
	return 0;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
	struct nm_ep *ep = fid_to_ep(fid);

	switch (command) {
	case FI_ENABLE:
		return nm_ep_enable(ep);
	case FI_GETOPSFLAG:
		return get_op_flags(ep, arg);
	case FI_SETOPSFLAG:
		return set_op_flags(ep, *(uint64_t *)arg);
	default:
		return -FI_ENOSYS;
	}
}

static ssize_t ep_cancel(fid_t fid, void *context)
{
	struct nm_ep *ep = fid_to_ep(fid);
	int err;

	if (!ep->engine)
		return -FI_EOPBADSTATE;
	nm_lock_take(&ep->domain->lock);
	err = nm_engine_cancel(ep->engine, context);
	nm_lock_give(&ep->domain->lock);
	return err;
}

static int ep_getopt(fid_t fid, int level, int optname, void *optval, size_t *optlen)
{
	const struct nm_ep *ep = fid_to_ep(fid);
	size_t value;

	if (level != FI_OPT_ENDPOINT)
		return -FI_ENOPROTOOPT;
	if (optname == FI_OPT_MIN_MULTI_RECV)
		value = ep->min_multi_recv;
	else if (optname == FI_OPT_CM_DATA_SIZE)
		value = 0;
	else
		return -FI_ENOPROTOOPT;
	if (*optlen < sizeof(value))
		return -FI_ETOOSMALL;
	memcpy(optval, &value, sizeof(value));
	*optlen = sizeof(value);
	return 0;
}

static int ep_setopt(fid_t fid, int level, int optname, const void *optval, size_t optlen)
{
	struct nm_ep *ep = fid_to_ep(fid);

	if (level != FI_OPT_ENDPOINT || optname != FI_OPT_MIN_MULTI_RECV)
		return -FI_ENOPROTOOPT;
	if (optlen != sizeof(size_t))
		return -FI_EINVAL;
	nm_lock_take(&ep->domain->lock);
	memcpy(&ep->min_multi_recv, optval, sizeof(size_t));
	if (ep->engine)
		nm_engine_set_min_multi_recv(ep->engine, ep->min_multi_recv);
	nm_lock_give(&ep->domain->lock);
	return 0;
}

static int no_tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **tx_ep,
		     void *context)
{
	(void)sep;
	(void)index;
	(void)attr;
	(void)tx_ep;
	(void)context;
	return -FI_ENOSYS;
}

static int no_rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **rx_ep,
		     void *context)
{
	(void)sep;
	(void)index;
	(void)attr;
	(void)rx_ep;
	(void)context;
	return -FI_ENOSYS;
}

/* Queues grow as needed; what is left is always the size that was promised. */
static ssize_t ep_size_left(struct fid_ep *fid)
{
	return nm_ep_of(fid)->engine ? NM_QUEUE_SIZE : -FI_EOPBADSTATE;
}

static int cm_getname(fid_t fid, void *addr, size_t *addrlen)
{
	const struct nm_ep *ep = fid_to_ep(fid);
	size_t room = *addrlen;

	if (!ep->engine)
		return -FI_EOPBADSTATE;
	*addrlen = NM_ADDRESS_LEN;
	if (!addr)
		return room ? -FI_EINVAL : -FI_ETOOSMALL;
	memcpy(addr, &ep->address, room < NM_ADDRESS_LEN ? room : NM_ADDRESS_LEN);
	return room < NM_ADDRESS_LEN ? -FI_ETOOSMALL : 0;
}

static int cm_no_setname(fid_t fid, void *addr, size_t addrlen)
{
	(void)fid;
	(void)addr;
	(void)addrlen;
	return -FI_ENOSYS;
}

static int cm_no_getpeer(struct fid_ep *ep, void *addr, size_t *addrlen)
{
	(void)ep;
	(void)addr;
	(void)addrlen;
	return -FI_ENOSYS;
}

static int cm_no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen)
{
	(void)ep;
	(void)addr;
	(void)param;
	(void)paramlen;
	return -FI_ENOSYS;
}

static int cm_no_listen(struct fid_pep *pep)
{
	(void)pep;
	return -FI_ENOSYS;
}

static int cm_no_accept(struct fid_ep *ep, const void *param, size_t paramlen)
{
	(void)ep;
	(void)param;
	(void)paramlen;
	return -FI_ENOSYS;
}

static int cm_no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen)
{
	(void)pep;
	(void)handle;
	(void)param;
	(void)paramlen;
	return -FI_ENOSYS;
}

static int cm_no_shutdown(struct fid_ep *ep, uint64_t flags)
{
	(void)ep;
	(void)flags;
	return -FI_ENOSYS;
}

static int cm_no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc,
		      void *context)
{
	(void)ep;
	(void)addr;
	(void)flags;
	(void)mc;
	(void)context;
	return -FI_ENOSYS;
}

static struct fi_ops ep_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = nm_ep_close,
	.bind = ep_bind,
	.control = ep_control,
	.ops_open = nm_no_ops_open,
};

static struct fi_ops_ep ep_ops = {
	.size = sizeof(struct fi_ops_ep),
	.cancel = ep_cancel,
	.getopt = ep_getopt,
	.setopt = ep_setopt,
	.tx_ctx = no_tx_ctx,
	.rx_ctx = no_rx_ctx,
	.rx_size_left = ep_size_left,
	.tx_size_left = ep_size_left,
};

static struct fi_ops_cm cm_ops = {
	.size = sizeof(struct fi_ops_cm),
	.setname = cm_no_setname,
	.getname = cm_getname,
	.getpeer = cm_no_getpeer,
	.connect = cm_no_connect,
	.listen = cm_no_listen,
	.accept = cm_no_accept,
	.reject = cm_no_reject,
	.shutdown = cm_no_shutdown,
	.join = cm_no_join,
};

void nm_ep_set_ops(struct nm_ep *ep)
{
	ep->ep.fid.ops = &ep_fid_ops;
	ep->ep.ops = &ep_ops;
	ep->ep.cm = &cm_ops;
	if (ep->caps & FI_HMEM) {
		ep->ep.msg = &nm_hmem_msg_ops;
		ep->ep.tagged = &nm_hmem_tagged_ops;
		ep->ep.rma = &nm_hmem_rma_ops;
		ep->ep.atomic = &nm_hmem_atomic_ops;
		return;
	}
	ep->ep.msg = &nm_msg_ops;
	ep->ep.tagged = &nm_tagged_ops;
	ep->ep.rma = &nm_rma_ops;
	ep->ep.atomic = &nm_atomic_ops;
}
