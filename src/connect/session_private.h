/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by session.c (the table), handshake.c, listener.c (service thread), handshake_connect.c
 * (the caller's side) and the wires.
 */
#ifndef NM_CONNECT_SESSION_PRIVATE_H
#define NM_CONNECT_SESSION_PRIVATE_H

#include <linux/futex.h>
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
 *  caller's side   CALLING -> AWAIT_WELCOME -> AWAIT_ACK -> READY -> UP -> LOST
 *                               or, from these three, -> FAILED
 * Any state -> LEFT: the service thread will free it.
 */
enum nm_handshake_state {
	NM_HANDSHAKE_AWAIT_HELLO,
	NM_HANDSHAKE_AWAIT_MET,
	NM_HANDSHAKE_AWAIT_GO,
	NM_HANDSHAKE_CALLING, /* no connection yet: the next nm_sessions_connect() tries again */
	NM_HANDSHAKE_AWAIT_WELCOME,
	NM_HANDSHAKE_AWAIT_ACK,
	NM_HANDSHAKE_READY,  /* agreed; the endpoint has not taken the direction yet */
	NM_HANDSHAKE_FAILED, /* likewise for the reason */
	NM_HANDSHAKE_UP,
	NM_HANDSHAKE_LOST,
	NM_HANDSHAKE_LEFT,
	NM_NR_HANDSHAKE_STATES,
};
extern const uint32_t nm_handshake_transitions[NM_NR_HANDSHAKE_STATES];

enum nm_role {
	NM_ROLE_WRITER, /* this endpoint called: makes `out` */
	NM_ROLE_READER, /* the peer called: makes `in` */
};

/* The handshake that makes one direction of a session, and the socket that shows its end. */
struct nm_handshake {
	struct nm_watch watch;
	struct nm_handshake *next;
	enum nm_role role;
	enum nm_handshake_state state;
	int fd;
	/* The service thread takes the messages of a call, not nm_sessions_connect() while it waits. */
	bool is_watched;
	bool has_lane;
	/* A caller's is known from the first message on; NULL again in state LEFT. */
	struct nm_session *session;
	/* A caller's direction until its window showed the proof, then it is the session's `in`. So
	 * a process that repeats a peer's greeting keeps that peer from nothing. */
	struct nm_direction pending;
	struct nm_peer_label label; /* of the peer, in its greeting */
	bool is_proven;
	bool go_is_due;	       /* UP, as its window shows; its GO is still to come */
	unsigned int nr_looks; /* beats since its window shows something that its socket does not */
	uint64_t challenge;    /* the own one; the other side shows it */
	uint8_t cma_challenge[NM_CMA_SECRET_LEN]; /* likewise, in its private memory */
	struct nm_cma_facts cma_facts;
	struct nm_cma_offer cma_offer; /* the other side's offer */
	bool cma_reached;
	uint64_t awaited; /* the caller's `reaching` while this side waits for a change */
	uint64_t deadline_ns;
	uint64_t call_ns;   /* CALLING: when to try next */
	bool is_prolonged;  /* a late call got an eighth of connect_ms after its deadline */
	uint64_t turn_ns;   /* a call: when it last got its turn; 0: not yet */
	struct nm_step bye; /* kind 0: no BYE came */
	/* in a segment: the exchange that carries it, its caller's part, and its end */
	struct nm_exchange *exchange;
	uint32_t part;
	struct nm_reason ended_why;
	bool ended_in_order;
	/* Likewise: the peer stood still, or took this endpoint for one that does; it may live. */
	bool is_absent;
	/* LOST: how the peer ended it; FAILED: why there is no direction */
	int err;
	struct nm_reason why;
};

/* Free lanes, oldest first, so that a lane rests as long as possible between two uses. */
struct nm_lane_list {
	uint32_t *free; /* ring of nr_lanes */
	uint32_t head, nr_free;
};

struct nm_sessions {
	struct nm_fork_watch fork_watch;
	struct nm_sessions_config config;
	struct nm_wire *wire; /* NULL: paused */
	pid_t creator;
	int epoll, waker;
	struct nm_watch waking;
	pthread_t thread;
	struct robust_list_head life; /* of the service thread, with one entry */
	struct robust_list life_entry;
	_Atomic bool is_serving;
	uint64_t pid_ns_device, pid_ns_inode;
	struct nm_peer_label label;
	struct nm_cma_place cma;
	struct nm_own_heap heap;
	struct nm_session *first; /* for the endpoint's thread only; see nm_sessions_first() */
	uint64_t grace_ns;	  /* likewise: for how long the next new call waits */

	pthread_mutex_t lock; /* guards the members below, and state and fd of all handshakes */
	bool stopping;
	struct nm_handshake *handshakes;
	struct nm_session **buckets;  /* all sessions, by nm_identity_hash() */
	uint32_t nr_buckets;	      /* a power of two */
	uint32_t nr_sessions;	      /* in the table, ended ones included */
	struct nm_lane_list lanes[2]; /* by enum nm_role */
	uint64_t *stream_starts;      /* per lane, for the next writer */
	struct nm_list events;	      /* sessions with events, oldest first */
	struct nm_list awaited;	      /* sessions whose `out` is wanted later (leave.h) */

	_Atomic bool is_away;		 /* likewise; see nm_sessions_is_away() */
	_Atomic uint32_t has_events;	 /* written under the lock, read without */
	_Atomic uint32_t event_doorbell; /* rung after an event was added */
};

/* All functions below need sessions->lock. */

/* Only this function changes the state. */
static inline void nm_handshake_set_state(struct nm_handshake *handshake,
					  enum nm_handshake_state state)
{
	nm_state_check(nm_handshake_transitions, handshake->state, state);
	handshake->state = state;
}
/* True on the caller's side while the peer's next message is awaited. */
static inline bool nm_handshake_is_call(const struct nm_handshake *handshake)
{
	return handshake->state == NM_HANDSHAKE_AWAIT_WELCOME ||
	       handshake->state == NM_HANDSHAKE_AWAIT_ACK;
}

/* Add a handshake on socket FD to the list; it owns FD (-1: no socket yet). NULL: out of memory. */
struct nm_handshake *nm_handshake_create(struct nm_sessions *sessions, int fd, enum nm_role role);
/*
 * Make it the handshake of its direction of the session with WHO; create the session if needed. 0
 * or -errno with a reason: the session has ended, or has this direction.
 */
int nm_handshake_join(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      const struct nm_identity *who, struct nm_reason *ret_reason);
/*
 * Close it and release lane and mapping; the service thread frees the memory. A NEW session ends
 * with its last handshake.
 */
void nm_handshake_close(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Close only its socket. */
void nm_handshake_hang_up(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Show and say that this side ends it: -errno ERR and, unless WHY is NULL, the text. */
void nm_handshake_farewell(struct nm_sessions *sessions, struct nm_handshake *handshake, int err,
			   const char *why);
/* Close one direction of SESSION, if it exists; WHY as in nm_sessions_leave(). */
void nm_direction_close(struct nm_sessions *sessions, struct nm_direction *direction, int err,
			const struct nm_reason *why);
/* What the peer's own window says of a direction, whatever was said on its socket. */
enum nm_sight {
	NM_SIGHT_UNKNOWN, /* nothing: only the wire knows the end of this peer */
	NM_SIGHT_OPEN,	  /* the peer lives and has not ended it */
	NM_SIGHT_ENDED,	  /* the peer ended it */
	NM_SIGHT_CLOSED,  /* the peer closed its endpoint */
	NM_SIGHT_DIED,
};
/* RET_ERR: of ENDED, the peer's reason or 0. The window must be mapped. */
enum nm_sight nm_handshake_look(const struct nm_sessions *sessions, struct nm_handshake *handshake,
				int *ret_err);
/* NM_LANE_ of the peer's side, if it is for this handshake; else ENDED. */
unsigned int nm_handshake_step(const struct nm_sessions *sessions, struct nm_handshake *handshake);
/*
 * True on the owner's side if the caller's window shows that it may have sent already. Its GO may be
 * withheld, and it may have ended since: what it sent is delivered first.
 */
bool nm_handshake_has_gone(const struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Show WHAT in the own lane: SHOWN together with the peer's CHALLENGE; ENDED stays. */
void nm_handshake_show(struct nm_sessions *sessions, struct nm_handshake *handshake,
		       unsigned int what, uint64_t challenge);
/* Its socket says what its peer's window does not: close the socket, keep the direction. */
void nm_handshake_deafen(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* AWAIT_GO -> UP: report the source to the endpoint. */
void nm_handshake_up(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Find what windows show and sockets do not. Called at each beat of a wire with sockets. */
void nm_sessions_look(struct nm_sessions *sessions);
/* UP -> LOST: find the reason from farewell and window state, and report it to the endpoint. */
void nm_handshake_lost(struct nm_sessions *sessions, struct nm_handshake *handshake);
/* Fill in the own greeting. */
void nm_handshake_greet(struct nm_sessions *sessions, struct nm_handshake *handshake,
			enum nm_message_kind kind, struct nm_greeting *ret_greeting);
/*
 * Take GREETING's window: map it, or check that it is the window that is mapped already. Fills in
 * the session's facts about the peer, and peer_lane. 0 or -errno with a reason.
 */
int nm_handshake_take_window(struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting, int window_fd,
			     struct nm_reason *ret_reason);
/* Take a free lane for the role. 0 or -ENOSPC, -ENOMEM with a reason. */
int nm_handshake_take_lane(struct nm_sessions *sessions, struct nm_handshake *handshake,
			   struct nm_reason *ret_reason);
/* The direction that the handshake makes. It must have joined a session. */
static inline struct nm_direction *nm_handshake_direction(struct nm_handshake *handshake)
{
	if (handshake->role == NM_ROLE_WRITER)
		return &handshake->session->out;
	return handshake->is_proven ? &handshake->session->in : &handshake->pending;
}
/* The own lane in which this endpoint answers challenges. */
static inline struct nm_lane *nm_handshake_own_lane(struct nm_sessions *sessions,
						    struct nm_handshake *handshake)
{
	return &sessions->config.window->lanes[nm_handshake_direction(handshake)->own_lane];
}
static inline void nm_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}
/* True if the lane that the peer named shows the own challenge, for this endpoint. */
bool nm_handshake_proven(const struct nm_sessions *sessions, struct nm_handshake *handshake);

/* The session with WHO. NULL: there is none, or with MAKE: out of memory. */
struct nm_session *nm_session_get(struct nm_sessions *sessions, const struct nm_identity *who,
				  bool make);
/* A direction ended: unmap the window after the last one; free a session that is NEW. */
void nm_session_put(struct nm_sessions *sessions, struct nm_session *session);
void nm_session_push_event(struct nm_sessions *sessions, struct nm_session *session,
			   enum nm_session_event event);
/* Report BACK when neither machine, the peer's has PART, leaves, but not before FROM_NS. */
void nm_session_await(struct nm_sessions *sessions, struct nm_session *session, uint32_t part,
		      uint64_t from_ns);

/*
 * handshake_cma.c: the proof of direct copies, in the order of the handshake. A failure stores its
 * reason in the direction and never ends the handshake. The caller's side may call these without
 * the lock.
 */
/* Offer the own memory in GREETING. The direction must have its lane. */
void nm_handshake_offer_cma(const struct nm_sessions *sessions, struct nm_handshake *handshake,
			    struct nm_greeting *greeting);
/* Take the other side's offer, and show its challenge. */
void nm_handshake_take_offer(const struct nm_sessions *sessions, struct nm_handshake *handshake,
			     const struct nm_greeting *greeting);
/* Try to reach the other side. */
void nm_handshake_reach(const struct nm_sessions *sessions, struct nm_handshake *handshake);
/*
 * Check the other side's report of its attempt against the own memory. Returns true if it reached
 * this process.
 */
bool nm_handshake_hear(const struct nm_sessions *sessions, struct nm_handshake *handshake,
		       const struct nm_step *step);

/*
 * handshake_heap.c: MET and ACK, to a peer that has proven itself, also carry the heap of their
 * sender. Send such a step. 0 or -errno.
 */
int nm_handshake_send_step(struct nm_sessions *sessions, struct nm_handshake *handshake,
			   enum nm_message_kind kind, int value, const char *words);
/* Take the descriptor HEAP_FD (-1: none) that came with such a step, and which the caller owns. */
void nm_handshake_take_heap(struct nm_handshake *handshake, int heap_fd);

/* Set the first state of a NEW session. Only for the endpoint's thread. */
void nm_session_begin(struct nm_sessions *sessions, struct nm_session *session,
		      enum nm_session_state state);

/* session.c, for pause.c: lanes for the window of the configuration. 0 or -ENOMEM. */
int nm_sessions_init_lanes(struct nm_sessions *sessions);
void nm_sessions_free_lanes(struct nm_sessions *sessions);
/* Let newcomers find this endpoint, and start the service thread. 0 or -errno; no trace. */
int nm_sessions_open(struct nm_sessions *sessions, const struct nm_sessions_config *config,
		     struct nm_reason *ret_reason);

/* listener.c */
void *nm_sessions_serve(void *sessions);
/*
 * Lanes, descriptors or the room for windows are used up. The oldest caller that has not proven
 * itself goes, so unproven callers keep out no other. Returns 0; -EBUSY: all of them are young, so
 * the next one has to try again; -ENOSPC: there is none.
 */
int nm_sessions_drop_unproven(struct nm_sessions *sessions);
/* Let the service thread run one turn now. */
void nm_sessions_wake(const struct nm_sessions *sessions);
void nm_handshake_ready(struct nm_sessions *sessions, struct nm_watch *watch);

/* The reason that a side without free descriptors gives. */
extern const char nm_no_descriptor[];

/* handshake_connect.c: set a reason that concerns this channel alone. -errno, or -EHOSTUNREACH. */
int nm_connect_failed(struct nm_reason *ret_reason, const char *what, int err);
/* A message was received for a call. 0 or -errno with a reason. */
int nm_call_handle(struct nm_sessions *sessions, struct nm_handshake *call, const uint8_t *bytes,
		   size_t len, int passed_fd, struct nm_reason *ret_reason);
/* A call ends without a direction; nm_sessions_connect() will report ERR and WHY. */
void nm_call_fail(struct nm_sessions *sessions, struct nm_handshake *call, int err,
		  const struct nm_reason *why);

#endif
