/* SPDX-License-Identifier: Apache-2.0 */
/* What a neighbour's window may cost: no page, and a bounded part of the address space. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "shm/ring.h"
#include "shm/window.h"

#define MIB (UINT64_C(1) << 20)
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE)

static const uint8_t id[6] = {1, 2, 3, 4, 5, 6};

static struct nm_geometry geometry_of(uint64_t pool_size)
{
	struct nm_geometry geometry;

	NM_CHECK_EQ(nm_geometry_init(8, 64, 4096, pool_size, &geometry), 0);
	return geometry;
}

static struct nm_window create_window(uint64_t pool_size)
{
	struct nm_geometry geometry = geometry_of(pool_size);
	struct nm_reason why = {""};
	struct nm_window window;

	if (nm_window_create(&geometry, id, &window, &why))
		nm_test_fail(__FILE__, __LINE__, "create: %s", why.text);
	return window;
}

static void write_pages(int fd, uint64_t from, uint64_t to)
{
	static const char zeros[4096];

	for (from -= from % sizeof(zeros); from < to; from += sizeof(zeros))
		NM_CHECK_EQ(pwrite(fd, zeros, sizeof(zeros), (off_t)from), sizeof(zeros));
}

/* A sealed window with a sound header. Of its pages only those from FROM to TO are there. */
static int forge(const struct nm_geometry *geometry, uint64_t from, uint64_t to)
{
	struct nm_window_header header = {
		.magic = NM_LAYOUT_MAGIC, .version = NM_LAYOUT_VERSION, .geometry = *geometry};
	int fd = memfd_create("forged", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	memcpy(header.id, id, sizeof(id));
	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(ftruncate(fd, (off_t)geometry->size), 0);
	write_pages(fd, from, to);
	NM_CHECK_EQ(pwrite(fd, &header, sizeof(header), 0), sizeof(header));
	NM_CHECK_EQ(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
	return fd;
}

static uint64_t pages_in(int fd)
{
	struct stat st;

	NM_CHECK_EQ(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512 / 4096;
}

static void warm(const struct nm_foreign_window *foreign)
{
	nm_pool_warm(foreign->pool,
		     (size_t)foreign->geometry.nr_chunks * foreign->geometry.chunk_size);
}

/* Do with a neighbour's window what is done before a read of its pool. */
static int attach_for_reading(int fd, struct nm_foreign_window *ret_foreign,
			      struct nm_reason *ret_reason)
{
	int err = nm_window_attach(fd, ret_foreign, ret_reason);

	if (err)
		return err;
	err = nm_foreign_check_pool(ret_foreign, ret_reason);
	if (err)
		nm_window_detach(ret_foreign);
	else
		warm(ret_foreign);
	return err;
}

static void expect_refused(int fd, int err, const char *words)
{
	unsigned int mappings = nm_test_count_mappings();
	struct nm_foreign_window foreign = {0};
	struct nm_reason why = {""};
	uint64_t pages = pages_in(fd);

	NM_CHECK_EQ(attach_for_reading(fd, &foreign, &why), err);
	NM_CHECK_HAS(why.text, words);
	NM_CHECK_EQ(nm_test_count_mappings(), mappings);
	NM_CHECK_EQ(pages_in(fd), pages); /* the refusal has created none */
	close(fd);
}

NM_TEST(window_with_holes_is_refused)
{
	const struct nm_geometry g = geometry_of(MIB);
	struct nm_foreign_window foreign;
	int fd;

	expect_refused(forge(&g, 0, 0), -EBADMSG, "holes in its first part");
	expect_refused(forge(&g, 0, g.rings_off), -EBADMSG, "holes in its pool");
	expect_refused(forge(&g, 0, g.size - 4096), -EBADMSG, "holes in its pool");
	expect_refused(forge(&g, 8192, g.size), -EBADMSG, "holes in its first part");
	fd = forge(&g, 0, g.size);
	NM_CHECK_EQ(attach_for_reading(fd, &foreign, NULL), 0);
	nm_window_detach(&foreign);
	close(fd);
}

/* Blocks that were reserved but never touched: the kernel does not show that they are there. */
NM_TEST(reserved_pages_are_not_enough)
{
	const struct nm_geometry g = geometry_of(MIB);
	int fd = forge(&g, 0, g.rings_off);

	NM_CHECK_EQ(fallocate(fd, 0, (off_t)g.pool_off, (off_t)(g.size - g.pool_off)), 0);
	expect_refused(fd, -EBADMSG, "holes in its pool");
}

NM_TEST(ring_that_its_owner_did_not_touch_is_refused)
{
	struct nm_window window = create_window(MIB);
	struct nm_foreign_window foreign;
	struct nm_reason why = {""};

	NM_CHECK_EQ(nm_window_attach(window.fd, &foreign, &why), 0);
	NM_CHECK_EQ(nm_foreign_check_lane(&foreign, 3, true, &why), -EBADMSG);
	NM_CHECK_HAS(why.text, "holes in its ring");
	NM_CHECK_EQ(nm_foreign_check_lane(&foreign, 3, false, &why), 0);
	NM_CHECK_EQ(nm_window_reserve_ring(&window, 3, &why), 0);
	NM_CHECK_EQ(nm_foreign_check_lane(&foreign, 3, true, &why), 0);
	NM_CHECK_EQ(nm_foreign_check_lane(&foreign, 4, true, &why), -EBADMSG);
	NM_CHECK_EQ(nm_foreign_check_lane(&foreign, 8, false, &why), -EBADMSG);
	NM_CHECK_HAS(why.text, "lane 8 of 8");
	nm_window_detach(&foreign);
	nm_window_destroy(&window);
}

/* Pages of the pool in the page tables of this process. */
static uint64_t mapped_pages(const struct nm_foreign_window *window)
{
	const uint64_t present = UINT64_C(1) << 63;
	uint64_t first = (uintptr_t)window->pool / 4096, nr = 0, entry;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	NM_CHECK(fd >= 0);
	for (uint64_t at = first; at < first + 16 * MIB / 4096; at++) {
		NM_CHECK_EQ(pread(fd, &entry, sizeof(entry), (off_t)(at * sizeof(entry))),
			    sizeof(entry));
		nr += (entry & present) != 0;
	}
	close(fd);
	return nr;
}

/* Take the packet with the first chunk of the pool of FOREIGN. */
static void read_first_chunk(const struct nm_foreign_window *foreign)
{
	static _Alignas(64) struct nm_slot slots[16];
	static _Alignas(64) struct nm_lane lane;
	struct nm_packet pkt = {.len = 1};
	struct nm_ring_writer writer;
	struct nm_ring_reader reader;
	const void *payload;
	uint8_t bounce[NM_RING_INLINE_LIMIT];

	nm_ring_writer_init(&writer, slots, 16, &lane, 0, 65535);
	nm_ring_reader_init(&reader, slots, 16, foreign->pool, foreign->geometry.chunk_size,
			    foreign->geometry.nr_chunks, &lane, 0);
	reader.is_cold = true;
	nm_ring_write_chunk(&writer, &pkt, 0, 0);
	NM_CHECK_EQ(nm_ring_peek(&reader, bounce, &pkt, &payload), 1);
	NM_CHECK(payload == foreign->pool);
	NM_CHECK(!reader.is_cold);
}

/* Filling page tables takes long, and most neighbours only ever send small messages. */
NM_TEST(the_first_chunk_fills_page_tables)
{
	const struct nm_geometry g = geometry_of(16 * MIB);
	int fd = forge(&g, 0, g.size);
	struct nm_foreign_window foreign;

	NM_CHECK_EQ(nm_window_attach(fd, &foreign, NULL), 0);
	NM_CHECK_EQ(nm_foreign_check_pool(&foreign, NULL), 0);
	NM_CHECK_EQ(mapped_pages(&foreign), 0);
	read_first_chunk(&foreign);
	NM_CHECK_EQ(mapped_pages(&foreign), 16 * MIB / 4096);
	nm_window_detach(&foreign);
	close(fd);
}

/* Every page that a reader may touch is there before the reader comes. */
NM_TEST(reading_a_window_creates_no_page)
{
	struct nm_window window = create_window(MIB);
	struct nm_foreign_window foreign;
	uint64_t pages, sum = 0;

	NM_CHECK_EQ(nm_window_reserve_ring(&window, 7, NULL), 0);
	pages = pages_in(window.fd);
	NM_CHECK_EQ(attach_for_reading(window.fd, &foreign, NULL), 0);
	NM_CHECK_EQ(nm_foreign_check_lane(&foreign, 7, true, NULL), 0);
	for (uint64_t at = 0; at < foreign.geometry.rings_off; at += 64)
		sum += ((const volatile uint8_t *)foreign.header)[at];
	for (uint64_t at = 0; at < MIB; at += 64)
		sum += ((const volatile uint8_t *)foreign.pool)[at];
	for (uint32_t slot = 0; slot < foreign.geometry.ring_slots; slot++)
		sum += nm_foreign_ring(&foreign, 7)[slot].head.tag;
	NM_CHECK(sum > 0);
	NM_CHECK_EQ(pages_in(window.fd), pages);
	nm_window_detach(&foreign);
	nm_window_destroy(&window);
}

NM_TEST(size_is_what_the_layout_takes)
{
	struct nm_geometry g = geometry_of(MIB);

	g.size += 64 * MIB;
	expect_refused(forge(&g, 0, 4096), -EBADMSG, "leave gaps");
	g.pool_off += 64 * MIB;
	expect_refused(forge(&g, 0, 4096), -EBADMSG, "leave gaps");
	g = geometry_of(MIB);
	g.rings_off += 64 * MIB;
	g.pool_off += 64 * MIB;
	g.size += 64 * MIB;
	expect_refused(forge(&g, 0, 4096), -EBADMSG, "leave gaps");
}

#ifdef __SANITIZE_ADDRESS__
#define SANITIZED true
#else
#define SANITIZED false
#endif

static uint64_t address_space(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long long pages = 0;

	NM_CHECK(file != NULL);
	NM_CHECK_EQ(fscanf(file, "%llu", &pages), 1);
	fclose(file);
	return pages * 4096;
}

/* Under ulimit -v. Later mappings of the program find room. */
NM_TEST(windows_leave_address_space_to_the_program)
{
	struct nm_window window = create_window(8 * MIB);
	struct nm_foreign_window foreign[64];
	struct nm_reason why = {""};
	unsigned int nr = 0;
	struct rlimit limit;
	int err = 0;
	void *map;

	if (SANITIZED)
		nm_test_skip("the sanitizer takes all address space");
	limit.rlim_cur = limit.rlim_max = address_space() + 128 * MIB;
	NM_CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
	while (nr < NM_ARRAY_SIZE(foreign) && !err)
		err = nm_window_attach(window.fd, &foreign[nr++], &why);
	NM_CHECK_EQ(err, -ENOSPC);
	NM_CHECK_HAS(why.text, "ulimit -v");
	NM_CHECK(nr > 4);
	map = mmap(NULL, 48 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NM_CHECK(map != MAP_FAILED);
	munmap(map, 48 * MIB);
	/* What is given back can be taken again. */
	for (nr--; nr; nr--)
		nm_window_detach(&foreign[nr - 1]);
	NM_CHECK_EQ(nm_window_attach(window.fd, &foreign[0], &why), 0);
	nm_window_detach(&foreign[0]);
	nm_window_destroy(&window);
}

static char group[128];

static bool write_group(const char *name, const char *value)
{
	char path[192];
	int fd;
	bool done;

	snprintf(path, sizeof(path), "%s/%s", group, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	done = write(fd, value, strlen(value)) > 0;
	close(fd);
	return done;
}

/* A control group with so much memory; in the case's own place there may be no controller. */
static void make_group(const char *bytes)
{
	static const struct {
		const char *place, *limit;
	} versions[] = {{"/sys/fs/cgroup", "memory.max"},
			{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}};

	for (size_t i = 0; i < NM_ARRAY_SIZE(versions); i++) {
		snprintf(group, sizeof(group), "%s/nearmetal-test-%d", versions[i].place,
			 (int)getpid());
		if (mkdir(group, 0755))
			continue;
		if (write_group(versions[i].limit, bytes))
			return;
		rmdir(group);
	}
	nm_test_skip("control groups of memory need root");
}

static void remove_group(void)
{
	while (rmdir(group) && errno == EBUSY)
		nm_test_sleep_ms(10);
}

#define NR_NEIGHBOURS 6

/* A rank with little memory, and neighbours with large windows: sparse ones, or all their own. */
struct rank {
	int windows[NR_NEIGHBOURS];
	int expected;
};

static void meet_neighbours(void *arg)
{
	struct nm_foreign_window foreign[NR_NEIGHBOURS] = {0};
	const struct rank *rank = arg;
	uint64_t sum = 0;

	NM_CHECK(write_group("cgroup.procs", "0"));
	for (int i = 0; i < NR_NEIGHBOURS; i++) {
		NM_CHECK_EQ(attach_for_reading(rank->windows[i], &foreign[i], NULL),
			    rank->expected);
		if (rank->expected)
			continue;
		for (uint64_t at = 0; at < 16 * MIB; at += 4096)
			sum += ((const volatile uint8_t *)foreign[i].pool)[at];
	}
	NM_CHECK_EQ(sum, 0);
	for (int i = 0; i < NR_NEIGHBOURS; i++)
		nm_window_detach(&foreign[i]);
}

static void run_rank(struct rank *rank)
{
	pid_t pid = nm_test_fork(meet_neighbours, rank);
	int status;

	/* The group goes in any case. */
	NM_CHECK_EQ(waitpid(pid, &status, 0), pid);
	remove_group();
	NM_CHECK_EQ(status, 0);
	for (int i = 0; i < NR_NEIGHBOURS; i++)
		close(rank->windows[i]);
}

NM_TEST(sparse_windows_kill_no_rank_in_its_control_group)
{
	const struct nm_geometry g = geometry_of(16 * MIB);
	struct rank rank = {.expected = -EBADMSG};

	make_group("50331648");
	for (int i = 0; i < NR_NEIGHBOURS; i++)
		rank.windows[i] = forge(&g, 0, g.rings_off);
	run_rank(&rank);
}

NM_TEST(sound_windows_are_charged_to_their_owners)
{
	const struct nm_geometry g = geometry_of(16 * MIB);
	struct rank rank = {.expected = 0};

	make_group("50331648");
	for (int i = 0; i < NR_NEIGHBOURS; i++)
		rank.windows[i] = forge(&g, 0, g.size);
	run_rank(&rank);
}

/* Under ulimit -f the kernel would end the process. */
NM_TEST(limit_of_files_is_said_in_words)
{
	const struct rlimit limit = {65536, 65536};
	struct nm_geometry geometry = geometry_of(MIB);
	struct nm_reason why = {""};
	struct nm_window window;

	NM_CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	NM_CHECK_EQ(nm_window_create(&geometry, id, &window, &why), -EFBIG);
	NM_CHECK_HAS(why.text, "ulimit -f");
}
