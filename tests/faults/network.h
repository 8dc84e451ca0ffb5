/* SPDX-License-Identifier: Apache-2.0 */
/* The network channel of libfabric (tcp, loopback), and the guest unit that takes a machine's device. */
#ifndef NM_TEST_FAULTS_NETWORK_H
#define NM_TEST_FAULTS_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

/* From now on this process is on MACHINE, whose notice is in DIR. Before anything reads a knob. */
bool network_enter(const char *dir, uint32_t machine);
/* As create() of a kind of transport. */
int network_create(const struct nm_sink *sink, struct nm_address *address,
		   struct nm_transport **ret_transport, struct nm_reason *ret_reason);
/* Ask the endpoint of this process to give its network up. */
void network_ask(void);
/* True once it has: the device may go. */
bool network_is_given_up(void);
/* The network is there again, or stays. */
void network_return(void);
/* NULL, or what the processes have left in DIR. */
const char *network_remains(const char *dir);
/* Remove every file of it. */
void network_remove(const char *dir);

#endif
