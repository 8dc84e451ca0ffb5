/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine and this environment offer. Reads; changes nothing. */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/params.h"
#include "connect/address.h"
#include "connect/cma_proof.h"
#include "connect/rundir.h"
#include "shm/window.h"
#include "tools/info.h"
#include "tools/json.h"

#define NR_CACHES 4

struct cache {
	char level[8], type[16], size[16], shared[64];
};

struct facts {
	char node[128];
	char namespaces[6][64];
	int nr_cores;
	struct cache caches[NR_CACHES];
	int nr_caches;
	char dir[NM_RUNDIR_PATH_MAX];
	bool dir_good, window_good, cma_good;
	struct nm_reason dir_words, window_words, cma_words;
};

static const char *const namespace_names[] = {"pid", "ipc", "net", "mnt", "uts", "user"};

/* The first line of a small file, or "". */
static void read_line(const char *path, char *ret_text, int size)
{
	FILE *file = fopen(path, "re");

	ret_text[0] = '\0';
	if (!file)
		return;
	if (!fgets(ret_text, size, file))
		ret_text[0] = '\0';
	ret_text[strcspn(ret_text, "\n")] = '\0';
	fclose(file);
}

static void find_namespaces(struct facts *facts)
{
	char path[64];
	ssize_t len;
	size_t i;

	for (i = 0; i < NM_ARRAY_SIZE(namespace_names); i++) {
		snprintf(path, sizeof(path), "/proc/self/ns/%s", namespace_names[i]);
		len = readlink(path, facts->namespaces[i], sizeof(facts->namespaces[i]) - 1);
		if (len < 0)
			snprintf(facts->namespaces[i], sizeof(facts->namespaces[i]), "unknown");
	}
}

static void find_caches(struct facts *facts, int core)
{
	struct cache *cache;
	char path[128];
	int i;

	for (i = 0; i < NR_CACHES; i++) {
		cache = &facts->caches[facts->nr_caches];
#define CACHE_FILE(name)                                                                           \
	(snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", core, i,   \
		  name),                                                                           \
	 path)
		read_line(CACHE_FILE("level"), cache->level, sizeof(cache->level));
		read_line(CACHE_FILE("type"), cache->type, sizeof(cache->type));
		read_line(CACHE_FILE("size"), cache->size, sizeof(cache->size));
		read_line(CACHE_FILE("shared_cpu_list"), cache->shared, sizeof(cache->shared));
		if (cache->level[0])
			facts->nr_caches++;
	}
}

static void find_cores(struct facts *facts)
{
	cpu_set_t set;
	int core;

	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return;
	facts->nr_cores = CPU_COUNT(&set);
	for (core = 0; core < CPU_SETSIZE; core++)
		if (CPU_ISSET(core, &set)) {
			find_caches(facts, core);
			return;
		}
}

static unsigned int count_sockets(const struct nm_rundir *dir)
{
	DIR *stream = opendir(dir->path);
	unsigned int nr = 0;
	struct dirent *entry;

	if (!stream)
		return 0;
	while ((entry = readdir(stream)))
		nr += entry->d_name[0] != '.';
	closedir(stream);
	return nr;
}

static void find_rundir(struct facts *facts, const struct nm_params *params)
{
	struct nm_rundir dir;
	struct stat st;

	nm_rundir_find(params->rundir, facts->dir);
	if (stat(facts->dir, &st) < 0 && errno == ENOENT) {
		facts->dir_good = true;
		nm_reason_set(&facts->dir_words, "missing; created when first needed");
		return;
	}
	if (nm_rundir_open(facts->dir, &dir, &facts->dir_words))
		return;
	facts->dir_good = true;
	nm_reason_set(&facts->dir_words, "private to this user, %u endpoints listen in it",
		      count_sockets(&dir));
	nm_rundir_close(&dir);
}

static void try_window(struct facts *facts, const struct nm_params *params)
{
	static const uint8_t id[6] = {1};
	struct nm_geometry geometry;
	struct nm_window window;

	if (nm_geometry_init((uint32_t)params->max_local_peers, (uint32_t)params->ring_slots,
			     (uint32_t)params->chunk_size, params->pool_size, &geometry)) {
		nm_reason_set(&facts->window_words,
			      "the knobs of the window contradict each other");
		return;
	}
	if (nm_window_create(&geometry, id, &window, &facts->window_words))
		return;
	facts->window_good = true;
	nm_reason_set(&facts->window_words, "a sealed window of %llu bytes can be created",
		      (unsigned long long)geometry.size);
	nm_window_destroy(&window);
}

static const char *value_origin(const struct nm_param_info *info)
{
	const char *text = getenv(info->env);

	return text && *text ? "environment" : "default";
}

static void print_json(const struct facts *facts, const struct nm_params *params)
{
	struct nm_json json = {stdout, false};
	const struct nm_param_info *infos;
	char value[NM_PARAM_TEXT_MAX];
	size_t i, nr;
	int c;

	nm_json_open(&json, NULL, '{');
	nm_json_text(&json, "version", NM_VERSION);
	nm_json_number(&json, "layout_version", NM_LAYOUT_VERSION);
	nm_json_text(&json, "node", facts->node);
	nm_json_number(&json, "cores", (uint64_t)facts->nr_cores);
	nm_json_open(&json, "namespaces", '{');
	for (i = 0; i < NM_ARRAY_SIZE(namespace_names); i++)
		nm_json_text(&json, namespace_names[i], facts->namespaces[i]);
	nm_json_close(&json, '}');
	nm_json_open(&json, "caches", '[');
	for (c = 0; c < facts->nr_caches; c++) {
		nm_json_open(&json, NULL, '{');
		nm_json_text(&json, "level", facts->caches[c].level);
		nm_json_text(&json, "type", facts->caches[c].type);
		nm_json_text(&json, "size", facts->caches[c].size);
		nm_json_text(&json, "cores", facts->caches[c].shared);
		nm_json_close(&json, '}');
	}
	nm_json_close(&json, ']');
	nm_json_open(&json, "rundir", '{');
	nm_json_text(&json, "path", facts->dir);
	nm_json_bool(&json, "usable", facts->dir_good);
	nm_json_text(&json, "reason", facts->dir_words.text);
	nm_json_close(&json, '}');
	nm_json_open(&json, "window", '{');
	nm_json_bool(&json, "usable", facts->window_good);
	nm_json_text(&json, "reason", facts->window_words.text);
	nm_json_close(&json, '}');
	nm_json_open(&json, "cma", '{');
	nm_json_bool(&json, "possible", facts->cma_good);
	nm_json_text(&json, "reason", facts->cma_words.text);
	nm_json_close(&json, '}');
	nm_info_vmseg_json(&json);
	nm_info_tuning_json(&json);
	nm_json_open(&json, "knobs", '[');
	infos = nm_param_infos(&nr);
	for (i = 0; i < nr; i++) {
		nm_param_format(params, i, value, sizeof(value));
		nm_json_open(&json, NULL, '{');
		nm_json_text(&json, "name", infos[i].env);
		nm_json_text(&json, "value", value);
		nm_json_text(&json, "from", value_origin(&infos[i]));
		nm_json_close(&json, '}');
	}
	nm_json_close(&json, ']');
	nm_json_close(&json, '}');
	putchar('\n');
}

static void print_words(const struct facts *facts, const struct nm_params *params)
{
	const struct nm_param_info *infos;
	char value[NM_PARAM_TEXT_MAX];
	size_t i, nr;
	int c;

	printf("nearmetal %s, shared layout version %d\n", NM_VERSION, NM_LAYOUT_VERSION);
	printf("\nnode %s, %d cores may be used\n", facts->node, facts->nr_cores);
	for (c = 0; c < facts->nr_caches; c++)
		printf("  L%s %-12s %8s  shared by cores %s\n", facts->caches[c].level,
		       facts->caches[c].type, facts->caches[c].size, facts->caches[c].shared);
	printf("\nnamespaces\n");
	for (i = 0; i < NM_ARRAY_SIZE(namespace_names); i++)
		printf("  %-5s %s\n", namespace_names[i], facts->namespaces[i]);
	printf("\nshared memory\n");
	printf("  rundir             %-3s %s: %s\n", facts->dir_good ? "yes" : "no", facts->dir,
	       facts->dir_words.text);
	printf("  window             %-3s %s\n", facts->window_good ? "yes" : "no",
	       facts->window_words.text);
	printf("  CMA                %-3s %s\n", facts->cma_good ? "yes" : "no",
	       facts->cma_words.text);
	nm_info_vmseg_text();
	nm_info_tuning_text();
	printf("\nknobs\n");
	infos = nm_param_infos(&nr);
	for (i = 0; i < nr; i++) {
		nm_param_format(params, i, value, sizeof(value));
		printf("  %-25s %-12s %-5s (%s) %s\n", infos[i].env, *value ? value : "-",
		       infos[i].unit, value_origin(&infos[i]), infos[i].reason);
	}
}

int nm_info_machine(bool json)
{
	const struct nm_params *params = nm_params();
	struct facts facts = {0};

	if (!params)
		return 1;
	gethostname(facts.node, sizeof(facts.node) - 1);
	find_namespaces(&facts);
	find_cores(&facts);
	find_rundir(&facts, params);
	try_window(&facts, params);
	nm_info_vmseg_find();
	facts.cma_good = nm_cma_works_here(&facts.cma_words);
	if (facts.cma_good && strcmp(params->cma, "auto") != 0) {
		facts.cma_good = false;
		nm_reason_set(&facts.cma_words, "NEARMETAL_CMA=off");
	}
	if (json)
		print_json(&facts, params);
	else
		print_words(&facts, params);
	return fflush(stdout) ? 1 : 0;
}
