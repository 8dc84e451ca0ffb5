/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges: connections over the mailboxes of a segment. Each is the far end of a session's
 * socket. This header is shared by wire_vmseg.c (the wire and liveness) and exchange.c (one
 * exchange).
 *
 * All functions need sessions->lock. An exchange uses a bounded amount of memory and mailbox space
 * and always ends, even with a hostile neighbour.
 */
#ifndef NM_CONNECT_EXCHANGE_H
#define NM_CONNECT_EXCHANGE_H

#include "connect/letter.h"
#include "connect/session_private.h"

/* A handshake has three messages each way, and a goodbye. */
#define NM_EXCHANGE_QUEUE 6
/* Largest number of resets in the mailbox at once. */
#define NM_MAX_RESETS 4

struct nm_exchange_message {
	uint16_t len, flags;
	uint8_t bytes[NM_LETTER_MESSAGE_MAX];
};

struct nm_exchange {
	struct nm_watch watch; /* watches fd: the session sends or hangs up */
	struct nm_exchange *next;
	struct nm_vmseg_peer peer; /* its slot at the start of the exchange */
	uint64_t number;
	bool is_caller;			/* this endpoint called */
	bool is_over;			/* freed at the next turn */
	int fd;				/* -1: one of the two sides has hung up */
	struct nm_handshake *handshake; /* NULL: it no longer uses this exchange */
	/* outgoing: queue[0] has sequence `said` and stays until the peer took it */
	struct nm_exchange_message queue[NM_EXCHANGE_QUEUE];
	unsigned int nr_queued;
	uint32_t said;
	uint64_t say_by_ns;
	uint32_t heard; /* every message up to this one was received */
	/* the one cell in the own mailbox that this exchange uses */
	bool has_cell;
	bool is_said; /* the cell holds queue[0] */
	uint32_t cell;
	uint64_t posted_ns;
	uint64_t answer_ns;  /* when an acknowledgement is due; 0: none is due */
	uint64_t probe_ns;   /* when to ask the peer if it still knows this exchange */
	uint64_t asked_ns;   /* when the unanswered question was sent; 0: no question is open */
	uint64_t closing_ns; /* when the peer's hangup arrived; 0: it has not hung up */
	uint64_t tell_ns; /* when its session may hear again whether a machine is asked to leave */
	struct nm_vmseg_lease lease;
};

struct nm_vmseg_wire {
	struct nm_wire base;
	struct nm_vmseg *segment;
	struct nm_vmseg_claim *claim;
	struct nm_vmseg_inbox *inbox;
	char place[96];
	uint64_t lease_ns;
	uint64_t move_ns; /* a slot in state FROZEN may show no heartbeat for so long */
	uint64_t connect_ns;
	struct nm_exchange *exchanges; /* oldest first */
	unsigned int nr_exchanges;
	struct {
		bool used;
		uint32_t cell;
		uint64_t posted_ns;
	} resets[NM_MAX_RESETS];
	uint32_t *nr_cells; /* used cells of the own mailbox, for each part */
	uint32_t *nr_met;   /* callers that got a lane, of each part */
	uint32_t cell_quota;
	uint64_t beat_ns, look_ns, looked_ns; /* next heartbeat; next and last check of peers */
	uint64_t active_ns;		      /* last time that a letter came or went */
};

static inline struct nm_vmseg_wire *nm_vmseg_wire_of(const struct nm_sessions *sessions)
{
	return nm_container_of(sessions->wire, struct nm_vmseg_wire, base);
}

/*
 * Find the slot of SESSION's peer: it shows the peer's name, in the peer's part. 0; -EHOSTUNREACH:
 * one of the two machines is asked to leave, or has left, and RET_PEER is set, too; -ENOENT,
 * -EBADMSG; always with a reason.
 */
int nm_wire_vmseg_find(const struct nm_vmseg_wire *wire, const struct nm_session *session,
		       struct nm_vmseg_peer *ret_peer, struct nm_reason *ret_reason);
/*
 * Create an exchange with PEER over FD, which it then owns. NULL: out of memory, or FD cannot be
 * watched.
 */
struct nm_exchange *nm_exchange_create(struct nm_sessions *sessions,
				       const struct nm_vmseg_peer *peer, int fd, uint64_t number,
				       bool is_caller);
void nm_exchange_destroy(struct nm_sessions *sessions, struct nm_exchange *exchange);
/* Handle a checked letter of this exchange. */
void nm_exchange_hear(struct nm_sessions *sessions, struct nm_exchange *exchange,
		      const struct nm_letter_head *head, const uint8_t *message, uint64_t now_ns);
/* Post what is due. Returns true if the exchange needs short polling intervals. */
bool nm_exchange_turn(struct nm_sessions *sessions, struct nm_exchange *exchange, uint64_t now_ns);
/*
 * End the exchange and report WHY to the session. WITH_HANGUP: also send a hangup, because the
 * other side may still listen, now or later.
 */
void nm_exchange_end(struct nm_sessions *sessions, struct nm_exchange *exchange, bool with_hangup,
		     const char *why);
/*
 * Likewise: the other side stood still, and may use its window later. WITH_HANGUP: the end of all
 * directions to and from it; without, it says so of this side.
 */
void nm_exchange_miss(struct nm_sessions *sessions, struct nm_exchange *exchange, bool with_hangup,
		      const char *why);
/* Reply to FROM that its letter belongs to no exchange. */
void nm_exchange_reset(struct nm_vmseg_wire *wire, const struct nm_vmseg_address *from,
		       const struct nm_letter_head *head, uint64_t now_ns);
/* Remove resets that were in the mailbox long enough. */
void nm_exchange_expire_resets(struct nm_vmseg_wire *wire, uint64_t now_ns);

#endif
