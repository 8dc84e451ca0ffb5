/* SPDX-License-Identifier: Apache-2.0 */
/* How endpoints meet, and how the end of one shows at the other. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "connect/rundir.h"
#include "session_fixture.h"

NM_TEST(two_meet_in_both_windows)
{
	struct place a = place_create(5000), b = place_create(5000);
	struct nm_session *out = place_visit(&a, &b), *in = place_expect(&b, NM_SESSION_SOURCE);

	NM_CHECK(out->out.handshake && !out->in.handshake);
	NM_CHECK(in->in.handshake && !in->out.handshake);
	NM_CHECK(out->state == NM_SESSION_UP && in->state == NM_SESSION_UP);
	NM_CHECK(nm_identity_equal(&out->who, &b.who) && nm_identity_equal(&in->who, &a.who));
	NM_CHECK_EQ(out->out.own_lane, in->in.peer_lane);
	NM_CHECK_EQ(out->out.peer_lane, in->in.own_lane);
	NM_CHECK_EQ(out->out.start, in->in.start);
	NM_CHECK_EQ(out->relation, NM_RELATION_NODE);
	NM_CHECK_HAS(in->label.text, "pid");
	/* The same bytes. */
	nm_window_ring(a.window, out->out.own_lane)->head.tag = 99;
	NM_CHECK_EQ(nm_foreign_ring(&in->window, in->in.peer_lane)->head.tag, 99);
	atomic_store(&b.window->lanes[in->in.own_lane].consumed, 5);
	NM_CHECK_EQ(atomic_load(&out->window.lanes[out->out.peer_lane].consumed), 5);
	place_expect_nothing(&b);
	place_destroy(&a);
	NM_CHECK(place_expect(&b, NM_SESSION_LOST) == in);
	NM_CHECK_EQ(in->err, 0);
	NM_CHECK_HAS(in->why.text, "closed its endpoint");
	nm_sessions_leave(b.sessions, in, 0, NULL);
	place_destroy(&b);
}

NM_TEST(both_directions_are_one_session)
{
	struct place a = place_create(5000), b = place_create(5000);
	unsigned int mappings = nm_test_count_mappings();
	struct nm_session *ab = place_visit(&a, &b), *ba = place_visit(&b, &a);

	NM_CHECK(ab == place_expect(&a, NM_SESSION_SOURCE));
	NM_CHECK(ba == place_expect(&b, NM_SESSION_SOURCE));
	NM_CHECK(ab == nm_sessions_find(a.sessions, &b.who));
	NM_CHECK(nm_sessions_first(a.sessions) == ab && !ab->next);
	NM_CHECK_EQ(nm_test_count_mappings(), mappings + 2);
	/* One end for both, and nothing is left but the name. */
	nm_sessions_leave(a.sessions, ab, 0, NULL);
	NM_CHECK_EQ(ab->state, NM_SESSION_DOWN);
	NM_CHECK(place_expect(&b, NM_SESSION_LOST) == ba);
	NM_CHECK_EQ(ba->state, NM_SESSION_CLOSING);
	place_expect_nothing(&b);
	nm_sessions_leave(b.sessions, ba, 0, NULL);
	NM_CHECK_EQ(nm_test_count_mappings(), mappings);
	place_destroy(&a);
	place_destroy(&b);
}

NM_TEST(second_visit_and_full_lanes_are_refused_in_words)
{
	struct place owner = place_create(5000), visitors[PLACE_LANES + 1];
	struct nm_session *session, *in;
	struct nm_greeting hello;
	struct nm_reason why;
	int i, fd;

	for (i = 0; i < PLACE_LANES; i++) {
		visitors[i] = place_create(5000);
		place_visit(&visitors[i], &owner);
		in = place_expect(&owner, NM_SESSION_SOURCE);
	}
	NM_CHECK_EQ(place_call(visitors[0].sessions, &owner.who, &session, &why), -EISCONN);
	NM_CHECK_HAS(why.text, "exists already");
	hello = raw_hello(&visitors[0], &owner, 0);
	fd = raw_connect(&owner);
	NM_CHECK_EQ(nm_message_send(fd, &hello, sizeof(hello), visitors[0].window->fd), 0);
	raw_expect_bye(fd, "exists already");
	visitors[i] = place_create(5000);
	NM_CHECK_EQ(place_call(visitors[i].sessions, &owner.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "NEARMETAL_MAX_LOCAL_PEERS");
	/* A lane that is given back serves the next one. */
	nm_sessions_leave(owner.sessions, in, 0, NULL);
	place_visit(&visitors[i], &owner);
	place_expect(&owner, NM_SESSION_SOURCE);
	for (i = 0; i <= PLACE_LANES; i++)
		place_destroy(&visitors[i]);
	place_destroy(&owner);
}

NM_TEST(visitor_without_lanes_says_so)
{
	struct place visitor = place_create(5000), owners[PLACE_LANES + 1];
	struct nm_session *session, *first = NULL;
	struct nm_reason why;
	int i;

	for (i = 0; i < PLACE_LANES; i++) {
		owners[i] = place_create(5000);
		session = place_visit(&visitor, &owners[i]);
		first = first ? first : session;
	}
	owners[i] = place_create(5000);
	NM_CHECK_EQ(place_call(visitor.sessions, &owners[i].who, &session, &why), -ENOSPC);
	NM_CHECK_HAS(why.text, "all 4 lanes");
	/* The lane's next stream begins past the last one's end. */
	first->out.end = 100;
	nm_sessions_leave(visitor.sessions, first, 0, NULL);
	session = place_visit(&visitor, &owners[i]);
	NM_CHECK_EQ(session->out.start, 116);
	for (i = 0; i <= PLACE_LANES; i++)
		place_destroy(&owners[i]);
	place_destroy(&visitor);
}

NM_TEST(farewell_with_words_reaches_the_other_side)
{
	struct place a = place_create(5000), b = place_create(5000);
	struct nm_session *out = place_visit(&a, &b), *in = place_expect(&b, NM_SESSION_SOURCE);
	struct nm_reason why = {"it lied"};

	nm_sessions_leave(b.sessions, in, -EBADMSG, &why);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == out);
	NM_CHECK_EQ(out->err, -EBADMSG);
	NM_CHECK_HAS(out->why.text, "it lied");
	place_destroy(&a);
	place_destroy(&b);
}

/* An endpoint that was left, or is not wanted, stays away: its identity is used once. */
NM_TEST(a_session_that_is_down_stays_down)
{
	struct place a = place_create(5000), b = place_create(5000);
	struct nm_session *ab = place_visit(&a, &b), *ba = place_expect(&b, NM_SESSION_SOURCE);
	const struct nm_reason words = {"a test"};
	struct nm_session *session;
	struct nm_reason why;

	nm_session_begin_end(ab, NM_SESSION_CAST_OUT, -EBADMSG, &words);
	nm_sessions_leave(a.sessions, ab, 0, NULL);
	NM_CHECK_EQ(place_call(a.sessions, &b.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "it is gone: a test");
	NM_CHECK(place_expect(&b, NM_SESSION_LOST) == ba);
	/* Seen from the other side, too. */
	NM_CHECK_EQ(place_call(b.sessions, &a.who, &session, &why), -EHOSTUNREACH);
	place_destroy(&b);
	b = place_create(5000);
	nm_sessions_forbid(a.sessions, &b.who, &words);
	NM_CHECK_EQ(place_call(b.sessions, &a.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "its session has ended");
	NM_CHECK(nm_sessions_find(b.sessions, &a.who) == NULL);
	place_expect_nothing(&a);
	place_destroy(&a);
	place_destroy(&b);
}

/* The handshake was faster than the word that the peer is not wanted. */
NM_TEST(a_source_that_comes_too_late_is_refused)
{
	struct place a = place_create(5000), b = place_create(5000);
	const struct nm_reason words = {"a test"};
	struct nm_session *ab = place_visit(&a, &b), *ba;

	while (!atomic_load(nm_sessions_event_word(b.sessions)))
		nm_test_sleep_ms(1);
	nm_sessions_forbid(b.sessions, &a.who, &words);
	ba = place_expect(&b, NM_SESSION_SOURCE);
	NM_CHECK_EQ(ba->state, NM_SESSION_DOWN);
	nm_sessions_refuse_source(b.sessions, ba);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == ab);
	NM_CHECK_EQ(ab->err, -ECONNRESET);
	NM_CHECK_HAS(ab->why.text, "does not take messages from this endpoint");
	place_destroy(&a);
	place_destroy(&b);
}

NM_TEST(leaving_forgets_events_that_are_due)
{
	struct place a = place_create(5000), b = place_create(5000), c = place_create(5000);
	struct nm_session *ab = place_visit(&a, &b), *ac = place_visit(&a, &c);

	place_destroy(&b);
	place_destroy(&c);
	nm_test_sleep_ms(50); /* both hangups have been noticed, most likely */
	nm_sessions_leave(a.sessions, ab, 0, NULL);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == ac);
	place_expect_nothing(&a);
	place_destroy(&a);
}

/* A place in another process, which shows here who it is. */
struct far_place {
	_Atomic bool is_open;
	struct place place;
};

static struct far_place *far_place(void)
{
	struct far_place *far =
		mmap(NULL, sizeof(*far), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	NM_CHECK(far != MAP_FAILED);
	return far;
}

static void open_far(struct far_place *far)
{
	struct nm_reason why;

	NM_CHECK_EQ(place_try(&far->place, nm_test_dir(), 5000, &why), 0);
	atomic_store(&far->is_open, true);
}

static void be_a_place(void *arg)
{
	open_far(arg);
	for (;;)
		pause();
}

static struct nm_session *visit_when_there(struct place *from, struct far_place *to)
{
	while (!atomic_load(&to->is_open))
		nm_test_sleep_ms(1);
	return place_visit(from, &to->place);
}

NM_TEST(death_is_noticed)
{
	struct far_place *far = far_place();
	struct place a;
	struct nm_session *out;
	pid_t pid;

	pid = nm_test_fork(be_a_place, far);
	a = place_create(5000);
	out = visit_when_there(&a, far);
	kill(pid, SIGKILL);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == out);
	NM_CHECK_EQ(out->err, -ECONNRESET);
	NM_CHECK_HAS(out->why.text, "died");
	nm_test_join(pid, SIGKILL);
	place_destroy(&a);
	munmap(far, sizeof(*far));
}

static void be_a_place_with_a_child(void *arg)
{
	struct far_place *far = arg;

	open_far(far);
	if (fork() == 0) {
		/* Whatever the child does with its copies is its own affair. */
		place_destroy(&far->place);
		nm_test_sleep_ms(3000);
		_exit(0);
	}
	for (;;)
		pause();
}

/* A forked child must neither hide the parent's death nor take its socket away. */
NM_TEST(child_of_a_fork_is_nobody)
{
	struct far_place *far = far_place();
	struct place a, c;
	struct nm_session *out;
	pid_t pid;

	pid = nm_test_fork(be_a_place_with_a_child, far);
	a = place_create(5000);
	c = place_create(5000);
	visit_when_there(&c, far);
	nm_test_sleep_ms(100); /* the child has closed its copy by now, most likely */
	out = place_visit(&a, &far->place);
	kill(pid, SIGKILL);
	NM_CHECK(place_expect(&a, NM_SESSION_LOST) == out);
	nm_test_join(pid, SIGKILL);
	place_destroy(&a);
	place_destroy(&c);
	munmap(far, sizeof(*far));
}

NM_TEST(stopped_peer_is_given_up_on)
{
	struct far_place *far = far_place();
	struct place a, c;
	struct nm_session *session;
	struct nm_reason why;
	pid_t pid;

	pid = nm_test_fork(be_a_place, far);
	a = place_create(200);
	c = place_create(5000);
	visit_when_there(&c, far);
	nm_test_stop(pid);
	NM_CHECK_EQ(place_call(a.sessions, &far->place.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "no answer within 200 ms");
	/* When it wakes up, which may take time, it finds that the visitor has left, and serves others. */
	kill(pid, SIGCONT);
	while (place_call(a.sessions, &far->place.who, &session, &why))
		NM_CHECK_HAS(why.text, "no answer within 200 ms");
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
	place_destroy(&a);
	place_destroy(&c);
	munmap(far, sizeof(*far));
}

/* The peer answers and dies before the endpoint asks for the result. */
NM_TEST(peer_that_dies_before_its_answer_is_taken)
{
	struct far_place *far = far_place();
	struct place a, c;
	struct nm_session *session;
	struct nm_reason why;
	pid_t pid;
	int err;

	pid = nm_test_fork(be_a_place, far);
	a = place_create(60000);
	c = place_create(5000);
	visit_when_there(&c, far);
	nm_test_stop(pid);
	NM_CHECK_EQ(nm_sessions_connect(a.sessions, &far->place.who, &session, &why), -EAGAIN);
	kill(pid, SIGCONT);
	nm_test_sleep_ms(100);
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
	nm_test_sleep_ms(100);
	err = place_call(a.sessions, &far->place.who, &session, &why);
	/* Taken before the hangup was noticed. */
	if (!err)
		NM_CHECK(place_expect(&a, NM_SESSION_LOST) == session);
	else
		NM_CHECK_HAS(why.text, "hung up during the handshake");
	place_destroy(&a);
	place_destroy(&c);
	munmap(far, sizeof(*far));
}

NM_TEST(wrong_token_is_turned_away)
{
	struct place a = place_create(5000), b = place_create(5000);
	struct nm_identity wrong = b.who;
	struct nm_session *session;
	struct nm_reason why;

	wrong.place[3] ^= 1;
	NM_CHECK_EQ(place_call(a.sessions, &wrong, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "another endpoint");
	place_expect_nothing(&b);
	place_destroy(&a);
	place_destroy(&b);
}

static int fillers[64];
static int nr_fillers;

/* Leave no file descriptor. */
static void use_up_descriptors(void)
{
	const struct rlimit limit = {64, 64};
	int fd;

	NM_CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while ((fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
		fillers[nr_fillers++] = fd;
}

static int used_up[2];

static void be_a_place_without_descriptors(void *arg)
{
	open_far(arg);
	use_up_descriptors();
	NM_CHECK_EQ(write(used_up[1], "", 1), 1);
	for (;;)
		pause();
}

NM_TEST(owner_without_descriptors_says_so)
{
	struct far_place *far = far_place();
	struct place a;
	struct nm_session *session;
	struct nm_reason why;
	char byte;
	pid_t pid;

	NM_CHECK_EQ(pipe2(used_up, O_CLOEXEC), 0);
	pid = nm_test_fork(be_a_place_without_descriptors, far);
	a = place_create(5000);
	NM_CHECK_EQ(read(used_up[0], &byte, 1), 1);
	NM_CHECK_EQ(place_call(a.sessions, &far->place.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "no file descriptor left");
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
	place_destroy(&a);
	close(used_up[0]);
	close(used_up[1]);
	munmap(far, sizeof(*far));
}

NM_TEST(visitor_without_descriptors_says_so)
{
	struct place a = place_create(5000), b = place_create(5000);
	struct nm_session *session;
	struct nm_reason why;

	use_up_descriptors();
	NM_CHECK_EQ(place_call(a.sessions, &b.who, &session, &why), -EMFILE);
	NM_CHECK_HAS(why.text, "Too many open files");
	while (nr_fillers)
		close(fillers[--nr_fillers]);
	place_destroy(&a);
	place_destroy(&b);
}
