/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large messages from device to device without the host: a network adapter reads the memory of one
 * device and writes that of the other (struct nm_gpudirect_ops).
 *
 *   RTS, DIRECT ->                        (my adapter reaches these bytes)
 *                     receiver expects them in its device
 *   <- CTS with a tag
 *   sender sends with that tag
 *   PLACED ->                             (my part is over: so many bytes)
 *   <- ACK                                (every byte is there)
 *   <- CTS, LAST                          (instead of ACK: send me all in packets)
 *
 * Either side may be unable to: the packets then come through stage.h.
 */
#ifndef NM_ENGINE_RNDV_GPUDIRECT_H
#define NM_ENGINE_RNDV_GPUDIRECT_H

#include "engine/internal.h"

/* Can the link of R's peer send all of R from where it lies? */
bool nm_gpudirect_offer(const struct nm_peer *peer, const struct nm_request *r);
/* Ask for the bytes of R, which were offered so. False: ask for packets. */
bool nm_gpudirect_ask(struct nm_engine *engine, struct nm_request *r) NM_COLD;
/* A CTS with a tag. False: the peer may not ask so. */
bool nm_gpudirect_send(const struct nm_incoming *in, struct nm_request *r) NM_COLD;
/* PLACED for R, in NM_REQUEST_DIRECT. False: that makes no sense. */
bool nm_gpudirect_placed(const struct nm_incoming *in, struct nm_request *r) NM_COLD;
/*
 * Nothing that was begun for requests with PEER, or for all if it is NULL, touches their memory
 * after this. The requests stay as they are.
 */
void nm_gpudirect_end(struct nm_engine *engine, struct nm_peer *peer);

#endif
