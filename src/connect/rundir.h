/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rundir: where the endpoints of one user's job on one host find each other. It has one
 * pathname socket per endpoint, and the endpoints' statistics (transport/stats.h), which this code
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

#define NM_RUNDIR_PATH_MAX 256

struct nm_rundir {
	int fd;
	char path[NM_RUNDIR_PATH_MAX];
};

/*
 * Open the directory PATH ("": the default one in /dev/shm); create it with mode 0700 if it is
 * missing. Returns 0, or -errno with a reason; -EPERM: it belongs to another user, or others may
 * write to it, so any process could listen there.
 */
int nm_rundir_open(const char *path, struct nm_rundir *ret_dir, struct nm_reason *ret_reason);
/*
 * Open the default rundir in PLACE, where every user may create files: nearmetal-<uid>. If another
 * user has taken this name, the rundir is a spare one, nearmetal-<uid>.<random>, with a warning.
 * All processes of the user find the same one: the default if it is theirs, else the first spare
 * one, even after the other user has removed the name.
 */
int nm_rundir_open_default(const char *place, struct nm_rundir *ret_dir,
			   struct nm_reason *ret_reason);
/* The path of the rundir that nm_rundir_open(PATH) would open. Creates nothing. */
void nm_rundir_find(const char *path, char ret_path[NM_RUNDIR_PATH_MAX]);
void nm_rundir_close(struct nm_rundir *dir);

#define NM_SOCKET_NAME_LEN 40

/*
 * A number that processes which see this directory share, and hardly those of another host: from
 * its device, inode and time of creation.
 */
uint64_t nm_rundir_number(const struct nm_rundir *dir);

/* The name under which the endpoint ID listens: its twelve hexadecimal digits. */
void nm_socket_name(const uint8_t id[6], char ret_name[NM_SOCKET_NAME_LEN]);
/* The address of socket NAME in DIR, also if the directory's path is long. Returns its length. */
socklen_t nm_rundir_address(const struct nm_rundir *dir, const char *name,
			    struct sockaddr_un *ret_address);

/*
 * Listen under NAME. The socket gets this name only when it is ready. Returns the descriptor, or
 * -errno with a reason; -EADDRINUSE: a process listens there already. BY_FORCE: a file of that name
 * is replaced.
 */
int nm_rundir_listen(const struct nm_rundir *dir, const char *name, bool by_force,
		     struct nm_reason *ret_reason);
/*
 * Remove sockets of dead processes: those with nearmetal names, older than MIN_AGE_S, on which no
 * process listens. Sockets of other programs in the same directory stay. Returns their number.
 */
unsigned int nm_rundir_reap(const struct nm_rundir *dir, unsigned int min_age_s);
/* Remove the socket NAME if no process listens on it any more. Returns false while one does. */
bool nm_rundir_bury(const struct nm_rundir *dir, const char *name);

#endif
