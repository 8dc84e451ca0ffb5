/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the channels through windows share: shm.c (sending, receiving), shm_open.c (in one kernel),
 * segment.c (between machines), shm_peer.c (how peers come and end) and others.
 */
#ifndef NM_TRANSPORT_SHM_PRIVATE_H
#define NM_TRANSPORT_SHM_PRIVATE_H

#include "connect/message.h"
#include "connect/session.h"
#include "shm/pool.h"
#include "shm/ring.h"
#include "transport/transport.h"

enum shm_peer_state {
	PEER_UP,
	PEER_CLOSING,  /* hung up: what it had sent is still being delivered */
	PEER_CAST_OUT, /* did what no sound peer does: nothing more is taken from it */
	PEER_DOWN,
};

struct shm_link;

/* Another endpoint, in either or both directions. */
struct shm_peer {
	struct shm_peer *next;
	struct nm_identity who;
	struct nm_peer_label label;
	struct nm_peer *cookie;
	struct shm_link *link;	   /* me -> peer */
	struct nm_session *source; /* peer -> me */
	uint32_t source_index;
	enum shm_peer_state state;
	int err; /* from CLOSING on */
	struct nm_reason why;
	uint64_t last; /* CLOSING: nothing sound is published from this position of its ring on */
};

struct shm_link {
	struct nm_link base;
	struct nm_ring_writer writer;
	struct nm_pool_user chunks;
	bool down;
	const _Atomic uint32_t *asleep; /* in the peer's window: hostile; or of nobody */
	_Atomic uint32_t *doorbell;	/* in mine */
	uint32_t rung;			/* value of *asleep for which it was rung last */
	struct shm_peer *peer;
	struct nm_session *session;
	struct nm_cma_target target; /* while base.remote_copy */
	struct nm_link_facts facts;
	struct shm_link *next;
};

struct shm_transport {
	struct nm_transport base;
	struct nm_transport_ops ops; /* those of the flavor, or with checksums */
	const nm_session_word *events;
	const _Atomic uint32_t *event_doorbell;
	struct nm_ring_reader *readers; /* of active sources; nr_lanes of them fit */
	struct shm_peer **sources;	/* whose reader it is */
	uint32_t nr_sources;
	uint32_t nr_sent;   /* packets of one slot since the last progress() */
	uint32_t nr_ending; /* peers between UP and DOWN */
	uint32_t nr_polls;
	uint32_t nr_sleeps; /* what my window says while asleep */
	uint8_t *bounce;
	bool is_wary;	  /* packets need nm_shm_vouch() */
	uint8_t *checked; /* private copy of a payload; NULL: no checksums */
	struct nm_pool pool;
	struct shm_link *links;
	struct shm_peer *peers;
	struct nm_sessions *sessions;
	struct nm_window window;
	/* where it lies, if that is a segment between machines; else NULL */
	struct nm_vmseg *segment;
	struct nm_vmseg_claim *claim;
};

static inline struct shm_transport *nm_shm_of(struct nm_transport *transport)
{
	return nm_container_of(transport, struct shm_transport, base);
}

static inline struct shm_link *nm_shm_link_of(struct nm_link *link)
{
	return nm_container_of(link, struct shm_link, base);
}

/* shm.c: slots of the contract, which are the same for all of them. */
int nm_shm_connect(struct nm_transport *transport, const struct nm_address *address,
		   struct nm_peer *cookie, struct nm_link **ret_link, struct nm_reason *ret_reason);
bool nm_shm_drained(struct nm_link *link);
void nm_shm_describe(const struct nm_link *link, struct nm_link_facts *ret_facts);
unsigned int nm_shm_progress(struct nm_transport *transport);
bool nm_shm_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells);
void nm_shm_wake(struct nm_transport *transport);
/*
 * What every channel through windows does before its endpoint sleeps. Adds the doorbell of the
 * session place; false: there was no room for it.
 */
bool nm_shm_prepare_sleep(struct shm_transport *shm, struct nm_doorbells *doorbells);
extern const struct nm_quarantine_ops nm_shm_quarantine_ops;
int nm_shm_send(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
		unsigned int nr_iov);
/* shm_check.c: the same with a checksum. */
#define NM_SHM_CHECK_ROOM 64 /* a checksum's, so that pieces of large messages stay whole lines */
#define NM_SHM_CHECKED_IOV 64
int nm_shm_send_checked(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
			unsigned int nr_iov);
/*
 * May the packet that source I shows be believed, where there is more to it than its slot? Then PKT
 * and PAYLOAD are what was sent, in a copy if it was checked. False: the source has been dealt with.
 */
bool nm_shm_vouch(struct shm_transport *shm, uint32_t i, struct nm_packet *pkt,
		  const void **payload);
/* Once, before the transport is used: 0, or -errno with a reason. */
int nm_shm_init_checks(struct shm_transport *shm, struct nm_reason *ret_reason);

/* shm_copy.c: base.remote_copy and its reason, from what the session has proven. */
void nm_shm_init_copies(struct shm_link *link, const struct nm_session *session);
extern const struct nm_copy_ops nm_shm_copy_ops;

/* A channel through windows: what its create() does beside what all of them do. */
struct shm_flavor {
	const struct nm_transport_kind *kind;
	const struct nm_transport_ops *ops;
	const struct nm_copy_ops *copy;
	int (*open)(struct shm_transport *shm, const struct nm_identity *who, const void *arg,
		    struct nm_reason *ret_reason);
};

/* shm_open.c: a transport whose window and place open() opens with ARG. As the kind's create(). */
int nm_shm_create(const struct shm_flavor *flavor, const void *arg, const struct nm_sink *sink,
		  const struct nm_identity *who, struct nm_transport **ret_transport,
		  struct nm_reason *ret_reason);
/* Everything that goes with the window, which is there; and the table of sessions. 0 or -errno. */
int nm_shm_furnish(struct shm_transport *shm, struct nm_sessions_config *config,
		   struct nm_reason *ret_reason);
/* Destroys half-open ones, too. */
void nm_shm_destroy(struct nm_transport *transport);

/* NULL: unknown. */
struct shm_peer *nm_shm_find_peer(struct shm_transport *shm, const struct nm_identity *who);
/* The peer WHO, made when it is new. NULL: out of memory. */
struct shm_peer *nm_shm_get_peer(struct shm_transport *shm, const struct nm_identity *who);
/* PEER begins to end, unless it does already: end_peers() tells the engine ERR and WHY. */
void nm_shm_begin_end(struct shm_transport *shm, struct shm_peer *peer, enum shm_peer_state state,
		      int err, const struct nm_reason *why);
/* The peer broke the rules of the shared bytes. */
void nm_shm_cast_out(struct shm_transport *shm, struct shm_peer *peer, const char *what);
/* Its window has become another's before it was taken out of use. */
void nm_shm_lose(struct shm_transport *shm, struct shm_peer *peer);
/* Cast out sources that show bytes which no poll stumbles over. */
void nm_shm_inspect(struct shm_transport *shm);
/* New sources and ends, from the table of sessions. */
void nm_shm_take_events(struct shm_transport *shm);
/* Is there something left that PEER published before it hung up? */
bool nm_shm_is_unread(const struct shm_transport *shm, const struct shm_peer *peer);
/* Nothing more is to be delivered: give everything back, then tell the engine. */
void nm_shm_end_peer(struct shm_transport *shm, struct shm_peer *peer);
/* End all peers whose time has come. */
void nm_shm_end_peers(struct shm_transport *shm);

#endif
