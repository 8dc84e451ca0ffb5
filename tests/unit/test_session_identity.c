/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An adversary inside the job. It has every address, a session with every endpoint and so every
 * window, and it can replace files in the rundir. It must not pass for another endpoint, keep it
 * out, or end its sessions. Each test is one attack.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "connect/rundir.h"
#include "session_fixture.h"

/* ---- in the place of an endpoint's socket ---- */

static int connect_aside(const struct nm_identity *who)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char path[512];

	socket_path(who, "-aside", path);
	NM_CHECK(strlen(path) < sizeof(address.sun_path));
	memcpy(address.sun_path, path, strlen(path) + 1);
	NM_CHECK_EQ(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* Passes the messages of a handshake on, in turns: HELLO, WELCOME, MET, ACK, GO. */
struct relay {
	struct nm_identity who; /* of the endpoint that is called */
	unsigned int nr_messages;
	int listener, caller, owner;
	pthread_t thread;
};

static void *pass_on(void *arg)
{
	struct relay *relay = arg;
	uint8_t bytes[NM_MESSAGE_MAX];
	int len, passed;

	relay->caller = raw_accept(relay->listener);
	relay->owner = connect_aside(&relay->who);
	for (unsigned int i = 0; i < relay->nr_messages; i++) {
		do {
			len = nm_message_receive(i % 2 ? relay->owner : relay->caller, bytes,
						 &passed);
		} while (len == -EAGAIN);
		NM_CHECK(len > 0);
		NM_CHECK_EQ(nm_message_send(i % 2 ? relay->caller : relay->owner, bytes,
					    (size_t)len, passed),
			    0);
		if (passed >= 0)
			close(passed);
	}
	/* The owner agrees, and the caller does not hear it. */
	if (relay->nr_messages == 3) {
		char words[180];

		NM_CHECK_EQ(raw_receive(relay->owner, bytes, &passed, words), NM_MESSAGE_ACK);
		close(relay->caller);
	}
	/* The place of the caller goes to another one, so the caller has to try again. */
	if (relay->nr_messages == 2) {
		char words[180];

		NM_CHECK_EQ(raw_receive(relay->caller, bytes, &passed, words), NM_MESSAGE_MET);
		put_socket_back(&relay->who, relay->listener);
		nm_message_send_step(relay->caller, NM_MESSAGE_BYE, -EBUSY, "later");
		close(relay->caller);
		close(relay->owner);
	}
	return NULL;
}

static struct relay *relay_start(const struct nm_identity *who, unsigned int nr_messages)
{
	static struct relay relay;

	relay = (struct relay){.who = *who, .nr_messages = nr_messages};
	relay.listener = replace_socket(who);
	NM_CHECK_EQ(pthread_create(&relay.thread, NULL, pass_on, &relay), 0);
	return &relay;
}

static void relay_join(struct relay *relay)
{
	NM_CHECK_EQ(pthread_join(relay->thread, NULL), 0);
}

/* Blame each side to the other, and hang up. */
static void relay_cut(struct relay *relay)
{
	nm_message_send_step(relay->caller, NM_MESSAGE_BYE, -EBADMSG, "forged");
	nm_message_send_step(relay->owner, NM_MESSAGE_BYE, 0, "forged");
	close(relay->caller);
	close(relay->owner);
}

static void expect_same_bytes(struct place *from, struct nm_session *out, struct nm_session *in)
{
	static uint64_t tag = 1000;

	nm_window_ring(from->window, out->out.own_lane)->head.tag = ++tag;
	NM_CHECK_EQ(nm_foreign_ring(&in->window, in->in.peer_lane)->head.tag, tag);
}

NM_TEST(who_owns_the_socket_cannot_end_the_session)
{
	struct place a = place_create(5000), x = place_with_lease(LONG_LEASE_MS);
	struct relay *relay = relay_start(&x.who, 5);
	struct nm_session *out = place_visit(&a, &x), *in = place_expect(&x, NM_SESSION_SOURCE);

	relay_join(relay);
	NM_CHECK_EQ(out->out.start, in->in.start);
	relay_cut(relay);
	place_expect_nothing(&a);
	place_expect_nothing(&x);
	expect_same_bytes(&a, out, in);
	/* The other direction of the same session needs no help of the adversary's. */
	put_socket_back(&x.who, relay->listener);
	NM_CHECK(place_visit(&x, &a) == in);
	NM_CHECK(place_expect(&a, NM_SESSION_SOURCE) == out);
	/* Without a socket the end is still seen: in the window. */
	place_destroy(&x);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == out);
	NM_CHECK_EQ(out->err, 0);
	NM_CHECK_HAS(out->why.text, "closed its endpoint");
	nm_sessions_leave(a.sessions, out, 0, NULL);
	place_destroy(&a);
}

NM_TEST(an_error_is_believed_from_its_author_only)
{
	struct place a = place_create(5000), x = place_with_lease(LONG_LEASE_MS);
	struct relay *relay = relay_start(&x.who, 5);
	struct nm_session *out = place_visit(&a, &x), *in = place_expect(&x, NM_SESSION_SOURCE);
	const struct nm_reason words = {"a test"};

	relay_join(relay);
	relay_cut(relay);
	place_expect_nothing(&a);
	nm_sessions_leave(x.sessions, in, -EBADMSG, &words);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == out);
	NM_CHECK_EQ(out->err, -EBADMSG);
	nm_sessions_leave(a.sessions, out, 0, NULL);
	put_socket_back(&x.who, relay->listener);
	place_destroy(&a);
	place_destroy(&x);
}

struct far_place {
	_Atomic bool is_open;
	struct place place;
};

static void be_a_place(void *arg)
{
	struct far_place *far = arg;
	struct nm_reason why;

	NM_CHECK_EQ(place_try(&far->place, nm_test_dir(), 5000, &why), 0);
	atomic_store(&far->is_open, true);
	for (;;)
		pause();
}

NM_TEST(death_is_noticed_without_a_socket)
{
	struct far_place *far =
		mmap(NULL, sizeof(*far), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct nm_session *out;
	struct relay *relay;
	struct place a;
	pid_t pid;

	far->place.lease_ms = LONG_LEASE_MS;
	pid = nm_test_fork(be_a_place, far);
	a = place_create(5000);
	while (!atomic_load(&far->is_open))
		nm_test_sleep_ms(1);
	relay = relay_start(&far->place.who, 5);
	out = place_visit(&a, &far->place);
	relay_join(relay);
	relay_cut(relay);
	place_expect_nothing(&a);
	kill(pid, SIGKILL);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == out);
	NM_CHECK_EQ(out->err, -ECONNRESET);
	NM_CHECK_HAS(out->why.text, "died");
	nm_test_join(pid, SIGKILL);
	close(relay->listener);
	place_destroy(&a);
	munmap(far, sizeof(*far));
}

/* It keeps both sockets open and says nothing. */
NM_TEST(swallowed_messages_are_no_delay_for_ever)
{
	struct place a = place_create(5000), x = place_with_lease(SHORT_LEASE_MS);
	struct relay *relay = relay_start(&x.who, 4);
	struct nm_session *out = place_visit(&a, &x), *in;

	relay_join(relay);
	in = place_expect(&x, NM_SESSION_SOURCE);
	expect_same_bytes(&a, out, in);
	nm_sessions_leave(a.sessions, out, 0, NULL);
	NM_CHECK(place_expect(&x, NM_SESSION_LOST) == in);
	nm_sessions_leave(x.sessions, in, 0, NULL);
	relay_cut(relay);
	close(relay->listener);
	place_destroy(&a);
	place_destroy(&x);
}

/* A caller that was stopped between its agreement and its GO: the window showed it meanwhile. */
NM_TEST(go_that_comes_late_does_not_cut_the_socket)
{
	struct place a = place_create(5000), x = place_with_lease(SHORT_LEASE_MS);
	struct relay *relay = relay_start(&x.who, 4);
	struct nm_session *in;
	uint8_t bytes[NM_MESSAGE_MAX];
	char words[180];
	int passed;

	place_visit(&a, &x);
	relay_join(relay);
	in = place_expect(&x, NM_SESSION_SOURCE);
	NM_CHECK_EQ(raw_receive(relay->caller, bytes, &passed, words), NM_MESSAGE_GO);
	NM_CHECK_EQ(nm_message_send(relay->owner, bytes, sizeof(struct nm_step), -1), 0);
	place_expect_nothing(&x);
	NM_CHECK_EQ(nm_message_receive(relay->owner, bytes, &passed), -EAGAIN);
	/* A second one is out of turn. */
	NM_CHECK_EQ(nm_message_send_step(relay->owner, NM_MESSAGE_GO, 0, "again"), 0);
	NM_CHECK_EQ(raw_receive(relay->owner, bytes, &passed, words), 0);
	NM_CHECK_EQ(in->state, NM_SESSION_UP);
	relay_cut(relay);
	close(relay->listener);
	place_destroy(&a);
	place_destroy(&x);
}

/* GO is withheld, and the caller has sent and closed before its owner looked into its window. */
static void send_and_close_without_go(bool is_cut)
{
	struct place a = place_create(5000), x = place_with_lease(SHORT_LEASE_MS);
	struct relay *relay = relay_start(&x.who, 4);
	struct nm_session *out = place_visit(&a, &x), *in;

	relay_join(relay);
	nm_window_ring(a.window, out->out.own_lane)->head.tag = 77;
	place_destroy(&a);
	if (is_cut)
		relay_cut(relay);
	in = place_expect(&x, NM_SESSION_SOURCE);
	NM_CHECK_EQ(nm_foreign_ring(&in->window, in->in.peer_lane)->head.tag, 77);
	NM_CHECK(place_expect(&x, NM_SESSION_LOST) == in);
	NM_CHECK_EQ(in->err, 0);
	nm_sessions_leave(x.sessions, in, 0, NULL);
	if (!is_cut)
		relay_cut(relay);
	close(relay->listener);
	place_destroy(&x);
}

NM_TEST(messages_before_a_close_do_not_depend_on_go)
{
	send_and_close_without_go(false);
}

NM_TEST(messages_before_a_close_do_not_depend_on_the_socket)
{
	send_and_close_without_go(true);
}

NM_TEST(forged_go_makes_no_source)
{
	struct place a = place_create(5000), x = place_with_lease(LONG_LEASE_MS);
	struct relay *relay = relay_start(&x.who, 3);
	struct nm_session *session, *out, *in;
	struct nm_reason why;

	NM_CHECK_EQ(place_call(a.sessions, &x.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "hung up");
	relay_join(relay);
	NM_CHECK_EQ(nm_message_send_step(relay->owner, NM_MESSAGE_GO, 0, "forged"), 0);
	place_expect_nothing(&x);
	/* The real one is not kept out by what the adversary began in its name. */
	put_socket_back(&x.who, relay->listener);
	out = place_visit(&a, &x);
	in = place_expect(&x, NM_SESSION_SOURCE);
	expect_same_bytes(&a, out, in);
	close(relay->owner);
	place_expect_nothing(&x);
	place_destroy(&a);
	place_destroy(&x);
}

NM_TEST(what_was_begun_in_its_name_does_not_keep_the_caller_out)
{
	struct place a = place_create(5000), x = place_with_lease(LONG_LEASE_MS);
	struct relay *relay = relay_start(&x.who, 3);
	struct nm_session *session;
	struct nm_reason why;

	NM_CHECK_EQ(place_call(a.sessions, &x.who, &session, &why), -EHOSTUNREACH);
	relay_join(relay);
	put_socket_back(&x.who, relay->listener);
	place_visit(&a, &x);
	place_expect(&x, NM_SESSION_SOURCE);
	close(relay->owner);
	place_expect_nothing(&x);
	place_destroy(&a);
	place_destroy(&x);
}

NM_TEST(caller_that_loses_its_place_after_the_welcome_calls_again)
{
	struct place a = place_create(5000), x = place_with_lease(LONG_LEASE_MS);
	struct relay *relay = relay_start(&x.who, 2);

	place_visit(&a, &x);
	relay_join(relay);
	place_expect(&x, NM_SESSION_SOURCE);
	place_destroy(&a);
	place_destroy(&x);
}

/* ---- with windows of others, and with windows that look like them ---- */

/* Call OWNER in the name of WHO, with a window of which only FD is there. Returns the socket. */
static int call_as(const struct place *who, const struct place *owner, int window_fd, uint32_t lane,
		   struct nm_greeting *ret_welcome)
{
	struct nm_greeting hello = raw_hello(who, owner, lane);
	uint8_t bytes[NM_MESSAGE_MAX];
	char words[180] = "";
	int fd = raw_connect(owner), passed;

	NM_CHECK_EQ(nm_message_send(fd, &hello, sizeof(hello), window_fd), 0);
	if (raw_receive(fd, bytes, &passed, words) != NM_MESSAGE_WELCOME)
		nm_test_fail(__FILE__, __LINE__, "no welcome: %s", words);
	close(passed);
	memcpy(ret_welcome, bytes, sizeof(*ret_welcome));
	return fd;
}

NM_TEST(another_file_with_the_same_name_in_it_is_refused)
{
	struct place a = place_create(5000), x = place_create(5000), forger;
	struct nm_greeting hello;
	struct nm_reason why;
	int fd;

	/* The forger's own window says that it is x's. */
	forger = (struct place){.who = x.who};
	forger.window = &(struct nm_window){.fd = -1};
	NM_CHECK_EQ(nm_window_create(&x.window->geometry, x.who.id, forger.window, &why), 0);
	hello = raw_hello(&x, &a, 0);
	fd = raw_connect(&a);
	NM_CHECK_EQ(nm_message_send(fd, &hello, sizeof(hello), forger.window->fd), 0);
	raw_expect_bye(fd, "belongs to another endpoint");
	place_visit(&x, &a);
	place_expect(&a, NM_SESSION_SOURCE);
	nm_window_destroy(forger.window);
	place_destroy(&a);
	place_destroy(&x);
}

NM_TEST(repeated_window_keeps_its_owner_from_nothing)
{
	struct place a = place_create(5000), x = place_create(5000);
	struct nm_greeting welcome;
	struct nm_session *in;
	int fd = call_as(&x, &a, x.window->fd, 0, &welcome);

	/* While the forged call waits for a proof, the real one comes. */
	place_visit(&x, &a);
	in = place_expect(&a, NM_SESSION_SOURCE);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_MET, false, "no"), 0);
	raw_expect_bye(fd, "the challenge does not appear");
	place_expect_nothing(&a);
	NM_CHECK_EQ(in->state, NM_SESSION_UP);
	place_destroy(&x);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == in);
	nm_sessions_leave(a.sessions, in, 0, NULL);
	place_destroy(&a);
}

NM_TEST(label_of_a_call_in_its_name_is_forgotten)
{
	struct place a = place_create(5000), x = place_create(5000);
	struct nm_greeting welcome;
	int fd = call_as(&x, &a, x.window->fd, 0, &welcome);

	NM_CHECK(strcmp(place_visit(&a, &x)->label.text, "raw visitor"));
	place_expect(&x, NM_SESSION_SOURCE);
	close(fd);
	place_destroy(&a);
	place_destroy(&x);
}

struct call {
	struct place *from;
	const struct nm_identity *to;
};

static void *call_in_thread(void *arg)
{
	struct call *call = arg;
	struct nm_session *session;
	struct nm_reason why;

	place_call(call->from->sessions, call->to, &session, &why);
	return NULL;
}

/*
 * The adversary asks the victim for its challenge in the name of X, and lets X write it into X's
 * window: as the answer to a call that X makes to the adversary, which is another matter.
 */
NM_TEST(challenge_written_for_another_proves_nothing)
{
	struct place victim = place_create(5000), x = place_create(5000);
	struct place adversary = place_with_lease(LONG_LEASE_MS);
	struct call call = {&x, &adversary.who};
	struct nm_greeting hello, forged = {.who = adversary.who};
	int listener = replace_socket(&adversary.who), fd, line, window_fd;
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_greeting welcome;
	char words[180] = "";
	pthread_t thread;

	/* X will use its first lane. */
	fd = call_as(&x, &victim, x.window->fd, 0, &welcome);
	NM_CHECK_EQ(pthread_create(&thread, NULL, call_in_thread, &call), 0);
	line = raw_accept(listener);
	NM_CHECK_EQ(raw_receive(line, bytes, &window_fd, words), NM_MESSAGE_HELLO);
	close(window_fd);
	memcpy(&hello, bytes, sizeof(hello));
	NM_CHECK_EQ(hello.lane, 0);
	memcpy(adversary.window->lanes[0].reader_for, &x.who, NM_LANE_WHO);
	atomic_store(&adversary.window->lanes[0].reader_proof, hello.challenge);
	atomic_store(&adversary.window->lanes[0].reader_step, NM_LANE_SHOWN);
	nm_message_init(&forged.header, NM_MESSAGE_WELCOME);
	forged.challenge = welcome.challenge;
	NM_CHECK_EQ(nm_message_send(line, &forged, sizeof(forged), adversary.window->fd), 0);
	NM_CHECK_EQ(raw_receive(line, bytes, &window_fd, words), NM_MESSAGE_MET);
	NM_CHECK_EQ(atomic_load(&x.window->lanes[0].writer_proof), welcome.challenge);
	NM_CHECK_EQ(nm_message_send_step(fd, NM_MESSAGE_MET, false, "no"), 0);
	raw_expect_bye(fd, "the challenge does not appear");
	close(line);
	NM_CHECK_EQ(pthread_join(thread, NULL), 0);
	put_socket_back(&adversary.who, listener);
	place_destroy(&victim);
	place_destroy(&x);
	place_destroy(&adversary);
}
