/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "nearcma", a second transport of the same memory domain: direct copies from and to the memory of
 * neighbours in one kernel. UCX combines it with "nearmetal", which carries the messages, for peers
 * that both reach. It is a transport of its own because UCX asks for the abilities of an interface
 * and not of a peer, and only some peers are proven (connect/cma_proof.h).
 *
 * The address, the peers and their links are those of the interface of "nearmetal" in the same
 * worker, or of one that this interface opens if UCX uses no "nearmetal" there. Addresses of remote
 * memory are hostile: the kernel checks them, and a copy only ever reaches the proven process.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "connect/cma_proof.h"
#include "transport/select.h"
#include "ucx/face.h"

/* A call of the kernel, without the bytes. */
#define OVERHEAD_S 2e-6
#define LATENCY_S 80e-9
#define BYTES_PER_MB 1e6

struct copy_iface {
	uct_base_iface_t base;
	uct_iface_h own; /* of "nearmetal"; NULL: UCX opened one */
};

struct copy_ep {
	uct_ep_t super;
	struct nm_peer *peer; /* NULL: the interface of messages was closed */
	struct nm_list node;  /* in its `copying` */
};

/* NULL: it could not be opened. Not on the path of a copy. */
static struct nm_ucx_iface *main_of(uct_iface_h base)
{
	const struct copy_iface *copies = nm_container_of(base, struct copy_iface, base.super);
	struct nm_ucx_iface *iface =
		copies->own ? nm_ucx_iface_of(copies->own) : nm_ucx_iface_find(copies->base.worker);

	if (iface)
		iface->has_copies = true;
	return iface;
}

static struct nm_peer *peer_of(uct_ep_h ep)
{
	return nm_container_of(ep, struct copy_ep, super)->peer;
}

/* ---- Peers ---- */

static ucs_status_t get_address(uct_iface_h base, uct_iface_addr_t *address)
{
	struct nm_ucx_iface *iface = main_of(base);

	if (!iface) {
		memset(address, 0, sizeof(struct nm_ucx_address));
		return UCS_OK;
	}
	return nm_ucx_iface_get_address(&iface->base.super, address);
}

static int is_reachable_v2(const uct_iface_h base, const uct_iface_is_reachable_params_t *params)
{
	struct nm_ucx_iface *iface = main_of(base);
	struct nm_peer *peer;

	if (!iface) {
		uct_iface_fill_info_str_buf(params, "there is no interface of nearmetal");
		return 0;
	}
	peer = nm_ucx_iface_meet(iface, params);
	if (!peer)
		return 0;
	if (nm_ucx_peer_is_self(peer)) {
		if (nm_cma_works_on_myself(false) && nm_cma_works_on_myself(true))
			return 1;
		uct_iface_fill_info_str_buf(params, "direct copies are off: a system call filter "
						    "(seccomp) refuses them");
		return 0;
	}
	if (peer->link && peer->link->remote_copy)
		return 1;
	if (peer->link) {
		struct nm_link_facts facts;

		peer->link->transport->ops->describe(peer->link, &facts);
		uct_iface_fill_info_str_buf(params, "direct copies are off: %s",
					    *facts.copy_reason.text ? facts.copy_reason.text :
								      "it is not in this kernel");
	} else {
		uct_iface_fill_info_str_buf(params, "no message was sent to it yet");
	}
	return 0;
}

static ucs_status_t ep_create(const uct_ep_params_t *params, uct_ep_h *ret_ep)
{
	struct nm_ucx_iface *iface = main_of(params->iface);
	struct nm_ucx_address address;
	struct copy_ep *ep;

	if (!iface || !(params->field_mask & UCT_EP_PARAM_FIELD_IFACE_ADDR) ||
	    !nm_ucx_address_parse(params->iface_addr, sizeof(address), &address))
		return UCS_ERR_INVALID_ADDR;
	ep = calloc(1, sizeof(*ep));
	if (!ep)
		return UCS_ERR_NO_MEMORY;
	ep->super.iface = params->iface;
	ep->peer = nm_ucx_peer_get(iface, &address.who);
	if (!ep->peer) {
		free(ep);
		return UCS_ERR_NO_MEMORY;
	}
	if (!nm_ucx_peer_meet(ep->peer)) {
		nm_error("ucx: no direct copies of peer " NM_WHO_FORMAT ": %s",
			 NM_WHO(&address.who), ep->peer->why.text);
		free(ep);
		return UCS_ERR_UNREACHABLE;
	}
	nm_list_append(&iface->copying, &ep->node);
	*ret_ep = &ep->super;
	return UCS_OK;
}

static void ep_destroy(uct_ep_h base)
{
	struct copy_ep *ep = nm_container_of(base, struct copy_ep, super);

	nm_list_remove(&ep->node);
	free(ep);
}

void nm_ucx_copies_end(struct nm_ucx_iface *iface)
{
	while (!nm_list_empty(&iface->copying)) {
		struct copy_ep *ep = nm_list_first(&iface->copying, struct copy_ep, node);

		nm_list_remove(&ep->node);
		ep->peer = NULL;
	}
}

static int is_connected(uct_ep_h ep, const uct_ep_is_connected_params_t *params)
{
	return peer_of(ep) && nm_ucx_peer_is_at(peer_of(ep), params);
}

/* ---- Copies ---- */

static ucs_status_t copy(uct_ep_h ep, bool is_read, const uct_iov_t *iov, size_t nr,
			 uint64_t remote)
{
	struct nm_peer *peer = peer_of(ep);

	return nm_likely(peer) ? nm_ucx_copy(peer, is_read, iov, nr, remote) :
				 UCS_ERR_CONNECTION_RESET;
}

static ucs_status_t get_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t nr, uint64_t remote,
			      uct_rkey_t rkey, uct_completion_t *completion)
{
	(void)rkey;
	(void)completion;
	return copy(ep, true, iov, nr, remote);
}

static ucs_status_t put_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t nr, uint64_t remote,
			      uct_rkey_t rkey, uct_completion_t *completion)
{
	(void)rkey;
	(void)completion;
	return copy(ep, false, iov, nr, remote);
}

static ucs_status_t flush(uct_ep_h ep, unsigned int flags, uct_completion_t *completion)
{
	/* A copy has ended when its call returns. */
	(void)ep;
	(void)flags;
	(void)completion;
	return UCS_OK;
}

static ucs_status_t fence(uct_ep_h ep, unsigned int flags)
{
	(void)ep;
	(void)flags;
	return UCS_OK;
}

/* A copy never waits for room, so UCX is to try again. */
static ucs_status_t pending_add(uct_ep_h ep, uct_pending_req_t *request, unsigned int flags)
{
	(void)ep;
	(void)request;
	(void)flags;
	return UCS_ERR_BUSY;
}

static void pending_purge(uct_ep_h ep, uct_pending_purge_callback_t cb, void *arg)
{
	(void)ep;
	(void)cb;
	(void)arg;
}

/* ---- The interface ---- */

static ucs_status_t query(uct_iface_h base, uct_iface_attr_t *attr)
{
	const uint32_t *rates = nm_select_params()->prior[nm_select_class(1)][NM_SELECT_STREAM];

	uct_base_iface_query(&nm_container_of(base, struct copy_iface, base.super)->base, attr);
	attr->iface_addr_len = sizeof(struct nm_ucx_address);
	attr->cap.flags = UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_GET_ZCOPY |
			  UCT_IFACE_FLAG_PUT_ZCOPY | UCT_IFACE_FLAG_PENDING |
			  UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE;
	/* Nothing arrives here, so nothing has to be polled or waited for. */
	attr->cap.event_flags = UCT_IFACE_FLAG_EVENT_SEND_COMP | UCT_IFACE_FLAG_EVENT_RECV |
				UCT_IFACE_FLAG_EVENT_ASYNC_CB;
	attr->cap.get.max_zcopy = attr->cap.put.max_zcopy = NM_REMOTE_COPY_STEP;
	attr->cap.get.opt_zcopy_align = attr->cap.put.opt_zcopy_align = 1;
	attr->cap.get.align_mtu = attr->cap.put.align_mtu = 1;
	attr->cap.get.max_iov = attr->cap.put.max_iov = NM_SPANS_MAX;
	attr->latency = ucs_linear_func_make(LATENCY_S, 0);
	attr->overhead = OVERHEAD_S;
	attr->bandwidth.dedicated = rates[NM_PROTOCOL_PULL] * BYTES_PER_MB;
	return UCS_OK;
}

static void close_iface(uct_iface_h base)
{
	struct copy_iface *iface = nm_container_of(base, struct copy_iface, base.super);

	if (iface->own)
		iface->own->ops.iface_close(iface->own);
	UCS_CLASS_CLEANUP(uct_base_iface_t, &iface->base);
	free(iface);
}

static unsigned int progress(uct_iface_h base)
{
	(void)base;
	return 0;
}

static void progress_not_needed(uct_iface_h base, unsigned int flags)
{
	(void)base;
	(void)flags;
}

static ucs_status_t event_arm(uct_iface_h base, unsigned int events)
{
	(void)base;
	(void)events;
	return UCS_OK;
}

static uct_iface_ops_t ops = {
	.ep_put_zcopy = put_zcopy,
	.ep_get_zcopy = get_zcopy,
	.ep_pending_add = pending_add,
	.ep_pending_purge = pending_purge,
	.ep_flush = flush,
	.ep_fence = fence,
	.ep_create = ep_create,
	.ep_destroy = ep_destroy,
	.iface_flush = uct_base_iface_flush,
	.iface_fence = uct_base_iface_fence,
	.iface_progress_enable = progress_not_needed,
	.iface_progress_disable = progress_not_needed,
	.iface_progress = progress,
	.iface_event_arm = event_arm,
	.iface_close = close_iface,
	.iface_query = query,
	.iface_get_device_address = nm_ucx_iface_get_device_address,
	.iface_get_address = get_address,
	.iface_is_reachable = uct_base_iface_is_reachable,
};

static const uct_iface_internal_ops_t internal_ops = {
	NM_UCX_INTERNAL_OPS,
	.iface_estimate_perf = uct_base_iface_estimate_perf,
	.iface_is_reachable_v2 = is_reachable_v2,
	.ep_is_connected = is_connected,
};

ucs_status_t nm_ucx_copy_iface_open(uct_md_h md, uct_worker_h worker,
				    const uct_iface_params_t *params,
				    const uct_iface_config_t *config, uct_iface_h *ret_iface)
{
	struct copy_iface *iface;
	ucs_status_t status;

	if (!(params->field_mask & UCT_IFACE_PARAM_FIELD_OPEN_MODE) ||
	    !(params->open_mode & UCT_IFACE_OPEN_MODE_DEVICE))
		return UCS_ERR_UNSUPPORTED;
	iface = calloc(1, sizeof(*iface));
	if (!iface)
		return UCS_ERR_NO_MEMORY;
	status = UCS_CLASS_INIT(uct_base_iface_t, &iface->base, &ops, &internal_ops, md, worker,
				params, config);
	if (status != UCS_OK) {
		free(iface);
		return status;
	}
	if (!nm_ucx_iface_find(worker) &&
	    nm_ucx_iface_open(md, worker, params, config, &iface->own) == UCS_OK)
		uct_base_iface_progress_enable(iface->own, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
	*ret_iface = &iface->base.super;
	return UCS_OK;
}
