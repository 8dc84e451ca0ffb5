/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment as hostile machines may leave it: host page, the header of a part, its slots. Whatever
 * is accepted lies inside. Bytes: which of the trivial checks to help the fuzzer past, host page,
 * part header, slots.
 */
#include <stdlib.h>
#include <string.h>

#include "target.h"
#include "vmseg/check.h"

#define ROOM (UINT64_C(8) << 20)

enum { HELP_HOST = 1, HELP_PART = 2, HELP_OWN_SHAPE = 4 };

static void expect(bool condition)
{
	if (!condition)
		abort();
}

static void take(void *to, size_t size, const uint8_t **bytes, size_t *len)
{
	size_t nr = *len < size ? *len : size;

	memcpy(to, *bytes, nr);
	*bytes += nr;
	*len -= nr;
}

static void check_host(struct nm_vmseg_host *host, bool help)
{
	struct nm_reason why = {""};

	if (help) {
		host->magic = NM_VMSEG_HOST_MAGIC;
		host->version = NM_VMSEG_VERSION;
		host->features = 0;
	}
	if (nm_vmseg_host_check(host, ROOM, &why)) {
		expect(why.text[0]);
		return;
	}
	expect(host->nr_parts >= 1 && host->part_off >= NM_VMSEG_HOST_SIZE);
	expect((unsigned __int128)host->part_off +
		       (unsigned __int128)host->nr_parts * host->part_size <=
	       ROOM);
}

static void check_shape(const struct nm_vmseg_shape *shape, uint64_t part_size)
{
	unsigned __int128 slots_end =
		(unsigned __int128)shape->slots_off + (unsigned __int128)shape->nr_slots * 128;
	unsigned __int128 cells_end = (unsigned __int128)shape->cells_off +
				      (unsigned __int128)shape->nr_slots * shape->nr_cells * 320;

	expect(shape->slots_off >= NM_VMSEG_SCRATCH_OFF + NM_VMSEG_SCRATCH_SIZE);
	expect(slots_end <= shape->cells_off && cells_end <= shape->space_off);
	expect(shape->space_off <= part_size && shape->slots_off % 64 == 0);
}

static void check_slots(uint8_t *part, const struct nm_vmseg_shape *shape)
{
	struct nm_vmseg_peer peer;

	for (uint32_t i = 0; i < shape->nr_slots; i++) {
		if (nm_vmseg_read_slot(part, shape, i, &peer))
			continue;
		expect(peer.state > NM_VMSEG_INIT && peer.state <= NM_VMSEG_GONE);
		expect(peer.window_off >= shape->space_off && peer.window_off % 64 == 0);
		expect(peer.window_size >= sizeof(struct nm_window_header));
		expect((unsigned __int128)peer.window_off + peer.window_size <= shape->part_size);
	}
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	static uint8_t *part; /* kept: pages of zeros cost time */
	const uint64_t part_size = NM_VMSEG_MIN_PART_SIZE;
	struct nm_vmseg_host host = {0};
	struct nm_vmseg_shape shape;
	struct nm_vmseg_part header;
	struct nm_reason why = {""};
	uint8_t help = 0;

	if (!part && !(part = aligned_alloc(4096, part_size)))
		abort();
	take(&help, sizeof(help), &bytes, &len);
	take(&host, sizeof(host), &bytes, &len);
	check_host(&host, help & HELP_HOST);

	memset(part, 0, NM_VMSEG_GRANULE);
	take(part, sizeof(header), &bytes, &len);
	if (help & HELP_PART) {
		struct nm_vmseg_part *at = (void *)part;

		at->magic = NM_VMSEG_PART_MAGIC;
		at->version = NM_VMSEG_VERSION;
		at->features = NM_VMSEG_FEATURES;
		at->index = 0;
		atomic_store(&at->generation, 7);
		if (help & HELP_OWN_SHAPE) {
			nm_vmseg_shape_init(part_size, &shape);
			at->nr_slots = shape.nr_slots;
			at->nr_cells = shape.nr_cells;
			at->slots_off = shape.slots_off;
			at->cells_off = shape.cells_off;
			at->space_off = shape.space_off;
		}
	}
	if (nm_vmseg_read_part(part, 0, part_size, &header, &shape, &why)) {
		expect(why.text[0]);
		return;
	}
	check_shape(&shape, part_size);
	memset(part + shape.slots_off, 0, (size_t)shape.nr_slots * 128);
	take(part + shape.slots_off, (size_t)shape.nr_slots * 128, &bytes, &len);
	check_slots(part, &shape);
}
