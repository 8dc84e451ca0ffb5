/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges: connections over the mailboxes of a segment, each the far end of a session's socket.
 * What wire_vmseg.c (the wire and liveness), exchange.c (one exchange) share.
 *
 * Everything here is under sessions->lock. Whatever a neighbour does, an exchange takes a bounded
 * amount of memory and of my mailbox, and ends.
 */
#ifndef NM_CONNECT_EXCHANGE_H
#define NM_CONNECT_EXCHANGE_H

#include "connect/letter.h"
#include "connect/session_private.h"

/* A handshake says three things each way, and goodbye. */
#define NM_EXCHANGE_QUEUE 6
/* Answers to what belongs to no exchange that lie in the mailbox at once. */
#define NM_MAX_RESETS 4

struct nm_exchange_message {
	uint16_t len, flags;
	uint8_t bytes[NM_LETTER_MESSAGE_MAX];
};

struct nm_exchange {
	struct nm_watch watch; /* of fd: the session has something to say */
	struct nm_exchange *next;
	struct nm_vmseg_peer peer; /* as its slot was when the exchange began */
	uint64_t number;
	bool is_caller;			/* I am */
	bool is_over;			/* freed at the next turn */
	uint8_t owner_token[8];		/* the key to greetings */
	int fd;				/* -1: the session has hung up, or was hung up on */
	struct nm_handshake *handshake; /* NULL: it has let go */
	/* what I say: queue[0] has sequence `said`, and waits until it was taken */
	struct nm_exchange_message queue[NM_EXCHANGE_QUEUE];
	unsigned int nr_queued;
	uint32_t said;
	uint64_t say_by_ns;
	uint32_t heard; /* all up to this one */
	/* the one cell of my mailbox that it has */
	bool has_cell;
	bool is_said; /* queue[0] is in it */
	uint32_t cell;
	uint64_t posted_ns;
	uint64_t answer_ns;  /* when an acknowledgement is due; 0: none is */
	uint64_t probe_ns;   /* when to ask whether it still knows of this exchange */
	uint64_t asked_ns;   /* since when it has not answered; 0: nothing was asked */
	uint64_t closing_ns; /* it has hung up: when it was heard; 0: it has not */
	struct nm_vmseg_lease lease;
};

struct nm_vmseg_wire {
	struct nm_wire base;
	struct nm_vmseg *segment;
	struct nm_vmseg_claim *claim;
	struct nm_vmseg_inbox *inbox;
	char place[96];
	uint64_t lease_ns;
	uint64_t connect_ns;
	struct nm_exchange *exchanges; /* oldest first */
	unsigned int nr_exchanges;
	struct {
		bool used;
		uint32_t cell;
		uint64_t posted_ns;
	} resets[NM_MAX_RESETS];
	uint32_t *nr_cells; /* of my mailbox, for each part */
	uint32_t cell_quota;
	uint64_t beat_ns, look_ns, looked_ns; /* next beat, next look at neighbours, the last one */
	uint64_t active_ns;		      /* when something last came or went */
};

static inline struct nm_vmseg_wire *nm_vmseg_wire_of(const struct nm_sessions *sessions)
{
	return nm_container_of(sessions->wire, struct nm_vmseg_wire, base);
}

/*
 * An exchange with PEER over FD, which is the exchange's from now on. NULL: out of memory or not
 * watched.
 */
struct nm_exchange *nm_exchange_create(struct nm_sessions *sessions,
				       const struct nm_vmseg_peer *peer, int fd, uint64_t number,
				       bool is_caller, const uint8_t owner_token[8]);
void nm_exchange_destroy(struct nm_sessions *sessions, struct nm_exchange *exchange);
/* A letter of this exchange, checked. MESSAGE may be changed. */
void nm_exchange_hear(struct nm_sessions *sessions, struct nm_exchange *exchange,
		      const struct nm_letter_head *head, uint8_t *message, uint64_t now_ns);
/* Post what is due. Returns whether the exchange wants to be looked after closely. */
bool nm_exchange_turn(struct nm_sessions *sessions, struct nm_exchange *exchange, uint64_t now_ns);
/*
 * It is no use any more: tell the session WHY. WITH_HANGUP: the other side may be listening after
 * all, now or later; tell it too.
 */
void nm_exchange_end(struct nm_sessions *sessions, struct nm_exchange *exchange, bool with_hangup,
		     const char *why);
/* Say that a letter to me from FROM belongs to no exchange. */
void nm_exchange_reset(struct nm_vmseg_wire *wire, const struct nm_vmseg_address *from,
		       const struct nm_letter_head *head, uint64_t now_ns);
/* Take back resets that have been there for long enough. */
void nm_exchange_expire_resets(struct nm_vmseg_wire *wire, uint64_t now_ns);

#endif
