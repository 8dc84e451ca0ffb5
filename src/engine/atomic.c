/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote atomics: the target does them in its progress, one after the other, in order of arrival,
 * so all atomics on a region are atomic to each other and ordered per initiator.
 */
#include "engine/atomic.h"

#include <errno.h>
#include <stdalign.h>
#include <string.h>

#include "engine/internal.h"

#define ELEMENT_ALIGN 16 /* of the largest element */

static enum nm_atomic_kind kind_of(const struct nm_atomic *atomic)
{
	if (atomic->nr_compare > 0)
		return NM_ATOMIC_COMPARE;
	return atomic->nr_result > 0 ? NM_ATOMIC_FETCH : NM_ATOMIC_UPDATE;
}

static int check(const struct nm_atomic *a, enum nm_atomic_kind kind, uint64_t *ret_size)
{
	struct nm_iov_sizes operand = {a->nr_operand, 0};
	uint64_t size;

	if (!a->peer || a->nr_operand > NM_IOV_MAX || a->nr_compare > NM_IOV_MAX ||
	    a->nr_result > NM_IOV_MAX || !nm_atomic_valid(kind, a->datatype, a->op))
		return -EINVAL;
	size = nm_iov_total(a->op == NM_ATOMIC_READ ? a->result : a->operand,
			    a->op == NM_ATOMIC_READ ? a->nr_result : a->nr_operand);
	if (size == 0 || size > NM_ATOMIC_MAX_BYTES || size % nm_atomic_size(a->datatype))
		return -EINVAL;
	operand.total = size;
	if (kind != NM_ATOMIC_UPDATE && nm_iov_total(a->result, a->nr_result) != size)
		return -EINVAL;
	if (kind == NM_ATOMIC_COMPARE && nm_iov_total(a->compare, a->nr_compare) != size)
		return -EINVAL;
	*ret_size = size;
	return nm_rma_check(&operand, a->remote, a->nr_remote);
}

static int start(struct nm_engine *engine, const struct nm_atomic *a, enum nm_atomic_kind kind,
		 uint64_t size)
{
	struct nm_peer *peer = a->peer;
	struct nm_wire_atomic head = {
		.kind = (uint8_t)kind,
		.datatype = (uint8_t)a->datatype,
		.op = (uint8_t)a->op,
		.size = (uint32_t)size,
	};
	struct nm_wire_remote wire[NM_IOV_MAX];
	struct iovec iov[2 + 2 * NM_IOV_MAX] = {
		{&head, sizeof(head)},
		{wire, a->nr_remote * sizeof(*wire)},
	};
	struct nm_packet packet = {
		.op = NM_OP_ATOMIC,
		.flags = (uint8_t)((a->nr_remote - 1) << NM_PKT_NR_SHIFT |
				   (a->flags & NM_REMOTE_CQ_DATA ? NM_PKT_DATA : 0)),
		.data = a->data,
	};
	uint64_t kind_flag = kind == NM_ATOMIC_UPDATE ? NM_WRITE : NM_READ;
	unsigned int nr = 2;
	struct nm_request *r;
	int err = nm_send_ready(engine, peer);

	if (err < 0)
		return err;
	r = nm_rma_start(engine, peer, NM_REQUEST_ATOMIC,
			 (a->flags & ~(NM_READ | NM_WRITE)) | kind_flag, a->context);
	if (!r)
		return -EAGAIN;
	nm_rma_to_wire(wire, a->remote, a->nr_remote);
	for (size_t i = 0; a->op != NM_ATOMIC_READ && i < a->nr_operand; i++)
		iov[nr++] = a->operand[i];
	for (size_t i = 0; kind == NM_ATOMIC_COMPARE && i < a->nr_compare; i++)
		iov[nr++] = a->compare[i];
	r->size = kind == NM_ATOMIC_UPDATE ? 0 : size;
	r->nr_iov = kind == NM_ATOMIC_UPDATE ? 0 : a->nr_result;
	for (size_t i = 0; i < r->nr_iov; i++)
		r->iov[i] = a->result[i];
	nm_request_set_state(r, NM_REQUEST_WAIT_ACK);
	packet.tag = nm_request_id(r);
	packet.len = (uint32_t)nm_iov_total(iov, nr);
	err = nm_send_envelope(engine, peer, &packet, iov, nr);
	if (err < 0) {
		nm_rma_abandon(engine, r);
		return err;
	}
	peer->sent_messages++;
	peer->sent_bytes += size;
	nm_peer_count_access(peer, NM_ACCESS_SERVED, NM_ACCESS_ATOMIC, size);
	return 0;
}

int nm_engine_atomic(struct nm_engine *engine, const struct nm_atomic *atomic)
{
	enum nm_atomic_kind kind = kind_of(atomic);
	uint64_t size;
	int err = check(atomic, kind, &size);

	if (err < 0)
		return err;
	err = start(engine, atomic, kind, size);
	if (err == -EAGAIN) {
		nm_send_stalled(engine, atomic->peer);
		err = start(engine, atomic, kind, size);
	}
	return err;
}

/* ---- the target ---- */

/* One request, taken apart and copied out of the peer's reach. */
struct atomic_request {
	struct nm_wire_atomic head;
	struct nm_remote remote[NM_IOV_MAX];
	size_t nr_remote;
	alignas(ELEMENT_ALIGN) char operand[NM_ATOMIC_MAX_BYTES];
	alignas(ELEMENT_ALIGN) char compare[NM_ATOMIC_MAX_BYTES];
};

/* 0; -EBADMSG: no sound peer sends it; -EOPNOTSUPP: one that knows more than we do may. */
static int parse(const struct nm_packet *pkt, const void *payload, struct atomic_request *ret)
{
	const char *at = payload;
	uint64_t total;
	size_t need, element;
	int nr;

	if (pkt->len < sizeof(ret->head))
		return -EBADMSG;
	memcpy(&ret->head, at, sizeof(ret->head));
	nr = nm_rma_from_wire(pkt, payload, sizeof(ret->head), ret->remote, &total);
	if (nr < 0 || total != ret->head.size || total > NM_ATOMIC_MAX_BYTES || total == 0)
		return -EBADMSG;
	if (!nm_atomic_valid(ret->head.kind, ret->head.datatype, ret->head.op))
		return -EOPNOTSUPP;
	ret->nr_remote = (size_t)nr;
	element = nm_atomic_size(ret->head.datatype);
	for (size_t i = 0; i < ret->nr_remote; i++)
		if (ret->remote[i].len % element)
			return -EBADMSG;
	need = sizeof(ret->head) + ret->nr_remote * sizeof(struct nm_wire_remote);
	at += need;
	if (ret->head.op != NM_ATOMIC_READ)
		need += total;
	if (ret->head.kind == NM_ATOMIC_COMPARE)
		need += total;
	if (pkt->len != need)
		return -EBADMSG;
	if (ret->head.op != NM_ATOMIC_READ) {
		memcpy(ret->operand, at, total);
		at += total;
	}
	if (ret->head.kind == NM_ATOMIC_COMPARE)
		memcpy(ret->compare, at, total);
	return 0;
}

static uint64_t access_of(const struct atomic_request *request)
{
	if (request->head.op == NM_ATOMIC_READ)
		return NM_REMOTE_READ;
	if (request->head.kind == NM_ATOMIC_UPDATE)
		return NM_REMOTE_WRITE;
	return NM_REMOTE_READ | NM_REMOTE_WRITE;
}

/* Do it. ret_before has room for the operand's size. 0, -EACCES, or -EIO: a device failed. */
static int execute(struct nm_engine *engine, const struct atomic_request *request, void *ret_before)
{
	const struct nm_wire_atomic *head = &request->head;
	uint64_t access = access_of(request);
	size_t count = head->size / nm_atomic_size(head->datatype);
	alignas(ELEMENT_ALIGN) char scratch[NM_ATOMIC_MAX_BYTES];
	struct iovec pieces[NM_RMA_SPAN_MAX];
	int nr;

	if (nm_rma_allowed(engine, request->remote, request->nr_remote, access) < 0)
		return -EACCES;
	nr = nm_rma_span(engine, request->remote, request->nr_remote, 0, head->size, access,
			 pieces);
	if (nr < 0)
		return nr;
	/* In place, so that the target's own threads see whole elements change. */
	if (nr == 1 && nm_user_is_host(pieces, 1) &&
	    (uintptr_t)pieces[0].iov_base % nm_atomic_size(head->datatype) == 0) {
		nm_atomic_apply(head->datatype, head->op, pieces[0].iov_base, request->operand,
				request->compare, count, ret_before);
		return 0;
	}
	if (nm_iov_gather(scratch, pieces, (size_t)nr, head->size) < 0)
		return -EIO;
	nm_atomic_apply(head->datatype, head->op, scratch, request->operand, request->compare,
			count, ret_before);
	if (head->op != NM_ATOMIC_READ &&
	    nm_iov_scatter(pieces, (size_t)nr, scratch, head->size) < 0)
		return -EIO;
	return 0;
}

void nm_atomic_on_request(const struct nm_incoming *in)
{
	alignas(ELEMENT_ALIGN) char before[NM_ATOMIC_MAX_BYTES];
	struct nm_packet answer = {.op = NM_OP_RESULT, .tag = in->pkt->tag};
	struct atomic_request request;
	int err = parse(in->pkt, in->payload, &request);

	if (err == -EBADMSG) {
		nm_violation(in, "it sent an atomic whose sizes do not add up");
		return;
	}
	if (err == 0)
		err = execute(in->engine, &request, before);
	if (err < 0) {
		if (in->engine->queues.remote_write)
			in->engine->queues.remote_write->errors++;
		nm_rndv_send_ack(in->engine, in->peer, in->pkt->tag, -err);
		return;
	}
	in->peer->received_messages++;
	in->peer->received_bytes += request.head.size;
	nm_rma_count(in->engine, request.remote, request.nr_remote, access_of(&request));
	if (in->pkt->flags & NM_PKT_DATA)
		nm_complete_remote(in->engine, in->peer, NM_ATOMIC | NM_REMOTE_WRITE,
				   request.head.size, in->pkt->data);
	if (request.head.kind == NM_ATOMIC_UPDATE) {
		nm_rndv_send_ack(in->engine, in->peer, in->pkt->tag, 0);
		return;
	}
	answer.len = request.head.size;
	nm_peer_post(in->engine, in->peer, &answer, before);
}

void nm_atomic_on_result(const struct nm_incoming *in)
{
	struct nm_request *r = nm_request_find(&in->engine->requests, in->pkt->tag, in->peer);

	if (!r || r->kind != NM_REQUEST_ATOMIC || in->pkt->len != r->size || r->size == 0) {
		nm_violation(in, "it sent the result of an atomic that was not requested");
		return;
	}
	nm_request_complete(in->engine, r,
			    -nm_iov_scatter(r->iov, r->nr_iov, in->payload, r->size));
}
