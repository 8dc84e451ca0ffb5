/* SPDX-License-Identifier: Apache-2.0 */
/* Knobs, log lines, checked arithmetic, addresses, words for relations. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/params.h"
#include "connect/address.h"
#include "connect/locality.h"
#include "harness.h"

static char seen_line[600];
static unsigned int nr_lines;

static void remember_line(enum nm_log_level level, const char *line)
{
	(void)level;
	nr_lines++;
	snprintf(seen_line, sizeof(seen_line), "%s", line);
}

static void expect_refused(const char *name, const char *value, const char *allowed)
{
	struct nm_params params;
	char message[256];

	setenv(name, value, 1);
	NM_CHECK_EQ(nm_params_load(&params, message), -EINVAL);
	NM_CHECK_HAS(message, name);
	NM_CHECK_HAS(message, allowed);
	if (strlen(value) < 40 && value[0] != '\n')
		NM_CHECK_HAS(message, value);
	unsetenv(name);
	NM_CHECK_EQ(nm_params_load(&params, message), 0);
}

NM_TEST(params_have_the_documented_defaults)
{
	const struct nm_param_info *infos;
	struct nm_params params;
	char message[256], text[300];
	size_t i, nr;

	NM_CHECK_EQ(nm_params_load(&params, message), 0);
	NM_CHECK_STR(message, "");
	NM_CHECK_STR(params.channels, "self,shm,segment,net");
	NM_CHECK_EQ(params.pool_size, 4 << 20);
	NM_CHECK_EQ(params.log, NM_LOG_WARN);
	infos = nm_param_infos(&nr);
	NM_CHECK(nr > 10);
	for (i = 0; i < nr; i++) {
		nm_param_format(&params, i, text, sizeof(text));
		NM_CHECK_STR(text, infos[i].fallback);
		NM_CHECK(strlen(infos[i].reason) > 10);
	}
}

NM_TEST(params_read_sizes_with_units)
{
	struct nm_params params;
	char message[256];

	setenv("NEARMETAL_POOL_SIZE", "8M", 1);
	setenv("NEARMETAL_CHUNK_SIZE", "64K", 1);
	setenv("NEARMETAL_SPIN_US", "0", 1);
	setenv("NEARMETAL_LOG", "debug", 1);
	setenv("NEARMETAL_NET", "verbs,tcp", 1);
	setenv("NEARMETAL_INLINE_MAX", "", 1);
	NM_CHECK_EQ(nm_params_load(&params, message), 0);
	NM_CHECK_EQ(params.pool_size, 8 << 20);
	NM_CHECK_EQ(params.chunk_size, 64 << 10);
	NM_CHECK_EQ(params.spin_us, 0);
	NM_CHECK_EQ(params.log, NM_LOG_DEBUG);
	NM_CHECK_STR(params.net, "verbs,tcp");
	NM_CHECK_EQ(params.inline_max, 208);
	setenv("NEARMETAL_POOL_SIZE", "1G", 1);
	NM_CHECK_EQ(nm_params_load(&params, message), 0);
	NM_CHECK_EQ(params.pool_size, 1 << 30);
}

NM_TEST(params_refuse_garbage_in_every_knob)
{
	static const char *const numbers[] = {
		"x",
		"-1",
		" 1",
		"1 ",
		"1k",
		"0x10",
		"1KK",
		"18446744073709551616",
		"1.5",
		"K",
		"99999999999999999999999999999999999999999999999999999",
		"17179869184G",
	};
	const struct nm_param_info *infos;
	char text[400];
	size_t i, j, nr;

	infos = nm_param_infos(&nr);
	for (i = 0; i < nr; i++) {
		if (!strcmp(infos[i].kind, "UINT")) {
			for (j = 0; j < NM_ARRAY_SIZE(numbers); j++)
				expect_refused(infos[i].env, numbers[j],
					       infos[i].power_of_two ? "power of two" :
								       "whole number");
			snprintf(text, sizeof(text), "%llu", (unsigned long long)infos[i].max + 1);
			expect_refused(infos[i].env, text, "from");
		} else if (!strcmp(infos[i].kind, "LEVEL")) {
			expect_refused(infos[i].env, "loud", "error, warn, info or debug");
		} else {
			memset(text, 'a', 300);
			text[300] = '\0';
			expect_refused(infos[i].env, text, "at most 255 bytes");
			expect_refused(infos[i].env, "\n", "control characters");
		}
	}
}

NM_TEST(params_refuse_values_that_do_not_fit)
{
	expect_refused("NEARMETAL_RING_SLOTS", "100", "power of two");
	expect_refused("NEARMETAL_CHUNK_SIZE", "12288", "power of two");
	expect_refused("NEARMETAL_CHANNELS", "self,,shm", "comma list of self,shm,segment,net");
	expect_refused("NEARMETAL_CHANNELS", "self,shm,", "comma list");
	expect_refused("NEARMETAL_CHANNELS", "SHM", "comma list");
	expect_refused("NEARMETAL_RUNDIR", "relative/path", "absolute path");
}

NM_TEST(params_warn_of_a_slip_in_a_name)
{
	struct nm_params params;
	char message[256];

	nm_log_set_sink(remember_line);
	setenv("NEARMETAL_POOLSIZE", "8M", 1);
	NM_CHECK_EQ(nm_params_load(&params, message), 0);
	NM_CHECK_EQ(nr_lines, 1);
	NM_CHECK_HAS(seen_line, "NEARMETAL_POOLSIZE");
	NM_CHECK_HAS(seen_line, "did you mean NEARMETAL_POOL_SIZE");
	unsetenv("NEARMETAL_POOLSIZE");
	setenv("NEARMETAL_STATE_DIR", "/x", 1);
	setenv("NEARMETAL_SOMETHING_ELSE_ENTIRELY", "1", 1);
	NM_CHECK_EQ(nm_params_load(&params, message), 0);
	NM_CHECK_EQ(nr_lines, 1);
	nm_log_set_sink(NULL);
}

NM_TEST(params_channel_list_is_matched_by_whole_words)
{
	struct nm_params params;
	char message[256];

	setenv("NEARMETAL_CHANNELS", "net,shm", 1);
	NM_CHECK_EQ(nm_params_load(&params, message), 0);
	NM_CHECK(nm_params_channel_allowed(&params, "shm"));
	NM_CHECK(nm_params_channel_allowed(&params, "net"));
	NM_CHECK(!nm_params_channel_allowed(&params, "self"));
	NM_CHECK(!nm_params_channel_allowed(&params, "sh"));
}

static const char *channels_with(const char *list, const char *ivshmem)
{
	static struct nm_params params;
	char message[256];

	setenv("NEARMETAL_CHANNELS", list, 1);
	setenv("MV2_VIRT_USE_IVSHMEM", ivshmem, 1);
	NM_CHECK_EQ(nm_params_load(&params, message), 0);
	return params.channels;
}

NM_TEST(params_know_the_switch_of_mvapich2_virt)
{
	NM_CHECK_STR(channels_with("", "0"), "self,shm,net");
	NM_CHECK_STR(channels_with("", "1"), "self,shm,net,segment");
	NM_CHECK_STR(channels_with("", ""), "self,shm,segment,net");
	NM_CHECK_STR(channels_with("self,net", "1"), "self,net,segment");
	NM_CHECK_STR(channels_with("segment,self", "0"), "self");
	setenv("NEARMETAL_CHANNELS", "segment", 1);
	expect_refused("MV2_VIRT_USE_IVSHMEM", "0", "leave no list of channels");
	expect_refused("MV2_VIRT_USE_IVSHMEM", "yes", "give 0 or 1");
}

NM_TEST(log_lines_stay_one_line_and_keep_errno)
{
	nm_log_set_sink(remember_line);
	errno = EBUSY;
	nm_info("peer says '%s'", "a\nb\x1b[2J");
	NM_CHECK_EQ(errno, EBUSY);
	NM_CHECK_STR(seen_line, "peer says 'a?b?[2J'");
	nm_log_set_sink(NULL);
}

static bool sigpipe_is_due(void)
{
	sigset_t due;

	sigpending(&due);
	return sigismember(&due, SIGPIPE);
}

NM_TEST(nobody_reads_the_log_and_no_signal_comes)
{
	int ends[2], console = dup(STDERR_FILENO);
	sigset_t pipe;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	NM_CHECK(console >= 0);
	NM_CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
	NM_CHECK(dup2(ends[1], STDERR_FILENO) >= 0);
	close(ends[0]);
	errno = EBUSY;
	nm_error("unread");
	NM_CHECK_EQ(errno, EBUSY);
	/* The program's own way with this signal is left as it was. */
	sigprocmask(SIG_BLOCK, &pipe, NULL);
	nm_error("unread");
	NM_CHECK(!sigpipe_is_due());
	raise(SIGPIPE);
	nm_error("unread");
	NM_CHECK(sigpipe_is_due());
	NM_CHECK(dup2(console, STDERR_FILENO) >= 0);
	close(console);
	close(ends[1]);
}

NM_TEST(arithmetic_reports_overflow)
{
	uint64_t result = 7;

	NM_CHECK(!nm_add_u64(UINT64_MAX, 1, &result));
	NM_CHECK(!nm_mul_u64(UINT64_C(1) << 63, 2, &result));
	NM_CHECK_EQ(result, 7);
	NM_CHECK(nm_add_u64(UINT64_MAX - 1, 1, &result));
	NM_CHECK(result == UINT64_MAX);
	NM_CHECK_EQ(nm_align_up(4097, 4096), 8192);
	NM_CHECK_EQ(nm_clamp_index(3, 4), 3);
	NM_CHECK_EQ(nm_clamp_index(4, 4), 0);
	NM_CHECK_EQ(nm_clamp_index(UINT32_MAX, 4), 0);
	NM_CHECK(!nm_is_power_of_two(0));
	NM_CHECK(nm_is_power_of_two(UINT64_C(1) << 63));
	NM_CHECK(nm_clock_ns() <= nm_clock_ns());
}

NM_TEST(address_parse_checks_every_field)
{
	struct nm_address address = {.version = NM_ADDRESS_VERSION, .inner_len = 16}, parsed;

	NM_CHECK_EQ(nm_identity_create(&address.who), 0);
	NM_CHECK_EQ(nm_address_parse(&address, sizeof(address), &parsed), 0);
	NM_CHECK(nm_identity_equal(&address.who, &parsed.who));
	NM_CHECK_EQ(nm_address_parse(&address, sizeof(address) - 1, &parsed), -EINVAL);
	NM_CHECK_EQ(nm_address_parse(&address, sizeof(address) + 1, &parsed), -EINVAL);
	NM_CHECK_EQ(nm_address_parse(NULL, sizeof(address), &parsed), -EINVAL);
	address.inner_len = NM_INNER_MAX + 1;
	NM_CHECK_EQ(nm_address_parse(&address, sizeof(address), &parsed), -EINVAL);
	address.inner_len = NM_INNER_MAX;
	NM_CHECK_EQ(nm_address_parse(&address, sizeof(address), &parsed), 0);
	address.version++;
	NM_CHECK_EQ(nm_address_parse(&address, sizeof(address), &parsed), -EINVAL);
	address.version--;
	memset(address.who.place, 0, sizeof(address.who.place));
	NM_CHECK_EQ(nm_address_parse(&address, sizeof(address), &parsed), -EINVAL);
}

NM_TEST(identities_differ)
{
	struct nm_identity a, b;

	NM_CHECK_EQ(nm_identity_create(&a), 0);
	NM_CHECK_EQ(nm_identity_create(&b), 0);
	NM_CHECK(!nm_identity_equal(&a, &b));
	NM_CHECK(nm_identity_hash(&a) != nm_identity_hash(&b));
	b = a;
	NM_CHECK(nm_identity_equal(&a, &b));
	NM_CHECK(nm_identity_hash(&a) == nm_identity_hash(&b));
	b.place[7] ^= 1;
	NM_CHECK(!nm_identity_equal(&a, &b));
}

NM_TEST(places_are_those_that_were_set)
{
	const uint8_t here[NM_VMSEG_TOKEN_LEN] = {1}, there[NM_VMSEG_TOKEN_LEN] = {2};
	const uint64_t inode = (UINT64_C(1) << 40) - 2;
	struct nm_identity who, before;

	NM_CHECK_EQ(nm_identity_create(&who), 0);
	before = who;
	nm_identity_set_part(&who, here, 3);
	nm_identity_set_file(&who, inode, 99);
	NM_CHECK(!memcmp(who.id, before.id, sizeof(who.id)));
	NM_CHECK(nm_identity_has_file(&who, inode, 99));
	NM_CHECK(!nm_identity_has_file(&who, inode + 1, 99));
	NM_CHECK(!nm_identity_has_file(&who, inode ^ UINT64_C(1) << 39, 99));
	NM_CHECK(!nm_identity_has_file(&who, inode, 98));
	NM_CHECK(nm_identity_has_part(&who, here, 3));
	NM_CHECK(!nm_identity_has_part(&who, here, 4));
	NM_CHECK(!nm_identity_has_part(&who, there, 3));
}

NM_TEST(words_for_people)
{
	struct nm_reason reason;
	char text[400];

	NM_CHECK_STR(nm_relation_name(NM_RELATION_HOST), "host");
	NM_CHECK_STR(nm_channel_name(NM_CHANNEL_SHM), "shm");
	NM_CHECK_STR(nm_channel_name(NM_CHANNEL_NONE), "none");
	NM_CHECK_STR(nm_integrity_name(NM_INTEGRITY_CONVENTION), "by convention");
	memset(text, 'x', 399);
	text[399] = '\0';
	nm_reason_set(&reason, "%s", text);
	NM_CHECK_EQ(strlen(reason.text), sizeof(reason.text) - 1);
	nm_reason_set(NULL, "nobody asks");
	nm_reason_add(NULL, "nobody asks");
}

/* A reason that was cut says so; one that fits is whole. */
NM_TEST(long_reasons_are_cut_where_it_is_seen)
{
	struct nm_reason reason;
	char text[400];

	memset(text, 'x', sizeof(text));
	text[sizeof(reason.text) - 1] = '\0';
	nm_reason_set(&reason, "%s", text);
	NM_CHECK_STR(reason.text, text);
	nm_reason_add(&reason, "y");
	NM_CHECK_STR(reason.text + sizeof(reason.text) - 5, "x...");
	nm_reason_set(&reason, "%sy", text);
	NM_CHECK_STR(reason.text + sizeof(reason.text) - 5, "x...");
	nm_reason_set(&reason, "one");
	nm_reason_add(&reason, "; %s", "two");
	NM_CHECK_STR(reason.text, "one; two");
	/* A letter of three bytes lies across the cut: it goes whole. */
	memcpy(text + sizeof(reason.text) - 6, "\xe2\x80\xa6", 3);
	nm_reason_set(&reason, "%syyy", text);
	NM_CHECK_STR(reason.text + sizeof(reason.text) - 8, "xx...");
}

NM_TEST(small_files_are_read_whole_or_not_at_all)
{
	int fd = memfd_create("file", 0);
	char bytes[8];

	NM_CHECK(fd >= 0);
	NM_CHECK_EQ(nm_file_read(fd, bytes, sizeof(bytes)), 0);
	NM_CHECK_EQ(write(fd, "1234567", 7), 7);
	NM_CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
	NM_CHECK_EQ(nm_file_read(fd, bytes, sizeof(bytes)), 7);
	NM_CHECK(!memcmp(bytes, "1234567", 7));
	NM_CHECK_EQ(write(fd, "8", 1), 1);
	NM_CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
	NM_CHECK_EQ(nm_file_read(fd, bytes, sizeof(bytes)), -EFBIG);
	close(fd);
	NM_CHECK_EQ(nm_file_read(fd, bytes, sizeof(bytes)), -EBADF);
}
