/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lifeline: finds out if a peer is still there. Silence proves nothing: a living peer may
 * compute for hours and not look at its queues. Inner providers hide a broken connection behind
 * "try again", and TCP hides a host that has vanished for a quarter of an hour.
 *
 * So an endpoint with an internet address listens on a TCP port of its own, its lifeline, which
 * carries no data. An endpoint that waits for the peer connects to it, and the two kernels do the
 * rest. If the process ends, its kernel resets the connection and refuses the next one. If the host
 * does not answer for NEARMETAL_NET_TIMEOUT_MS, the own kernel reports it. The peer does nothing:
 * connections stay in the kernel's queue and are only taken out when it fills up. Any process can
 * fill it, so a lifeline that cannot be opened proves nothing while the peer's host answers.
 *
 * TCP may be forbidden to peers that verbs reaches. There an unreachable lifeline proves nothing
 * until a lifeline was up, to that peer or to any of another host. So it is tried when peers meet.
 * Unlike the sockets of the inner provider, these belong to nearmetal: a forked child closes its
 * copies, so it does not look like its parent.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/transport.h"

/* The kernel cuts it to net.core.somaxconn. */
#define BACKLOG 65535
/* How often the queue is looked at, in polls of the inner endpoint. */
#define SWEEP_POLLS 4096
/* Connections taken out of the queue at once. */
#define SWEEP_MAX 4096
/* Connections that are held at most, also as a share of the descriptors of this process. */
#define HELD_MAX 1024
#define HELD_SHARE 8

/*
 * Whether what the lifeline says of a network that is closed to it is true of the inner endpoint.
 */
static bool is_tcp(const struct net *net)
{
	static const char *const providers[] = {"tcp", "net", "tcp;ofi_rxm", "sockets"};
	size_t i;

	for (i = 0; i < NM_ARRAY_SIZE(providers); i++)
		if (!strcmp(net->inner.info->fabric_attr->prov_name, providers[i]))
			return true;
	return false;
}

/* The socket address at the start of an inner name, with another PORT. 0: it has none. */
static socklen_t socket_address(const uint8_t *inner, uint16_t port,
				struct sockaddr_storage *ret_address)
{
	struct sockaddr_in6 *in6 = (void *)ret_address;
	struct sockaddr_in *in = (void *)ret_address;
	uint16_t family;

	memset(ret_address, 0, sizeof(*ret_address));
	memcpy(&family, inner, sizeof(family));
	if (family == AF_INET) {
		memcpy(in, inner, sizeof(*in));
		in->sin_port = port;
		return sizeof(*in);
	}
	if (family == AF_INET6) {
		memcpy(in6, inner, sizeof(*in6));
		in6->sin6_port = port;
		return sizeof(*in6);
	}
	return 0;
}

static struct nm_net_lifeline *lifeline_of(struct nm_fork_watch *watch)
{
	return nm_container_of(watch, struct nm_net_lifeline, fork_watch);
}

static void before_fork(struct nm_fork_watch *watch)
{
	pthread_mutex_lock(&lifeline_of(watch)->lock);
}

static void after_fork_parent(struct nm_fork_watch *watch)
{
	pthread_mutex_unlock(&lifeline_of(watch)->lock);
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void close_lifeline(struct nm_net_lifeline *lifeline)
{
	close_fd(&lifeline->listener);
	while (lifeline->nr_held)
		close(lifeline->held[--lifeline->nr_held]);
}

static void after_fork_child(struct nm_fork_watch *watch)
{
	struct nm_net_lifeline *lifeline = lifeline_of(watch);
	struct nm_net_peer *peer;

	close_lifeline(lifeline);
	/* Its lock says that this process uses the network. */
	close_fd(&nm_container_of(lifeline, struct net, lifeline)->pause.notice);
	for (peer = lifeline->peers->all; peer; peer = peer->next) {
		close_fd(&peer->line);
		close_fd(&peer->witness);
	}
	pthread_mutex_unlock(&lifeline->lock);
}

/* At port *PORT; 0: at any, which is returned there. */
static int listen_beside(const struct net *net, uint16_t *port)
{
	struct sockaddr_storage address;
	socklen_t len = socket_address(net->inner.name, *port, &address);
	int fd, is_again = *port != 0;

	if (!len) {
		errno = EAFNOSUPPORT;
		return -1;
	}
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	/* The kernel may still close connections there. */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &is_again, sizeof(is_again)) < 0 ||
	    bind(fd, (struct sockaddr *)&address, len) < 0 || listen(fd, BACKLOG) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &len) < 0) {
		close(fd);
		return -1;
	}
	/* At the same place in both families. */
	*port = ((struct sockaddr_in *)(void *)&address)->sin_port;
	return fd;
}

uint16_t nm_net_lifeline_open(struct net *net)
{
	struct nm_net_lifeline *lifeline = &net->lifeline;
	uint16_t port = 0;

	lifeline->peers = &net->peers;
	lifeline->is_believed = is_tcp(net);
	lifeline->listener = listen_beside(net, &port);
	if (lifeline->listener < 0)
		nm_info("no lifeline, so peers cannot check this endpoint: %s", strerror(errno));
	pthread_mutex_init(&lifeline->lock, NULL);
	lifeline->fork_watch = (struct nm_fork_watch){
		.before = before_fork,
		.in_parent = after_fork_parent,
		.in_child = after_fork_child,
	};
	nm_fork_watch(&lifeline->fork_watch);
	return port;
}

void nm_net_lifeline_shut(struct net *net)
{
	pthread_mutex_lock(&net->lifeline.lock);
	close_lifeline(&net->lifeline);
	pthread_mutex_unlock(&net->lifeline.lock);
}

int nm_net_lifeline_reopen(struct net *net)
{
	uint16_t port = nm_net_inner_lifeline(&net->inner, &net->address);
	int fd = port ? listen_beside(net, &port) : -1;

	if (port && fd < 0)
		return -errno;
	pthread_mutex_lock(&net->lifeline.lock);
	net->lifeline.listener = fd;
	pthread_mutex_unlock(&net->lifeline.lock);
	return 0;
}

void nm_net_forget_line(struct nm_net_peer *peer)
{
	close_fd(&peer->line);
	close_fd(&peer->witness);
	peer->line_is_up = false;
	peer->silent_ns = peer->refused_at = peer->watched_ns = peer->stuck_ns = 0;
}

void nm_net_lifeline_close(struct net *net)
{
	struct nm_net_lifeline *lifeline = &net->lifeline;

	if (!lifeline->peers)
		return;
	/* In this order: a child that is forked between the two has nothing of it. */
	pthread_mutex_lock(&lifeline->lock);
	close_lifeline(lifeline);
	pthread_mutex_unlock(&lifeline->lock);
	nm_fork_unwatch(&lifeline->fork_watch);
	pthread_mutex_destroy(&lifeline->lock);
	free(lifeline->held);
	*lifeline = (struct nm_net_lifeline){.listener = -1};
}

/* Has the other side hung up? */
static bool has_left(int fd)
{
	struct pollfd poller = {.fd = fd, .events = POLLRDHUP};

	return poll(&poller, 1, 0) > 0;
}

/*
 * Hold FD, in place of the oldest if there are too many: any process can connect, and the program
 * needs descriptors too. A peer whose connection ends makes another one.
 */
static void hold(struct nm_net_lifeline *lifeline, int fd)
{
	struct rlimit limit = {.rlim_cur = 0};
	uint64_t most;
	int *held;

	getrlimit(RLIMIT_NOFILE, &limit);
	most = nm_min_u64(limit.rlim_cur / HELD_SHARE, HELD_MAX);
	if (most && lifeline->nr_held >= most) {
		close(lifeline->held[0]);
		memmove(&lifeline->held[0], &lifeline->held[1],
			--lifeline->nr_held * sizeof(*lifeline->held));
	}
	held = most ? reallocarray(lifeline->held, lifeline->nr_held + 1, sizeof(*held)) : NULL;
	if (!held) {
		close(fd);
		return;
	}
	lifeline->held = held;
	held[lifeline->nr_held++] = fd;
}

static void drop_held_that_left(struct nm_net_lifeline *lifeline)
{
	unsigned int nr = lifeline->nr_held;

	lifeline->nr_held = 0;
	for (unsigned int i = 0; i < nr; i++)
		if (has_left(lifeline->held[i]))
			close(lifeline->held[i]);
		else
			lifeline->held[lifeline->nr_held++] = lifeline->held[i];
}

/* Of a listening socket these fields say how many wait in the queue, and how many may. */
static bool queue_is_half_full(int listener)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	return getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
	       info.tcpi_unacked * 2 >= info.tcpi_sacked;
}

static NM_COLD void sweep(struct nm_net_lifeline *lifeline)
{
	int fd, nr;

	pthread_mutex_lock(&lifeline->lock);
	drop_held_that_left(lifeline);
	for (nr = 0; nr < SWEEP_MAX && queue_is_half_full(lifeline->listener); nr++) {
		fd = accept4(lifeline->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			break;
		if (has_left(fd))
			close(fd);
		else
			hold(lifeline, fd);
	}
	pthread_mutex_unlock(&lifeline->lock);
}

void nm_net_lifeline_serve(struct net *net)
{
	struct nm_net_lifeline *lifeline = &net->lifeline;

	if (nm_likely(++lifeline->nr_polls % SWEEP_POLLS))
		return;
	/* One that is never quiet looks here. */
	nm_net_look(net, nm_clock_ns());
	if (lifeline->listener >= 0 && queue_is_half_full(lifeline->listener))
		sweep(lifeline);
}

/* Let the kernel ask the other one, and give up after the time that the knob allows. */
static void set_patience(int fd, uint64_t timeout_ns)
{
	int ms = (int)(timeout_ns / NM_NS_PER_MS), on = 1, nr = 3;
	int third = ms / 3000 > 0 ? ms / 3000 : 1;

	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &third, sizeof(third));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &third, sizeof(third));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &nr, sizeof(nr));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

/* A connection stood, so nothing on the way to that host forbids it. */
static void line_stands(struct net *net, struct nm_net_peer *peer)
{
	struct sockaddr_storage ours, theirs;

	socket_address(net->inner.name, 0, &ours);
	socket_address(peer->address.inner, 0, &theirs);
	peer->line_stood = true;
	/* The way within this host says nothing about the network. */
	if (memcmp(&ours, &theirs, sizeof(ours)))
		net->lifeline.is_believed = true;
}

/* Connect *FD to PORT of PEER's host. Returns 0 (connected), EINPROGRESS, or another errno. */
static int start_connection(const struct net *net, const struct nm_net_peer *peer, uint16_t port,
			    int *fd)
{
	struct sockaddr_storage address;
	socklen_t len = socket_address(peer->address.inner, port, &address);

	*fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*fd < 0)
		return errno;
	set_patience(*fd, net->timeout_ns);
	return connect(*fd, (struct sockaddr *)&address, len) < 0 ? errno : 0;
}

/* Likewise, for a connection that was started: EINPROGRESS until it stands or has failed. */
static int end_connection(int fd)
{
	struct pollfd poller = {.fd = fd, .events = POLLOUT};
	socklen_t len = sizeof(int);
	int err = 0, nr = poll(&poller, 1, 0);

	if (nr == 0)
		return EINPROGRESS;
	if (nr < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		return errno;
	return err;
}

/*
 * A connection that ended before anybody looked at it may have stood: its kernel has then measured
 * the time of an answer.
 */
static bool has_stood(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_rtt > 0;
}

static int start_line(struct net *net, struct nm_net_peer *peer)
{
	int err = start_connection(net, peer, nm_net_inner_lifeline(&net->inner, &peer->address),
				   &peer->line);

	if (!err)
		line_stands(net, peer);
	peer->line_is_up = !err;
	return err;
}

static int look_at_line(struct net *net, struct nm_net_peer *peer)
{
	struct pollfd poller = {.fd = peer->line, .events = POLLRDHUP};
	socklen_t len = sizeof(int);
	int err = 0, nr;

	if (peer->line_is_up) {
		nr = poll(&poller, 1, 0);
		if (nr == 0)
			return 0;
		if (nr < 0 || getsockopt(peer->line, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
			return errno;
		return err ? err : ECONNRESET;
	}
	err = end_connection(peer->line);
	if (!err || (err != EINPROGRESS && has_stood(peer->line)))
		line_stands(net, peer);
	peer->line_is_up = !err;
	return err;
}

/* The way is blocked, as far as this kernel knows. */
static bool is_silence(int err)
{
	return err == EINPROGRESS || err == ETIMEDOUT || err == EHOSTUNREACH ||
	       err == ENETUNREACH || err == EHOSTDOWN || err == ENETDOWN;
}

/*
 * The queue of the lifeline may be full of strangers. A new connection is then left unanswered, as
 * if the host had vanished. Port 0 shows the difference: no process can listen there, so the kernel
 * itself refuses the connection at once. The answer comes at a later call.
 */
static bool kernel_answers(struct net *net, struct nm_net_peer *peer)
{
	int err = peer->witness < 0 ? start_connection(net, peer, 0, &peer->witness) :
				      end_connection(peer->witness);

	if (err != EINPROGRESS)
		close_fd(&peer->witness);
	/* A lack of own descriptors says nothing of the peer, so it is not its silence. */
	return !is_silence(err);
}

bool nm_net_host_answers(struct net *net, struct nm_net_peer *peer)
{
	bool answers = peer->witness >= 0 && end_connection(peer->witness) == ECONNREFUSED;

	/* Anew each time: the kernel asks a silent host ever more rarely. */
	close_fd(&peer->witness);
	return start_connection(net, peer, 0, &peer->witness) == ECONNREFUSED || answers;
}

static void lose_silent(struct net *net, struct nm_net_peer *peer)
{
	char words[128];

	snprintf(words, sizeof(words),
		 "its host has not answered for %llu ms (NEARMETAL_NET_TIMEOUT_MS)",
		 (unsigned long long)(net->timeout_ns / NM_NS_PER_MS));
	nm_net_lose(net, peer, -ECONNRESET, words);
}

/* No process is there. What it had sent may still lie in our kernel: it is given one more turn. */
static void refused(struct net *net, struct nm_net_peer *peer)
{
	if (peer->refused_at == peer->rx_sequence + UINT64_C(1))
		nm_net_lose(net, peer, -ECONNRESET,
			    "its network address is closed: the process has ended");
	peer->refused_at = peer->rx_sequence + UINT64_C(1);
}

static NM_COLD void watch(struct net *net, struct nm_net_peer *peer, uint64_t waited)
{
	bool was_up = peer->line_is_up && peer->line >= 0;
	int err = peer->line < 0 ? start_line(net, peer) : look_at_line(net, peer);

	/* The end of the process, most likely; a new connection is refused then. */
	if (err == ECONNRESET || err == EPIPE) {
		close_fd(&peer->line);
		was_up = false;
		err = start_line(net, peer);
	}
	if (!err) {
		peer->silent_ns = peer->refused_at = 0;
		close_fd(&peer->witness);
		return;
	}
	if (err != EINPROGRESS)
		close_fd(&peer->line);
	if (!nm_net_finds_death(net, peer)) {
		if (err != EINPROGRESS)
			nm_log_once(NM_LOG_INFO,
				    "no lifeline of another host can be reached, so deaths may "
				    "go unnoticed: %s",
				    strerror(err));
		return;
	}
	if (err == ECONNREFUSED) {
		refused(net, peer);
	} else if (is_silence(err)) {
		peer->silent_ns += waited;
		/* A connection that stood was asked by the kernel for all of that time. */
		if (!was_up && kernel_answers(net, peer))
			peer->silent_ns = 0;
		else if (was_up || peer->silent_ns >= net->timeout_ns)
			lose_silent(net, peer);
	}
}

/* It has closed its lifeline in order. */
static void lose_away(struct net *net, struct nm_net_peer *peer, uint64_t now)
{
	char words[128];

	if (now - peer->away_ns < net->move_ns)
		return;
	snprintf(words, sizeof(words),
		 "the network of its machine has been away for %llu ms (NEARMETAL_MOVE_MS)",
		 (unsigned long long)(net->move_ns / NM_NS_PER_MS));
	nm_net_lose(net, peer, -ECONNRESET, words);
}

void nm_net_watch(struct net *net, struct nm_net_peer *peer)
{
	uint64_t now = nm_clock_ns(), waited = now - peer->watched_ns;
	/* A closed peer matters only while it is owed a message, a refused one not at all. */
	bool is_owed = (peer->bye_owed || peer->answer_owed) && !peer->is_refused;
	bool matters = peer->state == NM_NET_UP || (peer->state == NM_NET_CLOSED && is_owed) ||
		       (peer->state == NM_NET_HELD && net->pause.place != NM_NET_AWAY);

	if (!matters || waited < net->watch_ns)
		return;
	if (peer->is_away) {
		lose_away(net, peer, now);
		return;
	}
	/* A process that was stopped for a while has not waited in that time. */
	if (waited > 4 * net->watch_ns)
		waited = 4 * net->watch_ns;
	waited = peer->watched_ns ? waited : 0;
	peer->watched_ns = now;
	if (nm_net_inner_lifeline(&net->inner, &peer->address))
		watch(net, peer, waited);
}

bool nm_net_finds_death(const struct net *net, const struct nm_net_peer *peer)
{
	return peer->is_away || (nm_net_inner_lifeline(&net->inner, &peer->address) &&
				 (peer->line_stood || net->lifeline.is_believed));
}

void nm_net_meet_line(struct net *net, struct nm_net_peer *peer)
{
	int err;

	if (net->lifeline.is_believed || peer->line >= 0 ||
	    !nm_net_inner_lifeline(&net->inner, &peer->address))
		return;
	err = start_line(net, peer);
	if (err && err != EINPROGRESS)
		close_fd(&peer->line);
}

void nm_net_stuck(struct net *net, struct nm_net_peer *peer)
{
	uint64_t now = nm_clock_ns();

	if (!peer->stuck_ns)
		peer->stuck_ns = now;
	if (now - peer->stuck_ns >= net->stuck_ns)
		nm_net_watch(net, peer);
}

void nm_net_exhausted(struct net *net)
{
	struct nm_net_peer *peer;
	uint64_t now = nm_clock_ns();

	if (!net->exhausted_ns)
		net->exhausted_ns = now;
	if (now - net->exhausted_ns < net->stuck_ns)
		return;
	net->exhausted_ns = now - net->stuck_ns / 2;
	for (peer = net->peers.all; peer; peer = peer->next)
		if (peer->in_flight)
			nm_net_watch(net, peer);
}
