/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that came before their receive take memory here. Beyond a 64th of params unexpected_max
 * a peer is asked to send envelopes for those that are not tiny; at unexpected_max it is given up
 * (docs/design/protocol.md, "Messages that nobody receives").
 */
#ifndef NM_ENGINE_UNEXPECTED_H
#define NM_ENGINE_UNEXPECTED_H

#include "engine/internal.h"

struct nm_incoming;

/* What a peer that was asked to keep its bytes still sends with the envelope: as much as takes no
 * more room here than an envelope that says where the bytes lie. */
#define NM_UNEXPECTED_BLOCK 256
#define NM_UNEXPECTED_EAGER (NM_UNEXPECTED_BLOCK - (uint32_t)sizeof(struct nm_unexpected))

/*
 * Is there room for one more message of PEER, BYTES long as it is stored? False: the peer is gone.
 */
bool nm_unexpected_has_room(struct nm_engine *engine, struct nm_peer *peer, size_t bytes);
/* It is in its queue, or gone from here. Both may find the peer dead. */
void nm_unexpected_add(struct nm_engine *engine, struct nm_peer *peer, size_t bytes);
void nm_unexpected_remove(struct nm_engine *engine, struct nm_peer *peer, size_t bytes);
/* PEER knows that too many of its messages were held: it is given up. */
void nm_unexpected_give_up(struct nm_engine *engine, struct nm_peer *peer) NM_COLD;

/* What PEER asks of us. */
void nm_unexpected_on_pace(const struct nm_incoming *in);
/* A link to PEER begins that is best used with messages up to EAGER_MAX in their envelope. */
void nm_unexpected_on_link(struct nm_peer *peer, uint32_t eager_max);
/* What either has asked of the other may be lost: neither has asked anything. */
void nm_unexpected_reset(struct nm_peer *peer);

#endif
