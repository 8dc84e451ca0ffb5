/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration that the guest unit writes, and what the channel does with a wrong one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "harness.h"
#include "transport/transport.h"
#include "vmseg_fixture.h"

#define SOUND                                                                                      \
	"version = 1\ndevice = ivshmem\nown = /dev/nearmetal/own\nall = /dev/nearmetal/all\n"      \
	"part = 1\ntoken = 000102030405060708090a0B0c0D0e0f\nlock = /run/nearmetal/segment.lock\n"

static int parse(const char *text, struct nm_vmseg_config *ret_config, struct nm_reason *why)
{
	return nm_vmseg_config_parse(text, strlen(text), ret_config, why);
}

NM_TEST(a_sound_file_is_read)
{
	struct nm_vmseg_config config;
	struct nm_reason why;

	NM_CHECK_EQ(parse(SOUND, &config, &why), 0);
	NM_CHECK_EQ(config.device, NM_VMSEG_IVSHMEM);
	NM_CHECK_EQ(config.integrity, NM_VMSEG_UNTOLD);
	NM_CHECK_STR(config.own, "/dev/nearmetal/own");
	NM_CHECK_STR(config.all, "/dev/nearmetal/all");
	NM_CHECK_STR(config.lock, "/run/nearmetal/segment.lock");
	NM_CHECK_EQ(config.part, 1);
	NM_CHECK_EQ(config.token[0], 0);
	NM_CHECK_EQ(config.token[11], 11);
	NM_CHECK_EQ(config.token[15], 15);
	NM_CHECK_EQ(config.numa, -1);
	NM_CHECK_EQ(config.vcpu_numa, -1);
	NM_CHECK_EQ(parse("# by the guest unit\r\n\n  " SOUND
			  "\tnuma=3\nvcpu_numa = -1 \nintegrity = enforced",
			  &config, &why),
		    0);
	NM_CHECK_EQ(config.numa, 3);
	NM_CHECK_EQ(config.vcpu_numa, -1);
	NM_CHECK_EQ(config.integrity, NM_VMSEG_ENFORCED);
	NM_CHECK_EQ(config.distances[0], 0);
	NM_CHECK_EQ(parse(SOUND "distances = 10\t21  255 \n", &config, &why), 0);
	NM_CHECK_EQ(config.distances[0], 10);
	NM_CHECK_EQ(config.distances[1], 21);
	NM_CHECK_EQ(config.distances[2], 255);
	NM_CHECK_EQ(config.distances[3], 0);
	NM_CHECK_EQ(parse(SOUND "distances =\n", &config, &why), 0);
	NM_CHECK_EQ(config.endpoints, 0);
	NM_CHECK_EQ(parse(SOUND "endpoints = 256\n", &config, &why), 0);
	NM_CHECK_EQ(config.endpoints, 256);
}

NM_TEST(distances_of_more_nodes_than_there_can_be_are_refused)
{
	char text[1024] = SOUND "distances =";
	struct nm_vmseg_config config;
	struct nm_reason why;

	for (int i = 0; i < NM_VMSEG_MAX_NUMA; i++)
		strcat(text, " 10");
	NM_CHECK_EQ(parse(text, &config, &why), 0);
	NM_CHECK_EQ(config.distances[NM_VMSEG_MAX_NUMA - 1], 10);
	strcat(text, " 10");
	NM_CHECK(parse(text, &config, &why) < 0);
}

NM_TEST(every_wrong_line_is_named)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
		{"", "line 0: the file ends without `version`"},
		{"version = 2\n", "line 1: version must be 1"},
		{"version = 1\nversion = 1\n", "line 2: `version` is set twice"},
		{"version = 1\n\ndevice = usb\n", "line 3: device must be ivshmem or dax"},
		{"integrity = yes\n", "line 1: integrity must be enforced or convention"},
		{"own = dev/own\n", "line 1: own must be an absolute path"},
		{"own = /dev/\x01\n", "line 1: own must be an absolute path"},
		{"all =\n", "line 1: all must be an absolute path"},
		{"part = 256\n", "line 1: part must be a number from 0 to 255"},
		{"part = -1\n", "line 1: part must be"},
		{"part = 1x\n", "line 1: part must be"},
		{"part = -\n", "line 1: part must be"},
		{"part = 99999999999999999999\n", "line 1: part must be"},
		{"token = 00000000000000000000000000000000\n", "line 1: token must be"},
		{"token = 0102\n", "line 1: token must be 32 hexadecimal digits"},
		{"token = g0000000000000000000000000000000\n", "line 1: token must be"},
		{"numa = 1024\n", "line 1: numa must be"},
		{"distances = 10,21\n", "line 1: distances must be at most 64 numbers"},
		{"distances = 10 256\n", "line 1: distances must be"},
		{"distances = 10 -1\n", "line 1: distances must be"},
		{"endpoints = 0\n", "line 1: endpoints must be a number from 1 to 256"},
		{"endpoints = 257\n", "line 1: endpoints must be"},
		{"colour = red\n", "line 1: unknown key"},
		{"version\n", "line 1: does not have the form `key = value`"},
		{"version = 1\ndevice = dax\nall = /a/b\npart = 0\n"
		 "token = 01000000000000000000000000000000\n",
		 "line 5: the file ends without `lock`"},
		{"version = 1\ndevice = ivshmem\nall = /a/b\npart = 0\nlock = /a/l\n"
		 "token = 01000000000000000000000000000000\n",
		 "without `own`, which ivshmem needs"},
	};
	struct nm_vmseg_config config;

	for (size_t i = 0; i < NM_ARRAY_SIZE(cases); i++) {
		struct nm_reason why = {""};

		NM_CHECK_EQ(parse(cases[i].text, &config, &why), -EINVAL);
		NM_CHECK_HAS(why.text, cases[i].words);
	}
}

static void put(const char *path, const char *text, mode_t mode)
{
	FILE *file = fopen(path, "we");

	NM_CHECK(file != NULL);
	NM_CHECK(fputs(text, file) >= 0);
	NM_CHECK_EQ(fclose(file), 0);
	NM_CHECK_EQ(chmod(path, mode), 0);
}

NM_TEST(files_of_strangers_are_refused)
{
	struct nm_vmseg_config config;
	struct nm_reason why;
	char path[512];

	snprintf(path, sizeof(path), "%s/conf", nm_test_dir());
	NM_CHECK_EQ(nm_vmseg_config_load(path, &config, &why), -ENOENT);
	NM_CHECK_HAS(why.text, "it does not exist");
	put(path, SOUND, 0644);
	NM_CHECK_EQ(nm_vmseg_config_load(path, &config, &why), 0);
	NM_CHECK_EQ(config.part, 1);
	NM_CHECK_EQ(chmod(path, 0664), 0);
	NM_CHECK_EQ(nm_vmseg_config_load(path, &config, &why), -EPERM);
	NM_CHECK_HAS(why.text, "other users could have written it");
	NM_CHECK_EQ(chmod(path, 0600), 0);
	put(path, "version = 3\n", 0600);
	NM_CHECK_EQ(nm_vmseg_config_load(path, &config, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "conf: line 1: version must be 1");
	NM_CHECK_EQ(truncate(path, NM_VMSEG_CONFIG_MAX_BYTES + 1), 0);
	NM_CHECK_EQ(nm_vmseg_config_load(path, &config, &why), -EFBIG);
	NM_CHECK_EQ(nm_vmseg_config_load(nm_test_dir(), &config, &why), -EPERM);
	if (geteuid() == 0) {
		put(path, SOUND, 0644);
		NM_CHECK_EQ(chown(path, 12345, (gid_t)-1), 0);
		NM_CHECK_EQ(nm_vmseg_config_load(path, &config, &why), -EPERM);
	}
}

static unsigned int nr_lines;

static void count_line(enum nm_log_level level, const char *line)
{
	(void)level;
	(void)line;
	nr_lines++;
}

static int try_config(const char *text, struct nm_reason *ret_why)
{
	struct nm_sink sink = {0};
	struct nm_transport *transport;
	struct nm_address address = {.version = NM_ADDRESS_VERSION};
	char path[300];
	FILE *out;

	snprintf(path, sizeof(path), "%s/segment.conf", nm_test_dir());
	unlink(path);
	setenv("NEARMETAL_SEGMENT", path, 1);
	if (text) {
		out = fopen(path, "w");
		NM_CHECK(out != NULL);
		fputs(text, out);
		NM_CHECK_EQ(fclose(out), 0);
		NM_CHECK_EQ(chmod(path, 0600), 0);
	}
	NM_CHECK_EQ(nm_identity_create(&address.who), 0);
	return nm_vmseg_kind.create(&sink, &address, &transport, ret_why);
}

NM_TEST_WITHIN(configurations_that_are_not_right_say_why, 60)
{
	char text[1024];
	struct nm_vmseg_config config = segment_config(0);
	struct nm_reason why = {""};

	nm_log_set_sink(count_line);
	NM_CHECK_EQ(try_config(NULL, &why), -ENOENT);
	NM_CHECK_EQ(nr_lines, 0);
	NM_CHECK(try_config("\x7f\x80 rubbish \n=\n", &why) < 0);
	NM_CHECK(why.text[0]);
	segment_file(2, 32 * SEGMENT_MIB);
	snprintf(text, sizeof(text),
		 "version = 1\ndevice = dax\nall = %s\nlock = %s\npart = 0\n"
		 "token = 000102030405060708090a0b0c0d0e0f\n",
		 config.all, config.lock);
	NM_CHECK_EQ(try_config(text, &why), -EPERM);
	NM_CHECK_HAS(why.text, "another segment");
	NM_CHECK_EQ(nr_lines, 1);
	nm_log_set_sink(NULL);
}
