/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions in a directory of one kernel: pathname sockets, and windows passed as descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/fault.h"
#include "base/log.h"
#include "connect/rundir.h"
#include "connect/session_private.h"

/* From this age on, a socket that refuses connections counts as a dead process's. */
#define REAP_AGE_S 2
/* Callers admitted in one turn, because other threads wait for the lock. */
#define MAX_ADMISSIONS 64
/* Sockets of dead processes removed between two beats; the next endpoint removes the others. */
#define MAX_GRAVES 32
/* Limit, because a child that does not know the listening socket may keep a copy of it open. */
#define MAX_GRAVE_BEATS 100

const char nm_no_descriptor[] = "it has no file descriptor left: raise its limit (ulimit -n)";

struct dir_wire {
	struct nm_wire base;
	struct nm_watch watch;
	struct nm_rundir dir;
	uint64_t number;    /* nm_rundir_number() */
	dev_t files_device; /* of the own window, and of every other one in this kernel */
	char name[NM_SOCKET_NAME_LEN];
	dev_t socket_device; /* file of the socket, compared before it is unlinked */
	ino_t socket_inode;
	int listener;
	int spare; /* closed for a moment if no other descriptor is free */
	bool paused;
	bool is_hidden; /* its socket has no name any more */

	/* Sockets of dead processes, to be removed as soon as the kernel has closed them. */
	struct grave {
		uint8_t id[6];
		uint16_t nr_beats; /* age in beats */
	} graves[MAX_GRAVES];
	unsigned int nr_graves;
};

static struct dir_wire *wire_of(const struct nm_sessions *sessions)
{
	return nm_container_of(sessions->wire, struct dir_wire, base);
}

/*
 * No descriptor is free for a caller. The spare one is closed for a moment, so that the caller
 * reads the reason instead of waiting in vain.
 */
static NM_COLD bool turn_away_without_descriptor(const struct nm_sessions *sessions,
						 struct dir_wire *wire)
{
	int fd;

	close(wire->spare);
	fd = accept4(wire->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd >= 0) {
		nm_message_send_step(fd, NM_MESSAGE_BYE, -EMFILE, nm_no_descriptor);
		close(fd);
	}
	wire->spare = fcntl(sessions->waker, F_DUPFD_CLOEXEC, 0);
	return fd >= 0;
}

/* Check that the kernel reports the same user for the other side of FD. */
static int check_socket(int fd, struct ucred *ret_credentials, struct nm_reason *ret_reason)
{
	socklen_t len = sizeof(*ret_credentials);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret_credentials, &len) < 0) {
		nm_reason_set(ret_reason, "cannot read the user of its process: %s",
			      strerror(errno));
		return -errno;
	}
	if (ret_credentials->uid != geteuid()) {
		nm_reason_set(ret_reason, "it runs as user %u, this process as user %u",
			      ret_credentials->uid, geteuid());
		return -EPERM;
	}
	return 0;
}

static void admit(struct nm_sessions *sessions, int fd)
{
	struct ucred credentials;
	struct nm_reason why;
	int err = check_socket(fd, &credentials, &why);

	if (!err) {
		nm_sessions_admit(sessions, fd);
		return;
	}
	nm_info("refused a caller: %s", why.text);
	nm_message_send_step(fd, NM_MESSAGE_BYE, err, why.text);
	close(fd);
}

/* Accept at most MOST callers. */
static void accept_some(struct nm_sessions *sessions, struct dir_wire *wire, unsigned int most)
{
	unsigned int nr;
	int fd;

	for (nr = 0; nr < most; nr++) {
		fd = accept4(wire->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			admit(sessions, fd);
			continue;
		}
		if (errno == EAGAIN || errno == EWOULDBLOCK)
			return;
		if ((errno == EMFILE || errno == ENFILE) && wire->spare >= 0 &&
		    turn_away_without_descriptor(sessions, wire))
			continue;
		if (errno == EINTR || errno == ECONNABORTED)
			continue;
		/* The next wait would return at once and use a whole core: pause for a beat. */
		nm_sessions_unwatch(sessions, wire->listener);
		wire->paused = true;
		return;
	}
}

static void accept_callers(struct nm_sessions *sessions, struct nm_watch *watch)
{
	accept_some(sessions, nm_container_of(watch, struct dir_wire, watch), MAX_ADMISSIONS);
}

/* Note the file of the own socket. */
static void note_name(struct dir_wire *wire)
{
	struct stat st;

	if (fstatat(wire->dir.fd, wire->name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		wire->socket_device = st.st_dev;
		wire->socket_inode = st.st_ino;
	}
}

static bool has_name(const struct dir_wire *wire)
{
	struct stat st;

	return fstatat(wire->dir.fd, wire->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_dev == wire->socket_device && st.st_ino == wire->socket_inode;
}

static int dir_open(struct nm_sessions *sessions, struct nm_reason *ret_reason)
{
	struct dir_wire *wire = wire_of(sessions);
	int err;

	wire->spare = fcntl(sessions->waker, F_DUPFD_CLOEXEC, 0);
	if (wire->spare < 0) {
		nm_reason_set(ret_reason, "cannot set up the socket in the rundir: %s",
			      strerror(errno));
		return -errno;
	}
	nm_rundir_reap(&wire->dir, REAP_AGE_S);
	nm_socket_name(sessions->config.who.id, wire->name);
	wire->listener = nm_rundir_listen(&wire->dir, wire->name, false, ret_reason);
	if (wire->listener < 0)
		return wire->listener;
	note_name(wire);
	err = nm_sessions_watch(sessions, wire->listener, &wire->watch);
	if (err)
		nm_reason_set(ret_reason, "cannot watch the socket in the rundir: %s",
			      strerror(-err));
	return err;
}

/* If another endpoint has replaced the name since, its socket must stay. */
static void dir_hide(struct nm_sessions *sessions)
{
	struct dir_wire *wire = wire_of(sessions);

	/* The service thread must not restore it. */
	pthread_mutex_lock(&sessions->lock);
	wire->is_hidden = true;
	pthread_mutex_unlock(&sessions->lock);
	if (wire->listener >= 0 && wire->dir.fd >= 0 && has_name(wire))
		unlinkat(wire->dir.fd, wire->name, 0);
}

static void dir_forget(struct nm_sessions *sessions)
{
	struct dir_wire *wire = wire_of(sessions);

	nm_close_fd(&wire->listener);
	nm_close_fd(&wire->spare);
	nm_rundir_close(&wire->dir);
}

static void bury(struct dir_wire *wire)
{
	unsigned int i = 0;

	while (i < wire->nr_graves) {
		struct grave *grave = &wire->graves[i];
		char name[NM_SOCKET_NAME_LEN];

		nm_socket_name(grave->id, name);
		if (nm_rundir_bury(&wire->dir, name) || ++grave->nr_beats == MAX_GRAVE_BEATS)
			*grave = wire->graves[--wire->nr_graves];
		else
			i++;
	}
}

static void dir_destroy(struct nm_sessions *sessions)
{
	/* In a forked child the directory is closed already, and its files belong to the parent. */
	if (wire_of(sessions)->dir.fd >= 0)
		bury(wire_of(sessions));
	dir_forget(sessions);
	free(wire_of(sessions));
}

/* Another process removed or replaced the own socket: newcomers must find this endpoint again. */
static NM_COLD void restore_name(struct nm_sessions *sessions, struct dir_wire *wire)
{
	struct stat st;
	int fd;

	/* A removed rundir gets no more names. */
	if (fstat(wire->dir.fd, &st) < 0 || !st.st_nlink)
		return;
	fd = nm_rundir_listen(&wire->dir, wire->name, true, NULL);
	if (fd < 0)
		return;
	nm_log_once(NM_LOG_WARN,
		    "another process removed or replaced socket %s in %.80s; it was restored",
		    wire->name, wire->dir.path);
	nm_sessions_unwatch(sessions, wire->listener);
	/* No more callers come there. Those in its queue are sound, most likely, and are not lost. */
	shutdown(wire->listener, SHUT_RD);
	accept_some(sessions, wire, UINT_MAX);
	close(wire->listener);
	wire->listener = fd;
	note_name(wire);
	wire->paused = nm_sessions_watch(sessions, wire->listener, &wire->watch) != 0;
}

static void dir_beat(struct nm_sessions *sessions)
{
	struct dir_wire *wire = wire_of(sessions);

	if (!wire->is_hidden && !has_name(wire))
		restore_name(sessions, wire);
	nm_sessions_look(sessions);
	if (wire->spare < 0)
		wire->spare = fcntl(sessions->waker, F_DUPFD_CLOEXEC, 0);
	if (wire->paused && !nm_sessions_watch(sessions, wire->listener, &wire->watch))
		wire->paused = false;
	bury(wire);
}

static int check_user(struct nm_handshake *handshake, struct nm_reason *ret_reason)
{
	struct ucred credentials;
	int err = check_socket(handshake->fd, &credentials, ret_reason);

	if (err)
		return err;
	handshake->cma_facts.pid = credentials.pid; /* as seen here */
	handshake->cma_facts.gid = credentials.gid;
	return 0;
}

static NM_COLD int connect_failed(struct dir_wire *wire, const char *name, int err,
				  struct nm_reason *ret_reason)
{
	switch (err) {
	case -ENOENT:
		nm_reason_set(
			ret_reason,
			"it does not listen in %.80s: it is on another host or uses another rundir",
			wire->dir.path);
		return -ENOENT;
	case -ECONNREFUSED:
		nm_reason_set(ret_reason, "its socket in %.80s is left over from a dead process",
			      wire->dir.path);
		unlinkat(wire->dir.fd, name, 0);
		return -EHOSTUNREACH;
	default:
		return nm_connect_failed(ret_reason, "cannot connect to its socket", err);
	}
}

static int dir_connect(struct nm_sessions *sessions, struct nm_handshake *handshake,
		       struct nm_reason *ret_reason)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	char name[NM_SOCKET_NAME_LEN];
	struct sockaddr_un address;
	socklen_t len;

	if (fd < 0)
		return nm_connect_failed(ret_reason, "cannot create a socket", -errno);
	handshake->fd = fd;
	nm_socket_name(handshake->session->who.id, name);
	len = nm_rundir_address(&wire_of(sessions)->dir, name, &address);
	if (connect(fd, (struct sockaddr *)&address, len) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return connect_failed(wire_of(sessions), name, -errno, ret_reason);
		/* Its queue is full: it serves other callers first. */
		nm_close_fd(&handshake->fd);
		return -EAGAIN;
	}
	return check_user(handshake, ret_reason) ? -EHOSTUNREACH : 0;
}

/* A window of a known identity must be the known window. */
static int check_same(const struct nm_foreign_window *known, int window_fd,
		      struct nm_reason *ret_reason)
{
	struct stat st;

	/* The seals first: see nm_memfd_check(). */
	if (fcntl(window_fd, F_GET_SEALS) < 0 || fstat(window_fd, &st) < 0 ||
	    st.st_dev != known->device || st.st_ino != known->inode) {
		nm_reason_set(ret_reason, "it sent another window than before");
		return -EBADMSG;
	}
	return 0;
}

/*
 * A window of WHO is the file that its address names. One device holds all memfds of a kernel, so
 * the inode number is enough.
 */
static int map_own(const struct dir_wire *wire, const struct nm_identity *who, int window_fd,
		   struct nm_foreign_window *ret_window, struct nm_reason *ret_reason)
{
	struct nm_foreign_window window;
	int err = nm_window_attach(window_fd, &window, ret_reason);

	if (err)
		return err;
	if (memcmp(window.id, who->id, sizeof(who->id)) != 0 ||
	    window.device != wire->files_device ||
	    !nm_identity_has_file(who, window.inode, wire->number)) {
		nm_reason_set(ret_reason, "its window belongs to another endpoint");
		nm_window_detach(&window);
		return -EBADMSG;
	}
	*ret_window = window;
	return 0;
}

static int dir_map(struct nm_sessions *sessions, struct nm_handshake *handshake,
		   const struct nm_greeting *greeting, int window_fd, struct nm_reason *ret_reason)
{
	struct nm_session *session = handshake->session;
	bool one_pid_ns = sessions->pid_ns_inode &&
			  greeting->pid_ns_inode == sessions->pid_ns_inode &&
			  greeting->pid_ns_device == sessions->pid_ns_device;
	int err;

	if (window_fd < 0) {
		nm_reason_set(ret_reason, "no window came with its greeting");
		return -EBADMSG;
	}
	if (session->window.header)
		return check_same(&session->window, window_fd, ret_reason);
	err = map_own(wire_of(sessions), &greeting->who, window_fd, &session->window, ret_reason);
	if (err)
		return err;
	/* The peer's report of its PID namespace decides nothing; it only selects the term. */
	session->relation = one_pid_ns ? NM_RELATION_NODE : NM_RELATION_HOST;
	session->integrity = NM_INTEGRITY_ENFORCED;
	nm_reason_set(
		&session->how, "each side sees the other's sealed window, found in %.100s (%s)",
		sessions->wire->place, one_pid_ns ? "one PID namespace" : "another PID namespace");
	return 0;
}

/*
 * The process that notices a death removes the socket later, because the kernel closes a dead
 * process's listening socket after its connections.
 */
static void remember_grave(struct dir_wire *wire, const struct nm_identity *who)
{
	struct grave grave = {.nr_beats = 0};

	if (wire->nr_graves == MAX_GRAVES)
		return;
	memcpy(grave.id, who->id, sizeof(grave.id));
	wire->graves[wire->nr_graves++] = grave;
}

static bool dir_ended(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      struct nm_reason *ret_why)
{
	if (nm_foreign_state(&handshake->session->window) == NM_WINDOW_GONE)
		return true;
	nm_reason_set(ret_why, "its socket hung up without a goodbye");
	remember_grave(wire_of(sessions), &handshake->session->who);
	return false;
}

static const struct nm_wire_ops dir_ops = {
	.open = dir_open,
	.hide = dir_hide,
	.destroy = dir_destroy,
	.forget = dir_forget,
	.connect = dir_connect,
	.check_caller = check_user,
	.map = dir_map,
	.ended = dir_ended,
	.beat = dir_beat,
};

int nm_wire_socket_create(const struct nm_sessions_config *config, struct nm_identity *who,
			  struct nm_wire **ret_wire, struct nm_reason *ret_reason)
{
	struct dir_wire *wire = calloc(1, sizeof(*wire));
	struct stat st;
	int err;

	if (!wire) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	wire->base.ops = &dir_ops;
	wire->base.place = wire->dir.path;
	wire->base.window_fd = config->window->fd;
	wire->watch.ready = accept_callers;
	wire->listener = wire->spare = -1;
	err = nm_rundir_open(config->dir, &wire->dir, ret_reason);
	if (!err && fstat(config->window->fd, &st) < 0) {
		err = -errno;
		nm_reason_set(ret_reason, "cannot examine the own window: %s", strerror(-err));
		nm_rundir_close(&wire->dir);
	}
	if (err) {
		free(wire);
		return err;
	}
	wire->number = nm_rundir_number(&wire->dir);
	wire->files_device = st.st_dev;
	nm_identity_set_file(who, st.st_ino, wire->number);
	*ret_wire = &wire->base;
	return 0;
}
