/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleep in the kernel until one of several words changes. A *doorbell* is a word that exactly one
 * party writes. A ring adds 1 to it and wakes all sleepers on it, in every process that maps it,
 * also read-only. Before a sleep the kernel compares each word with the value that the sleeper
 * read, so a ring in between is not lost.
 *
 * A word may be in a hostile peer's memory. Such a peer can wake sleepers at will, or let them
 * sleep until their time limit. So a ring proves nothing.
 *
 * Thread-safe. Only nm_doorbell_ring(), nm_doorbell_wake() and nm_doorbells_wait() make system
 * calls.
 */
#ifndef NM_SHM_DOORBELL_H
#define NM_SHM_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Largest number of words that the kernel takes at once. */
#define NM_DOORBELLS_MAX 128

struct nm_doorbells {
	unsigned int nr;
	bool rung; /* something has arrived already: do not sleep */
	struct {
		const _Atomic uint32_t *word;
		uint32_t seen;
	} doorbells[NM_DOORBELLS_MAX];
};

/* Also wait for WORD to change from its present value. False: no room for it. */
static inline bool nm_doorbells_add(struct nm_doorbells *doorbells, const _Atomic uint32_t *word)
{
	if (doorbells->nr == NM_DOORBELLS_MAX)
		return false;
	doorbells->doorbells[doorbells->nr].word = word;
	/* Partner: nm_doorbell_ring(). Data published before a ring is seen after it. */
	doorbells->doorbells[doorbells->nr++].seen =
		atomic_load_explicit(word, memory_order_acquire);
	return true;
}

/* Add 1 to WORD and wake its sleepers. */
void nm_doorbell_ring(_Atomic uint32_t *word);
/* Wake the sleepers after another kind of change to WORD. */
void nm_doorbell_wake(const _Atomic uint32_t *word);
/*
 * Sleep until a word changes, or for TIMEOUT_NS. Returns false on timeout. If the kernel cannot
 * wait for several words, it sleeps for at most 50 us and returns false.
 */
bool nm_doorbells_wait(const struct nm_doorbells *doorbells, uint64_t timeout_ns);
/* True if the kernel was found unable to wait for several words: no ring is needed. */
bool nm_doorbells_are_refused(void);

#endif
