/* SPDX-License-Identifier: Apache-2.0 */
/* What a user may ask of Slurm, and what the job gets. */
#include <errno.h>
#include <string.h>

#include "harness.h"
#include "spank/options.h"

static const char settings[] = "[defaults]\nmpi = \"openmpi4\"\n[limits]\nsegment = \"100M\"\n"
			       "[profiles.near]\nnode = \"container\"\nsegment = \"8M\"\n"
			       "channels = \"self,shm\"\n[profiles.plain]\nnode = \"none\"\n"
			       "[partitions.small]\nsegment = \"4M\"\n"
			       "[partitions.strict]\nforbid = \"segment,profile\"\n";

struct wish {
	const char *node, *segment, *profile, *partitions;
};

static int ask(struct wish wish, struct nm_spank_request *ret_request, struct nm_reason *why)
{
	const char *arguments[] = {wish.node, wish.segment, wish.profile};
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
			   "channels=self,shm");
	NM_CHECK_EQ(ask((struct wish){"container", "16M", "plain", NULL}, &request, &why), 0);
	NM_CHECK_EQ(request.node, NM_SPANK_CONTAINER);
	NM_CHECK_EQ(request.segment_bytes, 16 << 20);
	/* A step outside the containers of its allocation has the other options from there. */
	NM_CHECK_EQ(ask((struct wish){"none", "16M", "near", NULL}, &request, &why), 0);
	NM_CHECK_EQ(request.node, NM_SPANK_NONE);
}

NM_TEST(a_wrong_wish_is_refused_in_words)
{
	static const struct {
		struct wish wish;
		const char *words;
	} cases[] = {
		{{.node = ""}, "--nm-node=: it is container or none"},
		{{.node = "Container"}, "--nm-node=Container: it is container or none"},
		{{.node = "vm"}, "jobs cannot have virtual machines yet"},
		{{.node = "a\nb\x1b[0m"}, "--nm-node=a?b?[0m: it is"},
		{{.node = "0123456789012345678901234567890123"},
		 "--nm-node=0123456789012345678901234567...: it is"},
		{{"container", "", NULL, NULL}, "--nm-segment=: give a size"},
		{{"container", "1023K", NULL, NULL},
		 "--nm-segment=1023K: give a size of at least 1M"},
		{{"container", "-5M", NULL, NULL}, "--nm-segment=-5M: give a size"},
		{{"container", "18446744073709551616", NULL, NULL}, "give a size"},
		{{"container", "101M", NULL, NULL}, "--nm-segment: this site allows 100M at most"},
		{{.segment = "5M"}, "--nm-segment needs --nm-node=container"},
		{{NULL, "5M", "plain", NULL}, "--nm-segment needs --nm-node=container"},
		{{.profile = ""}, "--nm-profile=: no profile has such a name"},
		{{.profile = "far"}, "--nm-profile=far: no such profile; there are: near plain"},
		{{.profile = "0123456789012345678901234567890123"}, "no profile has such a name"},
		{{"container", "5M", NULL, "small"},
		 "--nm-segment: partition small allows 4M at most"},
		/* The profile's size is the user's wish, too. */
		{{.profile = "near", .partitions = "other,small"}, "partition small allows 4M"},
		{{"container", "1M", NULL, "strict"}, "--nm-segment: partition strict forbids it"},
		{{.profile = "near", .partitions = "strict,other"}, "--nm-profile: partition"},
		{{"container", "101M", NULL, "other"}, "this site allows 100M at most"},
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
	NM_CHECK_EQ(ask((struct wish){"container", "4M", NULL, "small"}, &request, &why), 0);
	NM_CHECK_EQ(ask((struct wish){.node = "none", .partitions = "strict"}, &request, &why), 0);
	/* Neither a part of a name nor a longer one is that name. */
	NM_CHECK_EQ(ask((struct wish){"container", "5M", "near", "smal,smaller,,strict2"}, &request,
			&why),
		    0);
	NM_CHECK_EQ(request.segment_bytes, 5 << 20);
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
