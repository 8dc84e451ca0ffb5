/* SPDX-License-Identifier: Apache-2.0 */
/* The entry point: finds the host's functions and describes the provider to it. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "provider/provider.h"

/* libfabric may register one library twice (two directories name it) and clean up the loser. */
static _Atomic int nr_loads;
static void *host_library;

static void provider_cleanup(void)
{
	if (atomic_fetch_sub(&nr_loads, 1) == 1)
		nm_ep_write_all_stats();
}

static struct fi_provider provider = {
	.version = FI_VERSION(0, 1),
	.name = NM_PROVIDER_NAME,
	.getinfo = nm_getinfo,
	.fabric = nm_fabric_open,
	.cleanup = provider_cleanup,
};

static void log_to_host(enum nm_log_level level, const char *line)
{
	static const enum fi_log_level levels[] = {
		[NM_LOG_ERROR] = FI_LOG_WARN,
		[NM_LOG_WARN] = FI_LOG_WARN,
		[NM_LOG_INFO] = FI_LOG_INFO,
		[NM_LOG_DEBUG] = FI_LOG_DEBUG,
	};

	if (nm_host.log_enabled(&provider, levels[level], FI_LOG_CORE))
		nm_host.log(&provider, levels[level], FI_LOG_CORE, __func__, __LINE__, "%s\n",
			    line);
}

/* The library that holds ADDRESS, or libfabric by its usual name, or any loaded library. */
static void *find_library(const void *address)
{
	void *library = NULL;
	Dl_info info;

	if (address && dladdr(address, &info) && info.dli_fname)
		library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	if (library && !dlsym(library, "fi_getinfo")) {
		dlclose(library);
		library = NULL;
	}
	return library ? library : dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD);
}

static bool find_symbol(void *library, const char *name, void *ret_function)
{
	void *symbol = dlsym(library, name);

	if (!symbol) {
		nm_error(
			"the libfabric that loaded the provider has no %s(); 1.14 or newer is needed",
			name);
		return false;
	}
	/* POSIX wants function and data pointers to be alike; C does not say so. */
	memcpy(ret_function, &symbol, sizeof(symbol));
	return true;
}

static bool find_host(void *library, struct nm_host *ret_host)
{
	uint32_t (*version)(void);

	if (!find_symbol(library, "fi_version", &version) ||
	    !find_symbol(library, "fi_getinfo", &ret_host->getinfo) ||
	    !find_symbol(library, "fi_freeinfo", &ret_host->freeinfo) ||
	    !find_symbol(library, "fi_dupinfo", &ret_host->dupinfo) ||
	    !find_symbol(library, "fi_fabric", &ret_host->fabric) ||
	    !find_symbol(library, "fi_strerror", &ret_host->strerror) ||
	    !find_symbol(library, "fi_log_enabled", &ret_host->log_enabled) ||
	    !find_symbol(library, "fi_log", &ret_host->log))
		return false;
	ret_host->version = version();
	return true;
}

FI_EXT_INI;
FI_EXT_INI
{
	void *library = find_library(__builtin_return_address(0));
	struct nm_host host = {0};

	if (!library) {
		nm_error("fi_prov_ini() was not called by libfabric; the provider is not loaded");
		return NULL;
	}
	if (host_library && host_library != library) {
		nm_error("a second libfabric in this process loads the provider: refused, because "
			 "objects of one cannot be used with the other; give each its own copy of "
			 "libnearmetal-fi.so");
		dlclose(library);
		return NULL;
	}
	if (!host_library) {
		if (!find_host(library, &host)) {
			dlclose(library);
			return NULL;
		}
		nm_host = host;
		host_library = library; /* kept: its functions are used until the process ends */
		/*
		 * Older than what the program asks for means "skipped": always as new as the host.
		 */
		provider.fi_version = host.version;
		nm_log_set_sink(log_to_host);
	} else {
		dlclose(library);
		nm_info("fi_prov_ini() called again: the provider is found in two directories; "
			"one copy serves both");
	}
	atomic_fetch_add(&nr_loads, 1);
	return &provider;
}
