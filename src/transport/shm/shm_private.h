/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the channels through windows share: shm.c (sending, receiving), shm_open.c (in one kernel),
 * vmseg.c (between machines), shm_session.c (how sessions come and end) and others.
 */
#ifndef NM_TRANSPORT_SHM_PRIVATE_H
#define NM_TRANSPORT_SHM_PRIVATE_H

#include "connect/message.h"
#include "connect/session.h"
#include "shm/pool.h"
#include "shm/ring.h"
#include "transport/transport.h"

struct shm_link {
	struct nm_link base;
	struct nm_ring_writer writer; /* closed when the session ends */
	struct nm_pool_user chunks;
	const _Atomic uint32_t *asleep; /* in the peer's window: hostile; or never set */
	_Atomic uint32_t *doorbell;	/* in mine */
	uint32_t rung;			/* value of *asleep for which it was rung last */
};

/* A session with the transport's own part. */
struct shm_session {
	struct nm_session base;
	struct nm_peer *cookie;
	uint32_t source_index; /* see nm_shm_is_source() */
	uint64_t last; /* CLOSING: nothing sound is published from this position of its ring on */
	struct shm_link link NM_ALIGNED(NM_CACHE_LINE); /* of `out`; no transport: there is none */
};

struct shm_transport {
	struct nm_transport base;
	struct nm_transport_ops ops; /* those of the flavor, or with checksums */
	const _Atomic uint32_t *events;
	const _Atomic uint32_t *event_doorbell;
	struct nm_ring_reader *readers; /* of active sources; nr_lanes of them fit */
	struct shm_session **sources;	/* whose reader it is */
	uint32_t nr_sources;
	uint32_t nr_sent;   /* packets of one slot since the last progress() */
	uint32_t nr_ending; /* sessions between UP and DOWN */
	uint32_t nr_polls;
	uint32_t nr_sleeps; /* what my window says while asleep */
	uint8_t *bounce;
	bool is_wary;	  /* packets need nm_shm_vouch() */
	uint8_t *checked; /* private copy of a payload; NULL: no checksums */
	struct nm_pool pool;
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

static inline struct shm_session *nm_shm_session_of(const struct nm_link *link)
{
	return nm_container_of(link, struct shm_session, link.base);
}

static inline struct shm_session *nm_shm_from(struct nm_session *session)
{
	return (struct shm_session *)session; /* its first member */
}

/* All sessions that were handed out. */
#define nm_shm_for_each(s, shm)                                                                    \
	for (struct shm_session *s = nm_shm_from(nm_sessions_first((shm)->sessions)); s;           \
	     s = nm_shm_from(s->base.next))

static inline bool nm_shm_is_source(const struct shm_transport *shm, const struct shm_session *s)
{
	return s->source_index < shm->nr_sources && shm->sources[s->source_index] == s;
}

static inline bool nm_shm_has_link(const struct shm_session *s)
{
	return s->link.base.transport;
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
 * table of sessions; false: there was no room for it.
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
 * and PAYLOAD are what was sent, in a copy if it was checked. False: the source has been dealt
 * with.
 */
bool nm_shm_vouch(struct shm_transport *shm, uint32_t i, struct nm_packet *pkt,
		  const void **payload);
/* Once, before the transport is used: 0, or -errno with a reason. */
int nm_shm_init_checks(struct shm_transport *shm, struct nm_reason *ret_reason);

/* shm_copy.c: remote_copy of the link, and its reason, from what the session has proven. */
void nm_shm_init_copies(struct shm_session *s);
extern const struct nm_copy_ops nm_shm_copy_ops;

/*
 * shm_copy.c: copies from and to the memory of a peer that was proven (connect/cma_proof.h), in one
 * system call, which carries its own proof that it works on the peer and no other process. As
 * read_remote() and write_remote() of transport.h say, for at most NM_SPANS_MAX pieces on each
 * side; where the two sides differ, the smaller one counts. Returns the bytes copied from the front
 * (short where one side's memory ends, or was never there); -EFAULT: none; and when the target is
 * not what was proven, or not to be reached any more, with not a byte written: -ESRCH, -EPERM,
 * -ENOSYS.
 */
ssize_t nm_cma_read(const struct nm_cma_target *target, const struct iovec *local,
		    unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote);
ssize_t nm_cma_write(const struct nm_cma_target *target, const struct iovec *local,
		     unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote);

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

/*
 * The end of S begins, if it is UP; nm_shm_end_sessions() tells the engine ERR and WHY. STATE:
 * CLOSING or CAST_OUT.
 */
void nm_shm_begin_end(struct shm_transport *shm, struct shm_session *s, enum nm_session_state state,
		      int err, const struct nm_reason *why);
/* The peer broke the rules of the shared bytes. */
void nm_shm_cast_out(struct shm_transport *shm, struct shm_session *s, const char *what);
/* Its window has become another's before it was taken out of use. */
void nm_shm_lose(struct shm_transport *shm, struct shm_session *s);
/* Cast out sources that show bytes which no poll stumbles over. */
void nm_shm_inspect(struct shm_transport *shm);
/* New sources and ends, from the table of sessions. */
void nm_shm_take_events(struct shm_transport *shm);
/* Is there something left that the peer published before it hung up? */
bool nm_shm_is_unread(const struct shm_transport *shm, const struct shm_session *s);
/* Nothing more is to be delivered: give everything back, then tell the engine. */
void nm_shm_end(struct shm_transport *shm, struct shm_session *s);
/* End all sessions whose time has come. */
void nm_shm_end_sessions(struct shm_transport *shm);

#endif
