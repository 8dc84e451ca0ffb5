/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of one process that meet in real windows and have a network beside them, which is a queue
 * per direction. A test may write into the window of any of them, as its owner could.
 */
#ifndef NM_TEST_NEAR_FIXTURE_H
#define NM_TEST_NEAR_FIXTURE_H

#include "engine/engine.h"
#include "shm/window.h"
#include "transport/select.h"

struct near_net;

struct near_node {
	struct nm_address address;
	struct nm_engine *engine;
	struct nm_cqueue *cq;
	struct nm_memory_table *memory;
	struct near_net *net;	 /* NULL: this node has no network */
	unsigned int nr_lost;	 /* calls of config.lost */
	struct nm_failed failed; /* in the last one */
};

/* For engines that are created from here on; NULL: what all programs use. */
extern const struct nm_select_params *near_select;

/* HAS_NET: with a network to the others that have one. The rundir is the case's own. */
struct near_node *near_create(bool has_net);
/* On machine PART of the segment of vmseg_fixture.h, without windows of the kernel. */
struct near_node *near_create_on(uint32_t part, bool has_net);
/* The guest unit of NODE describes PART of the segment in use, in a file of its own. */
void near_describe(struct near_node *node, uint32_t part);
/* It takes its file away. */
void near_hide_description(const struct near_node *node);
/* Only with a network. */
struct near_node *near_create_far(void);
void near_destroy(struct near_node *node);
/* Progress all of A, B (and C, unless NULL) once. */
unsigned int near_step(struct near_node *a, struct near_node *b, struct near_node *c);
/* The window of NODE as its owner maps it. */
struct nm_window_header *near_window(const struct near_node *node);
/* The NM_NR_REGIONS entries of its table of regions (shm/regions.h). */
struct nm_region_slot *near_regions(const struct near_node *node);
/* An access of A to LEN bytes at ADDRESS of B, with LOCAL; one at a time. */
struct nm_rma near_rma(struct near_node *a, struct near_node *b, void *local, size_t len,
		       uint64_t address, uint64_t key);
/* Call from within: let nothing through between the two nets of A and B until called again. */
void near_hold_net(struct near_node *node, bool held);
/* The network of NODE says from now on that it would find the death of a peer. */
void near_watch_net(struct near_node *node);

/* How the network of NODE takes packets: not, until it is met; or its end is reported. */
enum near_net_state { NEAR_NET_GOOD, NEAR_NET_UNMET, NEAR_NET_BROKEN };
void near_set_net(struct near_node *node, enum near_net_state state);

/* Packets of FROM on the network that NODE has not taken. */
unsigned int near_waiting(const struct near_node *node, const struct near_node *from);

/* Connect, so that no operation from FROM to TO has to wait for that. */
void near_link(struct near_node *from, struct near_node *to);
/* Links them if they are not linked. */
int near_send(struct near_node *from, struct near_node *to, const void *buf, size_t len,
	      uint64_t tag, uint64_t flags, void *context);
/* FROM NULL: from anyone. */
int near_recv(struct near_node *at, struct near_node *from, void *buf, size_t len, uint64_t tag,
	      void *context);
struct nm_peer *near_peer(struct near_node *at, struct near_node *other);
/* What AT knows of OTHER. */
struct nm_peer_facts near_facts(struct near_node *at, struct near_node *other);
/* The next completion at NODE while all progress; fails the case if none comes in seconds. */
struct nm_completion near_wait(struct near_node *node, struct near_node *other,
			       struct near_node *third);

#endif
