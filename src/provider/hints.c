/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program asks for against what an endpoint offers. Each refusal carries its reason, because
 * libfabric itself only says "no data available" and then silently uses a slower provider.
 */
#include <string.h>

#include "provider/hmem.h"
#include "provider/provider.h"

#define HAS_BEYOND(have, allowed) ((have) & ~(uint64_t)(allowed))

static int refuse_bits(struct nm_reason *ret_why, const char *what, uint64_t asked,
		       uint64_t offered)
{
	nm_reason_set(ret_why, "%s 0x%llx requested; 0x%llx of it is not offered", what,
		      (unsigned long long)asked, (unsigned long long)(asked & ~offered));
	return -FI_ENODATA;
}

static int refuse_size(struct nm_reason *ret_why, const char *what, size_t asked, size_t offered)
{
	nm_reason_set(ret_why, "%s %zu requested, at most %zu is offered", what, asked, offered);
	return -FI_ENODATA;
}

static int check_tx(const struct fi_tx_attr *tx, struct nm_reason *ret_why)
{
	if (HAS_BEYOND(tx->caps, NM_CAPS | FI_HMEM))
		return refuse_bits(ret_why, "transmit capabilities", tx->caps, NM_CAPS);
	if (HAS_BEYOND(tx->op_flags, NM_TX_OP_FLAGS))
		return refuse_bits(ret_why, "transmit op_flags", tx->op_flags, NM_TX_OP_FLAGS);
	if (HAS_BEYOND(tx->msg_order, NM_MSG_ORDER))
		return refuse_bits(ret_why, "transmit message order", tx->msg_order, NM_MSG_ORDER);
	if (tx->inject_size > NM_INJECT_SIZE)
		return refuse_size(ret_why, "inject_size", tx->inject_size, NM_INJECT_SIZE);
	if (tx->size > NM_NR_OBJECTS)
		return refuse_size(ret_why, "transmit queue size", tx->size, NM_NR_OBJECTS);
	if (tx->iov_limit > NM_IOV_MAX)
		return refuse_size(ret_why, "transmit iov_limit", tx->iov_limit, NM_IOV_MAX);
	if (tx->rma_iov_limit > NM_IOV_MAX)
		return refuse_size(ret_why, "rma_iov_limit", tx->rma_iov_limit, NM_IOV_MAX);
	return 0;
}

static int check_rx(const struct fi_rx_attr *rx, struct nm_reason *ret_why)
{
	if (HAS_BEYOND(rx->caps, NM_CAPS | FI_HMEM))
		return refuse_bits(ret_why, "receive capabilities", rx->caps, NM_CAPS);
	if (HAS_BEYOND(rx->op_flags, NM_RX_OP_FLAGS))
		return refuse_bits(ret_why, "receive op_flags", rx->op_flags, NM_RX_OP_FLAGS);
	if (HAS_BEYOND(rx->msg_order, NM_MSG_ORDER))
		return refuse_bits(ret_why, "receive message order", rx->msg_order, NM_MSG_ORDER);
	if (rx->size > NM_NR_OBJECTS)
		return refuse_size(ret_why, "receive queue size", rx->size, NM_NR_OBJECTS);
	if (rx->iov_limit > NM_IOV_MAX)
		return refuse_size(ret_why, "receive iov_limit", rx->iov_limit, NM_IOV_MAX);
	return 0;
}

static int check_ep(const struct fi_ep_attr *ep, struct nm_reason *ret_why)
{
	if (ep->type != FI_EP_UNSPEC && ep->type != FI_EP_RDM) {
		nm_reason_set(ret_why, "endpoint type %d requested, only FI_EP_RDM is offered",
			      (int)ep->type);
		return -FI_ENODATA;
	}
	if (ep->protocol != FI_PROTO_UNSPEC) {
		nm_reason_set(ret_why, "wire protocol %u requested, nearmetal has its own",
			      ep->protocol);
		return -FI_ENODATA;
	}
	if (ep->max_msg_size > NM_MAX_MSG_SIZE)
		return refuse_size(ret_why, "max_msg_size", ep->max_msg_size, NM_MAX_MSG_SIZE);
	if (ep->tx_ctx_cnt > 1 && ep->tx_ctx_cnt != FI_SHARED_CONTEXT)
		return refuse_size(ret_why, "transmit contexts", ep->tx_ctx_cnt, 1);
	if (ep->rx_ctx_cnt > 1 && ep->rx_ctx_cnt != FI_SHARED_CONTEXT)
		return refuse_size(ret_why, "receive contexts", ep->rx_ctx_cnt, 1);
	if (ep->tx_ctx_cnt == FI_SHARED_CONTEXT || ep->rx_ctx_cnt == FI_SHARED_CONTEXT) {
		nm_reason_set(ret_why, "shared transmit or receive contexts are not offered");
		return -FI_ENODATA;
	}
	if (ep->auth_key_size) {
		nm_reason_set(ret_why, "authorization keys are not offered");
		return -FI_ENODATA;
	}
	return 0;
}

static int check_domain(const struct fi_domain_attr *domain, struct nm_reason *ret_why)
{
	if (domain->name && strcmp(domain->name, NM_PROVIDER_NAME)) {
		nm_reason_set(ret_why, "domain '%.64s' requested, the only one is '%s'",
			      domain->name, NM_PROVIDER_NAME);
		return -FI_ENODATA;
	}
	if (HAS_BEYOND(domain->caps, NM_CAPS | FI_HMEM))
		return refuse_bits(ret_why, "domain capabilities", domain->caps, NM_CAPS);
	if ((int)domain->threading > FI_THREAD_ENDPOINT) {
		nm_reason_set(ret_why, "unknown threading model %d", (int)domain->threading);
		return -FI_ENODATA;
	}
	if (domain->data_progress == FI_PROGRESS_AUTO) {
		nm_reason_set(ret_why, "automatic data progress requested, only manual is offered: "
				       "the program must read its queues or counters");
		return -FI_ENODATA;
	}
	if (domain->mr_key_size > NM_MR_KEY_SIZE)
		return refuse_size(ret_why, "mr_key_size", domain->mr_key_size, NM_MR_KEY_SIZE);
	if (domain->cq_data_size > NM_CQ_DATA_SIZE)
		return refuse_size(ret_why, "cq_data_size", domain->cq_data_size, NM_CQ_DATA_SIZE);
	if (domain->mr_iov_limit > NM_IOV_MAX)
		return refuse_size(ret_why, "mr_iov_limit", domain->mr_iov_limit, NM_IOV_MAX);
	if (domain->auth_key_size) {
		nm_reason_set(ret_why, "authorization keys are not offered");
		return -FI_ENODATA;
	}
	/*
	 * The word of the time before 1.5; as a bit beside others it only allows, and we need none.
	 */
	if (domain->mr_mode == FI_MR_BASIC) {
		nm_reason_set(ret_why, "FI_MR_BASIC requested; keys and offsets of the program "
				       "(FI_MR_SCALABLE, mr_mode 0) are offered");
		return -FI_ENODATA;
	}
	return 0;
}

static int check_fabric(const struct fi_fabric_attr *fabric, struct nm_reason *ret_why)
{
	if (fabric->prov_name && strcasecmp(fabric->prov_name, NM_PROVIDER_NAME)) {
		nm_reason_set(ret_why, "provider '%.64s' requested", fabric->prov_name);
		return -FI_ENODATA;
	}
	if (fabric->name && strcmp(fabric->name, NM_PROVIDER_NAME)) {
		nm_reason_set(ret_why, "fabric '%.64s' requested, the only one is '%s'",
			      fabric->name, NM_PROVIDER_NAME);
		return -FI_ENODATA;
	}
	return 0;
}

/* FI_HMEM is offered while a driver of a device is there, and only if it is requested. */
static int check_devices(const struct fi_info *hints, struct nm_reason *ret_why)
{
	struct nm_reason why;

	if (nm_hmem_load(&why)) {
		nm_reason_set(ret_why, "FI_HMEM requested, but there is no device: %s", why.text);
		return -FI_ENODATA;
	}
	if (!hints->domain_attr || !(hints->domain_attr->mr_mode & FI_MR_HMEM)) {
		nm_reason_set(ret_why, "FI_HMEM requested without FI_MR_HMEM in mr_mode: device "
				       "memory needs descriptors");
		return -FI_ENODATA;
	}
	return 0;
}

int nm_hints_check(const struct fi_info *hints, struct nm_reason *ret_why)
{
	int err = 0;

	if (!hints)
		return 0;
	if (hints->caps & FI_HMEM)
		err = check_devices(hints, ret_why);
	if (err)
		return err;
	if (HAS_BEYOND(hints->caps, NM_CAPS | FI_HMEM))
		return refuse_bits(ret_why, "capabilities", hints->caps, NM_CAPS | FI_HMEM);
	if (hints->addr_format != FI_FORMAT_UNSPEC) {
		nm_reason_set(ret_why, "address format %u requested, nearmetal has its own",
			      hints->addr_format);
		return -FI_ENODATA;
	}
	if (hints->dest_addr && hints->dest_addrlen != NM_ADDRESS_LEN)
		return refuse_size(ret_why, "destination address length", hints->dest_addrlen,
				   NM_ADDRESS_LEN);
	if (!err && hints->fabric_attr)
		err = check_fabric(hints->fabric_attr, ret_why);
	if (!err && hints->ep_attr)
		err = check_ep(hints->ep_attr, ret_why);
	if (!err && hints->domain_attr)
		err = check_domain(hints->domain_attr, ret_why);
	if (!err && hints->tx_attr)
		err = check_tx(hints->tx_attr, ret_why);
	if (!err && hints->rx_attr)
		err = check_rx(hints->rx_attr, ret_why);
	return err;
}

/*
 * Primary capabilities are given as asked, with the directions they imply. So is FI_DIRECTED_RECV:
 * without it the source of a receive has no meaning, and need not be an address at all. And so is
 * FI_RMA_EVENT, whose counters need a report of every remote access at the target; and FI_HMEM,
 * whose endpoints look at descriptors. The rest costs nothing and is always there. No hints:
 * everything but FI_HMEM.
 */
uint64_t nm_hints_caps(const struct fi_info *hints)
{
	const uint64_t operations = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
	const uint64_t message = FI_SEND | FI_RECV;
	const uint64_t remote = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	const uint64_t free_ones = FI_MULTI_RECV | FI_SOURCE | NM_DOMAIN_CAPS;
	uint64_t caps;

	if (!hints || !(hints->caps & operations))
		return NM_CAPS | (hints ? hints->caps & FI_HMEM : 0);
	caps = hints->caps &
	       (operations | message | remote | FI_DIRECTED_RECV | FI_RMA_EVENT | FI_HMEM);
	if ((caps & (FI_MSG | FI_TAGGED)) && !(caps & message))
		caps |= message;
	if ((caps & (FI_RMA | FI_ATOMIC)) && !(caps & remote))
		caps |= remote;
	return caps | free_ones;
}
