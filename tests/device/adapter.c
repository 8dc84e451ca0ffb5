/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network adapter that reaches the memory of GPUs, for machines without one: a libfabric provider
 * "nmadapter", which is libfabric's own tcp with FI_HMEM. It passes all calls on, but for
 *
 *   fi_mr_regattr()       registers memory of the stand-in for a GPU, by its address or by a dma-buf
 *   fi_tsend(), _trecv()  with such a descriptor copy between it and the network as an adapter would:
 *                         a send reads its bytes some readings of the queue later, and a receive
 *                         spoils its buffer at once
 *
 * Registrations, sends, receives and completions are steps of the stand-in, so each can fail.
 * NM_ADAPTER_DMABUF=off: registrations by dma-buf are refused.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

#include "base/compiler.h"
#include "stand_in.h"

#define NAME "nmadapter"
#define HIDDEN (1ULL << 60) /* as in net/inner.c */
#define MR_DMABUF (1ULL << 40)

struct dmabuf {
	int fd;
	uint64_t offset;
	size_t len;
	void *base_addr;
};

struct memory {
	struct fid_mr mr;
	uint64_t start;
	size_t len, mapped;
	char *map, *bytes; /* of the dma-buf; NULL: by address */
};

/* Of a send or receive on a device. */
struct operation {
	struct fi_context2 context; /* the one that tcp gets */
	struct operation *next;
	struct fid_ep *ep;
	struct memory *memory; /* NULL: its registration has ended */
	void *user;	       /* the caller's context */
	uint64_t address, tag;
	fi_addr_t peer;
	size_t len;
	int waits; /* readings of the queue until a send begins; 0: it has begun */
	bool is_receive;
	char *bounce;
};

static struct operation *operations;
static struct fi_ops_fabric fabric_ops;
static struct fi_ops_domain domain_ops;
static struct fi_ops_tagged tagged_ops;
static struct fi_ops_ep ep_ops;
static struct fi_ops_cq cq_ops;
/* Those of tcp. */
static const struct fi_ops_fabric *real_fabric;
static const struct fi_ops_domain *real_domain;
static const struct fi_ops_mr *real_mr;
static const struct fi_ops_tagged *real_tagged;
static const struct fi_ops_ep *real_ep;
static const struct fi_ops_cq *real_cq;
static char real_name[64];
static _Thread_local bool is_asking;
static struct {
	void *context;
	int error;
} failed; /* the next entry of the queue is this error */

static NM_COLD void wrong(const char *what)
{
	fprintf(stderr, "adapter: %s\n", what);
	abort();
}

/* ---- registration ---- */

static int memory_close(struct fid *fid)
{
	struct memory *m = nm_container_of(fid, struct memory, mr.fid);

	for (struct operation *op = operations; op; op = op->next)
		if (op->memory == m)
			op->memory = NULL;
	if (m->map)
		munmap(m->map, m->mapped);
	free(m);
	return 0;
}

static struct fi_ops memory_fid_ops = {.size = sizeof(struct fi_ops), .close = memory_close};

static int map_dmabuf(struct memory *m, const struct dmabuf *dmabuf)
{
	const char *allowed = getenv("NM_ADAPTER_DMABUF");
	struct stat st;

	if (allowed && !strcmp(allowed, "off"))
		return -FI_ENOSYS;
	if (fstat(dmabuf->fd, &st) < 0)
		wrong("the dma-buf is not an open file");
	m->start = (uintptr_t)dmabuf->base_addr + dmabuf->offset;
	m->len = dmabuf->len;
	m->mapped = (size_t)dmabuf->offset + dmabuf->len;
	m->map = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf->fd, 0);
	if (m->map == MAP_FAILED) {
		m->map = NULL;
		return -FI_ENOMEM;
	}
	m->bytes = m->map + dmabuf->offset;
	return 0;
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
		      struct fid_mr **ret_mr)
{
	struct memory *m;
	int err = 0;

	if (attr->iface == FI_HMEM_SYSTEM)
		return real_mr->regattr(fid, attr, flags, ret_mr);
	if (attr->iface != FI_HMEM_CUDA || attr->iov_count != 1)
		wrong("a registration that is not of one piece of a GPU");
	if (nm_stand_in_step())
		return -FI_EIO;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -FI_ENOMEM;
	if (flags & MR_DMABUF) {
		err = map_dmabuf(m, (const struct dmabuf *)(const void *)attr->mr_iov);
	} else {
		m->start = (uintptr_t)attr->mr_iov->iov_base;
		m->len = attr->mr_iov->iov_len;
		if (!nm_stand_in_reach(m->start, m->len))
			err = -FI_EFAULT;
	}
	if (err) {
		free(m);
		return err;
	}
	m->mr.fid.fclass = FI_CLASS_MR;
	m->mr.fid.ops = &memory_fid_ops;
	m->mr.mem_desc = m;
	*ret_mr = &m->mr;
	return 0;
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset,
		  uint64_t key, uint64_t flags, struct fid_mr **ret_mr, void *context)
{
	return real_mr->reg(fid, buf, len, access, offset, key, flags, ret_mr, context);
}

static struct fi_ops_mr mr_ops = {
	.size = sizeof(struct fi_ops_mr),
	.reg = mr_reg,
	.regattr = mr_regattr,
};

/* ---- operations ---- */

/* Where the adapter finds them. NULL: they are not there any more. */
static char *bytes_of(const struct operation *op)
{
	const struct memory *m = op->memory;

	if (!m)
		return NULL;
	return m->bytes ? m->bytes + (op->address - m->start) :
			  nm_stand_in_reach(op->address, op->len);
}

static void operation_free(struct operation *op)
{
	struct operation **at = &operations;

	while (*at != op)
		at = &(*at)->next;
	*at = op->next;
	nm_stand_in_going(-1);
	free(op->bounce);
	free(op);
}

static struct operation *operation_make(struct fid_ep *ep, const void *buf, size_t len, void *desc,
					fi_addr_t peer, uint64_t tag, void *context)
{
	struct memory *m = desc;
	struct operation *op;

	if ((uintptr_t)buf < m->start || len > m->len - ((uintptr_t)buf - m->start))
		wrong("an operation outside its registration");
	if (nm_stand_in_step())
		return NULL;
	op = calloc(1, sizeof(*op));
	*op = (struct operation){
		.next = operations,
		.ep = ep,
		.memory = m,
		.user = context,
		.address = (uintptr_t)buf,
		.tag = tag,
		.peer = peer,
		.len = len,
		.bounce = malloc(len),
	};
	operations = op;
	nm_stand_in_going(1);
	return op;
}

static ssize_t ep_tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to,
			uint64_t tag, void *context)
{
	struct operation *op;

	if (!desc)
		return real_tagged->send(ep, buf, len, NULL, to, tag, context);
	op = operation_make(ep, buf, len, desc, to, tag, context);
	if (!op)
		return -FI_EIO;
	op->waits = 20;
	return 0;
}

static ssize_t ep_trecv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from,
			uint64_t tag, uint64_t ignore, void *context)
{
	struct operation *op;
	ssize_t err;
	char *bytes;

	if (from == FI_ADDR_UNSPEC || ignore)
		wrong("a receive from any source, or with any tag");
	if (!desc)
		return real_tagged->recv(ep, buf, len, NULL, from, tag, 0, context);
	op = operation_make(ep, buf, len, desc, from, tag, context);
	if (!op)
		return -FI_EIO;
	op->is_receive = true;
	bytes = bytes_of(op);
	if (bytes)
		memset(bytes, 0xa5, len);
	err = real_tagged->recv(ep, op->bounce, len, NULL, from, tag, 0, &op->context);
	if (err)
		operation_free(op);
	return err;
}

static ssize_t ep_cancel(fid_t fid, void *context)
{
	for (struct operation *op = operations; op; op = op->next)
		if (op->user == context)
			return op->is_receive ? real_ep->cancel(fid, &op->context) : -FI_ENOSYS;
	return real_ep->cancel(fid, context);
}

/* Sends read their bytes late. */
static void begin_sends(void)
{
	for (struct operation *op = operations, *next; op; op = next) {
		char *bytes;

		next = op->next;
		if (op->is_receive || op->waits == 0 || --op->waits > 0)
			continue;
		bytes = bytes_of(op);
		if (bytes)
			memcpy(op->bounce, bytes, op->len);
		/* As an adapter whose registration has ended: the wire has other bytes. */
		else
			memset(op->bounce, 0x5a, op->len);
		if (real_tagged->send(op->ep, op->bounce, op->len, NULL, op->peer, op->tag,
				      &op->context))
			op->waits = 1; /* again */
	}
}

/* tcp is done with CONTEXT. Returns the caller's; *RET_ERROR: it is to end so. */
static void *finish(void *context, int *ret_error)
{
	struct operation *op = operations;
	void *user;
	char *bytes;

	while (op && (void *)&op->context != context)
		op = op->next;
	if (!op)
		return context;
	user = op->user;
	if (!*ret_error && nm_stand_in_step())
		*ret_error = FI_EIO;
	bytes = bytes_of(op);
	if (!bytes && !*ret_error)
		*ret_error = FI_EFAULT;
	if (op->is_receive && bytes && !*ret_error)
		memcpy(bytes, op->bounce, op->len);
	if (!*ret_error)
		nm_stand_in_reached();
	operation_free(op);
	return user;
}

static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count)
{
	struct fi_cq_msg_entry *entries = buf;
	size_t nr = 0;

	begin_sends();
	for (; nr < count && !failed.error; nr++) {
		ssize_t rc = real_cq->read(cq, &entries[nr], 1);

		if (rc != 1)
			return nr ? (ssize_t)nr : rc;
		entries[nr].op_context = finish(entries[nr].op_context, &failed.error);
		if (failed.error) {
			failed.context = entries[nr].op_context;
			break;
		}
	}
	return nr ? (ssize_t)nr : -FI_EAVAIL;
}

static ssize_t cq_readerr(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
	ssize_t rc;
	int err;

	if (failed.error) {
		entry->op_context = failed.context;
		entry->err = failed.error;
		failed.error = 0;
		return 1;
	}
	rc = real_cq->readerr(cq, entry, flags);
	err = entry->err;
	if (rc == 1)
		entry->op_context = finish(entry->op_context, &err);
	return rc;
}

/* ---- objects: those of tcp, with some of their functions replaced ---- */

static struct fi_info *plain(const struct fi_info *info)
{
	struct fi_info *copy = fi_dupinfo(info);

	free(copy->fabric_attr->prov_name);
	copy->fabric_attr->prov_name = strdup(real_name);
	copy->caps &= ~FI_HMEM;
	copy->domain_attr->mr_mode &= ~FI_MR_HMEM;
	copy->domain_attr->caps &= ~FI_HMEM;
	copy->tx_attr->caps &= ~FI_HMEM;
	copy->rx_attr->caps &= ~FI_HMEM;
	return copy;
}

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ret_ep,
		    void *context)
{
	struct fi_info *copy = plain(info);
	int err = real_domain->endpoint(domain, copy, ret_ep, context);

	fi_freeinfo(copy);
	if (err)
		return err;
	real_tagged = (*ret_ep)->tagged;
	tagged_ops = *real_tagged;
	tagged_ops.send = ep_tsend;
	tagged_ops.recv = ep_trecv;
	(*ret_ep)->tagged = &tagged_ops;
	real_ep = (*ret_ep)->ops;
	ep_ops = *real_ep;
	ep_ops.cancel = ep_cancel;
	(*ret_ep)->ops = &ep_ops;
	return 0;
}

static int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **ret_cq,
		   void *context)
{
	int err = real_domain->cq_open(domain, attr, ret_cq, context);

	if (err)
		return err;
	if (attr->format != FI_CQ_FORMAT_MSG)
		wrong("a queue of another format");
	real_cq = (*ret_cq)->ops;
	cq_ops = *real_cq;
	cq_ops.read = cq_read;
	cq_ops.readerr = cq_readerr;
	(*ret_cq)->ops = &cq_ops;
	return 0;
}

static int domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **ret_domain,
		  void *context)
{
	struct fi_info *copy = plain(info);
	int err = real_fabric->domain(fabric, copy, ret_domain, context);

	fi_freeinfo(copy);
	if (err)
		return err;
	real_domain = (*ret_domain)->ops;
	domain_ops = *real_domain;
	domain_ops.endpoint = endpoint;
	domain_ops.cq_open = cq_open;
	(*ret_domain)->ops = &domain_ops;
	real_mr = (*ret_domain)->mr;
	(*ret_domain)->mr = &mr_ops;
	return 0;
}

static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **ret_fabric, void *context)
{
	struct fi_fabric_attr copy = *attr;
	int err;

	copy.prov_name = real_name;
	err = fi_fabric(&copy, ret_fabric, context);
	if (err)
		return err;
	real_fabric = (*ret_fabric)->ops;
	fabric_ops = *real_fabric;
	fabric_ops.domain = domain;
	(*ret_fabric)->ops = &fabric_ops;
	return 0;
}

/* What NAME offers, with FI_HMEM. */
static int ask(const char *name, const struct fi_info *hints, struct fi_info **ret_info)
{
	struct fi_info *copy;
	int err;

	snprintf(real_name, sizeof(real_name), "%s", name);
	copy = plain(hints);
	is_asking = true;
	err = fi_getinfo(fi_version(), NULL, NULL, HIDDEN, copy, ret_info);
	is_asking = false;
	fi_freeinfo(copy);
	if (err)
		return err;
	for (struct fi_info **at = ret_info; *at;) {
		struct fi_info *info = *at;

		/* Others are layered over it. */
		if (strcmp(info->fabric_attr->prov_name, name)) {
			*at = info->next;
			info->next = NULL;
			fi_freeinfo(info);
			continue;
		}
		free(info->fabric_attr->prov_name);
		info->fabric_attr->prov_name = NULL; /* libfabric writes it */
		info->caps |= hints->caps & FI_HMEM;
		info->domain_attr->mr_mode |= hints->caps & FI_HMEM ? FI_MR_HMEM : 0;
		at = &info->next;
	}
	return *ret_info ? 0 : -FI_ENODATA;
}

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		   const struct fi_info *hints, struct fi_info **ret_info)
{
	(void)version;
	(void)node;
	(void)service;
	(void)flags;
	if (is_asking || !hints || !hints->fabric_attr || !hints->fabric_attr->prov_name ||
	    strcmp(hints->fabric_attr->prov_name, NAME))
		return -FI_ENODATA;
	/* Newer ones have reliable datagrams in tcp itself; receives with tags work in both. */
	return ask(FI_VERSION_LT(fi_version(), FI_VERSION(1, 18)) ? "tcp;ofi_rxm" : "tcp", hints,
		   ret_info);
}

static void cleanup(void)
{
}

static struct fi_provider provider = {
	.name = NAME,
	.version = FI_VERSION(1, 0),
	.getinfo = getinfo,
	.fabric = fabric,
	.cleanup = cleanup,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void);
struct fi_provider *fi_prov_ini(void)
{
	provider.fi_version = fi_version();
	return &provider;
}
