/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/stage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/device.h"
#include "base/pages.h"
#include "engine/internal.h"

struct stage {
	char *bytes;
	struct nm_request *request; /* valid while its id is the one here */
	uint64_t id;
	uint64_t begin, end; /* the bytes of the transfer that are here */
};

struct nm_stages {
	struct stage transfers[NM_NR_STAGES];
	struct stage message; /* what nm_stage_message() and transfers without a stage use */
	const struct nm_device_ops *pinned_by;
};

static char *stage_bytes(struct nm_stages *stages, struct stage *stage)
{
	if (!stage->bytes) {
		stage->bytes = nm_pages_alloc(NM_STAGE_SIZE);
		if (stage->bytes && stages->pinned_by)
			stages->pinned_by->pin(stage->bytes, NM_STAGE_SIZE);
	}
	return stage->bytes;
}

static void stage_fini(struct nm_stages *stages, struct stage *stage)
{
	if (stage->bytes && stages->pinned_by)
		stages->pinned_by->unpin(stage->bytes);
	nm_pages_free(stage->bytes, NM_STAGE_SIZE);
}

void nm_stages_destroy(struct nm_stages *stages)
{
	if (!stages)
		return;
	for (unsigned int i = 0; i < NM_NR_STAGES; i++)
		stage_fini(stages, &stages->transfers[i]);
	stage_fini(stages, &stages->message);
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
		if (stages)
			stages->pinned_by = device_of(iov, nr_iov);
	}
	return stages;
}

int nm_stage_message(struct nm_engine *engine, const struct iovec *iov, size_t nr_iov, uint64_t len,
		     struct iovec *ret_piece)
{
	struct nm_stages *stages = stages_of(engine, iov, nr_iov);

	if (!stages || !stage_bytes(stages, &stages->message))
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
	if (!unused || !stage_bytes(stages, unused))
		return NULL;
	unused->request = r;
	unused->id = nm_request_id(r);
	unused->begin = unused->end = r->done;
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

int nm_stage_out(struct nm_engine *engine, struct nm_request *r, uint64_t len,
		 struct iovec *ret_piece)
{
	struct iovec pieces[NM_RMA_SPAN_MAX];
	struct nm_stages *stages;
	struct stage *s;
	uint64_t block;
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
	if (r->done < s->begin || r->done + len > s->end) {
		block = r->accepted - r->done;
		if (block > NM_STAGE_SIZE)
			block = NM_STAGE_SIZE;
		nr = pieces_of(engine, r, r->done, block, pieces);
		err = nr < 0 ? nr : nm_iov_gather(s->bytes, pieces, (size_t)nr, block);
		if (err < 0)
			return err;
		s->begin = r->done;
		s->end = r->done + block;
	}
	*ret_piece = (struct iovec){s->bytes + (r->done - s->begin), len};
	return 0;
}

/* Give the device what is here. */
static int flush(struct nm_engine *engine, const struct nm_request *r, struct stage *s)
{
	struct iovec pieces[NM_RMA_SPAN_MAX];
	uint64_t len = s->end - s->begin;
	int nr = pieces_of(engine, r, s->begin, len, pieces);

	if (nr < 0)
		return nr;
	s->begin = s->end;
	return nm_iov_scatter(pieces, (size_t)nr, s->bytes, len);
}

int nm_stage_in(struct nm_engine *engine, struct nm_request *r, const void *bytes, uint64_t len)
{
	struct iovec pieces[NM_RMA_SPAN_MAX];
	int nr = pieces_of(engine, r, r->done, len, pieces), err = 0;
	struct nm_stages *stages;
	struct stage *s;

	if (nr < 0)
		return nr;
	stages = stages_of(engine, pieces, (size_t)nr);
	s = stages ? stage_of(stages, r) : NULL;
	if (!s)
		return nm_iov_scatter(pieces, (size_t)nr, bytes, len);
	if (s->end - s->begin + len > NM_STAGE_SIZE)
		err = flush(engine, r, s);
	memcpy(s->bytes + (s->end - s->begin), bytes, len);
	s->end += len;
	if (!err && s->end == r->accepted)
		err = flush(engine, r, s);
	return err;
}
