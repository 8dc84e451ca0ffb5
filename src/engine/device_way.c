/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/device_way.h"

#include <string.h>

#include "base/params.h"

static void network_way(const struct nm_link_facts *facts, struct nm_reason *ret_words)
{
	if (facts->device.text[0])
		*ret_words = facts->device;
	else if (!strcmp(nm_params()->gpudirect, "off"))
		nm_reason_set(ret_words, "staged: NEARMETAL_GPUDIRECT=off");
	else
		nm_reason_set(ret_words, "GPUDirect or staged: each connection decides by its "
					 "network's provider (NEARMETAL_GPUDIRECT=auto)");
}

static void memory_way(const struct nm_transport *transport, const struct nm_link_facts *facts,
		       enum nm_places out, enum nm_places in, struct nm_reason *ret_words)
{
	const char *no_handle =
		facts->copy_reason.text[0] ? facts->copy_reason.text : "another kernel";

	if (facts->remote_copy)
		nm_reason_set(ret_words, "by handle: %.150s", facts->copy_reason.text);
	else if (!transport || !transport->place)
		nm_reason_set(ret_words,
			      "staged: no memory of the channel is fit for devices "
			      "(NEARMETAL_CHECKSUM=on); by handle not: %.80s",
			      no_handle);
	else if (out == NM_PLACES_REFUSED || in == NM_PLACES_REFUSED)
		nm_reason_set(
			ret_words,
			"staged%s: the window is not pinned, see the log; by handle not: %.80s",
			out == NM_PLACES_REFUSED && in == NM_PLACES_REFUSED ? "" :
			out == NM_PLACES_REFUSED			    ? " to it" :
									      " from it",
			no_handle);
	else if (out == NM_PLACES_UNKNOWN && in == NM_PLACES_UNKNOWN)
		nm_reason_set(ret_words,
			      "window to window if the driver pins both windows, else staged; "
			      "by handle not: %.100s",
			      no_handle);
	else
		nm_reason_set(ret_words, "window to window; by handle not: %.140s", no_handle);
}

void nm_device_way(const struct nm_device_ops *ops, const struct nm_transport *transport,
		   const struct nm_link_facts *facts, enum nm_places out, enum nm_places in,
		   struct nm_reason *ret_words)
{
	if (facts->channel == NM_CHANNEL_NONE)
		nm_reason_set(ret_words, "no channel");
	else if (facts->relation == NM_RELATION_SELF)
		nm_reason_set(ret_words, "staged: it is the endpoint itself");
	else if (ops && !ops->share && !ops->pin)
		nm_reason_set(ret_words,
			      "staged: memory of %s is copied by calls of its driver only",
			      ops->name);
	else if (facts->relation == NM_RELATION_NETWORK)
		network_way(facts, ret_words);
	else
		memory_way(transport, facts, out, in, ret_words);
}
