/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What session.c (the table), handshake.c, listener.c (service thread), handshake_connect.c (the
 * caller's side) and wires share.
 */
#ifndef NM_CONNECT_SESSION_PRIVATE_H
#define NM_CONNECT_SESSION_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/fork.h"
#include "connect/message.h"
#include "connect/session.h"
#include "connect/wire.h"

/*
 *  owner's side    AWAIT_HELLO -> AWAIT_MET -> AWAIT_GO -> UP -> LOST
 *  caller's side   CONNECTING ----------------------------> UP -> LOST
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

enum nm_role {
	NM_ROLE_WRITER, /* I called: it makes `out` */
	NM_ROLE_READER, /* I was called: it makes `in` */
};

/* How one direction of a session comes to be, and the socket that shows its end. */
struct nm_handshake {
	struct nm_watch watch;
	struct nm_handshake *next;
	enum nm_role role;
	enum nm_handshake_state state;
	int fd;
	bool has_lane;
	/* A caller's is known from the first message on; NULL again when it has LEFT. */
	struct nm_session *session;
	uint64_t challenge;			  /* mine; the other side shows it */
	uint8_t cma_challenge[NM_CMA_SECRET_LEN]; /* likewise, in its private memory */
	struct nm_cma_facts cma_facts;
	struct nm_cma_offer cma_offer; /* the other side's */
	bool cma_reached;
	uint64_t awaited; /* the caller's `reaching` while this side waits for it to change */
	uint64_t deadline_ns;
	struct nm_step bye; /* kind 0: none came */
	/* in a segment: what carries it, while it does, and how that ended */
	struct nm_exchange *exchange;
	struct nm_reason ended_why;
	bool ended_in_order;
	/* LOST: how the peer ended it */
	int err;
	struct nm_reason why;
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
	struct nm_session *first; /* the endpoint thread's own; see nm_sessions_first() */

	pthread_mutex_t lock; /* everything below, and every handshake's state and fd */
	bool stopping;
	struct nm_handshake *handshakes;
	unsigned int nr_handshakes;
	struct nm_session **buckets;  /* every session, by nm_identity_hash() */
	uint32_t nr_buckets;	      /* a power of two */
	struct nm_lane_list lanes[2]; /* by enum nm_role */
	uint64_t *stream_starts;      /* per lane, for the next writer */
	struct nm_list events;	      /* sessions that have any, oldest first */

	_Atomic uint32_t has_events;	 /* written under the lock, read without */
	_Atomic uint32_t event_doorbell; /* rung after an event was added */
};

/* All of these: under sessions->lock. */

/* A handshake on socket FD (owned by it from now on; -1: not yet), in the list; NULL: out of
 * memory. */
struct nm_handshake *nm_handshake_create(struct nm_sessions *sessions, int fd, enum nm_role role);
/*
 * Make it the handshake of its direction of the session with WHO, which is made if there is none.
 * 0 or -errno with a reason: the session has ended, or has this direction.
 */
int nm_handshake_join(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      const struct nm_identity *who, struct nm_reason *ret_reason);
/*
 * Close, give back lane and mapping; the service thread frees the memory. A session that is NEW
 * ends with its last handshake.
 */
void nm_handshake_close(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Close one direction of SESSION, if it is there; WHY as in nm_sessions_leave(). */
void nm_direction_close(struct nm_sessions *sessions, struct nm_direction *direction, int err,
			const struct nm_reason *why);
/* UP -> LOST: work out why from farewell and window state, and tell the endpoint. */
void nm_handshake_lost(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Fill in a greeting of ours. */
void nm_handshake_greet(struct nm_sessions *sessions, struct nm_handshake *handshake,
			enum nm_message_kind kind, struct nm_greeting *ret_greeting);
/*
 * Take GREETING's window: map it, or check that it is the one that is mapped already. Fills in what
 * the session says of the peer, and peer_lane. 0 or -errno with a reason.
 */
int nm_handshake_take_window(struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting, int window_fd,
			     struct nm_reason *ret_reason);
/* Take a free lane for the role. 0 or -ENOSPC, -ENOMEM with a reason. */
int nm_handshake_take_lane(struct nm_sessions *sessions, struct nm_handshake *handshake,
			   struct nm_reason *ret_reason);
/* The direction that the handshake makes; it has joined a session. */
static inline struct nm_direction *nm_handshake_direction(const struct nm_handshake *handshake)
{
	return handshake->role == NM_ROLE_WRITER ? &handshake->session->out :
						   &handshake->session->in;
}
/* The lane of mine in which I answer challenges. */
static inline struct nm_lane *nm_handshake_own_lane(struct nm_sessions *sessions,
						    const struct nm_handshake *handshake)
{
	return &sessions->config.window->lanes[nm_handshake_direction(handshake)->own_lane];
}
static inline void nm_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}
/* Is my challenge in the lane of its window that it named? */
bool nm_handshake_proven(const struct nm_handshake *handshake);

/* The session with WHO. NULL: none; MAKE: out of memory. */
struct nm_session *nm_session_get(struct nm_sessions *sessions, const struct nm_identity *who,
				  bool make);
/* A direction has gone: unmap the window after the last one; forget a session that is NEW. */
void nm_session_put(struct nm_sessions *sessions, struct nm_session *session);
void nm_session_push_event(struct nm_sessions *sessions, struct nm_session *session,
			   enum nm_session_event event);

/*
 * handshake_cma.c: the proof of direct copies, in the order of the handshake. A failure has a
 * reason, in the direction; it never ends the handshake. The caller's side may call these without
 * the lock.
 */
/* Offer my memory in GREETING; the direction has its lane. */
void nm_handshake_offer_cma(const struct nm_sessions *sessions, struct nm_handshake *handshake,
			    struct nm_greeting *greeting);
/* Take the offer of the other side, and show its challenge. */
void nm_handshake_take_offer(const struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting);
/* Try to reach the other side. */
void nm_handshake_reach(const struct nm_sessions *sessions, struct nm_handshake *handshake);
/*
 * What the other side says of its attempt, checked against what shows in my memory. Returns whether
 * it reached me.
 */
bool nm_handshake_hear(const struct nm_sessions *sessions, struct nm_handshake *handshake,
		       const struct nm_step *step);

/* The first state of a session that is NEW; of no other. By the endpoint's thread. */
void nm_session_begin(struct nm_sessions *sessions, struct nm_session *session,
		      enum nm_session_state state);

/* listener.c */
void *nm_sessions_serve(void *sessions);
/* Let the service thread take its turn now. */
void nm_sessions_wake(const struct nm_sessions *sessions);
void nm_handshake_ready(struct nm_sessions *sessions, struct nm_watch *watch);

/* What a side without descriptors says. */
extern const char nm_no_descriptor[];

/* handshake_connect.c: the reason concerns this channel alone. -errno, or -EHOSTUNREACH. */
int nm_connect_failed(struct nm_reason *ret_reason, const char *what, int err);
int nm_connect_timed_out(const struct nm_sessions *sessions, struct nm_reason *ret_reason);

#endif
