/* SPDX-License-Identifier: Apache-2.0 */
#include "base/params.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/compiler.h"
#include "base/log.h"

extern char **environ;

#define NM_ENV_PREFIX "NEARMETAL_"

/* UINT defaults are numbers, the others strings: spell each as text. */
#define FALLBACK_UINT(value) #value
#define FALLBACK_TEXT(value) value
#define FALLBACK_LEVEL(value) value
#define PARAM_INFO(field_, kind_, env_, fallback_, min_, max_, unit_, reason_)                     \
	{.env = env_,                                                                              \
	 .field = #field_,                                                                         \
	 .kind = #kind_,                                                                           \
	 .fallback = FALLBACK_##kind_(fallback_),                                                  \
	 .min = min_,                                                                              \
	 .max = max_,                                                                              \
	 .unit = unit_,                                                                            \
	 .reason = reason_},

enum param_kind { PARAM_UINT, PARAM_TEXT, PARAM_LEVEL };

static struct nm_param_info param_infos[] = {NM_PARAMS(PARAM_INFO)};

static const struct {
	size_t offset;
	enum param_kind kind;
} param_places[] = {
#define PARAM_PLACE(field_, kind_, ...) {offsetof(struct nm_params, field_), PARAM_##kind_},
	NM_PARAMS(PARAM_PLACE)};

static const char *const power_of_two_fields[] = {"ring_slots", "chunk_size"};

/* Read by other programs of the project, or by the launcher; not typing errors of ours. */
static const char *const foreign_names[] = {
	"NEARMETAL_HOME",	  "NEARMETAL_STATE_DIR", "NEARMETAL_CACHE_DIR",
	"NEARMETAL_PROVIDER",	  "NEARMETAL_JOB",	 "NEARMETAL_NODE",
	"NEARMETAL_BUILD_DIR",	  "NEARMETAL_MPI",	 "NEARMETAL_TEST",
	"NEARMETAL_STATE_HOME",	  "NEARMETAL_CLUSTER",	 "NEARMETAL_WORKDIR",
	"NEARMETAL_MPI_PATH",	  "NEARMETAL_UCX",	 "NEARMETAL_INFO",
	"NEARMETAL_PROVIDER_LIB", "NEARMETAL_POST",
};

static const char *const level_words[] = {"error", "warn", "info", "debug"};
#define IVSHMEM_SWITCH "MV2_VIRT_USE_IVSHMEM"
#define IVSHMEM_CHANNEL "segment"

const struct nm_param_info *nm_param_infos(size_t *ret_nr)
{
	size_t i, j;

	for (i = 0; i < NM_ARRAY_SIZE(param_infos); i++)
		for (j = 0; j < NM_ARRAY_SIZE(power_of_two_fields); j++)
			if (!strcmp(param_infos[i].field, power_of_two_fields[j]))
				param_infos[i].power_of_two = true;
	*ret_nr = NM_ARRAY_SIZE(param_infos);
	return param_infos;
}

bool nm_params_parse_size(const char *text, uint64_t *ret_value)
{
	uint64_t value = 0, unit = 1;
	const char *p = text;

	if (!isdigit((unsigned char)*p))
		return false;
	for (; isdigit((unsigned char)*p); p++)
		if (!nm_mul_u64(value, 10, &value) ||
		    !nm_add_u64(value, (uint64_t)(*p - '0'), &value))
			return false;
	if (*p) {
		unit = *p == 'K' ? UINT64_C(1) << 10 :
		       *p == 'M' ? UINT64_C(1) << 20 :
		       *p == 'G' ? UINT64_C(1) << 30 :
				   0;
		if (!unit || p[1])
			return false;
	}
	return nm_mul_u64(value, unit, ret_value);
}

/* Copy what the person wrote, shortened and safe to print. */
static void quote(const char *value, char ret_text[48])
{
	size_t i;

	for (i = 0; i < 47 && value[i]; i++)
		ret_text[i] = isprint((unsigned char)value[i]) ? value[i] : '?';
	if (value[i])
		memcpy(ret_text + 44, "...", 3);
	ret_text[i] = '\0';
}

static int load_uint(const struct nm_param_info *info, const char *text, uint64_t *ret_value,
		     char ret_message[256])
{
	char quoted[48];
	uint64_t value;

	if (nm_params_parse_size(text, &value) && value >= info->min && value <= info->max &&
	    (!info->power_of_two || nm_is_power_of_two(value))) {
		*ret_value = value;
		return 0;
	}
	quote(text, quoted);
	snprintf(ret_message, 256,
		 "%s='%s' is not allowed: give a %s from %" PRIu64 " to %" PRIu64
		 " (%s), as decimal digits that may end in K, M or G",
		 info->env, quoted, info->power_of_two ? "power of two" : "whole number", info->min,
		 info->max, info->unit);
	return -EINVAL;
}

static int load_text(const struct nm_param_info *info, const char *text, char *ret_value,
		     char ret_message[256])
{
	char quoted[48];
	size_t i;

	for (i = 0; text[i]; i++)
		if (i >= NM_PARAM_TEXT_MAX - 1 || (unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			break;
	if (!text[i]) {
		memcpy(ret_value, text, i + 1);
		return 0;
	}
	quote(text, quoted);
	snprintf(ret_message, 256,
		 "%s='%s' is not allowed: give a %s of at most %d bytes without control characters",
		 info->env, quoted, info->unit, NM_PARAM_TEXT_MAX - 1);
	return -EINVAL;
}

static int load_level(const struct nm_param_info *info, const char *text, int *ret_value,
		      char ret_message[256])
{
	char quoted[48];
	size_t i;

	for (i = 0; i < NM_ARRAY_SIZE(level_words); i++)
		if (!strcmp(text, level_words[i])) {
			*ret_value = (int)i;
			return 0;
		}
	quote(text, quoted);
	snprintf(ret_message, 256, "%s='%s' is not allowed: give error, warn, info or debug",
		 info->env, quoted);
	return -EINVAL;
}

/* Every word of the list must be one of ours, none empty. */
static bool channels_valid(const char *list)
{
	enum nm_channel c;
	size_t len;

	do {
		len = strcspn(list, ",");
		for (c = NM_CHANNEL_NONE + 1; c < NM_NR_CHANNELS; c++)
			if (strlen(nm_channel_name(c)) == len &&
			    !strncmp(list, nm_channel_name(c), len))
				break;
		if (c == NM_NR_CHANNELS)
			return false;
		list += len;
	} while (*list++);
	return true;
}

/* Leave CHANNEL out of LIST. */
static void drop_channel(char list[NM_PARAM_TEXT_MAX], const char *channel)
{
	char kept[NM_PARAM_TEXT_MAX] = "";
	const char *at = list;
	size_t used = 0, len;

	do {
		len = strcspn(at, ",");
		if (strlen(channel) != len || strncmp(at, channel, len) != 0)
			used += (size_t)snprintf(kept + used, sizeof(kept) - used, "%s%.*s",
						 used ? "," : "", (int)len, at);
		at += len;
	} while (*at++);
	memcpy(list, kept, sizeof(kept));
}

/* The switch that users of MVAPICH2-Virt know. */
static int apply_ivshmem_switch(struct nm_params *params, char ret_message[256])
{
	const char *word = getenv(IVSHMEM_SWITCH);
	char quoted[48];

	if (!word || !*word)
		return 0;
	if (strcmp(word, "0") != 0 && strcmp(word, "1") != 0) {
		quote(word, quoted);
		snprintf(ret_message, 256, IVSHMEM_SWITCH "='%s' is not allowed: give 0 or 1",
			 quoted);
		return -EINVAL;
	}
	drop_channel(params->channels, IVSHMEM_CHANNEL);
	if (*word == '1')
		snprintf(params->channels + strlen(params->channels),
			 sizeof(params->channels) - strlen(params->channels), "%s" IVSHMEM_CHANNEL,
			 *params->channels ? "," : "");
	if (*params->channels && channels_valid(params->channels))
		return 0;
	snprintf(ret_message, 256,
		 IVSHMEM_SWITCH "=%s and NEARMETAL_CHANNELS leave no list of channels", word);
	return -EINVAL;
}

bool nm_params_channel_allowed(const struct nm_params *params, const char *channel)
{
	const char *list = params->channels;
	size_t len;

	do {
		len = strcspn(list, ",");
		if (strlen(channel) == len && !strncmp(list, channel, len))
			return true;
		list += len;
	} while (*list++);
	return false;
}

/* Names of providers, or auto; which of them there are only libfabric knows. */
static bool net_valid(const char *list)
{
	size_t len;

	do {
		len = strspn(list,
			     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-;");
		if (!len)
			return false;
		list += len;
		if (*list && *list != ',')
			return false;
	} while (*list++);
	return true;
}

/* What single knobs cannot say: lists, and knobs that have to fit each other. */
static int check_params(const struct nm_params *params, char ret_message[256])
{
	char quoted[48];

	if (!channels_valid(params->channels)) {
		quote(params->channels, quoted);
		snprintf(ret_message, 256,
			 "NEARMETAL_CHANNELS='%s' is not allowed: give a comma list of %s", quoted,
			 NM_CHANNEL_LIST);
		return -EINVAL;
	}
	if (strcmp(params->cma, "auto") != 0 && strcmp(params->cma, "off") != 0) {
		quote(params->cma, quoted);
		snprintf(ret_message, 256, "NEARMETAL_CMA='%s' is not allowed: give auto or off",
			 quoted);
		return -EINVAL;
	}
	if (strcmp(params->gpudirect, "auto") != 0 && strcmp(params->gpudirect, "off") != 0) {
		quote(params->gpudirect, quoted);
		snprintf(ret_message, 256,
			 "NEARMETAL_GPUDIRECT='%s' is not allowed: give auto or off", quoted);
		return -EINVAL;
	}
	if (strcmp(params->checksum, "on") != 0 && strcmp(params->checksum, "off") != 0) {
		quote(params->checksum, quoted);
		snprintf(ret_message, 256, "NEARMETAL_CHECKSUM='%s' is not allowed: give on or off",
			 quoted);
		return -EINVAL;
	}
	if (strcmp(params->move_thread, "on") != 0 && strcmp(params->move_thread, "off") != 0) {
		quote(params->move_thread, quoted);
		snprintf(ret_message, 256,
			 "NEARMETAL_MOVE_THREAD='%s' is not allowed: give on or off", quoted);
		return -EINVAL;
	}
	if (strcmp(params->on_loss, "auto") != 0 && strcmp(params->on_loss, "abort") != 0 &&
	    strcmp(params->on_loss, "error") != 0) {
		quote(params->on_loss, quoted);
		snprintf(ret_message, 256,
			 "NEARMETAL_ON_LOSS='%s' is not allowed: give auto, abort or error",
			 quoted);
		return -EINVAL;
	}
	if (!net_valid(params->net)) {
		quote(params->net, quoted);
		snprintf(
			ret_message, 256,
			"NEARMETAL_NET='%s' is not allowed: give a comma list of libfabric providers, or auto",
			quoted);
		return -EINVAL;
	}
	if (params->tune_file[0] && params->tune_file[0] != '/' &&
	    strcmp(params->tune_file, "none") != 0) {
		quote(params->tune_file, quoted);
		snprintf(ret_message, 256,
			 "NEARMETAL_TUNE_FILE='%s' is not allowed: give an absolute path, or none",
			 quoted);
		return -EINVAL;
	}
	if (params->rundir[0] && params->rundir[0] != '/') {
		quote(params->rundir, quoted);
		snprintf(ret_message, 256,
			 "NEARMETAL_RUNDIR='%s' is not allowed: give an absolute path", quoted);
		return -EINVAL;
	}
	return 0;
}

static unsigned int edit_distance(const char *a, const char *b)
{
	unsigned int row[64], previous, diagonal, i, j;
	size_t nr = strlen(b);

	if (nr >= NM_ARRAY_SIZE(row) || strlen(a) >= NM_ARRAY_SIZE(row))
		return 64;
	for (j = 0; j <= nr; j++)
		row[j] = j;
	for (i = 1; a[i - 1]; i++) {
		diagonal = row[0];
		row[0] = i;
		for (j = 1; j <= nr; j++) {
			previous = row[j];
			row[j] = diagonal + (a[i - 1] != b[j - 1]);
			if (previous + 1 < row[j])
				row[j] = previous + 1;
			if (row[j - 1] + 1 < row[j])
				row[j] = row[j - 1] + 1;
			diagonal = previous;
		}
	}
	return row[nr];
}

/* Knobs that have another name now. */
static const char *const former_names[][2] = {
	{"NEARMETAL_SEGMENT_DIR", "NEARMETAL_RUNDIR"},
	{"NEARMETAL_BOX_SLOTS", "NEARMETAL_RING_SLOTS"},
};

/* A name that is one or two slips away from a knob, or its former name, was meant to be that knob. */
static void warn_near_miss(const char *entry)
{
	unsigned int distance, best = 3;
	const char *nearest = NULL;
	char name[64];
	size_t i, len = strcspn(entry, "=");

	if (len >= sizeof(name))
		return;
	memcpy(name, entry, len);
	name[len] = '\0';
	for (i = 0; i < NM_ARRAY_SIZE(foreign_names); i++)
		if (!strcmp(name, foreign_names[i]))
			return;
	for (i = 0; i < NM_ARRAY_SIZE(former_names); i++)
		if (!strcmp(name, former_names[i][0])) {
			nm_warn("%s has no effect: the knob is now named %s", name,
				former_names[i][1]);
			return;
		}
	for (i = 0; i < NM_ARRAY_SIZE(param_infos); i++) {
		distance = edit_distance(name, param_infos[i].env);
		if (!distance)
			return;
		if (distance < best) {
			best = distance;
			nearest = param_infos[i].env;
		}
	}
	if (nearest)
		nm_warn("%s is not a knob and has no effect; did you mean %s?", name, nearest);
}

static int load_one(size_t i, const char *text, struct nm_params *params, char ret_message[256])
{
	char *place = (char *)params + param_places[i].offset;

	switch (param_places[i].kind) {
	case PARAM_UINT:
		return load_uint(&param_infos[i], text, (uint64_t *)(void *)place, ret_message);
	case PARAM_TEXT:
		return load_text(&param_infos[i], text, place, ret_message);
	case PARAM_LEVEL:
		return load_level(&param_infos[i], text, (int *)(void *)place, ret_message);
	}
	return -EINVAL;
}

int nm_params_load(struct nm_params *ret_params, char ret_message[256])
{
	struct nm_params params = {0};
	const char *text;
	size_t i, nr;
	char **entry;
	int err;

	ret_message[0] = '\0';
	nm_param_infos(&nr);
	for (i = 0; i < nr; i++) {
		err = load_one(i, param_infos[i].fallback, &params, ret_message);
		text = getenv(param_infos[i].env);
		/* An empty value means "not set", as shells and launchers produce it. */
		if (!err && text && *text)
			err = load_one(i, text, &params, ret_message);
		if (err)
			return err;
	}
	err = check_params(&params, ret_message);
	if (!err)
		err = apply_ivshmem_switch(&params, ret_message);
	if (err)
		return err;
	for (entry = environ; entry && *entry; entry++)
		if (!strncmp(*entry, NM_ENV_PREFIX, sizeof(NM_ENV_PREFIX) - 1))
			warn_near_miss(*entry);
	*ret_params = params;
	return 0;
}

bool nm_params_uint(const char *env, uint64_t *ret_value, char ret_message[256])
{
	const struct nm_param_info *info = param_infos;
	const char *text = getenv(env);

	while (strcmp(info->env, env) != 0)
		info++;
	return !load_uint(info, text && *text ? text : info->fallback, ret_value, ret_message);
}

void nm_param_format(const struct nm_params *params, size_t index, char *ret_text, size_t len)
{
	const char *place = (const char *)params + param_places[index].offset;

	switch (param_places[index].kind) {
	case PARAM_UINT:
		snprintf(ret_text, len, "%" PRIu64, *(const uint64_t *)(const void *)place);
		break;
	case PARAM_TEXT:
		snprintf(ret_text, len, "%s", place);
		break;
	case PARAM_LEVEL:
		snprintf(ret_text, len, "%s", level_words[*(const int *)(const void *)place]);
		break;
	}
}

static struct nm_params process_params;
static bool process_params_good;
static pthread_once_t process_params_once = PTHREAD_ONCE_INIT;

static void load_process_params(void)
{
	char message[256];

	if (nm_params_load(&process_params, message)) {
		nm_error("%s", message);
		return;
	}
	nm_log_set_level((enum nm_log_level)process_params.log);
	process_params_good = true;
}

const struct nm_params *nm_params(void)
{
	pthread_once(&process_params_once, load_process_params);
	return process_params_good ? &process_params : NULL;
}
