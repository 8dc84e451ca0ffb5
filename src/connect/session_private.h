/* SPDX-License-Identifier: Apache-2.0 */
/* What session.c (tables), listener.c (service thread), handshake_connect.c (the visitor's side) and wires share. */
#ifndef NM_CONNECT_SESSION_PRIVATE_H
#define NM_CONNECT_SESSION_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/fork.h"
#include "connect/message.h"
#include "connect/session.h"
#include "connect/wire.h"

/* A window mapped once, however many sessions use it. */
struct nm_neighbour {
	struct nm_neighbour *next;
	struct nm_identity who;
	struct nm_foreign_window window;
	unsigned int nr_users;
};

/*
 *  owner's side    AWAIT_HELLO -> AWAIT_MET -> AWAIT_GO -> UP -> LOST
 *  visitor's side  VISITING ------------------------------> UP -> LOST
 * Any state -> LEFT: waits for the service thread to free it.
 */
enum nm_handshake_state {
	NM_HANDSHAKE_AWAIT_HELLO,
	NM_HANDSHAKE_AWAIT_MET,
	NM_HANDSHAKE_AWAIT_GO,
	NM_HANDSHAKE_CONNECTING,
	NM_HANDSHAKE_UP,
	NM_HANDSHAKE_LOST,
	NM_HANDSHAKE_LEFT,
};

/* A connection and what became of it. */
struct nm_handshake {
	struct nm_watch watch;
	struct nm_session session;
	struct nm_handshake *next;
	enum nm_handshake_state state;
	int fd;
	bool has_lane;
	struct nm_neighbour *neighbour;
	uint64_t challenge;			  /* mine; the other side shows it */
	uint8_t cma_challenge[NM_CMA_SECRET_LEN]; /* likewise, in its private memory */
	struct nm_cma_facts cma_facts;
	struct nm_cma_offer cma_offer; /* the other side's */
	bool cma_reached;
	uint64_t awaited; /* the visitor's `reaching` while somebody waits for it to move on */
	uint64_t deadline_ns;
	struct nm_farewell bye; /* kind 0: none came */
	/* in a segment: what carries it, while it does, and how that ended */
	struct nm_exchange *exchange;
	struct nm_reason ended_why;
	bool ended_in_order;
	struct nm_session_event source_event, lost_event;
};

/* Lanes that are free, oldest first, so that one rests as long as possible between two uses. */
struct nm_lane_list {
	uint32_t *free; /* ring of nr_lanes */
	uint32_t head, nr_free;
};

struct nm_sessions {
	struct nm_fork_watch fork_watch;
	struct nm_sessions_config config;
	struct nm_wire *wire;
	pid_t creator;
	int epoll, waker;
	struct nm_watch waking;
	pthread_t thread;
	uint64_t pid_ns_device, pid_ns_inode;
	struct nm_peer_label label;
	struct nm_cma_place cma;

	pthread_mutex_t lock; /* everything below, and every session's state and fd */
	bool stopping;
	struct nm_handshake *handshakes;
	unsigned int nr_handshakes;
	struct nm_neighbour *neighbours;
	struct nm_lane_list writer_lanes, reader_lanes;
	uint64_t *stream_starts; /* per lane, for the next writer */

	nm_session_word events;		 /* newest first; pushed under the lock, taken without */
	_Atomic uint32_t event_doorbell; /* rung after an event was pushed */
	struct nm_session_event *taken;	 /* oldest first; the endpoint thread's own */
};

/* All of these: under sessions->lock. */

/* A session in STATE on socket FD (owned by it from now on; -1: not yet), in the list; NULL: out of
 * memory. */
struct nm_handshake *nm_handshake_create(struct nm_sessions *sessions, int fd,
					 enum nm_handshake_state state);
/* Close, give back lane and mapping; the service thread frees the memory. */
void nm_handshake_close(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* UP -> LOST: work out why from farewell and window state, and tell the endpoint. */
void nm_handshake_lost(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Fill in a greeting of ours. */
void nm_handshake_greet(struct nm_sessions *sessions, struct nm_handshake *handshake,
			enum nm_message_kind kind, struct nm_greeting *ret_greeting);
/*
 * Take GREETING's window: map it or find it mapped, check that it is the sender's own. Fills who,
 * label, relation, window and peer_lane of the session. 0 or -errno with a reason.
 */
int nm_handshake_take_window(struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting, int window_fd,
			     struct nm_reason *ret_reason);
/* Take a free lane for the session's role. 0 or -ENOSPC, -ENOMEM with a reason. */
int nm_handshake_take_lane(struct nm_sessions *sessions, struct nm_handshake *handshake,
			   struct nm_reason *ret_reason);
/* The lane of mine in which I answer challenges. */
struct nm_lane *nm_handshake_own_lane(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Is my challenge in the lane of its window that it named? */
bool nm_handshake_proven(const struct nm_handshake *handshake);
void nm_sessions_push_event(struct nm_sessions *sessions, struct nm_session_event *event);
/* Watch the session's socket for hangups and messages. 0 or -errno. */
int nm_handshake_watch(struct nm_sessions *sessions, struct nm_handshake *handshake);

/*
 * handshake_cma.c: the proof of direct copies, in the order of the handshake. Fails in words, in the
 * session; never ends the session. May be called without the lock by the session's visitor.
 */
/* Offer my memory in GREETING; the session has its lane. */
void nm_handshake_offer_cma(const struct nm_sessions *sessions, struct nm_handshake *handshake,
			    struct nm_greeting *greeting);
/* Take the offer of the other side, and show its challenge. */
void nm_handshake_take_offer(const struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting);
/* Try to reach the other side. */
void nm_handshake_reach(const struct nm_sessions *sessions, struct nm_handshake *handshake);
/* What the other side says of its attempt, checked against what shows in my memory. */
bool nm_handshake_hear(const struct nm_sessions *sessions, struct nm_handshake *handshake,
		       const struct nm_step *step);

/* listener.c */
void *nm_sessions_serve(void *sessions);
/* Let the service thread take its turn now. */
void nm_sessions_wake(const struct nm_sessions *sessions);
void nm_handshake_ready(struct nm_sessions *sessions, struct nm_watch *watch);

/* What a side without descriptors says. */
extern const char nm_no_descriptor[];

/* handshake_connect.c: what went wrong on the way is a matter of this place alone. -errno, or -EHOSTUNREACH. */
int nm_connect_failed(struct nm_reason *ret_reason, const char *what, int err);
int nm_connect_timed_out(const struct nm_sessions *sessions, struct nm_reason *ret_reason);

#endif
