/* SPDX-License-Identifier: Apache-2.0 */
#include "base/channel.h"

const char *nm_channel_name(enum nm_channel channel)
{
	static const char *const names[NM_NR_CHANNELS] = {"none",
#define NAME(id, name, ...) #name,
							  NM_CHANNELS(NAME)
#undef NAME
	};

	return names[channel < NM_NR_CHANNELS ? channel : NM_CHANNEL_NONE];
}
