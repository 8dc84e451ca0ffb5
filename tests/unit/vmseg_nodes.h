/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints of the channel between machines, in this process or in another one. */
#ifndef NM_TEST_VMSEG_NODES_H
#define NM_TEST_VMSEG_NODES_H

#include "transport_fixture.h"
#include "vmseg_fixture.h"

extern const struct fixture machine_fixture;

/* As the kind's create(), on machine PART. */
int machine_create(uint32_t part, const struct nm_sink *sink, struct nm_address *address,
		   struct nm_transport **ret_transport, struct nm_reason *ret_reason);
struct node *machine_node(uint32_t part);
/* nm_vmseg_ask() as the guest unit of machine PART. */
int machine_ask(uint32_t part, enum nm_vmseg_state state);
/* One packet each way, which must arrive. */
void nodes_exchange(struct node *a, struct node *b, uint64_t seed);

/*
 * A process on another machine. It meets who it is told to, both ways, and sends packets until that
 * one is down; then it says with which error and why, and ends.
 */
struct far_end {
	pid_t pid;
	uint32_t machine;
	int to_child[2], to_parent[2];
};

/* Start FAR on MACHINE. Returns a node on machine 0 that has its packets. */
struct node *far_end_start(struct far_end *far, uint32_t machine);
/* Wait until FAR has ended. Returns the error that ended its connection. */
int far_end_join(struct far_end *far, struct nm_reason *ret_why);
void far_end_kill(struct far_end *far);
void far_end_close(struct far_end *far);
void far_end_tell(int fd, const void *bytes, size_t len);
void far_end_hear(int fd, void *bytes, size_t len);

#endif
