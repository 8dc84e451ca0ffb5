/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of mpi_traffic: outstanding sends, each with a buffer of its own.
 *
 * Calls that may block until the receiver takes the message are made in one direction per round
 * only (to higher ranks in even rounds, to lower ones in odd rounds), so that blocked ranks never
 * form a circle; where the plan asks for one against the direction, its non-blocking sister is
 * used.
 */
#ifndef NM_BENCH_TRAFFIC_SEND_H
#define NM_BENCH_TRAFFIC_SEND_H

#include "job.h"
#include "traffic_plan.h"

#define NR_SENDS 8
#define BUFFERED_MAX ((size_t)64 << 10)
#define ATTACHED_BYTES ((size_t)4 << 20)

struct outgoing {
	bool active, persistent;
	struct message message;
	MPI_Request request;
	char *buffer;
};

struct sender {
	const struct job *job;
	const struct plan *plan;
	struct outgoing outgoing[NR_SENDS];
	char *attached;
	size_t attached_used;
	uint64_t sent, bytes, strided, mode[NR_SEND_MODES];
	uint32_t index; /* next message of the plan */
};

static inline bool send_may_block(const struct sender *tx, const struct message *message)
{
	return (message->index / PER_ROUND) % 2 ? message->dest < tx->job->rank :
						  message->dest > tx->job->rank;
}

static inline enum send_mode send_choose(const struct sender *tx, const struct message *message)
{
	bool small = message->bytes <= BUFFERED_MAX;

	if (message->mode < SEND_BLOCKING)
		return message->mode;
	if (!send_may_block(tx, message))
		return message->mode == SEND_SYNCHRONOUS ? SEND_ISSEND : SEND_ISEND;
	return message->mode == SEND_BUFFERED && !small ? SEND_BLOCKING : message->mode;
}

/* Fills the buffer in the message's layout; returns its type and count. */
static inline void send_fill(struct outgoing *out, MPI_Datatype *ret_type, int *ret_count)
{
	const struct message *message = &out->message;
	size_t at;

	*ret_type = MPI_BYTE;
	*ret_count = (int)message->bytes;
	if (!message->block) {
		payload_fill(out->buffer, message->bytes, message->key);
		return;
	}
	for (at = 0; at < message->bytes; at += message->block)
		payload_fill(out->buffer + 2 * at, message->block, message->key + at / 8);
	MPI_Type_vector((int)(message->bytes / message->block), (int)message->block,
			(int)(2 * message->block), MPI_BYTE, ret_type);
	MPI_Type_commit(ret_type);
	*ret_count = 1;
}

/* Makes room in the attached buffer. Waits for the messages in it, so it counts as blocking. */
static inline void send_attach(struct sender *tx, size_t bytes)
{
	void *buffer;
	int size;

	bytes += MPI_BSEND_OVERHEAD + 64;
	if (tx->attached_used + bytes > ATTACHED_BYTES) {
		MPI_Buffer_detach(&buffer, &size);
		MPI_Buffer_attach(tx->attached, (int)ATTACHED_BYTES);
		tx->attached_used = 0;
	}
	tx->attached_used += bytes;
}

static inline void send_start(struct sender *tx, struct outgoing *out, enum send_mode mode)
{
	int dest = out->message.dest, tag = tags[out->message.tag], count;
	MPI_Datatype type;

	send_fill(out, &type, &count);
	out->persistent = mode == SEND_PERSISTENT;
	out->active = true;
	out->request = MPI_REQUEST_NULL;
	switch (mode) {
	case SEND_ISSEND:
		MPI_Issend(out->buffer, count, type, dest, tag, MPI_COMM_WORLD, &out->request);
		break;
	case SEND_PERSISTENT:
		MPI_Send_init(out->buffer, count, type, dest, tag, MPI_COMM_WORLD, &out->request);
		MPI_Start(&out->request);
		break;
	case SEND_BLOCKING:
		MPI_Send(out->buffer, count, type, dest, tag, MPI_COMM_WORLD);
		break;
	case SEND_SYNCHRONOUS:
		MPI_Ssend(out->buffer, count, type, dest, tag, MPI_COMM_WORLD);
		break;
	case SEND_BUFFERED:
		send_attach(tx, out->message.bytes);
		MPI_Bsend(out->buffer, count, type, dest, tag, MPI_COMM_WORLD);
		break;
	case SEND_ISEND:
	case NR_SEND_MODES:
		MPI_Isend(out->buffer, count, type, dest, tag, MPI_COMM_WORLD, &out->request);
		break;
	}
	if (type != MPI_BYTE) {
		MPI_Type_free(&type);
		tx->strided++;
	}
	tx->mode[mode]++;
	tx->sent++;
	tx->bytes += out->message.bytes;
	if (out->request == MPI_REQUEST_NULL)
		out->active = false;
}

/* Starts the next message of the plan before index `end`. False: no free place, or none left. */
static inline bool send_next(struct sender *tx, uint32_t end)
{
	struct outgoing *out = tx->outgoing;

	while (out < tx->outgoing + NR_SENDS && out->active)
		out++;
	if (out == tx->outgoing + NR_SENDS)
		return false;
	while (tx->index < end)
		if (plan_message(tx->plan, tx->job->rank, tx->index++, &out->message)) {
			send_start(tx, out, send_choose(tx, &out->message));
			return true;
		}
	return false;
}

/* Tests the outstanding sends once. Returns whether one was complete. */
static inline bool send_test(struct sender *tx)
{
	struct outgoing *out;
	bool some = false;
	int flag;

	for (out = tx->outgoing; out < tx->outgoing + NR_SENDS; out++) {
		if (!out->active)
			continue;
		MPI_Test(&out->request, &flag, MPI_STATUS_IGNORE);
		if (!flag)
			continue;
		if (out->persistent)
			MPI_Request_free(&out->request);
		out->active = false;
		some = true;
	}
	return some;
}

static inline int send_outstanding(const struct sender *tx)
{
	int i, nr = 0;

	for (i = 0; i < NR_SENDS; i++)
		nr += tx->outgoing[i].active;
	return nr;
}

#endif
