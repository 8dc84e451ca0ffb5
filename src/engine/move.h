/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the packets to a peer change between memory and the network without a loss, while both live
 * (docs/design/migration.md). failover.c is for channels that broke.
 *
 *	asked by the transport      the link on the network is made; the memory is still used
 *	writer -> reader  MOVE      on the network: nothing enters memory after this position
 *	reader -> writer  MOVED     on the network: the reader took what was there, and left
 *	                            the writer replays what the reader did not take, and goes on
 *
 * and back, when no machine is asked any more (move_back.c):
 *
 *	allowed by the transport    a session in memory is made; the network is still used
 *	writer -> reader  MOVE      on the network, with NM_MOVE_TO_MEMORY: nothing follows there
 *	writer -> reader  MOVE      the same as first packet in memory: the reader goes on there
 *	                            once it has both
 *
 * The way of packets to a peer is a state of its own, with one table; the packets that wait stay in
 * the peer's private queue. A machine that is asked to leave its segment moves ways, and one that
 * stood still there for longer than its lease: the memory is sound, and its owner may live.
 */
#ifndef NM_ENGINE_MOVE_H
#define NM_ENGINE_MOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/compiler.h"
#include "transport/transport.h"

enum nm_way {
	NM_WAY_NETWORK,
	NM_WAY_JOINING, /* a session in memory stands, packets still use the network */
	NM_WAY_MEMORY,
	NM_WAY_LEAVING,	 /* nothing enters memory; MOVE is not sent yet */
	NM_WAY_COUNTING, /* MOVE is sent; nothing is sent until MOVED */
	NM_WAY_PAUSED,	 /* the network ends for a while */
	NM_WAY_ENDED,
	NM_NR_WAYS
};

enum nm_way_event {
	NM_WAY_MET,
	NM_WAY_SAID,	 /* MOVE was sent, or is not needed */
	NM_WAY_QUIESCED, /* one of the two machines is to leave the memory */
	NM_WAY_LOST,	 /* the reader's lease ended, or the own memory is another one */
	NM_WAY_COUNTED,	 /* the reader's count is known, from MOVED or from SWITCH */
	NM_WAY_PAUSE,
	NM_WAY_RESUMED,
	NM_WAY_DOWN,
	NM_NR_WAY_EVENTS
};

/* A machine in a move. The guest unit and the controller set it; `nearmetal-info --abi` shows it. */
enum nm_move_place {
	NM_PLACE_RUN,
	NM_PLACE_QUIESCE,
	NM_PLACE_FROZEN,
	NM_PLACE_PAUSING,
	NM_PLACE_AWAY,
	NM_PLACE_STOPPED,
	NM_NR_PLACES
};

enum nm_order {
	NM_ORDER_ASK,
	NM_ORDER_ACKNOWLEDGE,
	NM_ORDER_PAUSE,
	NM_ORDER_CUT,
	NM_ORDER_ARRIVE,
	NM_ORDER_GIVE_UP,
	NM_ORDER_STOP,
	NM_NR_ORDERS
};

struct nm_move_step {
	uint8_t state, event, next;
};

struct nm_move_table {
	const char *const *states, *const *events; /* their names */
	const struct nm_move_step *steps;
	unsigned int nr_steps;
};
extern const struct nm_move_table nm_ways, nm_places;

/* The state that follows STATE at EVENT; -1: the event cannot happen there. */
int nm_move_next(const struct nm_move_table *table, unsigned int state, unsigned int event);

struct nm_engine;
struct nm_identity;
struct nm_incoming;
struct nm_link;
struct nm_peer;
struct nm_transport;

/* Only this function changes the way of PEER. */
void nm_peer_on_way(struct nm_peer *peer, enum nm_way_event event);

/* False once enough lines about the moves of PEER are in the log. Counts the line. */
bool nm_move_may_log(const struct nm_peer *peer);
/* A first link in memory: the peer got nothing on the network that could come later. */
void nm_move_first_session(struct nm_peer *peer);
/*
 * The transport NET has reported the end of PEER with ERR. True: PEER is only in memory, which it
 * has not left.
 */
bool nm_move_net_ended(struct nm_peer *peer, const struct nm_transport *net, int err,
		       const char *why);
/* The sink's function. */
bool nm_sink_asked(struct nm_transport *from, struct nm_peer *peer, enum nm_asked what);
void nm_move_on_move(const struct nm_incoming *in);
void nm_move_on_moved(const struct nm_incoming *in);
/* move_home.c: the sink's function, and HOME. */
void nm_sink_homed(struct nm_transport *from, const uint8_t home[NM_HOME_LEN]);
void nm_move_on_home(const struct nm_incoming *in);
/* PEER may use the network: if this endpoint has moved, such a peer has to know it. */
void nm_move_introduce(struct nm_engine *engine, struct nm_peer *peer);
/* Send what is due, and go on. Returns the number of packets sent. For a peer with a move. */
unsigned int nm_move_push(struct nm_engine *engine, struct nm_peer *peer) NM_COLD;
/* True while nm_move_push() has something to do, or awaits the peer. */
bool nm_move_is_due(const struct nm_peer *peer);
/* True while a way changes, or a machine is asked to leave: there is something to poll for. */
bool nm_moves_are_due(const struct nm_engine *engine, uint64_t now_ns);
/*
 * The link to the peer that shows if it lives: on the network once memory is held, or shows that no
 * more.
 */
struct nm_link *nm_move_link(const struct nm_peer *peer);
/* The link to PEER on the transport NET if one was made beside the link in memory; else NULL. */
struct nm_link *nm_move_beside(const struct nm_peer *peer, const struct nm_transport *net);
/*
 * The peer is down (DOWN), or SWITCH counts instead (COUNTED): what was held goes. Idempotent.
 */
void nm_move_end(struct nm_peer *peer, enum nm_way_event event);
void nm_move_free(struct nm_peer *peer);

#endif
