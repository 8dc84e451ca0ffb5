/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name of an endpoint in the rundir, which any process of the user can replace. Its owner takes
 * it back, and no sound caller is lost.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "session_fixture.h"

/* The service thread of the one whose name was taken takes it back. */
NM_TEST(replaced_and_removed_names_are_restored)
{
	struct place a = place_create(5000), b = place_with_lease(SHORT_LEASE_MS);
	int thief = replace_socket(&b.who);
	char path[512], aside[512];
	struct nm_session *out;
	struct stat before, st;

	socket_path(&b.who, "", path);
	socket_path(&b.who, "-aside", aside);
	NM_CHECK_EQ(stat(path, &before), 0);
	do {
		nm_test_sleep_ms(1);
		NM_CHECK_EQ(stat(path, &st), 0);
	} while (st.st_ino == before.st_ino);
	out = place_visit(&a, &b);
	place_expect(&b, NM_SESSION_SOURCE);
	nm_sessions_leave(a.sessions, out, 0, NULL);
	NM_CHECK_EQ(unlink(path), 0);
	while (access(path, F_OK))
		nm_test_sleep_ms(1);
	close(thief);
	place_destroy(&a);
	place_destroy(&b);
	NM_CHECK(access(path, F_OK) < 0);
	NM_CHECK_EQ(unlink(aside), 0);
}

/* Callers that wait in the queue of the socket that was replaced are answered all the same. */
NM_TEST(callers_of_a_replaced_name_are_answered)
{
	struct place b = place_create(5000);
	unsigned int nr_answered = 0;
	char path[512], aside[512];

	socket_path(&b.who, "", path);
	socket_path(&b.who, "-aside", aside);
	for (int turn = 0; turn < 10; turn++) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		bool is_restored = false;

		NM_CHECK_EQ(rename(path, aside), 0);
		NM_CHECK(snprintf(address.sun_path, sizeof(address.sun_path), "%s", aside) <
			 (int)sizeof(address.sun_path));
		while (!is_restored) {
			int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
			char answer[512];

			NM_CHECK(line >= 0);
			is_restored =
				connect(line, (struct sockaddr *)&address, sizeof(address)) < 0;
			if (!is_restored) {
				NM_CHECK_EQ(send(line, "?", 1, MSG_NOSIGNAL), 1);
				NM_CHECK(recv(line, answer, sizeof(answer), 0) > 0);
				nr_answered++;
			}
			close(line);
		}
		NM_CHECK_EQ(access(path, F_OK), 0);
	}
	NM_CHECK(nr_answered > 10);
	place_destroy(&b);
	NM_CHECK_EQ(unlink(aside), 0);
}

/* The queue of the peer is full, and the caller looks again only after its time. */
NM_TEST(a_caller_that_was_away_reaches_its_peer)
{
	struct place a = place_create(2000), b = place_with_lease(LONG_LEASE_MS);
	int listener = replace_socket(&b.who), fillers[8];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct nm_session *session;
	struct nm_reason why;
	char path[512];
	int nr = 0, err;

	socket_path(&b.who, "", path);
	NM_CHECK(snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) <
		 (int)sizeof(address.sun_path));
	NM_CHECK_EQ(listen(listener, 0), 0);
	do {
		fillers[nr] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		NM_CHECK(fillers[nr] >= 0);
		err = connect(fillers[nr++], (struct sockaddr *)&address, sizeof(address));
	} while (!err);
	NM_CHECK_EQ(errno, EAGAIN);
	NM_CHECK_EQ(nm_sessions_connect(a.sessions, &b.who, &session, &why), -EAGAIN);
	nm_test_sleep_ms(2050);
	while (nr > 0)
		close(fillers[--nr]);
	put_socket_back(&b.who, listener);
	NM_CHECK_EQ(place_call(a.sessions, &b.who, &session, &why), 0);
	place_expect(&b, NM_SESSION_SOURCE);
	place_destroy(&a);
	place_destroy(&b);
}

/* A socket does not replace a directory as it replaces other files. */
NM_TEST(a_directory_in_the_place_of_a_socket_is_removed)
{
	struct place a = place_create(5000), b = place_create(5000);
	char path[512];
	struct stat st;

	socket_path(&b.who, "", path);
	NM_CHECK_EQ(unlink(path), 0);
	while (mkdir(path, 0700))
		NM_CHECK_EQ(unlink(path), 0); /* it was restored in between */
	do {
		nm_test_sleep_ms(1);
		NM_CHECK_EQ(stat(path, &st), 0);
	} while (!S_ISSOCK(st.st_mode));
	place_visit(&a, &b);
	place_destroy(&a);
	place_destroy(&b);
	NM_CHECK_EQ(rmdir(nm_test_dir()), 0);
	NM_CHECK_EQ(mkdir(nm_test_dir(), 0700), 0);
}
