/* SPDX-License-Identifier: Apache-2.0 */
#include "net/inner.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/host.h"

/*
 * Of libfabric's core, the same from 1.17 to 2.5, in no public header: fi_getinfo() also asks those that
 * FI_PROVIDER hides. With FI_PROVIDER=nearmetal every other provider is hidden.
 */
#define GETINFO_HIDDEN (1ULL << 60)

/*
 * Under one word several providers speak: libfabric 1.18 and newer have reliable datagrams in
 * "tcp", 1.17 has them in "net". The layered forms come last, because they cannot be opened while
 * FI_PROVIDER hides what they are layered over.
 */
static const struct {
	const char *word;
	const char *names[4];
} known[] = {
	{"verbs", {"verbs;ofi_rxm"}},
	{"tcp", {"tcp", "net", "tcp;ofi_rxm"}},
};

#define AUTO_LIST "verbs,tcp"

static bool is_verbs(const char *name)
{
	return !strncmp(name, "verbs", strlen("verbs"));
}

/* How good an interface is for reaching other nodes. 0: never. */
static int rate_address(const struct fi_info *info)
{
	const struct sockaddr_in6 *in6 = info->src_addr;
	const struct sockaddr_in *in = info->src_addr;

	if (!info->src_addr)
		return 1;
	if (info->addr_format == FI_SOCKADDR_IN)
		return ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET ? 2 : 4;
	if (info->addr_format == FI_SOCKADDR_IN6) {
		if (IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr))
			return 0; /* needs a scope, which means nothing on another node */
		return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr) ? 1 : 3;
	}
	return 4;
}

static bool usable(const struct fi_info *info, const char *name)
{
	const char *iface = getenv("FI_TCP_IFACE");

	/* Asking for "tcp" also returns "tcp;ofi_rxm". */
	if (strcmp(info->fabric_attr->prov_name, name))
		return false;
	if (info->nic && info->nic->link_attr && info->nic->link_attr->state == FI_LINK_DOWN)
		return false;
	/* 1.17's "net" does not know the name that all newer ones go by. */
	if (iface && !strcmp(name, "net") && info->domain_attr->name &&
	    strcmp(info->domain_attr->name, iface))
		return false;
	return rate_address(info) > 0;
}

/* Messages with tags find the memory into which they are received. */
#define DEVICE_CAPS (FI_TAGGED | FI_DIRECTED_RECV | FI_HMEM)

/* OLD: an endpoint whose address is wanted again; or NULL. */
static struct fi_info *make_hints(const char *name, bool wants_devices,
				  const struct nm_net_inner *old)
{
	struct fi_info *hints = nm_host.dupinfo(NULL);

	if (!hints)
		return NULL;
	hints->caps = FI_MSG | (wants_devices ? DEVICE_CAPS : 0);
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
	/* One thread at a time: everything runs under the lock of our own domain. */
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
				      FI_MR_PROV_KEY | FI_MR_ENDPOINT |
				      (wants_devices ? FI_MR_HMEM : 0);
	hints->fabric_attr->prov_name = strdup(name);
	if (old) {
		hints->addr_format = old->info->addr_format;
		hints->src_addr = malloc(old->address_len);
		hints->src_addrlen = old->address_len;
	}
	if (!hints->fabric_attr->prov_name || (old && !hints->src_addr)) {
		nm_host.freeinfo(hints);
		return NULL;
	}
	if (old)
		memcpy(hints->src_addr, old->name, old->address_len);
	return hints;
}

/* The best of what provider NAME offers, alone; at the address of OLD unless that is NULL. */
static int ask(const char *name, bool wants_devices, const struct nm_net_inner *old,
	       struct fi_info **ret_info)
{
	struct fi_info *hints = make_hints(name, wants_devices, old), *all = NULL, *info,
		       *best = NULL;
	int err;

	if (!hints)
		return -FI_ENOMEM;
	nm_host_asking = true;
	err = nm_host.getinfo(nm_host.version, NULL, NULL, GETINFO_HIDDEN, hints, &all);
	nm_host_asking = false;
	nm_host.freeinfo(hints);
	if (err)
		return err;
	for (info = all; info; info = info->next)
		if (usable(info, name) && (!best || rate_address(info) > rate_address(best)))
			best = info;
	*ret_info = best ? nm_host.dupinfo(best) : NULL;
	nm_host.freeinfo(all);
	if (!best)
		return -FI_ENODATA;
	return *ret_info ? 0 : -FI_ENOMEM;
}

static void describe(struct nm_net_inner *inner)
{
	const struct fi_info *info = inner->info;
	const char *domain = info->domain_attr->name ? info->domain_attr->name : "?";
	char address[INET6_ADDRSTRLEN] = "";

	if (info->addr_format == FI_SOCKADDR_IN)
		inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)inner->name)->sin_addr, address,
			  sizeof(address));
	else if (info->addr_format == FI_SOCKADDR_IN6)
		inet_ntop(AF_INET6, &((struct sockaddr_in6 *)(void *)inner->name)->sin6_addr,
			  address, sizeof(address));
	snprintf(inner->text, sizeof(inner->text), "%.24s on %.16s%s%s%s",
		 info->fabric_attr->prov_name, domain, *address ? " (" : "", address,
		 *address ? ")" : "");
}

/* Which network a layered provider is over is no part of its protocol's number. */
#define OVER_VERBS (UINT32_C(1) << 30)

/* Behind the inner name, where there is room. */
struct tail {
	/* Endpoints of "net" and of "tcp;ofi_rxm" have the same kind of name, and no common language. */
	uint8_t protocol[4];
	uint8_t lifeline[2];
};

static bool has_tail(const struct nm_net_inner *inner)
{
	return inner->name_len > inner->address_len;
}

static int take_name(struct nm_net_inner *inner)
{
	uint32_t protocol = inner->info->ep_attr->protocol;
	size_t len = sizeof(inner->name);
	int err;

	err = fi_getname(&inner->ep->fid, inner->name, &len);
	if (err)
		return err;
	if (is_verbs(inner->info->fabric_attr->prov_name))
		protocol |= OVER_VERBS;
	inner->address_len = inner->name_len = (uint8_t)len;
	if (len + sizeof(struct tail) > sizeof(inner->name))
		return 0;
	memcpy(inner->name + len, &protocol, sizeof(protocol));
	inner->name_len = (uint8_t)(len + sizeof(struct tail));
	return 0;
}

/* Everything inside the fabric, up to an endpoint that works. */
static int open_objects(struct nm_net_inner *inner, size_t cq_size)
{
	struct fi_cq_attr cq_attr = {
		.format = FI_CQ_FORMAT_MSG,
		.wait_obj = FI_WAIT_NONE,
		.size = cq_size,
	};
	struct fi_av_attr av_attr = {.type = FI_AV_UNSPEC, .count = 64};
	int err;

	inner->cq_size = cq_size;
	err = fi_domain(inner->fabric, inner->info, &inner->domain, NULL);
	if (!err)
		err = fi_cq_open(inner->domain, &cq_attr, &inner->cq, NULL);
	if (!err)
		err = fi_av_open(inner->domain, &av_attr, &inner->av, NULL);
	if (!err)
		err = fi_endpoint(inner->domain, inner->info, &inner->ep, NULL);
	if (!err)
		err = fi_ep_bind(inner->ep, &inner->cq->fid, FI_TRANSMIT | FI_RECV);
	if (!err)
		err = fi_ep_bind(inner->ep, &inner->av->fid, 0);
	if (!err)
		err = fi_enable(inner->ep);
	return err ? err : take_name(inner);
}

void nm_net_inner_shut(struct nm_net_inner *inner)
{
	if (inner->ep)
		fi_close(&inner->ep->fid);
	if (inner->av)
		fi_close(&inner->av->fid);
	if (inner->cq)
		fi_close(&inner->cq->fid);
	if (inner->domain)
		fi_close(&inner->domain->fid);
	if (inner->fabric)
		fi_close(&inner->fabric->fid);
	inner->ep = NULL;
	inner->av = NULL;
	inner->cq = NULL;
	inner->domain = NULL;
	inner->fabric = NULL;
}

int nm_net_inner_reopen(struct nm_net_inner *inner, struct nm_reason *ret_reason)
{
	const char *name = inner->info->fabric_attr->prov_name;
	struct nm_net_inner new = {.has_devices = inner->has_devices};
	int err = ask(name, inner->has_devices, inner, &new.info);

	if (!err)
		err = nm_host.fabric(new.info->fabric_attr, &new.fabric, NULL);
	if (!err)
		err = open_objects(&new, inner->cq_size);
	if (!err && (new.address_len != inner->address_len || new.name_len != inner->name_len ||
		     memcmp(new.name, inner->name, new.address_len) != 0))
		err = -FI_EADDRNOTAVAIL;
	if (err) {
		nm_reason_set(ret_reason, "%s: %s", inner->text, nm_host.strerror(-err));
		nm_net_inner_close(&new);
		return err;
	}
	new.is_layered = inner->is_layered;
	memcpy(new.name, inner->name, sizeof(new.name));
	describe(&new);
	nm_net_inner_close(inner);
	*inner = new;
	return 0;
}

void nm_net_inner_close(struct nm_net_inner *inner)
{
	nm_net_inner_shut(inner);
	if (inner->info)
		nm_host.freeinfo(inner->info);
	memset(inner, 0, sizeof(*inner));
}

/* What a person can do about ERR of the provider NAME, which came before or after its fabric opened. */
static const char *remedy(const char *name, int err, bool has_fabric)
{
	if (!is_verbs(name) || !has_fabric)
		return "";
	if (err == -FI_ENOMEM)
		return NM_RAISE_MEMLOCK;
	/* The layer makes one completion queue for 256 messages with each of FI_UNIVERSE_SIZE peers. */
	return "; if the device's queues are small (max_cqe of ibv_devinfo -v), set "
	       "FI_UNIVERSE_SIZE to the number of processes, 1024 by default";
}

static int open_one(const char *name, size_t cq_size, bool wants_devices,
		    struct nm_net_inner *inner, struct nm_reason *ret_reason)
{
	bool has_fabric;
	int err;

	memset(inner, 0, sizeof(*inner));
	err = ask(name, wants_devices, NULL, &inner->info);
	if (err) {
		nm_reason_set(ret_reason, "%s: %s", name,
			      err == -FI_ENODATA ? "no usable device" : nm_host.strerror(-err));
		return err;
	}
	err = nm_host.fabric(inner->info->fabric_attr, &inner->fabric, NULL);
	has_fabric = !err;
	if (!err)
		err = open_objects(inner, cq_size);
	if (!err) {
		describe(inner);
		inner->is_layered = inner->info->ep_attr->protocol == FI_PROTO_RXM;
		inner->has_devices = wants_devices;
		return 0;
	}
	nm_net_inner_close(inner);
	/* A layer looks for its core provider once more, and that one is hidden. */
	if (err == -FI_EINVAL && !has_fabric && strchr(name, ';'))
		nm_reason_set(ret_reason, "%s: hidden by FI_PROVIDER; set FI_PROVIDER=%s,%.*s",
			      name, NM_PROVIDER_NAME, (int)strcspn(name, ";"), name);
	else
		nm_reason_set(ret_reason, "%s: %s%s", name, nm_host.strerror(-err),
			      remedy(name, err, has_fabric));
	return err;
}

static int open_name(const char *name, size_t cq_size, bool wants_devices,
		     struct nm_net_inner *inner, struct nm_reason *ret_reason)
{
	if (wants_devices && !open_one(name, cq_size, true, inner, ret_reason))
		return 0;
	if (wants_devices)
		nm_info("%s is used without devices: %s", name, ret_reason->text);
	return open_one(name, cq_size, false, inner, ret_reason);
}

static int open_word(const char *word, size_t cq_size, bool wants_devices,
		     struct nm_net_inner *inner, struct nm_reason *ret_reason)
{
	int err = -FI_ENODATA;
	size_t i, j;

	for (i = 0; i < NM_ARRAY_SIZE(known); i++) {
		if (strcmp(known[i].word, word))
			continue;
		for (j = 0; err && known[i].names[j]; j++)
			err = open_name(known[i].names[j], cq_size, wants_devices, inner,
					ret_reason);
		return err;
	}
	return open_name(word, cq_size, wants_devices, inner, ret_reason);
}

int nm_net_inner_open(const char *list, size_t cq_size, bool wants_devices,
		      struct nm_net_inner *ret_inner, struct nm_reason *ret_reason)
{
	struct nm_reason why = {""}, all = {""};
	struct nm_net_inner inner;
	char word[64];
	int err = -FI_ENODATA;
	size_t len;

	if (!strcmp(list, "auto"))
		list = AUTO_LIST;
	for (; *list; list += len + (list[len] == ',')) {
		len = strcspn(list, ",");
		snprintf(word, sizeof(word), "%.*s", (int)len, list);
		err = open_word(word, cq_size, wants_devices, &inner, &why);
		if (!err) {
			*ret_inner = inner;
			return 0;
		}
		nm_reason_set(ret_reason, "%s%s%s", all.text, *all.text ? "; " : "", why.text);
		all = *ret_reason;
	}
	return err;
}

bool nm_net_inner_fits(const struct nm_net_inner *inner, const struct nm_address *peer,
		       struct nm_reason *ret_reason)
{
	uint32_t protocol, theirs;
	uint16_t family, their_family;

	if (!peer->inner_len) {
		nm_reason_set(ret_reason, "the peer has no network channel");
		return false;
	}
	memcpy(&family, inner->name, sizeof(family));
	memcpy(&their_family, peer->inner, sizeof(their_family));
	if (peer->inner_len != inner->name_len || family != their_family) {
		nm_reason_set(ret_reason,
			      "the peer's network address is not of the kind %s; set "
			      "NEARMETAL_NET alike everywhere",
			      inner->text);
		return false;
	}
	if (!has_tail(inner))
		return true;
	memcpy(&protocol, inner->name + inner->address_len, sizeof(protocol));
	memcpy(&theirs, peer->inner + inner->address_len, sizeof(theirs));
	if (protocol != theirs) {
		nm_reason_set(ret_reason,
			      "the peer's network has protocol %u, %s has %u; set "
			      "FI_PROVIDER and NEARMETAL_NET alike everywhere",
			      theirs, inner->text, protocol);
		return false;
	}
	return true;
}

void nm_net_inner_set_lifeline(struct nm_net_inner *inner, uint16_t port)
{
	if (has_tail(inner))
		memcpy(inner->name + inner->address_len + offsetof(struct tail, lifeline), &port,
		       sizeof(port));
}

uint16_t nm_net_inner_lifeline(const struct nm_net_inner *inner, const struct nm_address *peer)
{
	uint16_t port = 0;

	if (has_tail(inner) && peer->inner_len == inner->name_len)
		memcpy(&port, peer->inner + inner->address_len + offsetof(struct tail, lifeline),
		       sizeof(port));
	return port;
}
