/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoints that a queue, counter or vector serves: few, walked often, changed rarely. */
#include <stdlib.h>

#include "provider/provider.h"

/*
 * A program that is busy at one queue reads it all the time, and a peer that waits at another
 * endpoint can wait for a few of these calls. Helping in every one would make each reading cost the
 * progress of all endpoints of the domain; one in eight makes that an eighth.
 */
#define CALLS_PER_HELP 8

int nm_ep_list_add(struct nm_ep_list *list, struct nm_ep *ep)
{
	struct nm_ep **eps;
	size_t i;

	for (i = 0; i < list->nr; i++)
		if (list->eps[i] == ep)
			return 0;
	eps = reallocarray(list->eps, list->nr + 1, sizeof(struct nm_ep *));
	if (!eps)
		return -FI_ENOMEM;
	list->eps = eps;
	list->eps[list->nr++] = ep;
	return 0;
}

void nm_ep_list_remove(struct nm_ep_list *list, struct nm_ep *ep)
{
	size_t i;

	for (i = 0; i < list->nr; i++) {
		if (list->eps[i] == ep) {
			list->eps[i] = list->eps[--list->nr];
			return;
		}
	}
}

static bool has(const struct nm_ep_list *list, const struct nm_ep *ep)
{
	for (size_t i = 0; i < list->nr; i++)
		if (list->eps[i] == ep)
			return true;
	return false;
}

void nm_domain_help(struct nm_domain *domain, const struct nm_ep_list *list)
{
	/* A thread that yields is idle, so help costs it nothing, and its calls are few. */
	if (++domain->nr_helps % CALLS_PER_HELP &&
	    !(list->nr && nm_engine_yields(list->eps[0]->engine)))
		return;
	for (size_t i = 0; i < domain->eps.nr; i++)
		if (!has(list, domain->eps.eps[i]))
			nm_engine_help(domain->eps.eps[i]->engine);
}

void nm_ep_list_fini(struct nm_ep_list *list)
{
	free(list->eps);
	list->eps = NULL;
	list->nr = 0;
}
