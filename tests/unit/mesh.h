/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of one process, joined by a transport that can be made to misbehave: it refuses packets
 * at random, has little room, kills nodes, forges packets. Payloads are delivered in blocks of
 * exactly their size, so that a sanitizer sees every byte read past the end.
 */
#ifndef NM_TEST_MESH_H
#define NM_TEST_MESH_H

#include "engine/engine.h"

#define MESH_NODES_MAX 4

struct mesh;

struct mesh_options {
	unsigned int nr_nodes;	     /* default 2 */
	uint32_t max_payload;	     /* default 4096 */
	uint32_t eager_max;	     /* default 1024 */
	unsigned int capacity;	     /* packets a link holds; default 64 */
	unsigned int refuse_percent; /* of sends answered -EAGAIN at random */
	bool remote_copy; /* links copy from and to the peer's memory, in pieces of random size */
	uint64_t seed;
	const struct nm_select_params *select;
	/* nm_engine_config's, of node 0 only */
	void (*lost)(void *lost_arg, const struct nm_lost *lost);
	void *lost_arg;
};

struct mesh_node {
	struct nm_engine *engine;
	struct nm_cqueue *cq; /* all completions */
	struct nm_memory_table *memory;
	struct nm_counter send, recv, read, write, remote_read, remote_write;
	struct nm_address address;
};

/* Engines up, peers known to each other: mesh_peer(mesh, 0, 1) is node 1 as node 0 sees it. */
struct mesh *mesh_create(const struct mesh_options *options);
void mesh_destroy(struct mesh *mesh);
struct mesh_node *mesh_node(struct mesh *mesh, unsigned int i);
struct nm_peer *mesh_peer(struct mesh *mesh, unsigned int from, unsigned int to);

/* Progress every node once. Returns the work done. */
unsigned int mesh_step(struct mesh *mesh);
/* Progress until nothing has moved for a while. */
void mesh_settle(struct mesh *mesh);
/* The next completion of a node, after as much progress as it needs; fails the case if none comes. */
struct nm_completion mesh_wait(struct mesh *mesh, unsigned int node);
/* True when a node has no completion after everything has settled. */
bool mesh_quiet(struct mesh *mesh, unsigned int node);

/* Node I ends: err 0 in order (its engine is destroyed), else it just vanishes. */
void mesh_kill(struct mesh *mesh, unsigned int i, int err);
/* Stop or resume what node FROM sends to TO: packets are refused with -EAGAIN. */
void mesh_block(struct mesh *mesh, unsigned int from, unsigned int to, bool blocked);
/* Deliver a packet to node TO as if node FROM had sent it. */
void mesh_forge(struct mesh *mesh, unsigned int from, unsigned int to,
		const struct nm_packet *packet, const void *payload);
/* From now on remote copies that FROM makes from and to TO's memory move BYTES more and then fail. */
void mesh_spoil_copies(struct mesh *mesh, unsigned int from, unsigned int to, uint64_t bytes,
		       int err);
/* Bytes that FROM has copied from and to TO's memory. */
uint64_t mesh_copied(struct mesh *mesh, unsigned int from, unsigned int to);
/* How often the engine of FROM asked whether TO lives. */
unsigned int mesh_alive_checks(struct mesh *mesh, unsigned int from, unsigned int to);
/* From now on connects to node I are refused. */
void mesh_hide(struct mesh *mesh, unsigned int i);
/* Node I is in no address vector until mesh_insert(): then the others learn its address. */
void mesh_take_out(struct mesh *mesh, unsigned int i);
/* WAS_ANOTHER: their transports find that another process had sent in its name. */
void mesh_insert(struct mesh *mesh, unsigned int i, bool was_another);

#endif
