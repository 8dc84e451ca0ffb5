/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct copies are used with whom was proven: the table of container cases, each with real
 * processes in real namespaces.
 */
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "namespaces.h"
#include "session_fixture.h"
#include "transport/shm/shm_private.h"

#define NOBODY 65534

/* What one process of a pair found out. */
struct verdict {
	struct nm_identity who;
	enum nm_relation relation;
	bool ready, met, cma, done;
	struct nm_reason why;
	int err;
	struct nm_cma_target target;
	pid_t pid;	/* of its own, as it sees it */
	uint64_t bytes; /* address of what it lets others reach */
};

/* Shared by the two processes and the case. */
struct pair {
	_Atomic int step;
	struct verdict owner, visitor;
	void (*prepare_owner)(void);
	void (*prepare_visitor)(void);
	bool owner_off;
	void (*then)(struct pair *pair); /* by the visitor, while both live */
};

static struct pair *pair_create(void)
{
	struct pair *pair = mmap(NULL, sizeof(*pair), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	NM_CHECK(pair != MAP_FAILED);
	return pair;
}

static void await_step(struct pair *pair, int step)
{
	while (atomic_load(&pair->step) < step)
		nm_test_sleep_ms(1);
}

static uint8_t reachable[64];

static void note(struct verdict *verdict, const struct nm_session *session,
		 const struct nm_direction *direction)
{
	verdict->met = true;
	verdict->relation = session->relation;
	verdict->cma = direction->cma;
	verdict->target = direction->cma_target;
	verdict->why = direction->cma_why;
}

static struct place make_place(bool cma)
{
	struct nm_reason why = {""};
	struct place place = {.no_cma = !cma};

	if (place_try(&place, nm_test_dir(), 5000, &why))
		nm_test_fail(__FILE__, __LINE__, "place: %s", why.text);
	return place;
}

static void be_owner(void *arg)
{
	struct nm_session *session;
	struct pair *pair = arg;
	struct place place;

	if (pair->prepare_owner)
		pair->prepare_owner();
	memset(reachable, 'o', sizeof(reachable));
	place = make_place(!pair->owner_off);
	pair->owner.who = place.who;
	pair->owner.pid = getpid();
	pair->owner.bytes = (uintptr_t)reachable;
	atomic_store(&pair->step, 1);
	await_step(pair, 2);
	if (pair->visitor.met) {
		session = place_expect(&place, NM_SESSION_SOURCE);
		note(&pair->owner, session, &session->in);
	}
	atomic_store(&pair->step, 3);
	await_step(pair, 4);
	place_destroy(&place);
}

static void be_visitor(void *arg)
{
	struct nm_session *session;
	struct pair *pair = arg;
	struct place place;

	await_step(pair, 1);
	if (pair->prepare_visitor)
		pair->prepare_visitor();
	place = make_place(true);
	pair->visitor.pid = getpid();
	pair->visitor.err =
		place_call(place.sessions, &pair->owner.who, &session, &pair->visitor.why);
	if (!pair->visitor.err)
		note(&pair->visitor, session, &session->out);
	atomic_store(&pair->step, 2);
	await_step(pair, 3);
	if (pair->then)
		pair->then(pair);
	atomic_store(&pair->step, 4);
	place_destroy(&place);
}

static void pair_run(struct pair *pair)
{
	pid_t owner, visitor;

	nm_test_dir();
	owner = nm_test_fork(be_owner, pair);
	visitor = nm_test_fork(be_visitor, pair);
	nm_test_join(visitor, 0);
	nm_test_join(owner, 0);
}

/* Both met, and both refused, with words that contain PART. */
static void expect_refused(struct pair *pair, const char *part)
{
	pair_run(pair);
	NM_CHECK_EQ(pair->visitor.err, 0);
	NM_CHECK(!pair->owner.cma && !pair->visitor.cma);
	NM_CHECK_HAS(pair->visitor.why.text, part);
	NM_CHECK_HAS(pair->owner.why.text, part);
	munmap(pair, sizeof(*pair));
}

/* ---- allowed ---- */

static void copy_both_ways(struct pair *pair)
{
	const struct nm_cma_target *target = &pair->visitor.target;
	uint8_t here[64] = {0};
	struct iovec local[2] = {{here, 16}, {here + 16, 16}};
	struct nm_span remote[2] = {{pair->owner.bytes, 8}, {pair->owner.bytes + 8, 24}};
	struct nm_span nowhere = {4096, 32};
	struct iovec bad = {(void *)4096, 32};

	NM_CHECK_EQ(nm_cma_read(target, local, 2, remote, 2), 32);
	NM_CHECK(here[0] == 'o' && here[31] == 'o' && here[32] == 0);
	memset(here, 'v', sizeof(here));
	NM_CHECK_EQ(nm_cma_write(target, local, 2, remote, 2), 32);
	memset(here, 0, sizeof(here));
	local[0].iov_len = 64;
	remote[0].len = 64;
	NM_CHECK_EQ(nm_cma_read(target, local, 1, remote, 1), 64);
	NM_CHECK(here[0] == 'v' && here[31] == 'v' && here[32] == 'o');
	/* What is not there, on either side, is no reason to doubt the peer. */
	NM_CHECK_EQ(nm_cma_read(target, local, 1, &nowhere, 1), -EFAULT);
	NM_CHECK_EQ(nm_cma_write(target, local, 1, &nowhere, 1), -EFAULT);
	NM_CHECK_EQ(nm_cma_read(target, &bad, 1, remote, 1), -EFAULT);
	nowhere.address = UINT64_MAX - 8;
	NM_CHECK_EQ(nm_cma_write(target, local, 1, &nowhere, 1), -EFAULT);
	remote[1].address = 4096;
	NM_CHECK_EQ(nm_cma_read(target, (struct iovec[]){{here, 64}, {here, 8}}, 2, remote, 2), 64);
	/* Never past what is mine, whatever the other side says. */
	memset(here, 0, sizeof(here));
	local[0].iov_len = 8;
	remote[0].len = 1 << 30;
	NM_CHECK_EQ(nm_cma_read(target, local, 1, remote, 1), 8);
	NM_CHECK(here[7] == 'v' && here[8] == 0);
}

NM_TEST(one_pid_namespace_is_allowed)
{
	struct pair *pair = pair_create();

	pair->then = copy_both_ways;
	pair_run(pair);
	NM_CHECK(pair->owner.cma && pair->visitor.cma);
	NM_CHECK_EQ(pair->visitor.target.pid, pair->owner.pid);
	NM_CHECK_EQ(pair->owner.target.pid, pair->visitor.pid);
	munmap(pair, sizeof(*pair));
}

NM_TEST(two_endpoints_of_one_process_are_allowed)
{
	struct place a = place_create(5000), b = place_create(5000);
	struct nm_session *out = place_visit(&a, &b), *in = place_expect(&b, NM_SESSION_SOURCE);

	NM_CHECK(out->out.cma && in->in.cma);
	NM_CHECK_EQ(out->out.cma_target.pid, getpid());
	place_destroy(&a);
	place_destroy(&b);
}

static void leave_namespaces_but_pid(void)
{
	if (unshare(CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS) < 0)
		NM_CHECK_EQ(unshare(CLONE_NEWUSER | CLONE_NEWIPC), 0);
}

NM_TEST(containers_that_share_the_pid_namespace_are_allowed)
{
	struct pair *pair = pair_create();

	if (geteuid() != 0)
		nm_test_skip("needs root to make containers of one user namespace");
	pair->prepare_owner = pair->prepare_visitor = leave_namespaces_but_pid;
	pair->then = copy_both_ways;
	pair_run(pair);
	NM_CHECK(pair->owner.cma && pair->visitor.cma);
	munmap(pair, sizeof(*pair));
}

NM_TEST(sibling_user_namespaces_are_refused)
{
	struct pair *pair = pair_create();

	if (!user_namespaces_work())
		nm_test_skip("user namespaces");
	pair->prepare_owner = pair->prepare_visitor = enter_user_namespace;
	expect_refused(pair, "user namespace");
}

/* ---- PID namespaces ---- */

NM_TEST(sibling_pid_namespaces_are_refused)
{
	struct pair *pair = pair_create();

	if (!pid_namespaces_work())
		nm_test_skip("PID namespaces");
	pair->prepare_owner = pair->prepare_visitor = enter_pid_namespace;
	pair_run(pair);
	/* Both are pid 1, so each other's pid would be one's own. */
	NM_CHECK_EQ(pair->owner.pid, 1);
	NM_CHECK_EQ(pair->visitor.pid, 1);
	NM_CHECK_EQ(pair->visitor.relation, NM_RELATION_HOST);
	NM_CHECK(!pair->owner.cma && !pair->visitor.cma);
	NM_CHECK_HAS(pair->visitor.why.text, "another PID namespace");
	NM_CHECK_HAS(pair->owner.why.text, "another PID namespace");
	munmap(pair, sizeof(*pair));
}

NM_TEST(nested_pid_namespace_is_refused)
{
	struct pair *pair = pair_create();

	if (!pid_namespaces_work())
		nm_test_skip("PID namespaces");
	pair->prepare_owner = enter_pid_namespace;
	expect_refused(pair, "another PID namespace");
}

/* ---- what else the kernel refuses ---- */

static void drop_privileges(void)
{
	NM_CHECK_EQ(setgroups(0, NULL), 0);
	NM_CHECK_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
	NM_CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
	/* Changing the user clears it. */
	NM_CHECK_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
}

static void drop_and_hide(void)
{
	drop_privileges();
	NM_CHECK_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
}

static void drop_to_other_group(void)
{
	NM_CHECK_EQ(setgroups(0, NULL), 0);
	NM_CHECK_EQ(setresgid(NOBODY - 1, NOBODY - 1, NOBODY - 1), 0);
	NM_CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
	NM_CHECK_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
}

/* The directory must be the user's that uses it. */
static void give_dir_away(void)
{
	if (geteuid() != 0)
		nm_test_skip("needs root to become another user");
	NM_CHECK_EQ(chown(nm_test_dir(), NOBODY, NOBODY), 0);
}

NM_TEST(ordinary_user_is_allowed)
{
	struct pair *pair = pair_create();

	give_dir_away();
	pair->prepare_owner = pair->prepare_visitor = drop_privileges;
	pair->then = copy_both_ways;
	pair_run(pair);
	NM_CHECK_STR(pair->visitor.why.text, "");
	NM_CHECK(pair->owner.cma && pair->visitor.cma);
	munmap(pair, sizeof(*pair));
}

NM_TEST(undumpable_process_is_refused)
{
	struct pair *pair = pair_create();

	give_dir_away();
	pair->prepare_owner = drop_and_hide;
	pair->prepare_visitor = drop_privileges;
	expect_refused(pair, "not dumpable");
}

NM_TEST(other_group_is_refused)
{
	struct pair *pair = pair_create();

	give_dir_away();
	pair->prepare_owner = drop_to_other_group;
	pair->prepare_visitor = drop_privileges;
	expect_refused(pair, "group 6553");
}

static void filter_calls(uint32_t nr)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {NM_ARRAY_SIZE(code), code};

	NM_CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	NM_CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static void filter_reads(void)
{
	filter_calls(SYS_process_vm_readv);
}

static void filter_writes(void)
{
	filter_calls(SYS_process_vm_writev);
}

NM_TEST(filtered_reads_are_refused)
{
	struct pair *pair = pair_create();

	pair->prepare_owner = filter_reads;
	expect_refused(pair, "seccomp");
}

NM_TEST(filtered_writes_are_refused)
{
	struct pair *pair = pair_create();

	pair->prepare_visitor = filter_writes;
	expect_refused(pair, "refuses process_vm_writev");
}

NM_TEST(knob_of_one_side_counts_for_both)
{
	struct pair *pair = pair_create();

	pair->owner_off = true;
	expect_refused(pair, "NEARMETAL_CMA=off");
}

NM_TEST(words_without_a_system_call)
{
	struct nm_cma_place place, off;
	struct nm_cma_offer offer, none;
	struct nm_cma_facts facts = {.pid = getpid(), .knows_pid_ns = true, .same_pid_ns = true};
	uint8_t challenge[NM_CMA_SECRET_LEN];
	struct nm_cma_target target;
	struct nm_reason why;

	nm_cma_place_init(&place, true, 1);
	nm_cma_place_init(&off, false, 1);
	nm_cma_offer_init(&place, 0, challenge, &offer);
	nm_cma_offer_init(&off, 0, challenge, &none);
	NM_CHECK(!nm_cma_reach(&off, &facts, &offer, challenge, &target, &why));
	NM_CHECK_HAS(why.text, "NEARMETAL_CMA=off here");
	NM_CHECK(!nm_cma_reach(&place, &facts, &none, challenge, &target, &why));
	NM_CHECK_HAS(why.text, "NEARMETAL_CMA=off there");
	facts.pid = 0;
	NM_CHECK(!nm_cma_reach(&place, &facts, &offer, challenge, &target, &why));
	NM_CHECK_HAS(why.text, "not report its pid here");
	facts.knows_pid_ns = facts.same_pid_ns = false;
	NM_CHECK(!nm_cma_reach(&place, &facts, &offer, challenge, &target, &why));
	NM_CHECK_HAS(why.text, "/proc");
	nm_cma_place_fini(&place);
}
