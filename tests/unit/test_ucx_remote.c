/* SPDX-License-Identifier: Apache-2.0 */
/* Direct copies of the UCX face: content, limits, addresses of hostile peers, and lost peers. */
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "ucx_fixture.h"

#define PAGE 4096

static unsigned int nr_errors;

static void count_errors(enum nm_log_level level, const char *line)
{
	(void)line;
	nr_errors += level == NM_LOG_ERROR;
}

static uint8_t here[NM_REMOTE_COPY_STEP + 1], there[NM_REMOTE_COPY_STEP + 1];
static struct nm_ucx_ep *ep;

static ucs_status_t copy(bool is_read, const uct_iov_t *iov, size_t nr, const void *remote)
{
	return nm_ucx_copy(ep->peer, is_read, iov, nr, (uintptr_t)remote);
}

static uct_iov_t piece(size_t offset, size_t len)
{
	return (uct_iov_t){here + offset, len, NULL, 0, 1};
}

static void open_copies(void)
{
	start();
	ep = connect_ep();
	if (!ep->peer->link->remote_copy)
		nm_test_skip("no direct copies here");
	fill_bytes(there, sizeof(there), 1);
	fill_bytes(here, sizeof(here), 2);
}

static void close_copies(void)
{
	nm_ucx_ep_destroy(&ep->super);
	finish();
}

NM_TEST(pieces_hold_the_bytes_of_the_peer)
{
	uct_iov_t iov[5];

	open_copies();
	iov[0] = piece(10, 100);
	iov[1] = piece(0, 0);
	iov[2] = piece(5000, 3);
	iov[3] = piece(70000, 60000);
	NM_CHECK_EQ(copy(true, iov, 4, there + 7), UCS_OK);
	NM_CHECK(!memcmp(here + 10, there + 7, 100));
	NM_CHECK(!memcmp(here + 5000, there + 107, 3));
	NM_CHECK(!memcmp(here + 70000, there + 110, 60000));
	fill_bytes(here, sizeof(here), 2);
	NM_CHECK_EQ(copy(false, iov, 4, there), UCS_OK);
	NM_CHECK(!memcmp(there, here + 10, 100));
	NM_CHECK(!memcmp(there + 100, here + 5000, 3));
	NM_CHECK(!memcmp(there + 103, here + 70000, 60000));
	iov[0] = piece(0, NM_REMOTE_COPY_STEP);
	NM_CHECK_EQ(copy(true, iov, 1, there + 1), UCS_OK);
	NM_CHECK(!memcmp(here, there + 1, NM_REMOTE_COPY_STEP));
	close_copies();
}

NM_TEST(limits_are_kept)
{
	uct_iov_t iov[5];

	open_copies();
	for (unsigned int i = 0; i < 5; i++)
		iov[i] = piece(i, 1);
	NM_CHECK_EQ(copy(true, iov, 5, there), UCS_ERR_INVALID_PARAM);
	iov[0] = piece(0, NM_REMOTE_COPY_STEP + 1);
	NM_CHECK_EQ(copy(true, iov, 1, there), UCS_ERR_INVALID_PARAM);
	iov[0].length = SIZE_MAX;
	NM_CHECK_EQ(copy(false, iov, 2, there), UCS_ERR_INVALID_PARAM);
	NM_CHECK_EQ(copy(true, iov, 0, NULL), UCS_OK);
	close_copies();
}

/* A peer names memory that it does not have: the copy fails, and the next one does not. */
NM_TEST(addresses_of_no_memory_end_one_copy)
{
	uint8_t *pages =
		mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const uintptr_t addresses[] = {0, 8, UINTPTR_MAX - 100, (uintptr_t)1 << 63};
	uct_iov_t iov[2];

	NM_CHECK(pages != MAP_FAILED);
	NM_CHECK_EQ(munmap(pages + PAGE, PAGE), 0);
	fill_bytes(pages, PAGE, 3);
	open_copies();
	nr_errors = 0;
	nm_log_set_sink(count_errors);
	iov[0] = piece(0, 1000);
	iov[1] = piece(2000, 1000);
	for (unsigned int i = 0; i < 4; i++) {
		NM_CHECK_EQ(copy(true, iov, 2, (void *)addresses[i]), UCS_ERR_IO_ERROR);
		NM_CHECK_EQ(copy(false, iov, 2, (void *)addresses[i]), UCS_ERR_IO_ERROR);
	}
	/* Its memory ends within the first, between both, and within the second piece. */
	for (size_t left = 500; left < 2000; left += 500) {
		NM_CHECK_EQ(copy(true, iov, 2, pages + PAGE - left), UCS_ERR_IO_ERROR);
		NM_CHECK_EQ(copy(false, iov, 2, pages + PAGE - left), UCS_ERR_IO_ERROR);
	}
	NM_CHECK_EQ(copy(true, iov, 2, there), UCS_OK);
	NM_CHECK(!memcmp(here + 2000, there + 1000, 1000));
	NM_CHECK_EQ(ep->peer->state, NM_UCX_PEER_UP);
	nm_log_set_sink(NULL);
	NM_CHECK_EQ(nr_errors, 1);
	close_copies();
	munmap(pages, PAGE);
}

NM_TEST(a_peer_that_is_gone_is_not_copied_from)
{
	uint8_t before[1000];
	uct_iov_t iov;

	open_copies();
	memcpy(before, there, sizeof(before));
	iov = piece(0, 1000);
	node_destroy(peer);
	peer = NULL;
	NM_CHECK_EQ(copy(true, &iov, 1, there), UCS_ERR_CONNECTION_RESET);
	while (ep->peer->state != NM_UCX_PEER_DOWN)
		progress();
	NM_CHECK_EQ(copy(false, &iov, 1, there), UCS_ERR_CONNECTION_RESET);
	NM_CHECK(!memcmp(there, before, sizeof(before)));
	close_copies();
}

NM_TEST(own_memory_is_copied_and_checked_alike)
{
	const struct iovec from = {there, 1}, to = {here, 1};
	uct_iov_t iov[2];
	struct nm_peer *own;

	if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1)
		nm_test_skip("no calls of the kernel for copies here");
	start();
	own = nm_ucx_peer_get(face, &face->address.who);
	fill_bytes(there, sizeof(there), 1);
	fill_bytes(here, sizeof(here), 2);
	iov[0] = piece(5, 1000);
	iov[1] = piece(2000, 50000);
	NM_CHECK_EQ(nm_ucx_copy(own, true, iov, 2, (uintptr_t)there), UCS_OK);
	NM_CHECK(!memcmp(here + 5, there, 1000));
	NM_CHECK(!memcmp(here + 2000, there + 1000, 50000));
	fill_bytes(here, sizeof(here), 3);
	NM_CHECK_EQ(nm_ucx_copy(own, false, iov, 2, (uintptr_t)there), UCS_OK);
	NM_CHECK(!memcmp(here + 2000, there + 1000, 50000));
	NM_CHECK_EQ(nm_ucx_copy(own, true, iov, 2, 8), UCS_ERR_IO_ERROR);
	finish();
}
