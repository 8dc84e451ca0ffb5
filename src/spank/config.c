/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/channel.h"
#include "base/compiler.h"
#include "base/params.h"

#define DEFAULT_SEGMENT_BYTES (UINT64_C(64) << 20)
#define DEFAULT_SCRATCH_BYTES (UINT64_C(1) << 30)
#define DEFAULT_MAX_SEGMENT_BYTES (UINT64_C(1) << 30)
/* Sockets and statistics of a handful of ranks; less is a spelling error. */
#define MIN_SIZE_BYTES (UINT64_C(1) << 20)
#define MAX_SIZE_BYTES (UINT64_C(1) << 50)
/* A kernel, its initial RAM disk and a writable layer; less does not boot. */
#define MIN_MEMORY_BYTES (UINT64_C(256) << 20)
#define DEFAULT_MEMORY_BYTES (UINT64_C(1) << 30)
#define MAX_COUNT 200
#define MAX_LINE 256
/* More than any adapter offers is a spelling error. */
#define MAX_VFS 1024

enum table { TABLE_NONE, TABLE_DEFAULTS, TABLE_LIMITS, TABLE_PROFILE, TABLE_PARTITION };

struct parser {
	struct nm_spank_config config;
	enum table table;
	unsigned int seen_tables;
	unsigned int seen_limits;
	/* Of the table we are in. */
	struct nm_spank_settings *settings;
	struct nm_spank_partition *partition;
	unsigned int line;
	struct nm_reason *reason;
};

static const char *const node_names[] = {
	[NM_SPANK_NONE] = "none",
	[NM_SPANK_CONTAINER] = "container",
	[NM_SPANK_VM] = "vm",
	[NM_SPANK_OPENSTACK] = "openstack",
};

/* As users type them, without their prefix. */
static const char *const option_names[NM_SPANK_NR_OPTIONS] = {
	[NM_SPANK_OPTION_NODE] = "node",       [NM_SPANK_OPTION_SEGMENT] = "segment",
	[NM_SPANK_OPTION_PROFILE] = "profile", [NM_SPANK_OPTION_VF] = "vf",
	[NM_SPANK_OPTION_IMAGE] = "image",     [NM_SPANK_OPTION_VMS] = "vms-per-node",
	[NM_SPANK_OPTION_VCPUS] = "vcpus",     [NM_SPANK_OPTION_MEMORY] = "memory",
};

static const char not_a_table[] =
	"a table is [defaults], [limits], [profiles.NAME] or [partitions.NAME]";

static const char not_vfs[] = "vf must be a number of VFs, for example \"1\"";

static const char *const mpi_names[] = {"openmpi4", "openmpi5", "mpich5", "impi"};

bool nm_spank_node_parse(const char *word, enum nm_spank_node *ret_node)
{
	for (size_t i = 0; i < NM_ARRAY_SIZE(node_names); i++)
		if (!strcmp(word, node_names[i])) {
			*ret_node = (enum nm_spank_node)i;
			return true;
		}
	return false;
}

const char *nm_spank_node_name(enum nm_spank_node node)
{
	return node_names[node];
}

bool nm_spank_vfs_parse(const char *text, unsigned int *ret_nr)
{
	unsigned int nr = 0;
	const char *p;

	for (p = text; isdigit((unsigned char)*p) && nr <= MAX_VFS; p++)
		nr = nr * 10 + (unsigned int)(*p - '0');
	if (p == text || *p || nr > MAX_VFS)
		return false;
	*ret_nr = nr;
	return true;
}

bool nm_spank_size_parse(const char *text, uint64_t *ret_bytes)
{
	uint64_t bytes;

	if (!nm_params_parse_size(text, &bytes) || bytes < MIN_SIZE_BYTES || bytes > MAX_SIZE_BYTES)
		return false;
	*ret_bytes = bytes;
	return true;
}

bool nm_spank_count_parse(const char *text, uint64_t *ret_count)
{
	unsigned long count;
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	count = strtoul(text, &end, 10);
	if (errno || *end || !count || count > MAX_COUNT)
		return false;
	*ret_count = count;
	return true;
}

bool nm_spank_memory_parse(const char *text, uint64_t *ret_bytes)
{
	uint64_t bytes;

	/* Whole MiB: QEMU and the guest agree on nothing smaller. */
	if (!nm_spank_size_parse(text, &bytes) || bytes < MIN_MEMORY_BYTES || bytes & 0xfffff)
		return false;
	*ret_bytes = bytes;
	return true;
}

void nm_spank_config_init(struct nm_spank_config *ret_config)
{
	memset(ret_config, 0, sizeof(*ret_config));
	ret_config->defaults.segment_bytes = DEFAULT_SEGMENT_BYTES;
	ret_config->defaults.scratch_bytes = DEFAULT_SCRATCH_BYTES;
	ret_config->defaults.machines = (struct nm_spank_machines){
		.image = "default",
		.nr = 1,
		.vcpus = 1,
		.memory_bytes = DEFAULT_MEMORY_BYTES,
		.accel = "kvm",
	};
	ret_config->limits = (struct nm_spank_limits){
		.segment_bytes = DEFAULT_MAX_SEGMENT_BYTES,
		.vcpus = MAX_COUNT,
		.memory_bytes = MAX_SIZE_BYTES,
	};
}

static int wrong(struct parser *parser, const char *what, const char *why)
{
	nm_reason_set(parser->reason, "line %u: %s%s", parser->line, what, why);
	return -EINVAL;
}

bool nm_spank_is_name(const char *word)
{
	const char *p = word;

	/* It goes on a command line, where it must not look like an option. */
	if (*p == '-')
		return false;
	while (isalnum((unsigned char)*p) || *p == '_' || *p == '-')
		p++;
	return p != word && !*p && (size_t)(p - word) < NM_SPANK_WORD_MAX;
}

/* WORD is known to fit. */
static void copy_word(char ret_word[NM_SPANK_WORD_MAX], const char *word)
{
	memcpy(ret_word, word, strlen(word) + 1);
}

static int open_profile(struct parser *parser, const char *name)
{
	struct nm_spank_config *config = &parser->config;

	if (!nm_spank_is_name(name))
		return wrong(parser, "the name of a profile is letters, digits, - and _",
			     ", 31 at most");
	for (unsigned int i = 0; i < config->nr_profiles; i++)
		if (!strcmp(config->profiles[i].name, name))
			return wrong(parser, "a second profile ", name);
	if (config->nr_profiles == NM_SPANK_MAX_PROFILES)
		return wrong(parser, "more than 16 profiles", "");
	copy_word(config->profiles[config->nr_profiles].name, name);
	parser->settings = &config->profiles[config->nr_profiles++].settings;
	parser->table = TABLE_PROFILE;
	return 0;
}

static int open_partition(struct parser *parser, const char *name)
{
	struct nm_spank_config *config = &parser->config;

	if (!nm_spank_is_name(name))
		return wrong(parser, "the name of a partition is letters, digits, - and _",
			     ", 31 at most");
	for (unsigned int i = 0; i < config->nr_partitions; i++)
		if (!strcmp(config->partitions[i].name, name))
			return wrong(parser, "a second partition ", name);
	if (config->nr_partitions == NM_SPANK_MAX_PARTITIONS)
		return wrong(parser, "more than 16 partitions", "");
	parser->partition = &config->partitions[config->nr_partitions++];
	copy_word(parser->partition->name, name);
	parser->table = TABLE_PARTITION;
	return 0;
}

static int open_table(struct parser *parser, const char *name)
{
	static const char profiles[] = "profiles.", partitions[] = "partitions.";
	enum table table = !strcmp(name, "defaults") ? TABLE_DEFAULTS :
			   !strcmp(name, "limits")   ? TABLE_LIMITS :
						       TABLE_NONE;

	if (!strncmp(name, profiles, sizeof(profiles) - 1))
		return open_profile(parser, name + sizeof(profiles) - 1);
	if (!strncmp(name, partitions, sizeof(partitions) - 1))
		return open_partition(parser, name + sizeof(partitions) - 1);
	if (table == TABLE_NONE)
		return wrong(parser, not_a_table, "");
	if (parser->seen_tables & 1U << table)
		return wrong(parser, "a second table ", name);
	parser->seen_tables |= 1U << table;
	parser->table = table;
	parser->settings = table == TABLE_DEFAULTS ? &parser->config.defaults : NULL;
	return 0;
}

static bool is_mpi(const char *word)
{
	for (size_t i = 0; i < NM_ARRAY_SIZE(mpi_names); i++)
		if (!strcmp(word, mpi_names[i]))
			return true;
	return false;
}

/* A bit for each of the KNOWN words in a LIST with commas between; 0: there is another in it. */
static unsigned int parse_list(const char *list, const char *const known[], size_t nr_known)
{
	unsigned int found = 0;
	size_t len, i;

	do {
		len = strcspn(list, ",");
		for (i = 0; i < nr_known; i++)
			if (strlen(known[i]) == len && !strncmp(known[i], list, len))
				break;
		if (i == nr_known)
			return 0;
		found |= 1U << i;
		list += len;
	} while (*list++);
	return found;
}

/* Absolute paths in plain characters, with ':' between, and none of them the root. */
static bool are_shares(const char *list)
{
	size_t len = strlen(list);

	if (len >= NM_SPANK_SHARES_MAX || strstr(list, "..") || strstr(list, "//"))
		return false;
	for (const char *p = list; *p; p++) {
		bool begins = p == list || p[-1] == ':';

		if (begins ? *p != '/' : !isalnum((unsigned char)*p) && !strchr("/_.:-", *p))
			return false;
		if (*p == '/' && (!p[1] || p[1] == ':'))
			return false;
	}
	return !len || list[len - 1] != ':';
}

static bool are_channels(const char *list)
{
#define CHANNEL_NAME(id, name, ...) #name,
	static const char *const known[] = {NM_CHANNELS(CHANNEL_NAME)};
#undef CHANNEL_NAME

	return strlen(list) < NM_SPANK_WORD_MAX && parse_list(list, known, NM_ARRAY_SIZE(known));
}

static int take_image(struct parser *parser, struct nm_spank_machines *machines, const char *value)
{
	if (!nm_spank_is_name(value))
		return wrong(parser, "image must be \"default\" or the key of an image", "");
	copy_word(machines->image, value);
	return 0;
}

static int take_shares(struct parser *parser, struct nm_spank_machines *machines, const char *value)
{
	if (!are_shares(value))
		return wrong(parser, "shares is a list of directories, as",
			     " \"/home:/scratch\", 191 bytes at most");
	memcpy(machines->shares, value, strlen(value) + 1);
	return 0;
}

static int take_accel(struct parser *parser, struct nm_spank_machines *machines, const char *value)
{
	if (strcmp(value, "kvm") != 0 && strcmp(value, "tcg") != 0)
		return wrong(parser, "accel is \"kvm\" or \"tcg\"", "");
	copy_word(machines->accel, value);
	return 0;
}

static int take_setting(struct parser *parser, const char *key, const char *value)
{
	static const char *const keys[] = {"node",     "segment", "scratch",	  "mpi",
					   "channels", "image",	  "vms-per-node", "vcpus",
					   "memory",   "shares",  "accel",	  "vf"};
	struct nm_spank_settings *settings = parser->settings;
	size_t index = 0;
	unsigned int bit;

	while (index < NM_ARRAY_SIZE(keys) && strcmp(key, keys[index]) != 0)
		index++;
	if (index == NM_ARRAY_SIZE(keys))
		return wrong(parser, "a key here is node, segment, scratch, mpi, channels, image,",
			     " vms-per-node, vcpus, memory, shares, accel or vf");
	bit = 1U << index;
	if (settings->said & bit)
		return wrong(parser, "a second ", key);
	settings->said |= bit;
	switch ((enum nm_spank_said)bit) {
	case NM_SPANK_SAID_NODE:
		return nm_spank_node_parse(value, &settings->node) ?
			       0 :
			       wrong(parser,
				     "node is \"none\", \"container\", \"vm\" or \"openstack\"",
				     "");
	case NM_SPANK_SAID_SEGMENT:
		return nm_spank_size_parse(value, &settings->segment_bytes) ?
			       0 :
			       wrong(parser,
				     "segment must be a size from \"1M\", for example \"64M\"", "");
	case NM_SPANK_SAID_SCRATCH:
		return nm_spank_size_parse(value, &settings->scratch_bytes) ?
			       0 :
			       wrong(parser,
				     "scratch must be a size from \"1M\", for example \"1G\"", "");
	case NM_SPANK_SAID_MPI:
		if (!is_mpi(value))
			return wrong(parser, "mpi is \"openmpi4\", \"openmpi5\", \"mpich5\" or",
				     " \"impi\"");
		copy_word(settings->mpi, value);
		return 0;
	case NM_SPANK_SAID_CHANNELS:
		if (!are_channels(value))
			return wrong(parser, "channels must be a comma list of ", NM_CHANNEL_LIST);
		copy_word(settings->channels, value);
		return 0;
	case NM_SPANK_SAID_IMAGE:
		return take_image(parser, &settings->machines, value);
	case NM_SPANK_SAID_VMS:
		return nm_spank_count_parse(value, &settings->machines.nr) ?
			       0 :
			       wrong(parser, "vms-per-node must be a number from 1 to 200", "");
	case NM_SPANK_SAID_VCPUS:
		return nm_spank_count_parse(value, &settings->machines.vcpus) ?
			       0 :
			       wrong(parser, "vcpus must be a number from 1 to 200", "");
	case NM_SPANK_SAID_MEMORY:
		return nm_spank_memory_parse(value, &settings->machines.memory_bytes) ?
			       0 :
			       wrong(parser,
				     "memory must be whole MiB from \"256M\", for example \"1G\"",
				     "");
	case NM_SPANK_SAID_SHARES:
		return take_shares(parser, &settings->machines, value);
	case NM_SPANK_SAID_ACCEL:
		return take_accel(parser, &settings->machines, value);
	case NM_SPANK_SAID_VF:
		return nm_spank_vfs_parse(value, &settings->nr_vfs) ? 0 :
								      wrong(parser, not_vfs, "");
	}
	return 0;
}

static int take_limit(struct parser *parser, const char *key, const char *value)
{
	static const char *const keys[] = {"segment", "vms-per-node", "vcpus",
					   "memory",  "vf",	      "servers"};
	struct nm_spank_limits *limits = &parser->config.limits;
	size_t index = 0;

	while (index < NM_ARRAY_SIZE(keys) && strcmp(key, keys[index]) != 0)
		index++;
	if (index == NM_ARRAY_SIZE(keys))
		return wrong(parser, "the key of a limit is segment, vms-per-node, vcpus, memory,",
			     " vf or servers");
	if (parser->seen_limits & 1U << index)
		return wrong(parser, "a second ", key);
	parser->seen_limits |= 1U << index;
	if (index == 0 && !nm_spank_size_parse(value, &limits->segment_bytes))
		return wrong(parser, "segment must be a size from \"1M\", for example \"64M\"", "");
	if (index == 1 && !nm_spank_count_parse(value, &limits->vms))
		return wrong(parser, "vms-per-node must be a number from 1 to 200", "");
	if (index == 2 && !nm_spank_count_parse(value, &limits->vcpus))
		return wrong(parser, "vcpus must be a number from 1 to 200", "");
	if (index == 3 && !nm_spank_memory_parse(value, &limits->memory_bytes))
		return wrong(parser, "memory must be whole MiB from \"256M\", for example \"1G\"",
			     "");
	if (index == 4 && !nm_spank_vfs_parse(value, &limits->vfs))
		return wrong(parser, not_vfs, "");
	if (index == 5 && !nm_spank_count_parse(value, &limits->servers))
		return wrong(parser, "servers must be a number from 1 to 200", "");
	return 0;
}

static int take_rule(struct parser *parser, const char *key, const char *value)
{
	struct nm_spank_partition *partition = parser->partition;

	if (!strcmp(key, "forbid")) {
		if (partition->forbidden)
			return wrong(parser, "a second ", key);
		partition->forbidden = parse_list(value, option_names, NM_SPANK_NR_OPTIONS);
		return partition->forbidden ?
			       0 :
			       wrong(parser,
				     "forbid is a list of node, segment, profile, vf, image,",
				     " vms-per-node, vcpus, memory");
	}
	if (!strcmp(key, "vf")) {
		if (partition->limits_vfs)
			return wrong(parser, "a second ", key);
		partition->limits_vfs = true;
		return nm_spank_vfs_parse(value, &partition->max_vfs) ? 0 :
									wrong(parser, not_vfs, "");
	}
	if (strcmp(key, "segment") != 0)
		return wrong(parser, "a key of a partition is forbid, segment or vf", "");
	if (partition->max_segment_bytes)
		return wrong(parser, "a second ", key);
	return nm_spank_size_parse(value, &partition->max_segment_bytes) ?
		       0 :
		       wrong(parser, "segment must be a size from \"1M\", for example \"64M\"", "");
}

static char *strip(char *text)
{
	size_t len;

	while (*text == ' ' || *text == '\t')
		text++;
	len = strlen(text);
	while (len && (text[len - 1] == ' ' || text[len - 1] == '\t' || text[len - 1] == '\r'))
		text[--len] = '\0';
	return text;
}

/* Is REST nothing but blanks and a comment? */
static bool is_end(const char *rest)
{
	rest += strspn(rest, " \t\r");
	return !*rest || *rest == '#';
}

static int take_pair(struct parser *parser, char *line)
{
	char *equals = strchr(line, '='), *key, *value, *end;

	if (!equals)
		return wrong(parser, "neither a [table] nor key = \"value\"", "");
	*equals = '\0';
	key = strip(line);
	value = equals + 1 + strspn(equals + 1, " \t");
	end = *value == '"' ? strchr(value + 1, '"') : NULL;
	if (!end || !is_end(end + 1))
		return wrong(parser, "write a value in double quotes, for example \"64M\"", "");
	*end = '\0';
	value++;
	if (strchr(value, '\\'))
		return wrong(parser, "a value must not contain a backslash", "");
	switch (parser->table) {
	case TABLE_DEFAULTS:
	case TABLE_PROFILE:
		return take_setting(parser, key, value);
	case TABLE_LIMITS:
		return take_limit(parser, key, value);
	case TABLE_PARTITION:
		return take_rule(parser, key, value);
	case TABLE_NONE:
		break;
	}
	return wrong(parser, "a key must follow a [table]", "");
}

static int take_line(struct parser *parser, char *line)
{
	char *end;

	for (const char *p = line; *p; p++)
		if (((unsigned char)*p < 0x20 && *p != '\t' && *p != '\r') || *p == 0x7f)
			return wrong(parser, "a control character", "");
	line = strip(line);
	if (!*line || *line == '#')
		return 0;
	if (*line != '[')
		return take_pair(parser, line);
	end = strchr(line, ']');
	if (!end || !is_end(end + 1))
		return wrong(parser, not_a_table, "");
	*end = '\0';
	return open_table(parser, line + 1);
}

static int check_limits(struct parser *parser)
{
	const struct nm_spank_config *config = &parser->config;

	if (config->defaults.segment_bytes > config->limits.segment_bytes)
		return wrong(parser, "segment in [defaults] is above the one in [limits]", "");
	if (config->defaults.nr_vfs > config->limits.vfs)
		return wrong(parser, "vf in [defaults] is above the one in [limits]", "");
	for (unsigned int i = 0; i < config->nr_profiles; i++)
		if (config->profiles[i].settings.nr_vfs > config->limits.vfs)
			return wrong(parser, "above the vf in [limits]: that of profile ",
				     config->profiles[i].name);
	for (unsigned int i = 0; i < config->nr_partitions; i++)
		if (config->partitions[i].max_vfs > config->limits.vfs)
			return wrong(parser, "above the vf in [limits]: that of partition ",
				     config->partitions[i].name);
	for (unsigned int i = 0; i < config->nr_profiles; i++)
		if (config->profiles[i].settings.segment_bytes > config->limits.segment_bytes)
			return wrong(parser, "above the segment in [limits]: that of profile ",
				     config->profiles[i].name);
	for (unsigned int i = 0; i < config->nr_partitions; i++)
		if (config->partitions[i].max_segment_bytes > config->limits.segment_bytes)
			return wrong(parser, "above the segment in [limits]: that of partition ",
				     config->partitions[i].name);
	return 0;
}

int nm_spank_config_parse(const char *text, size_t len, struct nm_spank_config *ret_config,
			  struct nm_reason *ret_reason)
{
	struct parser parser = {.reason = ret_reason};
	const char *at = text, *end = text + len, *next;
	char line[MAX_LINE];
	int err;

	nm_spank_config_init(&parser.config);
	while (at < end) {
		parser.line++;
		next = memchr(at, '\n', (size_t)(end - at));
		next = next ? next : end;
		if ((size_t)(next - at) >= sizeof(line))
			return wrong(&parser, "longer than 255 bytes", "");
		if (memchr(at, 0, (size_t)(next - at)))
			return wrong(&parser, "a control character", "");
		memcpy(line, at, (size_t)(next - at));
		line[next - at] = '\0';
		err = take_line(&parser, line);
		if (err)
			return err;
		at = next + 1;
	}
	err = check_limits(&parser);
	if (!err)
		*ret_config = parser.config;
	return err;
}

int nm_spank_config_load(const char *path, struct nm_spank_config *ret_config,
			 struct nm_reason *ret_reason)
{
	static char text[NM_SPANK_CONFIG_MAX_BYTES + 1];
	struct nm_reason why;
	ssize_t len;
	int fd, err;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT) {
		nm_spank_config_init(ret_config);
		return 0;
	}
	if (fd < 0) {
		err = -errno;
		nm_reason_set(ret_reason, "%.100s: %s", path, strerror(-err));
		return err;
	}
	len = read(fd, text, sizeof(text));
	err = len < 0 ? -errno : 0;
	close(fd);
	if (err) {
		nm_reason_set(ret_reason, "%.100s: %s", path, strerror(-err));
		return err;
	}
	if (len > NM_SPANK_CONFIG_MAX_BYTES) {
		nm_reason_set(ret_reason, "%.100s: larger than 64 KiB", path);
		return -EINVAL;
	}
	err = nm_spank_config_parse(text, (size_t)len, ret_config, &why);
	if (err)
		nm_reason_set(ret_reason, "%.70s: %.110s", path, why.text);
	return err;
}
