/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for messages that came before their receive. Above a 64th of unexpected_max, the peer is
 * asked to send only envelopes for all but tiny messages. At unexpected_max the peer is given up
 * (docs/design/protocol.md, "Messages that nobody receives"). This limit is the knob, but an eighth
 * of the memory at most. All peers that the address vector does not have share a quarter of it:
 * above a sixteenth of that they are asked to send envelopes only, and when they exceed it, the one
 * with most is given up, and its messages are dropped.
 */
#ifndef NM_ENGINE_UNEXPECTED_H
#define NM_ENGINE_UNEXPECTED_H

#include "engine/internal.h"

struct nm_incoming;

/* Largest message that a peer sends with its envelope after it was asked to keep its bytes: it
 * takes no more room here than an envelope with the place of the bytes. */
#define NM_UNEXPECTED_BLOCK 256
#define NM_UNEXPECTED_EAGER (NM_UNEXPECTED_BLOCK - (uint32_t)sizeof(struct nm_unexpected))

/* Check the room for a message of PEER that takes BYTES. False: the peer is gone. */
bool nm_unexpected_has_room(struct nm_engine *engine, struct nm_peer *peer, size_t bytes);
/* Set the limit of an engine. */
void nm_unexpected_init(struct nm_engine *engine);
/* M was queued, or is about to be freed. Both may find the peer dead; the first may free M. */
void nm_unexpected_add(struct nm_engine *engine, struct nm_unexpected *m);
void nm_unexpected_remove(struct nm_engine *engine, const struct nm_unexpected *m);
/* Too many messages of PEER are held here, and PEER was informed: give it up. */
void nm_unexpected_give_up(struct nm_engine *engine, struct nm_peer *peer) NM_COLD;

/* Handle a request of PEER. */
void nm_unexpected_on_pace(const struct nm_incoming *in);
/* A link to PEER begins; messages up to EAGER_MAX are best sent in their envelope. */
void nm_unexpected_on_link(struct nm_peer *peer, uint32_t eager_max);
/* Requests of either side may be lost: reset both. */
void nm_unexpected_reset(struct nm_peer *peer);

#endif
