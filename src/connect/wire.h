/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a table of sessions rests on: where endpoints find each other, what carries the words of
 * their handshake, and how one gets to see the other's window.
 *
 *   session.c, listener.c,   who may have a session, and in which steps:
 *   handshake_connect.c      the same everywhere
 *   wire_socket.c            sockets in a directory, windows by descriptor: one kernel
 *   wire_vmseg.c             mailboxes in a segment, windows in its parts: one hypervisor
 *
 * Above a wire every connection is a SOCK_SEQPACKET socket that hangs up when the other side is
 * gone. A wire that carries messages in another way holds the far end of a socket pair.
 *
 * All functions but create() and connect() are called under sessions->lock, by the service thread
 * if nothing else is said.
 */
#ifndef NM_CONNECT_WIRE_H
#define NM_CONNECT_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "connect/message.h"
#include "connect/session.h"

struct nm_handshake;

/* What the service thread wakes up for: first member of whatever is watched in sessions->epoll. */
struct nm_watch {
	void (*ready)(struct nm_sessions *sessions, struct nm_watch *watch);
};

struct nm_wire {
	const struct nm_wire_ops *ops;
	const char *place; /* for people */
	int window_fd;	   /* goes with my greetings; -1: nothing does */
};

struct nm_wire_ops {
	/* Begin to be found; newcomers are handed to nm_sessions_admit(). 0 or -errno with a
	 * reason. By the endpoint's thread, before there is a service thread. */
	int (*open)(struct nm_sessions *sessions, struct nm_reason *ret_reason);
	/* Newcomers find me no more; sessions stay. By the endpoint's thread, without the lock. */
	void (*hide)(struct nm_sessions *sessions);
	/* Free everything; the service thread has ended, or never lived. In a forked child: undo
	 * nothing that others see. */
	void (*destroy)(struct nm_sessions *sessions);
	/* In a forked child: let go of what would hide the parent's death. */
	void (*forget)(struct nm_sessions *sessions);
	/*
	 * Connect HANDSHAKE to WHO: its fd, by handshake->deadline_ns. By the calling thread,
	 * without the lock. 0; -ENOENT: WHO is not here, which is the usual thing; -errno; with a
	 * reason.
	 */
	int (*connect)(struct nm_sessions *sessions, struct nm_handshake *handshake,
		       const struct nm_identity *who, struct nm_reason *ret_reason);
	/* May the caller on HANDSHAKE be talked to at all? 0 or -errno with a reason. */
	int (*check_caller)(struct nm_handshake *handshake, struct nm_reason *ret_reason);
	/*
	 * Map the window of GREETING's sender into the session of HANDSHAKE, after checking that it
	 * is the sender's own. Fill in the relation, the integrity and how it was proven. If the
	 * session has a window already, it must be the same one, and nothing changes.
	 */
	int (*map)(struct nm_sessions *sessions, struct nm_handshake *handshake,
		   const struct nm_greeting *greeting, int window_fd, struct nm_reason *ret_reason);
	/* HANDSHAKE hung up without a word. Did it close in order (true), or how did it die? */
	bool (*ended)(struct nm_sessions *sessions, struct nm_handshake *handshake,
		      struct nm_reason *ret_why);
	/*
	 * I hung up, or noticed that the other side did: HANDSHAKE's fd goes. NULL: nothing to do.
	 */
	void (*hung_up)(struct nm_sessions *sessions, struct nm_handshake *handshake);
	/* Every lease_ms or so. */
	void (*beat)(struct nm_sessions *sessions);
	/* Before each wait. Returns for how long to wait at most. NULL: until something happens. */
	uint64_t (*turn)(struct nm_sessions *sessions, uint64_t now_ns);
};

/* Both: 0 or -errno with a reason; no trace on failure. */
int nm_wire_socket_create(const struct nm_sessions_config *config, struct nm_wire **ret_wire,
			  struct nm_reason *ret_reason);

int nm_wire_vmseg_create(const struct nm_sessions_config *config, struct nm_wire **ret_wire,
			 struct nm_reason *ret_reason);

/* A caller has connected on FD, which is the handshake's from now on. NULL: refused. */
struct nm_handshake *nm_sessions_admit(struct nm_sessions *sessions, int fd);
/* Watch FD for input and hangups. 0 or -errno. */
int nm_sessions_watch(struct nm_sessions *sessions, int fd, struct nm_watch *watch);
/* Closing alone would not end a watch while a child that is about to exec holds a copy. */
void nm_sessions_unwatch(struct nm_sessions *sessions, int fd);

#endif
