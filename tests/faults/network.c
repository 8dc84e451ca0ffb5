/* SPDX-License-Identifier: Apache-2.0 */
#include "network.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "../unit/fabric_host.h"
#include "machines.h"
#include "net/host.h"

#define PATH_ROOM 128

static char notice_path[PATH_ROOM], place[PATH_ROOM];
static int notice = -1;

static void path_of(char path[PATH_ROOM], const char *dir, uint32_t machine)
{
	snprintf(path, PATH_ROOM, "%s/notice%u", dir, machine);
}

static void say(const char *word)
{
	if (ftruncate(notice, 0) || pwrite(notice, word, strlen(word), 0) < 0)
		abort();
}

bool network_enter(const char *dir, uint32_t machine)
{
	snprintf(place, sizeof(place), "%s", dir);
	path_of(notice_path, dir, machine);
	setenv("NEARMETAL_NET_NOTICE", notice_path, 1);
	notice = open(notice_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (notice >= 0)
		say("stay");
	return notice >= 0;
}

int network_create(const struct nm_sink *sink, struct nm_address *address,
		   struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	const char *defect = fabric_host_fill(place);

	if (!defect)
		return nm_net_kind.create(sink, address, ret_transport, ret_reason);
	nm_reason_set(ret_reason, "%s", defect);
	return -ENOSYS;
}

void network_ask(void)
{
	say("leave");
}

bool network_is_given_up(void)
{
	return flock(notice, LOCK_EX | LOCK_NB) == 0;
}

void network_return(void)
{
	say("stay");
	flock(notice, LOCK_UN);
}

const char *network_remains(const char *dir)
{
	char path[PATH_ROOM];
	bool is_free;
	int fd;

	for (uint32_t i = 0; i < NR_MACHINES; i++) {
		path_of(path, dir, i);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		is_free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
		if (fd >= 0)
			close(fd);
		if (!is_free)
			return "a notice of the network stays locked";
	}
	return NULL;
}

void network_remove(const char *dir)
{
	char path[PATH_ROOM];

	for (uint32_t i = 0; i < NR_MACHINES; i++) {
		path_of(path, dir, i);
		unlink(path);
	}
}
