/* SPDX-License-Identifier: Apache-2.0 */
/* The guest unit's description of this VM's segment. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/file.h"
#include "vmseg/attach.h"

/* A line of the file, without a terminating NUL. */
struct text {
	const char *at;
	size_t len;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

static struct text strip(struct text text)
{
	while (text.len && is_blank(text.at[0])) {
		text.at++;
		text.len--;
	}
	while (text.len && is_blank(text.at[text.len - 1]))
		text.len--;
	return text;
}

static bool is_word(struct text text, const char *word)
{
	return text.len == strlen(word) && !memcmp(text.at, word, text.len);
}

static bool parse_number(struct text text, long min, long max, int32_t *ret_number)
{
	bool negative = text.len && text.at[0] == '-';
	long number = 0;
	size_t i = negative;

	if (i == text.len || text.len > 6)
		return false;
	for (; i < text.len; i++) {
		if (text.at[i] < '0' || text.at[i] > '9')
			return false;
		number = number * 10 + (text.at[i] - '0');
	}
	if (negative)
		number = -number;
	if (number < min || number > max)
		return false;
	*ret_number = (int32_t)number;
	return true;
}

static bool parse_distances(struct text text, uint8_t ret_distances[NM_VMSEG_MAX_NUMA])
{
	for (int node = 0; text.len; node++) {
		struct text word = text;
		int32_t distance;

		for (word.len = 0; word.len < text.len && !is_blank(word.at[word.len]);)
			word.len++;
		if (node == NM_VMSEG_MAX_NUMA || !parse_number(word, 0, 255, &distance))
			return false;
		ret_distances[node] = (uint8_t)distance;
		text = strip((struct text){word.at + word.len, text.len - word.len});
	}
	return true;
}

static bool parse_path(struct text text, char ret_path[NM_VMSEG_PATH_MAX])
{
	if (text.len < 2 || text.len >= NM_VMSEG_PATH_MAX || text.at[0] != '/')
		return false;
	for (size_t i = 0; i < text.len; i++)
		if ((unsigned char)text.at[i] < 0x20 || text.at[i] == 0x7f)
			return false;
	memcpy(ret_path, text.at, text.len);
	ret_path[text.len] = '\0';
	return true;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' :
	       c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	       c >= 'A' && c <= 'F' ? c - 'A' + 10 :
				      -1;
}

bool nm_vmseg_token_parse(const char *hex, size_t len, uint8_t ret_token[NM_VMSEG_TOKEN_LEN])
{
	uint8_t token[NM_VMSEG_TOKEN_LEN];
	unsigned int any = 0;

	if (len != 2 * sizeof(token))
		return false;
	for (size_t i = 0; i < sizeof(token); i++) {
		int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		token[i] = (uint8_t)(high << 4 | low);
		any |= token[i];
	}
	if (!any)
		return false;
	memcpy(ret_token, token, sizeof(token));
	return true;
}

enum key {
	VERSION,
	DEVICE,
	INTEGRITY,
	OWN,
	ALL,
	PART,
	TOKEN,
	LOCK,
	NUMA,
	VCPU_NUMA,
	DISTANCES,
	ENDPOINTS,
	NR_KEYS
};

static const struct {
	const char *name;
	bool needed;
	const char *allowed;
} keys[NR_KEYS] = {
	[VERSION] = {"version", true, "1"},
	[DEVICE] = {"device", true, "ivshmem or dax"},
	[INTEGRITY] = {"integrity", false, "enforced or convention"},
	[OWN] = {"own", false, "an absolute path"},
	[ALL] = {"all", true, "an absolute path"},
	[PART] = {"part", true, "a number from 0 to 255"},
	[TOKEN] = {"token", true, "32 hexadecimal digits, not all 0"},
	[LOCK] = {"lock", true, "an absolute path"},
	[NUMA] = {"numa", false, "the number of a NUMA node, or -1"},
	[VCPU_NUMA] = {"vcpu_numa", false, "the number of a NUMA node, or -1"},
	[DISTANCES] = {"distances", false, "at most 64 numbers from 0 to 255, by NUMA node"},
	[ENDPOINTS] = {"endpoints", false, "a number from 1 to 256"},
};

static bool take_value(enum key key, struct text value, struct nm_vmseg_config *config)
{
	int32_t number;

	switch (key) {
	case VERSION:
		return is_word(value, "1");
	case DEVICE:
		config->device = is_word(value, "dax") ? NM_VMSEG_DAX : NM_VMSEG_IVSHMEM;
		return is_word(value, "dax") || is_word(value, "ivshmem");
	case INTEGRITY:
		config->integrity =
			is_word(value, "enforced") ? NM_VMSEG_ENFORCED : NM_VMSEG_CONVENTION;
		return is_word(value, "enforced") || is_word(value, "convention");
	case OWN:
		return parse_path(value, config->own);
	case ALL:
		return parse_path(value, config->all);
	case LOCK:
		return parse_path(value, config->lock);
	case PART:
		if (!parse_number(value, 0, NM_VMSEG_MAX_PARTS - 1, &number))
			return false;
		config->part = (uint32_t)number;
		return true;
	case TOKEN:
		return nm_vmseg_token_parse(value.at, value.len, config->token);
	case NUMA:
		return parse_number(value, -1, 1023, &config->numa);
	case VCPU_NUMA:
		return parse_number(value, -1, 1023, &config->vcpu_numa);
	case DISTANCES:
		return parse_distances(value, config->distances);
	case ENDPOINTS:
		if (!parse_number(value, 1, NM_VMSEG_NR_SLOTS_MAX, &number))
			return false;
		config->endpoints = (uint32_t)number;
		return true;
	case NR_KEYS:
		break;
	}
	return false;
}

static int take_line(struct text line, unsigned int number, bool seen[NR_KEYS],
		     struct nm_vmseg_config *config, struct nm_reason *ret_reason)
{
	struct text name, value;
	const char *equals;

	line = strip(line);
	if (!line.len || line.at[0] == '#')
		return 0;
	equals = memchr(line.at, '=', line.len);
	if (!equals) {
		nm_reason_set(ret_reason, "line %u: does not have the form `key = value`", number);
		return -EINVAL;
	}
	name = strip((struct text){line.at, (size_t)(equals - line.at)});
	value = strip((struct text){equals + 1, line.len - (size_t)(equals + 1 - line.at)});
	for (int key = 0; key < NR_KEYS; key++) {
		if (!is_word(name, keys[key].name))
			continue;
		if (seen[key]) {
			nm_reason_set(ret_reason, "line %u: `%s` is set twice", number,
				      keys[key].name);
			return -EINVAL;
		}
		seen[key] = true;
		if (take_value((enum key)key, value, config))
			return 0;
		nm_reason_set(ret_reason, "line %u: %s must be %s", number, keys[key].name,
			      keys[key].allowed);
		return -EINVAL;
	}
	nm_reason_set(ret_reason, "line %u: unknown key", number);
	return -EINVAL;
}

int nm_vmseg_config_parse(const char *text, size_t len, struct nm_vmseg_config *ret_config,
			  struct nm_reason *ret_reason)
{
	struct nm_vmseg_config config = {.numa = -1, .vcpu_numa = -1};
	bool seen[NR_KEYS] = {false};
	const char *end = text + len;
	unsigned int number = 0;
	int err;

	while (text < end) {
		const char *newline = memchr(text, '\n', (size_t)(end - text));
		struct text line = {text, (size_t)((newline ? newline : end) - text)};

		err = take_line(line, ++number, seen, &config, ret_reason);
		if (err)
			return err;
		text = newline ? newline + 1 : end;
	}
	for (int key = 0; key < NR_KEYS; key++)
		if (keys[key].needed && !seen[key]) {
			nm_reason_set(ret_reason, "line %u: the file ends without `%s`", number,
				      keys[key].name);
			return -EINVAL;
		}
	if (config.device == NM_VMSEG_IVSHMEM && !seen[OWN]) {
		nm_reason_set(ret_reason,
			      "line %u: the file ends without `own`, which ivshmem needs", number);
		return -EINVAL;
	}
	*ret_config = config;
	return 0;
}

/* The writer of the file decides which files this program maps and locks. */
static int check_owner(int fd, struct nm_reason *ret_reason)
{
	struct stat st;

	if (fstat(fd, &st) < 0) {
		nm_reason_set(ret_reason, "%s", strerror(errno));
		return -errno;
	}
	if (!S_ISREG(st.st_mode)) {
		nm_reason_set(ret_reason, "not a file");
		return -EPERM;
	}
	if ((st.st_uid && st.st_uid != geteuid()) || st.st_mode & (S_IWGRP | S_IWOTH)) {
		nm_reason_set(ret_reason,
			      "other users could have written it: its owner must be root or the "
			      "user (not %u), mode 0644 (not %04o)",
			      st.st_uid, st.st_mode & 07777);
		return -EPERM;
	}
	return 0;
}

int nm_vmseg_config_load(const char *path, struct nm_vmseg_config *ret_config,
			 struct nm_reason *ret_reason)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), err;
	char *text = NULL;
	ssize_t len;

	if (fd < 0) {
		err = -errno;
		nm_reason_set(ret_reason, "%s: %s", path,
			      err == -ENOENT ? "it does not exist: this machine shares no segment" :
					       strerror(-err));
		return err;
	}
	err = check_owner(fd, ret_reason);
	if (err)
		goto out;
	text = malloc(NM_VMSEG_CONFIG_MAX_BYTES + 1);
	len = text ? nm_file_read(fd, text, NM_VMSEG_CONFIG_MAX_BYTES + 1) : -ENOMEM;
	if (len < 0) {
		err = (int)len;
		nm_reason_set(ret_reason, "%s", strerror(-err));
		goto out;
	}
	err = nm_vmseg_config_parse(text, (size_t)len, ret_config, ret_reason);
out:
	if (err) {
		struct nm_reason what = *ret_reason;

		nm_reason_set(ret_reason, "%s: %s", path, what.text);
	}
	free(text);
	close(fd);
	return err;
}
