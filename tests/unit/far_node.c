/* SPDX-License-Identifier: Apache-2.0 */
#include "far_node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "far_wire.h"
#include "harness.h"
#include "transport_fixture.h"

/* The test's side. */
struct far_transport {
	struct nm_transport transport;
	struct nm_transport_ops ops;
	int fd;
	struct nm_link link; /* one is all that a case makes */
	struct nm_peer *source;
	bool answers_packets;
	uint8_t bytes[FAR_BYTES_MAX];
};

bool far_is_given(void)
{
	return getenv("NM_TEST_OTHER") != NULL;
}

bool far_is_next(void)
{
	return far_is_given() && nm_test_next() % 2;
}

const char *far_relation(const char *usual)
{
	const char *given = getenv("NM_TEST_RELATION");

	return far_is_given() && given ? given : usual;
}

static struct far_transport *far_of(struct nm_transport *transport)
{
	return (struct far_transport *)transport;
}

static void tell_sink(struct far_transport *t, const struct far_frame *event)
{
	const struct nm_sink *sink = &t->transport.sink;
	struct far_frame answer = {.kind = FAR_ANSWER};

	if (event->kind == FAR_SOURCE_UP) {
		t->source = sink->source_up(&t->transport, &event->head.source.who,
					    &event->head.source.label);
		answer.value = t->source != NULL;
	} else if (event->kind == FAR_DELIVER) {
		NM_CHECK_EQ(event->len, event->head.packet.len);
		sink->deliver(&t->transport, t->source, &event->head.packet, t->bytes);
		if (!t->answers_packets)
			return;
	} else {
		NM_CHECK_EQ(event->kind, FAR_SOURCE_DOWN);
		/* A refused source ends, too, as the peer that the link reaches. */
		sink->source_down(&t->transport, t->source ? t->source : t->link.peer, event->value,
				  &event->head.why);
	}
	far_put(t->fd, &answer, NULL);
}

/* Asks, and serves events until the answer is there, which takes the place of the question. */
static int call(struct far_transport *t, struct far_frame *frame, const void *bytes)
{
	far_put(t->fd, frame, bytes);
	for (;;) {
		far_get(t->fd, frame, t->bytes);
		if (frame->kind == FAR_ANSWER)
			return frame->value;
		tell_sink(t, frame);
	}
}

static int far_connect(struct nm_transport *transport, const struct nm_address *address,
		       struct nm_peer *peer, struct nm_link **ret_link,
		       struct nm_reason *ret_reason)
{
	struct far_frame frame = {.kind = FAR_CONNECT, .head.address = *address};
	struct far_transport *t = far_of(transport);
	int err = call(t, &frame, NULL);

	*ret_reason = frame.head.why;
	t->link = (struct nm_link){.transport = transport, .peer = peer};
	if (!err)
		*ret_link = &t->link;
	return err;
}

static int far_send(struct nm_link *link, const struct nm_packet *pkt, const struct iovec *iov,
		    unsigned int nr_iov)
{
	struct far_frame frame = {.kind = FAR_SEND, .len = pkt->len, .head.packet = *pkt};

	/* Payloads in pieces are sent from here only. */
	NM_CHECK(nr_iov == 1 && iov->iov_len == pkt->len);
	return call(far_of(link->transport), &frame, iov->iov_base);
}

static bool far_drained(struct nm_link *link)
{
	struct far_frame frame = {.kind = FAR_DRAINED};

	return call(far_of(link->transport), &frame, NULL);
}

static void far_describe(const struct nm_link *link, struct nm_link_facts *ret_facts)
{
	struct far_frame frame = {.kind = FAR_DESCRIBE};

	call(far_of(link->transport), &frame, NULL);
	*ret_facts = frame.head.facts;
}

static unsigned int far_progress(struct nm_transport *transport)
{
	struct far_transport *t = far_of(transport);
	const struct node *node = transport->sink.engine;
	struct far_frame frame = {.kind = FAR_PROGRESS, .value = node->echo};

	t->answers_packets = node->echo;
	return (unsigned int)call(t, &frame, NULL);
}

static void far_destroy(struct nm_transport *transport)
{
	struct far_frame frame = {.kind = FAR_DESTROY};
	struct far_transport *t = far_of(transport);

	call(t, &frame, NULL);
	close(t->fd);
	free(t);
}

static int dial(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	char address[64];
	const char *colon;
	int fd, one = 1;

	snprintf(address, sizeof(address), "%s", getenv("NM_TEST_OTHER"));
	colon = strchr(address, ':');
	NM_CHECK(colon != NULL);
	address[colon - address] = '\0';
	NM_CHECK_EQ(inet_pton(AF_INET, address, &to.sin_addr), 1);
	to.sin_port = htons((uint16_t)atoi(colon + 1));
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	NM_CHECK(fd >= 0);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)))
		nm_test_fail(__FILE__, __LINE__, "%s: %s", getenv("NM_TEST_OTHER"),
			     strerror(errno));
	NM_CHECK_EQ(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
	return fd;
}

int far_create(const char *name, const struct nm_sink *sink, struct nm_address *address,
	       struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	struct far_frame frame = {.kind = FAR_CREATE, .head.create.who = address->who};
	struct far_transport *t = calloc(1, sizeof(*t));
	int err;

	NM_CHECK(t != NULL);
	snprintf(frame.head.create.name, sizeof(frame.head.create.name), "%s", name);
	t->transport.sink = *sink;
	t->fd = dial();
	err = call(t, &frame, NULL);
	*ret_reason = frame.head.created.why;
	if (err) {
		close(t->fd);
		free(t);
		return err;
	}
	t->ops = (struct nm_transport_ops){
		.connect = far_connect,
		.send = far_send,
		.drained = far_drained,
		.describe = far_describe,
		.progress = far_progress,
		.destroy = far_destroy,
	};
	t->transport.kind = !strcmp(name, "shm") ? &nm_shm_kind : &nm_vmseg_kind;
	t->transport.ops = &t->ops;
	t->transport.max_payload = frame.head.created.max_payload;
	t->transport.eager_max = frame.head.created.eager_max;
	*ret_transport = &t->transport;
	return 0;
}
