/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cross memory attach (process_vm_readv, process_vm_writev): proof that this process may use it on
 * a peer, and that the process behind a pid really is the peer.
 *
 * A pid alone proves nothing. In two sibling PID namespaces both sides may be pid 1, and each would
 * copy from itself. The kernel may also reuse a pid. So both sides run this proof for each session:
 *
 *  1. They compare their PID namespaces (device and inode of /proc/self/ns/pid). The pid is the
 *     one that the kernel reports for the socket, seen from the own namespace.
 *  2. The reader sends 128 random bits over the socket. The other side puts them at a private
 *     address. The reader finds them there with process_vm_readv, and in the same call reads the
 *     secret of that process from its private page.
 *  3. The reader writes the other side's challenge to the other side's private address, where
 *     the other side finds it. Copies begin only after both sides have seen both.
 *
 * After this each copy carries its own proof. The first bytes of each call are read from, or
 * written to, the peer's private page. Its address is random, and forked children do not have it.
 * One call works on one address space: if the page is missing, the pid belongs to another process,
 * and no byte was copied. A check before the call, even with a pidfd, cannot prove this
 * (docs/design/cma.md).
 *
 * If this process can reach the peer, the peer can reach it too: both have the same user and PID
 * namespace.
 */
#ifndef NM_CONNECT_CMA_PROOF_H
#define NM_CONNECT_CMA_PROOF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/reason.h"

#define NM_CMA_SECRET_LEN 16

/* The start of a private page. Peers read the secret and write to `landing`, which is not read. */
struct nm_cma_pad {
	uint8_t secret[NM_CMA_SECRET_LEN];
	uint8_t landing[NM_CMA_SECRET_LEN];
	uint8_t reserved[32];
};

/* Private memory of one session during its proof. */
struct nm_cma_slot {
	uint8_t challenge[NM_CMA_SECRET_LEN]; /* the other side's; it reads it here */
	uint8_t landing[NM_CMA_SECRET_LEN];   /* the other side writes its proof here */
};

/*
 * Private memory of an endpoint: a pad and slots. It never moves, and its address is never reused,
 * so a late write does no harm.
 */
struct nm_cma_place {
	struct nm_cma_pad *pad; /* NULL: peers cannot reach this process; `why` has the reason */
	struct nm_cma_slot *slots;
	uint32_t nr_slots;
	size_t size;
	uint64_t user_ns_device, user_ns_inode;
	struct nm_reason why;
};

/* Part of the greeting (message.h): how the sender can be reached. Foreign bytes. */
struct nm_cma_offer {
	uint64_t pad;				/* address; 0: the sender cannot be reached */
	uint64_t slot;				/* address */
	uint8_t challenge[NM_CMA_SECRET_LEN];	/* the receiver puts it into its slot */
	uint64_t user_ns_device, user_ns_inode; /* used in messages only */
	uint32_t is_off;			/* NEARMETAL_CMA is off at the sender */
	uint32_t dumpable;			/* prctl(PR_GET_DUMPABLE); used in messages only */
};
_Static_assert(sizeof(struct nm_cma_offer) == 56, "no padding, which would carry stray bytes");

/* A process that was proven to be the peer. */
struct nm_cma_target {
	pid_t pid;    /* in this process's PID namespace */
	uint64_t pad; /* address of its struct nm_cma_pad */
	uint8_t secret[NM_CMA_SECRET_LEN];
};

/*
 * Create private memory with NR_SLOTS slots. WANTED false: create none, because of NEARMETAL_CMA.
 * Never fails: without memory, `why` has the reason and every peer is refused.
 */
void nm_cma_place_init(struct nm_cma_place *ret_place, bool wanted, uint32_t nr_slots);
/* After this, copies by peers fail. In a forked child it only clears the pointers. */
void nm_cma_place_fini(struct nm_cma_place *place);

/* Make an offer for the session that uses SLOT, with a new own CHALLENGE. Clears the slot. */
void nm_cma_offer_init(const struct nm_cma_place *place, uint32_t slot,
		       uint8_t ret_challenge[NM_CMA_SECRET_LEN], struct nm_cma_offer *ret_offer);
/* Put the other side's challenge into the slot. Call it before the message that announces it. */
void nm_cma_answer(const struct nm_cma_place *place, uint32_t slot,
		   const struct nm_cma_offer *offer);

/* Facts about the other side that are not in its offer. */
struct nm_cma_facts {
	pid_t pid;	   /* from SO_PEERCRED; 0: the kernel reports none here */
	gid_t gid;	   /* from SO_PEERCRED */
	bool same_pid_ns;  /* both sides know their namespace and it is the same one */
	bool knows_pid_ns; /* both sides know their namespace */
};

/*
 * Reach the other side: find the own CHALLENGE in its slot, read its secret, write its own
 * challenge into its slot. A few system calls. Returns true and the target, or false and a reason
 * that makes sense after "direct copies are off: ".
 */
bool nm_cma_reach(const struct nm_cma_place *place, const struct nm_cma_facts *facts,
		  const struct nm_cma_offer *offer, const uint8_t challenge[NM_CMA_SECRET_LEN],
		  struct nm_cma_target *ret_target, struct nm_reason *ret_why);
/* True if the other side wrote the own CHALLENGE into SLOT. Call it after that side's report. */
bool nm_cma_was_reached(const struct nm_cma_place *place, uint32_t slot,
			const uint8_t challenge[NM_CMA_SECRET_LEN]);

/*
 * True if the kernel lets this process use the calls on its own child. For nearmetal-info.
 * RET_WORDS holds the result or the reason.
 */
bool nm_cma_works_here(struct nm_reason *ret_words);

/*
 * True if this process may use the call for reading, or WRITING, on itself. The kernel always
 * allows this; filters may not.
 */
bool nm_cma_works_on_myself(bool writing);

#endif
