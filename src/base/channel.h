/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one list of channels. A new channel is one line here and one directory with its code:
 *
 *	X(ID, name, code, where)
 *
 * ID    NM_CHANNEL_ID; the numbers go into statistics files, so new lines are added at the end
 * name  what users read and write: in NEARMETAL_CHANNELS, in statistics, in logs
 * code  the directory src/transport/CODE/ and the variable nm_CODE_kind (transport/transport.h)
 * where CORE: part of every program; FABRIC: needs libfabric, so it is part of the provider only
 *
 * src/transport/meson.build reads the same lines.
 */
#ifndef NM_BASE_CHANNEL_H
#define NM_BASE_CHANNEL_H

#include <stdint.h>

#define NM_CHANNELS(X)                                                                             \
	X(SELF, self, self, CORE)                                                                  \
	X(SHM, shm, shm, CORE)                                                                     \
	X(VMSEG, segment, vmseg, CORE)                                                             \
	X(NET, net, net, FABRIC)

enum nm_channel {
	NM_CHANNEL_NONE,
#define NM_CHANNEL_ID(id, ...) NM_CHANNEL_##id,
	NM_CHANNELS(NM_CHANNEL_ID)
#undef NM_CHANNEL_ID
		NM_NR_CHANNELS,
};

/* "self,shm,segment,net": the default of NEARMETAL_CHANNELS. */
#define NM_CHANNEL_COMMA_NAME(id, name, ...) "," #name
#define NM_CHANNEL_LIST (&(NM_CHANNELS(NM_CHANNEL_COMMA_NAME))[1])

/* What went over one of them, for logs and statistics. */
struct nm_traffic {
	uint64_t messages, bytes;
};

const char *nm_channel_name(enum nm_channel channel); /* "none", "self", "shm", ... */

#endif
