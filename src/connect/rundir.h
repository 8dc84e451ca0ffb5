/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rundir: where the endpoints of one user's job on one host find each other. It holds
 * one pathname socket per endpoint, and its statistics (provider/stats.h), which are not read here;
 * who can see the directory can be a neighbour.
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
 * Open the directory PATH ("": /dev/shm/nearmetal-<uid>), made with mode 0700 when it is missing.
 * Returns 0, or -errno with a reason; -EPERM: it belongs to another user, or others may write to
 * it, so any process could listen there.
 */
int nm_rundir_open(const char *path, struct nm_rundir *ret_dir, struct nm_reason *ret_reason);
void nm_rundir_close(struct nm_rundir *dir);

#define NM_SOCKET_NAME_LEN 40

/* The name under which the endpoint ID listens: its twelve hexadecimal digits. */
void nm_socket_name(const uint8_t id[6], char ret_name[NM_SOCKET_NAME_LEN]);
/*
 * The address of socket NAME in DIR, however long the path of the directory is.
 * Returns its length.
 */
socklen_t nm_rundir_address(const struct nm_rundir *dir, const char *name,
			    struct sockaddr_un *ret_address);

/*
 * Listen under NAME. The socket appears under that name when it is ready, never before.
 * Returns the descriptor, or -errno with a reason; -EADDRINUSE: a process listens there already.
 */
int nm_rundir_listen(const struct nm_rundir *dir, const char *name, struct nm_reason *ret_reason);
/*
 * Remove what dead processes have left: sockets with names of ours, older than MIN_AGE_S, that
 * no process listens on. Other programs may keep sockets in the same private directory.
 * Returns how many.
 */
unsigned int nm_rundir_reap(const struct nm_rundir *dir, unsigned int min_age_s);
/* Remove the socket NAME if no process listens on it any more. Returns false while one does. */
bool nm_rundir_bury(const struct nm_rundir *dir, const char *name);

#endif
