/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a large message between memory of devices, in words for people. */
#ifndef NM_ENGINE_DEVICE_WAY_H
#define NM_ENGINE_DEVICE_WAY_H

#include "base/device.h"
#include "transport/transport.h"

/* Memory of a channel in which payloads lie: whether a device copies straight from or to it. */
enum nm_places { NM_PLACES_UNKNOWN, NM_PLACES_PINNED, NM_PLACES_REFUSED };

/*
 * The way on the link with these FACTS, and why there is no better one. OPS: the interface; NULL: not
 * known yet. TRANSPORT: of the link; NULL: there is no link. OUT, IN: the places from this endpoint,
 * and to it.
 */
void nm_device_way(const struct nm_device_ops *ops, const struct nm_transport *transport,
		   const struct nm_link_facts *facts, enum nm_places out, enum nm_places in,
		   struct nm_reason *ret_words) NM_COLD;

#endif
