/* SPDX-License-Identifier: Apache-2.0 */
/* The net channel over tcp on the loopback interface. */
#include <stdlib.h>

#include "fabric_host.h"
#include "net/host.h"
#include "transport_fixture.h"

static int create_net(const struct nm_sink *sink, struct nm_address *address,
		      struct nm_transport **ret_transport, struct nm_reason *ret_reason)
{
	const char *defect = fabric_host_fill(nm_test_dir());

	if (defect)
		nm_test_fail(__FILE__, __LINE__, "%s", defect);
	setenv("NEARMETAL_KEEPALIVE_MS", "100", 0);
	return nm_net_kind.create(sink, address, ret_transport, ret_reason);
}

const struct fixture net_fixture = {
	.kind = &nm_net_kind,
	.relation = "network",
	.create = create_net,
};
