/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping in the kernel until one of several words changes. A *doorbell* is a word that exactly
 * one party writes: it counts up and wakes all sleepers on it, in any process that maps it,
 * read-only too. The kernel compares each word with the value that its sleeper saw before it goes
 * to sleep, so a ring between that look and the sleep is not lost.
 *
 * The words may be in a hostile peer's memory, which can wake us at will and let us sleep until the
 * time is over; nothing is believed because of a ring.
 *
 * Thread-safe. Only nm_doorbell_ring(), nm_doorbell_wake() and nm_doorbells_wait() make system
 * calls.
 */
#ifndef NM_SHM_DOORBELL_H
#define NM_SHM_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* As many words as the kernel takes at once. */
#define NM_DOORBELLS_MAX 128

struct nm_doorbells {
	unsigned int nr;
	bool rung; /* there is something already: do not sleep at all */
	struct {
		const _Atomic uint32_t *word;
		uint32_t seen;
	} doorbells[NM_DOORBELLS_MAX];
};

/* Wait for WORD to change from what it is now, too. False: there is no room for it. */
static inline bool nm_doorbells_add(struct nm_doorbells *doorbells, const _Atomic uint32_t *word)
{
	if (doorbells->nr == NM_DOORBELLS_MAX)
		return false;
	doorbells->doorbells[doorbells->nr].word = word;
	/* Partner: nm_doorbell_ring(). What was published before the ring is seen after it. */
	doorbells->doorbells[doorbells->nr++].seen =
		atomic_load_explicit(word, memory_order_acquire);
	return true;
}

/* Count WORD up and wake its sleepers. */
void nm_doorbell_ring(_Atomic uint32_t *word);
/* Wake them after WORD was changed in another way. */
void nm_doorbell_wake(const _Atomic uint32_t *word);
/*
 * Sleep until a word has changed, or for TIMEOUT_NS. Returns false when the time is over. Where the
 * kernel cannot wait for several words it sleeps for 50 us at most, and says that the time is over.
 */
bool nm_doorbells_wait(const struct nm_doorbells *doorbells, uint64_t timeout_ns);
/* Has it found out that the kernel cannot? Then no ring is needed. */
bool nm_doorbells_are_refused(void);

#endif
