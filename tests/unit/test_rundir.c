/* SPDX-License-Identifier: Apache-2.0 */
/* The directory where neighbours meet: whose it is, long names, what the dead leave behind. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "connect/rundir.h"
#include "session_fixture.h"

static char path[512];

static const char *in_dir(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", nm_test_dir(), name);
	return path;
}

static void expect_no_place(const char *dir, int err, const char *words)
{
	struct place place = {0};
	struct nm_reason why = {""};

	NM_CHECK_EQ(place_try(&place, dir, 100, &why), err);
	NM_CHECK_HAS(why.text, words);
	NM_CHECK_HAS(why.text, "rundir");
}

NM_TEST(missing_directory_is_made_for_its_owner_alone)
{
	struct place place = {0};
	struct nm_reason why = {""};
	struct stat st;

	NM_CHECK_EQ(place_try(&place, in_dir("new"), 100, &why), 0);
	NM_CHECK_EQ(stat(path, &st), 0);
	NM_CHECK_EQ(st.st_mode & 07777, 0700);
	place_destroy(&place);
	NM_CHECK_EQ(rmdir(path), 0); /* no socket is left */
}

NM_TEST(directories_that_others_can_write_are_refused)
{
	NM_CHECK_EQ(mkdir(in_dir("open"), 0700), 0);
	NM_CHECK_EQ(chmod(path, 0770), 0);
	expect_no_place(path, -EPERM, "chmod 700");
	NM_CHECK_EQ(chmod(path, 0702), 0);
	expect_no_place(path, -EPERM, "chmod 700");
}

NM_TEST(directory_of_somebody_else_is_refused)
{
	if (geteuid() != 0)
		nm_test_skip("only root can make a directory that is somebody else's");
	NM_CHECK_EQ(mkdir(in_dir("theirs"), 0700), 0);
	NM_CHECK_EQ(chown(path, 12345, 12345), 0);
	expect_no_place(path, -EPERM, "belongs to user 12345");
}

NM_TEST(what_is_no_directory_is_refused)
{
	char target[512];
	int fd = open(in_dir("file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	close(fd);
	expect_no_place(path, -ENOTDIR, "cannot open");
	snprintf(target, sizeof(target), "%s/real", nm_test_dir());
	NM_CHECK_EQ(mkdir(target, 0700), 0);
	NM_CHECK_EQ(symlink(target, in_dir("link")), 0);
	expect_no_place(path, -ENOTDIR, "cannot open");
	expect_no_place(in_dir("no/parent"), -ENOENT, "cannot create it");
}

NM_TEST(paths_longer_than_a_socket_address_work)
{
	char name[160];
	struct place a = {0}, b = {0};
	struct nm_session *session;
	struct nm_reason why = {""};

	memset(name, 'd', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	NM_CHECK_EQ(place_try(&a, in_dir(name), 5000, &why), 0);
	NM_CHECK_EQ(place_try(&b, in_dir(name), 5000, &why), 0);
	if (place_call(a.sessions, &b.who, &session, &why))
		nm_test_fail(__FILE__, __LINE__, "visit: %s", why.text);
	place_destroy(&a);
	place_destroy(&b);
	NM_CHECK_EQ(rmdir(path), 0);
}

NM_TEST(name_that_is_taken_is_not_taken_over)
{
	struct place first = place_create(5000), twin = {.who = first.who};
	struct nm_reason why = {""};

	NM_CHECK_EQ(place_try(&twin, nm_test_dir(), 100, &why), -EADDRINUSE);
	NM_CHECK_HAS(why.text, "in use");
	place_expect_sound(&first);
	place_destroy(&first);
}

/* Leave a socket behind as a killed process does, last touched AGE_S seconds ago. */
static void leave_socket(const char *name, time_t age_s)
{
	struct timespec times[2] = {{.tv_sec = time(NULL) - age_s}, {0}};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	times[1] = times[0];
	NM_CHECK(strlen(in_dir(name)) < sizeof(address.sun_path));
	memcpy(address.sun_path, path, strlen(path));
	NM_CHECK_EQ(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	NM_CHECK_EQ(listen(fd, 1), 0);
	close(fd);
	NM_CHECK_EQ(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

NM_TEST(sockets_of_the_dead_are_removed)
{
	struct place living = place_create(5000), newcomer;
	const struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	char name[NM_SOCKET_NAME_LEN];

	leave_socket("0123456789ab", 3600);
	leave_socket(".0123456789ab.00000001", 3600);
	leave_socket("ba9876543210", 0);
	close(open(in_dir("notes"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	nm_socket_name(living.who.id, name);
	NM_CHECK_EQ(utimensat(AT_FDCWD, in_dir(name), old, AT_SYMLINK_NOFOLLOW), 0);
	newcomer = place_create(5000);
	NM_CHECK(access(in_dir("0123456789ab"), F_OK) < 0);
	NM_CHECK(access(in_dir(".0123456789ab.00000001"), F_OK) < 0);
	NM_CHECK_EQ(access(in_dir("ba9876543210"), F_OK), 0); /* may be about to listen */
	NM_CHECK_EQ(access(in_dir("notes"), F_OK), 0);	      /* not ours */
	NM_CHECK_EQ(access(in_dir(name), F_OK), 0);	      /* alive */
	place_visit(&newcomer, &living);
	place_destroy(&newcomer);
	place_destroy(&living);
}

NM_TEST(visit_to_a_dead_one_says_so_and_clears_up)
{
	struct place a = place_create(5000);
	struct nm_identity dead = {{0xde, 0xad, 0, 0, 0, 1}, {1}};
	struct nm_session *session;
	struct nm_reason why;

	leave_socket("dead00000001", 0);
	NM_CHECK_EQ(place_call(a.sessions, &dead, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "dead process");
	NM_CHECK(access(in_dir("dead00000001"), F_OK) < 0);
	NM_CHECK_EQ(place_call(a.sessions, &dead, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "does not listen");
	place_destroy(&a);
}

/* The name of the default rundir in the case's directory, which another user has taken. */
static const char *take_default(void)
{
	static char taken[512];

	if (geteuid() != 0)
		nm_test_skip("only root can make a directory that is somebody else's");
	snprintf(taken, sizeof(taken), "%s/nearmetal-%u", nm_test_dir(), geteuid());
	NM_CHECK_EQ(mkdir(taken, 0700), 0);
	NM_CHECK_EQ(chown(taken, 12345, 12345), 0);
	return taken;
}

static void open_default(char ret_path[NM_RUNDIR_PATH_MAX])
{
	struct nm_reason why = {""};
	struct nm_rundir dir;

	if (nm_rundir_open_default(nm_test_dir(), &dir, &why))
		nm_test_fail(__FILE__, __LINE__, "open: %s", why.text);
	memcpy(ret_path, dir.path, sizeof(dir.path));
	nm_rundir_close(&dir);
}

static void expect_default(const char *expected)
{
	char found[NM_RUNDIR_PATH_MAX];

	open_default(found);
	NM_CHECK_STR(found, expected);
}

NM_TEST(taken_name_of_the_default_directory_keeps_no_user_apart)
{
	const char *taken = take_default();
	char spare[NM_RUNDIR_PATH_MAX], no_spare[512];
	struct stat st;

	/* Names like those of spare ones, of others or open to others, are none. */
	NM_CHECK_EQ(mkdir(in_dir("nearmetal-0.00000000"), 0700), 0);
	NM_CHECK_EQ(chown(path, 12345, 12345), 0);
	NM_CHECK_EQ(mkdir(in_dir("nearmetal-0.00000001"), 0700), 0);
	NM_CHECK_EQ(chmod(path, 0777), 0);
	NM_CHECK_EQ(symlink(nm_test_dir(), in_dir("nearmetal-0.00000002")), 0);
	NM_CHECK_EQ(mkdir(in_dir("nearmetal-0.0000000"), 0700), 0);
	open_default(spare);
	snprintf(no_spare, sizeof(no_spare), "%s.0000000", taken);
	NM_CHECK_HAS(spare, "/nearmetal-0.");
	NM_CHECK(strncmp(spare, no_spare, strlen(no_spare)) > 0);
	NM_CHECK_EQ(lstat(spare, &st), 0);
	NM_CHECK_EQ(st.st_mode & 07777, 0700);
	NM_CHECK_EQ(st.st_uid, geteuid());
	/* Another process finds it, also after the other user has given the name free. */
	expect_default(spare);
	NM_CHECK_EQ(rmdir(taken), 0);
	expect_default(spare);
}

NM_TEST(default_directory_is_used_if_it_is_free)
{
	char expected[512];

	snprintf(expected, sizeof(expected), "%s/nearmetal-%u", nm_test_dir(), geteuid());
	expect_default(expected);
	/* A spare one that appears now is not looked for. */
	NM_CHECK_EQ(mkdir(in_dir("nearmetal-0.00000000"), 0700), 0);
	expect_default(expected);
}

#define NR_RACERS 8

static void race(void *arg)
{
	char(*found)[NM_RUNDIR_PATH_MAX] = arg;

	open_default(found[nm_test_next()]);
}

NM_TEST(processes_that_start_at_once_find_one_spare_directory)
{
	size_t len = NR_RACERS * NM_RUNDIR_PATH_MAX;
	char(*found)[NM_RUNDIR_PATH_MAX] =
		mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[NR_RACERS];

	NM_CHECK(found != MAP_FAILED);
	take_default();
	for (int i = 0; i < NR_RACERS; i++)
		pids[i] = nm_test_fork(race, found);
	for (int i = 0; i < NR_RACERS; i++)
		nm_test_join(pids[i], 0);
	for (int i = 1; i < NR_RACERS; i++)
		NM_CHECK_STR(found[i], found[0]);
	munmap(found, len);
}

/* A file system that is full: sockets need an inode there, windows do not. */
NM_TEST(full_directory_is_said_in_words)
{
	const char *dir = in_dir("full");

	NM_CHECK_EQ(mkdir(dir, 0700), 0);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tmpfs", dir, "tmpfs", 0, "mode=0700,nr_inodes=1"))
		nm_test_skip("a private mount needs root");
	expect_no_place(dir, -ENOSPC, "No space left");
	NM_CHECK_EQ(umount(dir), 0);
}
