/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/stats.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/params.h"
#include "connect/rundir.h"
#include "transport/select.h"

#define SUFFIX ".stats"
#define MAX_REAPED_ENTRIES 8192
#define PATH_ROOM (NM_PARAM_TEXT_MAX + 128)

struct nm_stats {
	int fd;
	bool stays; /* the file is left behind at close */
	bool full;  /* writing failed: never again */
	char path[PATH_ROOM];
	struct nm_stats_head head;
	char *bytes; /* the file as it is written */
	size_t room;
};

static uint64_t wall_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * NM_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Words that launchers say to their ranks: a name for people, nothing depends on it. */
static int32_t launcher_rank(void)
{
	static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
					    "SLURM_PROCID"};
	const char *text;
	char *end;
	long rank;

	for (size_t i = 0; i < NM_ARRAY_SIZE(names); i++) {
		text = getenv(names[i]);
		rank = text ? strtol(text, &end, 10) : -1;
		if (text && *text && !*end && rank >= 0 && rank < INT32_MAX)
			return (int32_t)rank;
	}
	return -1;
}

/* A host name is foreign text: only safe characters of it appear in a file name. */
static void plain_name(char *name)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789-_.";

	for (; *name; name++)
		if (!strchr(plain, *name))
			*name = '_';
}

static void fill_head(struct nm_stats_head *head, const struct nm_identity *who,
		      enum nm_stats_face face)
{
	const char *job = getenv("NEARMETAL_JOB");

	*head = (struct nm_stats_head){
		.magic = NM_STATS_MAGIC,
		.version = NM_STATS_VERSION,
		.head_size = sizeof(struct nm_stats_head),
		.peer_size = sizeof(struct nm_stats_peer),
		.state = NM_STATS_RUNNING,
		.started_ns = wall_ns(),
		.pid = (uint32_t)getpid(),
		.rank = launcher_rank(),
		.face = (uint8_t)face,
	};
	memcpy(head->id, who->id, sizeof(head->id));
	if (gethostname(head->host, sizeof(head->host) - 1))
		snprintf(head->host, sizeof(head->host), "unknown");
	plain_name(head->host);
	snprintf(head->channels, sizeof(head->channels), "none,%s", NM_CHANNEL_LIST);
	snprintf(head->job, sizeof(head->job), "%s", job ? job : "");
	plain_name(head->job);
}

static struct nm_stats_peer *peer_place(struct nm_stats *stats, uint32_t i)
{
	return (struct nm_stats_peer *)(void *)(stats->bytes + sizeof(struct nm_stats_head)) + i;
}

/* Room for NR peers. False: there is no memory for it. */
static bool make_room(struct nm_stats *stats, uint32_t nr)
{
	size_t room = sizeof(struct nm_stats_head) + sizeof(struct nm_stats_tail) +
		      nr * sizeof(struct nm_stats_peer);
	char *bytes;

	if (room <= stats->room)
		return true;
	room += room / 2;
	bytes = realloc(stats->bytes, room);
	if (!bytes)
		return false;
	stats->bytes = bytes;
	stats->room = room;
	return true;
}

void nm_stats_text(char *to, size_t room, const char *from)
{
	snprintf(to, room, "%s", from);
}

_Static_assert(NM_NR_PROTOCOLS <= 8 && NM_NR_CHANNELS <= 8 &&
		       sizeof("none" NM_CHANNELS(NM_CHANNEL_COMMA_NAME)) <=
			       sizeof(((struct nm_stats_head *)0)->channels),
	       "the file has room for all");

struct nm_stats_peer *nm_stats_add(struct nm_stats *stats, const struct nm_identity *who,
				   const struct nm_link_facts *facts, bool is_connected)
{
	struct nm_stats_head *head = &stats->head;
	struct nm_stats_peer *peer;

	if (head->nr_peers == NM_STATS_MAX_PEERS || !make_room(stats, head->nr_peers + 1)) {
		head->nr_unlisted++;
		return NULL;
	}
	peer = peer_place(stats, head->nr_peers++);
	memset(peer, 0, sizeof(*peer));
	memcpy(peer->id, who->id, sizeof(peer->id));
	if (is_connected) {
		peer->relation = (uint8_t)facts->relation;
		peer->channel = (uint8_t)facts->channel;
		peer->integrity = (uint8_t)facts->integrity;
	}
	nm_stats_text(peer->label, sizeof(peer->label), facts->label.text);
	nm_stats_text(peer->reason, sizeof(peer->reason), facts->reason.text);
	return peer;
}

/* A forked child shares the file, which is its parent's. */
static bool is_foreign(const struct nm_stats *stats)
{
	return stats->head.pid != (uint32_t)getpid();
}

void nm_stats_publish(struct nm_stats *stats, nm_stats_collect *collect, void *arg)
{
	struct nm_stats_tail tail;
	size_t len;

	if (!stats || stats->full || is_foreign(stats) || !make_room(stats, 0))
		return;
	stats->head.nr_peers = 0;
	stats->head.nr_unlisted = 0;
	collect(arg, stats);
	stats->head.generation++;
	stats->head.written_ns = wall_ns();
	memcpy(stats->bytes, &stats->head, sizeof(stats->head));
	len = (size_t)((char *)peer_place(stats, stats->head.nr_peers) - stats->bytes);
	tail.generation = stats->head.generation;
	memcpy(stats->bytes + len, &tail.generation, sizeof(tail.generation));
	tail.sum = nm_stats_sum(stats->bytes, len + sizeof(tail.generation));
	memcpy(stats->bytes + len, &tail, sizeof(tail));
	len += sizeof(tail);
	errno = EFBIG;
	if (!nm_file_fits(len) || pwrite(stats->fd, stats->bytes, len, 0) != (ssize_t)len) {
		stats->full = true;
		nm_warn("statistics file %s could not be written: %s", stats->path,
			strerror(errno));
	}
}

/* The lock says to every process of this kernel that the file's owner lives. */
static int lock_file(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_SETLK, &lock);
}

static bool owner_lives(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

/*
 * Remove what processes of this user left that died. A file has its lock before it has its name, so
 * one without a lock has no owner. Our own is not there yet: closing another descriptor of a file
 * would end our lock on it.
 */
static void reap(const struct nm_rundir *dir)
{
	int top = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;
	DIR *stream = top < 0 ? NULL : fdopendir(top);
	unsigned int nr = 0;
	struct dirent *entry;
	struct stat st;

	if (!stream) {
		if (top >= 0)
			close(top);
		return;
	}
	while ((entry = readdir(stream)) && nr++ < MAX_REAPED_ENTRIES) {
		if (strspn(entry->d_name, "0123456789abcdef") != 12 ||
		    strcmp(entry->d_name + 12, SUFFIX))
			continue;
		fd = openat(dir->fd, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
		    !owner_lives(fd))
			unlinkat(dir->fd, entry->d_name, 0);
		close(fd);
	}
	closedir(stream);
}

/* Where the file will lie. Returns 0 or -errno with a reason. */
static int choose_path(struct nm_stats *stats, struct nm_reason *ret_why)
{
	const struct nm_params *params = nm_params();
	const uint8_t *id = stats->head.id;
	struct nm_rundir dir;
	char name[13];
	int err;

	snprintf(name, sizeof(name), "%02x%02x%02x%02x%02x%02x", id[0], id[1], id[2], id[3], id[4],
		 id[5]);
	if (params->stats_dir[0]) {
		stats->stays = true;
		snprintf(stats->path, sizeof(stats->path), "%s/%s.%u.%s" SUFFIX, params->stats_dir,
			 stats->head.host, stats->head.pid, name);
		return 0;
	}
	err = nm_rundir_open(params->rundir, &dir, ret_why);
	if (err)
		return err;
	snprintf(stats->path, sizeof(stats->path), "%s/%s" SUFFIX, dir.path, name);
	reap(&dir);
	nm_rundir_close(&dir);
	return 0;
}

/* Made under a hidden name, locked, then shown. Returns 0 or -errno. */
static int make_file(struct nm_stats *stats)
{
	char hidden[PATH_ROOM + 8];
	int err;

	snprintf(hidden, sizeof(hidden), "%s.XXXXXX", stats->path);
	stats->fd = mkostemp(hidden, O_CLOEXEC); /* mode 0600 */
	if (stats->fd < 0)
		return -errno;
	if (lock_file(stats->fd) == 0 && rename(hidden, stats->path) == 0)
		return 0;
	err = -errno;
	close(stats->fd);
	unlink(hidden);
	return err;
}

struct nm_stats *nm_stats_open(const struct nm_identity *who, enum nm_stats_face face)
{
	const struct nm_params *params = nm_params();
	struct nm_reason why = {""};
	struct nm_stats *stats;
	int err;

	if (!params)
		return NULL;
	stats = calloc(1, sizeof(*stats));
	if (!stats)
		return NULL;
	fill_head(&stats->head, who, face);
	err = choose_path(stats, &why);
	if (!err) {
		err = make_file(stats);
		nm_reason_set(&why, "%.150s: %s", stats->path, strerror(-err));
	}
	if (!err)
		return stats;
	/* A requested file is missed; without a request perhaps no reader looks for it. */
	nm_log(params->stats_dir[0] ? NM_LOG_WARN : NM_LOG_INFO, "no statistics file: %s",
	       why.text);
	free(stats);
	return NULL;
}

void nm_stats_close(struct nm_stats *stats, nm_stats_collect *collect, void *arg)
{
	if (!stats)
		return;
	stats->head.state = NM_STATS_CLOSED;
	nm_stats_publish(stats, collect, arg);
	if (!stats->stays && !is_foreign(stats))
		unlink(stats->path);
	close(stats->fd);
	free(stats->bytes);
	free(stats);
}
