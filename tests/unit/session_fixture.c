/* SPDX-License-Identifier: Apache-2.0 */
#include "session_fixture.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connect/rundir.h"

int place_try(struct place *place, const char *dir, uint32_t connect_ms, struct nm_reason *ret_why)
{
	struct nm_sessions_config config = {.dir = dir,
					    .connect_ms = connect_ms,
					    .lease_ms = place->lease_ms ? place->lease_ms : 20,
					    .cma = !place->no_cma};
	struct nm_geometry geometry;
	int err;

	NM_CHECK_EQ(nm_geometry_init(PLACE_LANES, 16, 4096, 65536, &geometry), 0);
	if (nm_identity_equal(&place->who, &(struct nm_identity){0}))
		NM_CHECK_EQ(nm_identity_create(&place->who), 0);
	/* On the heap, so that a place may be moved. */
	place->window = malloc(sizeof(*place->window));
	NM_CHECK(place->window != NULL);
	NM_CHECK_EQ(nm_window_create(&geometry, place->who.id, place->window, ret_why), 0);
	config.who = place->who;
	config.window = place->window;
	err = nm_sessions_create(&config, &place->sessions, ret_why);
	if (err) {
		nm_window_destroy(place->window);
		free(place->window);
	} else {
		place->who = *nm_sessions_who(place->sessions);
		/* Its thread runs, as the tests take for granted that change what it wrote. */
		while (!atomic_load(&place->window->header->life))
			nm_test_sleep_ms(1);
	}
	return err;
}

struct place place_create(uint32_t connect_ms)
{
	struct nm_reason why = {""};
	struct place place = {0};
	int err = place_try(&place, nm_test_dir(), connect_ms, &why);

	if (err)
		nm_test_fail(__FILE__, __LINE__, "place: %d: %s", err, why.text);
	return place;
}

struct place place_with_lease(uint32_t lease_ms)
{
	struct place place = {.lease_ms = lease_ms};
	struct nm_reason why;

	NM_CHECK_EQ(place_try(&place, nm_test_dir(), 5000, &why), 0);
	return place;
}

void place_destroy(struct place *place)
{
	nm_sessions_destroy(place->sessions);
	nm_window_destroy(place->window);
	free(place->window);
}

struct nm_session *place_expect(struct place *place, enum nm_session_event kind)
{
	enum nm_session_event got;
	struct nm_session *session;

	while (!(session = nm_sessions_next_event(place->sessions, &got)))
		nm_test_sleep_ms(1);
	NM_CHECK_EQ(got, kind);
	return session;
}

void place_expect_nothing(struct place *place)
{
	enum nm_session_event kind;

	nm_test_sleep_ms(30);
	NM_CHECK(nm_sessions_next_event(place->sessions, &kind) == NULL);
}

int place_call(struct nm_sessions *sessions, const struct nm_identity *who,
	       struct nm_session **ret_session, struct nm_reason *ret_reason)
{
	int err;

	while ((err = nm_sessions_connect(sessions, who, ret_session, ret_reason)) == -EAGAIN)
		nm_test_sleep_ms(1);
	return err;
}

struct nm_session *place_visit(struct place *place, const struct place *owner)
{
	struct nm_session *session;
	struct nm_reason why = {""};
	int err = place_call(place->sessions, &owner->who, &session, &why);

	if (err)
		nm_test_fail(__FILE__, __LINE__, "visit: %d: %s", err, why.text);
	return session;
}

void place_expect_sound(struct place *place)
{
	struct place visitor = place_create(5000);
	struct nm_session *out = place_visit(&visitor, place), *in;

	in = place_expect(place, NM_SESSION_SOURCE);
	NM_CHECK(nm_identity_equal(&in->who, &visitor.who));
	nm_sessions_leave(visitor.sessions, out, 0, NULL);
	NM_CHECK(place_expect(place, NM_SESSION_LOST) == in);
	nm_sessions_leave(place->sessions, in, 0, NULL);
	place_destroy(&visitor);
}

int raw_connect(const struct place *place)
{
	struct nm_rundir dir;
	struct sockaddr_un address;
	char name[NM_SOCKET_NAME_LEN];
	socklen_t len;
	int fd;

	NM_CHECK_EQ(nm_rundir_open(nm_test_dir(), &dir, NULL), 0);
	nm_socket_name(place->who.id, name);
	len = nm_rundir_address(&dir, name, &address);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(connect(fd, (struct sockaddr *)&address, len), 0);
	nm_rundir_close(&dir);
	return fd;
}

int raw_listen(const struct nm_identity *who)
{
	struct nm_rundir dir;
	char name[NM_SOCKET_NAME_LEN];
	int fd;

	NM_CHECK_EQ(nm_rundir_open(nm_test_dir(), &dir, NULL), 0);
	nm_socket_name(who->id, name);
	fd = nm_rundir_listen(&dir, name, false, NULL);
	NM_CHECK(fd >= 0);
	nm_rundir_close(&dir);
	return fd;
}

void socket_path(const struct nm_identity *who, const char *suffix, char ret_path[512])
{
	char name[NM_SOCKET_NAME_LEN];

	nm_socket_name(who->id, name);
	snprintf(ret_path, 512, "%s/%s%s", nm_test_dir(), name, suffix);
}

int replace_socket(const struct nm_identity *who)
{
	char name[512], aside[512];

	socket_path(who, "", name);
	socket_path(who, "-aside", aside);
	NM_CHECK_EQ(rename(name, aside), 0);
	return raw_listen(who);
}

void put_socket_back(const struct nm_identity *who, int listener)
{
	char name[512], aside[512];

	socket_path(who, "", name);
	socket_path(who, "-aside", aside);
	close(listener);
	NM_CHECK_EQ(rename(aside, name), 0);
}

int raw_accept(int listener)
{
	struct pollfd poller = {.fd = listener, .events = POLLIN};
	int fd;

	NM_CHECK_EQ(poll(&poller, 1, -1), 1);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	NM_CHECK(fd >= 0);
	return fd;
}

struct nm_greeting raw_hello(const struct place *visitor, const struct place *owner, uint32_t lane)
{
	struct nm_greeting hello = {
		.who = visitor->who, .to = owner->who, .lane = lane, .challenge = 0x1234};

	NM_CHECK_EQ(nm_window_reserve_ring(visitor->window, lane, NULL), 0);
	nm_message_init(&hello.header, NM_MESSAGE_HELLO);
	snprintf(hello.label.text, sizeof(hello.label.text), "raw visitor");
	return hello;
}

int raw_receive(int fd, uint8_t bytes[NM_MESSAGE_MAX], int *ret_fd, char words[180])
{
	struct pollfd poller = {.fd = fd, .events = POLLIN};
	struct nm_step bye;
	int len, kind;

	do {
		NM_CHECK_EQ(poll(&poller, 1, -1), 1);
		len = nm_message_receive(fd, bytes, ret_fd);
	} while (len == -EAGAIN);
	if (len == 0)
		return 0;
	NM_CHECK(len > 0);
	kind = nm_message_parse(bytes, (size_t)len, NULL);
	if (kind == NM_MESSAGE_BYE) {
		nm_step_copy(bytes, &bye);
		memcpy(words, bye.words, sizeof(bye.words));
	}
	return kind;
}

void raw_expect_bye(int fd, const char *part)
{
	uint8_t bytes[NM_MESSAGE_MAX];
	char words[180] = "";
	int passed;

	NM_CHECK_EQ(raw_receive(fd, bytes, &passed, words), NM_MESSAGE_BYE);
	NM_CHECK_HAS(words, part);
	NM_CHECK_EQ(raw_receive(fd, bytes, &passed, words), 0);
	close(fd);
}

void raw_prove(const struct place *visitor, const struct place *owner, uint32_t lane,
	       uint64_t challenge, unsigned int step)
{
	struct nm_lane *own = &visitor->window->lanes[lane];

	memcpy(own->writer_for, &owner->who, NM_LANE_WHO);
	atomic_store(&own->writer_proof, challenge);
	atomic_store(&own->writer_step, (uint16_t)step);
}
