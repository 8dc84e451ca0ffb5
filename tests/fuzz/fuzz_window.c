/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers of foreign windows: whatever is accepted must keep every lane, slot and chunk inside the
 * file. The first eight bytes are the size of the file.
 */
#include <stdlib.h>
#include <string.h>

#include "shm/window.h"
#include "target.h"

static void expect(int condition)
{
	if (!condition)
		abort();
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct nm_window_header header = {0};
	struct nm_geometry g;
	struct nm_reason why;
	uint64_t size;

	if (len < sizeof(size))
		return;
	memcpy(&size, bytes, sizeof(size));
	bytes += sizeof(size);
	len -= sizeof(size);
	memcpy(&header, bytes, len < sizeof(header) ? len : sizeof(header));
	/* The check of these three is trivial; do not make the fuzzer guess them. */
	header.magic = NM_LAYOUT_MAGIC;
	header.version = NM_LAYOUT_VERSION;
	header.features = 0;
	if (nm_window_header_check(&header, size, &g, &why))
		return;
	expect(g.size == size);
	expect(g.nr_lanes >= 1 && g.nr_chunks >= 1);
	expect(!(g.ring_slots & (g.ring_slots - 1)) && g.ring_slots >= NM_MIN_RING_SLOTS);
	expect(g.lanes_off >= sizeof(header));
	expect((unsigned __int128)g.lanes_off + (unsigned __int128)g.nr_lanes * 128 <= g.rings_off);
	expect((unsigned __int128)g.rings_off + (unsigned __int128)g.nr_lanes * g.ring_slots * 64 <=
	       g.pool_off);
	expect((unsigned __int128)g.pool_off + (unsigned __int128)g.nr_chunks * g.chunk_size ==
	       size);
	/* A neighbour cannot choose how much address space its window wastes. */
	expect(size < (UINT64_C(1) << 31) + (UINT64_C(1) << 23));
	expect(g.lanes_off % 64 == 0 && g.rings_off % 64 == 0 && g.pool_off % 64 == 0);
}
