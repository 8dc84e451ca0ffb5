/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoints that a queue, counter or vector serves: few, walked often, changed rarely. */
#include <stdlib.h>

#include "provider/provider.h"

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

void nm_ep_list_fini(struct nm_ep_list *list)
{
	free(list->eps);
	list->eps = NULL;
	list->nr = 0;
}
