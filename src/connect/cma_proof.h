/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cross memory attach (process_vm_readv, process_vm_writev): may I use it on this peer, and is the
 * process that a pid names really the peer?
 *
 * A pid alone proves nothing: in two sibling PID namespaces both sides are pid 1 and each would
 * copy from itself; and a pid may be given to another process. So at every session, on both sides:
 *
 *  1. the PID namespaces are compared (device and inode of /proc/self/ns/pid), and the pid is the
 *     one that the kernel shows for the socket, as seen from here;
 *  2. the reader chooses 128 random bits and sends them over the socket; the other side puts them
 *     at a private address; the reader finds them there with process_vm_readv, and takes the
 *     secret of that process from its private page in the same call;
 *  3. it writes what the other side chose to the other's private address, and the other side finds
 *     it there. Only when both sides have seen both, either side copies.
 *
 * After the proof every copy carries its own: the first bytes of each call are read from, or
 * written to, the peer's private page, whose address is random and which no forked child has. One
 * call works on one address space, so where that page is missing the pid is another process's, and
 * not a byte was copied. No check before the call could say as much, a pidfd's neither
 * (docs/design/cma.md).
 *
 * A peer that may be reached so can reach me, too: it is the same user in the same PID namespace.
 */
#ifndef NM_CONNECT_CMA_PROOF_H
#define NM_CONNECT_CMA_PROOF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/reason.h"

#define NM_CMA_SECRET_LEN 16

/* The start of a private page. Peers read the secret; what they write to `landing` is not read. */
struct nm_cma_pad {
	uint8_t secret[NM_CMA_SECRET_LEN];
	uint8_t landing[NM_CMA_SECRET_LEN];
	uint8_t reserved[32];
};

/* What one session needs in private memory while its proof lasts. */
struct nm_cma_slot {
	uint8_t challenge[NM_CMA_SECRET_LEN]; /* the other side's, for it to find here */
	uint8_t landing[NM_CMA_SECRET_LEN];   /* where it shows that it can write */
};

/*
 * Private memory of an endpoint: a pad and slots. Never moves, and its address is not used for
 * anything else afterwards, so a write that comes late does no harm.
 */
struct nm_cma_place {
	struct nm_cma_pad *pad; /* NULL: not to be reached, see `why` */
	struct nm_cma_slot *slots;
	uint32_t nr_slots;
	size_t size;
	uint64_t user_ns_device, user_ns_inode;
	struct nm_reason why;
};

/* Part of the greeting (message.h): how I can be reached. Foreign bytes. */
struct nm_cma_offer {
	uint64_t pad;				/* address; 0: not at all */
	uint64_t slot;				/* address */
	uint8_t challenge[NM_CMA_SECRET_LEN];	/* to be put into the receiver's slot */
	uint64_t user_ns_device, user_ns_inode; /* for words only */
	uint32_t is_off;			/* by its NEARMETAL_CMA */
	uint32_t dumpable;			/* prctl(PR_GET_DUMPABLE); for words only */
};
_Static_assert(sizeof(struct nm_cma_offer) == 56, "no padding, which would carry stray bytes");

/* A process that was proven to be the peer. */
struct nm_cma_target {
	pid_t pid;    /* as seen from here */
	uint64_t pad; /* address of its struct nm_cma_pad */
	uint8_t secret[NM_CMA_SECRET_LEN];
};

/*
 * Private memory with NR_SLOTS slots; WANTED false: none, because of NEARMETAL_CMA. Cannot fail:
 * without memory `why` says so and every peer is refused.
 */
void nm_cma_place_init(struct nm_cma_place *ret_place, bool wanted, uint32_t nr_slots);
/* From here on peers' copies fail. In a forked child: only forget. */
void nm_cma_place_fini(struct nm_cma_place *place);

/* An offer for the session that uses SLOT, with a new CHALLENGE of mine. Clears the slot. */
void nm_cma_offer_init(const struct nm_cma_place *place, uint32_t slot,
		       uint8_t ret_challenge[NM_CMA_SECRET_LEN], struct nm_cma_offer *ret_offer);
/* Put the other side's challenge where it will look. Before anything is sent that says so. */
void nm_cma_answer(const struct nm_cma_place *place, uint32_t slot,
		   const struct nm_cma_offer *offer);

/* What is known of the other side besides its offer. */
struct nm_cma_facts {
	pid_t pid;	   /* by SO_PEERCRED; 0: the kernel shows none here */
	gid_t gid;	   /* likewise */
	bool same_pid_ns;  /* both know theirs and they are equal */
	bool knows_pid_ns; /* both know theirs */
};

/*
 * Reach the other side: find my CHALLENGE in its slot, take its secret, leave its own challenge in
 * its slot. A few system calls. Returns true and the target, or false and why not, in words
 * that make sense after "direct copies are off: ".
 */
bool nm_cma_reach(const struct nm_cma_place *place, const struct nm_cma_facts *facts,
		  const struct nm_cma_offer *offer, const uint8_t challenge[NM_CMA_SECRET_LEN],
		  struct nm_cma_target *ret_target, struct nm_reason *ret_why);
/* Has the other side left my CHALLENGE in SLOT? After it said that it had. */
bool nm_cma_was_reached(const struct nm_cma_place *place, uint32_t slot,
			const uint8_t challenge[NM_CMA_SECRET_LEN]);

/*
 * Does the kernel let this process use the calls on a child of its own? For nearmetal-info. The
 * words say yes or why not.
 */
bool nm_cma_works_here(struct nm_reason *ret_words);

#endif
