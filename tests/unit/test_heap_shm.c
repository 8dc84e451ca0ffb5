/* SPDX-License-Identifier: Apache-2.0 */
/* Heaps of others: what is no sound heap is refused, what is not there is not read. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heap_fixture.h"
#include "session_fixture.h"
#include "shm/budget.h"
#include "shm/heap.h"

enum { PAGE = 4096, NR_PAGES = 300, SIZE = NR_PAGES * PAGE };

/* Pages of the heap's file that are in memory. */
static unsigned int nr_present(void)
{
	unsigned char there[NR_PAGES];
	unsigned int nr = 0;

	NM_CHECK_EQ(mincore(heap.base, SIZE, there), 0);
	for (unsigned int i = 0; i < NR_PAGES; i++)
		nr += there[i] & 1;
	return nr;
}

NM_TEST(only_pages_that_are_there_are_read)
{
	struct nm_foreign_heap foreign;
	struct nm_reason why = {""};

	heap_create(SIZE);
	NM_CHECK_EQ(nm_foreign_heap_attach(heap.face.fd, &foreign, &why), 0);
	NM_CHECK(!nm_foreign_heap_at(&foreign, 0, 1));
	memset(heap.base + 10 * PAGE, 7, 200 * PAGE);
	NM_CHECK(!nm_foreign_heap_at(&foreign, 10 * PAGE - 1, 2));
	NM_CHECK(!nm_foreign_heap_at(&foreign, 209 * PAGE, 2 * PAGE));
	NM_CHECK_EQ(nr_present(), 200);
	NM_CHECK(nm_foreign_heap_at(&foreign, 10 * PAGE, 200 * PAGE) == foreign.base + 10 * PAGE);
	NM_CHECK_EQ(foreign.base[210 * PAGE - 1], 7);
	/* What is known is not forgotten, and nothing else is known. */
	NM_CHECK(nm_foreign_heap_at(&foreign, 100 * PAGE + 5, 1));
	NM_CHECK(!nm_foreign_heap_at(&foreign, 210 * PAGE, 1));
	NM_CHECK_EQ(nr_present(), 200);
	/* The owner cannot take a page back. */
	NM_CHECK(madvise(heap.base + 10 * PAGE, PAGE, MADV_REMOVE) < 0);
	NM_CHECK(fallocate(heap.face.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) < 0);
	NM_CHECK(mprotect((void *)(uintptr_t)foreign.base, PAGE, PROT_READ | PROT_WRITE) < 0);
	nm_foreign_heap_detach(&foreign);
	nm_foreign_heap_detach(&foreign);
	nm_foreign_heap_detach(NULL);
	heap_destroy();
}

NM_TEST(places_outside_are_none)
{
	struct nm_foreign_heap foreign;
	struct nm_reason why = {""};

	heap_create(SIZE);
	memset(heap.base, 1, SIZE);
	NM_CHECK_EQ(nm_foreign_heap_attach(heap.face.fd, &foreign, &why), 0);
	NM_CHECK(nm_foreign_heap_at(&foreign, 0, SIZE));
	NM_CHECK(!nm_foreign_heap_at(&foreign, 0, SIZE + 1));
	NM_CHECK(!nm_foreign_heap_at(&foreign, SIZE, 1));
	NM_CHECK(!nm_foreign_heap_at(&foreign, SIZE - 1, 2));
	NM_CHECK(!nm_foreign_heap_at(&foreign, 1, UINT64_MAX));
	NM_CHECK(!nm_foreign_heap_at(&foreign, UINT64_MAX, 1));
	NM_CHECK(!nm_foreign_heap_at(&foreign, (UINT64_C(1) << 63) - 1, UINT64_C(1) << 63));
	nm_foreign_heap_detach(&foreign);
	heap_destroy();
}

/* The line VmFlags of the mapping at BASE. */
static void flags_of(const void *base, char *ret_line, size_t len)
{
	FILE *maps = fopen("/proc/self/smaps", "re");
	char start[32];
	bool is_found = false;

	NM_CHECK(maps);
	snprintf(start, sizeof(start), "%lx-", (unsigned long)(uintptr_t)base);
	while (fgets(ret_line, (int)len, maps)) {
		is_found |= !strncmp(ret_line, start, strlen(start));
		if (is_found && !strncmp(ret_line, "VmFlags:", 8))
			break;
	}
	fclose(maps);
}

/* A reader that locks all that it maps makes no page of others, and none is in its core dump. */
NM_TEST(a_locked_reader_makes_no_page)
{
	struct nm_foreign_heap foreign = {0};
	struct nm_reason why = {""};
	char flags[4096] = "";

	heap_create(SIZE);
	NM_CHECK_EQ(mlockall(MCL_FUTURE), 0);
	NM_CHECK_EQ(nm_foreign_heap_attach(heap.face.fd, &foreign, &why), 0);
	munlockall();
	NM_CHECK_EQ(nr_present(), 0);
	flags_of(foreign.base, flags, sizeof(flags));
	NM_CHECK_HAS(flags, " dd");
	nm_foreign_heap_detach(&foreign);
	heap_destroy();
}

static void expect_refused(int fd, int err, const char *words)
{
	unsigned int mappings = nm_test_count_mappings();
	struct nm_foreign_heap foreign = {0};
	struct nm_reason why = {""};

	NM_CHECK_EQ(nm_foreign_heap_attach(fd, &foreign, &why), err);
	NM_CHECK_HAS(why.text, words);
	NM_CHECK(!foreign.base);
	NM_CHECK_EQ(nm_test_count_mappings(), mappings);
}

static void expect_forged_refused(size_t size, unsigned int seals, int err, const char *words)
{
	int fd = heap_forge(size, seals);

	expect_refused(fd, err, words);
	close(fd);
}

NM_TEST(files_that_are_no_heaps_are_refused)
{
	int fds[2];

	expect_refused(-1, -EBADF, "cannot examine its heap");
	NM_CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
	expect_refused(fds[0], -EPERM, "its heap is not a memfd");
	close(fds[0]);
	close(fds[1]);
	expect_forged_refused(SIZE, 0, -EPERM, "not sealed");
	expect_forged_refused(SIZE, HEAP_SEALS & ~(unsigned int)F_SEAL_SHRINK, -EPERM,
			      "not sealed");
	expect_forged_refused(SIZE, HEAP_SEALS & ~(unsigned int)F_SEAL_FUTURE_WRITE, -EPERM,
			      "not sealed");
	expect_forged_refused(0, HEAP_SEALS, -EBADMSG, "its heap has 0 bytes");
	expect_forged_refused(SIZE + 1, HEAP_SEALS, -EBADMSG, "its heap has");
	expect_forged_refused((size_t)65 << 30, HEAP_SEALS, -EBADMSG, "its heap has");
}

/* Many peers show as much as they may. */
NM_TEST(heaps_leave_room_for_windows)
{
	enum { HEAPS_MAX = 1024 };
	static struct nm_foreign_heap foreign[HEAPS_MAX];
	int fd = heap_forge((size_t)64 << 30, HEAP_SEALS), err = 0;
	struct nm_reason why = {""};
	unsigned int nr = 0;

	while (nr < HEAPS_MAX && !(err = nm_foreign_heap_attach(fd, &foreign[nr], &why)))
		nr++;
	NM_CHECK_EQ(err, -ENOSPC);
	NM_CHECK_HAS(why.text, "its heap of 65536 MiB is too much");
	NM_CHECK_EQ(nm_budget_take(64 << 20, &why), 0);
	nm_budget_return(64 << 20);
	while (nr > 0)
		nm_foreign_heap_detach(&foreign[--nr]);
	close(fd);
}

static void expect_own_refused(const char *words)
{
	struct nm_own_heap own;
	struct nm_reason why = {""};

	NM_CHECK(nm_own_heap_open(&own, &why) < 0);
	NM_CHECK_HAS(why.text, words);
	NM_CHECK_EQ(own.fd, -1);
}

NM_TEST(own_heap_is_found_and_checked)
{
	struct nm_own_heap own;
	struct nm_reason why = {""};
	uint64_t offset;
	int other;

	expect_own_refused("no heap here");
	heap_create(SIZE);
	NM_CHECK_EQ(nm_own_heap_open(&own, &why), 0);
	NM_CHECK(nm_own_heap_has(&own, heap.base + 5, SIZE - 5, &offset));
	NM_CHECK_EQ(offset, 5);
	NM_CHECK(!nm_own_heap_has(&own, heap.base + 5, SIZE - 4, &offset));
	NM_CHECK(!nm_own_heap_has(&own, heap.base - 1, 2, &offset));
	NM_CHECK(!nm_own_heap_has(&own, heap.base + SIZE, 1, &offset));
	NM_CHECK(!nm_own_heap_has(&own, heap.base, UINT64_MAX, &offset));
	nm_own_heap_close(&own);
	nm_own_heap_close(&own);
	/* The program closed the descriptor, and its number is another file's now. */
	other = heap_forge(SIZE, HEAP_SEALS);
	NM_CHECK(dup2(other, heap.face.fd) >= 0);
	close(other);
	expect_own_refused("closed its descriptor");
	heap_destroy();
}

static struct place owner, visitor;

/* A visitor whose window and challenges are sound shows HEAP_FD as its heap. */
static void visit_with(int heap_fd)
{
	struct nm_greeting hello = raw_hello(&visitor, &owner, 1), welcome;
	uint8_t bytes[NM_MESSAGE_MAX];
	char words[180] = "";
	int fd = raw_connect(&owner), passed;

	NM_CHECK_EQ(nm_message_send(fd, &hello, sizeof(hello), visitor.window->fd), 0);
	NM_CHECK_EQ(raw_receive(fd, bytes, &passed, words), NM_MESSAGE_WELCOME);
	close(passed);
	NM_CHECK_EQ(nm_greeting_parse(bytes, sizeof(welcome), NM_MESSAGE_WELCOME, &welcome, NULL),
		    0);
	raw_prove(&visitor, &owner, 1, welcome.challenge, NM_LANE_SHOWN);
	NM_CHECK_EQ(nm_message_send_step_with(fd, NM_MESSAGE_MET, false, "no", heap_fd), 0);
	NM_CHECK_EQ(raw_receive(fd, bytes, &passed, words), NM_MESSAGE_ACK);
	/* The owner has no heap. */
	NM_CHECK_EQ(passed, -1);
	raw_prove(&visitor, &owner, 1, welcome.challenge, NM_LANE_AGREED);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_GO, false, "no"), 0);
	place_expect(&owner, NM_SESSION_SOURCE);
	close(fd);
}

/* The link comes up all the same, without the heap. */
static void expect_heap_ignored(int heap_fd)
{
	const struct nm_session *session;

	owner = place_create(5000);
	visitor = place_create(5000);
	visit_with(heap_fd);
	session = nm_sessions_find(owner.sessions, &visitor.who);
	NM_CHECK(session && session->in.handshake && !session->heap.base);
	place_destroy(&visitor);
	place_destroy(&owner);
	if (heap_fd >= 0)
		close(heap_fd);
}

NM_TEST(session_comes_up_without_a_heap_that_is_not_sound)
{
	int fds[2];

	expect_heap_ignored(-1);
	expect_heap_ignored(heap_forge(SIZE, 0));
	expect_heap_ignored(heap_forge(SIZE + 1, HEAP_SEALS));
	expect_heap_ignored(heap_forge((size_t)65 << 30, HEAP_SEALS));
	NM_CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
	close(fds[1]);
	expect_heap_ignored(fds[0]);
}

NM_TEST(heaps_are_exchanged_with_a_proven_peer)
{
	const struct nm_session *out, *in;

	heap_create(SIZE);
	strcpy(heap.base, "here");
	owner = place_create(5000);
	visitor = place_create(5000);
	out = place_visit(&visitor, &owner);
	in = place_expect(&owner, NM_SESSION_SOURCE);
	NM_CHECK(out->out.shows_heap && out->out.reads_heap);
	NM_CHECK_EQ(out->heap.size, SIZE);
	NM_CHECK(out->heap.base != in->heap.base);
	NM_CHECK_STR((const char *)out->heap.base, "here");
	NM_CHECK_STR((const char *)in->heap.base, "here");
	place_destroy(&visitor);
	place_destroy(&owner);
	heap_destroy();
}
