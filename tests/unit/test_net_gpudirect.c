/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of devices over an inner endpoint that the test plays: it holds what it was given until
 * the test ends it, and can ignore a cancellation.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/fi_tagged.h>

#include "base/clock.h"
#include "base/device.h"
#include "harness.h"
#include "net/gpudirect.h"
#include "net/host.h"

enum { NUMBER = 5, LEN = 1 << 20, OFFSET = 512, HELD_MAX = 512 };
#define START (UINT64_C(0x70000000) + OFFSET)
#define MR_DMABUF (1ULL << 40)

/* What the inner endpoint holds. */
static struct held {
	void *context;
	bool is_over; /* the queue will say so */
	int err;
} held[HELD_MAX];
static unsigned int nr_held, nr_regions;
static bool is_deaf;	    /* nothing can be cancelled */
static uint64_t registered; /* the first address */

static int close_region(struct fid *fid)
{
	nr_regions--;
	free(fid);
	return 0;
}

static struct fi_ops region_ops = {.size = sizeof(struct fi_ops), .close = close_region};

static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
		   struct fid_mr **ret_mr)
{
	const struct {
		int fd;
		uint64_t offset;
		size_t len;
		void *base_addr;
	} *dmabuf = (const void *)attr->mr_iov;

	(void)fid;
	NM_CHECK(flags & MR_DMABUF);
	NM_CHECK_EQ(dmabuf->offset, OFFSET);
	registered = (uintptr_t)dmabuf->base_addr + dmabuf->offset;
	*ret_mr = calloc(1, sizeof(**ret_mr));
	(*ret_mr)->fid.ops = &region_ops;
	nr_regions++;
	return 0;
}

static ssize_t hold(void *context)
{
	NM_CHECK(nr_held < HELD_MAX);
	held[nr_held++] = (struct held){.context = context};
	return 0;
}

static ssize_t tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to,
		     uint64_t tag, void *context)
{
	(void)ep, (void)buf, (void)len, (void)desc, (void)to, (void)tag;
	return hold(context);
}

static ssize_t trecv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from,
		     uint64_t tag, uint64_t ignore, void *context)
{
	(void)ep, (void)buf, (void)len, (void)desc, (void)from, (void)tag, (void)ignore;
	return hold(context);
}

static ssize_t cancel(fid_t fid, void *context)
{
	(void)fid;
	for (unsigned int i = 0; i < nr_held; i++)
		if (held[i].context == context && !is_deaf) {
			held[i].is_over = true;
			held[i].err = FI_ECANCELED;
		}
	return 0;
}

/* The next that is over; NULL: none. */
static void *next_over(bool takes, int *ret_err)
{
	for (unsigned int i = 0; i < nr_held; i++) {
		void *context = held[i].context;

		if (!held[i].is_over)
			continue;
		*ret_err = held[i].err;
		if (takes)
			held[i] = held[--nr_held];
		return context;
	}
	return NULL;
}

static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count)
{
	struct fi_cq_msg_entry *entry = buf;
	int err;

	(void)cq, (void)count;
	if (!next_over(false, &err))
		return -FI_EAGAIN;
	if (err)
		return -FI_EAVAIL;
	*entry = (struct fi_cq_msg_entry){.op_context = next_over(true, &err)};
	return 1;
}

static ssize_t cq_readerr(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
	(void)cq, (void)flags;
	entry->op_context = next_over(true, &entry->err);
	return entry->op_context ? 1 : -FI_EAGAIN;
}

static struct fi_ops ep_fid_ops = {.size = sizeof(struct fi_ops)};
static struct fi_ops_ep ep_ops = {.size = sizeof(struct fi_ops_ep), .cancel = cancel};
static struct fi_ops_tagged tagged_ops = {.send = tsend, .recv = trecv};
static struct fi_ops_cq cq_ops = {.read = cq_read, .readerr = cq_readerr};
static struct fi_ops_mr mr_ops = {.regattr = regattr};
static struct fid_ep ep = {.fid.ops = &ep_fid_ops, .ops = &ep_ops, .tagged = &tagged_ops};
static struct fid_cq cq = {.ops = &cq_ops};
static struct fid_domain domain = {.mr = &mr_ops};
static struct fi_ep_attr ep_attr = {.max_msg_size = SIZE_MAX};
static struct fi_domain_attr domain_attr;
static struct fi_info info = {.ep_attr = &ep_attr, .domain_attr = &domain_attr};

/* ---- the device ---- */

static int find_buffer(uint64_t address, size_t len, struct nm_device_buffer *ret_buffer)
{
	NM_CHECK(address >= START && address + len <= START + LEN);
	*ret_buffer = (struct nm_device_buffer){.start = START, .size = LEN, .id = 1};
	return 0;
}

static int make_dmabuf(uint64_t address, size_t len, uint64_t *ret_offset, struct nm_reason *why)
{
	(void)len, (void)why;
	*ret_offset = address % 4096;
	return memfd_create("dma-buf", MFD_CLOEXEC);
}

static const struct nm_device_ops device_ops = {
	.name = "device",
	.buffer = find_buffer,
	.dmabuf = make_dmabuf,
};

static const char *words_of(int err)
{
	return strerror(err);
}

/* ---- the channel ---- */

static struct net *net;
static struct nm_net_peer *peer;
static unsigned int nr_done;

static void done(struct nm_transport *from, struct nm_peer *to, uint64_t request, int err)
{
	(void)from, (void)to, (void)request, (void)err;
	nr_done++;
}

static void begin(void)
{
	struct nm_identity who = {.place = {1}};

	nm_device_plug(NUMBER, &device_ops);
	nm_host.version = FI_VERSION(1, 20);
	nm_host.strerror = words_of;
	net = calloc(1, sizeof(*net));
	net->inner.ep = &ep;
	net->inner.cq = &cq;
	net->inner.domain = &domain;
	net->inner.info = &info;
	net->inner.has_devices = true;
	net->base.sink.gpudirect_done = done;
	nm_net_gpudirect_open(net);
	NM_CHECK_EQ(nm_net_peers_init(&net->peers), 0);
	peer = nm_net_peers_get(&net->peers, &who);
	peer->inner = 1;
	peer->link.transport = &net->base;
	peer->link.peer = (struct nm_peer *)peer;
}

static void end(void)
{
	nm_net_gpudirect_close(net);
	NM_CHECK_EQ(nr_regions, 0);
	nm_net_peers_fini(&net->peers);
	free(net);
}

static const struct iovec *all(void)
{
	static struct iovec memory;

	memory = (struct iovec){nm_device_mark(NUMBER, START), LEN};
	return &memory;
}

static void expect(uint64_t request)
{
	uint64_t tag;

	NM_CHECK_EQ(net->base.gpudirect->expect(&peer->link, all(), request, &tag), 0);
}

NM_TEST(a_buffer_inside_a_page_is_registered_where_it_lies)
{
	begin();
	expect(1);
	NM_CHECK_EQ(registered, START);
	end();
}

/* An adapter that ends nothing, as with a peer whose host has gone. */
NM_TEST(many_operations_that_outlast_their_end_cost_one_wait)
{
	enum { NR = 10 };
	uint64_t begun;

	begin();
	for (uint64_t i = 0; i < NR; i++)
		NM_CHECK_EQ(net->base.gpudirect->send(&peer->link, all(), 7, i), 0);
	is_deaf = true;
	begun = nm_clock_ns();
	for (uint64_t i = 0; i < NR; i++)
		net->base.gpudirect->cancel(&net->base, i, false);
	/* One second each would be twice as long. */
	NM_CHECK(nm_clock_ns() - begun < NR / 2 * NM_NS_PER_S);
	/* The adapter cannot reach the buffer, and nothing uses it any more. */
	NM_CHECK_EQ(nr_regions, 0);
	NM_CHECK(!net->base.gpudirect->reaches(&peer->link, all()));
	net->base.gpudirect->forget(&net->base, all());
	NM_CHECK(net->base.gpudirect->reaches(&peer->link, all()));
	end();
}

NM_TEST(a_buffer_is_free_as_soon_as_its_operation_is_cancelled)
{
	begin();
	expect(1);
	held[0].is_over = true;
	/* Read, and its turn has not come. */
	expect(2);
	net->base.gpudirect->cancel(&net->base, 2, false);
	net->base.gpudirect->cancel(&net->base, 1, false);
	net->base.gpudirect->forget(&net->base, all());
	NM_CHECK_EQ(nr_regions, 0);
	nm_net_take_with_devices(net);
	NM_CHECK_EQ(nr_done, 0);
	end();
}

/* It announces messages, says that they failed, and never sends them. */
NM_TEST(a_peer_owes_few_messages_that_were_given_up)
{
	unsigned int nr = 0;

	begin();
	for (; peer->state == NM_NET_UP; nr++) {
		NM_CHECK(nr < HELD_MAX / 2);
		expect(nr);
		net->base.gpudirect->cancel(&net->base, nr, true);
	}
	NM_CHECK(nr > 1);
	while (nm_net_take_with_devices(net))
		;
	/* Their pages are free. */
	NM_CHECK_EQ(nr_held, 0);
	NM_CHECK(!net->gpudirect->operations);
	end();
}
