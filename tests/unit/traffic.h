/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with recognisable bytes between the nodes of a mesh. */
#ifndef NM_TEST_TRAFFIC_H
#define NM_TEST_TRAFFIC_H

#include <errno.h>

#include "harness.h"
#include "mesh.h"

/* Byte I of message SEED. */
static inline char pattern(uint64_t seed, size_t i)
{
	return (char)(seed * 31 + i * 7 + (i >> 8) + (i >> 16) * 13);
}

static inline void fill(char *buf, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = pattern(seed, i);
}

static inline void check_filled(const char *buf, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != pattern(seed, i))
			nm_test_fail(__FILE__, __LINE__, "byte %zu of %zu differs", i, len);
}

/* Send a buffer; progress while there is no room. */
static inline int send_to(struct mesh *mesh, unsigned int from, unsigned int to, const void *buf,
			  size_t len, uint64_t tag, uint64_t flags, void *context)
{
	struct iovec iov = {(void *)buf, len};
	struct nm_message m = {
		.iov = &iov,
		.nr_iov = 1,
		.peer = mesh_peer(mesh, from, to),
		.tag = tag,
		.data = tag * 3,
		.context = context,
		.flags = flags,
	};
	int err;

	while ((err = nm_engine_send(mesh_node(mesh, from)->engine, &m)) == -EAGAIN)
		mesh_step(mesh);
	return err;
}

static inline int recv_from(struct mesh *mesh, unsigned int at, struct nm_peer *source, void *buf,
			    size_t len, uint64_t tag, uint64_t ignore, uint64_t flags,
			    void *context)
{
	struct iovec iov = {buf, len};
	struct nm_message m = {
		.iov = &iov,
		.nr_iov = 1,
		.peer = source,
		.tag = tag,
		.ignore = ignore,
		.context = context,
		.flags = flags,
	};

	return nm_engine_recv(mesh_node(mesh, at)->engine, &m);
}

#define TAGGED (NM_TAGGED | NM_COMPLETION)
#define UNTAGGED (NM_MSG | NM_COMPLETION)

#endif
