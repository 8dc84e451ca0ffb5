/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that connect and say nothing, or listen and say nothing: what they may cost. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "connect/rundir.h"
#include "session_fixture.h"
#include "shm/budget.h"

#define OWNER_DESCRIPTORS 128

/* The identity of an owner in another process; `is_there` is set last. */
struct notice {
	unsigned int nr_windows; /* that it may map; 0: many */
	struct nm_identity who;
	_Atomic bool is_there;
};

/* Leave room for NR windows of places. */
static void take_room(uint64_t nr, uint64_t window_size)
{
	for (uint64_t bytes = UINT64_C(1) << 62; bytes >= window_size / 2; bytes /= 2)
		while (!nm_budget_take(bytes, NULL))
			;
	nm_budget_return(nr * window_size);
}

static void be_a_poor_place(void *arg)
{
	const struct rlimit limit = {OWNER_DESCRIPTORS, OWNER_DESCRIPTORS};
	struct notice *notice = arg;
	struct place owner = {0}, *place = &owner;
	enum nm_session_event kind;
	struct nm_session *session;
	struct nm_reason why;

	NM_CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	NM_CHECK_EQ(place_try(place, nm_test_dir(), 5000, &why), 0);
	if (notice->nr_windows)
		take_room(notice->nr_windows, place->window->geometry.size);
	notice->who = place->who;
	atomic_store(&notice->is_there, true);
	for (;; nm_test_sleep_ms(1))
		while ((session = nm_sessions_next_event(place->sessions, &kind)))
			if (kind == NM_SESSION_LOST)
				nm_sessions_leave(place->sessions, session, 0, NULL);
}

static pid_t start_owner(struct place *owner, unsigned int nr_windows)
{
	struct notice *notice = mmap(NULL, sizeof(*notice), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid;

	NM_CHECK(notice != MAP_FAILED);
	notice->nr_windows = nr_windows;
	pid = nm_test_fork(be_a_poor_place, notice);
	while (!atomic_load(&notice->is_there))
		nm_test_sleep_ms(1);
	owner->who = notice->who;
	munmap(notice, sizeof(*notice));
	return pid;
}

static pid_t start_poor_owner(struct place *owner)
{
	return start_owner(owner, 0);
}

static unsigned int count_fds_of(pid_t pid)
{
	struct dirent *entry;
	unsigned int nr = 0;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	NM_CHECK(dir != NULL);
	while ((entry = readdir(dir)))
		nr += entry->d_name[0] != '.';
	closedir(dir);
	return nr;
}

/* Visit OWNER and leave again. */
static void visit_once(const struct place *owner)
{
	struct place visitor = place_create(5000);
	struct nm_session *session;
	struct nm_reason why;

	while (place_call(visitor.sessions, &owner->who, &session, &why)) {
		/* The lanes of the visitors before it are not free yet. */
		NM_CHECK_HAS(why.text, "lanes");
		nm_test_sleep_ms(2);
	}
	place_destroy(&visitor);
}

NM_TEST(silent_visitors_take_few_descriptors)
{
	int silent[2 * OWNER_DESCRIPTORS];
	struct place owner = {0};
	pid_t pid = start_poor_owner(&owner);

	visit_once(&owner);
	for (unsigned int i = 0; i < NM_ARRAY_SIZE(silent); i++)
		silent[i] = raw_connect(&owner);
	/* The oldest went, and a caller that speaks gets in. */
	raw_expect_bye(silent[0], "said no hello");
	visit_once(&owner);
	NM_CHECK(count_fds_of(pid) < OWNER_DESCRIPTORS / 2);
	for (unsigned int i = 1; i < NM_ARRAY_SIZE(silent); i++)
		close(silent[i]);
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
}

static void connect_again_and_again(void *arg)
{
	const struct place *owner = arg;
	int fds[64] = {0};

	for (unsigned int i = 0;; i = (i + 1) % NM_ARRAY_SIZE(fds)) {
		if (fds[i])
			close(fds[i]);
		fds[i] = raw_connect(owner);
	}
}

NM_TEST(flood_of_silent_visitors_keeps_no_other_out)
{
	struct place owner = {0};
	pid_t pid = start_poor_owner(&owner), flood;

	visit_once(&owner);
	flood = nm_test_fork(connect_again_and_again, &owner);
	for (int i = 0; i < 20; i++)
		visit_once(&owner);
	kill(flood, SIGKILL);
	nm_test_join(flood, SIGKILL);
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
}

/* A visitor that says hello and nothing more has as long as NEARMETAL_CONNECT_MS allows. */
NM_TEST(hello_ends_the_short_time_limit)
{
	struct place owner = place_create(5000), visitor = place_create(5000);
	struct nm_greeting hello = raw_hello(&visitor, &owner, 0);
	int silent = raw_connect(&owner), half = raw_connect(&owner), passed;
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_step bye;
	char words[180];

	NM_CHECK_EQ(nm_message_send(half, &hello, sizeof(hello), visitor.window->fd), 0);
	NM_CHECK_EQ(raw_receive(half, bytes, &passed, words), NM_MESSAGE_WELCOME);
	close(passed);
	/* An honest one was only stopped meanwhile: it may call again. */
	NM_CHECK_EQ(raw_receive(silent, bytes, &passed, words), NM_MESSAGE_BYE);
	NM_CHECK_HAS(words, "no hello within a second");
	nm_step_copy(bytes, &bye);
	NM_CHECK_EQ(bye.value, -EBUSY);
	close(silent);
	NM_CHECK_EQ(nm_message_receive(half, bytes, &passed), -EAGAIN);
	close(half);
	place_expect_nothing(&owner);
	place_expect_sound(&owner);
	place_destroy(&visitor);
	place_destroy(&owner);
}

/* Callers that say hello and prove nothing take all lanes, again and again. */
NM_TEST(callers_without_a_proof_keep_no_other_out)
{
	struct place owner = place_create(5000), hostile = place_create(5000), a, b;
	struct nm_greeting hello = raw_hello(&hostile, &owner, 0);
	int calls[3 * PLACE_LANES];
	char words[180];
	uint8_t bytes[NM_MESSAGE_MAX];
	int passed;

	for (unsigned int i = 0; i < NM_ARRAY_SIZE(calls); i++) {
		calls[i] = raw_connect(&owner);
		NM_CHECK_EQ(nm_message_send(calls[i], &hello, sizeof(hello), hostile.window->fd),
			    0);
	}
	a = place_create(5000);
	b = place_create(5000);
	place_visit(&a, &owner);
	place_visit(&b, &owner);
	/* The oldest had to go. */
	NM_CHECK_EQ(raw_receive(calls[0], bytes, &passed, words), NM_MESSAGE_WELCOME);
	close(passed);
	raw_expect_bye(calls[0], "did not prove itself");
	for (unsigned int i = 0; i < NM_ARRAY_SIZE(calls); i++)
		close(calls[i]);
	place_destroy(&a);
	place_destroy(&b);
	place_destroy(&hostile);
	place_destroy(&owner);
}

/* Their windows take the room for windows, which the owner needs for others. */
NM_TEST(windows_without_a_proof_keep_no_other_out)
{
	struct place owner = {0}, hostile[2], a;
	pid_t pid = start_owner(&owner, NM_ARRAY_SIZE(hostile));
	uint8_t bytes[NM_MESSAGE_MAX];
	struct nm_greeting hello;
	char words[180];
	int calls[2], passed;

	for (unsigned int i = 0; i < NM_ARRAY_SIZE(hostile); i++) {
		hostile[i] = place_create(5000);
		hello = raw_hello(&hostile[i], &owner, 0);
		calls[i] = raw_connect(&owner);
		NM_CHECK_EQ(nm_message_send(calls[i], &hello, sizeof(hello), hostile[i].window->fd),
			    0);
		NM_CHECK_EQ(raw_receive(calls[i], bytes, &passed, words), NM_MESSAGE_WELCOME);
		close(passed);
	}
	a = place_create(5000);
	place_visit(&a, &owner);
	/* The oldest had to go, and only that one. */
	raw_expect_bye(calls[0], "did not prove itself");
	NM_CHECK_EQ(nm_message_receive(calls[1], bytes, &passed), -EAGAIN);
	close(calls[1]);
	place_destroy(&a);
	for (unsigned int i = 0; i < NM_ARRAY_SIZE(hostile); i++)
		place_destroy(&hostile[i]);
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
}

/* A process can have any number of names, and each one is remembered. */
NM_TEST_WITHIN(names_without_end_are_not_remembered, 60)
{
	struct place owner = {0}, visitor;
	pid_t pid = start_poor_owner(&owner);
	struct nm_session *session;
	struct nm_reason why;

	for (unsigned int i = 0; i < 32 * PLACE_LANES; i++)
		visit_once(&owner);
	visitor = place_create(5000);
	NM_CHECK_EQ(nm_sessions_connect(visitor.sessions, &owner.who, &session, &why),
		    -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "remembers no more");
	place_destroy(&visitor);
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
}

static void visit_as_another_user(void *arg)
{
	const struct sockaddr_un *address = arg;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	NM_CHECK_EQ(seteuid(12345), 0);
	NM_CHECK_EQ(connect(fd, (const struct sockaddr *)address, sizeof(*address)), 0);
	raw_expect_bye(fd, "it runs as user 12345");
}

/* Before it says anything. */
NM_TEST(visitor_of_another_user_is_turned_away)
{
	struct sockaddr_un address;
	struct place owner = {0};
	char name[NM_SOCKET_NAME_LEN];
	struct nm_rundir dir;
	pid_t pid;

	if (geteuid() != 0)
		nm_test_skip("only root can be another user");
	pid = start_poor_owner(&owner);
	visit_once(&owner);
	NM_CHECK_EQ(nm_rundir_open(nm_test_dir(), &dir, NULL), 0);
	nm_socket_name(owner.who.id, name);
	nm_rundir_address(&dir, name, &address);
	/* As in a rundir that somebody has opened to others by mistake. */
	NM_CHECK_EQ(chmod(dir.path, 0711), 0);
	NM_CHECK_EQ(chmod(address.sun_path, 0666), 0);
	nm_test_join(nm_test_fork(visit_as_another_user, &address), 0);
	nm_rundir_close(&dir);
	kill(pid, SIGKILL);
	nm_test_join(pid, SIGKILL);
}

/* Listeners that are silent. */
struct silent {
	struct nm_identity who;
	int listener;
};

static void listen_silently(struct silent *silent, size_t nr)
{
	for (size_t i = 0; i < nr; i++) {
		NM_CHECK_EQ(nm_identity_create(&silent[i].who), 0);
		silent[i].listener = raw_listen(&silent[i].who);
	}
}

static void close_silent(const struct silent *silent, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		close(silent[i].listener);
}

static int call_silent(const struct place *place, const struct silent *silent)
{
	struct nm_session *session;
	struct nm_reason why;

	return nm_sessions_connect(place->sessions, &silent->who, &session, &why);
}

/* The caller waits for none of them, each has the same time, and a sound one is met meanwhile. */
NM_TEST(silent_owners_are_awaited_side_by_side)
{
	struct place a = place_create(4000), b = place_create(5000);
	uint64_t begin = nm_clock_ns(), sound;
	struct silent silent[PLACE_LANES - 1];
	struct nm_session *session;
	struct nm_reason why;

	listen_silently(silent, NM_ARRAY_SIZE(silent));
	for (size_t i = 0; i < NM_ARRAY_SIZE(silent); i++)
		NM_CHECK_EQ(call_silent(&a, &silent[i]), -EAGAIN);
	place_visit(&a, &b);
	sound = nm_clock_ns();
	for (size_t i = 0; i < NM_ARRAY_SIZE(silent); i++) {
		NM_CHECK_EQ(place_call(a.sessions, &silent[i].who, &session, &why), -EHOSTUNREACH);
		NM_CHECK_HAS(why.text, "no answer within 4000 ms");
	}
	/* All of them were silent when the sound one was met, which none of them held up. */
	NM_CHECK(sound - begin < 4000 * NM_NS_PER_MS);
	NM_CHECK(nm_clock_ns() - begin < 2 * 4000 * NM_NS_PER_MS);
	/* Their lanes are free again. */
	for (size_t i = 0; i < NM_ARRAY_SIZE(silent); i++)
		NM_CHECK_EQ(call_silent(&a, &silent[i]), -EAGAIN);
	close_silent(silent, NM_ARRAY_SIZE(silent));
	place_destroy(&a);
	place_destroy(&b);
}

/* Each of two calls the other before it has the other's answer. */
NM_TEST(calls_in_both_directions_at_once)
{
	struct place a = place_create(60000), b = place_create(60000);
	struct nm_session *ab = NULL, *ba = NULL;
	int errs[2] = {-EAGAIN, -EAGAIN};
	struct nm_reason why;

	while (errs[0] == -EAGAIN || errs[1] == -EAGAIN) {
		if (errs[0] == -EAGAIN)
			errs[0] = nm_sessions_connect(a.sessions, &b.who, &ab, &why);
		if (errs[1] == -EAGAIN)
			errs[1] = nm_sessions_connect(b.sessions, &a.who, &ba, &why);
	}
	NM_CHECK_EQ(errs[0], 0);
	NM_CHECK_EQ(errs[1], 0);
	NM_CHECK(place_expect(&a, NM_SESSION_SOURCE) == ab);
	NM_CHECK(place_expect(&b, NM_SESSION_SOURCE) == ba);
	place_destroy(&a);
	place_destroy(&b);
}

static void leave_as_a_child(void *arg)
{
	nm_sessions_destroy(((struct place *)arg)->sessions);
}

/* A child that the program forked meanwhile holds nothing of the call. */
NM_TEST(a_fork_during_a_call)
{
	struct place a = place_create(60000);
	struct nm_session *session;
	struct nm_reason why;
	struct silent silent;
	int fd;

	listen_silently(&silent, 1);
	NM_CHECK_EQ(call_silent(&a, &silent), -EAGAIN);
	nm_test_join(nm_test_fork(leave_as_a_child, &a), 0);
	fd = raw_accept(silent.listener);
	NM_CHECK_EQ(call_silent(&a, &silent), -EAGAIN);
	close(fd);
	NM_CHECK_EQ(place_call(a.sessions, &silent.who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "hung up during the handshake");
	close_silent(&silent, 1);
	place_destroy(&a);
}

/* The endpoint closes, forbids the peer or leaves its session while the answer is awaited. */
NM_TEST(calls_under_way_end_with_their_session)
{
	unsigned int fds = nm_test_count_fds(), mappings = nm_test_count_mappings(), during;
	const struct nm_reason words = {"a test"};
	struct place a = place_create(60000);
	struct silent silent[2];
	struct nm_session *session;
	struct nm_reason why;

	listen_silently(silent, NM_ARRAY_SIZE(silent));
	NM_CHECK_EQ(call_silent(&a, &silent[0]), -EAGAIN);
	NM_CHECK_EQ(call_silent(&a, &silent[1]), -EAGAIN);
	during = nm_test_count_fds();
	nm_sessions_forbid(a.sessions, &silent[0].who, &words);
	NM_CHECK_EQ(nm_test_count_fds(), during - 1);
	NM_CHECK_EQ(nm_sessions_connect(a.sessions, &silent[0].who, &session, &why), -EHOSTUNREACH);
	NM_CHECK_HAS(why.text, "it is gone: a test");
	place_destroy(&a);
	close_silent(silent, NM_ARRAY_SIZE(silent));
	NM_CHECK_EQ(nm_test_count_fds(), fds);
	NM_CHECK_EQ(nm_test_count_mappings(), mappings);
}

/* Many that are silent leave descriptors to the program: the others wait for their turn. */
NM_TEST(silent_owners_take_few_descriptors)
{
	const struct rlimit limit = {24, 24};
	struct place a = place_create(300);
	struct silent silent[PLACE_LANES];
	struct nm_session *session;
	struct nm_reason why;
	unsigned int fds;

	listen_silently(silent, NM_ARRAY_SIZE(silent));
	fds = nm_test_count_fds();
	NM_CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	for (size_t i = 0; i < NM_ARRAY_SIZE(silent); i++)
		NM_CHECK_EQ(call_silent(&a, &silent[i]), -EAGAIN);
	NM_CHECK_EQ(nm_test_count_fds(), fds + limit.rlim_cur / 8);
	for (size_t i = 0; i < NM_ARRAY_SIZE(silent); i++)
		NM_CHECK_EQ(place_call(a.sessions, &silent[i].who, &session, &why), -EHOSTUNREACH);
	close_silent(silent, NM_ARRAY_SIZE(silent));
	place_destroy(&a);
}

/* Calls that wait for their turn have no descriptor, so they keep out no caller. */
NM_TEST(calls_that_wait_keep_no_caller_out)
{
	struct place a = place_create(60000), b = place_create(5000);
	const struct rlimit limit = {32, 32};
	struct silent silent[PLACE_LANES], nowhere[24];

	listen_silently(silent, NM_ARRAY_SIZE(silent));
	NM_CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	for (size_t i = 0; i < NM_ARRAY_SIZE(silent); i++)
		NM_CHECK_EQ(call_silent(&a, &silent[i]), -EAGAIN);
	for (size_t i = 0; i < NM_ARRAY_SIZE(nowhere); i++) {
		NM_CHECK_EQ(nm_identity_create(&nowhere[i].who), 0);
		NM_CHECK_EQ(call_silent(&a, &nowhere[i]), -EAGAIN);
	}
	place_visit(&b, &a);
	close_silent(silent, NM_ARRAY_SIZE(silent));
	place_destroy(&a);
	place_destroy(&b);
}

/* As many as may be called at once are silent, and one more that is sound waits for its turn. */
NM_TEST(silent_owners_take_no_turn_for_long)
{
	struct place a = place_create(12000), b = place_create(5000);
	const struct rlimit limit = {32, 32};
	struct silent silent[PLACE_LANES];

	listen_silently(silent, NM_ARRAY_SIZE(silent));
	NM_CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	NM_CHECK_EQ(limit.rlim_cur / 8, NM_ARRAY_SIZE(silent));
	for (size_t i = 0; i < NM_ARRAY_SIZE(silent); i++)
		NM_CHECK_EQ(call_silent(&a, &silent[i]), -EAGAIN);
	place_visit(&a, &b);
	place_expect(&b, NM_SESSION_SOURCE);
	/* It did not wait for the end of their time: only the first one lost its turn. */
	for (size_t i = 1; i < NM_ARRAY_SIZE(silent); i++)
		NM_CHECK_EQ(call_silent(&a, &silent[i]), -EAGAIN);
	close_silent(silent, NM_ARRAY_SIZE(silent));
	place_destroy(&a);
	place_destroy(&b);
}
