/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from and to a neighbour's memory after the proof of the session. */
#include <errno.h>
#include <string.h>

#include "transport/shm/shm_private.h"

/* A copy takes tens of microseconds, but much longer if the peer has no processor or is stopped. */
#define REVOKE_MS 1000
/* Longer than the interval at which a polling peer reports it (engine/progress.c). */
#define POLLED_NS 2000000

/* The pieces of one call, the peer's pad first. */
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

/* The result of a call that returned GOT. */
static ssize_t outcome(ssize_t got)
{
	if (nm_likely(got > NM_CMA_SECRET_LEN))
		return got - NM_CMA_SECRET_LEN;
	if (got == NM_CMA_SECRET_LEN)
		return -EFAULT;
	/* The pad is missing: the endpoint was closed, or the pid belongs to another process. */
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

/* The reason for one of the two errors, for use after "direct copies are off: ". */
static void explain(int err, struct nm_reason *ret_why)
{
	switch (err) {
	case -ESRCH:
		nm_reason_set(ret_why, "the proven process is gone or closed its endpoint");
		break;
	case -EPERM:
		nm_reason_set(ret_why, "the kernel does not allow them now");
		break;
	default:
		nm_reason_set(ret_why, "the call failed: %s", strerror(-err));
	}
}

void nm_shm_init_copies(struct shm_session *s)
{
	s->link.base.remote_copy = s->base.out.cma;
	s->link.base.shows_heap = s->base.out.shows_heap;
	s->link.base.reads_heap = s->base.out.reads_heap;
	if (s->base.out.cma)
		nm_reason_set(&s->base.out.cma_why, "each side found its challenge in the "
						    "other's private memory (CMA)");
}

/* Every error that is not about the peer's memory ends direct copies. */
static ssize_t copied(struct shm_session *s, ssize_t got)
{
	if (nm_unlikely(got < 0 && got != -EFAULT)) {
		s->link.base.remote_copy = false;
		explain((int)got, &s->base.out.cma_why);
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

	nm_shm_publish_heap(shm, region);
	return nm_regions_publish(shm->window.regions, shm->window.geometry.nr_regions, region);
}

static void shm_revoke(struct nm_transport *transport, uint64_t key)
{
	struct shm_transport *shm = nm_shm_of(transport);

	nm_regions_revoke(shm->window.regions, shm->window.geometry.nr_regions, key);
	nm_sessions_await_copies(shm->sessions, REVOKE_MS);
}

/* The word that shows the peer that this endpoint uses its regions. */
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
	/* Partner: nm_sessions_await_copies() of the peer, after it removed a region. */
	atomic_store_explicit(reaching, atomic_load_explicit(reaching, memory_order_relaxed) + 1,
			      memory_order_seq_cst);
	for (unsigned int i = 0; i < nr_keys && !err; i++)
		err = nm_regions_find(window->regions, window->geometry.nr_regions, keys[i], false,
				      &ret_regions[i], NULL);
	if (err)
		shm_leave(base);
	return err;
}

static void shm_polled(struct nm_transport *transport, uint64_t now_ns)
{
	struct shm_transport *shm = nm_shm_of(transport);

	/* Partner: shm_polls() of peers. It publishes nothing else. */
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
	.show_heap = nm_shm_show_heap,
	.read_heap = nm_shm_read_heap,
	.get_heap = nm_shm_get_heap,
	.publish = shm_publish,
	.revoke = shm_revoke,
	.reach = shm_reach,
	.leave = shm_leave,
	.polled = shm_polled,
	.polls = shm_polls,
};
