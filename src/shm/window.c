/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/window.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/device.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memfd.h"
#include "shm/budget.h"
#include "shm/foreign.h"

#define PAGE UINT64_C(4096)
/* Page tables of a neighbour's window are charged to this process, and filling them takes time. */
#define WARM_FOREIGN_MAX (UINT64_C(64) << 20)
/* Parts of a window are aligned, at most to the largest chunk. */
#define MAX_GAP NM_MAX_CHUNK_SIZE

int nm_geometry_init(uint32_t nr_lanes, uint32_t ring_slots, uint32_t chunk_size,
		     uint64_t pool_size, struct nm_geometry *ret_geometry)
{
	struct nm_geometry g = {0};
	uint64_t end;

	if (nr_lanes < 1 || nr_lanes > NM_MAX_LANES || ring_slots < NM_MIN_RING_SLOTS ||
	    ring_slots > NM_MAX_RING_SLOTS || !nm_is_power_of_two(ring_slots) ||
	    chunk_size < NM_MIN_CHUNK_SIZE || chunk_size > NM_MAX_CHUNK_SIZE ||
	    !nm_is_power_of_two(chunk_size) || pool_size < chunk_size ||
	    pool_size > NM_MAX_POOL_SIZE)
		return -EINVAL;
	g.nr_lanes = nr_lanes;
	g.ring_slots = ring_slots;
	g.chunk_size = chunk_size;
	g.nr_chunks = (uint32_t)(pool_size / chunk_size);
	g.lanes_off = sizeof(struct nm_window_header);
	/* The limits above keep every sum here far below 2^32 (lanes) and 2^33 (all). */
	end = g.lanes_off + (uint64_t)nr_lanes * sizeof(struct nm_lane);
	g.regions_off = (uint32_t)end;
	g.nr_regions = NM_NR_REGIONS;
	end += g.nr_regions * sizeof(struct nm_region_slot);
	g.rings_off = (uint32_t)nm_align_up(end, PAGE);
	end = g.rings_off + (uint64_t)nr_lanes * ring_slots * sizeof(struct nm_slot);
	g.pool_off = nm_align_up(end, NM_MAX_CHUNK_SIZE);
	g.size = g.pool_off + (uint64_t)g.nr_chunks * chunk_size;
	*ret_geometry = g;
	return 0;
}

/* A smaller pool is read from the writer's own cache, so lanes are given up first. */
#define GOOD_POOL_SIZE (UINT64_C(1) << 20)
#define MIN_CHUNKS 4

int nm_geometry_fit(uint64_t room, uint32_t nr_lanes, uint32_t ring_slots, uint32_t chunk_size,
		    uint64_t pool_size, struct nm_geometry *ret_geometry,
		    struct nm_reason *ret_reason)
{
	const uint64_t least[] = {nm_min_u64(pool_size, GOOD_POOL_SIZE),
				  nm_min_u64(pool_size, (uint64_t)MIN_CHUNKS * chunk_size)};
	struct nm_geometry g;

	for (size_t i = 0; i < NM_ARRAY_SIZE(least); i++)
		for (uint32_t lanes = nr_lanes; lanes; lanes /= 2) {
			uint64_t before;

			if (nm_geometry_init(lanes, ring_slots, chunk_size, chunk_size, &g)) {
				nm_reason_set(ret_reason,
					      "the settings of the window do not fit together");
				return -EINVAL;
			}
			before = g.size - chunk_size;
			if (before > room || room - before < least[i])
				continue;
			return nm_geometry_init(lanes, ring_slots, chunk_size,
						nm_min_u64(pool_size, room - before), ret_geometry);
		}
	nm_reason_set(ret_reason, "no window fits into %llu bytes", (unsigned long long)room);
	return -ENOSPC;
}

static int refuse_header(struct nm_reason *ret_reason, const char *what)
{
	nm_reason_set(ret_reason, "its window is damaged: %s", what);
	return -EBADMSG;
}

/* A part at OFFSET follows one that ends at END: without an overlap and without a waste. */
static bool follows(uint64_t offset, uint64_t end)
{
	return offset >= end && offset - end < MAX_GAP && offset % NM_CACHE_LINE == 0;
}

int nm_window_header_check(const struct nm_window_header *header, uint64_t file_size,
			   struct nm_geometry *ret_geometry, struct nm_reason *ret_reason)
{
	uint64_t lanes_end, regions_end, rings_end;
	const struct nm_geometry *g = &header->geometry;

	if (header->magic != NM_LAYOUT_MAGIC)
		return refuse_header(ret_reason, "no magic number");
	if (header->version != NM_LAYOUT_VERSION) {
		nm_reason_set(ret_reason,
			      "its window has layout version %u, not %u: use one release on both",
			      header->version, NM_LAYOUT_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (header->features) {
		nm_reason_set(ret_reason, "its window needs unknown features 0x%x",
			      header->features);
		return -EPROTONOSUPPORT;
	}
	if (g->nr_lanes < 1 || g->nr_lanes > NM_MAX_LANES)
		return refuse_header(ret_reason, "number of lanes");
	if (g->ring_slots < NM_MIN_RING_SLOTS || g->ring_slots > NM_MAX_RING_SLOTS ||
	    !nm_is_power_of_two(g->ring_slots))
		return refuse_header(ret_reason, "size of rings");
	if (g->chunk_size < NM_MIN_CHUNK_SIZE || g->chunk_size > NM_MAX_CHUNK_SIZE ||
	    !nm_is_power_of_two(g->chunk_size) || g->nr_chunks < 1 ||
	    (uint64_t)g->nr_chunks * g->chunk_size > NM_MAX_POOL_SIZE)
		return refuse_header(ret_reason, "size of the pool");
	if (g->nr_regions > NM_MAX_REGIONS || g->nr_regions % NM_REGION_BUCKET)
		return refuse_header(ret_reason, "number of regions");
	if (g->size != file_size)
		return refuse_header(ret_reason, "it is not as long as its header says");

	/* No overflow: every factor has just been bounded and offsets are below 2^33. */
	regions_end = g->regions_off + (uint64_t)g->nr_regions * sizeof(struct nm_region_slot);
	lanes_end = g->lanes_off + (uint64_t)g->nr_lanes * sizeof(struct nm_lane);
	rings_end = g->rings_off + (uint64_t)g->nr_lanes * g->ring_slots * sizeof(struct nm_slot);
	if (!follows(g->lanes_off, sizeof(struct nm_window_header)) ||
	    !follows(g->regions_off, lanes_end) || !follows(g->rings_off, regions_end) ||
	    !follows(g->pool_off, rings_end) ||
	    g->pool_off + (uint64_t)g->nr_chunks * g->chunk_size != file_size)
		return refuse_header(ret_reason, "parts overlap, leave gaps or are outside");
	*ret_geometry = *g;
	return 0;
}

static int reserve(int fd, uint64_t offset, uint64_t len)
{
	int err;

	do {
		err = posix_fallocate(fd, (off_t)offset, (off_t)len);
	} while (err == EINTR);
	return -err;
}

/* The whole pages around LEN bytes at START. */
static char *pages_of(const void *start, size_t *len)
{
	uintptr_t place = (uintptr_t)start & ~(uintptr_t)(PAGE - 1);

	*len = nm_align_up(*len + ((uintptr_t)start - place), PAGE);
	return (char *)place;
}

/*
 * Fill the page tables of a pool whose pages exist already. Without it, page faults on both sides
 * in the first lap make a message of 4 KiB slower than one of 16. Kernels before 5.14 cannot do it.
 */
static void warm(const void *start, size_t len, int advice)
{
	char *pages = pages_of(start, &len);

	(void)madvise(pages, len, advice);
}

void nm_window_warm(const struct nm_window *window)
{
	const struct nm_geometry *g = &window->geometry;

	warm(window->pool, g->size - g->pool_off, MADV_POPULATE_WRITE);
}

/*
 * Reserve and touch a part of the own window. A reader accepts only touched pages, as no other
 * page is shown to be the owner's (is_owned()).
 */
static int own(const struct nm_window *window, void *start, size_t len)
{
	int err = reserve(window->fd, (uint64_t)((char *)start - (char *)window->header), len);
	char *pages;

	if (err)
		return err;
	pages = pages_of(start, &len);
	if (madvise(pages, len, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	for (size_t i = 0; i < len; i += PAGE)
		atomic_fetch_or((_Atomic uint32_t *)(void *)(pages + i), 0);
	return 0;
}

static void write_header(struct nm_window_header *header, const struct nm_geometry *g,
			 const uint8_t id[6])
{
	header->version = NM_LAYOUT_VERSION;
	header->geometry = *g;
	memcpy(header->id, id, sizeof(header->id));
	header->magic = NM_LAYOUT_MAGIC;
}

/* Set the reason once and return the value of errno. */
static NM_COLD int create_failed(struct nm_reason *ret_reason, const char *what, int err)
{
	nm_reason_set(ret_reason, "cannot %s: %s%s", what, strerror(-err),
		      err == -ENOSPC || err == -ENOMEM ?
			      "; lower NEARMETAL_POOL_SIZE or give the node more memory" :
			      "");
	return err;
}

static void set_places(struct nm_window *window, void *base)
{
	const struct nm_geometry *g = &window->geometry;

	window->header = base;
	window->lanes = (void *)((char *)base + g->lanes_off);
	window->regions = (void *)((char *)base + g->regions_off);
	window->rings = (void *)((char *)base + g->rings_off);
	window->pool = (uint8_t *)base + g->pool_off;
}

static int size_map_fill(struct nm_window *window, const uint8_t id[6],
			 struct nm_reason *ret_reason)
{
	const struct nm_geometry *g = &window->geometry;
	void *base;
	int err;

	if (!nm_file_fits(g->size)) {
		nm_reason_set(ret_reason,
			      "a window of %llu bytes is larger than files may be: raise the limit "
			      "(ulimit -f) or lower NEARMETAL_POOL_SIZE",
			      (unsigned long long)g->size);
		return -EFBIG;
	}
	if (ftruncate(window->fd, (off_t)g->size) < 0)
		return create_failed(ret_reason, "size a window", -errno);
	base = mmap(NULL, g->size, PROT_READ | PROT_WRITE, MAP_SHARED, window->fd, 0);
	if (base == MAP_FAILED)
		return create_failed(ret_reason, "map a window", -errno);
	set_places(window, base);
	err = own(window, base, g->rings_off);
	if (!err)
		err = own(window, window->pool, g->size - g->pool_off);
	if (err)
		return create_failed(ret_reason, "reserve the memory of a window", err);
	write_header(base, g, id);
	return 0;
}

int nm_window_place(const struct nm_geometry *geometry, const uint8_t id[6], void *memory,
		    uint64_t room, struct nm_window *ret_window, struct nm_reason *ret_reason)
{
	struct nm_window window = {.fd = -1, .geometry = *geometry};

	if (geometry->size > room || (uintptr_t)memory % NM_CACHE_LINE) {
		nm_reason_set(ret_reason, "a window of %llu bytes does not fit into %llu",
			      (unsigned long long)geometry->size, (unsigned long long)room);
		return -EINVAL;
	}
	set_places(&window, memory);
	write_header(memory, geometry, id);
	*ret_window = window;
	return 0;
}

int nm_window_create(const struct nm_geometry *geometry, const uint8_t id[6],
		     struct nm_window *ret_window, struct nm_reason *ret_reason)
{
	struct nm_window window = {.fd = -1, .geometry = *geometry};
	int err;

	window.fd = nm_memfd_create("nearmetal-window");
	if (window.fd < 0)
		return create_failed(ret_reason, "create a memfd", window.fd);
	err = size_map_fill(&window, id, ret_reason);
	if (err)
		goto err_destroy;
	NM_FAULT("window-seal");
	err = nm_memfd_seal(window.fd);
	if (err) {
		create_failed(ret_reason, "seal a window (Linux 5.1 or newer is needed)", err);
		goto err_destroy;
	}
	*ret_window = window;
	return 0;

err_destroy:
	nm_window_destroy(&window);
	return err;
}

void nm_window_destroy(struct nm_window *window)
{
	if (!window)
		return;
	if (window->header)
		nm_device_unpin(window->pool);
	if (window->header && window->fd >= 0)
		munmap(window->header, window->geometry.size);
	if (window->fd >= 0)
		close(window->fd);
	window->header = NULL;
	window->fd = -1;
}

void nm_window_set_state(struct nm_window *window, enum nm_window_state state)
{
	/* Partner: nm_foreign_state(). A reader that sees the state sees all that was sent. */
	atomic_store_explicit(&window->header->state, state, memory_order_release);
}

struct nm_slot *nm_window_ring(struct nm_window *window, uint32_t lane)
{
	return window->rings + (size_t)lane * window->geometry.ring_slots;
}

static size_t ring_bytes(const struct nm_geometry *g)
{
	return (size_t)g->ring_slots * sizeof(struct nm_slot);
}

int nm_window_reserve_ring(struct nm_window *window, uint32_t lane, struct nm_reason *ret_reason)
{
	int err = 0;

	/* Placed memory was reserved at its creation. */
	if (window->fd >= 0)
		err = own(window, nm_window_ring(window, lane), ring_bytes(&window->geometry));
	return err ? create_failed(ret_reason, "reserve the memory of a ring", err) : 0;
}

/* No process, not even the owner, may be able to remove the bytes or to add a writer. */
static int check_file(int fd, uint64_t *ret_size, struct nm_foreign_window *ret_window,
		      struct nm_reason *ret_reason)
{
	struct stat st;
	int err = nm_memfd_check(fd, "window", &st, ret_reason);

	if (err)
		return err;
	if (st.st_size < (off_t)sizeof(struct nm_window_header)) {
		nm_reason_set(ret_reason, "its window is truncated: %lld bytes",
			      (long long)st.st_size);
		return -EBADMSG;
	}
	*ret_size = (uint64_t)st.st_size;
	ret_window->device = st.st_dev;
	ret_window->inode = st.st_ino;
	return 0;
}

static void see_places(struct nm_foreign_window *window, const char *base,
		       const struct nm_window_header *header)
{
	const struct nm_geometry *g = &window->geometry;

	window->header = (const void *)base;
	window->lanes = (const void *)(base + g->lanes_off);
	window->regions = (const void *)(base + g->regions_off);
	window->rings = (const void *)(base + g->rings_off);
	window->pool = (const uint8_t *)base + g->pool_off;
	memcpy(window->id, header->id, sizeof(window->id));
}

/*
 * True if the owner has touched all pages of a part of a mapped window, so they were charged to the
 * owner's control group. A read of a missing page would create it, charged to this process. A
 * present page stays: the seals forbid truncation and holes. Unlike SEEK_HOLE, mincore() waits for
 * no lock of the file, which a hostile owner could hold. A page that was swapped out counts as
 * missing.
 */
static bool is_owned(const void *start, size_t len)
{
	unsigned char present[1024];
	char *pages = pages_of(start, &len);

	for (size_t step; len; pages += step, len -= step) {
		step = nm_min_u64(len, sizeof(present) * PAGE);
		if (mincore(pages, step, present) < 0)
			return false;
		for (size_t i = 0; i < step / PAGE; i++)
			if (!(present[i] & 1))
				return false;
	}
	return true;
}

static int refuse_holes(struct nm_reason *ret_reason, const char *part)
{
	nm_reason_set(ret_reason,
		      "its window has holes in its %s: reading them would take memory of this "
		      "process",
		      part);
	return -EBADMSG;
}

static size_t pool_bytes(const struct nm_geometry *g)
{
	return (size_t)g->nr_chunks * g->chunk_size;
}

static int map_foreign(int fd, const struct nm_window_header *header,
		       struct nm_foreign_window *window, struct nm_reason *ret_reason)
{
	const struct nm_geometry *g = &window->geometry;
	int err = nm_budget_take(g->size, ret_reason);
	void *base;

	if (err)
		return err;
	base = mmap(NULL, g->size, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		err = -errno;
		nm_reason_set(ret_reason, "cannot map its window: %s", strerror(errno));
		nm_budget_return(g->size);
		return err;
	}
	see_places(window, base, header);
	if (!is_owned(base, g->rings_off))
		err = refuse_holes(ret_reason, "first part");
	if (err)
		nm_window_detach(window);
	return err;
}

int nm_window_attach(int fd, struct nm_foreign_window *ret_window, struct nm_reason *ret_reason)
{
	struct nm_foreign_window window = {0};
	struct nm_window_header header;
	uint64_t size = 0;
	ssize_t got;
	int err;

	err = check_file(fd, &size, &window, ret_reason);
	if (err)
		return err;
	/* The kernel makes a copy, so that the checked header is the used header. */
	got = pread(fd, &header, sizeof(header), 0);
	if (got != (ssize_t)sizeof(header)) {
		err = got < 0 ? -errno : -EBADMSG;
		nm_reason_set(ret_reason, "cannot read its window: %s", strerror(-err));
		return err;
	}
	err = nm_window_header_check(&header, size, &window.geometry, ret_reason);
	if (!err)
		err = map_foreign(fd, &header, &window, ret_reason);
	if (err)
		return err;
	NM_FAULT("window-mapped");
	*ret_window = window;
	return 0;
}

int nm_foreign_check_pool(const struct nm_foreign_window *window, struct nm_reason *ret_reason)
{
	if (window->is_view || is_owned(window->pool, pool_bytes(&window->geometry)))
		return 0;
	return refuse_holes(ret_reason, "pool");
}

void nm_pool_warm(const uint8_t *pool, size_t len)
{
	warm(pool, nm_min_u64(len, WARM_FOREIGN_MAX), MADV_POPULATE_READ);
}

int nm_foreign_check_lane(const struct nm_foreign_window *window, uint32_t lane, bool reads_ring,
			  struct nm_reason *ret_reason)
{
	if (lane >= window->geometry.nr_lanes) {
		nm_reason_set(ret_reason, "it named lane %u of %u", lane,
			      window->geometry.nr_lanes);
		return -EBADMSG;
	}
	if (!reads_ring || window->is_view ||
	    is_owned(nm_foreign_ring(window, lane), ring_bytes(&window->geometry)))
		return 0;
	return refuse_holes(ret_reason, "ring");
}

int nm_window_view(const void *memory, uint64_t size, struct nm_foreign_window *ret_window,
		   struct nm_reason *ret_reason)
{
	struct nm_foreign_window window = {.is_view = true};
	struct nm_window_header header;
	int err;

	if (size < sizeof(header) || (uintptr_t)memory % NM_CACHE_LINE)
		return refuse_header(ret_reason, "no room for a header");
	nm_copy_words(&header, memory, sizeof(header));
	err = nm_window_header_check(&header, size, &window.geometry, ret_reason);
	if (err)
		return err;
	see_places(&window, memory, &header);
	*ret_window = window;
	return 0;
}

void nm_window_detach(struct nm_foreign_window *window)
{
	if (!window || !window->header)
		return;
	nm_device_unpin(window->pool);
	if (!window->is_view) {
		munmap((void *)(uintptr_t)window->header, window->geometry.size);
		nm_budget_return(window->geometry.size);
	}
	window->header = NULL;
}

const struct nm_slot *nm_foreign_ring(const struct nm_foreign_window *window, uint32_t lane)
{
	return window->rings + (size_t)lane * window->geometry.ring_slots;
}

enum nm_window_state nm_foreign_state(const struct nm_foreign_window *window)
{
	/* Partner: nm_window_set_state(). Any number may be there: callers compare for equality. */
	return (enum nm_window_state)atomic_load_explicit(&window->header->state,
							  memory_order_acquire);
}
