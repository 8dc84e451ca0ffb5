/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/locality.h"

const char *nm_relation_name(enum nm_relation relation)
{
	static const char *const names[] = {
		[NM_RELATION_UNKNOWN] = "unknown", [NM_RELATION_SELF] = "self",
		[NM_RELATION_NODE] = "node",	   [NM_RELATION_HOST] = "host",
		[NM_RELATION_NETWORK] = "network",
	};

	return names[relation];
}

const char *nm_integrity_name(enum nm_integrity integrity)
{
	static const char *const names[] = {
		[NM_INTEGRITY_NONE] = "-",
		[NM_INTEGRITY_ENFORCED] = "enforced",
		[NM_INTEGRITY_CONVENTION] = "by convention",
	};

	return names[integrity];
}
