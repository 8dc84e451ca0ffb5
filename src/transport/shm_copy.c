/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from and to a neighbour's memory, where the meeting has proven whose it is. */
#include <errno.h>

#include "transport/cma.h"
#include "transport/shm_private.h"

void nm_shm_init_copies(struct shm_link *link, const struct nm_encounter *encounter)
{
	link->base.remote_copy = encounter->cma;
	link->target = encounter->cma_target;
	if (encounter->cma)
		nm_reason_set(&link->facts.copy_reason, "found each other's challenge in the "
							"other's private memory (CMA)");
	else
		link->facts.copy_reason = encounter->cma_why;
}

/* What is not an answer about the peer's memory is the end of copying. */
static ssize_t copied(struct shm_link *link, ssize_t got)
{
	if (nm_unlikely(got < 0 && got != -EFAULT)) {
		link->base.remote_copy = false;
		nm_cma_explain((int)got, &link->facts.copy_reason);
	}
	return got;
}

ssize_t nm_shm_read_remote(struct nm_link *base, const struct iovec *local, unsigned int nr_local,
			   const struct nm_span *remote, unsigned int nr_remote)
{
	struct shm_link *link = nm_container_of(base, struct shm_link, base);

	if (nm_unlikely(!base->remote_copy))
		return -EOPNOTSUPP;
	return copied(link, nm_cma_read(&link->target, local, nr_local, remote, nr_remote));
}

ssize_t nm_shm_write_remote(struct nm_link *base, const struct iovec *local, unsigned int nr_local,
			    const struct nm_span *remote, unsigned int nr_remote)
{
	struct shm_link *link = nm_container_of(base, struct shm_link, base);

	if (nm_unlikely(!base->remote_copy))
		return -EOPNOTSUPP;
	return copied(link, nm_cma_write(&link->target, local, nr_local, remote, nr_remote));
}
