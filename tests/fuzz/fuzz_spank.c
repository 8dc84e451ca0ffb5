/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The site's settings and a user's options: the input is a file, and behind a NUL the arguments and the
 * partitions.
 * What is granted is within the limits, and every refusal has a reason.
 */
#include <stdlib.h>
#include <string.h>

#include "spank/config.h"
#include "spank/options.h"
#include "target.h"

static void expect(bool condition)
{
	if (!condition)
		abort();
}

static void resolve(const struct nm_spank_options *options, const struct nm_spank_config *config,
		    const char *partitions)
{
	struct nm_spank_request request;
	char text[NM_SPANK_REQUEST_LEN];
	struct nm_reason why = {""};

	if (nm_spank_resolve(options, config, partitions, &request, &why)) {
		expect(why.text[0] != '\0');
		return;
	}
	expect(request.segment_bytes <= config->limits.segment_bytes);
	expect(request.nr_vfs <= config->limits.vfs);
	expect(!request.nr_vfs || !nm_spank_has_machines(request.node));
	expect(request.node != NM_SPANK_OPENSTACK || request.machines.nr <= config->limits.servers);
	for (unsigned int i = 0; partitions && i < config->nr_partitions; i++) {
		const struct nm_spank_partition *rule = &config->partitions[i];

		if (strcmp(rule->name, partitions) != 0)
			continue;
		expect(!rule->max_segment_bytes ||
		       request.segment_bytes <= rule->max_segment_bytes);
		expect(!rule->limits_vfs || request.nr_vfs <= rule->max_vfs);
		for (int option = 0; option < NM_SPANK_NR_OPTIONS; option++)
			expect(!options->given[option] || !(rule->forbidden & 1U << option));
	}
	expect(memchr(request.mpi, 0, sizeof(request.mpi)) != NULL);
	expect(memchr(request.channels, 0, sizeof(request.channels)) != NULL);
	nm_spank_request_format(&request, text);
	for (const char *p = text; *p; p++)
		expect((unsigned char)*p >= 0x20);
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	const char *text = (const char *)bytes, *end = text + len;
	const char *nul = len ? memchr(text, 0, len) : NULL;
	struct nm_spank_options options = {0};
	struct nm_spank_config config;
	struct nm_reason why = {""};
	char *partitions;

	if (nm_spank_config_parse(text, nul ? (size_t)(nul - text) : len, &config, &why)) {
		expect(!strncmp(why.text, "line ", 5));
		return;
	}
	for (int i = 0; nul && i < NM_SPANK_NR_OPTIONS; i++) {
		const char *argument = nul + 1;

		nul = argument < end ? memchr(argument, 0, (size_t)(end - argument)) : NULL;
		if (nul && nm_spank_options_take(&options, (enum nm_spank_option)i, argument, &why))
			expect(!strncmp(why.text, "--nm-", 5));
	}
	partitions = nul ? strndup(nul + 1, (size_t)(end - nul - 1)) : NULL;
	resolve(&options, &config, partitions);
	free(partitions);
}
