/* SPDX-License-Identifier: Apache-2.0 */
/* A pid that is somebody else's: found out, and not a byte of that process is touched. */
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "namespaces.h"
#include "transport/shm/shm_private.h"

static uint8_t reachable[64];

/* Whatever a pid is taken for, the proof is what counts. */
NM_TEST(pid_that_names_myself_is_found_out)
{
	struct nm_cma_place mine, its;
	struct nm_cma_offer offer, own;
	struct nm_cma_facts facts = {.pid = getpid(), .knows_pid_ns = true, .same_pid_ns = true};
	uint8_t challenge[NM_CMA_SECRET_LEN], other[NM_CMA_SECRET_LEN];
	struct nm_cma_target target;
	struct nm_reason why;

	nm_cma_place_init(&mine, true, 1);
	nm_cma_place_init(&its, true, 1);
	nm_cma_offer_init(&mine, 0, challenge, &own);
	nm_cma_offer_init(&its, 0, other, &offer);
	/* It said that it shows my challenge at an address that I do not have. */
	nm_cma_place_fini(&its);
	NM_CHECK(!nm_cma_reach(&mine, &facts, &offer, challenge, &target, &why));
	NM_CHECK_HAS(why.text, "another process");
	/* Addresses coincide: what is there is my answer to it, not its answer to me. */
	offer = own;
	nm_cma_answer(&mine, 0, &(struct nm_cma_offer){.challenge = {1, 2, 3}});
	NM_CHECK(!nm_cma_reach(&mine, &facts, &offer, challenge, &target, &why));
	NM_CHECK_HAS(why.text, "it lacks the challenge");
	nm_cma_place_fini(&mine);
}

NM_TEST(forked_child_is_not_its_parent)
{
	struct nm_cma_place place;
	struct nm_cma_offer offer;
	struct nm_cma_facts facts = {.pid = getpid(), .knows_pid_ns = true, .same_pid_ns = true};
	uint8_t challenge[NM_CMA_SECRET_LEN], here[8] = {0};
	struct nm_cma_target target;
	struct iovec local = {here, sizeof(here)};
	struct nm_span remote = {(uintptr_t)reachable, sizeof(here)};
	struct nm_reason why;
	pid_t child;

	nm_cma_place_init(&place, true, 1);
	nm_cma_offer_init(&place, 0, challenge, &offer);
	nm_cma_answer(&place, 0, &offer);
	NM_CHECK(nm_cma_reach(&place, &facts, &offer, challenge, &target, &why));
	NM_CHECK(nm_cma_was_reached(&place, 0, challenge));
	NM_CHECK_EQ(nm_cma_read(&target, &local, 1, &remote, 1), 8);
	child = fork();
	if (child == 0) {
		pause();
		_exit(0);
	}
	/* As if the child had been given the pid: same bytes at the same addresses, but the pad. */
	target.pid = child;
	NM_CHECK_EQ(nm_cma_read(&target, &local, 1, &remote, 1), -ESRCH);
	NM_CHECK_EQ(nm_cma_write(&target, &local, 1, &remote, 1), -ESRCH);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	NM_CHECK_EQ(nm_cma_read(&target, &local, 1, &remote, 1), -ESRCH);
	target.pid = getpid();
	NM_CHECK_EQ(nm_cma_read(&target, &local, 1, &remote, 1), 8);
	nm_cma_place_fini(&place);
	NM_CHECK_EQ(nm_cma_read(&target, &local, 1, &remote, 1), -ESRCH);
	NM_CHECK_EQ(nm_cma_write(&target, &local, 1, &remote, 1), -ESRCH);
}

/* A child with exactly this pid; needs a PID namespace of one's own. */
static pid_t fork_as(pid_t pid)
{
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = (uintptr_t)&pid,
		.set_tid_size = 1,
	};

	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

struct life {
	_Atomic int step;
	struct nm_cma_offer offer;
	uint8_t challenge[NM_CMA_SECRET_LEN];
};

static void live(struct life *life)
{
	struct nm_cma_place place;

	nm_cma_place_init(&place, true, 1);
	nm_cma_offer_init(&place, 0, life->challenge, &life->offer);
	nm_cma_answer(&place, 0, &life->offer);
	atomic_store(&life->step, 1);
	pause();
	_exit(0);
}

static void recycle_a_pid(void *arg)
{
	struct nm_cma_facts facts = {.pid = 77, .knows_pid_ns = true, .same_pid_ns = true};
	uint8_t here[8] = {0}, *shared;
	struct iovec local = {here, sizeof(here)};
	struct nm_cma_target target;
	struct nm_cma_place mine;
	struct life *life = arg;
	struct nm_span remote;
	struct nm_reason why;
	pid_t child;

	enter_pid_namespace();
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NM_CHECK(shared != MAP_FAILED);
	remote = (struct nm_span){(uintptr_t)shared, sizeof(here)};
	child = fork_as(77);
	if (child == 0)
		live(life);
	NM_CHECK_EQ(child, 77);
	while (atomic_load(&life->step) < 1)
		nm_test_sleep_ms(1);
	nm_cma_place_init(&mine, true, 1);
	NM_CHECK(nm_cma_reach(&mine, &facts, &life->offer, life->challenge, &target, &why));
	memset(here, 'w', sizeof(here));
	NM_CHECK_EQ(nm_cma_write(&target, &local, 1, &remote, 1), 8);
	NM_CHECK_EQ(shared[0], 'w');
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	NM_CHECK_EQ(nm_cma_write(&target, &local, 1, &remote, 1), -ESRCH);
	/* The next life of the pid: the same program with a private page of its own. */
	atomic_store(&life->step, 0);
	child = fork_as(77);
	if (child == 0)
		live(life);
	NM_CHECK_EQ(child, 77);
	while (atomic_load(&life->step) < 1)
		nm_test_sleep_ms(1);
	memset(here, 'x', sizeof(here));
	NM_CHECK_EQ(nm_cma_write(&target, &local, 1, &remote, 1), -ESRCH);
	NM_CHECK_EQ(nm_cma_read(&target, &local, 1, &remote, 1), -ESRCH);
	NM_CHECK(shared[0] == 'w' && here[0] == 'x');
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	munmap(shared, 4096);
	nm_cma_place_fini(&mine);
}

NM_TEST(recycled_pid_is_not_touched)
{
	struct life *life = mmap(NULL, sizeof(*life), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	NM_CHECK(life != MAP_FAILED);
#ifdef __SANITIZE_THREAD__
	nm_test_skip(
		"an address of one's own choice: the thread sanitizer gives the next free one");
#endif
	if (!pid_namespaces_work())
		nm_test_skip("PID namespaces");
	nm_test_join(nm_test_fork(recycle_a_pid, life), 0);
	munmap(life, sizeof(*life));
}
