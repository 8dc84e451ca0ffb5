/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net channel over tcp on the loopback interface. The functions of libfabric are looked up as
 * the provider does it, so the program itself also runs on machines without libfabric.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "net/host.h"
#include "transport_fixture.h"

#ifdef __SANITIZE_ADDRESS__
/* libfabric 1.17 keeps an fi_info per endpoint and per connection. */
const char *__lsan_default_suppressions(void);

__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
	return "leak:libfabric.so\n";
}
#endif

static void *find(void *library, const char *name)
{
	void *symbol = dlsym(library, name);

	if (!symbol)
		nm_test_fail(__FILE__, __LINE__, "libfabric has no %s()", name);
	return symbol;
}

#define FIND(library, field, name) memcpy(&(field), &(void *){find(library, name)}, sizeof(void *))

static void fill_host(void)
{
	void *library = dlopen("libfabric.so.1", RTLD_NOW);
	uint32_t (*version)(void);

	if (!library)
		nm_test_fail(__FILE__, __LINE__, "%s", dlerror());
	FIND(library, version, "fi_version");
	FIND(library, nm_host.getinfo, "fi_getinfo");
	FIND(library, nm_host.freeinfo, "fi_freeinfo");
	FIND(library, nm_host.dupinfo, "fi_dupinfo");
	FIND(library, nm_host.fabric, "fi_fabric");
	FIND(library, nm_host.strerror, "fi_strerror");
	FIND(library, nm_host.log_enabled, "fi_log_enabled");
	FIND(library, nm_host.log, "fi_log");
	nm_host.version = version();
}

static int create_net(const struct nm_sink *sink, struct nm_address *address,
		      struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	setenv("NEARMETAL_NET", "tcp", 0);
	setenv("NEARMETAL_KEEPALIVE_MS", "100", 0);
	setenv("FI_TCP_IFACE", "lo", 1);
	/* No other provider of the machine takes part. */
	setenv("FI_PROVIDER", "tcp,net,ofi_rxm", 1);
	setenv("FI_PROVIDER_PATH", nm_test_dir(), 1);
	if (!nm_host.version)
		fill_host();
	return nm_net_kind.create(sink, address, ret_transport, ret_reason);
}

const struct fixture net_fixture = {
	.kind = &nm_net_kind,
	.relation = "network",
	.create = create_net,
};
