/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network channel: a transport (transport/transport.h) over an endpoint of another libfabric
 * provider, the inner one: tcp where there is nothing better, verbs on an RDMA adapter by the same
 * code. It lives in the provider layer because it includes libfabric's headers.
 */
#ifndef NM_PROVIDER_NET_H
#define NM_PROVIDER_NET_H

#include "base/reason.h"
#include "locality/address.h"
#include "transport/transport.h"

/*
 * nm_net_create - open an inner endpoint for the endpoint address->who.
 * Fills address->inner and inner_len: how peers reach it. Inner providers are tried in the order
 * of NEARMETAL_NET. Returns 0 with words about what was opened, or -errno with the reason why none
 * of them works.
 */
int nm_net_create(const struct nm_sink *sink, struct nm_address *address,
		  struct nm_transport **ret_transport, struct nm_reason *ret_reason);

#endif
