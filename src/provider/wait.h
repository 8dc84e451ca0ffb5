/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting. Descriptors that programs wait on (FI_WAIT_FD): progress is manual, and a message in
 * shared memory makes no descriptor readable, so that of a completion queue or counter always is,
 * and fi_trywait() never promises that it is safe to sleep. A program that waits on one polls in
 * fact, and is right. fi_cq_sread() and fi_cntr_wait() sleep between polls (struct nm_nap) and are
 * the better choice.
 *
 * Not for the data path. Any thread; no locks unless said. 0 or -errno.
 */
#ifndef NM_PROVIDER_WAIT_H
#define NM_PROVIDER_WAIT_H

#include <stdbool.h>

#include <rdma/fi_eq.h>

struct nm_counter;
struct nm_cqueue;
struct nm_domain;

/* FI_WAIT_NONE, _UNSPEC, _FD and _YIELD. */
bool nm_wait_offered(enum fi_wait_obj wait_obj);
/* A descriptor, readable when VALUE is not 0. */
int nm_wait_open(unsigned int value, int *ret_fd);
/* Make it readable, or not any more. FD -1: nothing happens. */
void nm_wait_raise(int fd);
void nm_wait_lower(int fd);
/* fi_control() of an object with WAIT_OBJ and FD: FI_GETWAIT and FI_GETWAITOBJ. */
int nm_wait_control(enum fi_wait_obj wait_obj, int fd, int command, void *arg);
/*
 * The pauses of one call that blocks. At first it polls and yields; then it sleeps until a peer
 * rings, another thread brings what it waits for or leaves work, it is signalled, or
 * NEARMETAL_SLEEP_MS are over, which is what a lost ring costs. Where something may come that does
 * not ring (a network, another machine) it sleeps for a moment each time.
 */
struct nm_nap {
	/* What the call waits for; the caller's. */
	struct nm_domain *domain;
	const struct nm_cqueue *queue;	  /* not empty; NULL: */
	const struct nm_counter *counter; /* `value` reached, or more `errors` than these */
	uint64_t value, errors;
	const _Atomic uint32_t *signal; /* turns to anything but 0 by nm_doorbell_wake(); or NULL */
	/* nm_nap_begin() and nm_nap_take() */
	uint64_t busy_ns;	   /* when there last was a reason to poll */
	struct nm_nap *next;	   /* of those asleep; under the domain's lock, as is all below */
	_Atomic uint32_t doorbell; /* another thread rings it */
	bool is_rung;
	bool is_long; /* sleeps until it is rung, as nothing had to be polled for when it began */
};

void nm_nap_begin(struct nm_nap *nap);
/*
 * One pause, after a poll found nothing; no longer than LEFT_NS. Takes the domain's lock, but not to
 * sleep.
 */
void nm_nap_take(struct nm_nap *nap, uint64_t left_ns);

/* fi_trywait(): -FI_EAGAIN as soon as one of FIDS is a queue of completions or a counter. */
int nm_trywait(struct fid_fabric *fabric, struct fid **fids, int count);

#endif
