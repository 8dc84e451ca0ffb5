/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unit test harness. A test file is a list of cases:
 *
 *	NM_TEST(ring_wraps_around)
 *	{
 *		NM_CHECK(ring_take(&ring) == 0);
 *		NM_CHECK_EQ(ring.head, 17);
 *	}
 *
 * Every case runs in a child process of its own with a time-out, and fails as well when it leaves
 * a file descriptor, a shared mapping, a thread or a child process behind. Arguments of the
 * program are names of cases to run; none: all. `--list` prints them. An argument NAME=VALUE is a
 * knob for all of them; those of the caller's environment are cleared.
 *
 * Limits are of processor time, so that a busy machine fails nobody. A case that uses none at all,
 * because it waits for what never comes, ends after a long while, too.
 */
#ifndef NM_TEST_HARNESS_H
#define NM_TEST_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NM_TEST_TIMEOUT_S 40
/* As long as this a case may use no processor. */
#define NM_TEST_STUCK_S 240

struct nm_test_case {
	const char *name;
	void (*run)(void);
	unsigned int timeout_s;
	struct nm_test_case *next;
};

void nm_test_register(struct nm_test_case *test);

#define NM_TEST(name) NM_TEST_WITHIN(name, NM_TEST_TIMEOUT_S)
/* For cases that need longer than the default under sanitizers. */
#define NM_TEST_WITHIN(name_, seconds)                                                             \
	static void test_##name_(void);                                                            \
	__attribute__((constructor)) static void register_##name_(void)                            \
	{                                                                                          \
		static struct nm_test_case test_case = {#name_, test_##name_, seconds, 0};         \
		nm_test_register(&test_case);                                                      \
	}                                                                                          \
	static void test_##name_(void)

/* End the case as failed, with a message. */
void nm_test_fail(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), noreturn));
/* End the case as skipped; REASON names the part that this machine lacks. */
void nm_test_skip(const char *reason) __attribute__((noreturn));

#define NM_CHECK(condition)                                                                        \
	do {                                                                                       \
		if (!(condition))                                                                  \
			nm_test_fail(__FILE__, __LINE__, "not true: %s", #condition);              \
	} while (0)
#define NM_CHECK_EQ(actual, expected)                                                              \
	do {                                                                                       \
		long long actual_ = (long long)(actual), expected_ = (long long)(expected);        \
		if (actual_ != expected_)                                                          \
			nm_test_fail(__FILE__, __LINE__, "%s is %lld, expected %s = %lld",         \
				     #actual, actual_, #expected, expected_);                      \
	} while (0)
#define NM_CHECK_STR(actual, expected)                                                             \
	nm_test_check_str(__FILE__, __LINE__, #actual, actual, expected)
/* TEXT contains PART. */
#define NM_CHECK_HAS(text, part) nm_test_check_has(__FILE__, __LINE__, #text, text, part)

void nm_test_check_str(const char *file, int line, const char *what, const char *actual,
		       const char *expected);
void nm_test_check_has(const char *file, int line, const char *what, const char *text,
		       const char *part);

/* A directory of this case alone, mode 0700, removed with what is in it when the case ends. */
const char *nm_test_dir(void);
/*
 * Run FN(ARG) in a child; it exits 0 when FN returns. The child dies with the case. A child that
 * starts threads has to be forked before its parent has any: the address sanitizer keeps locks that
 * a fork of a threaded process leaves held for ever. Returns its
 * pid; nm_test_join() expects it to end with the wait status EXPECTED (0: good; SIGKILL: killed).
 */
pid_t nm_test_fork(void (*fn)(void *arg), void *arg);
void nm_test_join(pid_t pid, int expected_status);
/* A child has stopped when this returns: none of its threads runs any more. */
void nm_test_stop(pid_t pid);
/* How often this was called before in this case, by all its processes together. */
uint32_t nm_test_next(void);
/* Sleep; only to make a rare order of events likely, never to make one certain. */
void nm_test_sleep_ms(unsigned int ms);
/* A small random number generator; the same sequence for the same seed. */
uint64_t nm_test_random(uint64_t *state);
/* Open descriptors of this process. */
unsigned int nm_test_count_fds(void);
/* Shared (file-backed, MAP_SHARED) mappings of this process. */
unsigned int nm_test_count_mappings(void);

#endif
