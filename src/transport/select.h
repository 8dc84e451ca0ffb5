/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which channel and protocol carry a message: pure functions of facts, no state, no I/O, so every
 * decision can be explained and tested with invented distances.
 */
#ifndef NM_TRANSPORT_SELECT_H
#define NM_TRANSPORT_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "locality/locality.h"

enum nm_protocol {
	NM_PROTOCOL_EAGER,	/* payload goes with the envelope */
	NM_PROTOCOL_RENDEZVOUS, /* envelope first; payload when the receiver has matched it */
};

/* What is known of one peer when a channel is picked. Order of trial is the order of preference. */
struct nm_select_peer {
	bool is_self;
	bool allowed[NM_NR_CHANNELS]; /* NEARMETAL_CHANNELS */
	bool has_inner_address;	      /* the peer's address can be reached over the network */
};

/* Fill ret_order with channels to try, best first; returns how many (0: unreachable). The reason
 * says why a channel is missing or first. */
unsigned int nm_select_channels(const struct nm_select_peer *peer,
				enum nm_channel ret_order[NM_NR_CHANNELS],
				struct nm_reason *ret_reason);

struct nm_select_message {
	uint64_t size;
	uint32_t eager_max; /* of the transport that will carry it */
};

enum nm_protocol nm_select_protocol(const struct nm_select_message *message);

#endif
