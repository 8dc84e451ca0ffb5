/* SPDX-License-Identifier: Apache-2.0 */
/* The site's settings for jobs under Slurm. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "spank/config.h"

static int parse(const char *text, struct nm_spank_config *ret_config, struct nm_reason *why)
{
	return nm_spank_config_parse(text, strlen(text), ret_config, why);
}

NM_TEST(a_sound_file_is_read)
{
	struct nm_spank_config config;
	struct nm_reason why;

	NM_CHECK_EQ(parse("# the site\n\n[defaults]\r\n node = \"container\" # all\n"
			  "segment=\"32M\"\nscratch = \"2G\"\nmpi = \"openmpi5\"\n[limits]\n"
			  "segment = \"64M\"\n[partitions.p-1]\nforbid = \"profile,node\"\n"
			  "segment = \"8M\"\n[partitions.p2]\n"
			  "[profiles.near_1]\nchannels = \"self,shm\"",
			  &config, &why),
		    0);
	NM_CHECK_EQ(config.defaults.node, NM_SPANK_CONTAINER);
	NM_CHECK_EQ(config.defaults.segment_bytes, 32 << 20);
	NM_CHECK_EQ(config.defaults.scratch_bytes, INT64_C(2) << 30);
	NM_CHECK_STR(config.defaults.mpi, "openmpi5");
	NM_CHECK_STR(config.defaults.channels, "");
	NM_CHECK_EQ(config.limits.segment_bytes, 64 << 20);
	NM_CHECK_EQ(config.nr_profiles, 1);
	NM_CHECK_STR(config.profiles[0].name, "near_1");
	NM_CHECK_STR(config.profiles[0].settings.channels, "self,shm");
	NM_CHECK_EQ(config.profiles[0].settings.said, NM_SPANK_SAID_CHANNELS);
	NM_CHECK_EQ(config.nr_partitions, 2);
	NM_CHECK_STR(config.partitions[0].name, "p-1");
	NM_CHECK_EQ(config.partitions[0].forbidden,
		    1 << NM_SPANK_OPTION_NODE | 1 << NM_SPANK_OPTION_PROFILE);
	NM_CHECK_EQ(config.partitions[0].max_segment_bytes, 8 << 20);
	NM_CHECK_EQ(config.partitions[1].forbidden, 0);
	NM_CHECK_EQ(config.partitions[1].max_segment_bytes, 0);
}

NM_TEST(nothing_said_is_the_built_in)
{
	struct nm_spank_config config, built_in;
	struct nm_reason why;

	nm_spank_config_init(&built_in);
	NM_CHECK_EQ(parse("", &config, &why), 0);
	NM_CHECK(!memcmp(&config, &built_in, sizeof(config)));
	NM_CHECK_EQ(config.defaults.node, NM_SPANK_NONE);
	NM_CHECK_EQ(nm_spank_config_load("/nowhere/slurm.toml", &config, &why), 0);
	NM_CHECK(!memcmp(&config, &built_in, sizeof(config)));
}

NM_TEST(every_wrong_line_is_named)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
		{"node = \"none\"\n", "line 1: a key must follow"},
		{"[default]\n", "line 1: a table is [defaults], [limits]"},
		{"[defaults] node\n", "line 1: a table is"},
		{"[defaults\n", "line 1: a table is"},
		{"[defaults]\n[limits]\n[defaults]\n", "line 3: a second table defaults"},
		{"[profiles.]\n", "line 1: the name of a profile"},
		{"[profiles.a b]\n", "line 1: the name of a profile"},
		{"[profiles.a]\n[profiles.a]\n", "line 2: a second profile a"},
		{"[partitions.a.b]\n", "line 1: the name of a partition"},
		{"[partitions.a]\n[partitions.a]\n", "line 2: a second partition a"},
		{"[partitions.a]\nnode = \"none\"\n", "line 2: a key of a partition is forbid"},
		{"[partitions.a]\nforbid = \"\"\n", "line 2: forbid is a list of node"},
		{"[partitions.a]\nforbid = \"node,\"\n", "line 2: forbid is a list of node"},
		{"[partitions.a]\nforbid = \"nodes\"\n", "line 2: forbid is a list of node"},
		{"[partitions.a]\nforbid = \"node\"\nforbid = \"node\"\n",
		 "line 3: a second forbid"},
		{"[partitions.a]\nsegment = \"64\"\n", "line 2: segment must be a size from"},
		{"[partitions.a]\nsegment = \"2M\"\nsegment = \"2M\"\n",
		 "line 3: a second segment"},
		{"[partitions.a]\nsegment = \"2G\"\n", "that of partition a"},
		{"[defaults]\nnode\n", "line 2: neither a [table] nor"},
		{"[defaults]\nnode = container\n", "line 2: write a value in double quotes"},
		{"[defaults]\nnode = \"container\n", "line 2: write a value in double quotes"},
		{"[defaults]\nnode = \"none\" x\n", "line 2: write a value in double quotes"},
		{"[defaults]\nnode = \"no\\u006e\"\n",
		 "line 2: a value must not contain a backslash"},
		{"[defaults]\nnode = \"pod\"\n",
		 "line 2: node is \"none\", \"container\", \"vm\" or"},
		{"[defaults]\nimage = \"a/b\"\n", "line 2: image must be"},
		{"[defaults]\nvms-per-node = \"0\"\n", "line 2: vms-per-node must be a number"},
		{"[defaults]\nvcpus = \"x\"\n", "line 2: vcpus must be a number"},
		{"[defaults]\nmemory = \"64M\"\n", "line 2: memory must be whole MiB"},
		{"[defaults]\naccel = \"xen\"\n", "line 2: accel is"},
		{"[defaults]\nshares = \"home\"\n", "line 2: shares is a list"},
		{"[defaults]\nshares = \"/\"\n", "line 2: shares is a list"},
		{"[defaults]\nshares = \"/srv:\"\n", "line 2: shares is a list"},
		{"[defaults]\nshares = \"/srv,ro\"\n", "line 2: shares is a list"},
		{"[defaults]\nshares = \"/srv/../etc\"\n", "line 2: shares is a list"},
		{"[limits]\nvcpus = \"0\"\n", "line 2: vcpus must be a number"},
		{"[limits]\nvms-per-node = \"many\"\n", "line 2: vms-per-node must be a number"},
		{"[limits]\nservers = \"201\"\n", "line 2: servers must be a number from 1 to"},
		{"[limits]\nservers = \"2\"\nservers = \"2\"\n", "line 3: a second servers"},
		{"[limits]\nmemory = \"1M\"\n", "line 2: memory must be whole MiB"},
		{"[limits]\nmemory = \"1G\"\nmemory = \"1G\"\n", "line 3: a second memory"},
		{"[defaults]\nnode = \"none\"\nnode = \"none\"\n", "line 3: a second node"},
		{"[defaults]\nsegment = \"64\"\n", "line 2: segment must be a size from"},
		{"[defaults]\nscratch = \"64X\"\n", "line 2: scratch must be a size from"},
		{"[defaults]\nmpi = \"lam\"\n", "line 2: mpi is"},
		{"[defaults]\nchannels = \"shm,tcp\"\n", "line 2: channels must be a comma list"},
		{"[defaults]\nchannels = \"shm,\"\n", "line 2: channels must be a comma list"},
		{"[defaults]\ncolour = \"red\"\n", "line 2: a key here is"},
		{"[limits]\nnode = \"none\"\n", "line 2: the key of a limit"},
		{"[limits]\nsegment = \"2M\"\nsegment = \"2M\"\n", "line 3: a second segment"},
		{"[limits]\nsegment = \"2M\"\n", "segment in [defaults] is above"},
		{"[limits]\nvf = \"x\"\n", "line 2: vf must be a number of VFs"},
		{"[limits]\nvf = \"1\"\nvf = \"1\"\n", "line 3: a second vf"},
		{"[defaults]\nvf = \"1\"\n", "vf in [defaults] is above the one in [limits]"},
		{"[profiles.p]\nvf = \"1\"\n", "above the vf in [limits]: that of profile p"},
		{"[partitions.p]\nvf = \"1\"\n", "above the vf in [limits]: that of partition p"},
		{"[partitions.p]\nvf = \"0\"\nvf = \"0\"\n", "line 3: a second vf"},
		{"[partitions.p]\nvf = \"\"\n", "line 2: vf must be a number of VFs"},
		{"[profiles.big]\nsegment = \"2G\"\n", "that of profile big"},
		{"[defaults]\nmpi = \"\x01\"\n", "line 2: a control character"},
	};
	struct nm_spank_config config = {.nr_profiles = 77};
	struct nm_reason why;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		NM_CHECK_EQ(parse(cases[i].text, &config, &why), -EINVAL);
		NM_CHECK_HAS(why.text, cases[i].words);
		NM_CHECK_EQ(config.nr_profiles, 77);
	}
	NM_CHECK_EQ(nm_spank_config_parse("[limits]\n\0", 10, &config, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "line 2: a control character");
}

NM_TEST(a_long_line_and_too_many_tables_are_refused)
{
	struct nm_spank_config config;
	struct nm_reason why;
	char text[1024];
	size_t used = 0;

	memset(text, '#', 300);
	text[300] = '\0';
	NM_CHECK_EQ(parse(text, &config, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "line 1: longer than");
	for (int i = 0; i <= NM_SPANK_MAX_PROFILES; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "[profiles.p%d]\n", i);
	NM_CHECK_EQ(parse(text, &config, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "line 17: more than 16 profiles");
	used = 0;
	for (int i = 0; i <= NM_SPANK_MAX_PARTITIONS; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "[partitions.p%d]\n", i);
	NM_CHECK_EQ(parse(text, &config, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "line 17: more than 16 partitions");
}

NM_TEST(a_file_is_named_with_its_line)
{
	struct nm_spank_config config;
	struct nm_reason why;
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/slurm.toml", nm_test_dir());
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	NM_CHECK_EQ(write(fd, "[limit]\n", 8), 8);
	close(fd);
	NM_CHECK_EQ(nm_spank_config_load(path, &config, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "slurm.toml: line 1: a table is");
	NM_CHECK(nm_spank_config_load(nm_test_dir(), &config, &why) < 0);
	NM_CHECK_HAS(why.text, "Is a directory");
}
