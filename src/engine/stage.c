/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/stage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/device.h"
#include "base/pages.h"
#include "engine/internal.h"

/* Memory for one block. A copy from or to it may go on. */
struct block {
	char *bytes;
	uint64_t begin, end; /* the bytes of the transfer that are here, or will be */
	int64_t copy;	     /* that goes on; 0: none does */
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
	const struct nm_device_ops *pinned_by;
	size_t size; /* of a block */
};

static bool block_init(struct nm_stages *stages, struct block *b)
{
	if (!b->bytes) {
		b->bytes = nm_pages_alloc(stages->size);
		if (b->bytes && stages->pinned_by)
			stages->pinned_by->pin(b->bytes, stages->size);
	}
	return b->bytes;
}

/* Wait for the copy of B, or only ask for it. 0; -EAGAIN: it goes on; -EFAULT, -EIO. */
static int block_end_copy(struct block *b, bool waits)
{
	int err = b->copy ? b->copies->end(b->copy, waits) : b->err;

	if (err != -EAGAIN) {
		b->copy = 0;
		b->err = err;
	}
	return err;
}

static void block_fini(struct nm_stages *stages, struct block *b)
{
	block_end_copy(b, true);
	if (b->bytes && stages->pinned_by)
		stages->pinned_by->unpin(b->bytes);
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
			stages->pinned_by = device_of(iov, nr_iov);
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

void nm_stages_settle(struct nm_engine *engine, const struct nm_peer *peer)
{
	for (unsigned int i = 0; engine->stages && i < NM_NR_STAGES; i++) {
		struct stage *s = &engine->stages->transfers[i];

		if (!peer || (is_taken(s) && s->request->peer == peer))
			stage_wait(s);
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
	stage_wait(unused);
	unused->request = r;
	unused->id = nm_request_id(r);
	for (unsigned int i = 0; i < 2; i++) {
		unused->blocks[i].begin = unused->blocks[i].end = r->done;
		unused->blocks[i].err = 0;
	}
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
 * Begin a copy of LEN bytes between PIECES and block B, if they lie in one piece of a device that
 * copies so. False: there is none.
 */
static bool block_begin_copy(struct block *b, const struct iovec *pieces, int nr, uint64_t len,
			     bool is_get)
{
	const struct nm_device_ops *ops = nr == 1 ? device_of(pieces, 1) : NULL;
	int64_t copy;

	if (!ops || !ops->begin)
		return false;
	copy = ops->begin(nm_device_address(pieces->iov_base), b->bytes, len, is_get);
	if (copy < 0)
		return false;
	b->copy = copy;
	b->copies = ops;
	return true;
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
	int nr, err = 0;

	b->begin = b->end = from;
	b->err = 0;
	nr = len > 0 ? pieces_of(engine, r, from, len, pieces) : 0;
	if (nr <= 0)
		return nr;
	if (!block_begin_copy(b, pieces, nr, len, true)) {
		if (is_ahead)
			return 0;
		err = nm_iov_gather(b->bytes, pieces, (size_t)nr, len);
	}
	if (!err)
		b->end = from + len;
	return err;
}

static bool has(const struct block *b, uint64_t from, uint64_t len)
{
	return from >= b->begin && from + len <= b->end;
}

/* The next LEN bytes of R come from the present block of S, and the other one is filled. */
static int advance(struct nm_engine *engine, const struct nm_request *r, struct stage *s,
		   uint64_t len)
{
	int err = 0;

	if (has(&s->blocks[s->now], r->done, len))
		return 0;
	if (has(&s->blocks[!s->now], r->done, len)) {
		s->now = !s->now;
	} else {
		/* The first one; or the size of packets has changed. */
		stage_wait(s);
		err = fetch(engine, r, &s->blocks[s->now], r->done, false);
	}
	if (!err)
		fetch(engine, r, &s->blocks[!s->now], s->blocks[s->now].end, true);
	return err;
}

int nm_stage_out(struct nm_engine *engine, struct nm_request *r, uint64_t len,
		 struct iovec *ret_piece)
{
	struct iovec pieces[NM_RMA_SPAN_MAX];
	struct nm_stages *stages;
	struct stage *s;
	int nr, err;

	nr = pieces_of(engine, r, r->done, len, pieces);
	if (nr < 0)
		return nr;
	stages = stages_of(engine, pieces, (size_t)nr);
	if (!stages)
		return -EAGAIN;
	s = stage_of(stages, r);
	if (!s)
		return nm_stage_message(engine, pieces, (size_t)nr, len, ret_piece);
	err = advance(engine, r, s, len);
	if (!err)
		err = block_end_copy(&s->blocks[s->now], false);
	if (err == -EAGAIN) {
		/* The peer's other transfers have their turn meanwhile. */
		nm_list_remove(&r->stream_node);
		nm_list_append(&r->peer->streams, &r->stream_node);
	} else if (err < 0) {
		stage_wait(s);
	}
	if (err < 0)
		return err;
	*ret_piece =
		(struct iovec){s->blocks[s->now].bytes + (r->done - s->blocks[s->now].begin), len};
	return 0;
}

/* Give the device what is in the present block; the other one is free afterwards. */
static int flush(struct nm_engine *engine, const struct nm_request *r, struct stage *s)
{
	struct block *b = &s->blocks[s->now];
	struct iovec pieces[NM_RMA_SPAN_MAX];
	uint64_t len = b->end - b->begin;
	int nr = pieces_of(engine, r, b->begin, len, pieces), err = 0;

	if (nr < 0)
		return nr;
	if (nr > 0 && !block_begin_copy(b, pieces, nr, len, false))
		err = nm_iov_scatter(pieces, (size_t)nr, b->bytes, len);
	s->now = !s->now;
	s->blocks[s->now].begin = s->blocks[s->now].end = b->end;
	return err ? err : block_end_copy(&s->blocks[s->now], true);
}

int nm_stage_in(struct nm_engine *engine, struct nm_request *r, const void *bytes, uint64_t len)
{
	struct iovec pieces[NM_RMA_SPAN_MAX];
	int nr = pieces_of(engine, r, r->done, len, pieces), err = 0, last = 0;
	struct nm_stages *stages;
	struct block *b;
	struct stage *s;

	if (nr < 0)
		return nr;
	stages = stages_of(engine, pieces, (size_t)nr);
	s = stages ? stage_of(stages, r) : NULL;
	if (!s)
		return nm_iov_scatter(pieces, (size_t)nr, bytes, len);
	b = &s->blocks[s->now];
	if (b->end - b->begin + len > stages->size)
		err = flush(engine, r, s);
	b = &s->blocks[s->now];
	if (!err) {
		memcpy(b->bytes + (b->end - b->begin), bytes, len);
		b->end += len;
	}
	if (!err && b->end == r->accepted)
		err = flush(engine, r, s);
	/* Nothing goes on when the transfer ends. */
	if (err || r->done + len == r->accepted)
		last = stage_wait(s);
	return err ? err : last;
}
