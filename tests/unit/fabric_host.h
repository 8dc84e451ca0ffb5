/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libfabric for the network channel, in programs that are no provider. */
#ifndef NM_TEST_FABRIC_HOST_H
#define NM_TEST_FABRIC_HOST_H

/*
 * Look them up as the provider does it, so that a program also runs on machines without libfabric.
 * The channel uses tcp over the loopback interface, and no other provider of the machine: DIR has
 * none. NULL, or what is wrong.
 */
const char *fabric_host_fill(const char *dir);

#endif
