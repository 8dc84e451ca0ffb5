/* SPDX-License-Identifier: Apache-2.0 */
/* What a user may ask of Slurm, and what the job gets. */
#include <errno.h>
#include <string.h>

#include "harness.h"
#include "spank/options.h"

static const char settings[] = "[defaults]\nmpi = \"openmpi4\"\n[limits]\nsegment = \"100M\"\n"
			       "vf = \"4\"\n[profiles.fast]\nnode = \"container\"\nvf = \"2\"\n"
			       "[partitions.few]\nvf = \"1\"\n[partitions.no]\nforbid = \"vf\"\n"
			       "[profiles.near]\nnode = \"container\"\nsegment = \"8M\"\n"
			       "channels = \"self,shm\"\n[profiles.plain]\nnode = \"none\"\n"
			       "[profiles.pair]\nnode = \"vm\"\nvms-per-node = \"2\"\n"
			       "memory = \"512M\"\nshares = \"/home:/a-b/c\"\naccel = \"tcg\"\n"
			       "[partitions.small]\nsegment = \"4M\"\n"
			       "[partitions.strict]\nforbid = \"segment,profile\"\n";

static const char machines[] = "[limits]\nvms-per-node = \"3\"\nvcpus = \"4\"\nmemory = \"2G\"\n"
			       "servers = \"5\"\n"
			       "[partitions.plain]\nforbid = \"vms-per-node,image\"\n";

struct wish {
	const char *node, *segment, *profile, *partitions, *vf;
};

static int ask(struct wish wish, struct nm_spank_request *ret_request, struct nm_reason *why)
{
	const char *arguments[NM_SPANK_NR_OPTIONS] = {wish.node, wish.segment, wish.profile,
						      wish.vf};
	struct nm_spank_options options = {0};
	struct nm_spank_config config;

	NM_CHECK_EQ(nm_spank_config_parse(settings, strlen(settings), &config, why), 0);
	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++)
		if (arguments[i] &&
		    nm_spank_options_take(&options, (enum nm_spank_option)i, arguments[i], why))
			return -EINVAL;
	return nm_spank_resolve(&options, &config, wish.partitions, ret_request, why);
}

NM_TEST(options_come_before_the_profile_before_the_defaults)
{
	struct nm_spank_request request;
	char text[NM_SPANK_REQUEST_LEN];
	struct nm_reason why;

	NM_CHECK_EQ(ask((struct wish){0}, &request, &why), 0);
	NM_CHECK_EQ(request.node, NM_SPANK_NONE);
	NM_CHECK_EQ(ask((struct wish){.profile = "near"}, &request, &why), 0);
	nm_spank_request_format(&request, text);
	NM_CHECK_STR(text, "node=container segment=8388608 scratch=1073741824 mpi=openmpi4 "
			   "channels=self,shm vf=0");
	NM_CHECK_EQ(ask((struct wish){.node = "container", .segment = "16M", .profile = "plain"},
			&request, &why),
		    0);
	NM_CHECK_EQ(request.node, NM_SPANK_CONTAINER);
	NM_CHECK_EQ(request.segment_bytes, 16 << 20);
	/* A step outside the containers of its allocation has the other options from there. */
	NM_CHECK_EQ(ask((struct wish){.node = "none", .segment = "16M", .profile = "near"},
			&request, &why),
		    0);
	NM_CHECK_EQ(request.node, NM_SPANK_NONE);
}

NM_TEST(a_wrong_wish_is_refused_in_words)
{
	static const struct {
		struct wish wish;
		const char *words;
	} cases[] = {
		{{.node = ""}, "--nm-node=: must be container, vm, openstack or none"},
		{{.node = "Container"},
		 "--nm-node=Container: must be container, vm, openstack or none"},
		{{.node = "vm"}, "--nm-node=vm: this site does not give virtual machines to jobs"},
		{{.node = "openstack"}, "--nm-node=openstack: this site does not give servers"},
		{{.profile = "pair"}, "this site does not give virtual machines to jobs"},
		{{.node = "a\nb\x1b[0m"}, "--nm-node=a?b?[0m: must be"},
		{{.node = "0123456789012345678901234567890123"},
		 "--nm-node=0123456789012345678901234567...: must be"},
		{{.node = "container", .segment = ""}, "--nm-segment=: give a size"},
		{{.node = "container", .segment = "1023K"},
		 "--nm-segment=1023K: give a size of at least 1M"},
		{{.node = "container", .segment = "-5M"}, "--nm-segment=-5M: give a size"},
		{{.node = "container", .segment = "18446744073709551616"}, "give a size"},
		{{.node = "container", .segment = "101M"},
		 "--nm-segment: this site allows 100M at most"},
		{{.segment = "5M"}, "--nm-segment needs --nm-node=container"},
		{{.segment = "5M", .profile = "plain"}, "--nm-segment needs --nm-node=container"},
		{{.profile = ""}, "--nm-profile=: not a valid name"},
		{{.profile = "far"},
		 "--nm-profile=far: unknown profile; known profiles: fast near plain pair"},
		{{.profile = "0123456789012345678901234567890123"}, "not a valid name"},
		{{.node = "container", .segment = "5M", .partitions = "small"},
		 "--nm-segment: partition small allows 4M at most"},
		/* The profile's size is the user's wish, too. */
		{{.profile = "near", .partitions = "other,small"}, "partition small allows 4M"},
		{{.node = "container", .segment = "1M", .partitions = "strict"},
		 "--nm-segment: partition strict forbids this option"},
		{{.profile = "near", .partitions = "strict,other"}, "--nm-profile: partition"},
		{{.node = "container", .segment = "101M", .partitions = "other"},
		 "this site allows 100M at most"},
		{{.vf = "1"}, "--nm-vf needs --nm-node"},
		{{.vf = ""}, "--nm-vf=: give a number of VFs for each node"},
		{{.vf = "-1"}, "--nm-vf=-1: give a number"},
		{{.vf = "1025"}, "--nm-vf=1025: give a number"},
		{{.vf = "99999999999999999999"}, "give a number"},
		{{.vf = "2x\x1b"}, "--nm-vf=2x?: give a number"},
		{{.node = "container", .vf = "5"}, "--nm-vf: this site gives a job 4 on each"},
		{{.node = "container", .vf = "2", .partitions = "few"},
		 "partition few allows 1 on"},
		{{.profile = "fast", .partitions = "few"}, "--nm-vf: partition few allows 1 on"},
		{{.node = "container", .vf = "1", .partitions = "no"},
		 "--nm-vf: partition no forb"},
	};
	struct nm_spank_request request = {.segment_bytes = 77};
	struct nm_reason why;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		NM_CHECK_EQ(ask(cases[i].wish, &request, &why), -EINVAL);
		NM_CHECK_HAS(why.text, cases[i].words);
		NM_CHECK_EQ(request.segment_bytes, 77);
	}
}

NM_TEST(a_partition_narrows_what_nobody_asked_for)
{
	struct nm_spank_request request;
	struct nm_reason why;

	NM_CHECK_EQ(ask((struct wish){.node = "container", .partitions = "small"}, &request, &why),
		    0);
	NM_CHECK_EQ(request.segment_bytes, 4 << 20);
	NM_CHECK_EQ(ask((struct wish){.node = "container", .segment = "4M", .partitions = "small"},
			&request, &why),
		    0);
	NM_CHECK_EQ(ask((struct wish){.node = "none", .partitions = "strict"}, &request, &why), 0);
	/* Neither a part of a name nor a longer one is that name. */
	NM_CHECK_EQ(ask((struct wish){.node = "container",
				      .segment = "5M",
				      .profile = "near",
				      .partitions = "smal,smaller,,strict2"},
			&request, &why),
		    0);
	NM_CHECK_EQ(request.segment_bytes, 5 << 20);
}

NM_TEST(vfs_are_asked_for_by_number)
{
	struct nm_spank_request request;
	char text[NM_SPANK_REQUEST_LEN];
	struct nm_reason why;

	NM_CHECK_EQ(ask((struct wish){.node = "container", .vf = "4"}, &request, &why), 0);
	NM_CHECK_EQ(request.nr_vfs, 4);
	nm_spank_request_format(&request, text);
	NM_CHECK_HAS(text, " vf=4");
	NM_CHECK_EQ(ask((struct wish){.profile = "fast"}, &request, &why), 0);
	NM_CHECK_EQ(request.nr_vfs, 2);
	NM_CHECK_EQ(ask((struct wish){.profile = "fast", .vf = "0"}, &request, &why), 0);
	NM_CHECK_EQ(request.nr_vfs, 0);
	NM_CHECK_EQ(ask((struct wish){.node = "none", .vf = "4"}, &request, &why), 0);
	NM_CHECK_EQ(ask((struct wish){.node = "container", .vf = "1", .partitions = "few"},
			&request, &why),
		    0);
}

NM_TEST(a_site_that_says_nothing_gives_no_vfs)
{
	struct nm_spank_options options = {0};
	struct nm_spank_request request;
	struct nm_spank_config config;
	struct nm_reason why;

	nm_spank_config_init(&config);
	NM_CHECK_EQ(nm_spank_options_take(&options, NM_SPANK_OPTION_NODE, "container", &why), 0);
	NM_CHECK_EQ(nm_spank_options_take(&options, NM_SPANK_OPTION_VF, "1", &why), 0);
	NM_CHECK_EQ(nm_spank_resolve(&options, &config, NULL, &request, &why), -EINVAL);
	NM_CHECK_HAS(why.text, "this site gives a job 0 on each node at most");
}

struct machines {
	const char *node, *image, *vms, *vcpus, *memory, *segment, *partitions;
};

static int ask_for(struct machines wish, struct nm_spank_request *ret_request,
		   struct nm_reason *why)
{
	const char *arguments[NM_SPANK_NR_OPTIONS] = {
		[NM_SPANK_OPTION_NODE] = wish.node,	[NM_SPANK_OPTION_IMAGE] = wish.image,
		[NM_SPANK_OPTION_VMS] = wish.vms,	[NM_SPANK_OPTION_VCPUS] = wish.vcpus,
		[NM_SPANK_OPTION_MEMORY] = wish.memory, [NM_SPANK_OPTION_SEGMENT] = wish.segment,
	};
	struct nm_spank_options options = {0};
	struct nm_spank_config config;

	NM_CHECK_EQ(nm_spank_config_parse(machines, strlen(machines), &config, why), 0);
	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++)
		if (arguments[i] &&
		    nm_spank_options_take(&options, (enum nm_spank_option)i, arguments[i], why))
			return -EINVAL;
	return nm_spank_resolve(&options, &config, wish.partitions, ret_request, why);
}

NM_TEST(machines_are_what_was_asked_for_within_limits)
{
	struct nm_spank_request request;
	char text[NM_SPANK_REQUEST_LEN];
	struct nm_reason why;

	NM_CHECK_EQ(ask_for((struct machines){.node = "vm"}, &request, &why), 0);
	nm_spank_request_format(&request, text);
	NM_CHECK_STR(text, "node=vm segment=67108864 scratch=1073741824 mpi= channels= vf=0 "
			   "image=default vms=1 vcpus=1 memory=1073741824 shares= accel=kvm");
	NM_CHECK_EQ(ask_for((struct machines){.node = "vm",
					      .image = "0123456789abcdef",
					      .vms = "3",
					      .vcpus = "4",
					      .memory = "2G",
					      .segment = "1M"},
			    &request, &why),
		    0);
	nm_spank_request_format(&request, text);
	NM_CHECK_HAS(text, "image=0123456789abcdef vms=3 vcpus=4 memory=2147483648 shares=");
	NM_CHECK_EQ(ask_for((struct machines){.node = "openstack", .image = "big", .vms = "5"},
			    &request, &why),
		    0);
	nm_spank_request_format(&request, text);
	NM_CHECK_STR(text, "node=openstack segment=67108864 scratch=1073741824 mpi= channels= vf=0 "
			   "image=big servers=5");
	/* A step on the node itself has the other options from its allocation. */
	NM_CHECK_EQ(ask_for((struct machines){.node = "none", .vms = "2"}, &request, &why), 0);
	NM_CHECK_EQ(request.node, NM_SPANK_NONE);
}

NM_TEST(machines_that_cannot_be_had_are_refused_in_words)
{
	static const struct {
		struct machines wish;
		const char *words;
	} cases[] = {
		{{.node = "vm", .image = ""}, "--nm-image=: not a valid name"},
		{{.node = "vm", .image = "../../etc"}, "--nm-image=../../etc: not a valid name"},
		{{.node = "vm", .image = "-h"}, "--nm-image=-h: not a valid name"},
		{{.node = "vm", .image = "--accel"}, "--nm-image=--accel: not a valid name"},
		{{.node = "vm", .image = "0123456789012345678901234567890123"}, "not a valid name"},
		{{.node = "vm", .vms = "0"}, "--nm-vms-per-node=0: give a number from 1 to 200"},
		{{.node = "vm", .vms = "-1"}, "--nm-vms-per-node=-1: give a number"},
		{{.node = "vm", .vms = " 1"}, "give a number"},
		{{.node = "vm", .vms = "1x"}, "give a number"},
		{{.node = "vm", .vms = "99999999999999999999999"}, "give a number"},
		{{.node = "vm", .vms = "4"}, "--nm-vms-per-node: this site allows 3 at most"},
		{{.node = "vm", .vcpus = "201"}, "--nm-vcpus=201: give a number from 1 to 200"},
		{{.node = "vm", .vcpus = "5"}, "--nm-vcpus: this site allows 4 at most"},
		{{.node = "vm", .memory = "255M"}, "--nm-memory=255M: give whole MiB from 256M"},
		{{.node = "vm", .memory = "524289K"}, "--nm-memory=524289K: give whole MiB"},
		{{.node = "vm", .memory = "4G"}, "--nm-memory: this site allows 2048M at most"},
		{{.vms = "2"}, "--nm-vms-per-node needs --nm-node=vm or openstack"},
		{{.vcpus = "2"}, "--nm-vcpus needs --nm-node=vm: the site decides"},
		{{.node = "container", .image = "default"}, "--nm-image needs --nm-node=vm"},
		{{.node = "openstack", .vms = "6"},
		 "--nm-vms-per-node: this site allows 5 servers at most"},
		{{.node = "openstack", .vcpus = "1"}, "--nm-vcpus: the site decides this for"},
		{{.node = "openstack", .memory = "1G"}, "--nm-memory: the site decides this for"},
		{{.node = "openstack", .segment = "1M"}, "--nm-segment: the site decides this"},
		{{.node = "vm", .vms = "2", .partitions = "plain"},
		 "--nm-vms-per-node: partition plain forbids this option"},
	};
	struct nm_spank_request request = {.segment_bytes = 77};
	struct nm_reason why;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		NM_CHECK_EQ(ask_for(cases[i].wish, &request, &why), -EINVAL);
		NM_CHECK_HAS(why.text, cases[i].words);
		NM_CHECK_EQ(request.segment_bytes, 77);
	}
}

NM_TEST(virtual_machines_get_no_vfs_and_who_wants_some_is_told)
{
	static const char text[] = "[defaults]\nvf = \"1\"\n[limits]\nvms-per-node = \"2\"\n"
				   "vf = \"2\"\n[profiles.pair]\nnode = \"vm\"\nvf = \"1\"\n";
	static const struct {
		const char *node, *profile, *vf;
		int result;
		unsigned int nr_vfs;
	} cases[] = {
		/* The default is nobody's wish. */
		{"vm", NULL, NULL, 0, 0},	 {"vm", NULL, "0", 0, 0},
		{"vm", NULL, "1", -EINVAL, 0},	 {NULL, "pair", NULL, -EINVAL, 0},
		{NULL, "pair", "0", 0, 0},	 {"container", "pair", NULL, 0, 1},
		{"container", NULL, NULL, 0, 1},
	};
	struct nm_spank_config config;
	struct nm_reason why;

	NM_CHECK_EQ(nm_spank_config_parse(text, strlen(text), &config, &why), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *arguments[NM_SPANK_NR_OPTIONS] = {
			[NM_SPANK_OPTION_NODE] = cases[i].node,
			[NM_SPANK_OPTION_PROFILE] = cases[i].profile,
			[NM_SPANK_OPTION_VF] = cases[i].vf,
		};
		struct nm_spank_options options = {0};
		struct nm_spank_request request = {0};

		for (int j = 0; j < NM_SPANK_NR_OPTIONS; j++)
			if (arguments[j])
				NM_CHECK_EQ(nm_spank_options_take(&options, (enum nm_spank_option)j,
								  arguments[j], &why),
					    0);
		NM_CHECK_EQ(nm_spank_resolve(&options, &config, NULL, &request, &why),
			    cases[i].result);
		NM_CHECK_EQ(request.nr_vfs, cases[i].nr_vfs);
		if (cases[i].result)
			NM_CHECK_HAS(why.text,
				     "--nm-vf: virtual machines and servers do not get VFs");
	}
}

NM_TEST(an_option_without_an_argument_is_no_crash)
{
	struct nm_spank_options options = {0};
	struct nm_reason why;

	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++) {
		NM_CHECK_EQ(nm_spank_options_take(&options, (enum nm_spank_option)i, NULL, &why),
			    -EINVAL);
		NM_CHECK(!options.given[i]);
	}
}

NM_TEST(the_help_fits_into_slurms)
{
	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++) {
		NM_CHECK(strlen(nm_spank_option_infos[i].name) > 3);
		NM_CHECK(strlen(nm_spank_option_infos[i].usage) < 60);
		NM_CHECK(strlen(nm_spank_option_infos[i].arginfo) > 3);
	}
}
