/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that only its interface reaches: its bytes lie in a file, where no load finds them. Who
 * copies past base/user_copy.h crashes, or gets nothing. Included once by each test.
 */
#ifndef NM_TEST_DEVICE_FIXTURE_H
#define NM_TEST_DEVICE_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/user_copy.h"
#include "engine/atomic.h"
#include "harness.h"
#include "near_fixture.h"
#include "shm/regions.h"
#include "traffic.h"

enum { NUMBER = 5, LEN = 3000000, KEY = 9 };
#define BOTH (NM_REMOTE_READ | NM_REMOTE_WRITE)

static int file = -1;
static unsigned int nr_gets, nr_puts;

/* The copy that fails, counted from the last call of fail_at(); 0: none. */
static unsigned int fails_at;

static inline void fail_at(unsigned int copy)
{
	nr_gets = nr_puts = 0;
	fails_at = copy;
}

static inline int file_get(void *to, uint64_t from, size_t len)
{
	if (++nr_gets + nr_puts == fails_at)
		return -EIO;
	NM_CHECK_EQ(pread(file, to, len, (off_t)from), len);
	return 0;
}

static inline int file_put(uint64_t to, const void *from, size_t len)
{
	if (nr_gets + ++nr_puts == fails_at)
		return -EIO;
	NM_CHECK_EQ(pwrite(file, from, len, (off_t)to), len);
	return 0;
}

/* Copies that go on: made when they are waited for or asked for the second time. */
static struct going {
	void *host;
	uint64_t address;
	size_t len;
	bool is_get, was_asked;
} going[64];
static unsigned int nr_going;
/* Copies into these pages of the sender are counted, and those out of what a receiver pins. */
static const char *watched, *read_only;
static size_t nr_watched, watched_bytes, nr_read_only, read_only_bytes;

static inline int64_t file_begin(uint64_t address, void *host, size_t len, bool is_get)
{
	for (int i = 1; i < 64; i++)
		if (!going[i].host) {
			going[i] = (struct going){host, address, len, is_get, false};
			if (read_only && (size_t)((char *)host - read_only) < nr_read_only)
				read_only_bytes += is_get ? 0 : len;
			if (watched && (size_t)((char *)host - watched) < nr_watched)
				watched_bytes += len;
			nr_going++;
			return i;
		}
	return -EIO;
}

static inline int file_end(int64_t copy, bool waits)
{
	struct going g = going[copy];

	NM_CHECK(g.host);
	going[copy].was_asked = true;
	if (!waits && !g.was_asked)
		return -EAGAIN;
	going[copy].host = NULL;
	nr_going--;
	return g.is_get ? file_get(g.host, g.address, g.len) : file_put(g.address, g.host, g.len);
}

static unsigned int nr_pinned;
static bool pins_nothing;

static inline bool file_pin(void *pages, size_t len, bool is_read_only)
{
	NM_CHECK(pages && len > 0);
	if (is_read_only && !pins_nothing) {
		read_only = pages;
		nr_read_only = len;
	}
	nr_pinned += !pins_nothing;
	return !pins_nothing;
}

static inline void file_unpin(void *pages, size_t len)
{
	NM_CHECK(pages && len > 0);
	for (int i = 1; i < 64; i++)
		NM_CHECK(!going[i].host || (uintptr_t)going[i].host - (uintptr_t)pages >= len);
	nr_pinned--;
}

static const struct nm_device_ops file_ops = {
	.name = "file",
	.get = file_get,
	.put = file_put,
	.begin = file_begin,
	.end = file_end,
	.pin = file_pin,
	.unpin = file_unpin,
};

static inline void plug(void)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/device", nm_test_dir());
	file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	NM_CHECK(file >= 0);
	NM_CHECK_EQ(ftruncate(file, 8 * LEN), 0);
	fail_at(0);
	NM_CHECK_EQ(nm_device_plug(NUMBER, &file_ops), 0);
}

static inline void unplug(void)
{
	NM_CHECK_EQ(nr_going, 0);
	NM_CHECK_EQ(nr_pinned, 0);
	NM_CHECK_EQ(nm_device_plug(NUMBER, NULL), 0);
	close(file);
}

static inline void *at(uint64_t offset)
{
	return nm_device_mark(NUMBER, offset);
}

static inline void write_pattern(uint64_t offset, size_t len, uint64_t seed)
{
	char *bytes = malloc(len + 1);

	fill(bytes, len, seed);
	NM_CHECK_EQ(pwrite(file, bytes, len, (off_t)offset), len);
	free(bytes);
}

static inline void check_pattern(uint64_t offset, size_t len, uint64_t seed)
{
	char *bytes = malloc(len + 1);

	NM_CHECK_EQ(pread(file, bytes, len, (off_t)offset), len);
	check_filled(bytes, len, seed);
	free(bytes);
}

static struct near_node *a, *b;

static inline void post(struct near_node *node, struct near_node *peer, bool is_send, void *buffer,
			size_t len)
{
	struct iovec iov[2] = {{buffer, len}, {NULL, 0}};
	const struct nm_message m = {
		.iov = iov,
		.nr_iov = 2,
		.peer = near_peer(node, peer),
		.tag = 3,
		.flags = NM_TAGGED | NM_COMPLETION,
	};

	NM_CHECK_EQ(is_send ? nm_engine_send_device(node->engine, &m) :
			      nm_engine_recv(node->engine, &m),
		    0);
}

/* The completions of NODE since the last call, none of them an error. */
static inline unsigned int nr_completed(struct near_node *node)
{
	unsigned int nr = 0;

	for (; !nm_cqueue_empty(node->cq); nr++) {
		NM_CHECK_EQ(nm_cqueue_front(node->cq)->err, 0);
		nm_cqueue_pop(node->cq);
	}
	return nr;
}

static inline void open_both(void)
{
	plug();
	a = near_create(false);
	b = near_create(false);
	near_link(a, b);
	near_link(b, a);
}

static inline void close_both(void)
{
	near_destroy(a);
	near_destroy(b);
	unplug();
}

#endif
