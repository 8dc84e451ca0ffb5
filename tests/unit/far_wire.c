/* SPDX-License-Identifier: Apache-2.0 */
#include "far_wire.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static void gone(void)
{
	fprintf(stderr, "the other machine's side is gone: %s\n", strerror(errno));
	raise(SIGKILL);
}

static void move(int fd, struct iovec *iov, unsigned int nr_iov,
		 ssize_t (*call)(int fd, struct msghdr *msg, int flags), int flags)
{
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = nr_iov};
	ssize_t moved;

	while (msg.msg_iovlen) {
		moved = call(fd, &msg, flags);
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved <= 0 && msg.msg_iov->iov_len)
			gone();
		while (msg.msg_iovlen && (size_t)moved >= msg.msg_iov->iov_len) {
			moved -= (ssize_t)msg.msg_iov->iov_len;
			msg.msg_iov++;
			msg.msg_iovlen--;
		}
		if (msg.msg_iovlen) {
			msg.msg_iov->iov_base = (char *)msg.msg_iov->iov_base + moved;
			msg.msg_iov->iov_len -= (size_t)moved;
		}
	}
}

static ssize_t put(int fd, struct msghdr *msg, int flags)
{
	return sendmsg(fd, msg, flags);
}

void far_put(int fd, const struct far_frame *frame, const void *bytes)
{
	struct iovec iov[2] = {{(void *)(uintptr_t)frame, sizeof(*frame)},
			       {(void *)(uintptr_t)bytes, frame->len}};

	move(fd, iov, frame->len ? 2 : 1, put, MSG_NOSIGNAL);
}

void far_get(int fd, struct far_frame *ret_frame, void *bytes)
{
	struct iovec iov = {ret_frame, sizeof(*ret_frame)};

	move(fd, &iov, 1, recvmsg, 0);
	if (ret_frame->len > FAR_BYTES_MAX) {
		errno = EMSGSIZE;
		gone();
	}
	iov = (struct iovec){bytes, ret_frame->len};
	if (ret_frame->len)
		move(fd, &iov, 1, recvmsg, 0);
}
