/* SPDX-License-Identifier: Apache-2.0 */
#include "machines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vmseg/check.h"

#define PART_SIZE (UINT64_C(16) << 20)
#define PATH_ROOM 128
/* Of the slots of a part some are looked at in each call of nm_vmseg_bury(). */
#define BURY_CALLS 64
/* An endpoint looks ten times a second. */
#define ANSWER_MS 20000

static const uint8_t token[NM_VMSEG_TOKEN_LEN] = {7, 7, 7};

static void path_of(char path[PATH_ROOM], const char *dir, const char *name, uint32_t part)
{
	snprintf(path, PATH_ROOM, "%s/%s%u", dir, name, part);
}

void machines_remove(const char *dir)
{
	static const char *const names[] = {"segment", "lock", "conf", "left"};
	char path[PATH_ROOM];

	for (uint32_t i = 0; i < NR_MACHINES; i++)
		for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
			path_of(path, dir, names[n], i);
			unlink(path);
		}
}

static bool write_config(const char *dir, uint32_t part)
{
	char path[PATH_ROOM];
	FILE *file;
	int fd;

	path_of(path, dir, "conf", part);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	file = fd < 0 ? NULL : fdopen(fd, "w");
	if (!file)
		return false;
	fprintf(file, "version = 1\ndevice = dax\nall = %s/segment0\nlock = %s/lock%u\npart = %u\n",
		dir, dir, part, part);
	fprintf(file, "token = ");
	for (size_t i = 0; i < sizeof(token); i++)
		fprintf(file, "%02x", token[i]);
	fprintf(file, "\n");
	return fclose(file) == 0;
}

bool machines_make(const char *dir)
{
	struct nm_vmseg_host host;
	char path[PATH_ROOM];
	struct nm_reason why;
	bool good;
	int fd;

	machines_remove(dir);
	path_of(path, dir, "segment", 0);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	good = fd >= 0 && nm_vmseg_host_init(NR_MACHINES, PART_SIZE, token, &host, &why) == 0 &&
	       ftruncate(fd, (off_t)host.size) == 0 &&
	       pwrite(fd, &host, sizeof(host), 0) == (ssize_t)sizeof(host);
	if (fd >= 0)
		close(fd);
	for (uint32_t i = 0; i < NR_MACHINES; i++)
		good = good && write_config(dir, i);
	return good;
}

void machines_enter(const char *dir, uint32_t part)
{
	char path[PATH_ROOM];

	path_of(path, dir, "conf", part);
	setenv("NEARMETAL_SEGMENT", path, 1);
}

static const char *look_at(struct nm_vmseg *segment)
{
	const uint8_t id[6] = {'n', 'e', 'x', 't'};
	struct nm_vmseg_claim *claim;
	struct nm_vmseg_peer peer;
	uint64_t cursor = 0;
	struct nm_reason why;

	for (int i = 0; i < BURY_CALLS; i++)
		nm_vmseg_bury(segment);
	while (nm_vmseg_next(segment, &cursor, &peer))
		if (peer.address.part == nm_vmseg_facts(segment)->part &&
		    peer.state != NM_VMSEG_GONE)
			return "a slot of the dead passes for a living one";
	if (nm_vmseg_claim(segment, id, UINT64_C(1) << 20, &claim, &why))
		return "who comes next gets no slot";
	nm_vmseg_release(claim);
	return NULL;
}

bool machines_hide(const char *dir, uint32_t part, bool is_hidden)
{
	char shown[PATH_ROOM], hidden[PATH_ROOM];

	path_of(shown, dir, "conf", part);
	path_of(hidden, dir, "left", part);
	return rename(is_hidden ? shown : hidden, is_hidden ? hidden : shown) == 0;
}

static struct nm_vmseg *attach(const char *dir, uint32_t part)
{
	struct nm_vmseg_config config;
	struct nm_vmseg *segment;
	char path[PATH_ROOM];
	struct nm_reason why;

	path_of(path, dir, "conf", part);
	/* The endpoint that gave the segment up has died. */
	if (access(path, F_OK))
		(void)machines_hide(dir, part, false);
	if (nm_vmseg_config_load(path, &config, &why) || nm_vmseg_attach(&config, &segment, &why))
		return NULL;
	return segment;
}

int machines_ask(const char *dir, uint32_t part, enum nm_vmseg_state state)
{
	struct nm_vmseg *segment = attach(dir, part);
	struct nm_reason why;
	int err = segment ? nm_vmseg_ask(segment, state, &why) : -EIO;

	nm_vmseg_detach(segment);
	return err;
}

bool machines_are_mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	bool is_mapped = !maps;
	char line[512];

	while (maps && !is_mapped && fgets(line, sizeof(line), maps))
		is_mapped = strstr(line, "/segment0") != NULL;
	if (maps)
		fclose(maps);
	return is_mapped;
}

bool machines_stay(const char *dir, uint32_t part)
{
	return machines_ask(dir, part, NM_VMSEG_RUN) == 0;
}

static bool is_running(struct nm_vmseg *segment, const uint8_t id[6])
{
	struct nm_vmseg_peer peer;
	uint64_t cursor = 0;

	while (nm_vmseg_next(segment, &cursor, &peer))
		if (peer.state == NM_VMSEG_RUN && !memcmp(peer.id, id, sizeof(peer.id)))
			return true;
	return false;
}

bool machines_leave_and_return(const char *dir, uint32_t part, const uint8_t id[6])
{
	const struct timespec pause = {.tv_nsec = 1000000};
	struct nm_vmseg *segment = attach(dir, part);
	struct nm_reason why;
	bool good = segment && nm_vmseg_ask(segment, NM_VMSEG_QUIESCE, &why) == 0;
	int err = -EBUSY, i;

	for (i = 0; good && err == -EBUSY && i < ANSWER_MS; i++) {
		err = nm_vmseg_ask(segment, NM_VMSEG_FROZEN, &why);
		nanosleep(&pause, NULL);
	}
	good = good && !err && nm_vmseg_ask(segment, NM_VMSEG_RUN, &why) == 0;
	for (i = 0; good && !is_running(segment, id) && i < ANSWER_MS; i++)
		nanosleep(&pause, NULL);
	good = good && is_running(segment, id);
	nm_vmseg_detach(segment);
	return good;
}

const char *machines_remains(const char *dir)
{
	struct nm_vmseg *segment;
	const char *defect = NULL;

	for (uint32_t i = 0; i < NR_MACHINES && !defect; i++) {
		segment = attach(dir, i);
		if (!segment)
			return "nobody can attach any more";
		defect = look_at(segment);
		nm_vmseg_detach(segment);
	}
	return defect;
}
