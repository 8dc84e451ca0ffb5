/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct nm_spank_option_info nm_spank_option_infos[NM_SPANK_NR_OPTIONS] = {
	[NM_SPANK_OPTION_NODE] = {"nm-node", "container|none", "what steps run in on each node"},
	[NM_SPANK_OPTION_SEGMENT] = {"nm-segment", "size",
				     "size of the segment directory of the job on each node"},
	[NM_SPANK_OPTION_PROFILE] = {"nm-profile", "name", "a set of settings made by the site"},
};

/* Copy what somebody wrote, shortened and safe to print. */
static void quote(const char *text, char ret_text[32])
{
	size_t i;

	for (i = 0; i < 31 && text[i]; i++)
		ret_text[i] = isprint((unsigned char)text[i]) ? text[i] : '?';
	if (text[i])
		memcpy(ret_text + 28, "...", 3);
	ret_text[i] = '\0';
}

static int take_node(struct nm_spank_options *options, const char *argument,
		     struct nm_reason *ret_reason)
{
	char quoted[32];

	if (nm_spank_node_parse(argument, &options->node))
		return 0;
	quote(argument, quoted);
	if (!strcmp(argument, "vm"))
		nm_reason_set(ret_reason,
			      "--nm-node=vm: jobs cannot have virtual machines yet; use container");
	else
		nm_reason_set(ret_reason, "--nm-node=%s: it is container or none", quoted);
	return -EINVAL;
}

static int take_segment(struct nm_spank_options *options, const char *argument,
			struct nm_reason *ret_reason)
{
	char quoted[32];

	if (nm_spank_size_parse(argument, &options->segment_bytes))
		return 0;
	quote(argument, quoted);
	nm_reason_set(ret_reason, "--nm-segment=%s: give a size of at least 1M, as 64M or 1G",
		      quoted);
	return -EINVAL;
}

static int take_profile(struct nm_spank_options *options, const char *argument,
			struct nm_reason *ret_reason)
{
	size_t len = strlen(argument);
	char quoted[32];

	if (len && len < sizeof(options->profile)) {
		memcpy(options->profile, argument, len + 1);
		return 0;
	}
	quote(argument, quoted);
	nm_reason_set(ret_reason, "--nm-profile=%s: no profile has such a name", quoted);
	return -EINVAL;
}

int nm_spank_options_take(struct nm_spank_options *options, enum nm_spank_option option,
			  const char *argument, struct nm_reason *ret_reason)
{
	int err = -EINVAL;

	argument = argument ? argument : "";
	switch (option) {
	case NM_SPANK_OPTION_NODE:
		err = take_node(options, argument, ret_reason);
		break;
	case NM_SPANK_OPTION_SEGMENT:
		err = take_segment(options, argument, ret_reason);
		break;
	case NM_SPANK_OPTION_PROFILE:
		err = take_profile(options, argument, ret_reason);
		break;
	case NM_SPANK_NR_OPTIONS:
		break;
	}
	if (!err)
		options->given[option] = true;
	return err;
}

static int find_profile(const char *name, const struct nm_spank_config *config,
			const struct nm_spank_settings **ret_settings, struct nm_reason *ret_reason)
{
	char quoted[32], names[96] = "";
	size_t used = 0;

	for (unsigned int i = 0; i < config->nr_profiles; i++) {
		const char *known = config->profiles[i].name;

		if (!strcmp(known, name)) {
			*ret_settings = &config->profiles[i].settings;
			return 0;
		}
		if (used + strlen(known) + 2 < sizeof(names))
			used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s",
						 used ? " " : "", known);
	}
	quote(name, quoted);
	nm_reason_set(ret_reason, "--nm-profile=%s: no such profile; there are: %s", quoted,
		      used ? names : "none");
	return -EINVAL;
}

static void apply(const struct nm_spank_settings *settings, struct nm_spank_request *request)
{
	if (settings->said & NM_SPANK_SAID_NODE)
		request->node = settings->node;
	if (settings->said & NM_SPANK_SAID_SEGMENT)
		request->segment_bytes = settings->segment_bytes;
	if (settings->said & NM_SPANK_SAID_SCRATCH)
		request->scratch_bytes = settings->scratch_bytes;
	if (settings->said & NM_SPANK_SAID_MPI)
		memcpy(request->mpi, settings->mpi, sizeof(request->mpi));
	if (settings->said & NM_SPANK_SAID_CHANNELS)
		memcpy(request->channels, settings->channels, sizeof(request->channels));
}

/* Is NAME in a LIST with commas between? */
static bool is_listed(const char *name, const char *list)
{
	size_t len = strlen(name);

	for (;; list++) {
		if (!strncmp(list, name, len) && (!list[len] || list[len] == ','))
			return true;
		list = strchr(list, ',');
		if (!list)
			return false;
	}
}

/* CHOSEN: the user wants a segment of this size. What nobody asked for is made smaller instead. */
static int obey(const struct nm_spank_partition *partition, const struct nm_spank_options *options,
		bool chosen, struct nm_spank_request *request, struct nm_reason *ret_reason)
{
	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++)
		if (options->given[i] && partition->forbidden & 1U << i) {
			nm_reason_set(ret_reason, "--%s: partition %s forbids it: leave it out",
				      nm_spank_option_infos[i].name, partition->name);
			return -EINVAL;
		}
	if (!partition->max_segment_bytes || request->segment_bytes <= partition->max_segment_bytes)
		return 0;
	if (chosen) {
		nm_reason_set(ret_reason, "--nm-segment: partition %s allows %" PRIu64 "M at most",
			      partition->name, partition->max_segment_bytes >> 20);
		return -EINVAL;
	}
	request->segment_bytes = partition->max_segment_bytes;
	return 0;
}

int nm_spank_resolve(const struct nm_spank_options *options, const struct nm_spank_config *config,
		     const char *partitions, struct nm_spank_request *ret_request,
		     struct nm_reason *ret_reason)
{
	const struct nm_spank_settings *profile = NULL;
	struct nm_spank_request request = {
		.segment_bytes = config->defaults.segment_bytes,
		.scratch_bytes = config->defaults.scratch_bytes,
	};
	int err;

	apply(&config->defaults, &request);
	if (options->given[NM_SPANK_OPTION_PROFILE]) {
		err = find_profile(options->profile, config, &profile, ret_reason);
		if (err)
			return err;
		apply(profile, &request);
	}
	if (options->given[NM_SPANK_OPTION_NODE])
		request.node = options->node;
	if (options->given[NM_SPANK_OPTION_SEGMENT]) {
		request.segment_bytes = options->segment_bytes;
		/* Who says none within an allocation of containers has the rest from there. */
		if (request.node == NM_SPANK_NONE && !options->given[NM_SPANK_OPTION_NODE]) {
			nm_reason_set(
				ret_reason,
				"--nm-segment needs --nm-node=container: without it there is no segment directory");
			return -EINVAL;
		}
	}
	if (request.segment_bytes > config->max_segment_bytes) {
		nm_reason_set(ret_reason, "--nm-segment: this site allows %" PRIu64 "M at most",
			      config->max_segment_bytes >> 20);
		return -EINVAL;
	}
	for (unsigned int i = 0; partitions && i < config->nr_partitions; i++) {
		bool chosen = options->given[NM_SPANK_OPTION_SEGMENT] ||
			      (profile && profile->said & NM_SPANK_SAID_SEGMENT);

		if (!is_listed(config->partitions[i].name, partitions))
			continue;
		err = obey(&config->partitions[i], options, chosen, &request, ret_reason);
		if (err)
			return err;
	}
	*ret_request = request;
	return 0;
}

void nm_spank_request_format(const struct nm_spank_request *request,
			     char ret_text[NM_SPANK_REQUEST_LEN])
{
	snprintf(ret_text, NM_SPANK_REQUEST_LEN,
		 "node=%s segment=%" PRIu64 " scratch=%" PRIu64 " mpi=%s channels=%s",
		 nm_spank_node_name(request->node), request->segment_bytes, request->scratch_bytes,
		 request->mpi, request->channels);
}
