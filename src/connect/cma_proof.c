/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/cma_proof.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

/* Range of addresses for the private page: from 2^45 to 2^46, above the crowded part. */
#define PAGE_BITS 12
#define FIRST_PAGE (UINT64_C(1) << (45 - PAGE_BITS))
#define PAGE_MASK ((UINT64_C(1) << (45 - PAGE_BITS)) - 1)

static void fill_random(void *bytes, size_t len)
{
	uint64_t now;

	if (getrandom(bytes, len, 0) == (ssize_t)len)
		return;
	/* A fresh number is enough: the proof is that both sides see it in one place. */
	now = nm_clock_ns();
	memset(bytes, 0x5a, len);
	memcpy(bytes, &now, len < sizeof(now) ? len : sizeof(now));
}

/*
 * The address distinguishes this process from a later one with the same pid. So it must not depend
 * on the kernel's address randomisation, which may be off.
 */
static void *map_private(size_t size)
{
	uint64_t page;
	void *mapping;

	fill_random(&page, sizeof(page));
	page = FIRST_PAGE + (page & PAGE_MASK);
	mapping = mmap((void *)(uintptr_t)(page << PAGE_BITS), size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return mapping == MAP_FAILED ? NULL : mapping;
}

void nm_cma_place_init(struct nm_cma_place *ret_place, bool wanted, uint32_t nr_slots)
{
	struct nm_cma_place place = {.nr_slots = nr_slots};
	struct stat st;

	if (stat("/proc/self/ns/user", &st) == 0) {
		place.user_ns_device = st.st_dev;
		place.user_ns_inode = st.st_ino;
	}
	place.size = sizeof(struct nm_cma_pad) + nr_slots * sizeof(struct nm_cma_slot);
	if (!wanted) {
		nm_reason_set(&place.why, "NEARMETAL_CMA=off");
	} else if (!(place.pad = map_private(place.size))) {
		nm_reason_set(&place.why, "no memory for a private page");
	} else if (madvise(place.pad, place.size, MADV_DONTFORK) < 0) {
		/* To a process with an old pid, a forked child would look like its parent. */
		nm_reason_set(&place.why, "the kernel cannot exclude a page from children: %s",
			      strerror(errno));
		munmap(place.pad, place.size);
		place.pad = NULL;
	} else {
		fill_random(place.pad->secret, sizeof(place.pad->secret));
		place.slots = (struct nm_cma_slot *)(void *)(place.pad + 1);
	}
	*ret_place = place;
}

void nm_cma_place_fini(struct nm_cma_place *place)
{
	if (place->pad)
		munmap(place->pad, place->size);
	place->pad = NULL;
	place->slots = NULL;
}

void nm_cma_offer_init(const struct nm_cma_place *place, uint32_t slot,
		       uint8_t ret_challenge[NM_CMA_SECRET_LEN], struct nm_cma_offer *ret_offer)
{
	struct nm_cma_offer offer = {
		.user_ns_device = place->user_ns_device,
		.user_ns_inode = place->user_ns_inode,
		.is_off = !place->pad,
		.dumpable = (uint32_t)prctl(PR_GET_DUMPABLE),
	};

	fill_random(ret_challenge, NM_CMA_SECRET_LEN);
	if (place->pad) {
		memset(&place->slots[slot], 0, sizeof(place->slots[slot]));
		offer.pad = (uintptr_t)place->pad;
		offer.slot = (uintptr_t)&place->slots[slot];
		memcpy(offer.challenge, ret_challenge, sizeof(offer.challenge));
	}
	*ret_offer = offer;
}

void nm_cma_answer(const struct nm_cma_place *place, uint32_t slot,
		   const struct nm_cma_offer *offer)
{
	if (place->pad)
		memcpy(place->slots[slot].challenge, offer->challenge, sizeof(offer->challenge));
}

bool nm_cma_was_reached(const struct nm_cma_place *place, uint32_t slot,
			const uint8_t challenge[NM_CMA_SECRET_LEN])
{
	return place->pad && !memcmp(place->slots[slot].landing, challenge, NM_CMA_SECRET_LEN);
}

bool nm_cma_works_on_myself(bool writing)
{
	char from = 1, to = 0;
	struct iovec here = {&to, 1}, there = {&from, 1};

	return (writing ? process_vm_writev : process_vm_readv)(getpid(), &here, 1, &there, 1, 0) ==
	       1;
}

static int read_ptrace_scope(void)
{
	FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
	int scope = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%d", &scope) != 1)
		scope = 0;
	fclose(file);
	return scope;
}

static const char *call_name(bool writing)
{
	return writing ? "process_vm_writev" : "process_vm_readv";
}

/* The kernel gives no reason when it refuses: look for the likely one. */
static NM_COLD void explain_eperm(const struct nm_cma_place *place,
				  const struct nm_cma_facts *facts,
				  const struct nm_cma_offer *offer, bool writing,
				  struct nm_reason *ret_why)
{
	int scope = read_ptrace_scope();

	if (!nm_cma_works_on_myself(writing))
		nm_reason_set(ret_why, "a system call filter (seccomp) refuses %s",
			      call_name(writing));
	else if (scope > 0)
		nm_reason_set(ret_why,
			      "kernel.yama.ptrace_scope is %d: only 0 lets processes of one user "
			      "reach each other",
			      scope);
	else if (offer->user_ns_inode != place->user_ns_inode ||
		 offer->user_ns_device != place->user_ns_device)
		nm_reason_set(ret_why, "it is in another user namespace, and the kernel lets only "
				       "its ancestors reach it");
	else if (facts->gid != getegid())
		nm_reason_set(ret_why, "it runs as group %u, this process as group %u", facts->gid,
			      getegid());
	else if (offer->dumpable != 1)
		nm_reason_set(ret_why, "it is not dumpable: it changed its user, or runs a program "
				       "that cannot be read");
	else
		nm_reason_set(ret_why, "the kernel refuses: other user ids, more capabilities than "
				       "this process has, or a security module");
}

static NM_COLD void explain(const struct nm_cma_place *place, const struct nm_cma_facts *facts,
			    const struct nm_cma_offer *offer, bool writing, int err,
			    struct nm_reason *ret_why)
{
	switch (err) {
	case EPERM:
	case EACCES:
		explain_eperm(place, facts, offer, writing, ret_why);
		break;
	case ESRCH:
		nm_reason_set(ret_why, "no process has its pid %d here", (int)facts->pid);
		break;
	case EFAULT:
		nm_reason_set(ret_why, "pid %d here is another process: it lacks the private page",
			      (int)facts->pid);
		break;
	case ENOSYS:
		nm_reason_set(ret_why, "this kernel, or a system call filter, has no %s",
			      call_name(writing));
		break;
	default:
		nm_reason_set(ret_why, "%s: %s", call_name(writing), strerror(err));
	}
}

/* Decide what is known without a system call. */
static bool worth_trying(const struct nm_cma_place *place, const struct nm_cma_facts *facts,
			 const struct nm_cma_offer *offer, struct nm_reason *ret_why)
{
	if (!place->pad)
		nm_reason_set(ret_why, "%s here", place->why.text);
	else if (offer->is_off || !offer->pad || !offer->slot)
		nm_reason_set(ret_why, "NEARMETAL_CMA=off there, or no private page");
	else if (!facts->knows_pid_ns)
		nm_reason_set(ret_why, "PID namespaces cannot be compared: is /proc mounted on "
				       "both sides?");
	else if (!facts->same_pid_ns)
		nm_reason_set(ret_why, "another PID namespace: its pid is not valid here");
	else if (facts->pid <= 0)
		nm_reason_set(ret_why, "the kernel does not report its pid here");
	else
		return true;
	return false;
}

bool nm_cma_reach(const struct nm_cma_place *place, const struct nm_cma_facts *facts,
		  const struct nm_cma_offer *offer, const uint8_t challenge[NM_CMA_SECRET_LEN],
		  struct nm_cma_target *ret_target, struct nm_reason *ret_why)
{
	struct nm_cma_target target = {.pid = facts->pid, .pad = offer->pad};
	uint8_t seen[NM_CMA_SECRET_LEN];
	uint8_t shown[2 * NM_CMA_SECRET_LEN] = {0};
	struct iovec here[2] = {{target.secret, sizeof(target.secret)}, {seen, sizeof(seen)}};
	struct iovec there[2] = {
		{(void *)(uintptr_t)(offer->pad + offsetof(struct nm_cma_pad, secret)),
		 NM_CMA_SECRET_LEN},
		{(void *)(uintptr_t)(offer->slot + offsetof(struct nm_cma_slot, challenge)),
		 NM_CMA_SECRET_LEN},
	};
	ssize_t got;

	if (!worth_trying(place, facts, offer, ret_why))
		return false;
	got = process_vm_readv(facts->pid, here, 2, there, 2, 0);
	if (got != 2 * NM_CMA_SECRET_LEN) {
		explain(place, facts, offer, false, got < 0 ? errno : EFAULT, ret_why);
		return false;
	}
	if (memcmp(seen, challenge, sizeof(seen)) != 0) {
		nm_reason_set(ret_why, "pid %d here is another process: it lacks the challenge",
			      (int)facts->pid);
		return false;
	}
	memcpy(shown + NM_CMA_SECRET_LEN, offer->challenge, NM_CMA_SECRET_LEN);
	here[0].iov_base = shown;
	here[1].iov_base = shown + NM_CMA_SECRET_LEN;
	there[0].iov_base = (void *)(uintptr_t)(offer->pad + offsetof(struct nm_cma_pad, landing));
	there[1].iov_base =
		(void *)(uintptr_t)(offer->slot + offsetof(struct nm_cma_slot, landing));
	got = process_vm_writev(facts->pid, here, 2, there, 2, 0);
	if (got != 2 * NM_CMA_SECRET_LEN) {
		explain(place, facts, offer, true, got < 0 ? errno : EFAULT, ret_why);
		return false;
	}
	*ret_target = target;
	return true;
}

/* The child has its own copy of the page at the same address. */
bool nm_cma_works_here(struct nm_reason *ret_words)
{
	char secret[NM_CMA_SECRET_LEN] = "nearmetal", seen[NM_CMA_SECRET_LEN] = "";
	struct iovec here = {seen, sizeof(seen)}, there = {secret, sizeof(secret)};
	struct nm_cma_place place = {.pad = NULL};
	struct nm_cma_facts facts = {.gid = getegid()};
	struct nm_cma_offer offer = {.dumpable = 1};
	pid_t child = fork();
	ssize_t got;
	int err;

	if (child == 0) {
		pause();
		_exit(0);
	}
	if (child < 0) {
		nm_reason_set(ret_words, "cannot fork: %s", strerror(errno));
		return false;
	}
	got = process_vm_readv(child, &here, 1, &there, 1, 0);
	err = got < 0 ? errno : EFAULT;
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (got == (ssize_t)sizeof(seen) && !memcmp(seen, secret, sizeof(seen))) {
		nm_reason_set(ret_words, "works within this PID namespace; proven for each peer "
					 "before it is used");
		return true;
	}
	facts.pid = child;
	explain(&place, &facts, &offer, false, err, ret_words);
	return false;
}
