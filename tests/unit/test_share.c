/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks shared through the keeper of a directory, and keepers and neighbours that misbehave. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "locality/keeper.h"
#include "locality/message.h"
#include "locality/share.h"

#define LEN 100000u
static uint8_t bytes[LEN];

static void fill(uint8_t seed)
{
	uint64_t state = seed;
	size_t i;

	for (i = 0; i < LEN; i++)
		bytes[i] = (uint8_t)nm_test_random(&state);
}

static struct nm_share *open_share(void)
{
	struct nm_share *share = nm_share_create(nm_test_dir());

	NM_CHECK(share);
	return share;
}

static struct nm_block take(struct nm_share *share)
{
	struct nm_block block;

	NM_CHECK_EQ(nm_share_block(share, bytes, LEN, &block), 0);
	NM_CHECK_EQ(block.len, LEN);
	NM_CHECK(!memcmp(block.bytes, bytes, LEN));
	return block;
}

static struct nm_segment_dir open_dir(void)
{
	struct nm_segment_dir dir;

	NM_CHECK_EQ(nm_segment_dir_open(nm_test_dir(), &dir, NULL), 0);
	return dir;
}

NM_TEST(the_second_finds_what_the_first_made)
{
	struct nm_share *one = open_share(), *two = open_share();
	struct nm_block a, b, c;

	fill(1);
	a = take(one);
	NM_CHECK(!a.is_found && a.is_kept);
	b = take(two);
	NM_CHECK(b.is_found && b.is_kept && b.bytes != a.bytes);
	fill(2);
	c = take(two);
	NM_CHECK(!c.is_found && c.is_kept);
	nm_block_fini(&a);
	nm_share_destroy(one);
	/* The keeper has gone with the first; what was shared stays. */
	fill(1);
	NM_CHECK(!memcmp(b.bytes, bytes, LEN));
	nm_block_fini(&b);
	b = take(two);
	NM_CHECK(!b.is_found && b.is_kept);
	nm_block_fini(&b);
	nm_block_fini(&c);
	nm_share_destroy(two);
	NM_CHECK_EQ(rmdir(nm_test_dir()), 0); /* no socket is left */
	NM_CHECK_EQ(mkdir(nm_test_dir(), 0700), 0);
}

/* A block cannot be changed by anybody, and is no block when it could. */
NM_TEST(only_what_cannot_change_is_a_block)
{
	const int sealed = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
	static const int lacking[] = {F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW};
	struct nm_reason why;
	struct nm_block block;
	int fd, file;
	size_t i;

	for (i = 0; i < 3; i++) {
		fd = memfd_create("t", MFD_ALLOW_SEALING | MFD_CLOEXEC);
		NM_CHECK_EQ(ftruncate(fd, LEN), 0);
		NM_CHECK_EQ(fcntl(fd, F_ADD_SEALS, sealed & ~lacking[i]), 0);
		NM_CHECK_EQ(nm_block_map(fd, LEN, &block, &why), -EPERM);
		NM_CHECK_HAS(why.text, "not sealed");
		NM_CHECK_EQ(fcntl(fd, F_ADD_SEALS, sealed), 0);
		NM_CHECK_EQ(nm_block_map(fd, LEN + 1, &block, &why), -EBADMSG);
		NM_CHECK_EQ(nm_block_map(fd, LEN, &block, &why), 0);
		NM_CHECK_EQ(write(fd, "x", 1), -1);
		NM_CHECK_EQ(ftruncate(fd, 0), -1);
		NM_CHECK(mmap(NULL, LEN, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
		NM_CHECK_EQ(mprotect((void *)(uintptr_t)block.bytes, LEN, PROT_READ | PROT_WRITE),
			    -1);
		nm_block_fini(&block);
		close(fd);
	}
	file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	NM_CHECK_EQ(nm_block_map(file, LEN, &block, &why), -EPERM);
	close(file);
}

/* Say something to the keeper of the case's directory. Returns the kind of its answer, 0: none. */
static int say(const void *message, size_t len, int pass_fd)
{
	struct nm_segment_dir dir = open_dir();
	struct nm_keeper_message answer = {0};
	struct sockaddr_un address;
	uint8_t got[NM_MESSAGE_MAX];
	socklen_t address_len = nm_segment_dir_address(&dir, NM_KEEPER_NAME, &address);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), passed = -1, n;

	NM_CHECK_EQ(connect(fd, (struct sockaddr *)&address, address_len), 0);
	NM_CHECK_EQ(nm_message_send(fd, message, len, pass_fd), 0);
	while ((n = nm_message_receive(fd, got, &passed)) == -EAGAIN)
		nm_test_sleep_ms(1);
	if (n > 0)
		NM_CHECK_EQ(nm_keeper_message_parse(got, (size_t)n, &answer), 0);
	if (passed >= 0)
		close(passed);
	NM_CHECK_EQ(passed >= 0, answer.kind == NM_KEEPER_HAVE);
	close(fd);
	nm_segment_dir_close(&dir);
	return answer.kind;
}

static int memfd_of(const void *content, size_t len)
{
	int fd = memfd_create("t", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	NM_CHECK_EQ(write(fd, content, len), (long long)len);
	NM_CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

NM_TEST(keeper_believes_nothing)
{
	struct nm_segment_dir dir = open_dir();
	struct nm_keeper_message m;
	struct nm_keeper *keeper, *other;
	struct nm_digest digest;
	struct nm_reason why;
	uint8_t wrong[LEN] = {0};
	int fd, i;

	NM_CHECK_EQ(nm_keeper_start(&dir, &keeper, &why), 0);
	NM_CHECK_EQ(nm_keeper_start(&dir, &other, &why), -EADDRINUSE);
	fill(3);
	digest = nm_digest_of(bytes, LEN);
	nm_keeper_message_init(&m, NM_KEEPER_GIVE, &digest, LEN);
	NM_CHECK_EQ(say(&m, sizeof(m), -1), NM_KEEPER_NONE);
	fd = memfd_of(wrong, LEN);
	NM_CHECK_EQ(say(&m, sizeof(m), fd), NM_KEEPER_NONE); /* not what its digest says */
	close(fd);
	fd = memfd_of(bytes, LEN - 1);
	NM_CHECK_EQ(say(&m, sizeof(m), fd), NM_KEEPER_NONE);
	close(fd);
	NM_CHECK_EQ(say(&m, sizeof(m), dir.fd), NM_KEEPER_NONE);
	NM_CHECK_EQ(say(&m, sizeof(m) - 1, -1), 0);
	NM_CHECK_EQ(say("hello", 5, -1), 0);
	for (i = 0; i < 4; i++) {
		struct nm_keeper_message bad = m;

		bad.magic += i == 0;
		bad.version = (uint16_t)(bad.version + (i == 1));
		bad.kind = i == 2 ? 99 : bad.kind;
		bad.len = i == 3 ? NM_BLOCK_MAX + 1 : bad.len;
		NM_CHECK_EQ(say(&bad, sizeof(bad), -1), 0);
	}
	/* After all of that it still keeps. */
	fd = memfd_of(bytes, LEN);
	NM_CHECK_EQ(say(&m, sizeof(m), fd), NM_KEEPER_HAVE);
	close(fd);
	m.kind = NM_KEEPER_WANT;
	NM_CHECK_EQ(say(&m, sizeof(m), -1), NM_KEEPER_HAVE);
	nm_keeper_stop(keeper);
	nm_segment_dir_close(&dir);
}

struct liar {
	struct nm_segment_dir dir;
	int listener;
	int answer_fd; /* what it hands out for everything; -1: it says nothing */
};

/* A false keeper, for one or two questions. */
static void lie(void *arg)
{
	struct liar *liar = arg;
	struct nm_keeper_message m;
	uint8_t got[NM_MESSAGE_MAX];
	int client, passed, len;

	for (;;) {
		while ((client = accept(liar->listener, NULL, NULL)) < 0)
			nm_test_sleep_ms(1);
		while ((len = nm_message_receive(client, got, &passed)) == -EAGAIN)
			nm_test_sleep_ms(1);
		if (liar->answer_fd < 0) {
			pause();
		} else if (!nm_keeper_message_parse(got, (size_t)len, &m)) {
			m.kind = NM_KEEPER_HAVE;
			nm_message_send(client, &m, sizeof(m), liar->answer_fd);
		}
		if (passed >= 0)
			close(passed);
		close(client);
	}
}

static void expect_alone(int answer_fd)
{
	struct liar liar = {.dir = open_dir(), .answer_fd = answer_fd};
	struct nm_share *share;
	struct nm_block block;
	struct nm_reason why;
	pid_t pid;

	liar.listener = nm_segment_dir_listen(&liar.dir, NM_KEEPER_NAME, &why);
	NM_CHECK(liar.listener >= 0);
	pid = nm_test_fork(lie, &liar);
	close(liar.listener);
	share = open_share();
	fill(4);
	block = take(share);
	NM_CHECK(!block.is_found && !block.is_kept);
	nm_block_fini(&block);
	/* And nobody is asked a second time. */
	fill(5);
	block = take(share);
	NM_CHECK(!block.is_found && !block.is_kept);
	nm_block_fini(&block);
	nm_share_destroy(share);
	NM_CHECK_EQ(kill(pid, SIGKILL), 0);
	nm_test_join(pid, SIGKILL);
	NM_CHECK(nm_segment_dir_bury(&liar.dir, NM_KEEPER_NAME));
	nm_segment_dir_close(&liar.dir);
}

NM_TEST(keepers_that_lie_or_are_silent_do_no_harm)
{
	uint8_t wrong[LEN] = {0};
	int fd;

	expect_alone(-1);
	fd = memfd_of(wrong, LEN);
	expect_alone(fd);
	close(fd);
	fd = memfd_create("t", MFD_CLOEXEC);
	NM_CHECK_EQ(ftruncate(fd, LEN), 0);
	expect_alone(fd); /* not sealed */
	close(fd);
}

static void keep_until_killed(void *arg)
{
	struct nm_share *share = open_share();
	char byte = 0;

	(void)arg;
	fill(6);
	take(share);
	NM_CHECK_EQ(write(*(int *)arg, &byte, 1), 1);
	for (;;)
		pause();
}

NM_TEST(a_keeper_that_dies_has_a_successor)
{
	struct nm_share *share;
	struct nm_block block;
	int pipes[2];
	pid_t pid;
	char byte;

	NM_CHECK_EQ(pipe(pipes), 0);
	pid = nm_test_fork(keep_until_killed, &pipes[1]);
	NM_CHECK_EQ(read(pipes[0], &byte, 1), 1);
	share = open_share();
	fill(6);
	block = take(share);
	NM_CHECK(block.is_found);
	NM_CHECK_EQ(kill(pid, SIGKILL), 0);
	nm_test_join(pid, SIGKILL);
	NM_CHECK(!memcmp(block.bytes, bytes, LEN));
	nm_block_fini(&block);
	block = take(share);
	NM_CHECK(!block.is_found && block.is_kept);
	nm_block_fini(&block);
	nm_share_destroy(share);
	close(pipes[0]);
	close(pipes[1]);
}

/* A child of the keeper's process holds no listener: its parent's successor must be reachable. */
static void outlive(void *arg)
{
	(void)arg;
	pause();
}

NM_TEST(a_forked_child_keeps_nothing)
{
	struct nm_share *one = open_share(), *two = open_share();
	struct nm_block a, b;
	pid_t pid;

	fill(7);
	a = take(one); /* starts the keeper's thread; the child below starts none */
	pid = fork();
	if (pid == 0) {
		nm_share_destroy(one);
		outlive(NULL);
		_exit(0);
	}
	nm_block_fini(&a);
	nm_share_destroy(one);
	b = take(two);
	NM_CHECK(!b.is_found && b.is_kept);
	nm_block_fini(&b);
	nm_share_destroy(two);
	NM_CHECK_EQ(kill(pid, SIGKILL), 0);
	NM_CHECK_EQ(waitpid(pid, NULL, 0), pid);
}
