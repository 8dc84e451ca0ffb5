/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attributes of an endpoint, as an fi_info. Allocated by the host, whose structs may be longer
 * than those of the headers we were compiled with: fields that only newer headers know stay zero.
 */
#include <stdlib.h>
#include <string.h>

#include "provider/provider.h"

static void fill_tx(const struct fi_info *hints, uint64_t caps, struct fi_tx_attr *tx)
{
	tx->caps = caps & (NM_TX_CAPS | FI_HMEM);
	tx->op_flags = hints && hints->tx_attr ? hints->tx_attr->op_flags : 0;
	tx->msg_order = NM_MSG_ORDER;
	tx->inject_size = NM_INJECT_SIZE;
	tx->size = NM_QUEUE_SIZE;
	tx->iov_limit = NM_IOV_MAX;
	tx->rma_iov_limit = caps & (FI_RMA | FI_ATOMIC) ? NM_IOV_MAX : 0;
	if (hints && hints->tx_attr && hints->tx_attr->size > tx->size)
		tx->size = hints->tx_attr->size;
}

static void fill_rx(const struct fi_info *hints, uint64_t caps, struct fi_rx_attr *rx)
{
	rx->caps = caps & (NM_RX_CAPS | FI_HMEM);
	rx->op_flags = hints && hints->rx_attr ? hints->rx_attr->op_flags : 0;
	rx->msg_order = NM_MSG_ORDER;
	rx->size = NM_QUEUE_SIZE;
	rx->iov_limit = NM_IOV_MAX;
	if (hints && hints->rx_attr && hints->rx_attr->size > rx->size)
		rx->size = hints->rx_attr->size;
}

static void fill_ep(struct fi_ep_attr *ep)
{
	ep->type = FI_EP_RDM;
	ep->protocol = FI_PROTO_UNSPEC;
	ep->protocol_version = 1;
	ep->max_msg_size = NM_MAX_MSG_SIZE;
	ep->mem_tag_format = NM_MEM_TAG_FORMAT;
	ep->tx_ctx_cnt = 1;
	ep->rx_ctx_cnt = 1;
}

/* What is free to choose is answered as asked: threading, kind of vector, control progress. */
static void fill_domain(uint32_t version, const struct fi_domain_attr *hints,
			struct fi_domain_attr *domain)
{
	domain->threading = FI_THREAD_SAFE;
	/* In 2.x the two are one field under two names: they always agree here. */
	domain->control_progress = FI_PROGRESS_MANUAL;
	domain->data_progress = FI_PROGRESS_MANUAL;
	domain->resource_mgmt = FI_RM_ENABLED;
	domain->av_type = FI_AV_TABLE;
	domain->mr_mode = 0;
	if (version && FI_VERSION_LT(version, FI_VERSION(1, 5)))
		domain->mr_mode = FI_MR_SCALABLE;
	domain->mr_key_size = NM_MR_KEY_SIZE;
	domain->cq_data_size = NM_CQ_DATA_SIZE;
	domain->cq_cnt = NM_NR_OBJECTS;
	domain->ep_cnt = NM_NR_OBJECTS;
	domain->tx_ctx_cnt = NM_NR_OBJECTS;
	domain->rx_ctx_cnt = NM_NR_OBJECTS;
	domain->max_ep_tx_ctx = 1;
	domain->max_ep_rx_ctx = 1;
	domain->cntr_cnt = NM_NR_OBJECTS;
	domain->mr_iov_limit = NM_IOV_MAX;
	domain->mr_cnt = NM_NR_OBJECTS;
	domain->caps = NM_DOMAIN_CAPS;
	if (!hints)
		return;
	if (hints->threading != FI_THREAD_UNSPEC)
		domain->threading = hints->threading;
	if (hints->av_type != FI_AV_UNSPEC)
		domain->av_type = hints->av_type;
	if (hints->control_progress == FI_PROGRESS_AUTO)
		domain->control_progress = FI_PROGRESS_AUTO;
	if (hints->resource_mgmt != FI_RM_UNSPEC)
		domain->resource_mgmt = hints->resource_mgmt;
}

/*
 * A program that names a fabric or domain it has open goes on with that one, when it is ours and
 * holds what is asked for now. That puts its endpoints under one lock and one promise, so that each
 * a thread that waits at another endpoint can serve it (nm_domain_help()).
 */
static void set_opened(const struct fi_info *hints, struct fi_info *info)
{
	struct fid_fabric *fabric = hints->fabric_attr ? hints->fabric_attr->fabric : NULL;
	struct fid_domain *fid = hints->domain_attr ? hints->domain_attr->domain : NULL;
	const struct nm_domain *domain;

	if (fabric && nm_opened_has(&fabric->fid))
		info->fabric_attr->fabric = fabric;
	if (!fid || !nm_opened_has(&fid->fid))
		return;
	domain = nm_container_of(fid, const struct nm_domain, domain);
	if (domain->lock.needed || info->domain_attr->threading == FI_THREAD_DOMAIN)
		info->domain_attr->domain = fid;
}

/*
 * An address of nearmetal without an owner: it has no identity. As a source it says that the
 * identity is chosen when the endpoint is enabled; no address vector takes it.
 */
static int set_nobody(void **ret_addr, size_t *ret_len)
{
	struct nm_address *address = calloc(1, sizeof(*address));

	if (!address)
		return -FI_ENOMEM;
	address->version = NM_ADDRESS_VERSION;
	*ret_addr = address;
	*ret_len = sizeof(*address);
	return 0;
}

static int set_addresses(const struct fi_info *hints, bool names_destination, struct fi_info *info)
{
	int err = set_nobody(&info->src_addr, &info->src_addrlen);

	if (err)
		return err;
	if (!hints || !hints->dest_addr)
		return names_destination ? set_nobody(&info->dest_addr, &info->dest_addrlen) : 0;
	info->dest_addr = malloc(hints->dest_addrlen);
	if (!info->dest_addr)
		return -FI_ENOMEM;
	memcpy(info->dest_addr, hints->dest_addr, hints->dest_addrlen);
	info->dest_addrlen = hints->dest_addrlen;
	return 0;
}

struct fi_info *nm_info_create(uint32_t version, const struct fi_info *hints,
			       bool names_destination)
{
	struct fi_info *info = nm_host.dupinfo(NULL);
	uint64_t caps = nm_hints_caps(hints);

	if (!info)
		return NULL;
	info->caps = caps;
	info->addr_format = FI_FORMAT_UNSPEC;
	fill_tx(hints, caps, info->tx_attr);
	fill_rx(hints, caps, info->rx_attr);
	fill_ep(info->ep_attr);
	fill_domain(version, hints ? hints->domain_attr : NULL, info->domain_attr);
	/* Obliges the program to pass descriptors, by which we know what lies on a device. */
	if (caps & FI_HMEM)
		info->domain_attr->mr_mode |= FI_MR_HMEM;
	info->domain_attr->name = strdup(NM_PROVIDER_NAME);
	info->fabric_attr->name = strdup(NM_PROVIDER_NAME);
	/* prov_name stays NULL: libfabric's core fills it in, and would leak ours. */
	info->fabric_attr->prov_version = FI_VERSION(0, 1);
	info->fabric_attr->api_version = version;
	if (hints)
		set_opened(hints, info);
	if (!info->domain_attr->name || !info->fabric_attr->name ||
	    set_addresses(hints, names_destination, info)) {
		nm_host.freeinfo(info);
		return NULL;
	}
	return info;
}
