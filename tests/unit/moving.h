/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints on machines of a segment, with a network beside it, that talk without a pause: messages
 * of all sizes, puts, gets and atomics, each checked. A test moves them meanwhile.
 */
#ifndef NM_TEST_MOVING_H
#define NM_TEST_MOVING_H

#include "near_fixture.h"
#include "vmseg_nodes.h"

#define MOVING_MAX 3

/* Endpoint I is on machine I. In a program with libfabric's network that one is used. */
void moving_create(unsigned int nr);
void moving_destroy(void);
struct near_node *moving_node(unsigned int i);
/*
 * Talk until each has NR messages more from each other one, and all that was begun has ended.
 * MEANWHILE (or NULL) is called in each round. Nothing may be lost, doubled, changed or reordered.
 */
void moving_talk(uint32_t nr, void (*meanwhile)(unsigned int round));
/* The messages from FROM to TO that began on CHANNEL. */
uint64_t moving_sent(unsigned int from, unsigned int to, enum nm_channel channel);
/* One message, which arrives as it was sent. */
void moving_message(unsigned int from, unsigned int to, const char *text);
/* The channel on which FROM sends to TO. */
enum nm_channel moving_channel(unsigned int from, unsigned int to);
/* A and B send to each other on CHANNEL. */
bool moving_is_on(unsigned int a, unsigned int b, enum nm_channel channel);
/* All talk until then. */
void moving_talk_until_on(unsigned int a, unsigned int b, enum nm_channel channel);
/* The network of AT reports the end of FROM, because of a test. */
void moving_end_net(unsigned int at, unsigned int from, int err);
/* Deliver a packet to AT as if FROM had sent it on CHANNEL. */
void moving_forge(unsigned int at, unsigned int from, enum nm_channel channel,
		  const struct nm_packet *packet, const void *payload);

#endif
