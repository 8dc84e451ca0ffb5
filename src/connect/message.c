/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/layout.h"

/* Make a foreign text printable ASCII with an end. */
static void make_safe(char *text, size_t size)
{
	size_t i;

	text[size - 1] = '\0';
	for (i = 0; text[i]; i++)
		if (text[i] < 0x20 || text[i] > 0x7e)
			text[i] = '?';
}

void nm_message_init(struct nm_message_header *header, enum nm_message_kind kind)
{
	*header = (struct nm_message_header){NM_SESSION_MAGIC, NM_LAYOUT_VERSION, (uint16_t)kind};
}

int nm_message_parse(const void *bytes, size_t len, struct nm_reason *ret_reason)
{
	struct nm_message_header header;
	size_t expected = sizeof(struct nm_step);

	if (len < sizeof(header))
		goto bad;
	memcpy(&header, bytes, sizeof(header));
	if (header.magic != NM_SESSION_MAGIC)
		goto bad;
	if (header.kind == NM_MESSAGE_BYE) {
		if (len < sizeof(struct nm_step))
			goto bad;
		return NM_MESSAGE_BYE;
	}
	if (header.version != NM_LAYOUT_VERSION) {
		nm_reason_set(ret_reason,
			      "it uses layout version %u, not %u: use one release on both",
			      header.version, NM_LAYOUT_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (header.kind == NM_MESSAGE_HELLO || header.kind == NM_MESSAGE_WELCOME)
		expected = sizeof(struct nm_greeting);
	else if (header.kind < NM_MESSAGE_HELLO || header.kind > NM_MESSAGE_BYE)
		goto bad;
	if (len == expected)
		return header.kind;
bad:
	nm_reason_set(ret_reason, "it sent %zu bytes that are not a nearmetal message", len);
	return -EBADMSG;
}

int nm_greeting_parse(const void *bytes, size_t len, enum nm_message_kind kind,
		      struct nm_greeting *ret_greeting, struct nm_reason *ret_reason)
{
	struct nm_step bye;
	int got = nm_message_parse(bytes, len, ret_reason);

	if (got < 0)
		return got;
	if (got == NM_MESSAGE_BYE) {
		nm_step_copy(bytes, &bye);
		nm_reason_set(ret_reason, "it refused: %s", bye.words);
		return bye.value == -EBUSY ? -EBUSY : -ECONNREFUSED;
	}
	if (got != (int)kind) {
		nm_reason_set(ret_reason, "it sent message %d where %d was due", got, (int)kind);
		return -EBADMSG;
	}
	memcpy(ret_greeting, bytes, sizeof(*ret_greeting));
	make_safe(ret_greeting->label.text, sizeof(ret_greeting->label.text));
	if (ret_greeting->features & ~NM_FEATURES_KNOWN) {
		nm_reason_set(ret_reason, "it needs unknown features 0x%x",
			      ret_greeting->features & ~NM_FEATURES_KNOWN);
		return -EPROTONOSUPPORT;
	}
	return 0;
}

void nm_step_copy(const void *bytes, struct nm_step *ret_step)
{
	memcpy(ret_step, bytes, sizeof(*ret_step));
	make_safe(ret_step->words, sizeof(ret_step->words));
}

int nm_message_send(int fd, const void *message, size_t len, int pass_fd)
{
	struct iovec iov = {(void *)(uintptr_t)message, len};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cmsg;

	if (pass_fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &pass_fd, sizeof(int));
	}
	while (sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return errno == ETOOMANYREFS ? -EBUSY : -errno;
	return 0;
}

const char *nm_message_send_error(int err)
{
	return err == -EBUSY ? "this user has too many descriptors in flight" : strerror(-err);
}

int nm_message_send_step(int fd, enum nm_message_kind kind, int value, const char *words)
{
	return nm_message_send_step_with(fd, kind, value, words, -1);
}

int nm_message_send_step_with(int fd, enum nm_message_kind kind, int value, const char *words,
			      int pass_fd)
{
	struct nm_step step = {.value = value};

	nm_message_init(&step.header, kind);
	snprintf(step.words, sizeof(step.words), "%s", words);
	return nm_message_send(fd, &step, sizeof(step), pass_fd);
}

/* Take the received descriptors; a hostile peer may pass many. Returns their number. */
static unsigned int take_descriptors(struct msghdr *msg, int *ret_fd)
{
	struct cmsghdr *cmsg;
	unsigned int nr = 0;
	size_t offset;
	int fd;

	for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (offset = CMSG_LEN(0); offset + sizeof(int) <= cmsg->cmsg_len;
		     offset += sizeof(int)) {
			memcpy(&fd, (char *)cmsg + offset, sizeof(int));
			if (nr++ == 0)
				*ret_fd = fd;
			else
				close(fd);
		}
	}
	return nr;
}

int nm_message_receive(int fd, uint8_t bytes[NM_MESSAGE_MAX], int *ret_fd)
{
	struct iovec iov = {bytes, NM_MESSAGE_MAX};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	unsigned int nr, resets = 0;
	int passed = -1;
	ssize_t len;

	*ret_fd = -1;
	do {
		len = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		/* A reset is reported once, before the data that the other side sent before it. */
	} while (len < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0)));
	if (len < 0)
		return errno == ECONNRESET ? 0 : -errno;
	nr = take_descriptors(&msg, &passed);
	if (nr > 1 || (msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC))) {
		if (passed >= 0)
			close(passed);
		/* Control data is cut when a descriptor cannot be installed. */
		return nr == 0 && (msg.msg_flags & MSG_CTRUNC) ? -EMFILE : -EBADMSG;
	}
	/* An empty message counts as a hangup; its descriptor is not used. */
	if (len == 0 && passed >= 0) {
		close(passed);
		passed = -1;
	}
	*ret_fd = passed;
	return (int)len;
}
