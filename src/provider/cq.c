/* SPDX-License-Identifier: Apache-2.0 */
/* fid_cq: the engine's completions in the format the program chose. Reading drives progress. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "provider/provider.h"
#include "provider/wait.h"

static struct nm_cq *cq_of(struct fid_cq *cq)
{
	return nm_container_of(cq, struct nm_cq, cq);
}

/* The formats are prefixes of each other, and the longest is one of the engine's own form. */
#define SAME_PLACE(field, theirs)                                                                  \
	static_assert(offsetof(struct nm_completion, field) ==                                     \
			      offsetof(struct fi_cq_tagged_entry, theirs),                         \
		      "completions are copied as they are")
SAME_PLACE(context, op_context);
SAME_PLACE(flags, flags);
SAME_PLACE(len, len);
SAME_PLACE(buf, buf);
SAME_PLACE(data, data);
SAME_PLACE(tag, tag);

/*
 * Word by word: the words were stored one by one just now, and a wider load would have to wait
 * until they have left the store buffer.
 */
static inline void write_entry(size_t entry_size, const struct nm_completion *from, uint64_t *to)
{
	const uint64_t *words = (const uint64_t *)from;

#pragma GCC unroll 6
	for (size_t i = 0; i < entry_size / sizeof(*to); i++)
		to[i] = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
}

/* The oldest completions of a queue that is not empty, up to an error. */
static ssize_t take_entries(struct nm_cq *cq, void *buf, size_t count, fi_addr_t *src_addr)
{
	const struct nm_completion *completion;
	char *to = buf;
	size_t nr;

	for (nr = 0; nr < count; nr++) {
		completion = nm_cqueue_front(cq->queue);
		if (!completion)
			break;
		if (nm_unlikely(completion->err))
			return nr ? (ssize_t)nr : -FI_EAVAIL;
		write_entry(cq->entry_size, completion, (void *)to);
		to += cq->entry_size;
		/* FI_ADDR_NOTAVAIL is what an unknown index is: all ones. */
		if (src_addr)
			src_addr[nr] = completion->source ? nm_peer_index(completion->source) :
							    FI_ADDR_NOTAVAIL;
		nm_cqueue_pop(cq->queue);
	}
	return (ssize_t)nr;
}

/* take_entries() for the format that MPIs ask for, without sources. */
static inline ssize_t take_tagged(struct nm_cqueue *queue, struct fi_cq_tagged_entry *to,
				  size_t count)
{
	size_t nr = 0;

	do {
		const struct nm_completion *completion = &queue->entries[queue->head & queue->mask];

		if (nm_unlikely(completion->err))
			return nr ? (ssize_t)nr : -FI_EAVAIL;
		write_entry(sizeof(*to), completion, (void *)&to[nr]);
		queue->head++;
	} while (++nr < count && !nm_cqueue_empty(queue));
	return (ssize_t)nr;
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *src_addr)
{
	struct nm_cq *cq = cq_of(fid);
	ssize_t nr = -FI_EAGAIN;

	nm_lock_take(&cq->domain->lock);
	/* Reading no entries is how a program drives progress and takes nothing. */
	if (nm_cqueue_empty(cq->queue) || !count)
		nm_domain_progress(cq->domain, &cq->eps);
	if (!nm_cqueue_empty(cq->queue))
		nr = take_entries(cq, buf, count, src_addr);
	nm_lock_give(&cq->domain->lock);
	return nr;
}

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t count)
{
	struct nm_cq *cq = cq_of(fid);

	if (nm_unlikely(cq->locked || !count ||
			cq->entry_size != sizeof(struct fi_cq_tagged_entry)))
		return cq_readfrom(fid, buf, count, NULL);
	if (nm_cqueue_empty(cq->queue))
		nm_domain_progress(cq->domain, &cq->eps);
	if (nm_cqueue_empty(cq->queue))
		return -FI_EAGAIN;
	return take_tagged(cq->queue, buf, count);
}

/* The engine speaks errno; libfabric has words of its own for a few. */
static int to_fi_error(int err)
{
	if (err == EMSGSIZE)
		return FI_ETRUNC;
	if (err == ENOKEY)
		return FI_ENOKEY;
	return err;
}

static bool is_loss(int err)
{
	return err == ECONNRESET || err == EPIPE || err == EBADMSG;
}

static void report_loss(struct nm_cq *cq)
{
	size_t i;

	for (i = 0; i < cq->eps.nr; i++)
		nm_ep_peer_lost(cq->eps.eps[i]);
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *buf, uint64_t flags)
{
	struct nm_cq *cq = cq_of(fid);
	const struct nm_completion *completion;
	ssize_t nr = -FI_EAGAIN;

	(void)flags;
	nm_lock_take(&cq->domain->lock);
	completion = nm_cqueue_front(cq->queue);
	if (completion && completion->err) {
		buf->op_context = completion->context;
		buf->flags = completion->flags;
		buf->len = completion->len;
		buf->buf = completion->buf;
		buf->data = completion->data;
		buf->tag = completion->tag;
		buf->olen = completion->olen;
		buf->err = to_fi_error(completion->err);
		buf->prov_errno = completion->err;
		/* None of ours. From 1.5 on err_data is the caller's buffer and stays untouched. */
		if (FI_VERSION_LT(cq->domain->fabric->fabric.api_version, FI_VERSION(1, 5)))
			buf->err_data = NULL;
		else /* a field that callers of before 1.5 have no room for */
			buf->err_data_size = 0;
		nm_cqueue_pop(cq->queue);
		if (is_loss(buf->prov_errno))
			report_loss(cq);
		nr = 1;
	}
	nm_lock_give(&cq->domain->lock);
	return nr;
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *src_addr,
			    const void *cond, int timeout)
{
	struct nm_cq *cq = cq_of(fid);
	uint64_t limit_ns = timeout < 0 ? UINT64_MAX : (uint64_t)timeout * NM_NS_PER_MS;
	uint64_t start = nm_clock_ns(), waited;
	struct nm_nap nap = {
		.domain = cq->domain,
		.queue = cq->queue,
		.signal = &cq->signalled,
	};
	ssize_t nr;

	(void)cond; /* a hint: waking up early is allowed */
	nm_nap_begin(&nap);
	for (;;) {
		nr = cq_readfrom(fid, buf, count, src_addr);
		if (nr != -FI_EAGAIN)
			return nr;
		if (atomic_exchange(&cq->signalled, 0))
			return -FI_EAGAIN;
		waited = nm_clock_ns() - start;
		if (waited >= limit_ns)
			return -FI_EAGAIN;
		nm_nap_take(&nap, limit_ns - waited);
	}
}

static ssize_t cq_sread(struct fid_cq *fid, void *buf, size_t count, const void *cond, int timeout)
{
	return cq_sreadfrom(fid, buf, count, NULL, cond, timeout);
}

static int cq_signal(struct fid_cq *fid)
{
	atomic_store(&cq_of(fid)->signalled, 1);
	nm_doorbell_wake(&cq_of(fid)->signalled);
	return 0;
}

static const char *cq_strerror(struct fid_cq *fid, int prov_errno, const void *err_data, char *buf,
			       size_t len)
{
	const char *text = nm_host.strerror(to_fi_error(prov_errno));

	(void)fid;
	(void)err_data;
	if (buf && len)
		snprintf(buf, len, "%s", text);
	return text;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	const struct nm_cq *cq = nm_container_of(fid, struct nm_cq, cq.fid);

	return nm_wait_control(cq->wait_obj, cq->fd, command, arg);
}

static int cq_close(struct fid *fid)
{
	struct nm_cq *cq = nm_container_of(fid, struct nm_cq, cq.fid);

	if (atomic_load(&cq->refs))
		return -FI_EBUSY;
	nm_cqueue_destroy(cq->queue);
	if (cq->fd >= 0)
		close(cq->fd);
	nm_ep_list_fini(&cq->eps);
	nm_refs_put(&cq->domain->refs);
	free(cq);
	return 0;
}

static struct fi_ops cq_fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = cq_close,
	.bind = nm_no_bind,
	.control = cq_control,
	.ops_open = nm_no_ops_open,
};

static struct fi_ops_cq cq_ops = {
	.size = sizeof(struct fi_ops_cq),
	.read = cq_read,
	.readfrom = cq_readfrom,
	.readerr = cq_readerr,
	.sread = cq_sread,
	.sreadfrom = cq_sreadfrom,
	.signal = cq_signal,
	.strerror = cq_strerror,
};

static int check_attr(struct fi_cq_attr *attr, size_t *ret_entry_size)
{
	static const size_t sizes[] = {
		[FI_CQ_FORMAT_CONTEXT] = sizeof(struct fi_cq_entry),
		[FI_CQ_FORMAT_MSG] = sizeof(struct fi_cq_msg_entry),
		[FI_CQ_FORMAT_DATA] = sizeof(struct fi_cq_data_entry),
		[FI_CQ_FORMAT_TAGGED] = sizeof(struct fi_cq_tagged_entry),
	};

	if (!nm_wait_offered(attr->wait_obj)) {
		nm_info("no completion queue: wait object %d is not offered", (int)attr->wait_obj);
		return -FI_ENOSYS;
	}
	if (attr->flags & ~FI_AFFINITY)
		return -FI_ENOSYS;
	if (attr->format == FI_CQ_FORMAT_UNSPEC)
		attr->format = FI_CQ_FORMAT_CONTEXT;
	if ((size_t)attr->format >= NM_ARRAY_SIZE(sizes))
		return -FI_ENOSYS;
	*ret_entry_size = sizes[attr->format];
	return 0;
}

int nm_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **ret_cq,
	       void *context)
{
	struct nm_cq *cq;
	size_t entry_size;
	int err;

	err = check_attr(attr, &entry_size);
	if (err)
		return err;
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return -FI_ENOMEM;
	cq->fd = -1;
	err = nm_cqueue_create(attr->size ? attr->size : NM_QUEUE_SIZE, &cq->queue);
	if (!err && attr->wait_obj == FI_WAIT_FD)
		err = nm_wait_open(1, &cq->fd);
	if (err) {
		nm_cqueue_destroy(cq->queue);
		free(cq);
		return err;
	}
	cq->wait_obj = attr->wait_obj;
	cq->entry_size = entry_size;
	cq->domain = nm_container_of(domain, struct nm_domain, domain);
	cq->locked = cq->domain->lock.needed;
	nm_refs_get(&cq->domain->refs);
	cq->cq.fid.fclass = FI_CLASS_CQ;
	cq->cq.fid.context = context;
	cq->cq.fid.ops = &cq_fid_ops;
	cq->cq.ops = &cq_ops;
	*ret_cq = &cq->cq;
	return 0;
}
