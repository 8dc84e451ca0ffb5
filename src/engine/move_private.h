/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by move.c (from memory to the network) and move_back.c (from the network to memory). */
#ifndef NM_ENGINE_MOVE_PRIVATE_H
#define NM_ENGINE_MOVE_PRIVATE_H

#include <errno.h>

#include "engine/internal.h"
#include "engine/protocol.h"

struct nm_move {
	struct nm_link *net;  /* beside the link in memory; NULL: none was needed yet */
	struct nm_link *left; /* the link in memory, held; NULL: none is */
	uint64_t sent;	      /* position after the last packet on `left` */
	uint64_t taken;	      /* way NETWORK: from here on `left` is to be sent again */
	uint64_t deadline_ns; /* of MOVED */
	uint64_t pending_ns;  /* is_pending: until then the session has to come */
	uint64_t position;    /* of the MOVE that came */
	uint64_t await_ns;    /* until then the peer has to leave its way, too; 0: it need not */
	/* Numbers of the last sessions: of the way to the peer, of its way, and of the answer. */
	uint32_t number, in_number, answer_number;
	unsigned int nr_lines; /* in the log, about its changes of channel */
	bool is_asked;	       /* way MEMORY: to be left once there is a link on the network */
	bool is_pending;       /* MOVE came before the session that it names */
	bool has_warned;       /* that its messages stay in memory: a machine may ask at any rate */
	bool is_answer_due;
	bool has_reported; /* session in_number has ended in order */
	/* The peer stood still in this memory, and a direction is left there; NULL: none is. */
	struct nm_transport *absent;
	uint64_t absent_ns;	/* until then it has to leave */
	uint64_t heartbeat;	/* of the peer, at the last look for a sign of life */
	uint64_t look_ns;	/* when to look next */
	unsigned int nr_silent; /* looks in a row without a sign */
	bool is_source_absent;	/* its direction was there then, and it has not left yet */
	bool is_sought;		/* MOVE that wants nothing was sent to it since */
	/* back (move_back.c) */
	struct nm_transport *memory; /* to come back to; NULL: none is */
	struct nm_link *met;	     /* way JOINING: in memory */
	uint64_t again_ns;	     /* when to ask for it next */
	struct nm_transport
		*suspended; /* its source waits for MOVE on the network; NULL: none does */
	bool is_marked;	    /* MOVE came in session in_number, too */
	/* homes (move_home.c) */
	uint32_t opening;	   /* number of the peer's last move; 0: it said none */
	uint8_t home[NM_HOME_LEN]; /* since then */
	uint32_t told;		   /* number of the own move that the peer knows */
	bool is_home_due;
	uint64_t home_ns; /* before this time no new home of the peer is looked for */
};

/* The move of PEER, made at first use. NULL: the peer is down for lack of memory. */
struct nm_move *nm_move_of(struct nm_engine *engine, struct nm_peer *peer);
/* The link to PEER on the network, made if needed: move->net. 0 or -errno with a reason. */
int nm_move_find_net(struct nm_engine *engine, struct nm_peer *peer, struct nm_reason *ret_why);
/* Send a packet without payload on the network. 0 or -errno with a reason. */
int nm_move_say(struct nm_engine *engine, struct nm_peer *peer, enum nm_op op, uint64_t position,
		uint64_t session, struct nm_reason *ret_why);
/* Not now, or the network itself reports the reason soon. */
static inline bool nm_move_is_transient(int err)
{
	return err == -EAGAIN || err == -EPIPE;
}

/* Nothing enters the memory of PEER, which is CONNECTED there, from now on. */
void nm_move_hold(struct nm_engine *engine, struct nm_peer *peer);
/* move_absent.c: PEER may have stood still in the memory of FROM. False: it can only be lost. */
bool nm_move_miss(struct nm_engine *engine, struct nm_peer *peer, struct nm_transport *from);
/* move->absent: go on to leave it. Returns the number of packets sent. */
unsigned int nm_move_leave_absent(struct nm_engine *engine, struct nm_peer *peer);
/* move_home.c: the own home is due. Returns the number of packets sent. */
unsigned int nm_move_say_home(struct nm_engine *engine, struct nm_peer *peer);
/* move_back.c: MOVE with NM_MOVE_TO_MEMORY came, on the network or in memory. */
void nm_move_on_return(const struct nm_incoming *in);
/* The transport FROM may reach PEER, which uses the network, in memory again. */
void nm_move_want_back(struct nm_engine *engine, struct nm_peer *peer, struct nm_transport *from);
/* The way back has its turn. Returns the number of packets sent. */
unsigned int nm_move_push_back(struct nm_engine *engine, struct nm_peer *peer);
/* The source that waits goes on. */
void nm_move_resume(struct nm_peer *peer);
/* Nothing is on its way back any more. */
void nm_move_end_back(struct nm_peer *peer);

#endif
