/* SPDX-License-Identifier: Apache-2.0 */
/* fid_ep: an engine with its channels, bound to queues, counters and an address vector. */
#include "provider/ep.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/params.h"
#include "provider/on_loss.h"
#include "transport/transport.h"

#define PEERS_PER_PAGE 512

/* Every open endpoint, so that one that is never closed still leaves its stats at exit. */
static pthread_mutex_t all_eps_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nm_ep *all_eps;

static void remember(struct nm_ep *ep)
{
	pthread_mutex_lock(&all_eps_mutex);
	ep->next = all_eps;
	all_eps = ep;
	pthread_mutex_unlock(&all_eps_mutex);
}

static void forget(const struct nm_ep *ep)
{
	struct nm_ep **at;

	pthread_mutex_lock(&all_eps_mutex);
	for (at = &all_eps; *at; at = &(*at)->next) {
		if (*at == ep) {
			*at = ep->next;
			break;
		}
	}
	pthread_mutex_unlock(&all_eps_mutex);
}

void nm_ep_write_all_stats(void)
{
	struct nm_ep *ep;

	pthread_mutex_lock(&all_eps_mutex);
	for (ep = all_eps; ep; ep = ep->next)
		/* A forked child that exits has nothing to say about its parent's endpoints. */
		if (ep->engine && ep->owner == getpid()) {
			nm_stats_close(ep->stats, nm_ep_collect_stats, ep->engine);
			ep->stats = NULL;
		}
	pthread_mutex_unlock(&all_eps_mutex);
}

void nm_ep_peer_lost(struct nm_ep *ep)
{
	if (!ep->loss_written)
		nm_stats_publish(ep->stats, nm_ep_collect_stats, ep->engine);
	ep->loss_written = true;
}

/* Room for every index there is; what is never used is never touched, and costs nothing. */
static int grow_peers(struct nm_ep *ep, uint64_t room)
{
	struct nm_peer **peers = nm_pages_grow(ep->peers, ep->nr_peers * sizeof(struct nm_peer *),
					       room * sizeof(struct nm_peer *));

	if (!peers)
		return -FI_ENOMEM;
	ep->peers = peers;
	ep->nr_peers = room;
	return 0;
}

int nm_ep_find_peer(struct nm_ep *ep, fi_addr_t addr, struct nm_peer **ret_peer)
{
	struct nm_address address;
	struct nm_peer *peer;
	int err;

	if (!ep->engine)
		return -FI_EOPBADSTATE;
	if (!nm_address_table_get(&ep->av->table, addr, &address))
		return -FI_EINVAL;
	if (addr >= ep->nr_peers) {
		err = grow_peers(ep, nm_align_up(ep->av->table.nr, PEERS_PER_PAGE));
		if (err)
			return err;
	}
	peer = nm_engine_peer(ep->engine, &address);
	if (!peer)
		return -FI_ENOMEM;
	nm_peer_set_index(peer, addr);
	ep->peers[addr] = peer;
	*ret_peer = peer;
	return 0;
}

void nm_ep_forget_peer(struct nm_ep *ep, uint64_t index, const struct nm_identity *who)
{
	nm_engine_forget(ep->engine, who);
	if (index < ep->nr_peers)
		ep->peers[index] = NULL;
}

/* What an enabled endpoint is part of, undone step by step. */
static void unlist(struct nm_ep *ep)
{
	int i;

	nm_ep_list_remove(&ep->domain->eps, ep);
	nm_ep_list_remove(&ep->av->eps, ep);
	if (ep->tx_cq)
		nm_ep_list_remove(&ep->tx_cq->eps, ep);
	if (ep->rx_cq)
		nm_ep_list_remove(&ep->rx_cq->eps, ep);
	for (i = 0; i < NM_NR_CNTR_USES; i++)
		if (ep->cntrs[i])
			nm_ep_list_remove(&ep->cntrs[i]->eps, ep);
}

static int list(struct nm_ep *ep)
{
	int err, i;

	err = nm_ep_list_add(&ep->domain->eps, ep);
	if (!err)
		err = nm_ep_list_add(&ep->av->eps, ep);
	if (!err && ep->tx_cq)
		err = nm_ep_list_add(&ep->tx_cq->eps, ep);
	if (!err && ep->rx_cq)
		err = nm_ep_list_add(&ep->rx_cq->eps, ep);
	for (i = 0; !err && i < NM_NR_CNTR_USES; i++)
		if (ep->cntrs[i])
			err = nm_ep_list_add(&ep->cntrs[i]->eps, ep);
	if (err)
		unlist(ep);
	return err;
}

/* RET_WORDS: what was opened, or why nothing was. */
static int add_transport(struct nm_ep *ep, struct nm_engine *engine,
			 const struct nm_transport_kind *kind, struct nm_reason *ret_words)
{
	const char *name = nm_channel_name(kind->channel);
	struct nm_reason why = {"not allowed"};
	struct nm_transport *transport;
	int err = -FI_ENODEV;

	if (nm_params_channel_allowed(nm_params(), name))
		err = kind->create(nm_engine_sink(engine), &ep->address, &transport, &why);
	nm_reason_set(ret_words, "%s%s%s %.120s", err ? "no " : "", name, err ? ":" : "", why.text);
	return err ? err : nm_engine_add_transport(engine, transport);
}

/* An endpoint works with any one of its allowed channels; none at all is an error. */
static int add_transports(struct nm_ep *ep, struct nm_engine *engine)
{
	const struct nm_transport_kind *kind = NULL;
	int err = -FI_ENODEV, last;

	while ((kind = nm_transport_next(kind))) {
		struct nm_reason words;

		last = add_transport(ep, engine, kind, &words);
		err = err ? last : 0;
		nm_info("endpoint " NM_WHO_FORMAT ": %s", NM_WHO(&ep->address.who), words.text);
	}
	if (err)
		nm_error("endpoint not enabled: no channel of '%s' is usable",
			 nm_params()->channels);
	return err;
}

void nm_ep_bind_queues(struct nm_ep *ep, struct nm_engine *engine)
{
	struct nm_engine_queues queues = {
		.transmit = ep->tx_cq ? ep->tx_cq->queue : NULL,
		.receive = ep->rx_cq ? ep->rx_cq->queue : NULL,
	};
	struct nm_counter **to[NM_NR_CNTR_USES] = {
		[NM_CNTR_SEND] = &queues.send,
		[NM_CNTR_RECV] = &queues.recv,
		[NM_CNTR_READ] = &queues.read,
		[NM_CNTR_WRITE] = &queues.write,
		[NM_CNTR_REMOTE_READ] = &queues.remote_read,
		[NM_CNTR_REMOTE_WRITE] = &queues.remote_write,
	};
	int i;

	for (i = 0; i < NM_NR_CNTR_USES; i++)
		if (ep->cntrs[i])
			*to[i] = &ep->cntrs[i]->counter;
	nm_engine_bind(engine, &queues);
}

static void publish(void *arg)
{
	struct nm_ep *ep = arg;

	nm_stats_publish(ep->stats, nm_ep_collect_stats, ep->engine);
}

static int create_engine(struct nm_ep *ep, struct nm_engine **ret_engine)
{
	struct nm_engine_config config = {
		.memory = ep->domain->memory,
		.resolve = nm_av_resolve,
		.resolve_arg = ep->av,
		.has_devices = ep->domain->has_devices && ep->caps & FI_HMEM,
		.publish = publish,
		.publish_arg = ep,
	};
	const char *end = nm_on_loss_here();
	struct nm_engine *engine;
	int err;

	if (end) {
		config.lost = nm_on_loss_end;
		config.lost_arg = (void *)(uintptr_t)end;
	}
	memset(&ep->address, 0, sizeof(ep->address));
	ep->address.version = NM_ADDRESS_VERSION;
	err = nm_identity_create(&ep->address.who);
	if (err)
		return err;
	config.who = ep->address.who;
	err = nm_engine_create(&config, &engine);
	if (err)
		return err;
	nm_ep_bind_queues(ep, engine);
	nm_engine_set_min_multi_recv(engine, ep->min_multi_recv);
	err = add_transports(ep, engine);
	if (err) {
		nm_engine_destroy(engine);
		return err;
	}
	nm_engine_set_identity(engine, &ep->address.who);
	*ret_engine = engine;
	return 0;
}

int nm_ep_enable(struct nm_ep *ep)
{
	struct nm_engine *engine;
	int err;

	if (ep->engine)
		return -FI_EOPBADSTATE;
	if (!ep->av)
		return -FI_ENOAV;
	if ((ep->caps & (FI_SEND | FI_READ | FI_WRITE)) && !ep->tx_cq && !ep->cntrs[NM_CNTR_SEND] &&
	    !ep->cntrs[NM_CNTR_READ] && !ep->cntrs[NM_CNTR_WRITE])
		return -FI_ENOCQ;
	if ((ep->caps & FI_RECV) && !ep->rx_cq && !ep->cntrs[NM_CNTR_RECV])
		return -FI_ENOCQ;
	err = create_engine(ep, &engine);
	if (err)
		return err;
	nm_lock_take(&ep->domain->lock);
	err = list(ep);
	if (!err) {
		ep->engine = engine;
		ep->stats = nm_stats_open(&ep->address.who, NM_STATS_LIBFABRIC);
		publish(ep);
		nm_mover_look(&ep->domain->mover);
	}
	nm_lock_give(&ep->domain->lock);
	if (err)
		nm_engine_destroy(engine);
	return err;
}

static void put_objects(struct nm_ep *ep)
{
	int i;

	if (ep->av)
		nm_refs_put(&ep->av->refs);
	if (ep->tx_cq)
		nm_refs_put(&ep->tx_cq->refs);
	if (ep->rx_cq)
		nm_refs_put(&ep->rx_cq->refs);
	for (i = 0; i < NM_NR_CNTR_USES; i++)
		if (ep->cntrs[i])
			nm_refs_put(&ep->cntrs[i]->refs);
	nm_refs_put(&ep->domain->refs);
}

int nm_ep_close(struct fid *fid)
{
	struct nm_ep *ep = nm_container_of(fid, struct nm_ep, ep.fid);
	bool is_owner;

	forget(ep);
	if (ep->engine) {
		/* Under the lock: other endpoints' queues and regions are in use by their threads. */
		nm_lock_take(&ep->domain->lock);
		unlist(ep);
		nm_mover_look(&ep->domain->mover);
		/* A forked child must not say goodbye on its parent's connections: it only forgets. */
		is_owner = ep->owner == getpid();
		if (is_owner) {
			nm_stats_close(ep->stats, nm_ep_collect_stats, ep->engine);
			nm_engine_retire(ep->engine);
		}
		nm_lock_give(&ep->domain->lock);
		/* Saying goodbye may take a while: the others go on meanwhile. */
		if (is_owner)
			nm_engine_destroy(ep->engine);
	}
	put_objects(ep);
	nm_pages_free(ep->peers, ep->nr_peers * sizeof(struct nm_peer *));
	free(ep);
	return 0;
}

int nm_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ret_ep,
	       void *context)
{
	struct nm_ep *ep;

	if (info->ep_attr && info->ep_attr->type != FI_EP_UNSPEC &&
	    info->ep_attr->type != FI_EP_RDM)
		return -FI_ENOSYS;
	ep = calloc(1, sizeof(*ep));
	if (!ep)
		return -FI_ENOMEM;
	ep->caps = info->caps ? info->caps : NM_CAPS;
	ep->tx_op_flags = info->tx_attr ? info->tx_attr->op_flags & NM_TX_OP_FLAGS : 0;
	ep->rx_op_flags = info->rx_attr ? info->rx_attr->op_flags & NM_RX_OP_FLAGS : 0;
	ep->owner = getpid();
	ep->min_multi_recv = NM_MIN_MULTI_RECV;
	ep->domain = nm_container_of(domain, struct nm_domain, domain);
	nm_refs_get(&ep->domain->refs);
	ep->locked = ep->domain->lock.needed;
	ep->is_directed = ep->caps & FI_DIRECTED_RECV;
	ep->ep.fid.fclass = FI_CLASS_EP;
	ep->ep.fid.context = context;
	nm_ep_set_ops(ep);
	remember(ep);
	*ret_ep = &ep->ep;
	return 0;
}
