/* SPDX-License-Identifier: Apache-2.0 */
/* fi_getinfo: says what an endpoint offers, or why it is not what was asked for. */
#include "base/log.h"
#include "base/params.h"
#include "provider/provider.h"

/* Of libfabric's core, not in its public headers: only core providers are asked. Layered providers
 * look for something to build upon that way; on an RDM endpoint there is nothing to build. */
#define CORE_PROVIDERS_ONLY (1ULL << 59)

static bool asked_as_building_block(uint64_t flags, const struct fi_info *hints)
{
	return (flags & CORE_PROVIDERS_ONLY) &&
	       (!hints || !hints->ep_attr || hints->ep_attr->type != FI_EP_RDM);
}

/*
 * Does the program want this provider and no other? Then it may name the destination's host: it
 * gets an address without an owner, and brings the peer's address by its own means. Any other
 * program would take us for one that can resolve names.
 */
static bool asked_by_name(const struct fi_info *hints)
{
	return hints && hints->fabric_attr && hints->fabric_attr->prov_name;
}

int nm_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **info)
{
	struct nm_reason why;

	if (nm_host_asking || asked_as_building_block(flags, hints))
		return -FI_ENODATA;
	if (!nm_params())
		return -FI_EINVAL; /* the bad knob was named when it was read */
	if ((node || service) && !(flags & FI_SOURCE) && !asked_by_name(hints)) {
		nm_info("not offered: '%s' names a destination, but nearmetal's addresses come "
			"from fi_getname() of the peer",
			node ? node : service);
		return -FI_ENODATA;
	}
	if (nm_hints_check(hints, &why)) {
		nm_info("not offered: %s", why.text);
		return -FI_ENODATA;
	}
	*info = nm_info_create(version, hints, (node || service) && !(flags & FI_SOURCE));
	return *info ? 0 : -FI_ENOMEM;
}
