/* SPDX-License-Identifier: Apache-2.0 */
/* Places of tuning files, the identity of this machine, and the values in use. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/params.h"
#include "transport/tuning.h"

#define NR_CACHE_INDEXES 6

static void find_cpu(char *ret_text)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[512], *value;

	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, "model name", 10) != 0 || !(value = strchr(line, ':')))
			continue;
		value += 1 + strspn(value + 1, " \t");
		value[strcspn(value, "\n")] = '\0';
		snprintf(ret_text, NM_TUNING_TEXT_MAX, "%s", value);
		break;
	}
	if (file)
		fclose(file);
}

static bool read_cache_file(int index, const char *name, char *ret_text, int room)
{
	char path[96];
	FILE *file;
	bool good;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
	file = fopen(path, "re");
	if (!file)
		return false;
	good = fgets(ret_text, room, file) != NULL;
	fclose(file);
	ret_text[good ? strcspn(ret_text, "\n") : 0] = '\0';
	return good;
}

static void find_caches(uint64_t ret_caches[4])
{
	char level[16], type[32], size[32];

	for (int i = 0; i < NR_CACHE_INDEXES; i++) {
		if (!read_cache_file(i, "level", level, sizeof(level)) ||
		    !read_cache_file(i, "type", type, sizeof(type)) ||
		    !read_cache_file(i, "size", size, sizeof(size)))
			continue;
		if (strcmp(type, "Instruction") != 0 && level[0] >= '1' && level[0] <= '3' &&
		    !level[1])
			ret_caches[level[0] - '0'] =
				strtoull(size, NULL, 10) * (strchr(size, 'M') ? 1048576 : 1024);
	}
}

void nm_tuning_find_machine(struct nm_tuning_machine *ret_machine)
{
	struct nm_tuning_machine machine = {.cpu = ""};
	struct utsname name;

	find_cpu(machine.cpu);
	find_caches(machine.caches);
	if (uname(&name) == 0)
		snprintf(machine.kernel, sizeof(machine.kernel), "%s", name.release);
	*ret_machine = machine;
}

int nm_tuning_load(const char *path, const struct nm_tuning_machine *here,
		   struct nm_tuning *ret_tuning, struct nm_reason *ret_reason)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), err;
	struct nm_tuning tuning;
	struct stat st;
	ssize_t len;
	char *text;

	if (fd < 0) {
		err = -errno;
		nm_reason_set(ret_reason, "%s", strerror(errno));
		return err;
	}
	text = malloc(NM_TUNING_MAX_BYTES + 1);
	len = !text		   ? -ENOMEM :
	      fstat(fd, &st) < 0   ? -errno :
	      !S_ISREG(st.st_mode) ? -EINVAL :
				     nm_file_read(fd, text, NM_TUNING_MAX_BYTES + 1);
	close(fd);
	if (len < 0) {
		nm_reason_set(ret_reason, "%s",
			      len == -EINVAL ? "not a file" : strerror((int)-len));
		err = (int)len;
	} else {
		err = nm_tuning_parse(text, (size_t)len, &tuning, ret_reason);
	}
	free(text);
	if (!err)
		err = nm_tuning_check(&tuning, here, ret_reason);
	if (!err)
		*ret_tuning = tuning;
	return err;
}

/* The places in order; false: no such place. */
static bool place(int i, const struct nm_params *params, char *ret_path, size_t room)
{
	const char *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME");

	if (params->tune_file[0]) {
		snprintf(ret_path, room, "%s", params->tune_file);
		return i == 0 && strcmp(params->tune_file, "none") != 0;
	}
	if (i == 1) {
		snprintf(ret_path, room, "/etc/nearmetal/tuning");
		return true;
	}
	if (i != 0)
		return false;
	if (config && config[0] == '/')
		snprintf(ret_path, room, "%s/nearmetal/tuning", config);
	else
		snprintf(ret_path, room, "%s/.config/nearmetal/tuning", home ? home : "");
	return true;
}

static struct nm_select_params in_force;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

static void apply(const struct nm_tuning *tuning)
{
	for (int c = 0; c < NM_SELECT_NR_CLASSES; c++)
		for (int l = 0; l < NM_SELECT_NR_LOADS; l++)
			for (int p = 0; p < NM_NR_PROTOCOLS; p++)
				if (tuning->rates[c][l][p]) {
					in_force.prior[c][l][p] = tuning->rates[c][l][p];
					if (!tuning->is_near)
						in_force.prior_far[c][l][p] =
							tuning->rates[c][l][p];
				}
}

int nm_tuning_find(const struct nm_params *params, const struct nm_tuning_machine *here,
		   char ret_path[NM_TUNING_PATH_MAX], struct nm_tuning *ret_tuning,
		   struct nm_reason *ret_reason)
{
	int err;

	for (int i = 0; place(i, params, ret_path, NM_TUNING_PATH_MAX); i++) {
		err = nm_tuning_load(ret_path, here, ret_tuning, ret_reason);
		if (err != -ENOENT)
			return err;
		if (params->tune_file[0])
			return -EBADF;
	}
	ret_path[0] = '\0';
	nm_reason_set(ret_reason, "%s",
		      params->tune_file[0] ? "NEARMETAL_TUNE_FILE=none" :
					     "no tuning file: defaults are used");
	return -ENOENT;
}

static void load_in_force(void)
{
	const struct nm_params *params = nm_params();
	struct nm_tuning_machine here;
	struct nm_tuning tuning = {0};
	struct nm_reason why;
	char path[NM_TUNING_PATH_MAX];
	int err;

	in_force = nm_select_defaults;
	if (!params)
		return;
	nm_tuning_find_machine(&here);
	err = nm_tuning_find(params, &here, path, &tuning, &why);
	if (err == -ENOENT)
		return;
	if (err) {
		nm_warn("tuning file %.200s is not used: %s; run `nearmetal tune` on this machine",
			path, why.text);
		return;
	}
	apply(&tuning);
	nm_info("rates of %.200s, measured %s", path, tuning.date);
}

const struct nm_select_params *nm_select_params(void)
{
	pthread_once(&load_once, load_in_force);
	return &in_force;
}
