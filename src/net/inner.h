/* SPDX-License-Identifier: Apache-2.0 */
/* The inner endpoint of the network channel: which provider and interface, opened and named. */
#ifndef NM_NET_INNER_H
#define NM_NET_INNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "base/reason.h"
#include "connect/address.h"

struct nm_net_inner {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq; /* FI_CQ_FORMAT_MSG */
	struct fid_ep *ep;
	/* Own address; if there is room, also its wire protocol and the own lifeline's port. */
	uint8_t name[NM_INNER_MAX];
	uint8_t name_len;
	uint8_t address_len; /* of the address alone */
	char text[96];	     /* "tcp on eth0 (192.0.2.1)", for reasons and logs */
	size_t cq_size;
	bool is_layered;  /* over ofi_rxm: large messages complete after small ones behind them */
	bool has_devices; /* it sends from memory of devices, and receives into it */
};

/* For reasons: the remedy if memory that an adapter reads and writes cannot be locked. */
#define NM_RAISE_MEMLOCK "; raise the limit of locked memory (ulimit -l)"

/*
 * Open the first inner endpoint that works among the providers in LIST ("auto" or names, best
 * first). CQ_SIZE: largest number of outstanding operations. WANTS_DEVICES: with ret_inner->has_devices
 * if the provider can. Returns 0 or -errno with a reason.
 */
int nm_net_inner_open(const char *list, size_t cq_size, bool wants_devices,
		      struct nm_net_inner *ret_inner, struct nm_reason *ret_reason);
/*
 * The device of the network goes: close all but what is known of the endpoint. Its memory is not
 * registered any more.
 */
void nm_net_inner_shut(struct nm_net_inner *inner);
/*
 * Open it again, at the same address. 0 or negative, with a reason: then it is as after shut().
 */
int nm_net_inner_reopen(struct nm_net_inner *inner, struct nm_reason *ret_reason);
/* Half-open endpoints are allowed. */
void nm_net_inner_close(struct nm_net_inner *inner);
/* True if this endpoint can send to a peer's inner address; else *ret_reason is set. */
bool nm_net_inner_fits(const struct nm_net_inner *inner, const struct nm_address *peer,
		       struct nm_reason *ret_reason);
/* Set the port of the own lifeline, in network byte order; 0: none. */
void nm_net_inner_set_lifeline(struct nm_net_inner *inner, uint16_t port);
/* The port of the lifeline of a peer with a usable address; 0: none. */
uint16_t nm_net_inner_lifeline(const struct nm_net_inner *inner, const struct nm_address *peer);

#endif
