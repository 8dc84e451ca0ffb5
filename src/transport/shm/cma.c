/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/cma.h"

#include <errno.h>
#include <string.h>

#include "base/compiler.h"

/* The pieces of one call: the peer's pad in front. */
struct pieces {
	struct iovec local[NM_SPANS_MAX + 1];
	struct iovec remote[NM_SPANS_MAX + 1];
};

static void fill(struct pieces *ret_pieces, void *guard, uint64_t pad, const struct iovec *local,
		 unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote)
{
	ret_pieces->local[0] = (struct iovec){guard, NM_CMA_SECRET_LEN};
	ret_pieces->remote[0] = (struct iovec){(void *)(uintptr_t)pad, NM_CMA_SECRET_LEN};
	for (unsigned int i = 0; i < nr_local; i++)
		ret_pieces->local[i + 1] = local[i];
	for (unsigned int i = 0; i < nr_remote; i++)
		ret_pieces->remote[i + 1] = (struct iovec){
			(void *)(uintptr_t)remote[i].address,
			(size_t)remote[i].len,
		};
}

/* What a call that returned GOT means. */
static ssize_t outcome(ssize_t got)
{
	if (nm_likely(got > NM_CMA_SECRET_LEN))
		return got - NM_CMA_SECRET_LEN;
	if (got == NM_CMA_SECRET_LEN)
		return -EFAULT;
	/* Its pad is not there: an endpoint that was closed, or the pid is somebody else's. */
	if (got >= 0 || errno == EFAULT)
		return -ESRCH;
	return errno == EPERM || errno == ENOSYS ? -errno : -ESRCH;
}

ssize_t nm_cma_read(const struct nm_cma_target *target, const struct iovec *local,
		    unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote)
{
	uint8_t secret[NM_CMA_SECRET_LEN];
	struct pieces p;
	ssize_t got;

	if (nm_unlikely(nr_local > NM_SPANS_MAX || nr_remote > NM_SPANS_MAX))
		return -EFAULT;
	fill(&p, secret, target->pad + offsetof(struct nm_cma_pad, secret), local, nr_local, remote,
	     nr_remote);
	got = process_vm_readv(target->pid, p.local, nr_local + 1, p.remote, nr_remote + 1, 0);
	if (nm_likely(got >= NM_CMA_SECRET_LEN) &&
	    nm_unlikely(memcmp(secret, target->secret, sizeof(secret)) != 0))
		return -ESRCH;
	return outcome(got);
}

ssize_t nm_cma_write(const struct nm_cma_target *target, const struct iovec *local,
		     unsigned int nr_local, const struct nm_span *remote, unsigned int nr_remote)
{
	uint8_t nothing[NM_CMA_SECRET_LEN] = {0};
	struct pieces p;

	if (nm_unlikely(nr_local > NM_SPANS_MAX || nr_remote > NM_SPANS_MAX))
		return -EFAULT;
	fill(&p, nothing, target->pad + offsetof(struct nm_cma_pad, landing), local, nr_local,
	     remote, nr_remote);
	return outcome(
		process_vm_writev(target->pid, p.local, nr_local + 1, p.remote, nr_remote + 1, 0));
}

void nm_cma_explain(int err, struct nm_reason *ret_why)
{
	switch (err) {
	case -ESRCH:
		nm_reason_set(ret_why,
			      "the process that was proven is gone, or closed its endpoint");
		break;
	case -EPERM:
		nm_reason_set(ret_why, "the kernel does not allow them any more");
		break;
	default:
		nm_reason_set(ret_why, "the call failed: %s", strerror(-err));
	}
}
