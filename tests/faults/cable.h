/* SPDX-License-Identifier: Apache-2.0 */
/* A network between processes: one datagram socket each, in a directory. Death refuses datagrams. */
#ifndef NM_TEST_FAULTS_CABLE_H
#define NM_TEST_FAULTS_CABLE_H

#include "transport/transport.h"

/* The network of the endpoint ADDRESS, which it adds to. 0 or -errno. */
int cable_create(const char *dir, const struct nm_sink *sink, struct nm_address *address,
		 struct nm_transport **ret_transport);
/* Remove the sockets of the dead. */
void cables_remove(const char *dir);

#endif
