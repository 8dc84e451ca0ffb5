/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire of a table of sessions: where endpoints find each other, how handshake messages travel,
 * and how an endpoint maps the other's window.
 *
 *   session.c, listener.c,   rules and steps of a session:
 *   handshake_connect.c      the same for all wires
 *   wire_socket.c            sockets in a directory, windows by descriptor: one kernel
 *   wire_vmseg.c             mailboxes in a segment, windows in its parts: one hypervisor
 *
 * To the code above a wire, every connection is a SOCK_SEQPACKET socket that hangs up when the
 * other side is gone. A wire without such sockets holds the far end of a socket pair.
 *
 * All functions except create(), open() and hide() need sessions->lock. The service thread calls
 * them unless a comment names another thread; map() and hung_up() come from the thread that takes
 * the message. None of them waits for another process.
 */
#ifndef NM_CONNECT_WIRE_H
#define NM_CONNECT_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "connect/message.h"
#include "connect/session.h"

struct nm_handshake;

/* First member of every object that is watched in sessions->epoll. */
struct nm_watch {
	void (*ready)(struct nm_sessions *sessions, struct nm_watch *watch);
};

struct nm_wire {
	const struct nm_wire_ops *ops;
	const char *place; /* for messages */
	int window_fd;	   /* sent with greetings; -1: none */
};

struct nm_wire_ops {
	/* Let newcomers find this endpoint; they are passed to nm_sessions_admit(). 0 or -errno
	 * with a reason. Called by the endpoint's thread before the service thread starts. */
	int (*open)(struct nm_sessions *sessions, struct nm_reason *ret_reason);
	/* Hide from newcomers; sessions stay. By the endpoint's thread, without the lock. */
	void (*hide)(struct nm_sessions *sessions);
	/* Free everything; the service thread does not run. In a forked child: change nothing that
	 * other processes see. */
	void (*destroy)(struct nm_sessions *sessions);
	/* In a forked child: close what would hide the parent's death. */
	void (*forget)(struct nm_sessions *sessions);
	/*
	 * Connect HANDSHAKE to its peer and set its fd. By the calling thread. 0, or with a reason:
	 * -ENOENT: the peer is not here, the usual case; -EAGAIN: not now, its fd is -1; -errno.
	 */
	int (*connect)(struct nm_sessions *sessions, struct nm_handshake *handshake,
		       struct nm_reason *ret_reason);
	/* Check if the caller on HANDSHAKE is allowed. 0 or -errno with a reason. */
	int (*check_caller)(struct nm_handshake *handshake, struct nm_reason *ret_reason);
	/*
	 * Check that the window of GREETING's sender is the sender's own, and map it into the
	 * session of HANDSHAKE. Fill in the relation, the integrity and how it was proven. If the
	 * session has a window already, it must be the same one, and nothing changes.
	 */
	int (*map)(struct nm_sessions *sessions, struct nm_handshake *handshake,
		   const struct nm_greeting *greeting, int window_fd, struct nm_reason *ret_reason);
	/* HANDSHAKE hung up without BYE. True: normal close; false: death, reason in RET_WHY. */
	bool (*ended)(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      struct nm_reason *ret_why);
	/* One of the two sides hung up, so HANDSHAKE's fd is closed. NULL: nothing to do. */
	void (*hung_up)(struct nm_sessions *sessions, struct nm_handshake *handshake);
	/* Called about every lease_ms. */
	void (*beat)(struct nm_sessions *sessions);
	/* Called before each wait. Returns the longest wait. NULL: wait until something happens. */
	uint64_t (*turn)(struct nm_sessions *sessions, uint64_t now_ns);
};

/* Both: 0 or -errno with a reason; no trace on failure. WHO gets the file of the window. */
int nm_wire_socket_create(const struct nm_sessions_config *config, struct nm_identity *who,
			  struct nm_wire **ret_wire, struct nm_reason *ret_reason);

int nm_wire_vmseg_create(const struct nm_sessions_config *config, struct nm_wire **ret_wire,
			 struct nm_reason *ret_reason);

/* A caller connected on FD, which the handshake then owns. NULL: refused. */
struct nm_handshake *nm_sessions_admit(struct nm_sessions *sessions, int fd);
/* Watch FD for input and hangups. 0 or -errno. */
int nm_sessions_watch(struct nm_sessions *sessions, int fd, struct nm_watch *watch);
/* Closing alone does not end a watch while a child that is about to exec holds a copy. */
void nm_sessions_unwatch(struct nm_sessions *sessions, int fd);

#endif
