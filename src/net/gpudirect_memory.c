/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of devices, registered with the inner domain. */
#include <errno.h>
#include <unistd.h>

#include "base/device.h"
#include "base/log.h"
#include "net/gpudirect.h"
#include "net/host.h"

/* Of libfabric 1.20 and newer; the oldest headers have neither. */
#define MR_DMABUF (1ULL << 40)
#define DMABUF_VERSION FI_VERSION(1, 20)
struct dmabuf {
	int fd;
	uint64_t offset;
	size_t len;
	void *base_addr;
};

static int register_as(struct net *net, const struct nm_device_buffer *b, unsigned int number,
		       const struct dmabuf *dmabuf, struct fid_mr **ret_mr)
{
	const struct iovec iov = {(void *)(uintptr_t)b->start, b->size};
	struct fi_mr_attr attr = {
		/* With MR_DMABUF the same place of the structure points to a dma-buf. */
		.mr_iov = dmabuf ? (const struct iovec *)(const void *)dmabuf : &iov,
		.iov_count = 1,
		.access = FI_SEND | FI_RECV,
		.requested_key = NM_NET_FIRST_KEY + net->gpudirect->nr_keys++,
		.iface = (enum fi_hmem_iface)number,
		.device.cuda = b->device,
	};
	struct fid_mr *mr;
	int err = fi_mr_regattr(net->inner.domain, &attr, dmabuf ? MR_DMABUF : 0, &mr);

	if (err)
		return err;
	err = nm_net_enable(&net->inner, mr);
	if (err) {
		fi_close(&mr->fid);
		return err;
	}
	*ret_mr = mr;
	return 0;
}

static int register_dmabuf(struct net *net, const struct nm_device_ops *ops,
			   const struct nm_device_buffer *b, unsigned int number,
			   struct fid_mr **ret_mr, struct nm_reason *ret_why)
{
	struct dmabuf dmabuf = {.len = b->size};
	int err;

	if (nm_host.version < DMABUF_VERSION) {
		nm_reason_set(ret_why, "libfabric is older than 1.20");
		return -FI_ENOSYS;
	}
	if (!ops->dmabuf) {
		nm_reason_set(ret_why, "%s gives none", ops->name);
		return -FI_ENOSYS;
	}
	dmabuf.fd = ops->dmabuf(b->start, b->size, &dmabuf.offset, ret_why);
	if (dmabuf.fd < 0)
		return dmabuf.fd;
	/* Of the dma-buf: providers add the offset. */
	dmabuf.base_addr = (void *)(uintptr_t)(b->start - dmabuf.offset);
	err = register_as(net, b, number, &dmabuf, ret_mr);
	/* The registration holds the pages. */
	close(dmabuf.fd);
	if (err)
		nm_reason_set(ret_why, "%s: %s", net->inner.text, nm_host.strerror(-err));
	return err;
}

static void make_memory(struct net *net, struct nm_net_memory *m, const struct nm_device_ops *ops,
			const struct nm_device_buffer *b)
{
	struct nm_reason *how = &net->gpudirect->how, no_dmabuf = {""};
	int err = register_dmabuf(net, ops, b, m->number, &m->mr, &no_dmabuf);

	if (!err) {
		nm_reason_set(how, "GPUDirect by dma-buf, %s", net->inner.text);
		return;
	}
	err = register_as(net, b, m->number, NULL, &m->mr);
	if (!err) {
		nm_reason_set(how, "GPUDirect by address, %.60s; no dma-buf: %.80s",
			      net->inner.text, no_dmabuf.text);
		return;
	}
	m->mr = NULL;
	nm_reason_set(how, "staged: %.60s does not register it: %.40s; no dma-buf: %.60s",
		      net->inner.text, nm_host.strerror(-err), no_dmabuf.text);
	nm_info("%s buffer of %llu bytes at 0x%llx is sent and received through host memory: %s",
		ops->name, (unsigned long long)b->size, (unsigned long long)b->start, how->text);
}

void nm_net_memory_drop(struct nm_net_memory *m)
{
	if (m->mr)
		fi_close(&m->mr->fid);
	*m = (struct nm_net_memory){0};
}

/* A place for one more. NULL: all are in use. */
static struct nm_net_memory *make_room(struct nm_net_gpudirect *g)
{
	for (size_t i = 0; i < NM_NET_MEMORIES; i++)
		if (!g->memories[i].number)
			return &g->memories[i];
	for (size_t i = 0; i < NM_NET_MEMORIES; i++) {
		struct nm_net_memory *m = &g->memories[g->next++ % NM_NET_MEMORIES];

		if (m->users == 0) {
			nm_net_memory_drop(m);
			return m;
		}
	}
	return NULL;
}

struct nm_net_memory *nm_net_memory_get(struct net *net, const struct iovec *memory)
{
	const unsigned int number = nm_device_number(memory->iov_base);
	const struct nm_device_ops *ops = nm_device_plugged(number);
	struct nm_net_gpudirect *g = net->gpudirect;
	struct nm_device_buffer b;
	struct nm_net_memory *m;

	if (!ops || !ops->buffer ||
	    ops->buffer(nm_device_address(memory->iov_base), memory->iov_len, &b) < 0)
		return NULL;
	for (size_t i = 0; i < NM_NET_MEMORIES; i++) {
		m = &g->memories[i];
		if (m->number == number && m->id == b.id && m->start == b.start)
			return m->mr ? m : NULL;
	}
	m = make_room(g);
	if (!m)
		return NULL;
	*m = (struct nm_net_memory){
		.number = number,
		.start = b.start,
		.size = b.size,
		.id = b.id,
	};
	make_memory(net, m, ops, &b);
	return m->mr ? m : NULL;
}
