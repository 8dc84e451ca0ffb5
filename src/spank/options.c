/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"

struct nm_spank_option_info nm_spank_option_infos[NM_SPANK_NR_OPTIONS] = {
	[NM_SPANK_OPTION_NODE] = {"nm-node", "container|vm|openstack|none",
				  "environment of the steps"},
	[NM_SPANK_OPTION_SEGMENT] = {"nm-segment", "size",
				     "size of the segment of the job on each node"},
	[NM_SPANK_OPTION_PROFILE] = {"nm-profile", "name", "settings that the site has prepared"},
	[NM_SPANK_OPTION_VF] = {"nm-vf", "number", "VFs that the job gets on each node"},
	[NM_SPANK_OPTION_IMAGE] = {"nm-image", "name", "image of the virtual machines"},
	[NM_SPANK_OPTION_VMS] = {"nm-vms-per-node", "number", "virtual machines on each node"},
	[NM_SPANK_OPTION_VCPUS] = {"nm-vcpus", "number", "processors of each virtual machine"},
	[NM_SPANK_OPTION_MEMORY] = {"nm-memory", "size", "memory of each virtual machine"},
};

/* Copy a user's text, shortened and safe to print. */
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
	nm_reason_set(ret_reason, "--nm-node=%s: must be container, vm, openstack or none", quoted);
	return -EINVAL;
}

static int take_segment(struct nm_spank_options *options, const char *argument,
			struct nm_reason *ret_reason)
{
	char quoted[32];

	if (nm_spank_size_parse(argument, &options->segment_bytes))
		return 0;
	quote(argument, quoted);
	nm_reason_set(ret_reason,
		      "--nm-segment=%s: give a size of at least 1M, for example 64M or 1G", quoted);
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
	nm_reason_set(ret_reason, "--nm-profile=%s: not a valid name", quoted);
	return -EINVAL;
}

static int take_vf(struct nm_spank_options *options, const char *argument,
		   struct nm_reason *ret_reason)
{
	char quoted[32];

	if (nm_spank_vfs_parse(argument, &options->nr_vfs))
		return 0;
	quote(argument, quoted);
	nm_reason_set(ret_reason, "--nm-vf=%s: give a number of VFs for each node, for example 1",
		      quoted);
	return -EINVAL;
}

static int take_image(struct nm_spank_options *options, const char *argument,
		      struct nm_reason *ret_reason)
{
	char quoted[32];

	if (nm_spank_is_name(argument)) {
		memcpy(options->image, argument, strlen(argument) + 1);
		return 0;
	}
	quote(argument, quoted);
	nm_reason_set(ret_reason, "--nm-image=%s: not a valid name", quoted);
	return -EINVAL;
}

static int take_count(enum nm_spank_option option, const char *argument, uint64_t *ret_count,
		      struct nm_reason *ret_reason)
{
	char quoted[32];

	if (nm_spank_count_parse(argument, ret_count))
		return 0;
	quote(argument, quoted);
	nm_reason_set(ret_reason, "--%s=%s: give a number from 1 to 200",
		      nm_spank_option_infos[option].name, quoted);
	return -EINVAL;
}

static int take_memory(struct nm_spank_options *options, const char *argument,
		       struct nm_reason *ret_reason)
{
	char quoted[32];

	if (nm_spank_memory_parse(argument, &options->memory_bytes))
		return 0;
	quote(argument, quoted);
	nm_reason_set(ret_reason,
		      "--nm-memory=%s: give whole MiB from 256M, for example 512M or 4G", quoted);
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
	case NM_SPANK_OPTION_VF:
		err = take_vf(options, argument, ret_reason);
		break;
	case NM_SPANK_OPTION_IMAGE:
		err = take_image(options, argument, ret_reason);
		break;
	case NM_SPANK_OPTION_VMS:
		err = take_count(option, argument, &options->vms, ret_reason);
		break;
	case NM_SPANK_OPTION_VCPUS:
		err = take_count(option, argument, &options->vcpus, ret_reason);
		break;
	case NM_SPANK_OPTION_MEMORY:
		err = take_memory(options, argument, ret_reason);
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
	nm_reason_set(ret_reason, "--nm-profile=%s: unknown profile; known profiles: %s", quoted,
		      used ? names : "none");
	return -EINVAL;
}

static void apply_machines(const struct nm_spank_settings *settings,
			   struct nm_spank_machines *machines)
{
	const struct nm_spank_machines *set = &settings->machines;

	if (settings->said & NM_SPANK_SAID_IMAGE)
		memcpy(machines->image, set->image, sizeof(machines->image));
	if (settings->said & NM_SPANK_SAID_VMS)
		machines->nr = set->nr;
	if (settings->said & NM_SPANK_SAID_VCPUS)
		machines->vcpus = set->vcpus;
	if (settings->said & NM_SPANK_SAID_MEMORY)
		machines->memory_bytes = set->memory_bytes;
	if (settings->said & NM_SPANK_SAID_SHARES)
		memcpy(machines->shares, set->shares, sizeof(machines->shares));
	if (settings->said & NM_SPANK_SAID_ACCEL)
		memcpy(machines->accel, set->accel, sizeof(machines->accel));
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
	if (settings->said & NM_SPANK_SAID_VF)
		request->nr_vfs = settings->nr_vfs;
	apply_machines(settings, &request->machines);
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

/* Within the limits of the site and of its partitions. CHOSEN: the user wants as many VFs. */
static int obey_vfs(const struct nm_spank_partition *partition, bool chosen,
		    struct nm_spank_request *request, struct nm_reason *ret_reason)
{
	if (!partition->limits_vfs || request->nr_vfs <= partition->max_vfs)
		return 0;
	if (chosen) {
		nm_reason_set(ret_reason, "--nm-vf: partition %s allows %u on each node at most",
			      partition->name, partition->max_vfs);
		return -EINVAL;
	}
	request->nr_vfs = partition->max_vfs;
	return 0;
}

/* CHOSEN: as above. */
static int take_vfs(const struct nm_spank_options *options, bool chosen,
		    const struct nm_spank_config *config, struct nm_spank_request *request,
		    struct nm_reason *ret_reason)
{
	if (options->given[NM_SPANK_OPTION_VF])
		request->nr_vfs = options->nr_vfs;
	if (request->nr_vfs > config->limits.vfs) {
		nm_reason_set(ret_reason, "--nm-vf: this site gives a job %u on each node at most",
			      config->limits.vfs);
		return -EINVAL;
	}
	/* A step with none within an allocation of containers takes the rest from there. */
	if (options->given[NM_SPANK_OPTION_VF] && request->nr_vfs &&
	    request->node == NM_SPANK_NONE && !options->given[NM_SPANK_OPTION_NODE]) {
		nm_reason_set(ret_reason,
			      "--nm-vf needs --nm-node=container: only containers take VFs");
		return -EINVAL;
	}
	if (request->nr_vfs && nm_spank_has_machines(request->node)) {
		if (chosen) {
			nm_reason_set(
				ret_reason,
				"--nm-vf: virtual machines and servers do not get VFs: give --nm-node=container, or --nm-vf=0");
			return -EINVAL;
		}
		request->nr_vfs = 0;
	}
	return 0;
}

/*
 * CHOSEN: the user wants a segment of this size. A size that was not requested becomes smaller
 * instead.
 */
static int obey(const struct nm_spank_partition *partition, const struct nm_spank_options *options,
		bool chosen, struct nm_spank_request *request, struct nm_reason *ret_reason)
{
	for (int i = 0; i < NM_SPANK_NR_OPTIONS; i++)
		if (options->given[i] && partition->forbidden & 1U << i) {
			nm_reason_set(ret_reason,
				      "--%s: partition %s forbids this option: leave it out",
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

/* What users may ask of servers of a cloud: the site has chosen the rest. */
static int ask_for_servers(const struct nm_spank_options *options,
			   const struct nm_spank_limits *limits, uint64_t nr,
			   struct nm_reason *ret_reason)
{
	static const enum nm_spank_option others[] = {
		NM_SPANK_OPTION_SEGMENT, NM_SPANK_OPTION_VCPUS, NM_SPANK_OPTION_MEMORY};

	if (!limits->servers) {
		nm_reason_set(ret_reason,
			      "--nm-node=openstack: this site does not give servers to jobs");
		return -EINVAL;
	}
	if (nr > limits->servers) {
		nm_reason_set(ret_reason,
			      "--nm-vms-per-node: this site allows %" PRIu64 " servers at most",
			      limits->servers);
		return -EINVAL;
	}
	for (size_t i = 0; i < NM_ARRAY_SIZE(others); i++)
		if (options->given[others[i]]) {
			nm_reason_set(
				ret_reason,
				"--%s: the site decides this for servers of a cloud: leave it out",
				nm_spank_option_infos[others[i]].name);
			return -EINVAL;
		}
	return 0;
}

/* The part of the request that is about virtual machines and servers. */
static int ask_for_machines(const struct nm_spank_options *options,
			    const struct nm_spank_config *config, struct nm_spank_request *request,
			    struct nm_reason *ret_reason)
{
	const struct nm_spank_limits *limits = &config->limits;
	struct nm_spank_machines *machines = &request->machines;

	if (options->given[NM_SPANK_OPTION_IMAGE])
		memcpy(machines->image, options->image, sizeof(machines->image));
	if (options->given[NM_SPANK_OPTION_VMS])
		machines->nr = options->vms;
	if (options->given[NM_SPANK_OPTION_VCPUS])
		machines->vcpus = options->vcpus;
	if (options->given[NM_SPANK_OPTION_MEMORY])
		machines->memory_bytes = options->memory_bytes;
	if (request->node == NM_SPANK_OPENSTACK)
		return ask_for_servers(options, limits, machines->nr, ret_reason);
	if (request->node != NM_SPANK_VM) {
		for (int i = NM_SPANK_OPTION_IMAGE; i <= NM_SPANK_OPTION_MEMORY; i++)
			/*
			 * A step with none in an allocation of machines takes the rest from there.
			 */
			if (options->given[i] && !(options->given[NM_SPANK_OPTION_NODE] &&
						   options->node == NM_SPANK_NONE)) {
				nm_reason_set(ret_reason, "--%s needs --nm-node=vm%s",
					      nm_spank_option_infos[i].name,
					      i < NM_SPANK_OPTION_VCPUS ?
						      " or openstack" :
						      ": the site decides the size of servers");
				return -EINVAL;
			}
		return 0;
	}
	if (!limits->vms)
		nm_reason_set(ret_reason,
			      "--nm-node=vm: this site does not give virtual machines to jobs");
	else if (machines->nr > limits->vms)
		nm_reason_set(ret_reason, "--nm-vms-per-node: this site allows %" PRIu64 " at most",
			      limits->vms);
	else if (machines->vcpus > limits->vcpus)
		nm_reason_set(ret_reason, "--nm-vcpus: this site allows %" PRIu64 " at most",
			      limits->vcpus);
	else if (machines->memory_bytes > limits->memory_bytes)
		nm_reason_set(ret_reason, "--nm-memory: this site allows %" PRIu64 "M at most",
			      limits->memory_bytes >> 20);
	else
		return 0;
	return -EINVAL;
}

int nm_spank_resolve(const struct nm_spank_options *options, const struct nm_spank_config *config,
		     const char *partitions, struct nm_spank_request *ret_request,
		     struct nm_reason *ret_reason)
{
	const struct nm_spank_settings *profile = NULL;
	struct nm_spank_request request = {
		.segment_bytes = config->defaults.segment_bytes,
		.scratch_bytes = config->defaults.scratch_bytes,
		.machines = config->defaults.machines,
	};
	bool vfs_chosen;
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
		/* A step with none within an allocation of containers takes the rest from there. */
		if (request.node == NM_SPANK_NONE && !options->given[NM_SPANK_OPTION_NODE]) {
			nm_reason_set(
				ret_reason,
				"--nm-segment needs --nm-node=container or vm: other nodes have no segment");
			return -EINVAL;
		}
	}
	if (request.segment_bytes > config->limits.segment_bytes) {
		nm_reason_set(ret_reason, "--nm-segment: this site allows %" PRIu64 "M at most",
			      config->limits.segment_bytes >> 20);
		return -EINVAL;
	}
	vfs_chosen =
		options->given[NM_SPANK_OPTION_VF] || (profile && profile->said & NM_SPANK_SAID_VF);
	err = ask_for_machines(options, config, &request, ret_reason);
	if (!err)
		err = take_vfs(options, vfs_chosen, config, &request, ret_reason);
	if (err)
		return err;
	for (unsigned int i = 0; partitions && i < config->nr_partitions; i++) {
		bool chosen = options->given[NM_SPANK_OPTION_SEGMENT] ||
			      (profile && profile->said & NM_SPANK_SAID_SEGMENT);

		if (!is_listed(config->partitions[i].name, partitions))
			continue;
		err = obey(&config->partitions[i], options, chosen, &request, ret_reason);
		if (!err)
			err = obey_vfs(&config->partitions[i], vfs_chosen, &request, ret_reason);
		if (err)
			return err;
	}
	*ret_request = request;
	return 0;
}

void nm_spank_request_format(const struct nm_spank_request *request,
			     char ret_text[NM_SPANK_REQUEST_LEN])
{
	const struct nm_spank_machines *machines = &request->machines;
	int used =
		snprintf(ret_text, NM_SPANK_REQUEST_LEN,
			 "node=%s segment=%" PRIu64 " scratch=%" PRIu64 " mpi=%s channels=%s vf=%u",
			 nm_spank_node_name(request->node), request->segment_bytes,
			 request->scratch_bytes, request->mpi, request->channels, request->nr_vfs);

	if (request->node == NM_SPANK_VM)
		snprintf(ret_text + used, NM_SPANK_REQUEST_LEN - (size_t)used,
			 " image=%s vms=%" PRIu64 " vcpus=%" PRIu64 " memory=%" PRIu64
			 " shares=%s accel=%s",
			 machines->image, machines->nr, machines->vcpus, machines->memory_bytes,
			 machines->shares, machines->accel);
	if (request->node == NM_SPANK_OPENSTACK)
		snprintf(ret_text + used, NM_SPANK_REQUEST_LEN - (size_t)used,
			 " image=%s servers=%" PRIu64, machines->image, machines->nr);
}
