/* SPDX-License-Identifier: Apache-2.0 */
#include "locality/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "locality/message.h"

/* Memory and descriptors that strangers can make this process hold. */
#define KEPT_MAX 1024
#define KEPT_BYTES_MAX (UINT64_C(512) << 20)
/* Jobs end and new ones never ask for their blocks: what nobody wants is let go. */
#define KEPT_NS (600 * NM_NS_PER_S)
#define TURN_MS 10000
/* Who has connected and said nothing yet; the oldest makes room for the next. */
#define CLIENTS_MAX 64
#define PAUSE_MS 20
#define THREAD_STACK (128 * 1024)

struct kept {
	struct nm_digest digest;
	size_t len;
	int fd;
	uint64_t asked_ns;
};

struct nm_keeper {
	struct nm_fork_watch fork_watch;
	struct nm_segment_dir dir;
	int listener, waker;
	pid_t creator;
	pthread_t thread;
	pthread_mutex_t lock; /* what is below; all descriptors, for fork() */
	struct kept kept[KEPT_MAX];
	unsigned int nr_kept, nr_max;
	uint64_t nr_bytes;
	int clients[CLIENTS_MAX]; /* oldest first */
	unsigned int nr_clients;
};

void nm_keeper_message_init(struct nm_keeper_message *message, enum nm_keeper_kind kind,
			    const struct nm_digest *digest, size_t len)
{
	*message = (struct nm_keeper_message){
		.magic = NM_KEEPER_MAGIC,
		.version = NM_KEEPER_VERSION,
		.kind = (uint16_t)kind,
		.len = len,
		.digest = *digest,
	};
}

int nm_keeper_message_parse(const void *bytes, size_t len, struct nm_keeper_message *ret_message)
{
	struct nm_keeper_message message;

	if (len != sizeof(message))
		return -EBADMSG;
	memcpy(&message, bytes, sizeof(message));
	if (message.magic != NM_KEEPER_MAGIC || message.version != NM_KEEPER_VERSION ||
	    message.kind < NM_KEEPER_WANT || message.kind > NM_KEEPER_NONE || !message.len ||
	    message.len > NM_BLOCK_MAX)
		return -EBADMSG;
	*ret_message = message;
	return 0;
}

static void drop_kept(struct nm_keeper *keeper, unsigned int i)
{
	close(keeper->kept[i].fd);
	keeper->nr_bytes -= keeper->kept[i].len;
	keeper->kept[i] = keeper->kept[--keeper->nr_kept];
}

static void drop_unwanted(struct nm_keeper *keeper, uint64_t now)
{
	unsigned int i = 0;

	while (i < keeper->nr_kept)
		if (now - keeper->kept[i].asked_ns > KEPT_NS)
			drop_kept(keeper, i);
		else
			i++;
}

static struct kept *find(struct nm_keeper *keeper, const struct nm_keeper_message *question)
{
	unsigned int i;

	for (i = 0; i < keeper->nr_kept; i++)
		if (keeper->kept[i].len == question->len &&
		    !memcmp(&keeper->kept[i].digest, &question->digest, sizeof(question->digest)))
			return &keeper->kept[i];
	return NULL;
}

/* Is FD what it is said to be? A wrong block would keep others from sharing the right one. */
static bool is_sound(int fd, const struct nm_keeper_message *gift)
{
	struct nm_block block;
	struct nm_digest digest;

	if (nm_block_map(fd, gift->len, &block, NULL))
		return false;
	digest = nm_digest_of(block.bytes, block.len);
	nm_block_fini(&block);
	return !memcmp(&digest, &gift->digest, sizeof(digest));
}

/* Takes FD over when it returns non-NULL. */
static struct kept *keep(struct nm_keeper *keeper, const struct nm_keeper_message *gift, int fd)
{
	struct kept *kept;

	if (keeper->nr_kept == keeper->nr_max || keeper->nr_bytes + gift->len > KEPT_BYTES_MAX ||
	    !is_sound(fd, gift))
		return NULL;
	kept = &keeper->kept[keeper->nr_kept++];
	*kept = (struct kept){.digest = gift->digest, .len = gift->len, .fd = fd};
	keeper->nr_bytes += gift->len;
	return kept;
}

/* Answer what CLIENT has said, if it has. Returns whether that was it. */
static bool answer(struct nm_keeper *keeper, int client)
{
	struct nm_keeper_message message;
	uint8_t bytes[NM_MESSAGE_MAX];
	struct kept *kept;
	int passed = -1, len;

	len = nm_message_receive(client, bytes, &passed);
	if (len == -EAGAIN)
		return false;
	if (len <= 0 || nm_keeper_message_parse(bytes, (size_t)len, &message) ||
	    !nm_share_is_same_user(client))
		goto out;
	pthread_mutex_lock(&keeper->lock);
	kept = find(keeper, &message);
	if (!kept && message.kind == NM_KEEPER_GIVE && passed >= 0) {
		kept = keep(keeper, &message, passed);
		passed = kept ? -1 : passed;
	}
	if (kept)
		kept->asked_ns = nm_clock_ns();
	nm_keeper_message_init(&message, kept ? NM_KEEPER_HAVE : NM_KEEPER_NONE, &message.digest,
			       message.len);
	nm_message_send(client, &message, sizeof(message), kept ? kept->fd : -1);
	pthread_mutex_unlock(&keeper->lock);
out:
	if (passed >= 0)
		close(passed);
	return true;
}

/* Under the lock, so that a fork finds every descriptor in its place. */
static void drop_client(struct nm_keeper *keeper, unsigned int i)
{
	pthread_mutex_lock(&keeper->lock);
	close(keeper->clients[i]);
	keeper->nr_clients--;
	memmove(&keeper->clients[i], &keeper->clients[i + 1],
		(keeper->nr_clients - i) * sizeof(keeper->clients[0]));
	pthread_mutex_unlock(&keeper->lock);
}

static void admit(struct nm_keeper *keeper)
{
	int client;

	if (keeper->nr_clients == CLIENTS_MAX)
		drop_client(keeper, 0);
	pthread_mutex_lock(&keeper->lock);
	client = accept4(keeper->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (client >= 0)
		keeper->clients[keeper->nr_clients++] = client;
	pthread_mutex_unlock(&keeper->lock);
	/* Out of descriptors, perhaps: whoever waits gives up soon. */
	if (client < 0)
		poll(NULL, 0, PAUSE_MS);
}

static void serve_once(struct nm_keeper *keeper, const struct pollfd *pollers, unsigned int nr)
{
	unsigned int i;

	for (i = nr; i-- > 0;)
		if (pollers[i].revents && answer(keeper, pollers[i].fd))
			drop_client(keeper, i);
}

static void *serve(void *arg)
{
	struct pollfd pollers[2 + CLIENTS_MAX];
	struct nm_keeper *keeper = arg;
	unsigned int i;

	for (;;) {
		pollers[0] = (struct pollfd){.fd = keeper->listener, .events = POLLIN};
		pollers[1] = (struct pollfd){.fd = keeper->waker, .events = POLLIN};
		for (i = 0; i < keeper->nr_clients; i++)
			pollers[2 + i] =
				(struct pollfd){.fd = keeper->clients[i], .events = POLLIN};
		if (poll(pollers, 2 + keeper->nr_clients, TURN_MS) < 0)
			continue;
		if (pollers[1].revents)
			return NULL;
		serve_once(keeper, pollers + 2, keeper->nr_clients);
		if (pollers[0].revents)
			admit(keeper);
		pthread_mutex_lock(&keeper->lock);
		drop_unwanted(keeper, nm_clock_ns());
		pthread_mutex_unlock(&keeper->lock);
	}
}

static struct nm_keeper *keeper_of(struct nm_fork_watch *watch)
{
	return nm_container_of(watch, struct nm_keeper, fork_watch);
}

static void before_fork(struct nm_fork_watch *watch)
{
	pthread_mutex_lock(&keeper_of(watch)->lock);
}

static void after_fork_parent(struct nm_fork_watch *watch)
{
	pthread_mutex_unlock(&keeper_of(watch)->lock);
}

static void close_all(struct nm_keeper *keeper)
{
	if (keeper->listener >= 0)
		close(keeper->listener);
	if (keeper->waker >= 0)
		close(keeper->waker);
	keeper->listener = keeper->waker = -1;
	while (keeper->nr_clients)
		close(keeper->clients[--keeper->nr_clients]);
	while (keeper->nr_kept)
		drop_kept(keeper, keeper->nr_kept - 1);
}

/* Nobody serves in the child; with its copy of the listener others would wait for an answer. */
static void after_fork_child(struct nm_fork_watch *watch)
{
	close_all(keeper_of(watch));
	pthread_mutex_unlock(&keeper_of(watch)->lock);
}

/* A quarter of the descriptors at most: the rest is the program's. */
static unsigned int descriptor_share(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 4 > KEPT_MAX)
		return KEPT_MAX;
	return (unsigned int)(limit.rlim_cur / 4);
}

static void free_keeper(struct nm_keeper *keeper)
{
	close_all(keeper);
	pthread_mutex_destroy(&keeper->lock);
	free(keeper);
}

static int start_thread(struct nm_keeper *keeper)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	sigfillset(&all);
	/* The thread inherits the mask: the program's signals are not for it. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&keeper->thread, &attr, serve, keeper);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (!err)
		pthread_setname_np(keeper->thread, "nm-keeper");
	return -err;
}

int nm_keeper_start(const struct nm_segment_dir *dir, struct nm_keeper **ret_keeper,
		    struct nm_reason *ret_reason)
{
	struct nm_keeper *keeper = calloc(1, sizeof(*keeper));
	int err;

	if (!keeper) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	keeper->dir = *dir;
	keeper->creator = getpid();
	keeper->nr_max = descriptor_share();
	pthread_mutex_init(&keeper->lock, NULL);
	keeper->listener = -1;
	keeper->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (keeper->waker < 0) {
		err = -errno;
		nm_reason_set(ret_reason, "cannot set up a keeper: %s", strerror(-err));
		goto err_free;
	}
	err = keeper->listener = nm_segment_dir_listen(&keeper->dir, NM_KEEPER_NAME, ret_reason);
	if (err < 0)
		goto err_free;
	keeper->fork_watch = (struct nm_fork_watch){
		.before = before_fork,
		.in_parent = after_fork_parent,
		.in_child = after_fork_child,
	};
	nm_fork_watch(&keeper->fork_watch);
	err = start_thread(keeper);
	if (err) {
		nm_reason_set(ret_reason, "cannot start the keeper's thread: %s", strerror(-err));
		goto err_leave;
	}
	*ret_keeper = keeper;
	return 0;

err_leave:
	nm_fork_unwatch(&keeper->fork_watch);
	unlinkat(dir->fd, NM_KEEPER_NAME, 0);
err_free:
	free_keeper(keeper);
	return err;
}

void nm_keeper_stop(struct nm_keeper *keeper)
{
	uint64_t one = 1;

	if (!keeper)
		return;
	if (keeper->creator == getpid()) {
		/* First the name, so that who comes now starts a keeper instead of waiting for us. */
		unlinkat(keeper->dir.fd, NM_KEEPER_NAME, 0);
		while (write(keeper->waker, &one, sizeof(one)) < 0 && errno == EINTR)
			;
		pthread_join(keeper->thread, NULL);
		nm_fork_unwatch(&keeper->fork_watch);
	}
	free_keeper(keeper);
}
