/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sessions of an endpoint: its connections with other endpoints that see the same memory.
 *
 * There is one session for each other endpoint, in one hash table by identity. A session has two
 * directions: this endpoint writes into `out` and reads from `in`. Each direction is the result of
 * a handshake of its own. The endpoint that will write calls the other one, the owner of the
 * address, on its socket in the rundir. Both show their identities and pass their windows, whose
 * files the addresses name. Each writes the other's challenge and identity into its own window and
 * looks for its own in the other's: this proves that both see the same bytes, and that the owners
 * of both windows agree. A handshake that fails leaves no session behind, and both sides learn the
 * reason. The socket then stays open, so the death of a process is a hangup within milliseconds, in
 * any PID namespace. But another process may own the socket: only the peer's window shows an end.
 *
 * Threads: a service thread (all signals blocked) answers callers, takes the answers to calls of
 * this endpoint, removes dead sockets, and notices hangups. It reports by events, which the
 * endpoint polls with one load. All functions here are for the one thread that owns the endpoint.
 * Only that thread changes the state of a session. After fork() the child holds nothing of the
 * parent's sessions.
 */
#ifndef NM_CONNECT_SESSION_H
#define NM_CONNECT_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/reason.h"
#include "base/state.h"
#include "connect/address.h"
#include "connect/cma_proof.h"
#include "connect/locality.h"
#include "shm/heap.h"
#include "shm/window.h"
#include "vmseg/attach.h"

struct nm_handshake;
struct nm_sessions;

struct nm_sessions_config {
	const char *dir; /* NEARMETAL_RUNDIR; in a segment the device, for messages */
	/* The segment between machines that holds the window; NULL: handshakes use `dir`. Both
	 * outlive the table of sessions. */
	struct nm_vmseg *segment;
	struct nm_vmseg_claim *claim; /* open */
	uint32_t peer_lease_ms;	      /* NEARMETAL_SEGMENT_LEASE_MS */
	uint32_t move_ms;	      /* NEARMETAL_MOVE_MS */
	struct nm_identity who;	      /* in a rundir the table sets the file in its place */
	struct nm_window *window;     /* the own window; outlives the table of sessions */
	uint32_t features;	      /* NM_FEATURE_ */
	uint32_t connect_ms;
	uint32_t lease_ms;
	bool cma; /* NEARMETAL_CMA */
	/* Size of a session: struct nm_session, then the transport's own part, all zero at first.
	 * 0: no such part. */
	size_t session_size;
};

enum nm_session_state {
	NM_SESSION_NEW,	     /* no direction was handed out yet */
	NM_SESSION_UP,	     /* a direction was handed out; each may end in order and begin again */
	NM_SESSION_CLOSING,  /* the peer hung up; packets that it sent are still delivered */
	NM_SESSION_CAST_OUT, /* the peer broke the rules; none of its packets are accepted */
	NM_SESSION_DOWN,     /* has no direction and never gets one again */
	NM_NR_SESSION_STATES
};
extern const uint32_t nm_session_transitions[NM_NR_SESSION_STATES];

/* One direction of a session. Constant after it is handed out. */
struct nm_direction {
	struct nm_handshake *handshake; /* owned by the table: created and carries it; NULL: none */
	uint32_t own_lane;		/* out: of the own ring; in: of the own credits */
	uint32_t peer_lane;		/* out: of the peer's credits; in: of its ring */
	uint64_t start;			/* first position of the stream */
	uint64_t end;			/* out: position after the last one, set before its end */
	/*
	 * Out: nothing follows its last packet, so an end of it by the peer, is_lost, is no loss.
	 * The endpoint sets the first, nm_sessions_next_event() the second.
	 */
	bool is_over, is_lost;
	bool cma; /* proven both ways: cma_target is valid until the session ends */
	struct nm_cma_target cma_target; /* the peer's process */
	struct nm_reason cma_why;	 /* the reason if it is not allowed */
	/* Out: the peer got the own heap; the peer's heap is mapped. */
	bool shows_heap, reads_heap;
};

enum nm_session_event {
	NM_SESSION_SOURCE = 1, /* `in` is handed out; refuse it if the session is not UP */
	NM_SESSION_LOST = 2,   /* the peer ended the session: it is CLOSING */
	/* `is_asked` changed, at least once, or is still true; the session is UP */
	NM_SESSION_ASKED = 4,
	NM_SESSION_BACK = 8, /* `out`, which a machine that was to leave prevented, may begin */
	/* LOST, but the peer may live, and use its side: the session is UP, with `err` and `why` */
	NM_SESSION_ABSENT = 16,
};

/* Constant from UP on, except the directions, the state and the end. */
struct nm_session {
	struct nm_identity who;
	struct nm_session *next; /* see nm_sessions_first() */
	/* For the table, under its lock. */
	struct nm_session *next_in_bucket;
	struct nm_list event_node;
	unsigned int events; /* mask of enum nm_session_event, not taken yet */
	/* Facts about the peer from its first handshake. */
	struct nm_peer_label label;
	enum nm_relation relation;
	enum nm_integrity integrity;
	bool far;	      /* known to be on another NUMA node, so no cache is shared */
	struct nm_reason how; /* how the shared memory was proven */
	/* In a segment: one of the two machines is asked to leave it. The service thread sets it. */
	_Atomic bool is_asked;
	struct nm_vmseg_tie tie; /* in a segment: shows if the window still is this peer's */
	struct nm_foreign_window window; /* mapped while there is a direction */
	struct nm_foreign_heap heap;	 /* likewise, if the peer has shown one */
	struct nm_direction in, out;
	unsigned int nr_pending; /* callers that are not proven to be this peer, for the table */
	/* In a segment, for the table: `out` is wanted once both machines stay (leave.h). */
	struct nm_list back_node;
	uint64_t back_ns;	   /* not before */
	uint32_t part;		   /* of the peer */
	uint8_t home[NM_HOME_LEN]; /* the part that it said over the network, if it has moved */
	bool has_home;
	/* The endpoint may know it, also in state NEW. Written under the lock, read without. */
	_Atomic bool is_kept;
	/* The reason of the end, valid from CLOSING on. 0: normal end, all packets are there. */
	int err;
	struct nm_reason why;
	enum nm_session_state state; /* last member, next to the transport's part */
};

/* Only this function changes the state. The service thread reads it. */
static inline void nm_session_set_state(struct nm_session *session, enum nm_session_state state)
{
	nm_state_check(nm_session_transitions, session->state, state);
	__atomic_store_n(&session->state, state, __ATOMIC_RELAXED);
}

/*
 * Open the rundir, remove the remains of dead processes, start to listen and to serve. The window
 * is then in state RUN. Returns 0, or -errno with a reason; no trace after a failure.
 */
int nm_sessions_create(const struct nm_sessions_config *config, struct nm_sessions **ret_sessions,
		       struct nm_reason *ret_reason);
/*
 * Close normally towards all peers (state GONE), stop the service thread, free all sessions. In a
 * forked child it only frees memory. NULL is allowed.
 */
void nm_sessions_destroy(struct nm_sessions *sessions);

/*
 * Make the direction `out` of the session with WHO. The first call begins a handshake and waits
 * for at most 200 ms: half as long after each peer that was slower, down to 1 ms, and 12.5 ms
 * longer after each that answered in time, but never more than half of connect_ms. Each later call
 * only looks, until the result is there: connect_ms after the first at the latest, or an eighth of
 * connect_ms after the first look at which the peer could be called. Handshakes with several peers
 * go on side by side, without the caller. Returns 0, and the session is UP; -EAGAIN: not yet;
 * -EHOSTUNREACH: WHO cannot be reached here; -EISCONN: the direction exists already; -ENOSPC,
 * -ENOMEM, -EMFILE: no resources; always with a reason. No trace on failure.
 */
int nm_sessions_connect(struct nm_sessions *sessions, const struct nm_identity *who,
			struct nm_session **ret_session, struct nm_reason *ret_reason);
/* The own identity, with the place of the window. */
const struct nm_identity *nm_sessions_who(const struct nm_sessions *sessions);
/* The own heap, which peers with `shows_heap` got. */
const struct nm_own_heap *nm_sessions_heap(const struct nm_sessions *sessions);
/* The session with WHO, in any state, or NULL. */
struct nm_session *nm_sessions_find(struct nm_sessions *sessions, const struct nm_identity *who);
/* The latest session that is not NEW. The older ones follow by `next`. */
struct nm_session *nm_sessions_first(const struct nm_sessions *sessions);
/*
 * Forbid sessions with WHO: if its session is NEW or missing, it becomes DOWN with the reason WHY.
 */
void nm_sessions_forbid(struct nm_sessions *sessions, const struct nm_identity *who,
			const struct nm_reason *why);
/* Begin the end of an UP session: set STATE, ERR and WHY. nm_sessions_leave() completes it. */
void nm_session_begin_end(struct nm_session *session, enum nm_session_state state, int err,
			  const struct nm_reason *why);
/*
 * Close both directions. With WHY, the peer gets -errno ERR and the text; without it, this side
 * only hangs up. Releases the lanes and the mapping. The session is then DOWN.
 */
void nm_sessions_leave(struct nm_sessions *sessions, struct nm_session *session, int err,
		       const struct nm_reason *why);
/*
 * Close one DIRECTION of an UP session in order: both sides know that nothing follows in it. The
 * session stays UP, and another handshake may make the direction again.
 */
void nm_sessions_end(struct nm_sessions *sessions, struct nm_session *session,
		     struct nm_direction *direction);
/*
 * Like nm_sessions_connect(), but without waiting and without a warning. After an error other than
 * -EAGAIN the event BACK follows if another call may have success.
 */
int nm_sessions_call(struct nm_sessions *sessions, const struct nm_identity *who,
		     struct nm_session **ret_session, struct nm_reason *ret_reason);
/*
 * In a segment: WHO has moved, and its part is the one that HOME names. Its identity keeps the name
 * of the first one. Also while paused.
 */
void nm_sessions_set_home(struct nm_sessions *sessions, const struct nm_identity *who,
			  const uint8_t home[NM_HOME_LEN]);
/* In a segment: true while this endpoint has left it: nm_sessions_pause() may succeed. One load. */
bool nm_sessions_is_away(const struct nm_sessions *sessions);
/*
 * Stop the service thread, and forget segment, claim and window, which the caller then destroys.
 * All sessions stay as they are; no direction begins until nm_sessions_resume(). False: this
 * endpoint has not left the segment, or has come back, and nothing changes.
 */
bool nm_sessions_pause(struct nm_sessions *sessions);
/*
 * Serve again, with the segment, the claim and the window of CONFIG, and its dir; nothing else of
 * it is read. 0, or -errno with a reason, and still paused.
 */
int nm_sessions_resume(struct nm_sessions *sessions, const struct nm_sessions_config *config,
		       struct nm_reason *ret_reason);
/* Report again why the endpoint is to leave SESSION: ASKED, or else LOST or ABSENT. */
void nm_sessions_remind(struct nm_sessions *sessions, struct nm_session *session);
/* Close only `in`, after the event SOURCE, and report the refusal to the peer. */
void nm_sessions_refuse_source(struct nm_sessions *sessions, struct nm_session *session);

/*
 * Wait until all copies by peers from and to the own memory have ended. If a peer does not end its
 * copy within TIMEOUT_MS (for example because it is stopped), the own memory is closed to all peers
 * from then on, with a warning.
 */
void nm_sessions_await_copies(struct nm_sessions *sessions, uint32_t timeout_ms);

/* The word to poll: not 0 if there are events. Lives as long as SESSIONS. */
const _Atomic uint32_t *nm_sessions_event_word(const struct nm_sessions *sessions);
/* Rung for each event (shm/doorbell.h). Lives as long as SESSIONS. */
const _Atomic uint32_t *nm_sessions_event_doorbell(const struct nm_sessions *sessions);
/*
 * Take the oldest event. Returns its session, or NULL if there is none. SOURCE comes before the
 * others; LOST does not come if the end began in another way, or only `out` ended, which is over.
 */
struct nm_session *nm_sessions_next_event(struct nm_sessions *sessions,
					  enum nm_session_event *ret_event);

#endif
