/* SPDX-License-Identifier: Apache-2.0 */
#include "cable.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/protocol.h"

/* LATE: what the peer writes into memory after MOVE is seen before it. */
enum { PEERS = 8, PAYLOAD = 2 * NM_MIN_MAX_PAYLOAD, BATCH = 16, LATE = 200 };
enum kind { PACKET, PING, BYE };

static const char prefix[] = "cable-";

struct datagram {
	uint32_t kind, len;
	struct nm_identity from;
	struct nm_packet packet;
	uint8_t payload[PAYLOAD];
};

struct cable {
	struct nm_transport base;
	const char *dir;
	struct nm_identity who;
	struct sockaddr_un name;
	int fd;
	struct other {
		struct nm_link link;
		struct nm_identity who;
		struct nm_peer *source;
		bool is_used, is_linked, is_down, is_lost;
	} others[PEERS];
	struct datagram *waiting;
	unsigned int nr_waiting;
	unsigned int nr_late; /* calls of progress() until they are delivered */
};

static struct cable *cable_of(struct nm_transport *transport)
{
	return nm_container_of(transport, struct cable, base);
}

static void name_of(struct sockaddr_un *name, const char *dir, const struct nm_identity *who)
{
	const uint8_t *id = who->id;

	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(name->sun_path, sizeof(name->sun_path), "%s/%s%02x%02x%02x%02x%02x%02x", dir,
		 prefix, id[0], id[1], id[2], id[3], id[4], id[5]);
}

static struct other *find(struct cable *cable, const struct nm_identity *who)
{
	struct other *other = cable->others;

	while (other->is_used && !nm_identity_equal(&other->who, who))
		if (++other == cable->others + PEERS)
			abort();
	other->is_used = true;
	other->who = *who;
	return other;
}

static int put(struct cable *cable, struct other *other, enum kind kind,
	       const struct nm_packet *pkt, const struct iovec *iov, unsigned int nr_iov)
{
	struct datagram head = {.kind = kind, .from = cable->who};
	struct iovec parts[65] = {{&head, offsetof(struct datagram, payload)}};
	struct sockaddr_un name;
	struct msghdr message = {
		.msg_name = &name,
		.msg_namelen = sizeof(name),
		.msg_iov = parts,
		.msg_iovlen = 1 + nr_iov,
	};

	if (other->is_down)
		return -EPIPE;
	name_of(&name, cable->dir, &other->who);
	if (pkt)
		head.packet = *pkt;
	for (unsigned int i = 0; i < nr_iov; i++)
		parts[1 + i] = iov[i];
	if (sendmsg(cable->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 0;
	if (errno == EAGAIN || errno == ENOBUFS)
		return -EAGAIN;
	other->is_down = other->is_lost = true;
	return -EPIPE;
}

static int cable_connect(struct nm_transport *transport, const struct nm_address *address,
			 struct nm_peer *peer, struct nm_link **ret_link,
			 struct nm_reason *ret_reason)
{
	struct other *other = find(cable_of(transport), &address->who);

	nm_reason_set(ret_reason, "a cable");
	if (other->is_down)
		return -EHOSTUNREACH;
	other->link = (struct nm_link){.transport = transport, .peer = peer};
	other->is_linked = true;
	*ret_link = &other->link;
	return 0;
}

static int cable_send(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		      unsigned int nr_iov)
{
	return put(cable_of(link->transport), nm_container_of(link, struct other, link), PACKET,
		   pkt, iov, nr_iov);
}

static bool cable_drained(struct nm_link *link)
{
	(void)link;
	return true;
}

static void cable_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	(void)link;
	*ret_facts = (struct nm_link_facts){
		.relation = NM_RELATION_NETWORK,
		.channel = NM_CHANNEL_NET,
	};
}

static void cable_check_alive(struct nm_link *link)
{
	(void)put(cable_of(link->transport), nm_container_of(link, struct other, link), PING, NULL,
		  NULL, 0);
}

static void end(struct cable *cable, struct other *other, int err)
{
	static const struct nm_reason died = {"no process has its socket"}, closed = {"it closed"};
	struct nm_peer *peer = other->source	? other->source :
			       other->is_linked ? other->link.peer :
						  NULL;

	other->is_down = true;
	other->is_lost = false;
	if (peer)
		cable->base.sink.source_down(&cable->base, peer, err, err ? &died : &closed);
}

static void deliver(struct cable *cable, const struct datagram *d)
{
	const struct nm_peer_label label = {"by cable"};
	struct other *other = find(cable, &d->from);

	if (other->is_down && !other->is_lost)
		return;
	if (d->kind == BYE) {
		end(cable, other, 0);
		return;
	}
	if (!other->source)
		other->source = cable->base.sink.source_up(&cable->base, &other->who, &label);
	if (other->source && d->kind == PACKET)
		cable->base.sink.deliver(&cable->base, other->source, &d->packet, d->payload);
}

static unsigned int cable_progress(struct nm_transport *transport)
{
	struct cable *cable = cable_of(transport);
	unsigned int nr = cable->nr_waiting;

	if (cable->nr_late) {
		cable->nr_late--;
		return 0;
	}
	for (unsigned int i = 0; i < nr; i++)
		deliver(cable, &cable->waiting[i]);
	for (cable->nr_waiting = 0; cable->nr_waiting < BATCH; cable->nr_waiting++)
		if (recv(cable->fd, &cable->waiting[cable->nr_waiting], sizeof(struct datagram),
			 MSG_DONTWAIT) < (ssize_t)offsetof(struct datagram, payload))
			break;
	for (unsigned int i = 0; i < cable->nr_waiting; i++)
		if (cable->waiting[i].packet.op == NM_OP_MOVE)
			cable->nr_late = LATE;
	/* What it sent before its death comes first. */
	for (unsigned int i = 0; i < PEERS && !cable->nr_waiting; i++)
		if (cable->others[i].is_lost)
			end(cable, &cable->others[i], -ECONNRESET);
	return nr;
}

static bool cable_sleep(struct nm_transport *transport, struct nm_doorbells *doorbells)
{
	(void)transport, (void)doorbells;
	return false;
}

static void cable_destroy(struct nm_transport *transport)
{
	struct cable *cable = cable_of(transport);

	for (struct other *other = cable->others; other < cable->others + PEERS; other++)
		while ((other->is_linked || other->source) &&
		       put(cable, other, BYE, NULL, NULL, 0) == -EAGAIN &&
		       nm_clock_ns() < transport->close_by_ns)
			sched_yield();
	unlink(cable->name.sun_path);
	close(cable->fd);
	free(cable->waiting);
	free(cable);
}

static const struct nm_transport_kind cable_kind = {
	.channel = NM_CHANNEL_NET,
	.rank = 90,
	.flags = NM_TRANSPORT_NETWORK,
};

static const struct nm_transport_ops cable_ops = {
	.connect = cable_connect,
	.send = cable_send,
	.drained = cable_drained,
	.describe = cable_describe,
	.check_alive = cable_check_alive,
	.sleep = cable_sleep,
	.wake = nm_transport_unwoken,
	.progress = cable_progress,
	.destroy = cable_destroy,
};

int cable_create(const char *dir, const struct nm_sink *sink, struct nm_address *address,
		 struct nm_transport **ret_transport)
{
	struct cable *cable = calloc(1, sizeof(*cable));

	if (!cable)
		return -ENOMEM;
	cable->waiting = calloc(BATCH, sizeof(*cable->waiting));
	cable->dir = dir;
	cable->who = address->who;
	cable->base.kind = &cable_kind;
	cable->base.ops = &cable_ops;
	cable->base.sink = *sink;
	cable->base.max_payload = PAYLOAD;
	cable->base.eager_max = NM_MIN_MAX_PAYLOAD;
	name_of(&cable->name, dir, &cable->who);
	cable->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (!cable->waiting || cable->fd < 0 ||
	    bind(cable->fd, (struct sockaddr *)&cable->name, sizeof(cable->name)) < 0)
		return -EIO;
	address->inner_len = 1;
	*ret_transport = &cable->base;
	return 0;
}

void cables_remove(const char *path)
{
	DIR *dir = opendir(path);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (!strncmp(entry->d_name, prefix, sizeof(prefix) - 1))
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
}
