/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of mpi_traffic: receive records, what must hold for them, and the checks.
 *
 * Records are kept in the order in which receives were posted (or probed). MPI matches in that
 * order, so a completed receive is compared with the plan only when no earlier record that could
 * take the same message is still open: that one was matched to an earlier message.
 */
#ifndef NM_BENCH_TRAFFIC_RECEIVE_H
#define NM_BENCH_TRAFFIC_RECEIVE_H

#include "job.h"
#include "traffic_plan.h"

#define NR_POSTED_MAX 8
#define NR_RECORDS (NR_POSTED_MAX + 4)
#define RECEIVE_GUARD 64
#define POISON 0xa5

enum record_state {
	RECORD_FREE,
	RECORD_OPEN, /* posted; perhaps matched already */
	RECORD_DONE, /* complete, waits for earlier records */
};

struct record {
	enum record_state state;
	int source, tag;	/* what it accepts; tag is the MPI tag; wildcards as in MPI */
	size_t block;		/* strided layout; 0: contiguous */
	bool persistent, fixed; /* fixed: matched by a probe, cannot be cancelled */
	MPI_Request request;
	size_t bytes; /* of the message, once done */
	uint64_t order;
	char *buffer;
};

enum receive_way {
	WAY_ANY_ANY,
	WAY_ANY_TAG,
	WAY_ANY_SOURCE,
	WAY_DIRECTED,
	WAY_PERSISTENT,
	WAY_IPROBE,
	WAY_IMPROBE,
	WAY_PROBE,
	WAY_MPROBE,
	WAY_STRIDED,
	NR_WAYS,
};

/*
 * What an MPI library gets wrong over libfabric whatever the provider, so that it is left out:
 * Open MPI's mtl/ofi does not unpack a matched receive (MPI_Mrecv) into a strided layout, and that
 * of Open MPI 4 never answers the sender of a message that a matched receive took (MPI_Ssend); MPICH's
 * ch4 reports an MPI_ANY_SOURCE receive as cancelled although it has taken a message.
 */
struct quirks {
	bool no_strided_mrecv;
	bool no_matched_probe;
	bool no_wildcard_cancel; /* then a wildcard receive is posted only when one must come */
};

struct receiver {
	struct quirks quirks;
	const struct job *job;
	const struct plan *plan;
	struct record record[NR_RECORDS];
	struct cursor *cursor; /* per source and tag: what was verified */
	uint64_t order;
	uint64_t due[NR_TAGS], due_all; /* messages of the plan still to come, by tag and in all */
	uint64_t arrived, verified, bytes; /* messages; payload bytes */
	uint64_t way[NR_WAYS];
	uint64_t cancelled, cancel_lost, deferred;
};

static inline int tag_index(const struct receiver *rx, int tag)
{
	int i;

	for (i = 0; i < NR_TAGS; i++)
		if (tags[i] == tag)
			return i;
	job_fail(rx->job, "a message with tag %d, which nobody sends", tag);
}

static inline struct record *record_take(struct receiver *rx, int source, int tag)
{
	struct record *record;

	for (record = rx->record; record < rx->record + NR_RECORDS; record++)
		if (record->state == RECORD_FREE) {
			record->state = RECORD_OPEN;
			record->source = source;
			record->tag = tag;
			record->block = 0;
			record->persistent = record->fixed = false;
			record->order = rx->order++;
			return record;
		}
	return NULL;
}

static inline bool record_accepts(const struct record *record, int source, int tag)
{
	return (record->source == MPI_ANY_SOURCE || record->source == source) &&
	       (record->tag == MPI_ANY_TAG || record->tag == tag);
}

/* An earlier record that could take this record's message and is not verified yet. */
static inline struct record *record_before(struct receiver *rx, const struct record *done)
{
	struct record *record;

	for (record = rx->record; record < rx->record + NR_RECORDS; record++)
		if (record->state != RECORD_FREE && record->order < done->order &&
		    record_accepts(record, done->source, done->tag))
			return record;
	return NULL;
}

static inline size_t record_extent(const struct record *record)
{
	return record->block ? 2 * record->bytes : record->bytes;
}

/* Where the first wrong byte of the payload is, or bytes; gaps and guard must be untouched. */
static inline size_t record_compare(const struct receiver *rx, const struct record *record,
				    uint64_t key)
{
	size_t at, wrong, i, extent = record_extent(record);

	for (i = 0; i < RECEIVE_GUARD; i++)
		if ((uint8_t)record->buffer[extent + i] != POISON)
			job_fail(rx->job,
				 "rank %d tag %d: byte %zu behind a message of %zu was written",
				 record->source, record->tag, i, record->bytes);
	if (!record->block)
		return payload_check(record->buffer, record->bytes, key);
	for (at = 0; at < record->bytes; at += record->block) {
		const char *block = record->buffer + 2 * at;

		wrong = payload_check(block, record->block, key + at / 8);
		if (wrong < record->block)
			return at + wrong;
		for (i = record->block; i < 2 * record->block; i++)
			if ((uint8_t)block[i] != POISON)
				job_fail(rx->job,
					 "rank %d tag %d: a gap of a strided receive of %zu "
					 "bytes was written at block %zu",
					 record->source, record->tag, record->bytes,
					 at / record->block);
	}
	return record->bytes;
}

__attribute__((noreturn)) static inline void receive_wrong(const struct receiver *rx,
							   const struct record *record,
							   const struct message *expected,
							   uint32_t number, size_t at)
{
	struct message other;
	char found[128] = "";

	if (record->bytes >= 8 && plan_find_key(rx->plan, payload_key(record->buffer), &other))
		snprintf(found, sizeof(found),
			 "; what came is message %u of rank %d (to rank %d, tag %d, %zu bytes)",
			 other.index, other.source, other.dest, tags[other.tag], other.bytes);
	if (record->bytes != expected->bytes)
		job_fail(rx->job,
			 "message %u from rank %d with tag %d (number %u of the source) has %zu "
			 "bytes, expected %zu%s",
			 number, record->source, record->tag, expected->index, record->bytes,
			 expected->bytes, found);
	job_fail(rx->job,
		 "message %u from rank %d with tag %d (number %u of the source, %zu bytes): byte "
		 "%zu is 0x%02x%s",
		 number, record->source, record->tag, expected->index, record->bytes, at,
		 (uint8_t)record
			 ->buffer[record->block ? at + at / record->block * record->block : at],
		 found);
}

static inline void record_verify(struct receiver *rx, struct record *record)
{
	int tag = tag_index(rx, record->tag);
	struct cursor *cursor = &rx->cursor[record->source * NR_TAGS + tag];
	struct message expected;
	size_t at;

	if (!cursor_next(rx->plan, record->source, rx->job->rank, tag, cursor, &expected))
		job_fail(rx->job, "one message too many from rank %d with tag %d: %u were sent",
			 record->source, record->tag, cursor->taken);
	at = record->bytes == expected.bytes ? record_compare(rx, record, expected.key) : 0;
	if (record->bytes != expected.bytes || at < record->bytes)
		receive_wrong(rx, record, &expected, cursor->taken, at);
	memset(record->buffer, POISON, record_extent(record));
	rx->verified++;
	rx->bytes += record->bytes;
	record->state = RECORD_FREE;
}

/* Verifies every record that nothing earlier holds back. */
static inline void receive_settle(struct receiver *rx)
{
	struct record *record;
	bool again = true;

	while (again) {
		again = false;
		for (record = rx->record; record < rx->record + NR_RECORDS; record++)
			if (record->state == RECORD_DONE && !record_before(rx, record)) {
				record_verify(rx, record);
				again = true;
			}
	}
}

/* The record's message is here: note what it is, and verify what can be. */
static inline void record_done(struct receiver *rx, struct record *record, const MPI_Status *status)
{
	int count;

	MPI_Get_count(status, MPI_BYTE, &count);
	if (count == MPI_UNDEFINED || count < 0 || (size_t)count > MESSAGE_MAX)
		job_fail(rx->job, "a message of %d bytes from rank %d", count, status->MPI_SOURCE);
	if (status->MPI_SOURCE < 0 || status->MPI_SOURCE >= rx->job->nr_ranks)
		job_fail(rx->job, "a message from rank %d of %d", status->MPI_SOURCE,
			 rx->job->nr_ranks);
	if (!record_accepts(record, status->MPI_SOURCE, status->MPI_TAG))
		job_fail(rx->job,
			 "a receive for source %d, tag %d got a message of rank %d, tag %d",
			 record->source, record->tag, status->MPI_SOURCE, status->MPI_TAG);
	record->source = status->MPI_SOURCE;
	record->tag = status->MPI_TAG;
	record->bytes = (size_t)count;
	record->state = RECORD_DONE;
	if (record->persistent)
		MPI_Request_free(&record->request);
	record->request = MPI_REQUEST_NULL;
	rx->arrived++;
	rx->due_all--;
	rx->due[tag_index(rx, record->tag)]--;
	rx->deferred += record_before(rx, record) != NULL;
	receive_settle(rx);
}

/* The record gave its place up: nothing may have been written, nothing may have overtaken it. */
static inline void record_cancelled(struct receiver *rx, struct record *record)
{
	const struct record *later;
	size_t i;

	for (later = rx->record; later < rx->record + NR_RECORDS; later++)
		if (later->state == RECORD_DONE && later->order > record->order &&
		    record_accepts(record, later->source, later->tag))
			job_fail(rx->job,
				 "a message of rank %d, tag %d overtook a cancelled receive that "
				 "was posted before its own",
				 later->source, later->tag);
	for (i = 0; i < RECEIVE_GUARD; i++)
		if ((uint8_t)record->buffer[i] != POISON)
			job_fail(rx->job, "a cancelled receive wrote byte %zu", i);
	if (record->persistent)
		MPI_Request_free(&record->request);
	record->request = MPI_REQUEST_NULL;
	record->state = RECORD_FREE;
	rx->cancelled++;
	receive_settle(rx);
}

static inline void record_cancel(struct receiver *rx, struct record *record)
{
	MPI_Status status;
	int cancelled;

	MPI_Cancel(&record->request);
	MPI_Wait(&record->request, &status);
	MPI_Test_cancelled(&status, &cancelled);
	if (cancelled) {
		record_cancelled(rx, record);
	} else {
		rx->cancel_lost++;
		record_done(rx, record, &status);
	}
}

static inline int receive_posted(const struct receiver *rx)
{
	int i, nr = 0;

	for (i = 0; i < NR_RECORDS; i++)
		nr += rx->record[i].state == RECORD_OPEN;
	return nr;
}

/* Will this receive be matched for certain, whatever the receives posted before it take? */
static inline bool receive_is_due(const struct receiver *rx, int tag)
{
	uint64_t due = tag == MPI_ANY_TAG ? rx->due_all : rx->due[tag_index(rx, tag)];

	return due > (uint64_t)receive_posted(rx);
}

static inline bool receive_can_cancel(const struct receiver *rx, const struct record *record)
{
	return record->state == RECORD_OPEN &&
	       !(rx->quirks.no_wildcard_cancel && record->source == MPI_ANY_SOURCE);
}

/* Posts a receive for source and tag (each may be a wildcard). */
static inline bool receive_post(struct receiver *rx, int source, int tag, bool persistent)
{
	struct record *record;

	if (receive_posted(rx) >= NR_POSTED_MAX)
		return false;
	if (rx->quirks.no_wildcard_cancel && source == MPI_ANY_SOURCE && !receive_is_due(rx, tag))
		return false;
	record = record_take(rx, source, tag);
	if (!record)
		return false;
	record->persistent = persistent;
	if (persistent) {
		MPI_Recv_init(record->buffer, (int)MESSAGE_MAX, MPI_BYTE, source, tag,
			      MPI_COMM_WORLD, &record->request);
		MPI_Start(&record->request);
		rx->way[WAY_PERSISTENT]++;
		return true;
	}
	MPI_Irecv(record->buffer, (int)MESSAGE_MAX, MPI_BYTE, source, tag, MPI_COMM_WORLD,
		  &record->request);
	rx->way[source == MPI_ANY_SOURCE ? (tag == MPI_ANY_TAG ? WAY_ANY_ANY : WAY_ANY_SOURCE) :
		tag == MPI_ANY_TAG	 ? WAY_ANY_TAG :
					   WAY_DIRECTED]++;
	return true;
}

/*
 * Receives the message that a probe found: into a strided layout where it fits one and `strided`
 * asks for it. `matched` is the handle of a matched probe, or NULL.
 */
static inline void receive_probed(struct receiver *rx, const MPI_Status *probed,
				  MPI_Message *matched, bool strided)
{
	struct record *record = record_take(rx, probed->MPI_SOURCE, probed->MPI_TAG);
	MPI_Datatype type = MPI_BYTE;
	MPI_Status status;
	int bytes, count;

	MPI_Get_count(probed, MPI_BYTE, &bytes);
	count = bytes;
	record->fixed = true;
	strided = strided && !(matched && rx->quirks.no_strided_mrecv);
	if (strided && bytes >= 128 && bytes % 64 == 0 && (size_t)bytes <= STRIDED_MAX) {
		record->block = 64;
		MPI_Type_vector(bytes / 64, 64, 128, MPI_BYTE, &type);
		MPI_Type_commit(&type);
		count = 1;
		rx->way[WAY_STRIDED]++;
	}
	if (matched)
		MPI_Mrecv(record->buffer, count, type, matched, &status);
	else
		MPI_Recv(record->buffer, count, type, probed->MPI_SOURCE, probed->MPI_TAG,
			 MPI_COMM_WORLD, &status);
	if (status.MPI_SOURCE != probed->MPI_SOURCE || status.MPI_TAG != probed->MPI_TAG)
		job_fail(rx->job, "probed rank %d, tag %d, but received rank %d, tag %d",
			 probed->MPI_SOURCE, probed->MPI_TAG, status.MPI_SOURCE, status.MPI_TAG);
	if (type != MPI_BYTE)
		MPI_Type_free(&type);
	record_done(rx, record, &status);
}

/* Tests the posted receives once. Returns whether one was complete. */
static inline bool receive_test(struct receiver *rx)
{
	struct record *record;
	bool some = false;
	MPI_Status status;
	int flag;

	for (record = rx->record; record < rx->record + NR_RECORDS; record++) {
		if (record->state != RECORD_OPEN)
			continue;
		MPI_Test(&record->request, &flag, &status);
		if (flag) {
			record_done(rx, record, &status);
			some = true;
		}
	}
	return some;
}

#endif
