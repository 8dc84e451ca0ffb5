/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One endpoint over the public libfabric interface, for programs that a test drives. Messages
 * carry a pattern made from their tag, so that a receiver can tell every wrong byte.
 */
#ifndef NM_TEST_ENDPOINT_H
#define NM_TEST_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#define ADDRESS_MAX 64
#define NAME_LEN 32

struct endpoint {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	uint8_t address[ADDRESS_MAX];
	size_t address_len;
};

enum operation_kind { OPERATION_SEND, OPERATION_RECV, OPERATION_FLOOD };

/* A message on its way. `context` is what libfabric gives back. */
struct operation {
	struct fi_context2 context;
	struct operation *next;
	char id[NAME_LEN];
	enum operation_kind kind;
	bool tagged;
	bool posted;
	fi_addr_t peer; /* FI_ADDR_UNSPEC: receive from anyone */
	uint64_t tag, ignore;
	size_t size;
	uint8_t *buffer;
};

/* Open one endpoint of the provider "nearmetal". 0, or -fi_errno; no trace after a failure. */
int endpoint_open(struct endpoint *endpoint, enum fi_threading threading);
/* Close all of it. 0, or the first -fi_errno. A closed or zeroed one is fine. */
int endpoint_close(struct endpoint *endpoint);

/* Start an operation. 0, -FI_EAGAIN (call again after a progress call), or -fi_errno. */
int operation_start(struct endpoint *endpoint, struct operation *operation);

void pattern_fill(uint8_t *buffer, size_t size, uint64_t tag);
/* Offset of the first byte that is wrong; SIZE when there is none. */
size_t pattern_check(const uint8_t *buffer, size_t size, uint64_t tag);

#endif
