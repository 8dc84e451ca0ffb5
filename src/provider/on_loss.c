/* SPDX-License-Identifier: Apache-2.0 */
#include "provider/on_loss.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/params.h"

/* Room for a version: MPICH and Intel MPI write up to 8192 bytes, Open MPI 256. */
#define VERSION_MAX 8192
#define LIBRARIES_MAX 8

struct libraries {
	const char *paths[LIBRARIES_MAX];
	unsigned int nr;
};

const char *nm_on_loss_reason(const char *knob, const char *version)
{
	if (!strcmp(knob, "abort"))
		return "NEARMETAL_ON_LOSS is abort";
	if (strcmp(knob, "auto") != 0)
		return NULL;
	/* Seen in 2021.15, and in 4.1.4 and 5.0.11 (tests/system/test_faults_loss.py). */
	if (strstr(version, "Intel(R) MPI"))
		return "Intel MPI ignores such errors and returns wrong data as success";
	if (!strncmp(version, "Open MPI", 8))
		return "Open MPI may ignore such errors and return wrong data as success";
	return NULL;
}

/* libmpi.so.12, libmpi.so.40, libmpi_ilp64.so and the like. */
static int note_library(struct dl_phdr_info *info, size_t size, void *arg)
{
	const char *slash = strrchr(info->dlpi_name, '/');
	struct libraries *found = arg;

	(void)size;
	if (!strncmp(slash ? slash + 1 : info->dlpi_name, "libmpi", 6))
		found->paths[found->nr++] = info->dlpi_name;
	return found->nr == LIBRARIES_MAX;
}

/* Ask the MPI that HANDLE leads to. False: it leads to none. */
static bool ask(void *handle, char ret_version[VERSION_MAX + 1])
{
	int (*get_version)(char *version, int *len);
	void *symbol = dlsym(handle, "PMPI_Get_library_version");
	int len = 0;

	if (!symbol)
		return false;
	memcpy(&get_version, &symbol, sizeof(symbol));
	ret_version[0] = '\0';
	get_version(ret_version, &len);
	ret_version[VERSION_MAX] = '\0';
	return true;
}

/* Interpreters load MPI libraries where a look-up by name alone finds nothing. */
static void find_version(char ret_version[VERSION_MAX + 1])
{
	struct libraries found = {.nr = 0};

	ret_version[0] = '\0';
	dl_iterate_phdr(note_library, &found);
	for (unsigned int i = 0; i < found.nr; i++) {
		void *library = dlopen(found.paths[i], RTLD_LAZY | RTLD_NOLOAD);
		bool done = library && ask(library, ret_version);

		if (library)
			dlclose(library);
		if (done)
			return;
	}
	ask(RTLD_DEFAULT, ret_version); /* linked into the program itself */
}

static const char *reason_here;

static void decide(void)
{
	static char version[VERSION_MAX + 1];

	if (!nm_params())
		return;
	find_version(version);
	reason_here = nm_on_loss_reason(nm_params()->on_loss, version);
	nm_info("MPI '%.*s': if a peer is lost, %s%s", (int)strcspn(version, "\n"), version,
		reason_here ? "this process ends: " : "operations end with an error",
		reason_here ? reason_here : "");
}

const char *nm_on_loss_here(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, decide);
	return reason_here;
}

void nm_on_loss_end(void *reason, const struct nm_lost *lost)
{
	const struct nm_failed *failed = &lost->failed;

	nm_error("exit code %d: peer " NM_WHO_FORMAT " (%.60s) was lost, failed receives: %" PRIu64
		 ", sends: %" PRIu64 ", accesses: %" PRIu64
		 ", and %s (NEARMETAL_ON_LOSS=error continues). Cause: %s",
		 NM_ON_LOSS_EXIT, NM_WHO(&lost->who), lost->label, failed->receives, failed->sends,
		 failed->accesses, (const char *)reason, lost->reason);
	/* Not exit(): what the program does at its end could send wrong data, or wait. */
	_exit(NM_ON_LOSS_EXIT);
}
