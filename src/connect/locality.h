/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words for the distance of two endpoints: relations, channels, and the reason that travels with
 * every verdict. A relation is proven by session in the same bytes (connect/session.h), never
 * inferred.
 */
#ifndef NM_CONNECT_LOCALITY_H
#define NM_CONNECT_LOCALITY_H

#include "base/channel.h"
#include "base/compiler.h"
#include "base/reason.h"

enum nm_relation {
	NM_RELATION_UNKNOWN,
	NM_RELATION_SELF,    /* the endpoint itself */
	NM_RELATION_NODE,    /* proven by shared bytes, in the same PID namespace */
	NM_RELATION_HOST,    /* proven by shared bytes, in another node (container or VM) */
	NM_RELATION_NETWORK, /* not proven */
};

/* Who keeps a neighbour from writing into my window. */
enum nm_integrity {
	NM_INTEGRITY_NONE,	 /* no shared bytes */
	NM_INTEGRITY_ENFORCED,	 /* the kernel (sealed memfd) or the hypervisor refuses it */
	NM_INTEGRITY_CONVENTION, /* the device cannot enforce it */
};

/* A diagnosis of the other side, as it stated it; never used to decide anything. */
struct nm_peer_label {
	char text[96]; /* "host name, pid 1234"; printable ASCII, NUL-terminated */
};

const char *nm_relation_name(enum nm_relation relation);    /* "self", "node", "host", "network" */
const char *nm_integrity_name(enum nm_integrity integrity); /* "-", "enforced", "by convention" */

#endif
