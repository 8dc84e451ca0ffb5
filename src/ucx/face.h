/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UCX face: a transport of UCX over the channels self, shm and segment (transport/transport.h).
 *
 *   UCX                    this directory                      below
 *   component, domain      component.c
 *   interface              struct nm_ucx_iface, iface.c        one identity, one transport a kind
 *   endpoint               struct nm_ucx_ep, ep.c              names a peer
 *   remote interface       struct nm_peer, peer.c              link and source
 *   active message         op: its id; flags: enum nm_ucx_form; payload
 *   get, put               to proven peers, by a second transport, copy.c
 *   event descriptor       struct nm_ucx_wake, wake.c
 *
 * UCX chooses a transport per peer once, by is_reachable, so the face meets the peer there, by the
 * same handshake as any send. Each interface is used by one thread at a time, as UCX defines.
 *
 * The callbacks of UCX connect endpoints, which the contract forbids during progress() of a
 * transport. Such connects wait in `connecting` until progress() has returned, and so do reports of
 * lost peers, in `lost`.
 *
 * UCX packs a message straight into a place of the own window. Channels without places get it from
 * a buffer. UCX packs it once and must not be asked again, so bytes that then find no room are kept
 * in `held` of the peer, and nothing follows them until they left.
 */
#ifndef NM_UCX_FACE_H
#define NM_UCX_FACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "transport/stats.h"
#include "transport/transport.h"
#include "ucx/abi.h"

/* What UCX packs into the addresses of workers. The bytes of peers' addresses are hostile. */
struct nm_ucx_address {
	uint8_t version; /* NM_UCX_ADDRESS_VERSION */
	uint8_t zero;
	struct nm_identity who;
	uint32_t max_message; /* of the interface: its max_bcopy */
};
_Static_assert(sizeof(struct nm_ucx_address) == 20, "no byte of it is undefined");
#define NM_UCX_ADDRESS_VERSION 1

/* nm_packet.flags; no packet of the other face (engine/protocol.h) has these. */
enum nm_ucx_form {
	NM_UCX_SHORT = 0xb1, /* 8 bytes of the message are the tag of the packet */
	NM_UCX_BCOPY = 0xb2, /* the payload is the message; tag is 0 */
};
/*
 * The longest max_bcopy: half of the largest chunk. UCX takes unexpected messages into pools that it
 * sizes by the own max_bcopy, and does not check a length. So only interfaces of one max_bcopy meet,
 * and a longer message ends its sender.
 */
#define NM_UCX_MESSAGE_MAX (NM_MAX_CHUNK_SIZE / 2)

enum nm_ucx_peer_state {
	NM_UCX_PEER_KNOWN,	/* no link; it may be a source */
	NM_UCX_PEER_CONNECTING, /* in iface->connecting */
	NM_UCX_PEER_UP,		/* link is valid */
	NM_UCX_PEER_DOWN,	/* gone for good: an identity is never used twice */
	NM_UCX_NR_PEER_STATES,
};
extern const uint32_t nm_ucx_peer_transitions[NM_UCX_NR_PEER_STATES];

/* Bytes that UCX packed and that found no room. */
struct nm_ucx_held {
	struct nm_packet packet;
	uint8_t bytes[];
};

struct nm_peer {
	enum nm_ucx_peer_state state;
	struct nm_link *link;	    /* NULL unless UP */
	struct nm_traffic *counted; /* of `sent`: that of the link's channel */
	struct nm_ucx_held *held;
	struct nm_ucx_iface *iface;
	struct nm_list eps;   /* struct nm_ucx_ep */
	struct nm_list node;  /* in iface->connecting, iface->holding or iface->lost, or in none */
	struct nm_peer *next; /* in its bucket */
	struct nm_transport *tried; /* the transport that awaits its answer; NULL: none does */
	unsigned int nr_sources;    /* channels on which it can send to this interface */
	int err;		    /* DOWN: 0 if it closed normally */
	bool has_bad_copy;	    /* a direct copy failed, and the log has it */
	bool is_missed;		    /* DOWN: its end is reported to all endpoints */
	struct nm_identity who;
	struct nm_peer_label label; /* of a source; a link has its own */
	struct nm_reason why;	    /* of the link, or of its absence */
	struct nm_traffic sent[NM_NR_CHANNELS], received[NM_NR_CHANNELS];
	uint64_t nr_stalls; /* messages that found no room */
};

struct nm_ucx_ep {
	uct_ep_t super;
	struct nm_peer *peer;
	bool is_dispatching;	/* a pending request of it runs */
	bool is_destroyed;	/* by that request */
	bool is_watched;	/* ep_check() was called: a normal close is reported, too */
	bool is_reported;	/* UCX knows that the peer is lost */
	struct nm_list node;	/* in peer->eps */
	struct nm_list pending; /* struct nm_ucx_pending */
	struct nm_list waiting; /* in iface->waiting, while there are pending requests */
};

/* Overlays uct_pending_req_t, whose priv is the transport's. */
struct nm_ucx_pending {
	uct_pending_callback_t func;
	struct nm_list node;
};
_Static_assert(sizeof(struct nm_ucx_pending) <= sizeof(uct_pending_req_t), "fits into priv");

#define NM_UCX_NR_BUCKETS 1024

struct nm_ucx_iface {
	uct_base_iface_t base;
	struct nm_address address; /* without a network part */
	struct nm_sink sink;
	struct nm_transport *transports[NM_NR_CHANNELS]; /* by rank */
	unsigned int nr_transports;
	bool in_progress;	  /* a transport delivers */
	bool is_armed;		  /* the transports were asked to ring */
	bool has_sources;	  /* or had some */
	struct nm_ucx_wake *wake; /* NULL: UCX did not ask for its descriptor */
	struct nm_reason lacks;	  /* the channels that could not be opened, and why */
	uint32_t max_bcopy, max_short;
	uint8_t *outgoing; /* max_bcopy bytes, for messages that do not come to lie in a window */
	uint8_t *arrived;  /* NM_UCX_MESSAGE_MAX bytes: a private copy of the message delivered */
	struct nm_list connecting, holding, lost; /* peers */
	struct nm_list waiting;			  /* endpoints */
	struct nm_list node;			  /* of those of this process */
	bool has_copies;			  /* copy.c asked for it */
	struct nm_list copying;			  /* endpoints of copy.c; they may outlive it */
	struct nm_stats *stats;			  /* NULL: no file */
	uint64_t published_ns;
	unsigned int nr_progress; /* calls since the last look at the clock */
	bool loss_written;	  /* statistics of a lost peer are on disk */
	struct nm_peer *buckets[NM_UCX_NR_BUCKETS];
};

static inline struct nm_ucx_iface *nm_ucx_iface_of(uct_iface_h iface)
{
	return nm_container_of(iface, struct nm_ucx_iface, base.super);
}

static inline struct nm_ucx_ep *nm_ucx_ep_of(uct_ep_h ep)
{
	return nm_container_of(ep, struct nm_ucx_ep, super);
}

/* ---- component.c ---- */

/* The list of this transport's devices in UCX. */
extern struct uct_component nm_ucx_component;

/* ---- iface.c ---- */

ucs_status_t nm_ucx_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
			       const uct_iface_config_t *config, uct_iface_h *ret_iface);

ucs_status_t nm_ucx_iface_get_address(uct_iface_h iface, uct_iface_addr_t *address);
/* Nearness is proven by a handshake, so there is nothing to compare. */
ucs_status_t nm_ucx_iface_get_device_address(uct_iface_h iface, uct_device_addr_t *address);
/* The oldest interface of WORKER, or NULL. */
struct nm_ucx_iface *nm_ucx_iface_find(const void *worker);
/*
 * True if PEER is met, after a handshake if needed. While a transport delivers, only what is known
 * counts. False: its `why` has the reason.
 */
bool nm_ucx_peer_meet(struct nm_peer *peer);
/* The peer of PARAMS if it is met. NULL: UCX gets the reason. */
struct nm_peer *nm_ucx_iface_meet(struct nm_ucx_iface *iface,
				  const uct_iface_is_reachable_params_t *params);

/* Slots of uct_iface_internal_ops_t that are alike in both transports. */
#define NM_UCX_INTERNAL_OPS                                                                        \
	.iface_query_v2 = uct_iface_base_query_v2, .iface_vfs_refresh = ucs_empty_function,        \
	.ep_query = ucs_empty_function_return_unsupported,                                         \
	.ep_invalidate = ucs_empty_function_return_unsupported,                                    \
	.ep_connect_to_ep_v2 = ucs_empty_function_return_unsupported,                              \
	.ep_get_device_ep = ucs_empty_function_return_unsupported,                                 \
	.ep_put_sgl_zcopy = ucs_empty_function_return_unsupported

/* ---- copy.c ---- */

ucs_status_t nm_ucx_copy_iface_open(uct_md_h md, uct_worker_h worker,
				    const uct_iface_params_t *params,
				    const uct_iface_config_t *config, uct_iface_h *ret_iface);

/* IFACE closes: its endpoints there reach nothing any more. */
void nm_ucx_copies_end(struct nm_ucx_iface *iface);

/* ---- remote.c ---- */

/*
 * Copy all of IOV from (IS_READ) or to the memory of PEER, which may be this process, at REMOTE: at
 * most NM_SPANS_MAX pieces and NM_REMOTE_COPY_STEP bytes. UCS_ERR_IO_ERROR: it has no such memory;
 * a part may be copied. UCS_ERR_CONNECTION_RESET: it is gone, or no longer proven.
 */
ucs_status_t nm_ucx_copy(struct nm_peer *peer, bool is_read, const uct_iov_t *iov, size_t nr,
			 uint64_t remote);

/* ---- wake.c ---- */

ucs_status_t nm_ucx_iface_event_fd_get(uct_iface_h iface, int *ret_fd);
ucs_status_t nm_ucx_iface_event_arm(uct_iface_h iface, unsigned int events);
/* After progress() of the transports while is_armed. HAS_COME: it was not in vain. */
void nm_ucx_wake_up(struct nm_ucx_iface *iface, bool has_come);
void nm_ucx_wake_free(struct nm_ucx_iface *iface);

/* ---- count.c ---- */

/* The statistics file of the interface (transport/stats.h), and the same counts in the log. */
void nm_ucx_count_open(struct nm_ucx_iface *iface);
void nm_ucx_count_close(struct nm_ucx_iface *iface);
/* A peer is lost: the process may end soon. */
void nm_ucx_count_loss(struct nm_ucx_iface *iface);
/* Write the file if it is due. */
void nm_ucx_count_look(struct nm_ucx_iface *iface);

/* Once per progress of the interface: most calls do not look at the clock. */
static inline void nm_ucx_count_progress(struct nm_ucx_iface *iface)
{
	if (nm_unlikely(++iface->nr_progress == 1024))
		nm_ucx_count_look(iface);
}

/* ---- trace.c; the callers ask whether UCX logs data ---- */

/* The bytes of a message as UCX sees it. */
void nm_ucx_trace(const struct nm_ucx_iface *iface, uct_am_trace_type_t type, uint8_t id,
		  const void *bytes, size_t len);
/* A packet that was sent. Overwrites `outgoing`. */
void nm_ucx_trace_sent(struct nm_ucx_iface *iface, const struct nm_packet *packet,
		       const void *payload);

/* ---- peer.c ---- */

/* Check LEN foreign bytes and copy them. False: they are no address of this face. */
bool nm_ucx_address_parse(const void *bytes, size_t len, struct nm_ucx_address *ret_address);
/* True if both interfaces take messages of the same length; else the reason. */
bool nm_ucx_address_fits(const struct nm_ucx_iface *iface, const struct nm_ucx_address *address,
			 struct nm_reason *ret_reason);
/* The peer WHO, created if it is new. NULL: out of memory. */
struct nm_peer *nm_ucx_peer_get(struct nm_ucx_iface *iface, const struct nm_identity *who);
/*
 * Make the link to PEER. 0; -EAGAIN: call again; other errors: its `why` has the reason, and a peer
 * that was CONNECTING, which has endpoints, is lost. Not while in_progress.
 */
int nm_ucx_peer_connect(struct nm_peer *peer);
/* True if PEER is the interface itself. */
static inline bool nm_ucx_peer_is_self(const struct nm_peer *peer)
{
	return nm_identity_equal(&peer->who, &peer->iface->address.who);
}

/* True if PARAMS has the address of PEER. */
bool nm_ucx_peer_is_at(const struct nm_peer *peer, const uct_ep_is_connected_params_t *params);
/* Begin to connect, without a wait; progress ends it. */
void nm_ucx_peer_begin(struct nm_peer *peer);
/* PEER is gone. ERR 0: it closed normally. */
void nm_ucx_peer_down(struct nm_peer *peer, int err, const struct nm_reason *why);
/* Report the end of PEER to its endpoints during the next progress. */
void nm_ucx_peer_report(struct nm_peer *peer);

/* Bytes of the message that are not in the payload. */
static inline size_t nm_ucx_header_len(const struct nm_packet *packet)
{
	return packet->flags == NM_UCX_SHORT ? sizeof(packet->tag) : 0;
}

static inline void nm_ucx_peer_sent(struct nm_peer *peer, const struct nm_packet *packet)
{
	peer->counted->messages++;
	peer->counted->bytes += packet->len + nm_ucx_header_len(packet);
}

/* Send one packet. UCS_OK; UCS_ERR_NO_RESOURCE: no room; UCS_ERR_CONNECTION_RESET: it is gone. */
static inline ucs_status_t nm_ucx_peer_send(struct nm_peer *peer, const struct nm_packet *packet,
					    const void *payload)
{
	const struct iovec iov = {(void *)(uintptr_t)payload, packet->len};
	struct nm_link *link = peer->link;

	if (nm_unlikely(!link))
		return peer->state == NM_UCX_PEER_DOWN ? UCS_ERR_CONNECTION_RESET :
							 UCS_ERR_NO_RESOURCE;
	/* -EPIPE: a later progress() reports the end; until then there is just no room. */
	if (nm_unlikely(link->transport->ops->send(link, packet, &iov, 1))) {
		peer->nr_stalls++;
		return UCS_ERR_NO_RESOURCE;
	}
	nm_ucx_peer_sent(peer, packet);
	if (ucs_log_is_enabled(UCS_LOG_LEVEL_TRACE_DATA))
		nm_ucx_trace_sent(peer->iface, packet, payload);
	return UCS_OK;
}

/* True if nm_ucx_peers_progress() or nm_ucx_eps_progress() has something to do. */
static inline bool nm_ucx_has_work(const struct nm_ucx_iface *iface)
{
	return !nm_list_empty(&iface->connecting) || !nm_list_empty(&iface->holding) ||
	       !nm_list_empty(&iface->lost) || !nm_list_empty(&iface->waiting);
}

/* What waits for the interface's peers: connects, held bytes, reports. Returns its amount. */
unsigned int nm_ucx_peers_progress(struct nm_ucx_iface *iface);
/* Its lists, and the sink for its transports. */
void nm_ucx_peers_init(struct nm_ucx_iface *iface);
void nm_ucx_peers_free(struct nm_ucx_iface *iface);

/* ---- ep.c ---- */

ucs_status_t nm_ucx_ep_create(const uct_ep_params_t *params, uct_ep_h *ret_ep);
void nm_ucx_ep_destroy(uct_ep_h ep);
ucs_status_t nm_ucx_ep_am_short(uct_ep_h ep, uint8_t id, uint64_t header, const void *payload,
				unsigned int len);
ucs_status_t nm_ucx_ep_am_short_iov(uct_ep_h ep, uint8_t id, const uct_iov_t *iov, size_t nr);
ssize_t nm_ucx_ep_am_bcopy(uct_ep_h ep, uint8_t id, uct_pack_callback_t pack, void *arg,
			   unsigned int flags);
/* Packed like am_bcopy, from HEADER and IOV: it has ended when it returns UCS_OK. */
ucs_status_t nm_ucx_ep_am_zcopy(uct_ep_h ep, uint8_t id, const void *header,
				unsigned int header_len, const uct_iov_t *iov, size_t nr,
				unsigned int flags, uct_completion_t *comp);
ucs_status_t nm_ucx_ep_pending_add(uct_ep_h ep, uct_pending_req_t *request, unsigned int flags);
void nm_ucx_ep_pending_purge(uct_ep_h ep, uct_pending_purge_callback_t cb, void *arg);
ucs_status_t nm_ucx_ep_flush(uct_ep_h ep, unsigned int flags, uct_completion_t *comp);
/* UCS_INPROGRESS: bytes that UCX gave away found no room yet. */
ucs_status_t nm_ucx_iface_flush(uct_iface_h iface, unsigned int flags, uct_completion_t *comp);
ucs_status_t nm_ucx_ep_fence(uct_ep_h ep, unsigned int flags);
ucs_status_t nm_ucx_ep_check(uct_ep_h ep, unsigned int flags, uct_completion_t *comp);
int nm_ucx_ep_is_connected(uct_ep_h ep, const uct_ep_is_connected_params_t *params);
/* Run the pending requests of the endpoints that have some. Returns their number. */
unsigned int nm_ucx_eps_progress(struct nm_ucx_iface *iface);

#endif
