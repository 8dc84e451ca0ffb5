/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets without the target's help: where its process was proven (link->remote_copy) and it
 * shows the region in its window, the initiator copies by itself, in the call, and the access is
 * complete when the call returns. So do accesses to this endpoint's own memory. All others are
 * requests to the target, which then also says what was wrong with a key, rights or bounds: an
 * access is done directly or judged by its target, never judged here. Where no kernel copies, gets
 * from the target's heap are done directly, too (docs/design/heap.md).
 *
 * Order: an access is direct only while none of ours, atomics included, waits for an answer of that
 * peer, so it never overtakes one. Atomics are always executed by the target.
 */
#include <errno.h>
#include <string.h>

#include "base/arith.h"
#include "base/clock.h"
#include "engine/internal.h"
#include "engine/rndv_choice.h"

/* Up to here a polling target answers sooner than the kernel copies (docs/design/cma.md). */
#define ASK_MAX 8192

static void show(struct nm_memory_watch *watch, const struct nm_region *region)
{
	struct nm_engine *engine = nm_container_of(watch, struct nm_engine, regions);
	struct nm_region shown = *region;

	shown.access &= NM_REMOTE_READ | NM_REMOTE_WRITE;
	/* Without room peers ask, as they do elsewhere. */
	if (shown.access)
		(void)engine->publisher->copy->publish(engine->publisher, &shown);
}

static void hide(struct nm_memory_watch *watch, uint64_t key)
{
	struct nm_engine *engine = nm_container_of(watch, struct nm_engine, regions);

	engine->publisher->copy->revoke(engine->publisher, key);
}

void nm_rma_cma_withdraw(struct nm_engine *engine)
{
	if (engine->publishing)
		nm_memory_unwatch(engine->config.memory, &engine->regions);
	engine->publishing = false;
}

void nm_rma_cma_publish(struct nm_engine *engine)
{
	/* Accesses that have to be counted here must be seen here. */
	if (!engine->publisher || !engine->config.memory || engine->queues.remote_read ||
	    engine->queues.remote_write) {
		nm_rma_cma_withdraw(engine);
		return;
	}
	if (engine->publishing)
		return;
	engine->regions = (struct nm_memory_watch){.show = show, .hide = hide};
	engine->publishing = true;
	nm_memory_watch(engine->config.memory, &engine->regions);
}

/* Where a piece of the access lies in the target's memory; false: for the target to judge. */
static bool locate(const struct nm_region *region, const struct nm_remote *remote, uint64_t access,
		   struct nm_span *ret_span)
{
	uint64_t start = remote->address - region->offset;

	if (!(region->access & access) || remote->address < region->offset || start > region->len ||
	    remote->len > region->len - start)
		return false;
	*ret_span = (struct nm_span){region->base + start, remote->len};
	return true;
}

/* One contiguous piece, in steps. 0 or -errno. */
static int copy_span(struct nm_link *link, const struct nm_rma *rma, struct nm_cursor *cursor,
		     struct nm_span span, bool is_read)
{
	const struct nm_copy_ops *ops = link->transport->copy;
	struct iovec pieces[NM_IOV_MAX];

	while (span.len > 0) {
		uint64_t len = span.len < NM_REMOTE_COPY_STEP ? span.len : NM_REMOTE_COPY_STEP;
		struct nm_span step = {span.address, len};
		unsigned int nr = nm_cursor_take(cursor, rma->iov, rma->nr_iov, len, pieces);
		ssize_t got = is_read ? ops->read_remote(link, pieces, nr, &step, 1) :
					ops->write_remote(link, pieces, nr, &step, 1);

		if (got < 0 || (uint64_t)got != len)
			return got < 0 ? (int)got : -EFAULT;
		span.address += len;
		span.len -= len;
	}
	return 0;
}

static bool copy_all(struct nm_link *link, const struct nm_rma *rma,
		     const struct nm_region *regions, bool is_read)
{
	uint64_t access = is_read ? NM_REMOTE_READ : NM_REMOTE_WRITE;
	struct nm_span spans[NM_IOV_MAX];
	struct nm_cursor cursor = {0, 0};
	int err;

	for (size_t i = 0; i < rma->nr_remote; i++)
		if (!locate(&regions[i], &rma->remote[i], access, &spans[i]))
			return false;
	for (size_t i = 0; i < rma->nr_remote; i++) {
		err = copy_span(link, rma, &cursor, spans[i], is_read);
		if (err) {
			nm_rndv_choice_access_fell_back(rma->peer, is_read, err);
			return false;
		}
	}
	return true;
}

void nm_rma_cma_polled(struct nm_engine *engine, uint64_t now_ns)
{
	if (engine->publishing)
		engine->publisher->copy->polled(engine->publisher, now_ns);
}

/* Is it quicker to ask? Only a peer that polls answers before a system call ends. */
static bool better_asked(struct nm_link *link, uint64_t size)
{
	return size <= ASK_MAX && link->transport->copy->polls(link, nm_clock_ns());
}

/* Copy LEN bytes from one list of pieces to another; both have as many. A piece may overlap the one
 * it is copied to, and no other. */
static void move_pieces(const struct iovec *to, const struct iovec *from, uint64_t len)
{
	struct nm_cursor at = {0, 0}, source = {0, 0};
	uint64_t n;

	while (len > 0) {
		while (source.offset == from[source.index].iov_len)
			source = (struct nm_cursor){source.index + 1, 0};
		while (at.offset == to[at.index].iov_len)
			at = (struct nm_cursor){at.index + 1, 0};
		n = nm_min_u64(from[source.index].iov_len - source.offset,
			       to[at.index].iov_len - at.offset);
		n = nm_min_u64(n, len);
		memmove((char *)to[at.index].iov_base + at.offset,
			(const char *)from[source.index].iov_base + source.offset, n);
		at.offset += n;
		source.offset += n;
		len -= n;
	}
}

/* The target is this endpoint: it does all work of a target at once. */
static bool copy_own(struct nm_engine *engine, const struct nm_rma *rma, uint64_t size,
		     bool is_read)
{
	uint64_t access = is_read ? NM_REMOTE_READ : NM_REMOTE_WRITE;
	struct nm_peer *peer = rma->peer;
	struct iovec pieces[NM_RMA_SPAN_MAX];
	int nr;

	if (nm_rma_allowed(engine, rma->remote, rma->nr_remote, access) < 0)
		return false;
	nr = nm_rma_span(engine, rma->remote, rma->nr_remote, 0, size, access, pieces);
	if (nr <= 0 || !nm_user_is_host(pieces, (size_t)nr))
		return false;
	if (is_read)
		move_pieces(rma->iov, pieces, size);
	else
		move_pieces(pieces, rma->iov, size);
	nm_rma_count(engine, rma->remote, rma->nr_remote, access);
	/* What it has served itself, in the words of both sides. */
	if (is_read) {
		peer->sent_messages++;
		peer->sent_bytes += size;
	} else {
		peer->received_messages++;
		peer->received_bytes += size;
	}
	return true;
}

/* Through its kernel, in memory that the target shows. */
static bool copy_remote(const struct nm_rma *rma, uint64_t size, bool is_read)
{
	struct nm_link *link = rma->peer->link;
	struct nm_region regions[NM_IOV_MAX];
	uint64_t keys[NM_IOV_MAX];
	bool good;

	if (better_asked(link, size))
		return false;
	for (size_t i = 0; i < rma->nr_remote; i++)
		keys[i] = rma->remote[i].key;
	if (link->transport->copy->reach(link, keys, (unsigned int)rma->nr_remote, regions) < 0)
		return false;
	good = copy_all(link, rma, regions, is_read);
	link->transport->copy->leave(link);
	return good;
}

/* In memory of the target that this process has mapped. No size is better asked. */
static bool get_from_heap(const struct nm_rma *rma)
{
	struct nm_link *link = rma->peer->link;
	struct nm_cursor cursor = {0, 0};
	struct iovec pieces[NM_IOV_MAX];

	for (size_t i = 0; i < rma->nr_remote; i++) {
		struct nm_region wanted = {
			.key = rma->remote[i].key,
			.offset = rma->remote[i].address,
			.len = rma->remote[i].len,
			.access = NM_REMOTE_READ,
		};
		unsigned int nr =
			nm_cursor_take(&cursor, rma->iov, rma->nr_iov, wanted.len, pieces);

		if (link->transport->copy->get_heap(link, &wanted, pieces, nr) < 0)
			return false;
	}
	return true;
}

static bool copy(struct nm_engine *engine, const struct nm_rma *rma, uint64_t size, bool is_read,
		 enum nm_access_way *ret_way)
{
	const struct nm_link *link = rma->peer->link;

	*ret_way = link->remote_copy ? NM_ACCESS_CMA : NM_ACCESS_DIRECT;
	if (link->transport->kind->flags & NM_TRANSPORT_LOOPBACK)
		return copy_own(engine, rma, size, is_read);
	if (link->remote_copy)
		return copy_remote(rma, size, is_read);
	return is_read && link->reads_heap && get_from_heap(rma);
}

bool nm_rma_cma_copy(struct nm_engine *engine, const struct nm_rma *rma, uint64_t size,
		     bool is_read)
{
	struct nm_peer *peer = rma->peer;
	enum nm_access_way way;

	if (peer->nr_started > 0 || size == 0 || (!is_read && rma->flags & NM_REMOTE_CQ_DATA) ||
	    !nm_user_is_host(rma->iov, rma->nr_iov))
		return false;
	if (!copy(engine, rma, size, is_read, &way))
		return false;
	if (is_read) {
		peer->received_bytes += size;
	} else {
		peer->sent_messages++;
		peer->sent_bytes += size;
	}
	nm_peer_count_access(peer, way, is_read ? NM_ACCESS_GET : NM_ACCESS_PUT, size);
	nm_complete_transmit(engine, NM_RMA | (is_read ? NM_READ : NM_WRITE), rma->flags,
			     rma->context, 0);
	return true;
}
