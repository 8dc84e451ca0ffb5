/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, session and closing with the n-th system call or allocation failing, for n = 1, 2, ...
 * until nothing failed any more: an error with words, no crash, and nothing left behind. The calls
 * are replaced by the linker (--wrap, see meson.build) in this program alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "transport/transport.h"
#include "transport_fixture.h"
#include "vmseg_fixture.h"

/* Counts down to the call that fails; 0: none does. Both threads of an endpoint count. */
static _Atomic int calls_left;
static const char *_Atomic failed_call;

static bool fails(const char *name)
{
	int left = atomic_load(&calls_left);

	while (left > 0)
		if (atomic_compare_exchange_weak(&calls_left, &left, left - 1)) {
			if (left == 1)
				atomic_store(&failed_call, name);
			return left == 1;
		}
	return false;
}

#define WRAP(type, name, params, args, failure)                                                    \
	type __real_##name params;                                                                 \
	type __wrap_##name params;                                                                 \
	type __wrap_##name params                                                                  \
	{                                                                                          \
		if (fails(#name))                                                                  \
			return failure;                                                            \
		return __real_##name args;                                                         \
	}
#define FAIL_WITH(error) (errno = (error), -1)

WRAP(int, memfd_create, (const char *name, unsigned int flags), (name, flags), FAIL_WITH(EMFILE))
WRAP(int, ftruncate64, (int fd, off_t len), (fd, len), FAIL_WITH(EFBIG))
WRAP(int, posix_fallocate64, (int fd, off_t at, off_t len), (fd, at, len), ENOSPC)
WRAP(void *, mmap64, (void *at, size_t len, int prot, int flags, int fd, off_t off),
     (at, len, prot, flags, fd, off), (errno = ENOMEM, MAP_FAILED))
WRAP(int, fstat64, (int fd, struct stat *st), (fd, st), FAIL_WITH(EIO))
WRAP(ssize_t, pread64, (int fd, void *to, size_t len, off_t at), (fd, to, len, at), FAIL_WITH(EIO))
WRAP(ssize_t, pwrite64, (int fd, const void *from, size_t len, off_t at), (fd, from, len, at),
     FAIL_WITH(ENOSPC))
WRAP(int, sigaction, (int number, const struct sigaction *new, struct sigaction *old),
     (number, new, old), FAIL_WITH(EINVAL))
WRAP(int, epoll_create1, (int flags), (flags), FAIL_WITH(EMFILE))
WRAP(int, eventfd, (unsigned int value, int flags), (value, flags), FAIL_WITH(EMFILE))
WRAP(int, epoll_ctl, (int epoll, int op, int fd, struct epoll_event *event), (epoll, op, fd, event),
     FAIL_WITH(ENOSPC))
WRAP(int, socket, (int family, int type, int protocol), (family, type, protocol), FAIL_WITH(EMFILE))
WRAP(int, socketpair, (int family, int type, int protocol, int ends[2]),
     (family, type, protocol, ends), FAIL_WITH(EMFILE))
WRAP(int, bind, (int fd, const struct sockaddr *address, socklen_t len), (fd, address, len),
     FAIL_WITH(ENOSPC))
WRAP(int, listen, (int fd, int backlog), (fd, backlog), FAIL_WITH(EIO))
WRAP(int, linkat, (int from, const char *a, int to, const char *b, int flags),
     (from, a, to, b, flags), FAIL_WITH(ENOSPC))
WRAP(int, fchmodat, (int dir, const char *name, mode_t mode, int flags), (dir, name, mode, flags),
     FAIL_WITH(EIO))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), FAIL_WITH(ENOSPC))
WRAP(int, accept4, (int fd, struct sockaddr *address, socklen_t *len, int flags),
     (fd, address, len, flags), FAIL_WITH(EMFILE))
WRAP(int, connect, (int fd, const struct sockaddr *address, socklen_t len), (fd, address, len),
     FAIL_WITH(EACCES))
WRAP(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *len),
     (fd, level, name, value, len), FAIL_WITH(EIO))
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *msg, int flags), (fd, msg, flags),
     FAIL_WITH(ENOBUFS))
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *msg, int flags), (fd, msg, flags), FAIL_WITH(ENOMEM))
WRAP(ssize_t, getrandom, (void *to, size_t len, unsigned int flags), (to, len, flags),
     FAIL_WITH(EIO))
WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
     (thread, attr, run, arg), EAGAIN)
WRAP(void *, calloc, (size_t nr, size_t size), (nr, size), NULL)
WRAP(void *, malloc, (size_t size), (size), NULL)
WRAP(void *, aligned_alloc, (size_t align, size_t size), (align, size), NULL)

#define WRAP_VARIADIC(name, params, last, args, error)                                             \
	int __real_##name params;                                                                  \
	int __wrap_##name params;                                                                  \
	int __wrap_##name params                                                                   \
	{                                                                                          \
		va_list list;                                                                      \
		long extra;                                                                        \
                                                                                                   \
		va_start(list, last);                                                              \
		extra = va_arg(list, long);                                                        \
		va_end(list);                                                                      \
		if (fails(#name))                                                                  \
			return FAIL_WITH(error);                                                   \
		return __real_##name args;                                                         \
	}

WRAP_VARIADIC(fcntl64, (int fd, int command, ...), command, (fd, command, extra), EINVAL)
WRAP_VARIADIC(open64, (const char *path, int flags, ...), flags, (path, flags, extra), EMFILE)
WRAP_VARIADIC(openat64, (int dir, const char *path, int flags, ...), flags,
	      (dir, path, flags, extra), EMFILE)

struct end {
	struct nm_transport *transport;
	struct nm_address address;
	unsigned int nr_packets, nr_down;
};

static struct nm_peer *source_up(struct nm_transport *from, const struct nm_identity *who,
				 const struct nm_peer_label *label)
{
	(void)who;
	(void)label;
	return from->sink.engine;
}

static void deliver(struct nm_transport *from, struct nm_peer *source, const struct nm_packet *pkt,
		    const void *payload)
{
	(void)source;
	(void)pkt;
	(void)payload;
	((struct end *)from->sink.engine)->nr_packets++;
}

static void source_down(struct nm_transport *from, struct nm_peer *source, int err,
			const struct nm_reason *why)
{
	(void)source;
	(void)err;
	(void)why;
	((struct end *)from->sink.engine)->nr_down++;
}

static void expect_words(int err, const struct nm_reason *why)
{
	if (err && !why->text[0])
		nm_test_fail(__FILE__, __LINE__, "%s failed: error %d without a reason",
			     failed_call, err);
}

static bool between_machines;

static int open_end(struct end *end, uint32_t machine)
{
	struct nm_sink sink = {
		.engine = end,
		.source_up = source_up,
		.deliver = deliver,
		.source_down = source_down,
	};
	struct nm_reason why = {""};
	int err;

	memset(end, 0, sizeof(*end));
	end->address.version = NM_ADDRESS_VERSION;
	err = nm_identity_create(&end->address.who);
	if (err)
		return err;
	if (between_machines) {
		int calls = atomic_exchange(&calls_left, 0), door = segment_enter_machine(machine);

		atomic_store(&calls_left, calls);
		err = nm_vmseg_kind.create(&sink, &end->address, &end->transport, &why);
		close(door);
	} else {
		err = nm_shm_kind.create(&sink, &end->address, &end->transport, &why);
	}
	expect_words(err, &why);
	return err;
}

/* Open two, meet, send both kinds of packets, close. Returns the first error. */
static int run_through(struct end *a, struct end *b)
{
	static uint8_t bytes[8192];
	struct iovec iov = {bytes, 8};
	struct nm_packet pkt = {.op = 1, .len = 8};
	struct nm_reason why = {""};
	struct nm_link *link;
	int err;

	err = open_end(a, 0);
	if (err)
		return err;
	err = open_end(b, 1);
	if (err)
		return err;
	err = node_reach(a->transport, &b->address, (struct nm_peer *)a, &link, &why);
	expect_words(err, &why);
	if (err)
		return err;
	err = a->transport->ops->send(link, &pkt, &iov, 1);
	if (err)
		return err;
	pkt.len = 8192;
	iov.iov_len = 8192;
	err = a->transport->ops->send(link, &pkt, &iov, 1);
	while (!err && b->nr_packets < 2 && !a->nr_down) {
		b->transport->ops->progress(b->transport);
		a->transport->ops->progress(a->transport);
	}
	return err;
}

static void close_end(struct end *end)
{
	if (end->transport)
		end->transport->ops->destroy(end->transport);
}

static void fail_one_after_the_other(int min_calls)
{
	unsigned int fds, mappings;
	struct end a, b;
	char dir[512];
	bool reached;
	int n, err;

	snprintf(dir, sizeof(dir), "%s/seg", nm_test_dir());
	setenv("NEARMETAL_RUNDIR", dir, 1);
	setenv("NEARMETAL_CONNECT_MS", "300", 1);
	setenv("NEARMETAL_MAX_LOCAL_PEERS", "4", 1);
	setenv("NEARMETAL_POOL_SIZE", "1M", 1);
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	NM_CHECK_EQ(run_through(&a, &b), 0);
	close_end(&a);
	close_end(&b);
	fds = nm_test_count_fds();
	mappings = nm_test_count_mappings();
	for (n = 1;; n++) {
		memset(&a, 0, sizeof(a));
		memset(&b, 0, sizeof(b));
		rmdir(dir);
		atomic_store(&failed_call, NULL);
		atomic_store(&calls_left, n);
		err = run_through(&a, &b);
		close_end(&a);
		close_end(&b);
		reached = atomic_exchange(&calls_left, 0) == 0;
		if (nm_test_count_fds() != fds || nm_test_count_mappings() != mappings)
			nm_test_fail(__FILE__, __LINE__,
				     "call %d (%s) failed: left descriptors or mappings", n,
				     failed_call);
		if (!reached)
			break;
	}
	NM_CHECK_EQ(err, 0);
	printf("%d calls failed, one after the other\n", n - 1);
	NM_CHECK(n > min_calls);
}

NM_TEST_WITHIN(every_call_may_fail_once, 110)
{
	fail_one_after_the_other(60);
}

NM_TEST_WITHIN(every_call_may_fail_once_between_machines, 110)
{
	between_machines = true;
	fail_one_after_the_other(60);
}

/* Read what the guest unit says, attach, open an endpoint, write to itself, end. */
static int use_segment(const char *path)
{
	const uint8_t id[6] = {1};
	struct nm_vmseg_inbox *inbox = NULL;
	struct nm_vmseg_claim *claim = NULL;
	struct nm_vmseg *segment = NULL;
	struct nm_vmseg_config config;
	struct nm_geometry geometry;
	struct nm_reason why = {""};
	struct nm_window window;
	uint32_t cell;
	int err;

	err = nm_vmseg_config_load(path, &config, &why);
	if (!err)
		err = nm_vmseg_attach(&config, &segment, &why);
	if (!err)
		err = nm_vmseg_geometry(segment, 8, 4, 16, 4096, SEGMENT_MIB, &geometry, &why);
	if (!err)
		err = nm_vmseg_claim(segment, id, geometry.size, &claim, &why);
	if (!err)
		err = nm_vmseg_open(claim, &geometry, &window, &why);
	expect_words(err, &why);
	if (!err) {
		inbox = nm_vmseg_inbox_create(claim);
		err = inbox ? 0 : -ENOMEM;
	}
	if (!err) {
		struct nm_vmseg_letter letter;

		err = nm_vmseg_post(claim, nm_vmseg_own_address(claim), "x", 1, &cell);
		while (nm_vmseg_take(inbox, &letter))
			;
		nm_vmseg_bury(segment);
	}
	nm_vmseg_inbox_destroy(inbox);
	nm_vmseg_release(claim);
	nm_vmseg_detach(segment);
	return err;
}

NM_TEST_WITHIN(every_call_on_a_segment_may_fail_once, 110)
{
	struct nm_vmseg_config config;
	unsigned int fds, mappings;
	char path[512];
	bool reached;
	FILE *file;
	int n, err;

	segment_file(2, 16 * SEGMENT_MIB);
	config = segment_config(0);
	snprintf(path, sizeof(path), "%s/conf", nm_test_dir());
	file = fopen(path, "we");
	NM_CHECK(file != NULL);
	fprintf(file,
		"version = 1\ndevice = dax\nall = %s\npart = 0\nlock = %s\n"
		"token = 01020304050607080908070605040302\n",
		config.all, config.lock);
	NM_CHECK_EQ(fclose(file), 0);
	NM_CHECK_EQ(chmod(path, 0600), 0);
	fds = nm_test_count_fds();
	mappings = nm_test_count_mappings();
	for (n = 1;; n++) {
		unlink(config.lock);
		atomic_store(&failed_call, NULL);
		atomic_store(&calls_left, n);
		err = use_segment(path);
		reached = atomic_exchange(&calls_left, 0) == 0;
		if (nm_test_count_fds() != fds || nm_test_count_mappings() != mappings)
			nm_test_fail(__FILE__, __LINE__,
				     "call %d (%s) failed: left descriptors or mappings", n,
				     failed_call);
		if (!reached)
			break;
	}
	NM_CHECK_EQ(err, 0);
	printf("%d calls failed, one after the other\n", n - 1);
	NM_CHECK(n > 25);
}
