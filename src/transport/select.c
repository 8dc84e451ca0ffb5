/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/select.h"

unsigned int nm_select_channels(const struct nm_select_peer *peer,
				enum nm_channel ret_order[NM_NR_CHANNELS],
				struct nm_reason *ret_reason)
{
	unsigned int nr = 0;

	if (peer->is_self && peer->allowed[NM_CHANNEL_SELF])
		ret_order[nr++] = NM_CHANNEL_SELF;
	/* An endpoint has one window and does not visit itself. */
	if (!peer->is_self && peer->allowed[NM_CHANNEL_SHM])
		ret_order[nr++] = NM_CHANNEL_SHM;
	if (peer->allowed[NM_CHANNEL_NET] && peer->has_inner_address)
		ret_order[nr++] = NM_CHANNEL_NET;

	if (nr && ret_order[0] == NM_CHANNEL_SELF)
		nm_reason_set(ret_reason, "the endpoint itself");
	else if (nr && ret_order[0] == NM_CHANNEL_SHM)
		nm_reason_set(ret_reason, "shared memory is tried first%s",
			      nr > 1 ? ", then the network" : "; the network cannot be used");
	else if (nr)
		nm_reason_set(ret_reason, "%s is not in NEARMETAL_CHANNELS: network only",
			      peer->is_self ? "self" : "shm");
	else if (!peer->allowed[NM_CHANNEL_NET])
		nm_reason_set(ret_reason, "NEARMETAL_CHANNELS allows neither %s nor net",
			      peer->is_self ? "self" : "shm");
	else
		nm_reason_set(
			ret_reason,
			"NEARMETAL_CHANNELS does not allow %s, and the peer's address has no network part",
			peer->is_self ? "self" : "shm");
	return nr;
}

enum nm_protocol nm_select_protocol(const struct nm_select_message *message)
{
	return message->size <= message->eager_max ? NM_PROTOCOL_EAGER : NM_PROTOCOL_RENDEZVOUS;
}
