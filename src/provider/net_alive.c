/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is there still a peer? Inner providers of reliable datagrams hide a broken connection: a send
 * says "try again" while they connect once more, for ever if the peer is dead. But it also says so
 * while a living peer computes and does not look at its queues, or while others use up what the
 * inner endpoint can have on its way. So over TCP the peer's kernel is asked, past the inner
 * provider, whether it still has the socket that an endpoint listens on all its life.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "provider/net_transport.h"

/* Ports of other providers (verbs) have the same kind of address and are no ports of TCP. */
static bool can_probe(const struct net *net)
{
	static const char *const providers[] = {"tcp", "net", "tcp;ofi_rxm", "sockets"};
	size_t i;

	for (i = 0; i < NM_ARRAY_SIZE(providers); i++)
		if (!strcmp(net->inner.info->fabric_attr->prov_name, providers[i]))
			return true;
	return false;
}

static socklen_t socket_address_len(const struct nm_address *address)
{
	uint16_t family;

	memcpy(&family, address->inner, sizeof(family));
	if (family == AF_INET && address->inner_len >= sizeof(struct sockaddr_in))
		return sizeof(struct sockaddr_in);
	if (family == AF_INET6 && address->inner_len >= sizeof(struct sockaddr_in6))
		return sizeof(struct sockaddr_in6);
	return 0;
}

static void end_probe(struct nm_net_peer *peer)
{
	if (peer->probe >= 0)
		close(peer->probe);
	peer->probe = -1;
}

/* Returns the errno of the probe under way: 0 connected, EINPROGRESS not known yet. */
static int probe_result(const struct nm_net_peer *peer)
{
	struct pollfd poller = {.fd = peer->probe, .events = POLLOUT};
	socklen_t len = sizeof(int);
	int err = 0;

	/* SO_ERROR is 0 while the connection is being made, too. */
	if (poll(&poller, 1, 0) == 0)
		return EINPROGRESS;
	if (getsockopt(peer->probe, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		return errno;
	return err;
}

static int start_probe(struct nm_net_peer *peer)
{
	struct sockaddr_storage address = {0};
	socklen_t len = socket_address_len(&peer->address);

	if (!len)
		return 0; /* nobody to ask */
	memcpy(&address, peer->address.inner, len);
	peer->probe = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (peer->probe < 0)
		return 0;
	return connect(peer->probe, (struct sockaddr *)&address, len) < 0 ? errno : 0;
}

/* Ask the kernel at the peer's address; the answer may come at a later call. */
static void probe(struct net *net, struct nm_net_peer *peer)
{
	int err = peer->probe < 0 ? start_probe(peer) : probe_result(peer);

	if (err == EINPROGRESS)
		return;
	end_probe(peer);
	if (err == ECONNREFUSED)
		nm_net_lose(
			net, peer, -ECONNRESET,
			"nobody listens at its network address any more: the process has ended");
	else if (err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH)
		nm_net_lose(net, peer, -ECONNRESET, "its network address does not answer any more");
}

void nm_net_stuck(struct net *net, struct nm_net_peer *peer)
{
	uint64_t now = nm_clock_ns();

	if (!peer->stuck_ns)
		peer->stuck_ns = peer->asked_ns = now;
	if (now - peer->stuck_ns < net->stuck_ns || now - peer->asked_ns < net->stuck_ns / 2)
		return;
	peer->asked_ns = now;
	if (can_probe(net))
		probe(net, peer);
}
