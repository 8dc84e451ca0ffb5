/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, and the copies that go on. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stand_in.h"
#include "stand_in_private.h"

/* Of a stream, in order. */
struct copy {
	struct copy *next;
	uint64_t to, from;
	size_t len;
	struct event *event; /* of a mark between the copies; else NULL */
	uint64_t record;     /* which use of the event */
};

struct event {
	const struct context *context; /* NULL: destroyed with it; who uses it dies */
	struct event *next;
	struct stream *stream; /* of its last record; NULL: never recorded */
	uint64_t record;       /* that record */
	uint64_t done;	       /* the youngest record up to which all copies are made */
	bool was_asked;	       /* since the last record: the next query finds it done */
	int result;
};

struct stream {
	struct stream *next;
	struct context *context; /* NULL: destroyed with it; who uses it dies */
	struct copy *copies, **last;
};

static struct stream *streams;
static struct event *events;
static uint64_t last_record;
static unsigned int nr_pending, most_pending; /* copies that were begun and not made */

EXPORT unsigned int nm_stand_in_overlap(void)
{
	unsigned int most;

	enter_anyway();
	most = most_pending;
	most_pending = nr_pending;
	return (unsigned int)leave((int)most);
}

EXPORT void nm_stand_in_going(int change)
{
	enter_anyway();
	nr_pending += (unsigned int)change;
	if (nr_pending > most_pending)
		most_pending = nr_pending;
	leave(OK);
}

EXPORT int cuStreamCreate(struct stream **ret_stream, unsigned int flags)
{
	struct stream *stream;
	int err = enter_context();

	(void)flags;
	if (err)
		return err;
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return leave(OUT_OF_MEMORY);
	stream->context = current();
	stream->last = &stream->copies;
	stream->next = streams;
	streams = stream;
	*ret_stream = stream;
	return leave(OK);
}

/* The real driver may crash, too. */
static void must_live(const void *context, const char *what)
{
	if (context)
		return;
	fprintf(stderr, "%s of a destroyed context is used\n", what);
	abort();
}

static bool append(struct stream *stream, const struct copy *copy)
{
	struct copy *last = malloc(sizeof(*last));

	if (!last)
		return false;
	*last = *copy;
	*stream->last = last;
	stream->last = &last->next;
	return true;
}

/* A copy may write its target from now on, and reads its source last when it is waited for. */
static void spoil(uint64_t to, uint64_t from, size_t len)
{
	if (to + len <= from || from + len <= to)
		memset(reach(to, len), 0xa5, len);
}

EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t len, struct stream *stream)
{
	int err = enter();

	if (err)
		return err;
	must_live(stream->context, "a stream");
	if (!current() || stream->context != current())
		return leave(current() ? INVALID_HANDLE : INVALID_CONTEXT);
	if (!reach(to, len) || !reach(from, len))
		return leave(INVALID_VALUE);
	if (!append(stream, &(struct copy){.to = to, .from = from, .len = len}))
		return leave(OUT_OF_MEMORY);
	if (++nr_pending > most_pending)
		most_pending = nr_pending;
	spoil(to, from, len);
	return leave(OK);
}

/* Make the copies of STREAM up to the mark of RECORD (0: all), or, if they are to fail, none. */
static int end_copies(struct stream *stream, uint64_t record, bool fails)
{
	int result = OK;
	bool is_last = false;

	while (stream->copies && !is_last) {
		struct copy *copy = stream->copies;
		char *to = reach(copy->to, copy->len), *from = reach(copy->from, copy->len);

		if (copy->event) {
			copy->event->done = copy->record;
			copy->event->result = result;
			is_last = copy->record == record;
		} else if (to && from && !fails) {
			memmove(to, from, copy->len);
		} else {
			result = INVALID_VALUE;
		}
		stream->copies = copy->next;
		nr_pending -= !copy->event;
		free(copy);
	}
	if (!stream->copies)
		stream->last = &stream->copies;
	return result;
}

EXPORT int cuStreamDestroy_v2(struct stream *stream)
{
	struct stream **at = &streams;
	int err = enter();

	if (err)
		return err;
	must_live(stream->context, "a stream");
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	end_copies(stream, 0, false);
	free(stream);
	return leave(OK);
}

EXPORT int cuStreamSynchronize(struct stream *stream)
{
	int err = enter(), result;

	if (err)
		enter_anyway();
	else
		must_live(stream->context, "a stream");
	result = end_copies(stream, 0, err);
	return leave(err ? err : result);
}

EXPORT int cuEventCreate(struct event **ret_event, unsigned int flags)
{
	struct event *event;
	int err = enter_context();

	(void)flags;
	if (err)
		return err;
	event = calloc(1, sizeof(*event));
	if (!event)
		return leave(OUT_OF_MEMORY);
	event->context = current();
	event->next = events;
	events = event;
	*ret_event = event;
	return leave(OK);
}

/* Stays in the list, so that a use after this is seen. */
EXPORT int cuEventDestroy_v2(struct event *event)
{
	int err = enter();

	if (err)
		return err;
	must_live(event->context, "an event");
	event->context = NULL;
	return leave(OK);
}

EXPORT int cuEventRecord(struct event *event, struct stream *stream)
{
	int err = enter();

	if (err)
		return err;
	must_live(event->context, "an event");
	must_live(stream->context, "a stream");
	if (event->context != stream->context)
		return leave(INVALID_HANDLE);
	if (!append(stream, &(struct copy){.event = event, .record = last_record + 1}))
		return leave(OUT_OF_MEMORY);
	event->record = ++last_record;
	event->stream = stream;
	event->was_asked = false;
	return leave(OK);
}

/* The copies before an event are made when a second query asks for it, or when it is waited for. */
static int end_event(struct event *event, bool waits, int err)
{
	/* NVIDIA names this error for the wait, and not when it comes. */
	if (!current())
		return err ? err : INVALID_CONTEXT;
	if (event->done < event->record && !waits && !err && !event->was_asked) {
		event->was_asked = true;
		return NOT_READY;
	}
	if (event->done < event->record)
		end_copies(event->stream, event->record, err);
	return err ? err : event->result;
}

EXPORT int cuEventQuery(struct event *event)
{
	int err = enter();

	if (err)
		enter_anyway();
	must_live(event->context, "an event");
	return leave(end_event(event, false, err));
}

EXPORT int cuEventSynchronize(struct event *event)
{
	int err = enter();

	if (err)
		enter_anyway();
	must_live(event->context, "an event");
	return leave(end_event(event, true, err));
}

void finish_streams(void)
{
	for (struct stream *stream = streams; stream; stream = stream->next)
		if (stream->context)
			end_copies(stream, 0, false);
}

/* They stay in their lists, so that their use is seen. */
void empty_streams(const struct context *context)
{
	for (struct stream *stream = streams; stream; stream = stream->next)
		if (stream->context == context)
			stream->context = NULL;
	for (struct event *event = events; event; event = event->next)
		if (event->context == context)
			event->context = NULL;
}
