/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Terms for the distance of two endpoints: relations, channels, and the reason for each verdict. A
 * session proves a relation with shared bytes (connect/session.h); it is never inferred.
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

/* What prevents a neighbour from writing into the own window. */
enum nm_integrity {
	NM_INTEGRITY_NONE,	 /* no shared bytes */
	NM_INTEGRITY_ENFORCED,	 /* the kernel (sealed memfd) or the hypervisor refuses it */
	NM_INTEGRITY_CONVENTION, /* the device cannot enforce it */
};

/* Name that the other side gives itself, for messages. No decision depends on it. */
struct nm_peer_label {
	char text[96]; /* "host name, pid 1234"; printable ASCII, NUL-terminated */
};

const char *nm_relation_name(enum nm_relation relation);    /* "self", "node", "host", "network" */
const char *nm_integrity_name(enum nm_integrity integrity); /* "-", "enforced", "by convention" */

#endif
