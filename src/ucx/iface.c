/* SPDX-License-Identifier: Apache-2.0 */
/* An interface of UCX: the transports of one identity, its abilities, its progress and its end. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "transport/select.h"
#include "ucx/face.h"

/*
 * What UCX compares with its other transports: docs/design/ucx.md has the measurements. The rate
 * comes from the calibration of this machine. A message is copied three times, once more than by the
 * engine, which copies from and to the buffers of the program.
 */
#define LATENCY_S 90e-9
#define OVERHEAD_S 20e-9
#define BYTES_PER_MB 1e6
#define COPIES_RATIO 1.5
/*
 * UCX's model adds the time of its own copy to all operations but am_zcopy, which copies, too. So
 * without this it would use that even for the smallest messages, which are faster in the ring.
 */
#define GATHER_S 100e-9
/* Any number works. But callers make arrays of this length on their stack. */
#define MAX_IOV 16

/* ---- Addresses ---- */

ucs_status_t nm_ucx_iface_get_address(uct_iface_h base, uct_iface_addr_t *address)
{
	const struct nm_ucx_iface *iface = nm_ucx_iface_of(base);
	const struct nm_ucx_address own = {
		.version = NM_UCX_ADDRESS_VERSION,
		.who = iface->address.who,
		.max_message = iface->max_bcopy,
	};

	memcpy(address, &own, sizeof(own));
	return UCS_OK;
}

ucs_status_t nm_ucx_iface_get_device_address(uct_iface_h base, uct_device_addr_t *address)
{
	(void)base;
	(void)address;
	return UCS_OK;
}

/* Handshakes end by themselves, NEARMETAL_CONNECT_MS after the first call. */
static int connect_now(struct nm_peer *peer)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	int err;

	while ((err = nm_ucx_peer_connect(peer)) == -EAGAIN)
		nanosleep(&pause, NULL);
	return err;
}

bool nm_ucx_peer_meet(struct nm_peer *peer)
{
	if (peer->state == NM_UCX_PEER_DOWN)
		return false;
	if (!peer->iface->in_progress)
		return !connect_now(peer);
	if (peer->state == NM_UCX_PEER_UP || peer->nr_sources)
		return true;
	nm_reason_set(&peer->why, "asked while messages are delivered, and not met before");
	return false;
}

struct nm_peer *nm_ucx_iface_meet(struct nm_ucx_iface *iface,
				  const uct_iface_is_reachable_params_t *params)
{
	size_t len = params->field_mask & UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR_LENGTH ?
			     params->iface_addr_length :
			     sizeof(struct nm_ucx_address);
	struct nm_ucx_address address;
	struct nm_reason why;
	struct nm_peer *peer;

	if (!(params->field_mask & UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR) ||
	    !nm_ucx_address_parse(params->iface_addr, len, &address)) {
		uct_iface_fill_info_str_buf(params, "the address is not one of this transport");
		return NULL;
	}
	if (!nm_ucx_address_fits(iface, &address, &why)) {
		uct_iface_fill_info_str_buf(params, "%s", why.text);
		return NULL;
	}
	peer = nm_ucx_peer_get(iface, &address.who);
	if (!peer)
		uct_iface_fill_info_str_buf(params, "out of memory");
	else if (nm_ucx_peer_meet(peer))
		return peer;
	else
		uct_iface_fill_info_str_buf(params, "%s", peer->why.text);
	return NULL;
}

static int iface_is_reachable_v2(const uct_iface_h base,
				 const uct_iface_is_reachable_params_t *params)
{
	return nm_ucx_iface_meet(nm_ucx_iface_of(base), params) != NULL;
}

/* ---- Abilities ---- */

static double bytes_per_second(void)
{
	const uint32_t *rates = nm_select_params()->prior[nm_select_class(1)][NM_SELECT_STREAM];

	return rates[NM_PROTOCOL_POOL] * BYTES_PER_MB / COPIES_RATIO;
}

static ucs_status_t iface_query(uct_iface_h base, uct_iface_attr_t *attr)
{
	struct nm_ucx_iface *iface = nm_ucx_iface_of(base);

	uct_base_iface_query(&iface->base, attr);
	attr->iface_addr_len = sizeof(struct nm_ucx_address);
	attr->cap.flags = UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_AM_SHORT |
			  UCT_IFACE_FLAG_AM_BCOPY | UCT_IFACE_FLAG_AM_ZCOPY |
			  UCT_IFACE_FLAG_PENDING | UCT_IFACE_FLAG_CB_SYNC |
			  UCT_IFACE_FLAG_EP_CHECK | UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE |
			  UCT_IFACE_FLAG_INTER_NODE;
	attr->cap.event_flags = UCT_IFACE_FLAG_EVENT_SEND_COMP | UCT_IFACE_FLAG_EVENT_RECV |
				UCT_IFACE_FLAG_EVENT_FD;
	attr->cap.am.max_short = iface->max_short;
	attr->cap.am.max_bcopy = attr->cap.am.max_zcopy = iface->max_bcopy;
	attr->cap.am.max_hdr = iface->max_bcopy;
	attr->cap.am.opt_zcopy_align = 1;
	attr->cap.am.align_mtu = 1;
	attr->cap.am.max_iov = MAX_IOV;
	attr->latency = ucs_linear_func_make(LATENCY_S, 0);
	attr->overhead = OVERHEAD_S;
	attr->bandwidth.dedicated = bytes_per_second();
	return UCS_OK;
}

static ucs_status_t estimate_perf(uct_iface_h base, uct_perf_attr_t *attr)
{
	const uint64_t wanted =
		UCT_PERF_ATTR_FIELD_OPERATION | UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD;
	ucs_status_t status = uct_base_iface_estimate_perf(base, attr);

	if (status == UCS_OK && (attr->field_mask & wanted) == wanted &&
	    attr->operation == UCT_EP_OP_AM_ZCOPY)
		attr->send_pre_overhead += GATHER_S;
	return status;
}

/* ---- Progress ---- */

static unsigned int iface_progress(uct_iface_h base)
{
	struct nm_ucx_iface *iface = nm_ucx_iface_of(base);
	unsigned int nr = 0;

	if (nm_unlikely(iface->in_progress))
		return 0;
	iface->in_progress = true;
	for (unsigned int i = 0; i < iface->nr_transports; i++) {
		struct nm_transport *t = iface->transports[i];

		if (t->pause)
			t->pause--;
		else
			nr += t->ops->progress(t);
	}
	iface->in_progress = false;
	nm_ucx_count_progress(iface);
	if (nm_unlikely(iface->is_armed))
		nm_ucx_wake_up(iface, nr > 0);
	if (nm_unlikely(nm_ucx_has_work(iface)))
		nr += nm_ucx_peers_progress(iface) + nm_ucx_eps_progress(iface);
	return nr;
}

/* ---- Life ---- */

/* Of this process. Each is used by one thread, but several threads may open some. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nm_list ifaces = {&ifaces, &ifaces};

struct nm_ucx_iface *nm_ucx_iface_find(const void *worker)
{
	struct nm_ucx_iface *found = NULL;

	pthread_mutex_lock(&lock);
	nm_list_for_each(node, &ifaces) {
		struct nm_ucx_iface *iface = nm_container_of(node, struct nm_ucx_iface, node);

		if (!found && iface->base.worker == worker)
			found = iface;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* What UCX gave away but found no room yet leaves first, within the time of a close. */
static void drain(struct nm_ucx_iface *iface, uint64_t deadline)
{
	while (!nm_list_empty(&iface->holding) && nm_clock_ns() < deadline)
		iface_progress(&iface->base.super);
}

static void free_iface(struct nm_ucx_iface *iface)
{
	nm_ucx_wake_free(iface);
	for (unsigned int i = 0; i < iface->nr_transports; i++)
		iface->transports[i]->ops->destroy(iface->transports[i]);
	nm_ucx_peers_free(iface);
	free(iface->outgoing);
	free(iface->arrived);
	free(iface);
}

static void iface_close(uct_iface_h base)
{
	struct nm_ucx_iface *iface = nm_ucx_iface_of(base);
	uint64_t deadline = nm_clock_ns() + nm_params()->close_ms * NM_NS_PER_MS;

	pthread_mutex_lock(&lock);
	nm_list_remove(&iface->node);
	pthread_mutex_unlock(&lock);
	nm_ucx_copies_end(iface);
	uct_base_iface_progress_disable(base, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
	drain(iface, deadline);
	nm_ucx_count_close(iface);
	for (unsigned int i = 0; i < iface->nr_transports; i++)
		iface->transports[i]->close_by_ns = deadline;
	UCS_CLASS_CLEANUP(uct_base_iface_t, &iface->base);
	free_iface(iface);
}

/*
 * One transport per kind that this process has. UCX gives up a worker of which one interface cannot
 * be opened, so an interface without channels is opened, too: it reaches no peer, with the reason.
 */
static int open_transports(struct nm_ucx_iface *iface, struct nm_reason *ret_reason)
{
	const struct nm_params *params = nm_params();
	const struct nm_transport_kind *kind = NULL;
	bool is_shared = false;
	int err;

	if (!params) {
		nm_reason_set(ret_reason, "the environment is not valid");
		return -EINVAL;
	}
	/* Two places per chunk: with one, messages of 2 KiB are slower (docs/design/ucx.md). */
	iface->max_bcopy = (uint32_t)nm_max_u64(params->chunk_size / 2, NM_MIN_MAX_PAYLOAD);
	iface->address.version = NM_ADDRESS_VERSION;
	err = nm_identity_create(&iface->address.who);
	if (err)
		return err;
	while ((kind = nm_transport_next(kind))) {
		struct nm_transport **slot = &iface->transports[iface->nr_transports];
		struct nm_reason why = {""};

		if (kind->flags & NM_TRANSPORT_NETWORK ||
		    !nm_params_channel_allowed(params, nm_channel_name(kind->channel)))
			continue;
		err = kind->create(&iface->sink, &iface->address, slot, &why);
		if (err) {
			if (err != -ENOENT || !(kind->flags & NM_TRANSPORT_OPTIONAL))
				nm_reason_add(&iface->lacks, "%s%s: %s",
					      *iface->lacks.text ? "; " : "",
					      nm_channel_name(kind->channel), why.text);
			continue;
		}
		iface->nr_transports++;
		is_shared |= !(kind->flags & NM_TRANSPORT_LOOPBACK);
		iface->max_bcopy = (uint32_t)nm_min_u64(iface->max_bcopy, (*slot)->max_payload);
	}
	if (!is_shared && !*iface->lacks.text)
		nm_reason_set(&iface->lacks, "NEARMETAL_CHANNELS allows no shared memory");
	return 0;
}

static int init_iface(struct nm_ucx_iface *iface, struct nm_reason *ret_reason)
{
	int err;

	nm_ucx_peers_init(iface);
	err = open_transports(iface, ret_reason);
	if (err)
		return err;
	/* Beyond this the pool is faster, and a packet of any size needs no room in UCX. */
	iface->max_short =
		(uint32_t)nm_min_u64(nm_params()->inline_max + sizeof(uint64_t), iface->max_bcopy);
	/* Whole lines: base/copy.h has the trap of a copy between a page and a malloc(). */
	iface->outgoing = aligned_alloc(NM_CACHE_LINE, iface->max_bcopy);
	iface->arrived = aligned_alloc(NM_CACHE_LINE, NM_UCX_MESSAGE_MAX);
	if (!iface->outgoing || !iface->arrived) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	return 0;
}

/* UCX keeps no message of ours, so an alignment has no effect. But a wrong one is refused. */
static bool is_alignment_valid(const uct_iface_params_t *params)
{
	if (!(params->field_mask & UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT))
		return !(params->field_mask & UCT_IFACE_PARAM_FIELD_AM_ALIGN_OFFSET);
	return params->am_alignment && !(params->am_alignment & (params->am_alignment - 1));
}

static uct_iface_ops_t iface_ops = {
	.ep_am_short = nm_ucx_ep_am_short,
	.ep_am_short_iov = nm_ucx_ep_am_short_iov,
	.ep_am_bcopy = nm_ucx_ep_am_bcopy,
	.ep_am_zcopy = nm_ucx_ep_am_zcopy,
	.ep_pending_add = nm_ucx_ep_pending_add,
	.ep_pending_purge = nm_ucx_ep_pending_purge,
	.ep_flush = nm_ucx_ep_flush,
	.ep_fence = nm_ucx_ep_fence,
	.ep_check = nm_ucx_ep_check,
	.ep_create = nm_ucx_ep_create,
	.ep_destroy = nm_ucx_ep_destroy,
	.iface_flush = nm_ucx_iface_flush,
	.iface_fence = uct_base_iface_fence,
	.iface_progress_enable = uct_base_iface_progress_enable,
	.iface_progress_disable = uct_base_iface_progress_disable,
	.iface_progress = iface_progress,
	.iface_event_fd_get = nm_ucx_iface_event_fd_get,
	.iface_event_arm = nm_ucx_iface_event_arm,
	.iface_close = iface_close,
	.iface_query = iface_query,
	.iface_get_device_address = nm_ucx_iface_get_device_address,
	.iface_get_address = nm_ucx_iface_get_address,
	.iface_is_reachable = uct_base_iface_is_reachable,
};

static const uct_iface_internal_ops_t internal_ops = {
	NM_UCX_INTERNAL_OPS,
	.iface_estimate_perf = estimate_perf,
	.iface_is_reachable_v2 = iface_is_reachable_v2,
	.ep_is_connected = nm_ucx_ep_is_connected,
};

ucs_status_t nm_ucx_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
			       const uct_iface_config_t *config, uct_iface_h *ret_iface)
{
	struct nm_reason why = {""};
	struct nm_ucx_iface *iface;
	ucs_status_t status;
	int err;

	if (!(params->field_mask & UCT_IFACE_PARAM_FIELD_OPEN_MODE) ||
	    !(params->open_mode & UCT_IFACE_OPEN_MODE_DEVICE))
		return UCS_ERR_UNSUPPORTED;
	if (!is_alignment_valid(params)) {
		ucs_error("nearmetal: an alignment of active messages is a power of two, and an "
			  "offset needs an alignment");
		return UCS_ERR_INVALID_PARAM;
	}
	iface = calloc(1, sizeof(*iface));
	if (!iface)
		return UCS_ERR_NO_MEMORY;
	err = init_iface(iface, &why);
	if (err) {
		nm_error("ucx: no interface: %s", why.text);
		free_iface(iface);
		return err == -ENOMEM ? UCS_ERR_NO_MEMORY : UCS_ERR_NO_DEVICE;
	}
	status = UCS_CLASS_INIT(uct_base_iface_t, &iface->base, &iface_ops, &internal_ops, md,
				worker, params, config);
	if (status != UCS_OK) {
		free_iface(iface);
		return status;
	}
	nm_ucx_count_open(iface);
	pthread_mutex_lock(&lock);
	nm_list_append(&ifaces, &iface->node);
	pthread_mutex_unlock(&lock);
	*ret_iface = &iface->base.super;
	return UCS_OK;
}
