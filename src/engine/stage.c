/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/stage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/device.h"
#include "base/pages.h"
#include "engine/internal.h"

/* More of a peer's memory is not pinned. */
#define PEER_MEMORY_MAX (64u << 20)

/* Payloads of a peer that lie side by side, where it wrote them. */
struct seen {
	const char *bytes;
	struct nm_transport *from;
	const struct nm_peer *peer;
	uint64_t hold; /* of the first */
	uint32_t nr;   /* 0: none */
};

/*
 * Memory for one block. A copy from or to it may go on. A channel may have other memory for it
 * (struct nm_place_ops): a block that goes out lies in places of the channel, and one that comes in
 * where the peer wrote it. Then the device writes where the peer reads, or the other way round.
 */
struct block {
	char *bytes;
	struct seen seen;      /* nr 0: the block lies in `bytes`, or in: */
	struct nm_place place; /* from `begin` on; nr 0: the block lies in `bytes` */
	struct nm_link *link;  /* of `place` */
	uint64_t begin, end;   /* the bytes of the transfer that are here, or will be */
	int64_t copy;	       /* that goes on; 0: none does */
	const struct nm_device_ops *copies;
	int err; /* of the last copy that went on, until the next one */
};

/* One block is filled while the other is emptied. */
struct stage {
	struct block blocks[2];
	bool now;		    /* which one packets are taken from, or collected in */
	struct nm_request *request; /* valid while its id is the one here */
	uint64_t id;
};

struct nm_stages {
	struct stage transfers[NM_NR_STAGES];
	struct block message; /* what nm_stage_message() and transfers without a stage use */
	const struct nm_device_ops *ops; /* that pin memory */
	enum nm_places places[NM_NR_CHANNELS];
	size_t size; /* of a block */
};

enum nm_places nm_stages_places(const struct nm_stages *stages, enum nm_channel channel)
{
	return stages ? stages->places[channel] : NM_PLACES_UNKNOWN;
}

void nm_stages_forget_places(struct nm_stages *stages, enum nm_channel channel)
{
	if (stages)
		stages->places[channel] = NM_PLACES_UNKNOWN;
}

const struct nm_device_ops *nm_stages_device(const struct nm_stages *stages)
{
	return stages ? stages->ops : NULL;
}

static bool block_init(struct nm_stages *stages, struct block *b)
{
	if (!b->bytes) {
		b->bytes = nm_pages_alloc(stages->size);
		if (b->bytes && stages->ops)
			nm_device_pin(stages->ops, b->bytes, stages->size, false);
	}
	return b->bytes;
}

/* The peer may have the memory of a block back. */
static void block_release(struct block *b)
{
	struct seen *seen = &b->seen;

	for (; seen->nr; seen->nr--)
		seen->from->place->release(seen->from, seen->peer, seen->hold++);
}

/* Wait for the copy of B, or only ask for it. 0; -EAGAIN: it goes on; -EFAULT, -EIO. */
static int block_end_copy(struct block *b, bool waits)
{
	int err = b->copy ? b->copies->end(b->copy, waits) : b->err;

	if (err != -EAGAIN && b->copy) {
		b->copy = 0;
		b->err = err;
		block_release(b);
	}
	return err;
}

/* Nothing is here, nor will be. */
static void block_drop(struct block *b)
{
	block_end_copy(b, true);
	block_release(b);
	b->err = 0;
	b->end = b->begin;
	if (b->place.nr)
		b->link->transport->place->unreserve(b->link, &b->place);
}

static void block_fini(struct nm_stages *stages, struct block *b)
{
	block_drop(b);
	if (b->bytes)
		nm_device_unpin(b->bytes);
	nm_pages_free(b->bytes, stages->size);
}

/* 0, or the first error. */
static int stage_wait(struct stage *s)
{
	int err = block_end_copy(&s->blocks[!s->now], true);
	int last = block_end_copy(&s->blocks[s->now], true);

	return err ? err : last;
}

void nm_stages_destroy(struct nm_stages *stages)
{
	if (!stages)
		return;
	for (unsigned int i = 0; i < NM_NR_STAGES; i++) {
		block_fini(stages, &stages->transfers[i].blocks[0]);
		block_fini(stages, &stages->transfers[i].blocks[1]);
	}
	block_fini(stages, &stages->message);
	free(stages);
}

/* The interface of the first piece on a device; NULL: none is. */
static const struct nm_device_ops *device_of(const struct iovec *iov, size_t nr_iov)
{
	for (size_t i = 0; i < nr_iov; i++)
		if (nm_is_device(iov[i].iov_base))
			return nm_device_ops_of(iov[i].iov_base);
	return NULL;
}

static struct nm_stages *stages_of(struct nm_engine *engine, const struct iovec *iov, size_t nr_iov)
{
	struct nm_stages *stages = engine->stages;

	if (!stages) {
		stages = engine->stages = calloc(1, sizeof(*stages));
		if (stages) {
			stages->ops = device_of(iov, nr_iov);
			stages->size = engine->params->device_block;
		}
	}
	return stages;
}

int nm_stage_message(struct nm_engine *engine, const struct iovec *iov, size_t nr_iov, uint64_t len,
		     struct iovec *ret_piece)
{
	struct nm_stages *stages = stages_of(engine, iov, nr_iov);

	if (!stages || !block_init(stages, &stages->message))
		return -EAGAIN;
	*ret_piece = (struct iovec){stages->message.bytes, len};
	return nm_iov_gather(stages->message.bytes, iov, nr_iov, len);
}

static bool is_taken(const struct stage *stage)
{
	return stage->request && nm_request_id(stage->request) == stage->id;
}

bool nm_stage_is_open(const struct nm_engine *engine, const struct nm_request *r)
{
	for (unsigned int i = 0; i < NM_NR_STAGES; i++) {
		const struct stage *s = &engine->stages->transfers[i];

		if (s->request == r && is_taken(s))
			return true;
	}
	return false;
}

static void stage_drop(struct stage *s)
{
	block_drop(&s->blocks[0]);
	block_drop(&s->blocks[1]);
	s->request = NULL;
}

void nm_stage_end(struct nm_engine *engine, const struct nm_request *r)
{
	for (unsigned int i = 0; engine->stages && i < NM_NR_STAGES; i++)
		if (engine->stages->transfers[i].request == r)
			stage_drop(&engine->stages->transfers[i]);
}

void nm_stages_end(struct nm_engine *engine, const struct nm_peer *peer)
{
	for (unsigned int i = 0; engine->stages && i < NM_NR_STAGES; i++) {
		struct stage *s = &engine->stages->transfers[i];

		if (!peer || (is_taken(s) && s->request->peer == peer))
			stage_drop(s);
	}
}

void nm_stages_leave(struct nm_engine *engine, const struct nm_link *link)
{
	for (unsigned int i = 0; engine->stages && i < 2 * NM_NR_STAGES; i++) {
		struct block *b = &engine->stages->transfers[i / 2].blocks[i % 2];

		if (b->place.nr && b->link == link)
			block_drop(b);
	}
}

/* The stage of transfer R, which gets one if there is any left. NULL: there is none. */
static struct stage *stage_of(struct nm_stages *stages, struct nm_request *r)
{
	struct stage *unused = NULL;

	for (unsigned int i = 0; i < NM_NR_STAGES; i++) {
		struct stage *s = &stages->transfers[i];

		if (!is_taken(s))
			unused = s;
		else if (s->request == r)
			return s;
	}
	if (!unused || !block_init(stages, &unused->blocks[0]) ||
	    !block_init(stages, &unused->blocks[1]))
		return NULL;
	stage_drop(unused);
	unused->request = r;
	unused->id = nm_request_id(r);
	for (unsigned int i = 0; i < 2; i++)
		unused->blocks[i].begin = unused->blocks[i].end = r->done;
	return unused;
}

/* LEN bytes from OFFSET on, in the user's memory. Returns the number of pieces or -EACCES. */
static int pieces_of(struct nm_engine *engine, const struct nm_request *r, uint64_t offset,
		     uint64_t len, struct iovec *ret_pieces)
{
	struct nm_cursor cursor;

	/* Regions are looked up again each time: they may be gone by now. */
	if (r->kind == NM_REQUEST_SERVE_READ || r->kind == NM_REQUEST_SERVE_WRITE)
		return nm_rma_span(engine, r->remote, r->nr_remote, offset, len,
				   r->kind == NM_REQUEST_SERVE_READ ? NM_REMOTE_READ :
								      NM_REMOTE_WRITE,
				   ret_pieces);
	cursor = nm_cursor_at(r->iov, r->nr_iov, offset);
	return (int)nm_cursor_take(&cursor, r->iov, r->nr_iov, len, ret_pieces);
}

/*
 * Begin a copy of LEN bytes between PIECES and BYTES of block B, if they lie in one piece of a
 * device that copies so. False: there is none.
 */
static bool block_begin_copy(struct block *b, void *bytes, const struct iovec *pieces, int nr,
			     uint64_t len, bool is_get)
{
	const struct nm_device_ops *ops = nr == 1 ? device_of(pieces, 1) : NULL;
	int64_t copy;

	if (!ops || !ops->begin)
		return false;
	copy = ops->begin(nm_device_address(pieces->iov_base), bytes, len, is_get);
	if (copy < 0)
		return false;
	b->copy = copy;
	b->copies = ops;
	return true;
}

/* Can a device write into the places of this transport? Its memory is pinned at the first call. */
static bool has_places(struct nm_stages *stages, struct nm_transport *t)
{
	enum nm_places *places;
	struct iovec memory;

	if (!t->place || !stages->ops)
		return false;
	places = &stages->places[t->kind->channel];
	if (*places == NM_PLACES_UNKNOWN) {
		t->place->memory(t, &memory);
		*places = nm_device_pin(stages->ops, memory.iov_base, memory.iov_len, false) ?
				  NM_PLACES_PINNED :
				  NM_PLACES_REFUSED;
	}
	return *places == NM_PLACES_PINNED;
}

/*
 * Have a device copy the bytes of transfer R from FROM on, LEN at most, into places of its link, as
 * block B. 0; -EAGAIN, -EPIPE; -EOPNOTSUPP: another way is left.
 */
static int fetch_in_place(struct nm_engine *engine, const struct nm_request *r, struct block *b,
			  uint64_t from, uint64_t len)
{
	const uint64_t max = r->peer->max_payload;
	struct nm_link *link = r->peer->link;
	struct iovec pieces[NM_RMA_SPAN_MAX];
	int nr, err;

	if (!has_places(engine->stages, link->transport))
		return -EOPNOTSUPP;
	err = link->transport->place->reserve(link, (unsigned int)((len + max - 1) / max),
					      &b->place);
	if (err < 0)
		return err;
	b->link = link;
	if (len > b->place.nr * max)
		len = b->place.nr * max;
	nr = pieces_of(engine, r, from, len, pieces);
	if (!block_begin_copy(b, b->place.bytes, pieces, nr, len, true)) {
		block_drop(b);
		return -EOPNOTSUPP;
	}
	b->end = from + len;
	return 0;
}

/*
 * Copy the bytes of transfer R from FROM on into block B: as many packets as fit. IS_AHEAD: they
 * are not needed yet, so only if the copy goes on by itself.
 */
static int fetch(struct nm_engine *engine, const struct nm_request *r, struct block *b,
		 uint64_t from, bool is_ahead)
{
	const uint64_t max = r->peer->max_payload;
	const uint64_t room = engine->stages->size / max * max, left = r->accepted - from;
	const uint64_t len = left < room ? left : room;
	struct iovec pieces[NM_RMA_SPAN_MAX];
	int nr, err;

	block_drop(b);
	b->begin = b->end = from;
	if (len == 0)
		return 0;
	err = fetch_in_place(engine, r, b, from, len);
	if (err != -EOPNOTSUPP)
		return err;
	nr = pieces_of(engine, r, from, len, pieces);
	if (nr < 0)
		return nr;
	err = 0;
	if (!block_begin_copy(b, b->bytes, pieces, nr, len, true)) {
		if (is_ahead)
			return 0;
		err = nm_iov_gather(b->bytes, pieces, (size_t)nr, len);
	}
	if (!err)
		b->end = from + len;
	return err;
}

/* Are these bytes in block B, and where they can be sent from? */
static bool has(const struct block *b, const struct nm_peer *peer, uint64_t from, uint64_t len)
{
	if (b->place.nr && (b->link != peer->link || from != b->begin))
		return false;
	return from >= b->begin && from + len <= b->end;
}

/* The next LEN bytes of R come from the present block of S, and the other one is filled. */
static int advance(struct nm_engine *engine, const struct nm_request *r, struct stage *s,
		   uint64_t len)
{
	int err = 0;

	if (has(&s->blocks[s->now], r->peer, r->done, len))
		return 0;
	if (has(&s->blocks[!s->now], r->peer, r->done, len)) {
		s->now = !s->now;
	} else {
		/* The first one; or the size of packets or the link has changed. */
		block_drop(&s->blocks[!s->now]);
		err = fetch(engine, r, &s->blocks[s->now], r->done, false);
	}
	if (!err)
		fetch(engine, r, &s->blocks[!s->now], s->blocks[s->now].end, true);
	return err;
}

static int send_from(struct nm_peer *peer, struct block *b, uint64_t from,
		     const struct nm_packet *packet)
{
	struct iovec piece = {b->bytes + (from - b->begin), packet->len};
	int err;

	if (!b->place.nr)
		return peer->send(peer->link, packet, &piece, 1);
	err = peer->link->transport->place->send_place(peer->link, packet, &b->place);
	if (!err)
		b->begin += packet->len;
	return err;
}

int nm_stage_send(struct nm_engine *engine, struct nm_request *r, const struct nm_packet *packet)
{
	struct iovec pieces[NM_RMA_SPAN_MAX], piece;
	struct nm_peer *peer = r->peer;
	struct nm_stages *stages;
	struct stage *s;
	int nr, err;

	nr = pieces_of(engine, r, r->done, packet->len, pieces);
	if (nr < 0)
		return nr;
	stages = stages_of(engine, pieces, (size_t)nr);
	if (!stages)
		return -EAGAIN;
	s = stage_of(stages, r);
	if (!s) {
		err = nm_stage_message(engine, pieces, (size_t)nr, packet->len, &piece);
		return err ? err : peer->send(peer->link, packet, &piece, 1);
	}
	err = advance(engine, r, s, packet->len);
	if (!err)
		err = block_end_copy(&s->blocks[s->now], false);
	if (!err)
		return send_from(peer, &s->blocks[s->now], r->done, packet);
	if (err == -EAGAIN) {
		/* The peer's other transfers have their turn meanwhile. */
		nm_list_remove(&r->stream_node);
		nm_list_append(&peer->streams, &r->stream_node);
	}
	return err;
}

/* Give the device what is in the present block; the other one is free afterwards. */
static int flush(struct nm_engine *engine, const struct nm_request *r, struct stage *s)
{
	struct block *b = &s->blocks[s->now];
	const char *bytes = b->seen.nr ? b->seen.bytes : b->bytes;
	struct iovec pieces[NM_RMA_SPAN_MAX];
	uint64_t len = b->end - b->begin;
	int nr = pieces_of(engine, r, b->begin, len, pieces), err = 0;

	if (nr < 0)
		return nr;
	if (nr > 0 && !block_begin_copy(b, (void *)(uintptr_t)bytes, pieces, nr, len, false)) {
		err = nm_iov_scatter(pieces, (size_t)nr, bytes, len);
		block_release(b);
	}
	s->now = !s->now;
	s->blocks[s->now].begin = s->blocks[s->now].end = b->end;
	return err ? err : block_end_copy(&s->blocks[s->now], true);
}

/* Can a device read the payload of IN where it lies, also after deliver()? *RET_HOLD keeps it. */
static bool hold(const struct nm_stages *stages, const struct nm_incoming *in, uint64_t *ret_hold)
{
	const struct nm_place_ops *place = in->from->place;
	struct nm_peer *peer = in->peer;
	struct iovec memory;

	if (!place || !stages->ops || !stages->ops->begin)
		return false;
	if (peer->places == NM_PLACES_UNKNOWN)
		peer->places = place->peer_memory(in->from, peer, &memory) &&
					       memory.iov_len <= PEER_MEMORY_MAX &&
					       nm_device_pin(stages->ops, memory.iov_base,
							     memory.iov_len, true) ?
				       NM_PLACES_PINNED :
				       NM_PLACES_REFUSED;
	return peer->places == NM_PLACES_PINNED && place->hold(in->from, peer, ret_hold);
}

/* Can the next LEN bytes be appended to block B? IS_HELD: they lie at BYTES by HOLD. */
static bool fits(const struct nm_stages *stages, const struct block *b, bool is_held, uint64_t hold,
		 const char *bytes, uint64_t len)
{
	const uint64_t used = b->end - b->begin;

	if (used == 0)
		return true;
	if (used + len > stages->size || is_held != (b->seen.nr > 0))
		return false;
	return !is_held || (bytes == b->seen.bytes + used && hold == b->seen.hold + b->seen.nr);
}

static void append(const struct nm_incoming *in, struct block *b, bool is_held, uint64_t hold,
		   const char *bytes, uint64_t len)
{
	if (!is_held)
		memcpy(b->bytes + (b->end - b->begin), bytes, len);
	else if (b->seen.nr++ == 0)
		b->seen = (struct seen){bytes, in->from, in->peer, hold, 1};
	b->end += len;
}

int nm_stage_in(const struct nm_incoming *in, struct nm_request *r, const void *bytes, uint64_t len)
{
	struct iovec pieces[NM_RMA_SPAN_MAX];
	struct nm_engine *engine = in->engine;
	int nr = pieces_of(engine, r, r->done, len, pieces), err = 0;
	struct nm_stages *stages;
	uint64_t number = 0;
	struct stage *s;
	bool is_held;

	if (nr < 0)
		return nr;
	stages = stages_of(engine, pieces, (size_t)nr);
	s = stages ? stage_of(stages, r) : NULL;
	if (!s)
		return nm_iov_scatter(pieces, (size_t)nr, bytes, len);
	is_held = hold(stages, in, &number);
	if (!fits(stages, &s->blocks[s->now], is_held, number, bytes, len))
		err = flush(engine, r, s);
	if (!err)
		append(in, &s->blocks[s->now], is_held, number, bytes, len);
	else if (is_held)
		in->from->place->release(in->from, in->peer, number);
	if (!err && r->done + len == r->accepted) {
		err = flush(engine, r, s);
		/* Nothing goes on when the transfer ends. */
		if (!err)
			err = stage_wait(s);
	}
	if (err)
		stage_drop(s);
	return err;
}

void nm_stage_failed(struct nm_request *r, int err)
{
	r->error = r->kind != NM_REQUEST_SERVE_WRITE || err == -EACCES ? -err : EIO;
}

static bool has_seen(const struct stage *s, const struct nm_transport *from,
		     const struct nm_peer *peer)
{
	for (unsigned int i = 0; i < 2; i++)
		if (s->blocks[i].seen.nr && s->blocks[i].seen.from == from &&
		    s->blocks[i].seen.peer == peer)
			return true;
	return false;
}

/* The device gets what is here and is free again of what it has, at once or (WAITS) with a wait. */
static int hurry(struct nm_engine *engine, struct stage *s, bool waits)
{
	const struct block *b = &s->blocks[s->now];
	int err = waits ? 0 : block_end_copy(&s->blocks[!s->now], false);

	if (!err && is_taken(s) && b->end > b->begin)
		err = flush(engine, s->request, s);
	if (!err && waits)
		err = stage_wait(s);
	return err;
}

void nm_sink_let_go(struct nm_transport *from, struct nm_peer *peer, bool waits)
{
	struct nm_engine *engine = from->sink.engine;

	for (unsigned int i = 0; engine->stages && i < NM_NR_STAGES; i++) {
		struct stage *s = &engine->stages->transfers[i];
		int err;

		if (!has_seen(s, from, peer))
			continue;
		err = hurry(engine, s, waits);
		if (err == -EAGAIN)
			continue;
		if (err && is_taken(s))
			nm_stage_failed(s->request, err);
		if (err || !is_taken(s))
			stage_drop(s);
	}
}
