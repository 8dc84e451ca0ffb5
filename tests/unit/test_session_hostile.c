/* SPDX-License-Identifier: Apache-2.0 */
/* Visitors and owners that break the rules of session, or die in the middle of it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "connect/rundir.h"
#include "session_fixture.h"

/* Two places; the visitor's only lends its identity and window to a raw socket. */
static struct place owner, visitor;

static void start(uint32_t connect_ms)
{
	owner = place_create(connect_ms);
	visitor = place_create(5000);
	/* Its thread does not speak here: its sockets are all that is seen of its end. */
	atomic_store(&visitor.window->header->life, 0);
}

static void finish(void)
{
	place_expect_nothing(&owner);
	place_expect_sound(&owner);
	place_destroy(&owner);
	place_destroy(&visitor);
}

/* Send a hello, perhaps spoilt, with a window, and expect to be turned away. */
static void expect_refused(const struct nm_greeting *hello, size_t len, int window_fd,
			   const char *words)
{
	int fd = raw_connect(&owner);

	NM_CHECK_EQ(nm_message_send(fd, hello, len, window_fd), 0);
	raw_expect_bye(fd, words);
}

NM_TEST(spoilt_hellos_are_refused_in_words)
{
	struct nm_greeting hello, sound;

	start(5000);
	sound = raw_hello(&visitor, &owner, 0);
	hello = sound;
	expect_refused(&hello, sizeof(hello) - 1, visitor.window->fd, "not a nearmetal message");
	expect_refused(&hello, 3, visitor.window->fd, "not a nearmetal message");
	hello.header.magic++;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "not a nearmetal message");
	hello = sound;
	hello.header.version++;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "layout version 5, not 4");
	hello = sound;
	hello.header.kind = NM_MESSAGE_WELCOME;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "message 2 where 1 was due");
	hello = sound;
	hello.header.kind = 77;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "not a nearmetal message");
	hello = sound;
	hello.features = 2;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "features 0x2");
	hello.features = NM_FEATURE_CHECKSUM;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "NEARMETAL_CHECKSUM");
	hello = sound;
	hello.to.place[0] ^= 1;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "another endpoint");
	hello = sound;
	hello.lane = PLACE_LANES;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "lane 4 of 4");
	hello = sound;
	hello.who = owner.who;
	expect_refused(&hello, sizeof(hello), owner.window->fd,
		       "has the identity of this endpoint");
	hello = sound;
	hello.who.place[0] ^= 1;
	expect_refused(&hello, sizeof(hello), visitor.window->fd, "belongs to another");
	finish();
}

NM_TEST(what_is_no_window_is_refused_in_words)
{
	struct nm_greeting hello;
	int fds[2], fd;

	start(5000);
	hello = raw_hello(&visitor, &owner, 0);
	expect_refused(&hello, sizeof(hello), -1, "no window came");
	expect_refused(&hello, sizeof(hello), owner.window->fd, "belongs to another");
	NM_CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
	expect_refused(&hello, sizeof(hello), fds[0], "not a memfd");
	close(fds[0]);
	close(fds[1]);
	fd = memfd_create("unsealed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	NM_CHECK_EQ(ftruncate(fd, 1 << 20), 0);
	expect_refused(&hello, sizeof(hello), fd, "not sealed");
	close(fd);
	finish();
}

NM_TEST(several_descriptors_are_closed_and_refused)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct nm_greeting hello;
	struct iovec iov = {&hello, sizeof(hello)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.bytes,
			     .msg_controllen = sizeof(control.bytes)};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	int fd, fds[2];

	start(5000);
	hello = raw_hello(&visitor, &owner, 0);
	fds[0] = visitor.window->fd;
	fds[1] = owner.window->fd;
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(cmsg), fds, sizeof(fds));
	fd = raw_connect(&owner);
	NM_CHECK(sendmsg(fd, &msg, 0) > 0);
	raw_expect_bye(fd, "cannot receive");
	finish();
}

/* Speak as a sound visitor up to the welcome, which is returned. */
static int reach_welcome(struct nm_greeting *ret_welcome)
{
	struct nm_greeting hello = raw_hello(&visitor, &owner, 1);
	uint8_t bytes[NM_MESSAGE_MAX];
	char words[180] = "";
	int fd = raw_connect(&owner), window_fd;

	NM_CHECK_EQ(nm_message_send(fd, &hello, sizeof(hello), visitor.window->fd), 0);
	if (raw_receive(fd, bytes, &window_fd, words) != NM_MESSAGE_WELCOME)
		nm_test_fail(__FILE__, __LINE__, "no welcome: %s", words);
	NM_CHECK_EQ(nm_greeting_parse(bytes, sizeof(*ret_welcome), NM_MESSAGE_WELCOME, ret_welcome,
				      NULL),
		    0);
	NM_CHECK(window_fd >= 0);
	close(window_fd);
	/* The owner has written my challenge where it said. */
	NM_CHECK_EQ(atomic_load(&owner.window->lanes[ret_welcome->lane].reader_proof), 0x1234);
	return fd;
}

NM_TEST(window_that_only_one_side_maps_is_refused)
{
	struct nm_greeting welcome;
	int fd;

	start(5000);
	fd = reach_welcome(&welcome);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_MET, false, "no"), 0);
	raw_expect_bye(fd, "only one side maps it");
	/* The right challenge in the wrong lane does not help either. */
	fd = reach_welcome(&welcome);
	raw_prove(&visitor, &owner, 0, welcome.challenge, NM_LANE_SHOWN);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_MET, false, "no"), 0);
	raw_expect_bye(fd, "only one side maps it");
	finish();
}

/* Give the visitor a sealed window whose pool its owner never touched. */
static void forge_window(struct nm_window *ret_window)
{
	const struct nm_geometry *g = &visitor.window->geometry;
	struct nm_window window = {.geometry = *g};
	struct nm_rundir dir;
	struct stat st;
	char *base;

	window.fd = memfd_create("forged", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	NM_CHECK(window.fd >= 0);
	NM_CHECK_EQ(ftruncate(window.fd, (off_t)g->size), 0);
	base = mmap(NULL, g->size, PROT_READ | PROT_WRITE, MAP_SHARED, window.fd, 0);
	NM_CHECK(base != MAP_FAILED);
	memcpy(base, visitor.window->header, g->rings_off);
	window.header = (void *)base;
	window.lanes = (void *)(base + g->lanes_off);
	window.rings = (void *)(base + g->rings_off);
	NM_CHECK_EQ(fcntl(window.fd, F_ADD_SEALS,
			  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE),
		    0);
	NM_CHECK_EQ(fstat(window.fd, &st), 0);
	NM_CHECK_EQ(nm_rundir_open(nm_test_dir(), &dir, NULL), 0);
	nm_identity_set_file(&visitor.who, st.st_ino, nm_rundir_number(&dir));
	nm_rundir_close(&dir);
	*ret_window = window;
}

/* Only a proven caller's pool is looked at, and before anything is read there. */
NM_TEST(pool_with_holes_is_refused_after_the_proof)
{
	struct nm_window forged, *own;
	struct nm_greeting welcome;
	struct nm_identity who;
	int fd;

	start(5000);
	own = visitor.window;
	who = visitor.who;
	forge_window(&forged);
	visitor.window = &forged;
	fd = reach_welcome(&welcome);
	raw_prove(&visitor, &owner, 1, welcome.challenge, NM_LANE_SHOWN);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_MET, false, "no"), 0);
	raw_expect_bye(fd, "holes in its pool");
	munmap(forged.header, forged.geometry.size);
	close(forged.fd);
	visitor.window = own;
	visitor.who = who;
	finish();
}

/* Speak up to the acknowledgement. */
static int reach_ack(void)
{
	struct nm_greeting welcome;
	uint8_t bytes[NM_MESSAGE_MAX];
	char words[180];
	int fd = reach_welcome(&welcome), passed;

	raw_prove(&visitor, &owner, 1, welcome.challenge, NM_LANE_SHOWN);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_MET, false, "no"), 0);
	NM_CHECK_EQ(raw_receive(fd, bytes, &passed, words), NM_MESSAGE_ACK);
	raw_prove(&visitor, &owner, 1, welcome.challenge, NM_LANE_AGREED);
	return fd;
}

/* This process could not reach the visitor, so the visitor has no proof and copies nothing. */
NM_TEST(copies_of_a_visitor_without_a_proof_are_not_awaited)
{
	struct nm_session *session;
	uint64_t begin;
	int fd;

	start(5000);
	fd = reach_ack();
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_GO, false, "no"), 0);
	session = place_expect(&owner, NM_SESSION_SOURCE);
	visitor.window->lanes[1].reaching = 1;
	begin = nm_clock_ns();
	nm_sessions_await_copies(owner.sessions, 20000);
	NM_CHECK(nm_clock_ns() - begin < 10000 * NM_NS_PER_MS);
	close(fd);
	place_expect(&owner, NM_SESSION_LOST);
	nm_sessions_leave(owner.sessions, session, 0, NULL);
	finish();
}

NM_TEST(messages_out_of_turn_are_refused)
{
	struct nm_greeting welcome;
	struct nm_session *in;
	int fd;

	start(5000);
	fd = raw_connect(&owner);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_GO, false, "no"), 0);
	raw_expect_bye(fd, "where 1 was due");
	fd = reach_welcome(&welcome);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_GO, false, "no"), 0);
	raw_expect_bye(fd, "out of turn");
	fd = reach_ack();
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_MET, false, "no"), 0);
	raw_expect_bye(fd, "out of turn");
	/* On a standing connection it ends the connection. */
	fd = reach_ack();
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_GO, false, "no"), 0);
	in = place_expect(&owner, NM_SESSION_SOURCE);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_GO, false, "no"), 0);
	NM_CHECK(place_expect(&owner, NM_SESSION_LOST) == in);
	NM_CHECK_EQ(in->err, -EBADMSG);
	nm_sessions_leave(owner.sessions, in, 0, NULL);
	close(fd);
	finish();
}

NM_TEST(visitors_that_vanish_leave_nothing)
{
	struct nm_greeting welcome, hello;
	int i, fd;

	start(5000);
	hello = raw_hello(&visitor, &owner, 0);
	/* More often than there are lanes: each comes back. */
	for (i = 0; i < 3 * PLACE_LANES; i++) {
		close(raw_connect(&owner));
		fd = raw_connect(&owner);
		NM_CHECK_EQ(nm_message_send(fd, &hello, sizeof(hello), visitor.window->fd), 0);
		close(fd);
		nm_test_sleep_ms(2); /* else it would be the second visit at once */
		close(reach_welcome(&welcome));
		nm_test_sleep_ms(2);
		close(reach_ack());
		nm_test_sleep_ms(2);
	}
	finish();
}

NM_TEST(visitors_that_say_nothing_are_sent_away)
{
	struct nm_greeting welcome;
	int silent, half;

	start(1000);
	silent = raw_connect(&owner);
	half = reach_welcome(&welcome);
	raw_expect_bye(silent, "sent no message");
	raw_expect_bye(half, "sent no message");
	finish();
}

NM_TEST(refusing_after_the_welcome_leaves_nothing)
{
	struct nm_greeting welcome;
	int fd;

	start(5000);
	fd = reach_welcome(&welcome);
	nm_message_send_step(fd, NM_MESSAGE_BYE, -EMFILE, "I cannot map you");
	close(fd);
	nm_test_sleep_ms(5);
	fd = reach_ack();
	nm_message_send_step(fd, NM_MESSAGE_BYE, -EMFILE, "I changed my mind");
	close(fd);
	finish();
}

/* From here on the owner is the one that misbehaves: a listener under a name of its own. */
struct impostor {
	struct place *visitor;
	struct place *helper; /* whose window it may show */
	struct nm_identity who;
	int listener;
	const char *behaviour;
};

static void misbehave(void *arg)
{
	struct impostor *impostor = arg;
	struct nm_greeting welcome = {.who = impostor->who, .challenge = 5};
	uint8_t bytes[NM_MESSAGE_MAX];
	char words[180];
	int fd = raw_accept(impostor->listener), window_fd;

	if (!strcmp(impostor->behaviour, "hangs up"))
		return;
	NM_CHECK_EQ(raw_receive(fd, bytes, &window_fd, words), NM_MESSAGE_HELLO);
	nm_message_init(&welcome.header, NM_MESSAGE_WELCOME);
	if (!strcmp(impostor->behaviour, "is silent"))
		pause();
	else if (!strcmp(impostor->behaviour, "talks nonsense"))
		send(fd, "nonsense", 8, 0);
	else if (!strcmp(impostor->behaviour, "refuses"))
		nm_message_send_step(fd, NM_MESSAGE_BYE, -EPERM, "not\ntoday\x01");
	else if (!strcmp(impostor->behaviour, "is newer")) {
		welcome.header.version++;
		nm_message_send(fd, &welcome, sizeof(welcome), impostor->helper->window->fd);
	} else if (!strcmp(impostor->behaviour, "is somebody else")) {
		welcome.who = impostor->helper->who;
		nm_message_send(fd, &welcome, sizeof(welcome), impostor->helper->window->fd);
	} else if (!strcmp(impostor->behaviour, "shows no window"))
		nm_message_send(fd, &welcome, sizeof(welcome), -1);
	else if (!strcmp(impostor->behaviour, "shows another's window"))
		nm_message_send(fd, &welcome, sizeof(welcome), impostor->helper->window->fd);
	else if (!strcmp(impostor->behaviour, "hands my own window back"))
		nm_message_send(fd, &welcome, sizeof(welcome), window_fd);
	raw_receive(fd, bytes, &window_fd, words);
}

static void expect_impostor_found(const char *behaviour, const char *words)
{
	bool is_silent = !strcmp(behaviour, "is silent");
	struct place a = place_create(is_silent ? 300 : 5000), helper = place_create(5000);
	struct impostor impostor = {.visitor = &a, .helper = &helper, .behaviour = behaviour};
	unsigned int fds, mappings = nm_test_count_mappings();
	struct nm_session *session;
	struct nm_reason why;
	pid_t pid;

	NM_CHECK_EQ(nm_identity_create(&impostor.who), 0);
	impostor.listener = raw_listen(&impostor.who);
	pid = nm_test_fork(misbehave, &impostor);
	fds = nm_test_count_fds();
	NM_CHECK_EQ(place_call(a.sessions, &impostor.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, words);
	NM_CHECK_EQ(nm_test_count_fds(), fds);
	NM_CHECK_EQ(nm_test_count_mappings(), mappings);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(impostor.listener);
	place_expect_sound(&a);
	place_destroy(&a);
	place_destroy(&helper);
}

NM_TEST(impostors_are_found_out)
{
	expect_impostor_found("hangs up", "hung up during the handshake");
	expect_impostor_found("is silent", "no answer within 300 ms");
	expect_impostor_found("talks nonsense", "not a nearmetal message");
	expect_impostor_found("refuses", "it refused: not?today?");
	expect_impostor_found("is newer", "layout version 5");
	expect_impostor_found("is somebody else", "another endpoint answers");
	expect_impostor_found("shows no window", "no window came");
	expect_impostor_found("shows another's window", "belongs to another");
	expect_impostor_found("hands my own window back", "belongs to another");
}

/* The owner's own window, but the challenge is not answered in it. */
NM_TEST(owner_that_does_not_write_is_found_out)
{
	/* B would restore its name at its next beat. */
	struct place a = place_create(300), b = {.lease_ms = 3000};
	struct impostor impostor = {
		.visitor = &a, .helper = &b, .behaviour = "shows another's window"};
	struct nm_session *session;
	char name[NM_SOCKET_NAME_LEN], path[512];
	struct nm_reason why;
	pid_t pid;

	NM_CHECK_EQ(place_try(&b, nm_test_dir(), 5000, &why), 0);
	impostor.who = b.who;
	nm_socket_name(b.who.id, name);
	snprintf(path, sizeof(path), "%s/%s", nm_test_dir(), name);
	NM_CHECK_EQ(unlink(path), 0);
	impostor.listener = raw_listen(&b.who);
	pid = nm_test_fork(misbehave, &impostor);
	NM_CHECK_EQ(place_call(a.sessions, &b.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "the challenge does not appear");
	nm_test_join(pid, 0);
	close(impostor.listener);
	NM_CHECK_EQ(unlink(path), 0);
	place_destroy(&a);
	place_destroy(&b);
}
