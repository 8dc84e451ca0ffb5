/* SPDX-License-Identifier: Apache-2.0 */
/* All kinds of transports in a program, in order of preference. */
#include "base/compiler.h"
#include "transport/transport.h"

#define ENTRY(id, name, code, where) &nm_##code##_kind,
static const struct nm_transport_kind *const kinds[] = {NM_CHANNELS(ENTRY)};

/* Kinds of equal rank keep the order of the list. */
static bool is_before(const struct nm_transport_kind *a, const struct nm_transport_kind *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->channel < b->channel;
}

const struct nm_transport_kind *nm_transport_next(const struct nm_transport_kind *previous)
{
	const struct nm_transport_kind *next = NULL;

	for (size_t i = 0; i < NM_ARRAY_SIZE(kinds); i++)
		if (kinds[i] && (!previous || is_before(previous, kinds[i])) &&
		    (!next || is_before(kinds[i], next)))
			next = kinds[i];
	return next;
}

void nm_transport_unchecked(struct nm_link *link)
{
	(void)link;
}

void nm_transport_unwoken(struct nm_transport *transport)
{
	(void)transport;
}
