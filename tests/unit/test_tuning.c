/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning files: what is taken, what is refused and in which words, and what is in force then. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "harness.h"
#include "transport/tuning.h"

#define HEAD "nearmetal-tuning 1\ncpu Some CPU\nkernel 6.1.0\ncache 2 1048576\ndate 2026-11-21\n"
#define RATES "placement near\nrate 64K lone pool 13000\nrate more stream both 19000\n"

static struct nm_tuning tuning;
static struct nm_reason why;

static int parse(const char *text)
{
	return nm_tuning_parse(text, strlen(text), &tuning, &why);
}

static void expect_refused(const char *text, const char *words)
{
	NM_CHECK_EQ(parse(text), -EBADMSG);
	NM_CHECK_HAS(why.text, words);
}

NM_TEST(sound_file_is_taken)
{
	NM_CHECK_EQ(parse(HEAD "evidence anything at all, 1 2 3\n" RATES "end\n"), 0);
	NM_CHECK_STR(tuning.machine.cpu, "Some CPU");
	NM_CHECK_EQ(tuning.machine.caches[2], 1048576);
	NM_CHECK(tuning.is_near);
	NM_CHECK_EQ(tuning.rates[0][NM_SELECT_LONE][NM_PROTOCOL_POOL], 13000);
	NM_CHECK_EQ(tuning.rates[3][NM_SELECT_STREAM][NM_PROTOCOL_BOTH], 19000);
	NM_CHECK_EQ(tuning.rates[1][NM_SELECT_LONE][NM_PROTOCOL_PULL], 0);
}

NM_TEST(near_counts_where_both_are_told)
{
	NM_CHECK_EQ(parse(HEAD RATES "placement far\nrate 64K lone pool 2000\nend\n"), 0);
	NM_CHECK_EQ(tuning.rates[0][NM_SELECT_LONE][NM_PROTOCOL_POOL], 13000);
	NM_CHECK_EQ(parse(HEAD "placement far\nrate 64K lone pool 2000\nend\n"), 0);
	NM_CHECK(!tuning.is_near);
	NM_CHECK_EQ(tuning.rates[0][NM_SELECT_LONE][NM_PROTOCOL_POOL], 2000);
}

NM_TEST(spoilt_files_are_refused_with_the_line)
{
	expect_refused("", "line 1: 'nearmetal-tuning 1'");
	expect_refused("nearmetal-tuning 2\n" RATES "end\n", "line 1: ");
	expect_refused("nearmetal-tuning 1", "line 1: ");
	expect_refused(HEAD RATES, "line 9: it is cut off");
	expect_refused(HEAD RATES "en", "line 9: it is cut off");
	expect_refused(HEAD RATES "end\nmore\n", "something follows");
	expect_refused(HEAD RATES "end\n\n", "something follows");
	expect_refused(HEAD "\n" RATES "end\n", "line 6: unknown line");
	expect_refused(HEAD "rate 64K lone pool 1\nend\n", "line 6: a placement comes first");
	expect_refused(HEAD "placement middle\nend\n", "near or far");
	expect_refused(HEAD RATES "placement near\nend\n", "near comes first");
	expect_refused(HEAD "placement far\nplacement near\nend\n", "near comes first");
	expect_refused(HEAD RATES "rate 64K lone pool 5\nend\n", "line 9: said before");
	expect_refused(HEAD RATES "rate 65K lone pool 5\nend\n", "unknown class");
	expect_refused(HEAD RATES "rate 64K busy pool 5\nend\n", "unknown class");
	expect_refused(HEAD RATES "rate 64K lone eager 5\nend\n", "unknown class");
	expect_refused(HEAD RATES "rate 64K lone  5\nend\n", "single spaces");
	expect_refused(HEAD RATES "rate 64K lone pull 5 \nend\n", "single spaces");
	expect_refused(HEAD RATES "rate 64K lone pull\nend\n", "are expected");
	expect_refused(HEAD RATES "rate 64K lone pull 0\nend\n", "a rate from 1");
	expect_refused(HEAD RATES "rate 64K lone pull -5\nend\n", "a rate from 1");
	expect_refused(HEAD RATES "rate 64K lone pull 1e3\nend\n", "a rate from 1");
	expect_refused(HEAD RATES "rate 64K lone pull 10000001\nend\n", "a rate from 1");
	expect_refused(HEAD RATES "rate 64K lone pull 99999999999999999999\nend\n", "a rate from");
	expect_refused(HEAD "cache 4 100\n" RATES "end\n", "a level from 1 to 3");
	expect_refused(HEAD "cache 2 100\n" RATES "end\n", "said before");
	expect_refused(HEAD "cpu again\n" RATES "end\n", "said before");
	expect_refused(HEAD "evidence \x01\n" RATES "end\n", "cannot be printed");
	expect_refused(HEAD "end\n", "at least one rate");
	expect_refused("nearmetal-tuning 1\n" RATES "end\n", "cpu, kernel, date");
	expect_refused("nearmetal-tuning 1\ncpu \nend\n", "1 to 127 bytes");
}

NM_TEST(other_machines_and_kernels_are_told_apart)
{
	struct nm_tuning_machine here = {.cpu = "Some CPU", .kernel = "6.1.0"};

	NM_CHECK_EQ(parse(HEAD RATES "end\n"), 0);
	NM_CHECK_EQ(nm_tuning_check(&tuning, &here, &why), 0);
	here.caches[2] = 2097152;
	NM_CHECK_EQ(nm_tuning_check(&tuning, &here, &why), -ESTALE);
	NM_CHECK_HAS(why.text, "1048576 bytes of L2, not 2097152");
	here.caches[2] = 0;
	snprintf(here.kernel, sizeof(here.kernel), "6.2.0");
	NM_CHECK_EQ(nm_tuning_check(&tuning, &here, &why), -ESTALE);
	NM_CHECK_HAS(why.text, "kernel 6.1.0, not 6.2.0");
	snprintf(here.cpu, sizeof(here.cpu), "Other CPU");
	NM_CHECK_EQ(nm_tuning_check(&tuning, &here, &why), -ESTALE);
	NM_CHECK_HAS(why.text, "another machine: Some CPU, not Other CPU");
	/* What is not known here fits. */
	here = (struct nm_tuning_machine){.cpu = ""};
	NM_CHECK_EQ(nm_tuning_check(&tuning, &here, &why), 0);
}

static const char *write_file(const char *name, const char *text)
{
	static char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", nm_test_dir(), name);
	file = fopen(path, "we");
	NM_CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
	return path;
}

NM_TEST(what_is_no_file_of_ours_is_refused)
{
	struct nm_tuning_machine here = {.cpu = ""};
	char *large = malloc(NM_TUNING_MAX_BYTES + 2), path[300];

	NM_CHECK_EQ(nm_tuning_load("/nowhere/at/all", &here, &tuning, &why), -ENOENT);
	NM_CHECK_EQ(nm_tuning_load(nm_test_dir(), &here, &tuning, &why), -EINVAL);
	snprintf(path, sizeof(path), "%s/pipe", nm_test_dir());
	NM_CHECK_EQ(mkfifo(path, 0600), 0);
	NM_CHECK_EQ(nm_tuning_load(path, &here, &tuning, &why), -EINVAL);
	memset(large, 'x', NM_TUNING_MAX_BYTES + 1);
	large[NM_TUNING_MAX_BYTES + 1] = '\0';
	NM_CHECK_EQ(nm_tuning_load(write_file("large", large), &here, &tuning, &why), -EFBIG);
	NM_CHECK_EQ(nm_tuning_load(write_file("empty", ""), &here, &tuning, &why), -EBADMSG);
	NM_CHECK_EQ(nm_tuning_load(write_file("good", HEAD RATES "end\n"), &here, &tuning, &why),
		    0);
	free(large);
}

static char seen_line[1024];

static void see(enum nm_log_level level, const char *text)
{
	if (level == NM_LOG_WARN)
		snprintf(seen_line, sizeof(seen_line), "%s", text);
}

/* A file for this very machine, with a rate. */
static const char *file_for_here(const char *kernel)
{
	struct nm_tuning_machine here;
	char text[1024];

	nm_tuning_find_machine(&here);
	NM_CHECK(here.cpu[0] && here.kernel[0]);
	snprintf(text, sizeof(text),
		 "nearmetal-tuning 1\ncpu %s\nkernel %s\ndate today\n" RATES "end\n", here.cpu,
		 kernel ? kernel : here.kernel);
	return write_file("tuning", text);
}

NM_TEST(rates_of_the_named_file_are_in_force)
{
	setenv("NEARMETAL_TUNE_FILE", file_for_here(NULL), 1);
	NM_CHECK_EQ(nm_select_params()->prior[0][NM_SELECT_LONE][NM_PROTOCOL_POOL], 13000);
	NM_CHECK_EQ(nm_select_params()->prior[3][NM_SELECT_STREAM][NM_PROTOCOL_BOTH], 19000);
	/* What it does not tell stays as it is by default. */
	NM_CHECK_EQ(nm_select_params()->prior[1][NM_SELECT_LONE][NM_PROTOCOL_PULL],
		    nm_select_defaults.prior[1][NM_SELECT_LONE][NM_PROTOCOL_PULL]);
	NM_CHECK_EQ(nm_select_params()->probe_ms, nm_select_defaults.probe_ms);
	/* Measured near: it says nothing of those who are far. */
	NM_CHECK(!memcmp(nm_select_params()->prior_far, nm_select_defaults.prior_far,
			 sizeof(nm_select_defaults.prior_far)));
}

NM_TEST(stale_file_is_one_warning_and_the_defaults)
{
	nm_log_set_sink(see);
	setenv("NEARMETAL_TUNE_FILE", file_for_here("2.4.18"), 1);
	NM_CHECK(!memcmp(nm_select_params(), &nm_select_defaults, sizeof(nm_select_defaults)));
	NM_CHECK_HAS(seen_line, "kernel 2.4.18");
	NM_CHECK_HAS(seen_line, "nearmetal tune");
}

NM_TEST(named_file_must_be_there)
{
	nm_log_set_sink(see);
	setenv("NEARMETAL_TUNE_FILE", "/nowhere/at/all", 1);
	NM_CHECK(!memcmp(nm_select_params(), &nm_select_defaults, sizeof(nm_select_defaults)));
	NM_CHECK_HAS(seen_line, "/nowhere/at/all");
}

NM_TEST(user_s_file_is_found_and_none_is_fine)
{
	char path[300];

	nm_log_set_sink(see);
	snprintf(path, sizeof(path), "%s/nearmetal", nm_test_dir());
	NM_CHECK_EQ(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/nearmetal/tuning", nm_test_dir());
	NM_CHECK_EQ(rename(file_for_here(NULL), path), 0);
	setenv("XDG_CONFIG_HOME", nm_test_dir(), 1);
	unsetenv("NEARMETAL_TUNE_FILE");
	NM_CHECK_EQ(nm_select_params()->prior[0][NM_SELECT_LONE][NM_PROTOCOL_POOL], 13000);
	NM_CHECK_STR(seen_line, "");
	unlink(path);
	path[strlen(path) - strlen("/tuning")] = '\0';
	rmdir(path);
}
