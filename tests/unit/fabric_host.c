/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric_host.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "net/host.h"

#ifdef __SANITIZE_ADDRESS__
/* libfabric 1.17 keeps an fi_info per endpoint and per connection. */
const char *__lsan_default_suppressions(void);

__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
	return "leak:libfabric.so\n";
}
#endif

/* False: there is none. */
static bool find(void *library, const char *name, void *ret_function)
{
	void *symbol = dlsym(library, name);

	memcpy(ret_function, &symbol, sizeof(symbol));
	return symbol != NULL;
}

const char *fabric_host_fill(const char *dir)
{
	uint32_t (*version)(void);
	void *library;

	setenv("NEARMETAL_NET", "tcp", 0);
	setenv("FI_TCP_IFACE", "lo", 1);
	setenv("FI_PROVIDER", "tcp,net,ofi_rxm", 1);
	setenv("FI_PROVIDER_PATH", dir, 1);
	if (nm_host.version)
		return NULL;
	library = dlopen("libfabric.so.1", RTLD_NOW);
	if (!library)
		return dlerror();
	if (!find(library, "fi_version", &version) ||
	    !find(library, "fi_getinfo", &nm_host.getinfo) ||
	    !find(library, "fi_freeinfo", &nm_host.freeinfo) ||
	    !find(library, "fi_dupinfo", &nm_host.dupinfo) ||
	    !find(library, "fi_fabric", &nm_host.fabric) ||
	    !find(library, "fi_strerror", &nm_host.strerror) ||
	    !find(library, "fi_log_enabled", &nm_host.log_enabled) ||
	    !find(library, "fi_log", &nm_host.log))
		return "libfabric lacks functions";
	nm_host.version = version();
	return NULL;
}
