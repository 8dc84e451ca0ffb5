/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from and to a neighbour's memory, where the session has proven whose it is. */
#include <errno.h>

#include "transport/shm/cma.h"
#include "transport/shm/shm_private.h"

/* A copy takes tens of microseconds; a peer that has no processor, or is stopped, much longer. */
#define REVOKE_MS 1000
/* Longer than a polling peer takes to say so again (engine/progress.c). */
#define POLLED_NS 2000000

void nm_shm_init_copies(struct shm_session *s)
{
	s->link.base.remote_copy = s->base.out.cma;
	if (s->base.out.cma)
		nm_reason_set(&s->base.out.cma_why, "found each other's challenge in the "
						    "other's private memory (CMA)");
}

/* What is not an answer about the peer's memory is the end of copying. */
static ssize_t copied(struct shm_session *s, ssize_t got)
{
	if (nm_unlikely(got < 0 && got != -EFAULT)) {
		s->link.base.remote_copy = false;
		nm_cma_explain((int)got, &s->base.out.cma_why);
	}
	return got;
}

static ssize_t shm_read_remote(struct nm_link *base, const struct iovec *local,
			       unsigned int nr_local, const struct nm_span *remote,
			       unsigned int nr_remote)
{
	struct shm_session *s = nm_shm_session_of(base);

	if (nm_unlikely(!base->remote_copy))
		return -EOPNOTSUPP;
	return copied(s, nm_cma_read(&s->base.out.cma_target, local, nr_local, remote, nr_remote));
}

static ssize_t shm_write_remote(struct nm_link *base, const struct iovec *local,
				unsigned int nr_local, const struct nm_span *remote,
				unsigned int nr_remote)
{
	struct shm_session *s = nm_shm_session_of(base);

	if (nm_unlikely(!base->remote_copy))
		return -EOPNOTSUPP;
	return copied(s, nm_cma_write(&s->base.out.cma_target, local, nr_local, remote, nr_remote));
}

static int shm_publish(struct nm_transport *transport, const struct nm_region *region)
{
	struct shm_transport *shm = nm_shm_of(transport);

	return nm_regions_publish(shm->window.regions, shm->window.geometry.nr_regions, region);
}

static void shm_revoke(struct nm_transport *transport, uint64_t key)
{
	struct shm_transport *shm = nm_shm_of(transport);

	nm_regions_revoke(shm->window.regions, shm->window.geometry.nr_regions, key);
	nm_sessions_await_copies(shm->sessions, REVOKE_MS);
}

/* The word that tells my peer that I am using its regions. */
static _Atomic uint64_t *reaching_of(const struct nm_link *link)
{
	struct shm_transport *shm = nm_shm_of(link->transport);

	return &shm->window.lanes[nm_shm_session_of(link)->base.out.own_lane].reaching;
}

static void shm_leave(struct nm_link *base)
{
	_Atomic uint64_t *reaching = reaching_of(base);

	/* Partner: nm_sessions_await_copies() of the peer. */
	atomic_store_explicit(reaching, atomic_load_explicit(reaching, memory_order_relaxed) + 1,
			      memory_order_release);
}

static int shm_reach(struct nm_link *base, const uint64_t *keys, unsigned int nr_keys,
		     struct nm_region *ret_regions)
{
	const struct nm_foreign_window *window = &nm_shm_session_of(base)->base.window;
	_Atomic uint64_t *reaching = reaching_of(base);
	int err = 0;

	if (!base->remote_copy)
		return -EOPNOTSUPP;
	/* Partner: nm_sessions_await_copies() of the peer, after it has taken a region away. */
	atomic_store_explicit(reaching, atomic_load_explicit(reaching, memory_order_relaxed) + 1,
			      memory_order_seq_cst);
	for (unsigned int i = 0; i < nr_keys && !err; i++)
		err = nm_regions_find(window->regions, window->geometry.nr_regions, keys[i],
				      &ret_regions[i]);
	if (err)
		shm_leave(base);
	return err;
}

static void shm_polled(struct nm_transport *transport, uint64_t now_ns)
{
	struct shm_transport *shm = nm_shm_of(transport);

	/* Partner: shm_polls() of peers. Nothing else is told by it. */
	atomic_store_explicit(&shm->window.header->polled_ns, now_ns, memory_order_relaxed);
}

static bool shm_polls(struct nm_link *base, uint64_t now_ns)
{
	const struct nm_session *session = &nm_shm_session_of(base)->base;
	uint64_t polled_ns;

	if (session->state != NM_SESSION_UP)
		return false;
	polled_ns = atomic_load_explicit(&session->window.header->polled_ns, memory_order_relaxed);
	return now_ns - polled_ns < POLLED_NS;
}

const struct nm_copy_ops nm_shm_copy_ops = {
	.read_remote = shm_read_remote,
	.write_remote = shm_write_remote,
	.publish = shm_publish,
	.revoke = shm_revoke,
	.reach = shm_reach,
	.leave = shm_leave,
	.polled = shm_polled,
	.polls = shm_polls,
};
