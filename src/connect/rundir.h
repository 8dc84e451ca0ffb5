/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rundir: where the endpoints of one user's job on one host find each other. It has one
 * pathname socket per endpoint, and the endpoints' statistics (provider/stats.h), which this code
 * does not read. Only endpoints that see the same rundir can be neighbours.
 */
#ifndef NM_CONNECT_RUNDIR_H
#define NM_CONNECT_RUNDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/reason.h"

struct nm_rundir {
	int fd;
	char path[256];
};

/*
 * Open the directory PATH ("": /dev/shm/nearmetal-<uid>); create it with mode 0700 if it is
 * missing. Returns 0, or -errno with a reason; -EPERM: it belongs to another user, or others may
 * write to it, so any process could listen there.
 */
int nm_rundir_open(const char *path, struct nm_rundir *ret_dir, struct nm_reason *ret_reason);
void nm_rundir_close(struct nm_rundir *dir);

#define NM_SOCKET_NAME_LEN 40

/* The name under which the endpoint ID listens: its twelve hexadecimal digits. */
void nm_socket_name(const uint8_t id[6], char ret_name[NM_SOCKET_NAME_LEN]);
/* The address of socket NAME in DIR, also if the directory's path is long. Returns its length. */
socklen_t nm_rundir_address(const struct nm_rundir *dir, const char *name,
			    struct sockaddr_un *ret_address);

/*
 * Listen under NAME. The socket gets this name only when it is ready. Returns the descriptor, or
 * -errno with a reason; -EADDRINUSE: a process listens there already.
 */
int nm_rundir_listen(const struct nm_rundir *dir, const char *name, struct nm_reason *ret_reason);
/*
 * Remove sockets of dead processes: those with nearmetal names, older than MIN_AGE_S, on which no
 * process listens. Sockets of other programs in the same directory stay. Returns their number.
 */
unsigned int nm_rundir_reap(const struct nm_rundir *dir, unsigned int min_age_s);
/* Remove the socket NAME if no process listens on it any more. Returns false while one does. */
bool nm_rundir_bury(const struct nm_rundir *dir, const char *name);

#endif
