/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: far_node PORT
 *
 * The other side of far_node.h: a process for each node of a test that names this machine.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "far_wire.h"

static struct nm_transport *transport;
static struct nm_link *nm_link;
static int to_test;
static bool packets_are_answered;

static void serve(const struct far_frame *frame, const void *bytes);

/* Tells the test what the transport said, and serves it until it has answered. */
static int event(const struct far_frame *frame, const void *payload)
{
	static uint8_t bytes[FAR_BYTES_MAX];
	struct far_frame next;

	far_put(to_test, frame, payload);
	for (;;) {
		far_get(to_test, &next, bytes);
		if (next.kind == FAR_ANSWER)
			return next.value;
		serve(&next, bytes);
	}
}

static struct nm_peer *source_up(struct nm_transport *from, const struct nm_identity *who,
				 const struct nm_peer_label *label)
{
	struct far_frame frame = {.kind = FAR_SOURCE_UP, .head.source = {*who, *label}};

	(void)from;
	return event(&frame, NULL) ? (struct nm_peer *)&transport : NULL;
}

static void deliver(struct nm_transport *from, struct nm_peer *source, const struct nm_packet *pkt,
		    const void *payload)
{
	struct far_frame frame = {.kind = FAR_DELIVER, .len = pkt->len, .head.packet = *pkt};

	(void)from;
	(void)source;
	if (packets_are_answered)
		event(&frame, payload);
	else
		far_put(to_test, &frame, payload);
}

static void source_down(struct nm_transport *from, struct nm_peer *source, int err,
			const struct nm_reason *why)
{
	struct far_frame frame = {.kind = FAR_SOURCE_DOWN, .value = err, .head.why = *why};

	(void)from;
	(void)source;
	event(&frame, NULL);
}

static int create(const struct far_frame *frame, struct far_frame *answer)
{
	/* No source is told apart from another: a case has two nodes. */
	static const struct nm_sink sink = {
		.engine = &transport,
		.source_up = source_up,
		.deliver = deliver,
		.source_down = source_down,
	};
	const struct nm_transport_kind *kind =
		!strcmp(frame->head.create.name, "shm") ? &nm_shm_kind : &nm_vmseg_kind;
	struct nm_address address = {
		.version = NM_ADDRESS_VERSION,
		.who = frame->head.create.who,
	};
	int err = kind->create(&sink, &address, &transport, &answer->head.created.why);

	if (!err) {
		answer->head.created.max_payload = transport->max_payload;
		answer->head.created.eager_max = transport->eager_max;
	}
	return err;
}

static int operate(const struct far_frame *frame, const void *bytes, struct far_frame *answer)
{
	struct iovec iov = {(void *)(uintptr_t)bytes, frame->len};

	switch (frame->kind) {
	case FAR_CREATE:
		return create(frame, answer);
	case FAR_CONNECT:
		return transport->ops->connect(transport, &frame->head.address,
					       (struct nm_peer *)&transport, &nm_link,
					       &answer->head.why);
	case FAR_SEND:
		return transport->ops->send(nm_link, &frame->head.packet, &iov, 1);
	case FAR_DRAINED:
		return transport->ops->drained(nm_link);
	case FAR_DESCRIBE:
		transport->ops->describe(nm_link, &answer->head.facts);
		return 0;
	case FAR_PROGRESS:
		packets_are_answered = frame->value;
		return (int)transport->ops->progress(transport);
	case FAR_DESTROY:
		transport->ops->destroy(transport);
		return 0;
	default:
		return -EPROTO;
	}
}

static void serve(const struct far_frame *frame, const void *bytes)
{
	/* The caller's may be overwritten by what is asked meanwhile. */
	struct far_frame question = *frame, answer = {.kind = FAR_ANSWER};

	answer.value = operate(&question, bytes, &answer);
	far_put(to_test, &answer, NULL);
	if (question.kind == FAR_DESTROY)
		exit(0);
}

static void serve_test(int fd)
{
	static uint8_t bytes[FAR_BYTES_MAX];
	struct far_frame frame;

	to_test = fd;
	for (;;) {
		far_get(fd, &frame, bytes);
		serve(&frame, bytes);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd, one = 1;

	if (argc != 2) {
		fputs("usage: far_node PORT\n", stderr);
		return 2;
	}
	signal(SIGCHLD, SIG_IGN);
	at.sin_port = htons((uint16_t)atoi(argv[1]));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 16)) {
		perror("far_node");
		return 1;
	}
	puts("listens");
	fflush(stdout);
	while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		if (!fork()) {
			close(listener);
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
			serve_test(fd);
		}
		close(fd);
	}
	perror("far_node");
	return 1;
}
