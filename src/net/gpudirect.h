/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from and into the memory of devices by the inner endpoint: tagged messages beside the
 * packets (struct nm_gpudirect_ops). Buffers are registered with the inner domain when they are first
 * used: by a dma-buf if the inner provider and the driver can, else by their address.
 */
#ifndef NM_NET_GPUDIRECT_H
#define NM_NET_GPUDIRECT_H

#include "net/transport.h"

/* A buffer of the program. The refusal of one is remembered, too. */
struct nm_net_memory {
	unsigned int number; /* of the interface; 0: unused */
	uint64_t start, size, id;
	struct fid_mr *mr; /* NULL: refused */
	unsigned int users;
};
#define NM_NET_MEMORIES 64

#define NM_NET_FIRST_KEY 16 /* after those of the pools of buffers */

/* gpudirect_memory.c. The registered buffer that holds MEMORY; NULL: there is none. */
struct nm_net_memory *nm_net_memory_get(struct net *net, const struct iovec *memory);
/* The registration ends. */
void nm_net_memory_drop(struct nm_net_memory *memory);

struct nm_net_operation;

struct nm_net_gpudirect {
	struct nm_net_memory memories[NM_NET_MEMORIES];
	struct nm_net_operation *operations;
	/* Completions that were taken while one operation was waited for, in order. */
	struct nm_net_buffer *early, **early_end;
	uint64_t nr_tags, nr_keys;
	unsigned int next;    /* memory to make room in */
	struct nm_reason how; /* the last buffer was registered, or was not */
};

/* Set up net->gpudirect, or net->no_gpudirect. */
void nm_net_gpudirect_open(struct net *net);
/* The way of large messages between devices, and why. */
void nm_net_gpudirect_describe(const struct net *net, struct nm_reason *ret_words);
/* After the inner endpoint is closed. */
void nm_net_gpudirect_close(struct net *net);
/* The completion of BUFFER was read, and nm_net_gpudirect_ended() follows. */
void nm_net_gpudirect_over(struct nm_net_buffer *buffer);
/* The inner endpoint is done with BUFFER. ERR: 0 or negative. */
void nm_net_gpudirect_ended(struct net *net, struct nm_net_buffer *buffer, int err) NM_COLD;
/* The oldest completion that was taken early; NULL: none. */
struct nm_net_buffer *nm_net_gpudirect_early(struct net *net);
/* PEER is lost: what it may still send is not waited for. */
void nm_net_gpudirect_lost(struct net *net, const struct nm_net_peer *peer);

#endif
