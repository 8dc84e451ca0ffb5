/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the channels through windows: shm.c (sending, receiving), shm_open.c (in one kernel),
 * vmseg.c (between machines), shm_session.c (begin and end of sessions) and others.
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
	const _Atomic uint32_t
		*asleep;	    /* in the peer's window: hostile; or a word that is never set */
	_Atomic uint32_t *doorbell; /* in the own window */
	uint32_t rung;		    /* value of *asleep at the last ring */
};

/* A session with the transport's own part. */
struct shm_session {
	struct nm_session base;
	struct nm_peer *cookie;
	uint32_t source_index; /* see nm_shm_is_source() */
	unsigned int nr_asked; /* lines in the log about `is_asked` */
	/*
	 * Chunks of its packets that are not returned yet, oldest first (shm_place.c): bit I is set
	 * while chunk first_hold + I is in use.
	 */
	uint64_t first_hold, held;
	uint32_t nr_withheld;
	bool is_current; /* the youngest is of the packet that is being delivered, or was last */
	/* leaving in order, each direction alone, and coming back (shm_move.c) */
	bool is_held;	   /* nothing enters the link any more */
	bool is_left;	   /* likewise, and the peer needs nothing of it: its direction has ended */
	bool is_suspended; /* the source is not read: what is on the network comes first */
	uint64_t floor;	   /* held: slots before this position may be overwritten */
	uint64_t sent, taken; /* places of the links and sources that ended in order */
	uint64_t last;	      /* CLOSING: from this position of its ring on, nothing is valid */
	struct shm_link link NM_ALIGNED(NM_CACHE_LINE); /* of `out`; no transport: no link */
};

struct shm_transport {
	struct nm_transport base;
	struct nm_transport_ops ops; /* the flavor's, or those with checksums */
	const _Atomic uint32_t *events;
	const _Atomic uint32_t *event_doorbell;
	struct nm_ring_reader *readers; /* of active sources; there is room for nr_lanes */
	struct shm_session **sources;	/* the session of each reader */
	uint32_t nr_sources;
	uint32_t nr_sent;      /* packets of one slot since the last progress() */
	uint32_t nr_unsettled; /* sessions between UP and DOWN, and sources that withhold chunks */
	uint32_t nr_polls;
	uint32_t nr_sleeps; /* value of `asleep` in the own window while asleep */
	uint8_t *bounce;
	bool is_wary;	  /* packets need nm_shm_vouch() */
	uint8_t *checked; /* private copy of a payload; NULL: no checksums */
	struct nm_pool pool;
	struct nm_sessions *sessions;
	struct nm_window window;
	/* The place of the window if that is a segment between machines. NULL: there is none, or it
	 * was given up: then there are neither directions of sessions nor a window. */
	struct nm_vmseg *segment;
	struct nm_vmseg_claim *claim;
	struct shm_home *home; /* of the channel between machines (vmseg/home.h) */
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

/* shm.c: S has a new direction `out`: it is the link of COOKIE. */
void nm_shm_open_link(struct shm_transport *shm, struct shm_session *s, struct nm_peer *cookie);
/* shm.c: connecting failed. A session without a direction is there if WHO may be reached later. */
void nm_shm_note_cookie(struct shm_transport *shm, const struct nm_identity *who,
			struct nm_peer *cookie);
/* shm.c: slots of the contract that all flavors share. */
int nm_shm_connect(struct nm_transport *transport, const struct nm_address *address,
		   struct nm_peer *cookie, struct nm_link **ret_link, struct nm_reason *ret_reason);
bool nm_shm_drained(struct nm_link *link);
void nm_shm_describe(const struct nm_link *link, struct nm_link_facts *ret_facts);
unsigned int nm_shm_progress(struct nm_transport *transport);
bool nm_shm_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells);
void nm_shm_wake(struct nm_transport *transport);
/*
 * Prepare the sleep of the endpoint, for every channel through windows. Adds the doorbell of the
 * table of sessions; false: no room for it.
 */
bool nm_shm_prepare_sleep(struct shm_transport *shm, struct nm_doorbells *doorbells);
extern const struct nm_quarantine_ops nm_shm_quarantine_ops;
/* shm_place.c */
extern const struct nm_place_ops nm_shm_place_ops;
/* The next packet of source I, which withholds chunks, is about to be delivered. */
void nm_shm_withhold(struct shm_transport *shm, uint32_t i) NM_COLD;
/* The last packet of S was delivered: its chunk is returned unless it is held. */
void nm_shm_return_last(struct shm_transport *shm, struct shm_session *s) NM_COLD;
/* Return the chunks that idle sources withhold, as far as that needs no wait. */
void nm_shm_return_idle(struct shm_transport *shm) NM_COLD;
/* shm.c: take back what peers report as read. */
void nm_shm_reclaim(struct shm_transport *shm);
/* shm.c: after a packet was published. */
void nm_shm_ring_sleeper(struct shm_link *link);
int nm_shm_send(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
		unsigned int nr_iov);
/* shm.c: of nm_place_ops. */
int nm_shm_send_filled(struct nm_link *base, struct nm_packet *pkt, uint32_t room,
		       size_t (*fill)(void *to, void *arg), void *arg);
/* shm_check.c: nm_shm_send() with a checksum. */
#define NM_SHM_CHECK_LEN 4
#define NM_SHM_CHECK_ROOM 64 /* of a checksum; keeps pieces of large messages whole lines */
#define NM_SHM_CHECKED_IOV 64
int nm_shm_send_checked(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
			unsigned int nr_iov);
/*
 * Check the packet of source I if it is more than its slot. True: PKT and PAYLOAD are as sent, in a
 * private copy if there was a checksum. False: the source was ended or cast out.
 */
bool nm_shm_vouch(struct shm_transport *shm, uint32_t i, struct nm_packet *pkt,
		  const void **payload);
/* Once, before the transport is used: 0, or -errno with a reason. */
int nm_shm_init_checks(struct shm_transport *shm, struct nm_reason *ret_reason);

/* shm_copy.c: set remote_copy of the link, and its reason, from the proof of the session. */
void nm_shm_init_copies(struct shm_session *s);
extern const struct nm_copy_ops nm_shm_copy_ops;
/* shm_heap.c: the part of these with heaps. */
bool nm_shm_show_heap(const struct nm_link *base, const struct iovec *piece,
		      struct nm_span *ret_span);
/* The part of REGION in the heap, for get_heap() of peers. Without room they ask. */
void nm_shm_publish_heap(struct shm_transport *shm, const struct nm_region *region);
int nm_shm_get_heap(struct nm_link *base, const struct nm_region *wanted, const struct iovec *local,
		    unsigned int nr_local);
ssize_t nm_shm_read_heap(struct nm_link *base, const struct iovec *local, unsigned int nr_local,
			 const struct nm_span *remote, unsigned int nr_remote);

/*
 * shm_copy.c: copy from and to the memory of a proven peer (connect/cma_proof.h), in one system
 * call. The call itself proves that it works on the peer and no other process. Like read_remote()
 * and write_remote() in transport.h, with at most NM_SPANS_MAX pieces on each side; if the sides
 * differ, the smaller one counts. Returns the number of bytes copied from the front, fewer if one
 * side's memory ends. -EFAULT: none. -ESRCH, -EPERM, -ENOSYS: the target is not the proven process
 * or cannot be reached any more, and no byte was written.
 */
ssize_t nm_cma_read(const struct nm_cma_target *target, const struct iovec *local,
		    unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote);
ssize_t nm_cma_write(const struct nm_cma_target *target, const struct iovec *local,
		     unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote);

/* A channel through windows: the part of its create() that is its own. */
struct shm_flavor {
	const struct nm_transport_kind *kind;
	const struct nm_transport_ops *ops;
	const struct nm_copy_ops *copy;
	/* Completes the place of WHO. */
	int (*open)(struct shm_transport *shm, struct nm_identity *who, const void *arg,
		    struct nm_reason *ret_reason);
};

/* shm_open.c: create a transport, like a kind; open() makes its window and place from ARG. */
int nm_shm_create(const struct shm_flavor *flavor, const void *arg, const struct nm_sink *sink,
		  struct nm_identity *who, struct nm_transport **ret_transport,
		  struct nm_reason *ret_reason);
/* Set up the rest after the window, also the table of sessions. 0 or -errno. */
int nm_shm_furnish(struct shm_transport *shm, struct nm_sessions_config *config,
		   struct nm_reason *ret_reason);
/* For the window: readers, sources and the pool. Those of an earlier window go. 0 or -errno. */
int nm_shm_furnish_window(struct shm_transport *shm, struct nm_reason *ret_reason);
/* Also destroys half-open transports. */
void nm_shm_destroy(struct nm_transport *transport);

/*
 * Begin the end of S if it is UP. nm_shm_settle() reports ERR and WHY to the engine. STATE:
 * CLOSING or CAST_OUT.
 */
void nm_shm_begin_end(struct shm_transport *shm, struct shm_session *s, enum nm_session_state state,
		      int err, const struct nm_reason *why);
/* The peer broke the rules of the shared bytes. */
void nm_shm_cast_out(struct shm_transport *shm, struct shm_session *s, const char *what);
/* Another endpoint already has the window of S. */
void nm_shm_lose(struct shm_transport *shm, struct shm_session *s);
/* Cast out sources with bytes that a normal poll does not detect. */
void nm_shm_inspect(struct shm_transport *shm);
/* Take new sources and ends from the table of sessions. */
void nm_shm_take_events(struct shm_transport *shm);
/* Read what S sends from now on. S has announced itself as a source, and has no reader yet. */
void nm_shm_add_reader(struct shm_transport *shm, struct shm_session *s);
/* True if packets that the peer published before it hung up are left. */
bool nm_shm_is_unread(const struct shm_transport *shm, const struct shm_session *s);
/* No more packets will be delivered: release everything, then report to the engine. */
void nm_shm_end(struct shm_transport *shm, struct shm_session *s);
/* shm_move.c: the engine may begin to leave S, or stops to. */
void nm_shm_report_asked(struct shm_transport *shm, struct shm_session *s);
/* The peer of S stood still, or took this endpoint for one that does. */
void nm_shm_report_absent(struct shm_transport *shm, struct shm_session *s);
/* The engine may come back to S, which has no link. */
void nm_shm_report_back(struct shm_transport *shm, struct shm_session *s);
/* Read the source S again. */
void nm_shm_resume(struct shm_transport *shm, struct shm_session *s);
extern const struct nm_move_ops nm_shm_move_ops;
/* Deliver packets of source I, at most a batch. Returns their number. */
unsigned int nm_shm_drain(struct shm_transport *shm, uint32_t i);
/* The source S is read no more. */
void nm_shm_remove_source(struct shm_transport *shm, struct shm_session *s);
/* While nr_unsettled: end all sessions that are due, and return chunks. */
void nm_shm_settle(struct shm_transport *shm);

#endif
