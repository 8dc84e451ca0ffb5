/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool nm_listed_holds(const struct nm_listed *b, uint64_t address, size_t len,
		     struct nm_reason *ret_why)
{
	if (address >= b->start && address - b->start <= b->size &&
	    len <= b->size - (address - b->start) && b->start + b->size >= b->start)
		return true;
	nm_reason_set(ret_why,
		      "%zu bytes at 0x%llx are more than the allocation of %llu bytes at 0x%llx "
		      "holds",
		      len, (unsigned long long)address, (unsigned long long)b->size,
		      (unsigned long long)b->start);
	return false;
}

/* Index of the first buffer that ends after ADDRESS. */
static size_t find(const struct nm_device_list *list, uint64_t address)
{
	size_t low = 0, high = list->nr;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (list->buffers[middle]->start + list->buffers[middle]->size <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct nm_listed *nm_device_list_find(const struct nm_device_list *list, uint64_t address,
				      size_t len)
{
	size_t i = find(list, address);
	struct nm_listed *b = i < list->nr ? list->buffers[i] : NULL;

	if (!b || address < b->start || len > b->size - (address - b->start))
		return NULL;
	return b;
}

void nm_device_list_remove(struct nm_device_list *list, struct nm_listed *b)
{
	size_t i = find(list, b->start);

	if (!b->is_listed)
		return;
	b->is_listed = false;
	memmove(&list->buffers[i], &list->buffers[i + 1],
		(--list->nr - i) * sizeof(struct nm_listed *));
}

int nm_device_list_add(struct nm_device_list *list, struct nm_listed *b)
{
	size_t i = find(list, b->start);

	while (i < list->nr && list->buffers[i]->start < b->start + b->size)
		nm_device_list_remove(list, list->buffers[i]);
	if (list->nr == list->max) {
		size_t max = list->max ? 2 * list->max : 16;
		struct nm_listed **more =
			reallocarray(list->buffers, max, sizeof(struct nm_listed *));

		if (!more)
			return -ENOMEM;
		list->buffers = more;
		list->max = max;
	}
	memmove(&list->buffers[i + 1], &list->buffers[i],
		(list->nr++ - i) * sizeof(struct nm_listed *));
	list->buffers[i] = b;
	b->is_listed = true;
	return 0;
}
