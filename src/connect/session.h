/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of sessions of an endpoint: how two processes of one host prove that they are near.
 *
 * Every endpoint listens on a socket in the rundir. A visitor connects to the owner's,
 * both show who they are and hand over their windows, each writes the other's challenge into its
 * own window and looks for its own challenge in the other's: they have met in the same bytes. Any
 * "no" on the way has words, which both sides get to see. The socket then stays open, so that a
 * death is a hangup within milliseconds whatever PID namespace it happens in.
 *
 * A session is one direction: the visitor will write, the owner will read. The way back is a
 * session of its own. Windows are mapped once per neighbour.
 *
 * Threads: a service thread (all signals blocked) answers visitors, tidies up and notices
 * hangups; it hands sessions over through a
 * list that the endpoint polls with one load. All functions here are for the one
 * thread that owns the endpoint. After fork() the child holds nothing of the parent's sessions.
 */
#ifndef NM_CONNECT_SESSION_H
#define NM_CONNECT_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "connect/address.h"
#include "connect/cma_proof.h"
#include "connect/locality.h"
#include "shm/window.h"
#include "vmseg/attach.h"

struct nm_sessions;

struct nm_sessions_config {
	const char *dir; /* NEARMETAL_RUNDIR; in a segment the device, for words */
	/* where my window lies, when that is a segment between machines; NULL: meet in `dir`. Both
	 * outlive the table of sessions. */
	struct nm_vmseg *segment;
	struct nm_vmseg_claim *claim; /* open */
	uint32_t peer_lease_ms;	      /* NEARMETAL_SEGMENT_LEASE_MS */
	struct nm_identity who;
	struct nm_window *window; /* mine; outlives the table of sessions */
	uint32_t features;	  /* NM_FEATURE_ */
	uint32_t connect_ms;
	uint32_t lease_ms;
	bool cma; /* NEARMETAL_CMA */
};

enum nm_role {
	NM_ROLE_WRITER, /* I visited; I send */
	NM_ROLE_READER, /* I was visited; I receive */
};

/* One session. Constant from the moment it is handed out, but for `err` and `why`. */
struct nm_session {
	enum nm_role role;
	struct nm_identity who;
	struct nm_peer_label label;
	enum nm_relation relation;
	enum nm_integrity integrity;
	bool far;	      /* known to be on another NUMA node, so no cache is shared */
	struct nm_reason how; /* they met, in words */
	/* in a segment: shows whether the window still is the one that was met */
	struct nm_vmseg_tie tie;
	const struct nm_foreign_window *window; /* mapped until nm_sessions_leave() */
	uint32_t own_lane;			/* writer: of my ring; reader: of my credits */
	uint32_t peer_lane;			/* writer: of its credits; reader: of its ring */
	uint64_t start;				/* first position of the stream */
	bool cma;			 /* proven, both ways: cma_target may be used until LOST */
	struct nm_cma_target cma_target; /* the peer's process */
	struct nm_reason cma_why;	 /* why it may not, in words */
	/* How it ended; valid from the event LOST on. 0: in order, all that was sent is there. */
	int err;
	struct nm_reason why;
	void *cookie; /* the caller's */
};

enum nm_session_event_kind {
	NM_SESSION_SOURCE, /* a reader's session begins */
	NM_SESSION_LOST,   /* an session ended: hangup or farewell. Once; leave it then */
};

/* Links of a list that belongs to session.c. */
struct nm_session_event {
	struct nm_session_event *next;
	struct nm_session *session;
	enum nm_session_event_kind kind;
};

/*
 * Open the rundir, remove what dead processes left there, start to listen and to serve.
 * The window is in state RUN then. Returns 0, or -errno with a reason; no trace after a failure.
 */
int nm_sessions_create(const struct nm_sessions_config *config, struct nm_sessions **ret_sessions,
		       struct nm_reason *ret_reason);
/*
 * Say farewell to everybody in order (state GONE), stop serving, free all sessions. In a forked
 * child: only forget. NULL is fine.
 */
void nm_sessions_destroy(struct nm_sessions *sessions);

/*
 * Meet the owner of WHO as a writer. Blocks up to connect_ms. Returns 0; -EHOSTUNREACH: it cannot be
 * met here; -ENOSPC, -ENOMEM, -EMFILE: no resources; always with a reason. No trace on failure.
 */
int nm_sessions_connect(struct nm_sessions *sessions, const struct nm_identity *who,
			struct nm_session **ret_session, struct nm_reason *ret_reason);
/*
 * End an session: with WHY the other side is told that something was wrong (-errno ERR and words),
 * without it only hangs up. Gives the lane and the mapping back; SESSION is gone then.
 */
void nm_sessions_leave(struct nm_sessions *sessions, struct nm_session *session, int err,
		       const struct nm_reason *why);
/* Remember where a writer's stream ended, before nm_sessions_leave(). */
void nm_sessions_stream_ended(struct nm_sessions *sessions, uint32_t own_lane, uint64_t position);

/*
 * Wait until every visitor's copies from and to my memory that are under way have ended. Whoever
 * has not within TIMEOUT_MS, because it is stopped, will find my memory closed when it goes on; so
 * will all others from then on (a warning says so).
 */
void nm_sessions_await_copies(struct nm_sessions *sessions, uint32_t timeout_ms);

/* The word to poll for events: non-NULL when there are any. Lives as long as SESSIONS. */
typedef _Atomic(struct nm_session_event *) nm_session_word;
const nm_session_word *nm_sessions_event_word(const struct nm_sessions *sessions);
/* Rung for each event (shm/doorbell.h). Lives as long as SESSIONS. */
const _Atomic uint32_t *nm_sessions_event_bell(const struct nm_sessions *sessions);
/* Take the oldest event. Returns its session, or NULL when there is none. */
struct nm_session *nm_sessions_next_event(struct nm_sessions *sessions,
					  enum nm_session_event_kind *ret_kind);

#endif
