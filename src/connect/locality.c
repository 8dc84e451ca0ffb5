/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/locality.h"

const char *nm_relation_name(enum nm_relation relation)
{
	switch (relation) {
	case NM_RELATION_SELF:
		return "self";
	case NM_RELATION_NODE:
		return "node";
	case NM_RELATION_HOST:
		return "host";
	case NM_RELATION_NETWORK:
		return "network";
	case NM_RELATION_UNKNOWN:
		break;
	}
	return "unknown";
}

const char *nm_integrity_name(enum nm_integrity integrity)
{
	switch (integrity) {
	case NM_INTEGRITY_ENFORCED:
		return "enforced";
	case NM_INTEGRITY_CONVENTION:
		return "by convention";
	case NM_INTEGRITY_NONE:
		break;
	}
	return "-";
}
